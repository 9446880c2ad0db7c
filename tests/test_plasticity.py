"""Attention plasticity against pair by pair, and what must always hold of it."""

from __future__ import annotations

import numpy as np
import pytest
from reference import moments_reference, plasticity_reference

from qkscope.measures.plasticity import means_of_cells, plasticity, query_line


def head(rng, documents=6, window=64, dim=8, drift=1.0):
    """Queries and keys of documents of one window, drifting along an axis."""
    t = np.tile(np.arange(window), documents)
    document = np.repeat(np.arange(documents), window)
    axis = rng.standard_normal(dim)
    q = rng.standard_normal((len(t), dim)) + drift * np.outer(t / window, axis) + rng.standard_normal(dim)
    k = rng.standard_normal((len(t), dim)) - drift * np.outer(t / window, axis)
    return q, k, t, document


def measured(q, k, t, document, buckets=16):
    """The package's way: moments of the queries, keys by document and bucket."""
    bucket = t // (t.max() // buckets + 1)
    n, mean, mean_t, M, C, T = moments_reference(q, t[:, None])
    bucket_t = np.array([t[bucket == b].mean() for b in range(buckets)])
    key_means = np.array([k[bucket == c].mean(axis=0) for c in range(buckets)])
    line = query_line(n, mean, mean_t[0], M, C[:, 0], T[0], bucket_t, key_means)
    found = plasticity(line, by_bucket(k, bucket, document, buckets))
    return found, plasticity_reference(q, t, bucket, k, bucket, document, buckets)


def by_bucket(k, bucket, document, buckets):
    """Keys and how many each document has, bucket by bucket; documents stand one after the other."""
    rows = [bucket == c for c in range(buckets)]
    return [(k[here], np.unique(document[here], return_counts=True)[1]) for here in rows]


def test_pairs_are_counted_once_however_many_are_taken_at_once(rng, monkeypatch):
    rows = head(rng)
    whole = measured(*rows)[0]
    monkeypatch.setattr("qkscope.measures.plasticity.PAIRS", 7)
    np.testing.assert_allclose(measured(*rows)[0], whole, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dim", [1, 2, 8, 32])
def test_cells_equal_the_reference_pair_by_pair(rng, dim):
    found, expected = measured(*head(rng, dim=dim))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    assert means_of_cells(found)[0] == pytest.approx(np.nanmean(expected), abs=1e-9)


def test_a_head_whose_mean_query_is_nought_is_all_open(rng):
    q, k, t, document = head(rng, drift=0.0)
    q -= q.mean(axis=0)
    found, _ = measured(q, k, t, document)
    assert means_of_cells(found)[0] > 0.98


def test_a_strong_mean_query_closes_every_choice(rng):
    q, k, t, document = head(rng)
    found, _ = measured(q + 1000.0, k, t, document)
    assert means_of_cells(found)[0] < 0.05


def test_drop_is_the_first_fifth_of_query_buckets_less_the_last():
    cells = np.full((11, 11), np.nan)
    for b in range(1, 11):
        cells[b, :b] = 1.0 - b / 20
    overall, first, last, drop = means_of_cells(cells)
    assert overall == pytest.approx(np.nanmean(cells))
    assert first == pytest.approx((cells[1, 0] + 2 * cells[2, 0]) / 3)
    assert last == pytest.approx((9 * cells[9, 0] + 10 * cells[10, 0]) / 19)
    assert drop == pytest.approx(first - last)


def test_equal_keys_are_no_pair(rng):
    q, k, t, document = head(rng, documents=2)
    k[:] = k[0]
    found = measured_cells_only(q, k, t, document)
    assert np.isnan(means_of_cells(found)[0])


def measured_cells_only(q, k, t, document, buckets=16):
    bucket = t // (t.max() // buckets + 1)
    n, mean, mean_t, M, C, T = moments_reference(q, t[:, None])
    line = query_line(n, mean, mean_t[0], M, C[:, 0], T[0], np.arange(buckets) * 4.0, k[:1])
    return plasticity(line, by_bucket(k, bucket, document, buckets))
