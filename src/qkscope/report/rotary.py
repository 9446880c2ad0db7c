"""What the rotary views are drawn from, of every head over its training context.

With q_p and k_p the mean query and key before rotation, each rotary pair p as one complex number, the mean score of a
key D tokens back is

    scale Re sum_p q_p conj(k_p) exp(i w_p D) + scale sum over the other dimensions of q k

The page has the products, so that it can turn them with other frequencies w_p. Tokens 0 to 3 are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.report.encode import NO_CODE, pack, pack_column
from qkscope.sums.path import SINK
from qkscope.sums.rotation import Rotation

if TYPE_CHECKING:
    from qkscope.report.columns import Grid
    from qkscope.results import Results
    from qkscope.results.axes import CheckpointAxes
    from qkscope.sums.path import Path

Array = NDArray[np.float64]

LIMIT = 1_500_000  # base64 characters; of a larger study the page has some checkpoints


def rotary(results: Results, grid: Grid) -> dict[str, Any] | None:
    """Products by pair, frequencies and measured scores by distance of the checkpoints that fit; None without axes."""
    axes, order = results.axes, list(results.timeline.models)
    if not axes or not grid.training:
        return None
    widest = max((len(r.frequency) for one in axes.values() for r in one.rotations.values() if r), default=0)
    fitting = spread(order, LIMIT // max(1, len(grid.heads) * (2 * widest + 1) * 4 * 4 // 3))
    sets: list[list[float]] = []
    parts = {model: _products(axes[model], grid, widest, sets) for model in fitting if model in axes}
    if not widest or not parts:
        return None
    return {
        "checkpoints": [order.index(model) for model in parts],
        "pairs": widest,
        "sets": [{"frequency": one, "theta": theta(one)} for one in sets],
        "set": pack(np.stack([codes for _, codes in parts.values()])),
        "parts": pack(np.stack([found for found, _ in parts.values()]).astype(np.float32)),
        "measured": _measured(results, grid, list(parts)),
    }


def _products(
    axes: CheckpointAxes, grid: Grid, pairs: int, sets: list[list[float]]
) -> tuple[Array, NDArray[np.uint8]]:
    """Of each head of the page the products of its pairs, fast to slow, as (real, imaginary), then the dimensions that
    stay: (heads, 2 pairs + 1); and which of `sets` its frequencies are, NO_CODE for a head that does not rotate."""
    found, codes = np.zeros((len(grid.heads), 2 * pairs + 1)), np.full(len(grid.heads), NO_CODE, np.uint8)
    heads = axes.heads
    place = {(int(a), int(b)): i for i, (a, b) in enumerate(zip(heads.layer, heads.head, strict=True))}
    queries, keys = constant(axes.path_q), constant(axes.path_k)
    for row, (_, layer, head) in enumerate(grid.heads):
        at, rotation = place.get((layer, head)), axes.rotations.get(layer)
        if at is None or rotation is None or not len(rotation.frequency):
            continue
        fast = np.argsort(-rotation.frequency, kind="stable")
        frequency = rotation.frequency[fast].tolist()
        if frequency not in sets:
            sets.append(frequency)
        codes[row] = sets.index(frequency)
        product, still = products(
            rotation, queries[at], keys[heads.kv_row[at]], axes.scales.get(layer, np.nan)
        )
        found[row, : 2 * len(fast)] = np.stack([product.real, product.imag], 1)[fast].ravel()
        found[row, -1] = still
    return found, codes


def constant(path: Path) -> Array:
    """The mean vector before rotation over all tokens from position 4 on. (H, d)"""
    late = path.edges[:-1] >= SINK
    return np.asarray(path.total[:, late].sum(axis=1) / max(1, path.n[late].sum()))


def products(rotation: Rotation, q: Array, k: Array, scale: float) -> tuple[NDArray[np.complex128], float]:
    """scale q_p conj(k_p) of each pair (P,), and scale q.k of the dimensions that do not turn."""
    turned = scale * rotation.scale**2 * rotation.paired(q) * np.conj(rotation.paired(k))
    return turned, float(scale * q[rotation.still] @ k[rotation.still])


def theta(frequency: Sequence[float]) -> float | None:
    """The base of w_p = theta^(-p / P), from the two fastest pairs, which no kind of scaling changes relative to each
    other."""
    if len(frequency) < 2 or not frequency[1] > 0:
        return None
    return float(f"{(frequency[0] / frequency[1]) ** len(frequency):.5g}")


def _measured(results: Results, grid: Grid, models: Sequence[str]) -> dict[str, Any] | None:
    """Mean score at each distance as measured on a few queries: (checkpoints x heads, distances)."""
    data = results.own()
    if "distance_score_measured" not in data:
        return None
    values = grid.arrange(data["distance_score_measured"]).reshape(len(grid.models), len(grid.heads), -1)
    column = pack_column(values[[list(grid.models).index(model) for model in models]])
    return None if column is None else {"at": data["distance"].to_numpy().tolist(), "column": column}


def spread(order: Sequence[str], count: int) -> list[str]:
    """At most `count` of the checkpoints, evenly, the first and the last among them."""
    if count >= len(order):
        return list(order)
    at = np.linspace(len(order) - 1, 0, max(1, count)).round().astype(int)
    return [order[i] for i in sorted(set(at.tolist()))]
