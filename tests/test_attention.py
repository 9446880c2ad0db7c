"""Attention rows against the weights that the eager model computes, and what windows and samples make of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from families import build
from test_capture import document, every_head

from qkscope.capture import measure
from qkscope.capture.hooks import find_backbone
from qkscope.corpus import Document
from qkscope.sums import AttentionSum, FactSum, LogitSum, RepeatSum
from qkscope.sums.attention_rows import COLUMNS, distance_bins, query_positions, strata_edges
from qkscope.sums.unit import Unit

pytestmark = pytest.mark.usefixtures("one_thread")
SUMS = {AttentionSum: {}, LogitSum: {}, RepeatSum: {}}


def eager(family: str, **changes: Any) -> Any:
    model = build(family, **changes)
    model.set_attn_implementation("eager")
    return model


def attentions(model: Any, each: Document, window: int) -> list[np.ndarray]:
    """By layer: the weights (heads, tokens, tokens) of a document alone."""
    ids = torch.tensor(each.tokens[:window].astype(np.int64))[None]
    with torch.no_grad():
        found = find_backbone(model)(input_ids=ids, use_cache=False, output_attentions=True).attentions
    return [layer[0].double().numpy() for layer in found]


def expected_columns(
    p: np.ndarray, tokens: np.ndarray, t: int, bins: np.ndarray, seen: int, sink: bool
) -> np.ndarray:
    """All columns of query t but norms; p (heads, tokens) are its weights. (heads, columns)"""
    j = np.arange(max(0, t - seen + 1), t + 1)

    def mass(some: np.ndarray) -> np.ndarray:
        return p[:, j[some]].sum(axis=1)

    copies, after = (j < t) & (tokens[j] == tokens[t]), (j > 0) & (tokens[j - 1] == tokens[t])
    learned = np.maximum(1.0 - mass(j >= 0), 1e-30) if sink else np.zeros(len(p))
    parts = np.column_stack([p[:, j], learned])
    entropy = -(parts * np.log(np.maximum(parts, 1e-300))).sum(axis=1)
    row = {
        "first": mass(j == 0),
        "early": mass((j >= 1) & (j < 4)),
        "self": mass((j >= 4) & (j == t)),
        "previous": mass(j == t - 1),
        "duplicate": mass(copies) - copies.mean(),
        "induction": mass(after) - after.mean(),
        "learned_sink": learned,
        "entropy": entropy,
        "normalised_entropy": entropy / np.log(len(j) + sink),
        "copied": np.full(len(p), copies.any()),
        "followed": np.full(len(p), after.any()),
    }
    columns = [row.get(name, np.zeros(len(p))) for name in COLUMNS]
    columns += [mass((j >= 4) & (t - j > a) & (t - j <= b)) for a, b in pairwise([0, *bins])]
    return np.stack(columns, axis=1)


def expected_overlaps(
    p: np.ndarray, means: list[np.ndarray], unit: Unit, rows: np.ndarray, t: int, seen: int
) -> np.ndarray:
    """Of one query over its keys from 4 on: sum_j min(p, phat), the same with uniform weights, and whether it counts.

    p (heads, tokens) weights; means (heads, 1, dim) of queries and keys before rotation. (heads, 3)
    """
    j = np.arange(max(4, t - seen + 1), t + 1)
    if len(j) < 2:
        return np.zeros((len(p), 3))
    layer, softmax = int(unit.heads.layer[rows[0]]), unit.get(AttentionSum).softmax
    rotation, (u, w) = unit.rotations[layer], means
    assert rotation is not None
    score = (rotation.rotate(w, j) * rotation.rotate(u, np.array([t]))).sum(axis=-1) * unit.scales[layer]
    if np.isfinite(cap := softmax["softcap"][rows[0]]):
        score = cap * np.tanh(score / cap)
    score -= np.nan_to_num(softmax["slope"][rows])[:, None] * (t - j)
    phat = np.exp(score - score.max(axis=1, keepdims=True))
    own, phat = (x / x.sum(axis=1, keepdims=True) for x in (p[:, j], phat))
    overlaps = [np.minimum(own, each).sum(axis=1) for each in (phat, 1 / len(j))]
    return np.stack([*overlaps, np.ones(len(p))], axis=1)


def expected_total(model: Any, unit: Unit, documents: list[Document]) -> np.ndarray:
    """(strata, heads, columns) of the sampled queries, from the eager model's own weights."""
    by_position = [COLUMNS.index(name) for name in ("by_position", "uniform", "compared")]
    window, heads = unit.windows[-1], unit.heads
    edges, bins = strata_edges(unit.windows), distance_bins(window)
    softmax = unit.get(AttentionSum).softmax
    total = np.zeros((len(edges) - 1, len(heads), len(COLUMNS) + len(bins)))
    for each in documents:
        weights, vectors = attentions(model, each, window), scores_of(model, each, window)
        derotated = {
            layer: [unit.rotations[layer].derotate(x, np.arange(x.shape[1])) for x in both]
            for layer, both in vectors.items()
        }
        length = min(len(each.tokens), window)
        for stratum, (start, stop) in enumerate(pairwise(edges.tolist())):
            if length <= start:
                continue
            for t, weight in zip(*query_positions(start, min(stop, length), each.index), strict=True):
                for layer in np.unique(heads.layer):
                    rows = np.flatnonzero(heads.layer == layer)
                    reach, sink = (softmax[name][rows[0]] for name in ("reach", "sink"))
                    seen = int(min(t + 1, np.nan_to_num(reach, nan=np.inf)))
                    p = weights[layer][heads.head[rows], t]
                    found = expected_columns(p, each.tokens, int(t), bins, seen, bool(np.isfinite(sink)))
                    means = [
                        x[heads.head[rows], 4 : min(stop, length)].mean(axis=1, keepdims=True)
                        for x in derotated[layer]
                    ]
                    found[:, by_position] = expected_overlaps(p, means, unit, rows, int(t), seen)
                    total[stratum, rows] += weight * found
    return total


# Soft caps, learned sinks, sliding windows, ALiBi; llama and smollm3 have four query heads for two key heads.
FAMILIES = {
    "llama": {},
    "smollm3": {},
    "gemma2": {},
    "gpt_oss": {},
    "mistral": {"sliding_window": 20},
    "bloom": {},
    "mpt": {},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_the_weights_that_the_eager_model_computes(family: str) -> None:
    model = eager(family, **FAMILIES[family])
    documents = [document(i, n) for i, n in enumerate((110, 75, 20))]
    # One padded batch.
    unit = measure(model, documents, every_head(model, True), (40, 110), sums=SUMS, include_sliding=True)
    found = unit.get(AttentionSum)
    assert not found.unmeasured
    assert found.n.tolist() == [39 + 39 + 19, 24 + 24, 46 + 11]
    norms = [COLUMNS.index(name) for name in ("q_norm", "k_norm")]
    n = np.maximum(found.n, 1)[:, None, None]
    expected = expected_total(model, unit, documents)
    np.testing.assert_allclose(
        np.delete(found.total / n, norms, axis=2), np.delete(expected / n, norms, axis=2), atol=1e-5
    )
    parts = [found.mean(name) for name in ("first", "early", "self", "learned_sink")]
    np.testing.assert_allclose(sum(parts) + found.distance().sum(axis=1), 1.0, atol=1e-6)
    assert not unit.unknown_rotations
    if family == "gpt_oss":
        assert (found.mean("learned_sink") > 1e-3).all()


def scores_of(model: Any, each: Document, tokens: int) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """By layer: q (heads, tokens, dim), and keys repeated for each query head, in float64."""
    from qkscope.capture import capture

    kept: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def keep(layer: int, q: Any, k: Any) -> None:
        keys = k[0].repeat_interleave(q.shape[1] // k.shape[1], dim=0)
        kept[layer] = q[0].double().numpy(), keys.double().numpy()

    ids = torch.tensor(each.tokens[:tokens].astype(np.int64))[None]
    with torch.no_grad(), capture(model, keep) as backbone:
        backbone(input_ids=ids, use_cache=False)
    return kept


@pytest.mark.parametrize("family", ["llama", "gemma2", "bloom", "mistral"])
def test_the_largest_logit_is_that_of_all_visible_pairs(family: str, monkeypatch: Any) -> None:
    from qkscope.sums import largest_logit

    monkeypatch.setattr(largest_logit, "SCORES", 4 * 60 * 7)  # seven queries a block
    monkeypatch.setattr(largest_logit, "TOKENS", 50)
    model = build(family, **FAMILIES[family])
    documents = [document(i, 60) for i in range(3)]
    heads = every_head(model, True)
    unit = measure(model, documents, heads, (24, 60), sums=SUMS, include_sliding=True)
    softmax, scales = unit.get(AttentionSum).softmax, unit.scales
    for width in (24, 60):
        found = unit.get(LogitSum).window(width)
        vectors = [scores_of(model, each, 60) for each in documents[:2]]
        for row, (layer, head) in enumerate(zip(heads.layer, heads.head, strict=True)):
            best, norms = (-np.inf, ()), []
            for number, each in enumerate(vectors):
                q, k = (x[head, : min(width, 50)] for x in each[layer])
                back = np.subtract.outer(np.arange(len(q)), np.arange(len(q)))
                scores = scales[int(layer)] * q @ k.T - np.nan_to_num(softmax["slope"][row]) * back
                hidden = (back < 0) | (back >= np.nan_to_num(softmax["reach"][row], nan=np.inf))
                scores[hidden] = -np.inf
                norms.append((np.linalg.norm(q, axis=1).max(), np.linalg.norm(k, axis=1).max()))
                if scores.max() > best[0]:
                    best = scores.max(), (number, *np.unravel_index(scores.argmax(), scores.shape))
            assert found.logit[0, row] == pytest.approx(best[0], rel=1e-5)
            assert tuple(found.where[0, row]) == best[1]
            bound = scales[int(layer)] * np.prod(np.max(norms, axis=0))
            assert found.q_norm[0, row] * found.k_norm[0, row] == pytest.approx(bound, rel=1e-5)
            assert bound >= best[0]


def test_induction_score_is_the_weight_of_the_token_after_the_first_copy() -> None:
    model = eager("smollm3")
    documents = [document(i, 60) for i in (3, 1)]
    unit = measure(model, documents, every_head(model), (60,), sums=SUMS)
    (own,) = RepeatSum.own_documents(documents, 60)
    length = (len(own.tokens) - 1) // 2
    assert own.tokens[0] == documents[1].tokens[0]
    assert own.tokens[1 : 1 + length].tolist() == own.tokens[1 + length :].tolist()
    assert len(set(own.tokens[1:].tolist())) == length > 20
    weights = attentions(model, own, 60)
    at = np.arange(1 + length, 1 + 2 * length)
    for back, found in zip((length - 1, length), unit.get(RepeatSum).mean, strict=True):
        expected = np.concatenate([layer[:, at, at - back].mean(axis=1) for layer in weights])
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_documents_of_its_own_enter_no_other_sum() -> None:
    model = build("llama")
    documents = [document(i, 50) for i in range(2)]
    heads = every_head(model)
    both = measure(model, documents, heads, (50,), sums=SUMS)
    alone = measure(model, documents, heads, (50,), sums={AttentionSum: {}})
    assert both.lengths == alone.lengths == (50, 50)
    assert np.array_equal(both.get(AttentionSum).total, alone.get(AttentionSum).total)


def test_a_layer_whose_weights_do_not_follow_from_its_scores_is_not_measured() -> None:
    model = build("deepseek_v32")
    documents = [document(i, 60) for i in range(2)]
    unit = measure(model, documents, every_head(model), (60,), sums=SUMS)
    found = unit.get(AttentionSum)
    assert set(found.unmeasured) == set(unit.heads.layer.tolist())
    assert np.isnan(found.total).all()
    assert np.isnan(unit.get(LogitSum).logit).all()
    assert np.isnan(unit.get(RepeatSum).mean).all()


def test_memory_of_scores_is_bounded_and_their_sums_are_the_same(monkeypatch: Any) -> None:
    from qkscope.sums import attention_rows

    model = build("llama")
    documents = [document(i, n) for i, n in enumerate((150, 150, 140))]
    heads = every_head(model)
    whole = measure(model, documents, heads, (150,), sums={AttentionSum: {}}).get(AttentionSum)
    largest = []
    weights = attention_rows.Softmax.weights

    def watched(self: Any, scores: Any, t: Any, keys: Any) -> Any:
        largest.append(scores.numel())
        return weights(self, scores, t, keys)

    monkeypatch.setattr(attention_rows, "SCORES", 4 * 150 * 5)
    monkeypatch.setattr(attention_rows, "KEPT", 100)
    monkeypatch.setattr(attention_rows.Softmax, "weights", watched)
    parts = measure(model, documents, heads, (150,), sums={AttentionSum: {}}).get(AttentionSum)
    # The checks of four queries against the layers' outputs are among them.
    assert max(largest) <= 4 * 150 * 5
    np.testing.assert_allclose(parts.total, whole.total, rtol=1e-5, atol=1e-5)


def test_sums_merge_in_any_order_and_survive_their_files() -> None:
    model = build("gpt_oss")
    documents = [document(i, 80) for i in range(6)]
    heads = every_head(model)
    units = [measure(model, [each], heads, (30, 80), sums=SUMS) for each in documents]
    for kind in (AttentionSum, LogitSum, RepeatSum):
        parts = [unit.get(kind) for unit in units]
        for part, unit in zip(parts, units, strict=True):
            again = kind.from_arrays(*part.to_arrays(), unit.get(FactSum))
            for name, array in part.to_arrays()[0].items():
                assert np.array_equal(again.to_arrays()[0][name], array, equal_nan=True), name
        one, other = parts[0], parts[-1]
        for each in parts[1:]:
            one = one.merge(each)
        for each in parts[-2::-1]:
            other = other.merge(each)
        for width in (30, 80):
            a, b = one.window(width).to_arrays()[0], other.window(width).to_arrays()[0]
            for name in a:
                np.testing.assert_allclose(a[name], b[name], rtol=1e-12)


def test_strata_count_every_token_once_and_windows_are_sums_of_them() -> None:
    edges = strata_edges((100, 1000, 5000))
    assert edges.tolist() == [1, 64, 100, 128, 256, 512, 1000, 1024, 2048, 4096, 5000]
    for start, stop in pairwise(edges.tolist()):
        for number in range(5):
            t, weight = query_positions(start, stop, number)
            assert weight.sum() == stop - start
            assert (np.diff(t) > 0).all()
            assert start <= t[0] <= t[-1] < stop
            assert len(t) == (stop - start if stop <= 64 or stop - start <= 16 else 16)
    assert distance_bins(256).tolist() == [1, 2, 4, 8, 16, 32, 64, 128, 256]
