from __future__ import annotations

import numpy as np
import pytest

from qkscope.measures.eigen import LARGE, leading


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
