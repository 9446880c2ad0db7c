from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from synthetic import rope, summed

from qkscope.measures.continuity import assign, gap, overlaps, same_axis
from qkscope.measures.position import Along, correlation
from qkscope.measures.spectrum import energy, signal, wavelengths
from qkscope.sums.rotation import Rotation

DIM = 8


@pytest.mark.parametrize("rotation", [rope(DIM), rope(DIM, unrotated=4), Rotation.none(DIM)])
def test_pairs_share_the_energy_and_sum_to_r(rng, rotation):
    x = rng.standard_normal((2, 3, 50, DIM)) + np.linspace(0, 1, 50)[:, None]
    sums, _, _ = summed(x, rotation, [0, 1, 4, 50])
    v = rng.standard_normal((2, DIM))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    share, part = energy(sums, rotation), signal(Along(sums, v), rotation)
    assert share.shape == (2, len(rotation.pairs) + 1)
    np.testing.assert_allclose(share.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(part.sum(axis=1), correlation(Along(sums, v)), atol=1e-12)
    squares = (x**2).reshape(2, -1, DIM).sum(axis=1)
    for p, (i, j) in enumerate(rotation.pairs):
        np.testing.assert_allclose(share[:, p], (squares[:, i] + squares[:, j]) / squares.sum(axis=1))


def test_one_frequency_carries_a_head_that_turns_at_one_frequency(rng):
    rotation = rope(DIM, theta=1000.0)
    u = np.zeros(DIM)
    u[2] = 1.0  # the third of four pairs
    x = rotation.rotate(u + 1e-3 * rng.standard_normal((4, 60, DIM)), np.arange(60))
    sums, _, _ = summed(x[None], rotation, [0, 1, 4, 60])
    v = sums.C / np.linalg.norm(sums.C)
    assert energy(sums, rotation)[0].argmax() == 2
    assert signal(Along(sums, v), rotation)[0, 2] > 0.99 * correlation(Along(sums, v))[0]
    lengths = wavelengths(rotation)
    assert lengths[0] == pytest.approx(2 * np.pi)
    assert np.isinf(lengths[-1])


def test_axes_are_paired_by_the_best_total_overlap(rng):
    basis = np.linalg.qr(rng.standard_normal((5, 12, 12)))[0]
    before = basis[:, :, :6]
    after = np.linalg.qr(before + 0.3 * rng.standard_normal(before.shape))[0][:, :, rng.permutation(6)]
    overlap = overlaps(before, after)
    found = assign(overlap)
    for head in range(5):
        best = max(
            permutations(range(6)), key=lambda p: sum(overlap[head, a, b] ** 2 for b, a in enumerate(p))
        )
        assert found[head].tolist() == list(best)


def test_swapped_axes_are_not_the_same_axis():
    before = np.eye(6)[None, :, :3].repeat(5, axis=0)
    after = before.copy()
    after[1] = before[1][:, [1, 0, 2]]  # another axis became the first
    after[2] *= -1  # the sign of an axis says nothing
    for head, degrees in ((3, 50), (4, 40)):  # less and more than half of the squared length
        turn = np.deg2rad(degrees)
        after[head, :, 0] = np.cos(turn) * np.eye(6)[0] + np.sin(turn) * np.eye(6)[5]
    assert same_axis(overlaps(before, after)).tolist() == [True, False, True, False, True]
    lost = overlaps(before, after)
    lost[0] = np.nan
    assert not same_axis(lost)[0]
    assert assign(lost)[0].tolist() == [-1, -1, -1]


def test_the_gap_tells_how_far_the_first_axis_stands_out():
    found = gap(np.array([[0.4, 0.1], [0.3, 0.3], [np.nan, np.nan]]))
    np.testing.assert_allclose(found, [0.75, 0.0, np.nan])
    assert np.isnan(gap(np.array([[1.0]]))[0])
