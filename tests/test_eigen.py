from __future__ import annotations

import numpy as np
import pytest

from qkscope.measures.eigen import LARGE, NEAR_FROM, FirstAxes, leading


@pytest.mark.parametrize("dim", [8, LARGE, 160])
def test_leading_axes_are_those_of_the_whole_decomposition(rng, dim):
    x = rng.standard_normal((3, 4 * dim, dim)) * np.geomspace(5.0, 0.1, dim)
    S = x.transpose(0, 2, 1) @ x
    values, vectors = leading(S, 7)
    for i in range(3):
        expected, axes = np.linalg.eigh(S[i])
        np.testing.assert_allclose(values[i], expected[::-1][:7], rtol=1e-13)
        np.testing.assert_allclose(np.abs(vectors[i].T @ axes[:, ::-1][:, :7]), np.eye(7), atol=1e-11)


@pytest.mark.parametrize("size", [0.0, 1e-280, 1.0, 1e280])
@pytest.mark.parametrize("rank", [1, 3, 120])
def test_axes_of_flat_and_extreme_matrices_are_orthonormal(rng, rank, size):
    basis = np.linalg.qr(rng.standard_normal((120, 120)))[0][:, :rank]
    values, vectors = leading(size * (basis @ basis.T)[None], 10)
    np.testing.assert_allclose(vectors[0].T @ vectors[0], np.eye(10), atol=1e-12)
    np.testing.assert_allclose(values[0], size * (np.arange(10) < rank), atol=1e-13 * size)


def test_few_of_few_dimensions_and_more_than_there_are(rng):
    S = np.diag([3.0, 1.0, 2.0])[None]
    assert leading(S, 2)[0].tolist() == [[3.0, 2.0]]
    assert leading(S, 9)[1].shape == (1, 3, 3)


@pytest.mark.parametrize("gap", [0.5, 0.05])
@pytest.mark.parametrize("dim", [8, NEAR_FROM, 128])
def test_first_axes_of_left_out_samples_are_close_to_exact(rng, dim, gap):
    """The first of eight groups is larger than the others; with a small gap, axes near the whole's would be wrong."""
    scales = np.r_[1.0, np.sqrt(1 - gap), np.geomspace(0.6, 0.1, dim - 2)]
    groups = rng.standard_normal((8, 5, 20 * dim, dim)) * scales
    groups[0] *= 1.2
    scatter = groups.transpose(0, 1, 3, 2) @ groups
    axes, whole = FirstAxes(), scatter.sum(axis=0)
    for sample in (whole, *(whole - each for each in scatter)):
        (value, axis), (exact, vectors) = axes.of(sample), leading(sample, 1)
        overlap = np.abs(np.einsum("hd,hd->h", axis, vectors[:, :, 0]))
        np.testing.assert_allclose(value, exact[:, 0], rtol=1e-13 if sample is whole else 1e-4)
        np.testing.assert_allclose(overlap, 1.0, atol=1e-11 if sample is whole else 2e-4)
