"""Every family through its real classes: what is captured, and that capturing changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from families import BY_INTERFACE, BY_PRODUCTS, FAMILIES, SPARSE, build, tokens

from qkscope.capture import capture
from qkscope.capture.architecture import read_architecture
from qkscope.errors import CaptureError
from survey.check import EXACT, REFUSED, SECOND, check

Captured = dict[int, tuple[torch.Tensor, torch.Tensor]]

# Passes of different shape round differently, and random layers amplify it; a token too many changes the first digit.
ACROSS_SHAPES = 1e-4
DERIVED = ["llama", "smollm3", "qwen3", "gpt_neox"]


@pytest.fixture(params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def no_gradients(one_thread: None) -> Iterator[None]:
    with torch.no_grad():
        yield


def captured(model: Any, ids: torch.Tensor, **inputs: Any) -> Captured:
    """q and k of every layer in one pass of the backbone."""
    found: Captured = {}
    with capture(model, lambda layer, q, k: found.update({layer: (q.clone(), k.clone())})) as backbone:
        backbone(input_ids=ids, use_cache=False, **inputs)
    return found


def assert_same(found: Captured, expected: Captured, atol: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for layer in expected:
        for mine, theirs in zip(found[layer], expected[layer], strict=True):
            torch.testing.assert_close(mine, theirs, atol=atol, rtol=1e-5)


@pytest.mark.parametrize("family", [*FAMILIES, *SPARSE])
def test_outputs_are_those_of_an_uncaptured_run(family: str) -> None:
    model, ids = build(family), tokens(2, 24)
    padded = torch.ones_like(ids)
    padded[0, :6] = 0
    packed = torch.cat([torch.arange(10), torch.arange(14)]).expand(2, -1)
    inputs: list[dict[str, torch.Tensor]] = [{}, {"attention_mask": padded}, {"position_ids": packed}]
    plain = [model(ids, use_cache=False, **each).logits for each in inputs]
    with capture(model, lambda layer, q, k: None):
        again = [model(ids, use_cache=False, **each).logits for each in inputs]
    for mine, theirs in zip(again, plain, strict=True):
        assert torch.equal(mine[padded.bool()], theirs[padded.bool()])
    # A model whose outputs hardly depend on the mask or on positions would pass anything.
    assert all((plain[0] - other)[0, 12:].abs().max() > 1e-2 for other in plain[1:])


def test_every_layer_and_head_once(family: str) -> None:
    model, ids = build(family), tokens(2, 11)
    calls: list[tuple[int, torch.Size, torch.Size]] = []
    with capture(model, lambda layer, q, k: calls.append((layer, q.shape, k.shape))) as backbone:
        backbone(input_ids=ids, use_cache=False)
    keys = 4 if family == "gpt_neox" else 2
    assert calls == [(layer, (2, 4, 11, 16), (2, keys, 11, 16)) for layer in range(4)]


def test_architecture_of_each_family(family: str) -> None:
    architecture = read_architecture(build(family).config)
    assert architecture.full_attention_layers == FAMILIES[family]
    assert (architecture.num_layers, architecture.n_q_heads, architecture.head_dim) == (4, 4, 16)
    nope = {3} if family == "smollm3" else set()
    assert architecture.rope == tuple(layer not in nope for layer in range(4))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side(family: str, side: str) -> None:
    model, ids = build(family), tokens(2, 20)
    real = slice(7, None) if side == "left" else slice(None, 13)
    mask = torch.zeros_like(ids)
    mask[0], mask[1, real] = 1, 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    found = captured(model, ids, attention_mask=mask, position_ids=positions)
    alone = captured(model, ids[1:, real])
    assert_same(
        {layer: (q[1:, :, real], k[1:, :, real]) for layer, (q, k) in found.items()}, alone, ACROSS_SHAPES
    )


# gpt_oss itself gives its masks no positions, so its packed documents see each other, captured or not.
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gpt_oss"])
def test_packed_documents_do_not_see_each_other(family: str) -> None:
    model, ids = build(family), tokens(1, 24)
    positions = torch.cat([torch.arange(10), torch.arange(14)])[None]
    found = captured(model, ids, position_ids=positions)
    for part in (slice(0, 10), slice(10, 24)):
        alone = captured(model, ids[:, part])
        assert_same(
            {layer: (q[:, :, part], k[:, :, part]) for layer, (q, k) in found.items()}, alone, ACROSS_SHAPES
        )


@pytest.mark.parametrize("family", DERIVED)
def test_queries_and_keys_by_hand(family: str) -> None:
    """Projections as their modules put them out, then norm and rotation written out here."""
    model, ids = build(family), tokens(2, 19)
    projected = hooked_projections(model, family, ids)
    expected = {}
    for layer, (q, k) in projected.items():
        if family == "qwen3":
            attention = model.model.layers[layer].self_attn
            q, k = rms_norm(q, attention.q_norm.weight), rms_norm(k, attention.k_norm.weight)
        rotates = not (family == "smollm3" and layer == 3)
        share = 0.25 if family == "gpt_neox" else 1.0
        theta = model.config.rope_parameters["rope_theta"]
        expected[layer] = (rotate(q, theta, share), rotate(k, theta, share)) if rotates else (q, k)
    assert_same(captured(model, ids), expected)


def hooked_projections(model: Any, family: str, ids: torch.Tensor) -> Captured:
    """Unrotated q (batch, heads, tokens, dim) and k of each layer, from hooks on the linear modules."""
    outputs: dict[tuple[int, str], torch.Tensor] = {}
    hooks = []
    layers = model.gpt_neox.layers if family == "gpt_neox" else model.model.layers
    names = ["query_key_value"] if family == "gpt_neox" else ["q_proj", "k_proj"]
    for i, layer in enumerate(layers):
        attention = layer.attention if family == "gpt_neox" else layer.self_attn
        for name in names:
            module = getattr(attention, name)
            hooks.append(
                module.register_forward_hook(lambda _m, _i, out, key=(i, name): outputs.update({key: out}))
            )
    model(ids)
    for hook in hooks:
        hook.remove()
    found = {}
    for i in range(len(layers)):
        if family == "gpt_neox":
            # GPT-NeoX interleaves per head: (heads, [q | k | v]).
            q, k, _ = outputs[i, "query_key_value"].unflatten(-1, (4, 3, 16)).unbind(3)
        else:
            q, k = outputs[i, "q_proj"].unflatten(-1, (4, 16)), outputs[i, "k_proj"].unflatten(-1, (2, 16))
        found[i] = (q.transpose(1, 2), k.transpose(1, 2))
    return found


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


def rotate(x: torch.Tensor, theta: float, share: float) -> torch.Tensor:
    """Turn the pairs (i, i + half) of the first `share` of the dimensions by position * theta^(-i/half)."""
    half = int(x.shape[-1] * share) // 2
    out = x.clone()
    for position in range(x.shape[2]):
        for i in range(half):
            angle = torch.tensor(position * theta ** (-i / half), dtype=torch.float64)
            cos, sin = angle.cos().float(), angle.sin().float()
            a, b = x[:, :, position, i], x[:, :, position, i + half]
            out[:, :, position, i] = a * cos - b * sin
            out[:, :, position, i + half] = a * sin + b * cos
    return out


@pytest.mark.parametrize("family", [*BY_INTERFACE, *BY_PRODUCTS])
def test_captured_vectors_are_the_operands_of_the_attention_product(family: str) -> None:
    found = check(family)
    assert found.kind == (SECOND if family in BY_PRODUCTS else EXACT), found.why


@pytest.mark.parametrize(
    ("family", "changes", "why"),
    [
        ("hrm_text", {}, r"ran layers \[0, 1, 2, 3\] more than once"),
        ("mamba", {}, "softmax attention"),
        ("prophetnet", {}, "0 of its 4 attention layers"),
        ("deepseek_v4", {}, "attention layers have one query and one key per token"),
        ("bert", {"is_decoder": False}, "not causal"),
        ("megatron-bert", {"is_decoder": False}, "not causal"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "not causal"),
        ("minimax", {"sliding_window": 8}, "layer 0 .*sliding window of 8"),
    ],
)
def test_what_cannot_be_measured_is_refused(family: str, changes: dict[str, Any], why: str) -> None:
    found = check(family, **changes)
    assert found.kind == REFUSED
    assert re.search(why, found.why)


def test_repeated_keys_come_once() -> None:
    """Falcon's second architecture repeats its key heads before the product."""
    model = build("falcon", new_decoder_architecture=True, num_kv_heads=2)
    q, k = captured(model, tokens(2, 11))[0]
    assert (q.shape, k.shape) == ((2, 4, 11, 16), (2, 2, 11, 16))
    assert check("falcon", new_decoder_architecture=True, num_kv_heads=2).kind == SECOND


def test_a_score_of_several_products_is_refused() -> None:
    model = build("gptj")
    attention = model.transformer.h[1].attn
    own = attention._attn

    def doubled(query: torch.Tensor, key: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        torch.matmul(query, key.transpose(-1, -2))
        return own(query, key, *args, **kwargs)

    attention._attn = doubled
    with pytest.raises(CaptureError, match=r"scores of layer 1 .* are a sum of 2 products"):
        captured(model, tokens(1, 5))


def test_sinks_and_soft_caps_matter() -> None:
    """The two families whose own attention is not SDPA: without their eager function the outputs would differ."""
    for family, change in (("gpt_oss", "sinks"), ("gemma2", "cap")):
        model, ids = build(family), tokens(1, 24)
        assert model.config._attn_implementation == "eager"
        before = model(ids).logits
        for layer in model.model.layers:
            if change == "sinks":
                layer.self_attn.sinks.fill_(-30.0)
            else:
                layer.self_attn.attn_logit_softcapping = None
        assert (model(ids).logits - before).abs().max() > 1e-3


def test_the_page_of_models_agrees_with_what_the_tests_find() -> None:
    """The page is about the release it names; families that appear later are not yet surveyed."""
    page = (Path(__file__).parent.parent / "docs" / "models.md").read_text()
    rows = re.findall(r"^\| (\S+) \| `\w+` \| (\w+)", page, re.M)
    hooks = dict(rows)
    assert len(hooks) == len(rows)
    assert {hooks[family] for family in BY_INTERFACE} == {"interface"}
    assert {hooks[family] for family in BY_PRODUCTS} == {"product"}
    lengths = dict(re.findall(r"^\| (\S+) \|.*\| (together|apart) \|$", page, re.M))
    assert {lengths[family] for family in SPARSE} == {"apart"}
    assert {lengths[family] for family in FAMILIES} == {"together"}


def test_the_page_of_models_is_about_the_pinned_release() -> None:
    root = Path(__file__).parent.parent
    pinned = re.search(r"^transformers==(\S+)$", (root / "constraints.txt").read_text(), re.M)
    assert pinned
    assert f"transformers {pinned[1]} " in (root / "docs" / "models.md").read_text()
