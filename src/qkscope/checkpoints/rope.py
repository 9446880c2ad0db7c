"""The rotation settings of a configuration: reading them, and putting another checkpoint's in their place.

A counterfactual checkpoint has one checkpoint's weights and another's rotation settings. Nothing of the weights
depends on them, so it is the same model built from the same files with a few entries of config.json exchanged.
"""

from __future__ import annotations

import json
from typing import Any

from qkscope.errors import CheckpointError

# The names of transformers 5 first, then those of configurations that bring their own code.
FIELDS = (
    *("rope_parameters", "no_rope_layers"),
    *("rope_theta", "rope_scaling", "rotary_emb_base", "rotary_pct", "rotary_dim", "partial_rotary_factor"),
)
# Kinds of scaling that also look at the length the model was made for.
BY_LENGTH = ("dynamic", "longrope", "yarn")
LENGTHS = ("max_position_embeddings", "original_max_position_embeddings")


def rotation_settings(config: Any) -> str:
    """All that decides how queries and keys are rotated, as JSON."""
    fields = config.get_text_config().to_dict()
    by_length = any(kind in json.dumps(fields.get("rope_parameters")) for kind in BY_LENGTH)
    names = (*FIELDS, *LENGTHS) if by_length else FIELDS
    return json.dumps({name: fields[name] for name in names if fields.get(name) is not None}, sort_keys=True)


def same_rotation(a: str | None, b: str | None) -> bool:
    """Whether two settings (None: a checkpoint's own) are the same: a base of 50000 is one of 50000.0."""
    return a == b or (a is not None and b is not None and json.loads(a) == json.loads(b))


def with_rotation(config: Any, settings: str) -> Any:
    """The configuration with these rotation settings instead of its own; it is changed in place."""
    text = config.get_text_config()
    wanted, own = json.loads(settings), json.loads(rotation_settings(config))
    if wanted.keys() != own.keys():
        raise CheckpointError(
            f"rotation settings of another kind of configuration: {', '.join(sorted(wanted))} instead of "
            f"{', '.join(sorted(own))}; set `controls: {{rotation: false}}` in the study"
        )
    for name, value in wanted.items():
        setattr(text, name, value)
    return config
