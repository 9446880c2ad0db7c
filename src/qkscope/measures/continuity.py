"""Whether a principal axis continues an earlier one: overlaps of axes between checkpoints and between samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.registry import MeasureGroup, Variable

Array = NDArray[np.float64]

# |v.v'| from which two axes count as the same one: about half of the squared length of either lies along the other. It
# holds between checkpoints, and between all documents and a left-out sample, where a different axis leaves no error.
SAME = 0.7


def overlaps(before: Array, after: Array) -> Array:
    """|v'_a . v_b| of every earlier axis a with every later axis b: (H, d, m) twice -> (H, m, m)."""
    return np.abs(before.transpose(0, 2, 1) @ after)


def gap(explained_variance: Array) -> Array:
    """1 - lambda_1 / lambda_0: how clearly the first axis comes first. (H, m) -> (H,); NaN with one component."""
    if explained_variance.shape[1] < 2:
        return np.full(len(explained_variance), np.nan)
    first = explained_variance[:, 0]
    return 1 - explained_variance[:, 1] / np.where(first > 0, first, np.nan)


def assign(overlap: Array) -> NDArray[np.int64]:
    """Which earlier axis each later one continues: the one-to-one pairing of the largest summed squared overlap.

    overlap (H, m, m) -> (H, m); -1 for a head with NaN.
    """
    from scipy.optimize import linear_sum_assignment

    result = np.full(overlap.shape[:2], -1, dtype=np.int64)
    for head in np.flatnonzero(np.isfinite(overlap).all(axis=(1, 2))):
        earlier, later = linear_sum_assignment(overlap[head] ** 2, maximize=True)
        result[head, later] = earlier
    return result


def same_axis(overlap: Array) -> NDArray[np.bool_]:
    """Whether the later PC0 continues the earlier PC0: paired with it, and overlapping by at least SAME. (H,)"""
    return np.asarray((assign(overlap)[:, 0] == 0) & (overlap[:, 0, 0] >= SAME))


GROUP = MeasureGroup(
    name="continuity",
    needs=("moments",),
    compute=None,
    version=2,
    variables=(
        Variable("overlap", "PC0 overlap with the checkpoint before", "",
                 "|cosine| between PC0 and PC0 of the checkpoint before"),
        Variable("overlap_pc", "component before", "", "which earlier axis PC0 overlaps most", sampled=False,
                 detail=True),
        Variable("same_axis", "same axis", "", "1: PC0 continues PC0 of the checkpoint before, 0: it does not",
                 sampled=False, detail=True),
    ),
)  # fmt: skip


def continuity(before: tuple[Array, Array] | None, after: tuple[Array, Array]) -> dict[str, Array]:
    """The variables of GROUP of one cell, from axes v (H, d, m) and left-out first axes (G, H, d) of the cell before
    it and of itself.

    NaN where there is none before, or it has other heads.
    """
    v, loo = after
    heads = len(v)
    if before is None or before[0].shape != v.shape:
        empty = np.full((1 + len(loo), heads), np.nan)
        return {"overlap": empty, "overlap_pc": empty[0].copy(), "same_axis": empty[0].copy()}
    overlap = overlaps(before[0], v)
    known = np.isfinite(overlap).all(axis=(1, 2))
    left = np.full((len(loo), heads), np.nan)
    if len(before[1]) == len(loo):
        left = np.abs(np.einsum("ghd,ghd->gh", before[1], loo))
    nearest = np.argmax(np.nan_to_num(overlap[:, :, 0]), axis=1)
    return {
        "overlap": np.concatenate([overlap[None, :, 0, 0], left]),
        "overlap_pc": np.where(known, nearest, np.nan),
        "same_axis": np.where(known, same_axis(overlap), np.nan),
    }
