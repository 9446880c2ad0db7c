"""What a configuration says of a model's attention."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from qkscope.capture.architecture import read_architecture
from qkscope.errors import CaptureError

PLAIN = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "max_position_embeddings": 512,
    "rope_theta": 5e5,
}


def test_a_configuration_file_as_a_dict() -> None:
    found = read_architecture(PLAIN)
    assert (found.family, found.num_layers, found.n_q_heads, found.n_kv_heads) == ("llama", 4, 8, 2)
    assert (found.head_dim, found.gqa_ratios, found.max_positions) == (8, (4,) * 4, 512)
    assert found.rope_theta == 5e5
    assert found.rope == (True,) * 4
    assert found.full_attention_layers == [0, 1, 2, 3]


def test_declared_head_dim_wins_over_the_quotient() -> None:
    assert read_architecture(PLAIN | {"head_dim": 24}).head_dim == 24


def test_smollm3_at_full_size() -> None:
    found = read_architecture(AutoConfig.for_model("smollm3"))
    assert (found.num_layers, found.n_q_heads, found.n_kv_heads, found.head_dim) == (36, 16, 4, 128)
    assert [layer for layer, rotates in enumerate(found.rope) if not rotates] == [*range(3, 36, 4)]


@pytest.mark.parametrize(
    ("family", "changes", "nope"),
    [
        ("zamba2", {"layer_types": ["hybrid"] * 4, "layers_block_type": ["hybrid"] * 4}, {0, 1, 2, 3}),
        ("bloom", {}, {0, 1, 2, 3}),
        ("cohere2", {"sliding_window_pattern": 2}, {1, 3}),
        ("exaone4", {"sliding_window": 8, "sliding_window_pattern": 2}, {1, 3}),
        ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 4}, set()),
        ("granitemoehybrid", {"layer_types": ["attention"] * 4}, {0, 1, 2, 3}),
        ("llama4_text", {}, {3}),
        ("gpt_neox", {}, set()),
    ],
)
def test_layers_without_rotation(family: str, changes: dict[str, Any], nope: set[int]) -> None:
    found = read_architecture(AutoConfig.for_model(family, num_hidden_layers=4, **changes))
    assert {layer for layer, rotates in enumerate(found.rope) if rotates is False} == nope


def test_a_family_that_does_not_tell_is_unknown() -> None:
    silent = {name: value for name, value in PLAIN.items() if name != "rope_theta"}
    assert read_architecture(silent | {"model_type": "novel"}).rope == (None,) * 4


def test_rope_theta_of_full_attention_layers() -> None:
    both = {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}}
    assert read_architecture(PLAIN | {"rope_parameters": both}).rope_theta == 1e6


def test_sliding_and_linear_layers_are_told_apart() -> None:
    kinds = ["linear_attention", "sliding_attention", "mamba", "full_attention"]
    found = read_architecture(PLAIN | {"layer_types": kinds, "sliding_window": 128})
    assert found.attention_layers == [1, 3]
    assert found.full_attention_layers == found.measured_layers() == [3]
    assert found.measured_layers(include_sliding=True) == [1, 3]
    assert found.sliding_window == 128


def test_cross_attention_layers_are_not_self_attention() -> None:
    assert read_architecture(PLAIN | {"cross_attention_layers": [1]}).attention_layers == [0, 2, 3]


def test_one_window_for_all_layers() -> None:
    found = read_architecture(PLAIN | {"sliding_window": 64})
    assert found.full_attention_layers == []
    with pytest.raises(CaptureError, match=r"no full-attention layer.*at most 64 tokens"):
        found.measured_layers()
    with pytest.raises(CaptureError, match=r"no full-attention layer.*--sliding$"):
        found.measured_layers(remedy=", or --sliding")
    switched_off = read_architecture(PLAIN | {"sliding_window": 64, "use_sliding_window": False})
    assert switched_off.full_attention_layers == [0, 1, 2, 3]


def test_a_model_without_attention() -> None:
    with pytest.raises(CaptureError, match="softmax attention"):
        read_architecture(PLAIN | {"layer_types": ["mamba"] * 4}).measured_layers()


def test_the_text_part_of_a_model_with_several() -> None:
    found = read_architecture({"model_type": "seeing", "text_config": PLAIN, "vision_config": {}})
    assert (found.family, found.num_layers) == ("llama", 4)


def test_latent_attention_joins_two_parts() -> None:
    assert read_architecture(PLAIN | {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8}).head_dim == 24


def test_window_beyond_the_models_maximum() -> None:
    found = read_architecture(PLAIN)
    assert found.window_warning(512) is None
    assert "512 positions" in str(found.window_warning(1024))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": None}, "number of layers.*found nothing"),
        ({"num_attention_heads": 0}, "number of query heads.*found 0"),
        ({"num_key_value_heads": 3}, "8 query heads and 3 key heads"),
        ({"layer_types": ["full_attention"]}, "1 layers .* 4"),
        ({"hidden_size": None}, "hidden size"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        read_architecture(PLAIN | changes)
