from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkscope.sums.path import SINK, Bins, Path, bin_edges
from qkscope.sums.rotation import Rotation

WINDOWS = st.lists(st.integers(1, 3000), min_size=1, max_size=4, unique=True).map(sorted)
TURN = Rotation(8, np.array([[0, 3], [1, 4], [2, 5]]), np.array([1.0, 0.1, 0.003]), 1.1)


@given(windows=WINDOWS)
def test_bins_are_few_and_respect_rings_and_the_sink(windows):
    edges = bin_edges(windows)
    assert edges[0] == 0
    assert edges[-1] == windows[-1]
    assert {e for e in (1, SINK, *windows) if e <= windows[-1]} <= set(edges.tolist())
    assert (np.diff(edges) > 0).all()
    for start, stop in pairwise([min(SINK, windows[0]), *windows]):
        assert ((edges > max(start, SINK)) & (edges <= stop)).sum() <= 16


def path_of(x, t, edges):
    bins = Bins(edges, t)
    return Path(edges, bins.n, bins.sums(x))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), windows=WINDOWS, parts=st.integers(1, 4))
def test_a_path_holds_each_bins_sum_however_it_is_split(seed, windows, parts):
    rng = np.random.default_rng(seed)
    edges = bin_edges(windows)
    t = rng.integers(0, windows[-1], 50)
    x = rng.standard_normal((2, 50, 8))
    merged = path_of(x[:, ::parts], t[::parts], edges)
    for i in range(1, parts):
        merged = merged.merge(path_of(x[:, i::parts], t[i::parts], edges))
    for b, (start, stop) in enumerate(pairwise(edges)):
        here = (t >= start) & (t < stop)
        assert merged.n[b] == here.sum()
        np.testing.assert_allclose(merged.total[:, b], x[:, here].sum(axis=1), atol=1e-12)


def test_padded_documents_of_a_pass_are_summed_without_their_padding(rng):
    edges = bin_edges([6, 10])
    x = rng.standard_normal((3, 2, 10, 4)).astype(np.float32)
    lengths = np.array([10, 7, 1])
    t = np.where(np.arange(10) < lengths[:, None], np.arange(10), -1)
    bins = Bins(edges, t)
    one_by_one = [path_of(x[i, :, :n], np.arange(n), edges) for i, n in enumerate(lengths)]
    expected = one_by_one[0].merge(one_by_one[1]).merge(one_by_one[2])
    assert np.array_equal(bins.n, expected.n)
    np.testing.assert_allclose(bins.sums(x), expected.total, atol=1e-12)
    np.testing.assert_allclose(bins.sums(torch.tensor(x)), expected.total, atol=1e-5)
    x[1, 1, 3, 2] = np.inf
    assert np.isnan(bins.sums(torch.tensor(x))[1]).any()
    assert np.isfinite(bins.sums(torch.tensor(x))[0]).all()


def test_the_path_is_the_mean_vector_at_every_position(rng):
    """Vectors that turn: their mean at each position, over many documents, against the path's few numbers."""
    level = rng.standard_normal((2, 1, 8))
    t = np.arange(600)
    documents = [TURN.rotate(level + rng.standard_normal((2, 600, 8)), t) for _ in range(40)]
    edges = bin_edges([100, 600])
    path = path_of(TURN.derotate(documents[0], t), t, edges)
    for each in documents[1:]:
        path = path.merge(path_of(TURN.derotate(each, t), t, edges))
    brute = np.mean(documents, axis=0)
    found = path.at(TURN, t)
    np.testing.assert_allclose(found[:, 0], brute[:, 0], atol=1e-12)
    # Where a bin has many positions, the path knows the mean better than the documents of one position do.
    error = np.abs(found - TURN.rotate(level, t))[:, SINK:]
    assert error.mean() < 0.5 * np.abs(brute - TURN.rotate(level, t))[:, SINK:].mean()
    early = path.window(100, start=SINK)
    np.testing.assert_allclose(early.mean[:, 0], path.mean[:, 2])


@pytest.mark.parametrize("turn", [TURN, Rotation.none(8)])
def test_rotating_there_and_back_changes_nothing(rng, turn):
    u, t = rng.standard_normal((3, 50, 8)), np.arange(50) * 7
    x = turn.rotate(u, t)
    np.testing.assert_allclose(turn.derotate(x, t), u, atol=1e-12)
    turned = turn.pairs.ravel()
    np.testing.assert_allclose(
        np.linalg.norm(x[..., turned], axis=-1), turn.scale * np.linalg.norm(u[..., turned], axis=-1)
    )
    # What two rotations give depends on how far apart they are, and on nothing else.
    a, b = turn.rotate(u[:1, :1], t + 5.0), turn.rotate(u[1:2, :1], t * 1.0)
    scores = (a * b).sum(axis=-1)
    np.testing.assert_allclose(scores, scores[:, :1].repeat(50, axis=1), atol=1e-12)
