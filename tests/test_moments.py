from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import moments_reference

from qkscope.errors import StoreError
from qkscope.heads import HeadIndex
from qkscope.moments import CHUNK, Accumulator, Moments, Unit, merge_all, ring_columns, window

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
    t = rng.integers(0, 10**6, (700, 4)).astype(float)
    found = accumulate(x, t, cuts=(1, 300))
    for h in range(3):
        for name, expected in zip(NAMES, moments_reference(x[h], t), strict=True):
            scale = np.abs(expected).max()
            np.testing.assert_allclose(getattr(found, name)[h], expected, rtol=0, atol=1e-10 * scale)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_torch_tensors_give_the_moments_of_their_values(rng, dtype):
    x = torch.tensor(rng.standard_normal((2, 3000, 32)) * 0.1 + 10).to(dtype)
    t = np.arange(3000.0)[:, None]
    found = accumulate(x, t, cuts=(1000,))
    exact = accumulate(x.double().numpy(), t)
    assert_close(found, exact, rtol=1e-12 if dtype == torch.float64 else 5e-6)


def test_more_tokens_than_a_chunk(rng):
    x = rng.standard_normal((1, 2 * CHUNK + 5, 4))
    t = np.arange(2 * CHUNK + 5.0)
    found = accumulate(x, t)
    n, _, _, m, c, _ = moments_reference(x[0], t[:, None])
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
    t = rng.integers(0, 1000, (60, 3)).astype(float)
    whole = accumulate(x, t)
    assert_close(accumulate(x, t, cuts), whole, rtol=1e-8)
    parts = [accumulate(x[:, i::4], t[i::4]) for i in range(4)]
    assert_close(merge_all([parts[i] for i in order]), whole, rtol=1e-8)
    pairs = parts[order[0]].merge(parts[order[1]]).merge(parts[order[2]].merge(parts[order[3]]))
    assert_close(pairs, whole, rtol=1e-8)


def test_merging_nothing_changes_nothing(rng):
    some = accumulate(rng.standard_normal((2, 30, 4)), np.arange(30.0))
    nothing = Moments.empty(2, 4, 1)
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
    total.update(np.empty((1, 0, 4)), np.empty((0, 1)))
    with pytest.raises(StoreError, match="no tokens"):
        total.moments()


@given(
    length=st.integers(1, 300),
    windows=st.lists(st.integers(1, 200), min_size=1, max_size=4, unique=True).map(sorted),
    document=st.integers(0, 10**6),
    shifts=st.integers(0, 3),
)
def test_rings_hold_each_token_once_and_each_window_a_rotation(length, windows, document, shifts):
    rings = ring_columns(length, windows, document, shifts, seed=1)
    seen = min(length, windows[-1])
    assert [t for start, stop, _ in rings for t in range(start, stop)] == list(range(seen))
    for j, w in enumerate(windows):
        parts = []
        for i, (_, stop, columns) in enumerate(rings):
            assert columns.shape[1] == 1 + shifts * (len(windows) - i)
            if stop <= w:
                first = 1 + shifts * (j - i)
                parts.append(columns[:, first : first + shifts])
        if len(parts) <= j + 1 and parts:
            copies = np.concatenate(parts)
            within = min(length, w)
            if len(copies) == within:
                for copy in copies.T:
                    turn = int(copy[0])
                    assert copy.tolist() == [(t + turn) % within for t in range(within)]


def test_shifts_are_fixed_by_seed_and_document():
    (_, _, a), *_ = ring_columns(50, [50], 3, 19, seed=0)
    (_, _, b), *_ = ring_columns(50, [50], 3, 19, seed=0)
    (_, _, c), *_ = ring_columns(50, [50], 4, 19, seed=0)
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def make_unit(rng, windows, lengths, *, shifts=3, heads=None, seed=0):
    """A unit over documents of random vectors, and the vectors themselves."""
    heads = heads or HeadIndex.of([(0, 0), (0, 1), (2, 1)], 2, {0: True, 2: False})
    sums = {(kind, i): Accumulator() for kind in "qk" for i in range(len(windows))}
    documents = []
    for number, length in enumerate(lengths):
        q, k = rng.standard_normal((len(heads), length, 6)), rng.standard_normal((len(heads.keys), length, 6))
        documents.append((q, k))
        for i, (start, stop, columns) in enumerate(ring_columns(length, windows, number, shifts, seed)):
            sums["q", i].update(q[:, start:stop], columns)
            sums["k", i].update(k[:, start:stop], columns)
    rings = {kind: tuple(sums[kind, i].moments() for i in range(len(windows))) for kind in "qk"}
    filled = tuple(sum(length >= w for length in lengths) for w in windows)
    tokens = sum(min(length, windows[-1]) for length in lengths)
    unit = Unit(heads, tuple(windows), shifts, rings["q"], rings["k"], len(lengths), tokens, filled)
    return unit, documents


def test_a_shorter_window_comes_out_of_the_rings(rng):
    lengths = (40, 25, 12)
    unit, documents = make_unit(rng, [10, 20, 40], lengths)
    for width in (10, 20, 40):
        q, k = window(unit, width)
        for found, kind in ((q, 0), (k, 1)):
            x = np.concatenate([doc[kind][:, :width] for doc in documents], axis=1)
            t = np.concatenate([np.arange(min(n, width)) for n in lengths])
            copies = [ring_columns(min(n, width), [width], i, 3, 0)[0][2] for i, n in enumerate(lengths)]
            exact = accumulate(x, np.concatenate(copies))
            assert found.n[0] == len(t)
            assert_close(found, exact, rtol=1e-10)


def test_a_window_without_a_ring_is_an_error(rng):
    unit, _ = make_unit(rng, [10, 20], [20])
    with pytest.raises(StoreError, match=r"window of 15.*\[10, 20\]"):
        window(unit, 15)


def test_a_unit_survives_being_taken_apart(rng):
    unit, _ = make_unit(rng, [10, 20], [20, 15])
    tensors, meta = unit.to_tensors()
    again = Unit.from_tensors(tensors, meta)
    for kind in ("q", "k"):
        for a, b in zip(getattr(again, kind), getattr(unit, kind), strict=True):
            assert all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(Moments))
    assert again.heads.to_meta() == unit.heads.to_meta()
    assert np.array_equal(again.heads.keys, unit.heads.keys)
    assert replace(again, q=(), k=(), heads=None) == replace(unit, q=(), k=(), heads=None)
    assert tensors["q.0.M"].shape == (3, 6 * 7 // 2)
