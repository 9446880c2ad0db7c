"""The product of two vectors, one of them rotated, as a sum of waves: what depends on the vectors, what on the turn.

With a, b in pairs (a0, a1), (b0, b1) and f a pair's frequency,

    a . R_t b = sum over pairs of scale ((a0 b0 + a1 b1) cos ft + (a1 b0 - a0 b1) sin ft) + the rest of a.b

so that products at many positions are one matrix product, and no vector is rotated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkscope.rotation import Rotation

Array = NDArray[np.float64]


def terms(rotation: Rotation, a: Array, b: Array) -> Array:
    """What the waves are multiplied with: a, b (..., d) before rotation -> (..., 2P + 1)."""
    (a0, a1), (b0, b1) = rotation.split(a), rotation.split(b)
    count = len(rotation.pairs)
    found = np.empty((*np.broadcast_shapes(a.shape, b.shape)[:-1], 2 * count + 1))
    found[..., :count] = a0 * b0 + a1 * b1
    found[..., count:-1] = a1 * b0 - a0 * b1
    still = rotation.still
    found[..., -1] = np.einsum("...d,...d->...", a[..., still], b[..., still]) if len(still) else 0.0
    return found


def waves(rotation: Rotation, t: NDArray[Any], rotated: int = 1) -> Array:
    """(T, 2P + 1) at t (T,). `rotated` says how many of a, b are, and so how often a rotation's scale counts.

    With both rotated, to positions i and j, t is j - i.
    """
    angle = np.asarray(t, dtype=np.float64)[:, None] * rotation.frequency
    scale = rotation.scale**rotated
    return np.concatenate([scale * np.cos(angle), scale * np.sin(angle), np.ones((len(t), 1))], axis=1)
