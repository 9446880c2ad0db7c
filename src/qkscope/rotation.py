"""A layer's rotary map R_t as plain numbers: which dimensions turn together, how fast, and how much they grow.

At position t the pair p = (i, j) turns by the angle a = t * frequency[p]:

    x_i = scale (u_i cos a - u_j sin a),   x_j = scale (u_i sin a + u_j cos a)

Dimensions in no pair stay as they are; a layer without rotation has no pairs. Knows nothing of models: what a model
does is found out by `capture.rotation` and written down here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rotation:
    """R_t of one layer: `pairs` (P, 2) dimensions, `frequency` (P,) radians a token, `scale` of the turned ones."""

    dim: int
    pairs: NDArray[np.int64]
    frequency: Array
    scale: float = 1.0

    @classmethod
    def none(cls, dim: int) -> Rotation:
        """The identity: a layer without rotary embedding."""
        return cls(dim, np.empty((0, 2), dtype=np.int64), np.empty(0))

    @property
    def wavelength(self) -> Array:
        """Tokens per full turn of each pair. (P,)"""
        return np.asarray(2 * np.pi / self.frequency)

    def rotate(self, u: Array, t: Array) -> Array:
        """R_t u: u (..., T, d) or (..., 1, d), t (T,) -> (..., T, d)."""
        return self._turn(u, t, 1.0, self.scale)

    def derotate(self, x: Array, t: Array) -> Array:
        """R_t^-1 x: x (..., T, d), t (T,) -> (..., T, d)."""
        return self._turn(x, t, -1.0, 1.0 / self.scale)

    def _turn(self, x: Array, t: Array, direction: float, scale: float) -> Array:
        angle = direction * np.asarray(t, dtype=np.float64)[:, None] * self.frequency  # (T, P)
        cos, sin = scale * np.cos(angle), scale * np.sin(angle)
        shape = np.broadcast_shapes(x.shape[:-1], (len(t),))
        turned = np.array(np.broadcast_to(x, (*shape, self.dim)), dtype=np.float64)
        first, second = self.pairs[:, 0], self.pairs[:, 1]
        a, b = x[..., first], x[..., second]
        turned[..., first] = a * cos - b * sin
        turned[..., second] = a * sin + b * cos
        return turned
