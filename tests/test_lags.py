"""Scores by distance, measured on a few queries: against brute force, and what the sample must be."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch

from qkscope.capture import capture, measure
from qkscope.corpus import documents_from
from qkscope.measures.distance import measured_curve
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.path import SINK
from qkscope.sums.scores import QUERIES, ScoreSum, distances, queries
from qkscope.sums.unit import Unit

WINDOWS = (32, 96)


def test_queries_lie_in_their_ring_and_have_a_key():
    for start, stop in ((0, 4), (0, 5), (0, 32), (32, 96), (96, 4096)):
        found = queries(start, stop)
        assert len(found) == len(set(found.tolist())) <= QUERIES
        assert all(max(start, SINK + 1) <= t < stop for t in found)


def test_a_unit_holds_the_mean_scores_of_its_queries(rng):
    model = tiny.tiny_model(3)
    documents = documents_from([rng.integers(3, 60, 96).tolist() for _ in range(3)])
    heads = HeadIndex.of([(0, 1), (1, 3)], 2, {0: True, 1: True})
    unit = measure(model, documents, heads, WINDOWS)
    seen = {}
    watch = capture(model, lambda layer, q, k: seen.update({layer: (q.numpy(), k.numpy())}))
    with watch as backbone, torch.no_grad():
        backbone(torch.tensor(np.stack([d.tokens for d in documents[:2]])), use_cache=False)
    lags = distances(96)
    for row, (layer, head) in enumerate([(0, 1), (1, 3)]):
        q, k = (x.astype(np.float64) for x in seen[layer])
        for ring, (start, stop) in enumerate(((0, 32), (32, 96))):
            for at, lag in enumerate(lags):
                pairs = [(t, t - lag) for t in queries(start, stop) if t - lag >= SINK]
                expected = sum(q[d, head, i] @ k[d, head // 2, j] for d in range(2) for i, j in pairs)
                assert unit.scores.n[ring, at] == 2 * len(pairs)
                assert unit.scores.total[ring, row, at] == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_rings_count_by_the_pairs_they_have():
    """A curve that is 1 in the first ring and 3 in the second: each counts by its pairs, however many were taken."""
    lags = np.array([1, 40])
    n = np.array([[10, 0], [2, 5]])
    total = np.array([[[10.0, 0.0]], [[6.0, 15.0]]])
    curve = ScoreSum(WINDOWS, lags, n, total).curve(96)
    first, second = 32 - 5, 64
    assert curve[0] == pytest.approx([(first * 1 + second * 3) / (first + second), 3.0])
    assert np.isnan(ScoreSum(WINDOWS, lags, n, total).curve(32)[0, 1])


def test_a_measured_curve_is_in_logits_and_missing_where_a_unit_has_none(rng):
    model = tiny.tiny_model(3)
    documents = documents_from([rng.integers(3, 60, 96).tolist() for _ in range(2)])
    heads = HeadIndex.of([(0, 0)], 2, {0: True})
    unit = measure(model, documents, heads, WINDOWS)
    found = measured_curve([unit], 96)
    assert found.shape == (1, len(distances(96)))
    np.testing.assert_allclose(found, unit.scores.curve(96) / np.sqrt(8), rtol=1e-6)
    assert np.isnan(measured_curve([unit, Unit.of(unit.facts, unit.moments)], 32)).all()
