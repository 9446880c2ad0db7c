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


def rope(dim, theta=100.0, *, scale=1.0, unrotated=0):
    """A rotation of pairs (i, i + half) as Llama's, with the last dimensions left alone."""
    from qkscope.sums.rotation import Rotation

    half = (dim - unrotated) // 2
    pairs = np.stack([np.arange(half), np.arange(half) + half], axis=1)
    return Rotation(dim, pairs, theta ** (-np.arange(half) / max(half, 1)), scale)


def summed(x, rotation, edges):
    """Vectors x (heads, documents, tokens, dim), NaN past a document's end -> (all, late, path) of those documents."""
    from qkscope.sums.moments import Accumulator
    from qkscope.sums.path import Path

    heads, documents, length, dim = x.shape
    t = np.tile(np.arange(length), documents)
    flat = x.reshape(heads, -1, dim)
    here = np.isfinite(flat).all(axis=(0, 2))
    flat, t = flat[:, here], t[here]
    every, late = Accumulator(), Accumulator()
    every.update(flat, t.astype(float))
    late.update(flat[:, t >= 4], t[t >= 4].astype(float))
    u = rotation.derotate(flat, t)
    bins = np.searchsorted(edges, t, side="right") - 1
    total = np.stack([u[:, bins == b].sum(axis=1) for b in range(len(edges) - 1)], axis=1)
    n = np.bincount(bins, minlength=len(edges) - 1)
    return every.moments(), late.moments(), Path(np.asarray(edges), n, total)
