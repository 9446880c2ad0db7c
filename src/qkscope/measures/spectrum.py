"""Which frequencies carry a head's vectors and its position signal: shares by rotary pair.

With x the vectors and v the axis: energy = E|x_pair|^2 / E|x|^2, and r_pair = v_pair.C_pair / sqrt(v.M.v * T), the
part of Pearson's r that comes from the pair, so that the pairs sum to r. Dimensions that do not rotate are one entry,
the last, of endless wavelength.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.blocks import per_query
from qkscope.measures.position import Along
from qkscope.moments import Moments
from qkscope.rotation import Rotation

Array = NDArray[np.float64]


def wavelengths(rotation: Rotation) -> Array:
    """Tokens per turn of each pair, then inf for what does not rotate. (P + 1,)"""
    return np.append(rotation.wavelength, np.inf)


def energy(sums: Moments, rotation: Rotation) -> Array:
    """Each pair's share of E|x|^2. (H, P + 1), rows sum to 1"""
    n = np.maximum(sums.n, 1)[:, None]
    squares = np.einsum("hdd->hd", sums.M) / n + sums.mean_x**2
    total = squares.sum(axis=1, keepdims=True)
    return by_pair(squares / np.where(total > 0, total, np.nan), rotation)


def signal(along: Along, rotation: Rotation) -> Array:
    """Each pair's part of r along the axes. (H, P + 1), rows sum to r"""
    return by_pair(along.over_spread(along.v * per_query(along.sums.C, len(along.v))), rotation)


def by_pair(values: Array, rotation: Rotation) -> Array:
    """Sums over the two dimensions of each pair, then over the unrotated ones: (H, d) -> (H, P + 1)."""
    still = np.ones(rotation.dim, dtype=bool)
    still[rotation.pairs] = False
    turned = values[:, rotation.pairs].sum(axis=2)
    return np.concatenate([turned, values[:, still].sum(axis=1, keepdims=True)], axis=1)
