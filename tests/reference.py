"""Slow and obvious: what the package computes, written the way a textbook says it, in float64."""

from __future__ import annotations

import numpy as np
from scipy.stats import norm, pearsonr
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


def welch_reference(ours, theirs):
    """Means, their errors, and (se, df, p) of the difference of two arms, straight from scipy."""
    from scipy.stats import ttest_ind

    test = ttest_ind(ours, theirs, equal_var=False)
    errors = [np.std(arm, ddof=1) / np.sqrt(len(arm)) for arm in (ours, theirs)]
    return np.mean(ours), np.mean(theirs), *errors, np.hypot(*errors), test.df, test.pvalue


def jackknife_reference(estimates):
    """Standard error from the estimates without each group in turn."""
    g = len(estimates)
    mean = sum(estimates) / g
    return ((g - 1) / g * sum((e - mean) ** 2 for e in estimates)) ** 0.5


def rotation_model_reference(q, t_q, k, t_k, window):
    """The rotation model of one head from its vectors, as its definitions say it."""
    q, k = np.asarray(q, dtype=np.float64), np.asarray(k, dtype=np.float64)
    both, t = np.concatenate([q, k]), np.concatenate([t_q, t_k]).astype(np.float64)
    drift = ((both - both.mean(axis=0)) * (t - t.mean())[:, None]).mean(axis=0)
    a = drift / np.linalg.norm(drift)
    delta = q.mean(axis=0) - k.mean(axis=0)
    b = delta - (a @ delta) * a
    b /= np.linalg.norm(b)
    # E over all pairs (q, k) of d d' splits into the two covariances and the means' difference.
    outer = np.cov(q.T, bias=True) + np.cov(k.T, bias=True) + np.outer(delta, delta)
    project = np.eye(len(a)) - np.outer(a, a)
    top = np.linalg.eigh(project @ outer @ project)[1][:, -1]
    pooled = np.cov(both.T, bias=True)
    first = np.linalg.eigh(pooled)[1][:, -1]
    alpha_q, alpha_k = np.polyfit(t_q, q @ a, 1)[0], np.polyfit(t_k, k @ a, 1)[0]
    share_a, share_b = a @ pooled @ a / np.trace(pooled), b @ pooled @ b / np.trace(pooled)
    return {
        "r_q": pearsonr(q @ a, t_q).statistic,
        "r_k": pearsonr(k @ a, t_k).statistic,
        "alpha_q": alpha_q,
        "alpha_k": alpha_k,
        "slope_q": alpha_q * window,
        "slope_k": alpha_k * window,
        "mu_q": (q @ a).mean(),
        "mu_k": (k @ a).mean(),
        "bias_strength": (q @ a).mean() * alpha_k,
        "separation": b @ outer @ b / np.trace(outer),
        "separation_top": top @ outer @ top / np.trace(outer),
        "agreement": abs(b @ top),
        "share_drift": share_a,
        "share_separation": share_b,
        "share_plane": share_a + share_b,
        "pc0_overlap": abs(a @ first),
    }


def plasticity_reference(q, t_q, bucket_q, k, bucket_k, document_k, buckets=16):
    """Cells (query bucket, key bucket) of one head, pair by pair."""
    q, k = np.asarray(q, dtype=np.float64), np.asarray(k, dtype=np.float64)
    design = np.stack([np.ones(len(q)), np.asarray(t_q, dtype=np.float64)], axis=1)
    (alpha, beta), *_ = np.linalg.lstsq(design, q, rcond=None)
    residual = q - design @ np.stack([alpha, beta])
    means = [k[bucket_k == c].mean(axis=0) for c in range(buckets) if (bucket_k == c).any()]
    target = np.zeros(q.shape[1])
    target[0] = 1.0 if np.mean(means, axis=0)[0] >= 0 else -1.0
    w = beta / np.linalg.norm(beta) - target
    w /= np.linalg.norm(w)
    reflection = np.eye(q.shape[1]) - 2 * np.outer(w, w)
    noise = np.diag(reflection @ (residual.T @ residual) @ reflection) / (len(q) - 1)
    cells = np.full((buckets, buckets), np.nan)
    for b in range(1, buckets):
        mu = alpha + beta * np.mean(np.asarray(t_q)[bucket_q == b])
        for c in range(b):
            values = []
            for document in np.unique(document_k):
                keys = k[(bucket_k == c) & (document_k == document)]
                for i in range(len(keys)):
                    for j in range(i):
                        delta = keys[i] - keys[j]
                        z = mu @ delta / np.sqrt((noise * (reflection @ delta) ** 2).sum())
                        values.append(4 * norm.cdf(z) * norm.sf(z))
            cells[b, c] = np.mean(values) if values else np.nan
    return cells


def rotate_reference(rotation, u, t):
    """R_t u of one vector u (d,), pair by pair."""
    x = np.array(u, dtype=np.float64)
    for (i, j), frequency in zip(rotation.pairs, rotation.frequency, strict=True):
        turn = np.array(
            [[np.cos(frequency * t), -np.sin(frequency * t)], [np.sin(frequency * t), np.cos(frequency * t)]]
        )
        x[[i, j]] = rotation.scale * turn @ u[[i, j]]
    return x


def constant_part_reference(x, t, rotation, axis):
    """(r, r_const) along an axis: token by token, with every vector before rotation replaced by their mean."""
    u = [
        np.linalg.inv(np.stack([rotate_reference(rotation, e, s) for e in np.eye(x.shape[1])], axis=1)) @ y
        for y, s in zip(x, t, strict=True)
    ]
    mean = np.mean(u, axis=0)
    constant = np.array([rotate_reference(rotation, mean, s) for s in t])
    dt = t - t.mean()
    spread = np.sqrt((((x - x.mean(axis=0)) @ axis) ** 2).sum() * (dt**2).sum())
    return (x @ axis) @ dt / spread, (constant @ axis) @ dt / spread


def eta_squared_reference(groups, axis):
    """Groups (documents, tokens, dim), all of one length: products over different groups, position by position."""
    a = np.array([group.mean(axis=0) @ axis for group in groups])  # (G, T)
    a -= a.mean(axis=1, keepdims=True)
    count = len(groups)
    products = [a[g] @ a[h] for g in range(count) for h in range(count) if g != h]
    tokens = np.concatenate(groups) @ axis
    return max(np.mean(products) * len(tokens) / ((tokens - tokens.mean()) ** 2).sum(), 0.0)


def between_documents_reference(k, groups, first=4):
    """The covariance of documents' mean keys, from equal groups of documents k (documents, tokens, dim) in order."""
    means = k[:, first:].mean(axis=1).reshape(groups, -1, k.shape[2]).mean(axis=1)
    apart = means - means.mean(axis=0)
    return apart.T @ apart / (groups - 1) * (len(k) / groups) * (1 - 1 / len(k))


def anatomy_reference(q, k, first=4, between=0.0):
    """The four parts and the sink from documents q, k (documents, tokens, dim) of one length, one bin a position."""
    m_q, m_k = q.mean(axis=0), k.mean(axis=0)
    length = len(m_q)
    sigma_q, sigma_k = (
        np.mean([np.outer(v, v) for document in x for v in (document - m)[first:]], axis=0)
        for x, m in ((q, m_q), (k, m_k))
    )
    sigma_k = sigma_k - between
    rows = []
    for i in range(first + 2, length):
        keys = m_k[first:i]
        scores = keys @ m_q[i]
        rows.append(
            (
                scores.var(),
                m_q[i] @ sigma_k @ m_q[i],
                np.trace(sigma_q @ sigma_k),
                np.trace(sigma_q @ np.cov(keys.T, bias=True)),
                m_q[i] @ m_k[0] - scores.mean(),
            )
        )
    *parts, sink = np.mean(rows, axis=0)
    return np.array(parts), sink


def score_variance_reference(q, k, first=4):
    """Brute force: the variance of a query's scores over its keys, averaged over the queries of all documents."""
    found = [
        (k_doc[first:i] @ q_doc[i]).var()
        for q_doc, k_doc in zip(q, k, strict=True)
        for i in range(first + 2, len(q_doc))
    ]
    return np.mean(found)


def bias_reference(q, k, scale, first=4):
    """Brute force: b(D) at D = 0, 1, ... of one path each (tokens, dim); NaN at D = 0."""
    total, count = np.zeros(len(q)), np.zeros(len(q))
    for i in range(first + 1, len(q)):
        scores = scale * k[first:i] @ q[i]
        for j, score in enumerate(scores, start=first):
            total[i - j] += score - scores.mean()
            count[i - j] += 1
    with np.errstate(invalid="ignore"):
        return (total / count)[: len(q) - first]


def distance_reference(q, k, scale, lag, first=4):
    """Brute force: the mean score of keys `lag` tokens before their query."""
    return scale * np.mean(
        [
            q_doc[j + lag] @ k_doc[j]
            for q_doc, k_doc in zip(q, k, strict=True)
            for j in range(first, len(q_doc) - lag)
        ]
    )


def per_kind_reference(q, t_q, k, t_k):
    """Queries alone and keys alone from their vectors: scikit-learn's axes, scipy's correlations."""
    q, k = np.asarray(q, dtype=np.float64), np.asarray(k, dtype=np.float64)
    found = {}
    for name, x, t in (("q", q, t_q), ("k", k, t_k)):
        pca = PCA(svd_solver="full").fit(x)
        r = np.array([pearsonr(column, t).statistic for column in pca.transform(x).T])
        found[f"explained_{name}"], found[f"r_{name}_own_axis"] = pca.explained_variance_ratio_[0], abs(r[0])
        found[f"linear_{name}"] = (pca.explained_variance_ratio_ * r**2).sum()
    both, delta = np.concatenate([q, k]), q.mean(axis=0) - k.mean(axis=0)
    centres = np.concatenate([np.tile(x.mean(axis=0), (len(x), 1)) for x in (q, k)])
    found["separability"] = ((centres - both.mean(axis=0)) ** 2).sum() / (
        (both - both.mean(axis=0)) ** 2
    ).sum()
    axis = delta / np.linalg.norm(delta)
    found["d_prime"] = axis @ delta / np.sqrt(((q @ axis).var() + (k @ axis).var()) / 2)
    return found
