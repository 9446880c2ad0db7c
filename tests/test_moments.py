from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import moments_reference
from simulated import stored, unit_of

from qkscope.errors import StoreError
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.moments import CHUNK, Accumulator, Moments, merge_all
from qkscope.sums.path import SINK
from qkscope.sums.rotation import Rotation, same_rotation
from qkscope.sums.unit import rings, window

NAMES = ("n", "mean_x", "mean_t", "M", "C", "T")


def accumulate(x, t, cuts=()):
    total = Accumulator()
    edges = [0, *sorted(cuts), x.shape[1]]
    for start, stop in pairwise(edges):
        total.update(x[:, start:stop], t[start:stop])
    return total.moments()


def assert_close(a: Moments, b: Moments, rtol=1e-9):
    """Equal to rtol of each array's own scale, head by head."""
    for field in fields(Moments):
        left, right = getattr(a, field.name), getattr(b, field.name)
        scale = np.abs(right).max(initial=1e-300)
        np.testing.assert_allclose(left, right, rtol=0, atol=rtol * scale, err_msg=field.name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dim", [8, 64, 256])
def test_moments_are_the_textbooks(rng, dtype, dim):
    x = (rng.standard_normal((3, 700, dim)) * 0.1 + 10).astype(dtype)
    t = rng.integers(0, 10**6, 700).astype(float)
    found = accumulate(x, t, cuts=(1, 300))
    for h in range(3):
        for name, expected in zip(NAMES, moments_reference(x[h], t), strict=True):
            scale = np.abs(expected).max()
            np.testing.assert_allclose(getattr(found, name)[h], expected, rtol=0, atol=1e-10 * scale)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_torch_tensors_give_the_moments_of_their_values(rng, dtype):
    x = torch.tensor(rng.standard_normal((2, 3000, 32)) * 0.1 + 10).to(dtype)
    t = np.arange(3000.0)
    found = accumulate(x, t, cuts=(1000,))
    exact = accumulate(x.double().numpy(), t)
    assert_close(found, exact, rtol=1e-12 if dtype == torch.float64 else 5e-6)


def test_more_tokens_than_a_chunk(rng):
    x = rng.standard_normal((1, 2 * CHUNK + 5, 4))
    t = np.arange(2 * CHUNK + 5.0)
    found = accumulate(x, t)
    n, _, _, m, c, _ = moments_reference(x[0], t)
    assert found.n[0] == n
    np.testing.assert_allclose(found.M[0], m, rtol=1e-10)
    np.testing.assert_allclose(found.C[0], c, rtol=1e-7)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    cuts=st.lists(st.integers(0, 60), max_size=5),
    order=st.permutations(range(4)),
    offset=st.floats(-1e4, 1e4),
)
def test_any_split_and_any_order_of_merging_gives_the_same(seed, cuts, order, offset):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 60, 5)) + offset
    t = rng.integers(0, 1000, 60).astype(float)
    whole = accumulate(x, t)
    assert_close(accumulate(x, t, cuts), whole, rtol=1e-8)
    parts = [accumulate(x[:, i::4], t[i::4]) for i in range(4)]
    assert_close(merge_all([parts[i] for i in order]), whole, rtol=1e-8)
    pairs = parts[order[0]].merge(parts[order[1]]).merge(parts[order[2]].merge(parts[order[3]]))
    assert_close(pairs, whole, rtol=1e-8)
    left = merge_all([parts[i] for i in order[1:]])
    assert_close(whole.without(parts[order[0]]), left, rtol=1e-7)
    assert_close(whole.without(whole), Moments.empty(2, 5), rtol=0)


def test_merging_nothing_changes_nothing(rng):
    some = accumulate(rng.standard_normal((2, 30, 4)), np.arange(30.0))
    nothing = Moments.empty(2, 4)
    assert_close(some.merge(nothing), some, rtol=1e-15)
    assert_close(nothing.merge(some), some, rtol=1e-15)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_vectors_are_counted_for_their_head_alone(rng, kind, value):
    x = rng.standard_normal((3, 40, 4))
    x[1, 7, 2] = value
    x[1, 9, 0] = value
    x[1, 9, 1] = -value
    t = np.arange(40.0)
    given_ = x if kind == "numpy" else torch.tensor(x)
    found = accumulate(given_, t, cuts=(8,))
    assert found.bad.tolist() == [0, 2, 0]
    clean = accumulate(x[[0, 2]], t)
    assert_close(found.select([0, 2]), clean, rtol=1e-12)
    assert all(np.isfinite(getattr(found, name)).all() for name in NAMES)


def test_no_tokens_at_all_is_an_error():
    total = Accumulator()
    total.update(np.empty((1, 0, 4)), np.empty(0))
    with pytest.raises(StoreError, match="no tokens"):
        total.moments()


@given(
    length=st.integers(1, 300),
    windows=st.lists(st.integers(1, 200), min_size=1, max_size=4, unique=True).map(sorted),
)
def test_rings_hold_each_token_once(length, windows):
    found = rings(length, windows)
    assert [t for start, stop in found for t in range(start, stop)] == list(range(min(length, windows[-1])))
    assert all(stop <= edge for (_, stop), edge in zip(found, windows, strict=False))


def make_unit(rng, windows, lengths, *, heads=None, rotations=None):
    """A unit over documents of random vectors, and the vectors themselves."""
    heads = heads or HeadIndex.of([(0, 0), (0, 1), (2, 1)], 2, {0: True, 2: False})
    documents = [
        (rng.standard_normal((len(heads), n, 6)), rng.standard_normal((len(heads.keys), n, 6)))
        for n in lengths
    ]
    return unit_of(heads, windows, documents, rotations), documents


@pytest.mark.parametrize("skip_sink", [False, True])
def test_a_shorter_window_comes_out_of_the_rings(rng, skip_sink):
    lengths = (40, 25, 12, 3)
    unit, documents = make_unit(rng, [10, 20, 40], lengths)
    first = SINK if skip_sink else 0
    for width in (10, 20, 40):
        for kind, found in enumerate(window(unit, width, skip_sink)):
            x = np.concatenate([doc[kind][:, first:width] for doc in documents], axis=1)
            t = np.concatenate([np.arange(first, max(first, min(n, width))) for n in lengths])
            assert found.n[0] == len(t)
            assert_close(found, accumulate(x, t), rtol=1e-10)


def test_a_window_without_a_ring_is_an_error(rng):
    unit, _ = make_unit(rng, [10, 20], [20])
    with pytest.raises(StoreError, match=r"window of 15.*\[10, 20\]"):
        window(unit, 15)
    short, _ = make_unit(rng, [3, 20], [20])
    with pytest.raises(StoreError, match="first 4"):
        window(short, 3, skip_sink=True)


TURN = Rotation(6, np.array([[0, 2], [1, 3]]), np.array([1.0, 0.01]), 1.2)


@pytest.mark.parametrize(
    "rotations", [{0: TURN, 2: Rotation.none(6)}, {0: TURN, 2: TURN}, {0: None, 2: TURN}]
)
def test_a_unit_survives_being_taken_apart(rng, rotations):
    unit, _ = make_unit(rng, [10, 20], [20, 15], rotations=rotations)
    again = stored(unit)
    for kind in ("q", "k"):
        for a, b in zip(getattr(again, kind), getattr(unit, kind), strict=True):
            exact = [f.name for f in fields(Moments) if f.name != "M"]
            assert all(np.array_equal(getattr(a, name), getattr(b, name)) for name in exact)
            assert_close(a, b, rtol=1e-8)
        assert_close(getattr(again, f"sink_{kind}"), getattr(unit, f"sink_{kind}"), rtol=1e-8)
        a, b = getattr(again, f"path_{kind}"), getattr(unit, f"path_{kind}")
        assert np.array_equal(a.edges, b.edges)
        assert np.array_equal(a.n, b.n)
        np.testing.assert_allclose(a.total, b.total, rtol=1e-7)
        assert a.total.dtype == np.float64
    assert again.heads.to_meta() == unit.heads.to_meta()
    assert np.array_equal(again.heads.keys, unit.heads.keys)
    assert all(same_rotation(again.rotations[layer], rotations[layer], 20) for layer in rotations)
    for name in ("windows", "scales", "lengths"):
        assert getattr(again, name) == getattr(unit, name)
    assert (unit.documents, unit.tokens, unit.filled) == (2, 35, (2, 1))
    assert unit.counts(20).tolist() == [2.0] * 15 + [1.0] * 5
    assert unit.counts(10).tolist() == [2.0] * 10
    assert unit.moments.to_arrays()[0]["q.0.M"].shape == (3, 6 * 5 // 2)
    assert sum(name.endswith("frequency") for name in unit.facts.to_arrays()[0]) == len(
        {id(r) for r in rotations.values() if r}
    )
