"""Slow and obvious: what the package computes, written the way a textbook says it, in float64."""

from __future__ import annotations

import numpy as np
from scipy.stats import pearsonr
from sklearn.decomposition import PCA


def combined_pca_reference(q, t_q, k, t_k, components=10):
    """(r_q, r_k, explained_variance, axes) of one head from its vectors q (n, d), k (m, d) and their positions."""
    q, k = np.asarray(q, dtype=np.float64), np.asarray(k, dtype=np.float64)
    t_q, t_k = np.asarray(t_q, dtype=np.float64), np.asarray(t_k, dtype=np.float64)
    kept = min(components, q.shape[1])
    pca = PCA(n_components=kept, svd_solver="full").fit(np.concatenate([q, k]))
    r_q, r_k = np.empty(kept), np.empty(kept)
    for i, axis in enumerate(pca.components_):
        a, b = pearsonr(q @ axis, t_q).statistic, pearsonr(k @ axis, t_k).statistic
        leading = b if abs(a) < 0.05 else a
        sign = -1.0 if leading < 0 else 1.0
        r_q[i], r_k[i] = sign * a, sign * b
    return r_q, r_k, pca.explained_variance_ratio_, pca.components_


def separated(explained_variance, gap=1e-3):
    """Which components have an eigenvalue apart from its neighbours': only there is the axis well defined."""
    values = np.asarray(explained_variance)
    apart = np.ones(len(values), dtype=bool)
    near = np.abs(np.diff(values)) <= gap * values[:-1]
    apart[:-1] &= ~near
    apart[1:] &= ~near
    apart[-1] = False  # its other neighbour is not among the values
    return apart


def moments_reference(x, t):
    """n, mean of x, mean of t, M, C, T of vectors x (n, d) and columns of position t (n, c)."""
    x, t = np.asarray(x, dtype=np.float64), np.asarray(t, dtype=np.float64)
    dx, dt = x - x.mean(axis=0), t - t.mean(axis=0)
    return len(x), x.mean(axis=0), t.mean(axis=0), dx.T @ dx, dx.T @ dt, (dt**2).sum(axis=0)


def jackknife_reference(estimates):
    """Standard error from the estimates without each group in turn."""
    g = len(estimates)
    mean = sum(estimates) / g
    return ((g - 1) / g * sum((e - mean) ** 2 for e in estimates)) ** 0.5
