"""Small models of many families, with random weights, through their real classes."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SMALL = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# What a family needs besides, and the layers of its that attend to everything.
FAMILIES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "llama": ({}, [0, 1, 2, 3]),
    "smollm3": ({"no_rope_layer_interval": 4}, [0, 1, 2, 3]),
    "gpt_neox": ({"num_key_value_heads": None, "head_dim": None}, [0, 1, 2, 3]),
    "olmo2": ({}, [0, 1, 2, 3]),
    "olmo3": ({"sliding_window": 8}, [3]),
    "qwen2": ({}, [0, 1, 2, 3]),
    "qwen3": ({}, [0, 1, 2, 3]),
    "mistral": ({"sliding_window": None}, [0, 1, 2, 3]),
    "gemma2": ({"sliding_window": 8, "attn_logit_softcapping": 5.0}, [1, 3]),
    "gemma3_text": ({"sliding_window": 8, "sliding_window_pattern": 2}, [1, 3]),
    "phi3": ({}, [0, 1, 2, 3]),
    "gpt_oss": (
        {
            "sliding_window": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": PLAIN_ROPE,
        },
        [1, 3],
    ),
}


def build(family: str, **changes: Any) -> Any:
    """A small model of the family with random weights, the same on every call."""
    options = SMALL | FAMILIES.get(family, ({}, []))[0] | changes
    config = AutoConfig.for_model(
        family, **{k: v for k, v in options.items() if v is not None or k == "sliding_window"}
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    # Attention sinks, norms and biases start as constants; random ones show whether they are respected.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def tokens(rows: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, 97, (rows, length), generator=torch.Generator().manual_seed(seed))
