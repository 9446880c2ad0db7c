"""Synthetic heads with known answers."""

from __future__ import annotations

import numpy as np


def make_head(rng, n, dim, *, follow=1.0, mean=0.0, longest=4096, dtype=np.float64):
    """Vectors (n, dim) whose leading axes follow position to a degree, and their positions (n,)."""
    t = rng.integers(0, longest, n)
    spread = np.geomspace(4.0, 0.2, dim)
    basis = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    scores = rng.standard_normal((n, dim)) * spread
    z = (t - t.mean()) / max(t.std(), 1e-12)
    scores[:, 0] += follow * spread[0] * z
    scores[:, 1] -= 0.5 * follow * spread[1] * z
    return (scores @ basis.T + mean).astype(dtype), t
