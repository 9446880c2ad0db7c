"""A model's name -> configuration, weights, tokenizer, in training order."""

from qkscope.checkpoints.files import Source, digest, discover
from qkscope.checkpoints.loading import (
    Resolved,
    checkpoints_yaml,
    find_tokenizer,
    list_revisions,
    load_config,
    load_model,
    load_resolved,
    load_tokenizer,
    resolve,
)
from qkscope.checkpoints.rope import rotation_settings, same_rotation

__all__ = [
    "Resolved",
    "Source",
    "checkpoints_yaml",
    "digest",
    "discover",
    "find_tokenizer",
    "list_revisions",
    "load_config",
    "load_model",
    "load_resolved",
    "load_tokenizer",
    "resolve",
    "rotation_settings",
    "same_rotation",
]
