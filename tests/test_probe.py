"""What short passes show of a model, and what happens where they and the configuration disagree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import cpu_offload
from families import build
from transformers import (
    BertConfig,
    BertForMaskedLM,
    T5Config,
    T5EncoderModel,
    ViTConfig,
    ViTModel,
)

from qkscope.capture import find_backbone, measure
from qkscope.capture.architecture import read_architecture
from qkscope.capture.hooks import HOOKS
from qkscope.capture.probe import probe, probe_model
from qkscope.corpus import Document
from qkscope.errors import CaptureError
from qkscope.sums.head_index import HeadIndex, sample_heads


def document(length: int, index: int = 0) -> Document:
    ids = np.random.default_rng([9, index]).integers(3, 97, length).astype(np.int32)
    return Document(index, f"document {index}", ids)


def heads(model: Any, layers: list[int] | None = None) -> HeadIndex:
    a = read_architecture(find_backbone(model).config)
    return HeadIndex.of(sample_heads(layers or a.full_attention_layers, a.q_heads, None), a.gqa_ratios)


@pytest.mark.parametrize(
    ("family", "changes", "rope"),
    [
        ("llama", {}, {0: True, 1: True, 2: True, 3: True}),
        ("smollm3", {}, {0: True, 1: True, 2: True, 3: False}),
        ("gpt2", {}, dict.fromkeys(range(4), False)),
        ("ctrl", {}, dict.fromkeys(range(4), False)),
        ("whisper", {}, dict.fromkeys(range(4), False)),
        ("roformer", {}, dict.fromkeys(range(4), True)),
        ("bloom", {}, dict.fromkeys(range(4), False)),
        ("falcon", {"alibi": True}, dict.fromkeys(range(4), False)),
        ("cohere2", {}, {3: False}),
        ("kimi_linear", {}, {1: False, 3: False}),
        ("llama4_text", {}, {3: False}),
        ("olmo_hybrid", {"rope_parameters": {"rope_type": "default", "rope_theta": None}}, {3: False}),
    ],
)
def test_which_layers_rotate(family: str, changes: dict[str, Any], rope: dict[int, bool]) -> None:
    model = build(family, **changes)
    architecture, found = probe_model(model, list(rope))
    assert found.rotates == rope
    assert {layer: architecture.rope[layer] for layer in rope} == rope


@pytest.mark.parametrize(
    ("family", "scale"),
    [("llama", 0.25), ("gemma2", 256**-0.5), ("opt", 1.0), ("bloom", 0.25), ("gpt_neo", 1.0), ("mpt", 0.25)],
)
def test_score_scales(family: str, scale: float) -> None:
    """From the call where there is one, else from the scores themselves, whatever bias is added to them."""
    model = build(family)
    layers = read_architecture(find_backbone(model).config).full_attention_layers
    found = probe(model, layers).scales
    assert sorted(found) == layers
    assert all(math.isclose(each, scale, rel_tol=1e-5) for each in found.values())


def test_probing_leaves_the_model_as_it_was() -> None:
    model = build("llama").train()
    before = [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    probe(model, [0, 1])
    assert [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()] == before


def test_a_configuration_that_rotates_where_the_model_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "transformers.models.llama.modeling_llama.apply_rotary_pos_emb", lambda q, k, cos, sin: (q, k)
    )
    with pytest.raises(
        CaptureError, match=r"says that layer 0 rotates its queries and keys, but .* do not change"
    ):
        probe_model(build("llama"), [0])


def test_a_configuration_that_does_not_rotate_where_the_model_does() -> None:
    model = build("llama")
    model.config.no_rope_layers = [0, 0, 0, 0]
    with pytest.raises(CaptureError, match=r"layer 0 does not rotate"):
        probe_model(model, [0])


def test_a_hook_that_changes_outputs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    own = HOOKS["interface"]

    @contextmanager
    def careless(backbone: Any, observe: Callable[..., None]) -> Iterator[None]:
        with own(backbone, lambda call: (call.output.mul_(1.01), observe(call))[1]):
            yield

    monkeypatch.setitem(HOOKS, "interface", careless)
    with pytest.raises(CaptureError, match="this llama model changes its outputs by up to"):
        probe(build("llama"), [0])


def test_encoders_are_refused() -> None:
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    masked = BertForMaskedLM(BertConfig(vocab_size=97, **small)).eval()
    t5 = T5EncoderModel(
        T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4)
    ).eval()
    image = ViTModel(ViTConfig(**small, image_size=16, patch_size=8)).eval()
    for model in (masked, t5, image):
        with pytest.raises(CaptureError, match=r"not causal|encoder-decoder|does not take text"):
            measure(model, [document(9)], HeadIndex.of([(0, 0)], 1), (9,))


def test_layers_of_another_shape_do_not_disturb() -> None:
    """gemma4's full layers have vectors of their own length; mimo's sliding layers key heads of their own number."""
    for family, dim in (("gemma4_text", 32), ("mimo_v2_flash", 16)):
        model = build(family)
        unit = measure(model, [document(15)], heads(model), (15,))
        assert unit.q[0].M.shape[1:] == (dim, dim)
    both = heads(build("gemma4_text"), [0, 1, 2, 3])
    with pytest.raises(CaptureError, match=r"dimensions .*16 and 32"):
        measure(build("gemma4_text"), [document(15)], both, (15,), include_sliding=True)


def test_one_window_for_all_layers_is_measured_within_it() -> None:
    model = build("mistral", sliding_window=16)
    every = heads(model, [0, 1, 2, 3])
    free = build("mistral")
    free.load_state_dict(model.state_dict())
    unit, same = (measure(each, [document(16)], every, (64,)) for each in (model, free))
    assert np.array_equal(unit.q[0].M, same.q[0].M)
    with pytest.raises(CaptureError, match="measure documents of at most 16 tokens"):
        measure(model, [document(17)], every, (64,))


def test_measured_heads_know_what_was_observed() -> None:
    model = build("gpt2")
    assert heads(model).rope.tolist() == [-1] * 16
    assert measure(model, [document(9)], heads(model), (9,)).heads.rope.tolist() == [0] * 16


def test_an_offloaded_model() -> None:
    plain, model = build("llama"), build("llama")
    cpu_offload(model, torch.device("cpu"))
    assert find_backbone(model).get_input_embeddings().weight.device.type == "meta"
    mine, expected = (measure(each, [document(9)], heads(plain), (9,)) for each in (model, plain))
    assert np.array_equal(mine.q[0].M, expected.q[0].M)


def test_prompt_tuning_is_refused() -> None:
    """PEFT's models carry their adapters' settings under `peft_config`."""
    model = build("llama")
    model.peft_config = {"default": type("Prompt", (), {"is_prompt_learning": True})()}
    with pytest.raises(CaptureError, match=r"virtual tokens.*get_base_model"):
        find_backbone(model)
    model.peft_config = {"default": type("Lora", (), {"is_prompt_learning": False})()}
    assert find_backbone(model) is model.model
