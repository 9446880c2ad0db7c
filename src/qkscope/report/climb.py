"""Which principal axis continues which from checkpoint to checkpoint, and the mean path along each, for a head's page.

Axes of neighbouring checkpoints are paired one to one by their overlap (see `measures.continuity`). The path along
an axis is v.m(t), the mean vector at position t, averaged over sixteenths of the training context.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.continuity import assign, overlaps
from qkscope.report.encode import NO_CODE, pack
from qkscope.sums.rotation import Rotation

if TYPE_CHECKING:
    from qkscope.report.columns import Grid
    from qkscope.results import Results
    from qkscope.results.axes import CheckpointAxes
    from qkscope.sums.path import Path

Array = NDArray[np.float64]

PARTS = 16  # of the training context, for the paths
LIMIT = 1_000_000  # base64 characters of the paths; a larger page has none
MOST_ROWS = 50_000  # checkpoints times heads, beyond which axes are not paired
STEPS = 100  # an overlap is stored in hundredths, a path in hundredths of its largest value


def climb(results: Results, grid: Grid) -> dict[str, Any] | None:
    """Of every row and component the component before it, their overlap, and the paths; None without axes."""
    axes = results.axes
    if not axes or not grid.training or grid.rows > MOST_ROWS:
        return None
    count = max(one.v.shape[2] for one in axes.values())
    shape = (len(grid.models), len(grid.heads), count)
    before, overlap = (np.full(shape, NO_CODE, dtype=np.uint8) for _ in range(2))
    drawn = np.prod(shape) * 2 * PARTS * 4 / 3 <= LIMIT
    paths = np.full((*shape, 2, PARTS), NO_CODE, dtype=np.uint8) if drawn else None
    earlier: tuple[CheckpointAxes, NDArray[np.int64]] | None = None
    for number, model in enumerate(grid.models):
        here = axes.get(model)
        if here is None:
            earlier = None
            continue
        rows = np.array([grid.index[0, layer, head] for layer, head in here.heads.pairs], dtype=np.int64)
        if earlier and earlier[0].v.shape == here.v.shape and np.array_equal(earlier[1], rows):
            found = overlaps(earlier[0].v, here.v)
            paired = assign(found)
            size = np.take_along_axis(found, np.maximum(paired, 0)[:, None, :], axis=1)[:, 0]
            known = paired >= 0
            before[number, rows, : paired.shape[1]] = np.where(known, paired, NO_CODE)
            overlap[number, rows, : paired.shape[1]] = np.where(known, np.rint(STEPS * size), NO_CODE)
        if paths is not None:
            paths[number, rows, : here.v.shape[2]] = _codes(along(here))
        earlier = here, rows
    return {
        "count": count,
        "steps": STEPS,
        "parts": PARTS,
        "before": pack(before),
        "overlap": pack(overlap),
        "paths": None if paths is None else pack(paths),
    }


def along(axes: CheckpointAxes) -> Array:
    """v.m(t) of queries and keys about the middle of both means: (H, components, 2, PARTS); NaN in an empty part."""
    heads = axes.heads
    found = np.empty((len(heads), axes.v.shape[2], 2, PARTS))
    for layer in np.unique(heads.layer):
        at = np.flatnonzero(heads.layer == layer)
        rotation = axes.rotations.get(int(layer)) or Rotation.none(axes.v.shape[1])
        v = axes.v[at]
        for kind, path, rows in ((0, axes.path_q, at), (1, axes.path_k, heads.kv_row[at])):
            found[at, :, kind] = np.einsum("hdm,hbd->hmb", v, _means(path, rows, rotation))
        middle = (axes.mean_q[at] + axes.mean_k[heads.kv_row[at]]) / 2
        found[at] -= np.einsum("hdm,hd->hm", v, middle)[:, :, None, None]
    return found


def _means(path: Path, rows: NDArray[np.int64], rotation: Rotation) -> Array:
    """The mean vector over each sixteenth of the window: bins turned to the middle of their waves. (H, PARTS, d)"""
    edges, n = path.edges, path.n
    turns = [
        [part.mean(axis=0) for part in rotation.turns(np.arange(a, b, dtype=float))]
        for a, b in pairwise(edges)
    ]
    cos, sin = (np.stack(part) for part in zip(*turns, strict=True))
    turned = rotation.turn(path.filled.mean[rows], (cos, sin))  # (H, B, d)
    part = np.minimum((edges[:-1] + edges[1:]) / 2 * PARTS // edges[-1], PARTS - 1).astype(int)
    weight = np.where(part == np.arange(PARTS)[:, None], n, 0.0)  # (PARTS, B)
    total = weight.sum(axis=1, keepdims=True)
    return np.asarray(np.einsum("pb,hbd->hpd", weight / np.where(total > 0, total, np.nan), turned))


def _codes(paths: Array) -> NDArray[np.uint8]:
    """Hundredths of the largest value of an axis's two paths, plus STEPS; NO_CODE where there is none."""
    most = np.max(np.abs(paths), axis=(2, 3), keepdims=True, where=np.isfinite(paths), initial=0.0)
    scaled = np.rint(STEPS * paths / np.where(most > 0, most, 1.0)) + STEPS
    return np.where(np.isfinite(scaled), scaled, NO_CODE).astype(np.uint8)
