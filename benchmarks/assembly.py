"""Units -> numbers of heads: principal axes and all that goes beyond, beside scikit-learn's loop and bare LAPACK.

Per head and sample (all documents, or all but one of eight groups). Vectors of 8192 + 8192 tokens are what the peer
starts from; ours starts from moments, which capture leaves behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from scipy.stats import pearsonr
from sklearn.decomposition import PCA

from benchmarks.rows import Row
from qkscope.heads import HeadIndex
from qkscope.measures.beyond import measure_beyond
from qkscope.measures.pca import measure
from qkscope.moments import Accumulator, Moments, Unit
from qkscope.path import Path, bin_edges
from qkscope.rotation import Rotation

GROUPS, TOKENS, WINDOWS = 8, 8192, (4096, 32768)


def unit(rng: np.random.Generator, heads: HeadIndex, dim: int) -> Unit:
    """Sums of four documents that fill the window: the values do not matter to the clock."""
    edges = bin_edges(WINDOWS)
    n = np.diff(edges) * 4

    def moments(count: int, start: int, stop: int) -> Moments:
        sums = Accumulator()
        sums.update(rng.standard_normal((count, 2 * dim, dim)), np.linspace(start, stop, 2 * dim))
        return sums.moments()

    def kind(count: int) -> tuple[tuple[Moments, ...], Moments, Path]:
        rings = tuple(moments(count, a, b) for a, b in zip((0, *WINDOWS), WINDOWS, strict=False))
        total = rng.standard_normal((count, len(n), dim)) * n[:, None]
        return rings, moments(count, 0, 4), Path(edges, n, total)

    (q, sink_q, path_q), (k, sink_k, path_k) = kind(len(heads)), kind(len(heads.keys))
    layers = np.unique(heads.layer).tolist()
    turn = Rotation.plain(dim, 2e6)
    return Unit(
        heads=heads,
        windows=WINDOWS,
        q=q,
        k=k,
        sink_q=sink_q,
        sink_k=sink_k,
        path_q=path_q,
        path_k=path_k,
        rotations=dict.fromkeys(layers, turn),
        scales=dict.fromkeys(layers, dim**-0.5),
        lengths=(WINDOWS[-1],) * 4,
    )


def rows(rounds: int, layers: int = 2, a_layer: int = 16, dim: int = 128) -> list[Row]:
    rng = np.random.default_rng(0)
    heads = HeadIndex.of([(i, h) for i in range(layers) for h in range(a_layer)], 4)
    units = [unit(rng, heads, dim) for _ in range(GROUPS)]
    axes = measure(units, WINDOWS[-1])
    scatter = rng.standard_normal((4 * (1 + GROUPS), dim, dim))
    scatter = scatter @ scatter.transpose(0, 2, 1)
    vectors, t = rng.standard_normal((2 * TOKENS, dim), dtype=np.float32), np.arange(TOKENS)

    def notebook() -> None:
        """PCA of the stacked vectors, then pearsonr per component: one head, without errors."""
        made = PCA(n_components=10).fit_transform(vectors)
        for i in range(10):
            pearsonr(made[:TOKENS, i], t)
            pearsonr(made[TOKENS:, i], t)

    every = len(heads) * (1 + GROUPS)
    sides: dict[str, tuple[Callable[[], object], int]] = {
        "scikit-learn PCA + pearsonr, from vectors": (notebook, 1),
        "LAPACK's eigh alone (limit)": (lambda: np.linalg.eigh(scatter), len(scatter)),
        "axes and r": (lambda: measure(units, WINDOWS[-1]), every),
        "anatomy, eta, curves, spectra": (lambda: measure_beyond(units, WINDOWS[-1], axes), every),
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, (work, count) in sides.items():
            wall, processor = time.perf_counter(), time.process_time()
            work()
            found = (time.perf_counter() - wall) / count, (time.process_time() - processor) / count
            taken[name] += [found] if number else []
    part = f"Assembly, a head of {dim} and a sample"
    return [Row(part, name, seconds, next(iter(taken.values()))) for name, seconds in taken.items()]
