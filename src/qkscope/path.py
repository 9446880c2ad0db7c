"""Where a head's mean vector goes with position: sums of the vectors before rotation, by bins of position.

With u_t = R_t^-1 x_t and bins b of positions, keep U_b = sum of u_t in b and n_b. Then mu_b = U_b / n_b, and
m(t) = R_t mu_b(t) is the mean vector at every single position, from a few dozen numbers a head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qkscope.rotation import Rotation

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Path:
    """Bin sums of H heads: bin b holds the positions edges[b] <= t < edges[b + 1].

    edges (B + 1,) int64 · n (B,) int64 tokens · total (H, B, d) float64, the sum of u over the bin's tokens
    """

    edges: NDArray[np.int64]
    n: NDArray[np.int64]
    total: Array

    def merge(self, other: Path) -> Path:
        """Both sets of tokens together; the bins must be the same."""
        return replace(self, n=self.n + other.n, total=self.total + other.total)

    def select(self, rows: NDArray[np.int64]) -> Path:
        """The heads at `rows`."""
        return replace(self, total=self.total[rows])

    def window(self, width: int, start: int = 0) -> Path:
        """Only the bins of the positions start <= t < width; both must be edges."""
        first, last = np.searchsorted(self.edges, [start, width])
        return Path(self.edges[first : last + 1], self.n[first:last], self.total[:, first:last])

    @property
    def mean(self) -> Array:
        """mu_b (H, B, d); NaN in a bin without tokens."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.total / np.where(self.n, self.n, np.nan)[None, :, None])

    def at(self, rotation: Rotation, t: NDArray[np.int64]) -> Array:
        """m(t) = R_t mu_b(t) for heads of one rotation: t (T,) within the edges -> (H, T, d)."""
        bins = np.searchsorted(self.edges, t, side="right") - 1
        return rotation.rotate(self.mean[:, bins], np.asarray(t, dtype=np.float64))
