from __future__ import annotations

import numpy as np
import pytest
from synthetic import rope

from qkscope.measures.waves import Pairs, terms, waves
from qkscope.sums.rotation import Rotation

DIM = 10
SHUFFLED = Rotation(DIM, np.array([[3, 0], [1, 7], [8, 2]]), np.array([0.7, 0.1, 1.9]), 1.4)


@pytest.mark.parametrize(
    "rotation",
    [
        rope(DIM),
        rope(DIM, scale=1.3, unrotated=4),
        Rotation.plain(DIM, 100.0, interleaved=True),
        SHUFFLED,
        Rotation.none(DIM),
    ],
)
def test_waves_are_the_product_with_the_rotated_vector(rng, rotation):
    a, b = rng.standard_normal((2, 3, 1, DIM))
    i, j = rng.integers(0, 4000, (2, 50)).astype(float)
    once = np.einsum("htd,htd->ht", np.broadcast_to(a, (3, 50, DIM)), rotation.rotate(b, j))
    twice = np.einsum("htd,htd->ht", rotation.rotate(a, i), rotation.rotate(b, j))
    found = terms(Pairs.of(rotation, a[:, 0]), Pairs.of(rotation, b[:, 0]))
    np.testing.assert_allclose(found @ waves(rotation, j).T, once, rtol=0, atol=1e-11)
    np.testing.assert_allclose(found @ waves(rotation, j - i, rotated=2).T, twice, rtol=0, atol=1e-11)
    np.testing.assert_allclose(rotation.derotate(rotation.rotate(b, j), j), np.broadcast_to(b, (3, 50, DIM)))
