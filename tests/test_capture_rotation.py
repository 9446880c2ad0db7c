"""The rotation that is found out of a model, against what its projections put out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import build
from test_capture import document, every_head, vectors_one_by_one

from qkscope.capture import measure
from qkscope.capture.architecture import read_architecture
from qkscope.capture.probe_rotation import RotaryCalls
from qkscope.errors import CaptureError, VectorsError
from qkscope.scanning.analyze import analyze
from qkscope.scanning.scan import scan
from qkscope.sums.path import Bins
from qkscope.sums.rotation import Rotation
from qkscope.sums.unit import unknown_rotation_warning

SCALED = {
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
}
# The module whose output is rotated next, and the family's pairs of dimensions (16 in all).
HALVES = [[i, i + 8] for i in range(8)]
NEIGHBOURS = [[2 * i, 2 * i + 1] for i in range(8)]
CASES: dict[str, tuple[str, dict[str, Any], str, list[list[int]]]] = {
    "smollm3": ("smollm3", {}, "proj", HALVES),
    "qwen3 (norms)": ("qwen3", {}, "norm", HALVES),
    "cohere (interleaved)": ("cohere", {}, "proj", NEIGHBOURS),
    "glm (partial, interleaved)": ("glm", {}, "proj", NEIGHBOURS[:4]),
    "gpt_neox (partial)": ("gpt_neox", {}, "fused", [[0, 2], [1, 3]]),
    "gemma3 (two frequencies)": ("gemma3_text", {}, "norm", HALVES),
    **{f"llama ({kind})": ("llama", {"rope_parameters": p}, "proj", HALVES) for kind, p in SCALED.items()},
}


pytestmark = pytest.mark.usefixtures("one_thread")


def projected(model: Any, documents: list[Any], place: str) -> dict[tuple[int, int, str], np.ndarray]:
    """(document, layer, kind) -> (heads, tokens, dim): what the projections, or the norms after them, put out."""
    a = read_architecture(model.config)
    kept: dict[tuple[int, int, str], np.ndarray] = {}
    current = [0]

    def keep(layer: int, kind: str) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            each = output[0].double()
            # Projections put heads behind tokens; norms may come after the two were swapped.
            swapped = place == "norm" and each.shape[0] == (a.n_q_heads if kind == "q" else a.n_kv_heads)
            x = each if swapped else each.reshape(each.shape[0], -1, a.head_dim).transpose(0, 1)
            kept[current[0], layer, kind] = x.numpy()

        return hook

    def split(layer: int) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            x = (
                output[0]
                .double()
                .reshape(output.shape[1], a.n_q_heads, 3 * a.head_dim)
                .transpose(0, 1)
                .numpy()
            )
            kept[current[0], layer, "q"] = x[..., : a.head_dim]
            kept[current[0], layer, "k"] = x[..., a.head_dim : 2 * a.head_dim]

        return hook

    hooks = []
    for module in model.modules():
        if not hasattr(module, "layer_idx") or "attention" not in type(module).__name__.lower():
            continue
        if place == "fused":
            hooks.append(module.query_key_value.register_forward_hook(split(module.layer_idx)))
            continue
        for kind in "qk":
            hooks.append(
                getattr(module, f"{kind}_{place}").register_forward_hook(keep(module.layer_idx, kind))
            )
    with torch.no_grad():
        for each in documents:
            current[0] = each.index
            model(input_ids=torch.tensor(each.tokens.astype(np.int64))[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    return kept


@pytest.mark.parametrize("case", CASES)
def test_vectors_turned_back_are_what_the_projections_put_out(case: str) -> None:
    family, changes, place, pairs = CASES[case]
    model = build(family, **changes)
    documents = [document(0, 80), document(1, 41), document(2, 1)]
    heads = every_head(model, include_sliding=True)
    unit = measure(model, documents, heads, (20, 80), include_sliding=True)
    assert unit.unknown_rotations == {}
    captured = vectors_one_by_one(model, documents, 80)
    before = projected(model, documents, place)
    rope = read_architecture(model.config).rope
    for layer, rotation in unit.rotations.items():
        assert rotation is not None
        assert rotation.pairs.tolist() == (pairs if rope[layer] else [])
        for (number, at), vectors in captured.items():
            for kind, x in zip("qk", vectors, strict=True):
                if at == layer:
                    u = before[number, layer, kind]
                    found = rotation.derotate(x.double().numpy(), np.arange(x.shape[1]))
                    np.testing.assert_allclose(found, u, rtol=0, atol=1e-4 * np.abs(u).max())
    for kind, path, rows in (
        ("q", unit.path_q, np.stack([heads.layer, heads.head], axis=1)),
        ("k", unit.path_k, heads.keys),
    ):
        assert path is not None
        bins = [Bins(path.edges, np.arange(len(each.tokens))) for each in documents]
        assert path.n.tolist() == np.sum([each.n for each in bins], axis=0).tolist()
        for row, (layer, head) in enumerate(rows.tolist()):
            brute = sum(
                each.sums(before[d.index, layer, kind][[head]])
                for each, d in zip(bins, documents, strict=True)
            )
            np.testing.assert_allclose(path.total[[row]], brute, rtol=0, atol=1e-4 * np.abs(brute).max())


def test_scaling_is_found_in_frequencies_and_scale() -> None:
    def rotation(kind: str) -> Rotation:
        model = build("llama", rope_parameters=SCALED[kind])
        found = measure(model, [document(0, 60)], every_head(model), (60,)).rotations[0]
        assert found is not None
        return found

    plain = 10000.0 ** -(np.arange(8) / 8)
    np.testing.assert_allclose(rotation("linear").frequency, plain / 3, rtol=1e-5)
    assert rotation("yarn").scale == pytest.approx(0.1 * np.log(4) + 1, rel=1e-6)
    slow = rotation("llama3").frequency / plain
    assert slow[0] == pytest.approx(1, rel=1e-5)
    assert slow[-1] == pytest.approx(1 / 8, rel=1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 1000])
def test_a_path_does_not_depend_on_batches_or_on_other_heads(batch_tokens: int) -> None:
    model = build("smollm3")
    documents = [document(i, n) for i, n in enumerate((30, 7, 1, 45, 30))]
    heads = every_head(model)
    whole = measure(model, documents, heads, (12, 40))
    other = measure(model, documents, heads, (12, 40), batch_tokens=batch_tokens)
    some = measure(model, documents, type(heads).of([(0, 1), (3, 2)], 2, {0: True, 3: False}), (12, 40))
    assert whole.path_q is not None
    assert other.path_q is not None
    assert some.path_q is not None
    assert np.array_equal(whole.path_q.n, other.path_q.n)
    scale = np.abs(whole.path_q.total).max()
    np.testing.assert_allclose(other.path_q.total, whole.path_q.total, atol=1e-5 * scale)
    np.testing.assert_allclose(some.path_q.total, whole.path_q.total[[1, 14]], atol=1e-5 * scale)


def test_a_half_precision_model_has_its_rotation_too() -> None:
    model = build("llama").to(torch.bfloat16)
    rotation = measure(model, [document(0, 100)], every_head(model), (100,)).rotations[1]
    assert rotation is not None
    np.testing.assert_allclose(rotation.frequency, 10000.0 ** -(np.arange(8) / 8), rtol=5e-3, atol=1e-4)


@pytest.mark.parametrize("family", ["hunyuan_v1_dense", "nanochat"])
def test_vectors_changed_after_rotation_have_no_known_one(family: str) -> None:
    """Norms that come after: the sums are of the vectors as they are, and it is said."""
    model = build(family)
    documents = [document(0, 30)]
    unit = measure(model, documents, every_head(model), (30,))
    assert set(unit.rotations.values()) == {None}
    said = unknown_rotation_warning([unit])
    assert said is not None
    assert "layers 0, 1, 2, 3" in said
    assert "after their rotation" in said
    captured = vectors_one_by_one(model, documents, 30)
    assert unit.path_q is not None
    expected = Bins(unit.path_q.edges, np.arange(30)).sums(captured[0, 1][0].double().numpy())
    layer = np.flatnonzero(unit.heads.layer == 1)
    np.testing.assert_allclose(unit.path_q.total[layer], expected, atol=1e-4)


def test_a_rotation_nobody_can_see_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    monkeypatch.setattr(RotaryCalls, "_watched", lambda self, function: function)
    unit = measure(model, [document(0, 30)], every_head(model), (30,))
    assert unit.rotations[0] is None
    assert "rotary function was called" in unit.unknown_rotations[0]
    assert (
        unknown_rotation_warning([measure(build("gpt2"), [document(0, 9)], every_head(build("gpt2")), (9,))])
        is None
    )


def test_the_models_functions_are_its_own_again_also_after_an_exception() -> None:
    model = build("llama")
    module = sys.modules[type(model).__module__]
    own = module.apply_rotary_pos_emb
    with RotaryCalls().watching(model.model):
        assert module.apply_rotary_pos_emb is not own
    assert module.apply_rotary_pos_emb is own

    def stop(tokens: int) -> None:
        raise KeyError(tokens)

    with pytest.raises(KeyError):
        measure(model, [document(0, 5)], every_head(model), (5,), on_tokens=stop)
    assert module.apply_rotary_pos_emb is own


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


def test_rotations_that_depend_on_the_length_of_a_pass() -> None:
    model = build("llama", rope_parameters=DYNAMIC, max_position_embeddings=32)
    heads = every_head(model)
    with pytest.raises(
        CaptureError, match=r"llama model \(dynamic\) depends on the length.*beyond 32 tokens"
    ):
        measure(model, [document(0, 60)], heads, (20, 60))
    assert measure(model, [document(0, 30)], heads, (20, 30)).rotations[0] is not None
    assert measure(model, [document(i, 60) for i in range(3)], heads, (60,)).rotations[0] is not None
    with pytest.raises(CaptureError, match=r"rotates a pass of 20 tokens differently from one of 60"):
        measure(model, [document(0, 60), document(1, 20)], heads, (60,), batch_tokens=60)


def test_too_short_to_see_a_rotation() -> None:
    unit = measure(build("llama"), [document(0, 2)], every_head(build("llama")), (2,))
    assert unit.rotations[0] is None
    assert "too short" in unit.unknown_rotations[0]


@pytest.mark.parametrize(("family", "interleaved"), [("llama", False), ("cohere", True)])
def test_vectors_on_disk_have_the_same_anatomy_where_their_rotation_is_said(
    tmp_path: Path, family: str, interleaved: bool
) -> None:
    model = build(family)
    texts = [document(i, 40 - i % 3).tokens for i in range(8)]
    scanned = scan(model, texts=texts, max_length=40, groups=4, save_vectors=1.0, out=tmp_path / "scan")
    theta = read_architecture(model.config).rope_theta
    assert theta is not None
    rotation = Rotation.plain(16, theta, interleaved=interleaved)
    found = analyze(tmp_path / "scan" / "vectors", tmp_path / "out", groups=4, rotation=rotation)
    for name in ("eta_q", "eta_k", "r_q_const", "R_k", "share_key", "share_match", "eta_q_se"):
        a, b = (
            table.sort_values(["layer", "head"])[name].to_numpy() for table in (found.heads, scanned.heads)
        )
        np.testing.assert_allclose(a, b, atol=2e-3, err_msg=name)
    assert "share_key" not in analyze(tmp_path / "scan" / "vectors").heads


def test_a_sample_of_vectors_has_no_path(tmp_path: Path) -> None:
    texts = [document(i, 40).tokens for i in range(4)]
    scan(build("llama"), texts=texts, max_length=40, save_vectors=0.5, out=tmp_path)
    with pytest.raises(VectorsError, match="every position from 0 on"):
        analyze(tmp_path / "vectors", rotation=lambda dim: Rotation.plain(dim, 10000.0))
