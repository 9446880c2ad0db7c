"""Stacked shares of heads, a bar per checkpoint, and the number of heads of each kind for the table below.

Where the own window is not the matched one, a thin second bar stands beside
the first: the same heads over the matched window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from qkscope.figures.tools.axis import CheckpointAxis
from qkscope.figures.tools.ledger import Row
from qkscope.figures.tools.lines import Array, draw_errors, error_key, heights
from qkscope.figures.tools.sheet import Key, inches, scale
from qkscope.figures.tools.style import INK, LINE, PAPER, extent, ink_on, pale, write
from qkscope.figures.view import MATCHED, OWN, View
from qkscope.taxonomy import UNMEASURED
from qkscope.words import bare, percent

WIDTH, GAP, THIN = 0.58, 0.025, 0.13  # of one checkpoint's place
CLOSE = 0.1  # inches from checkpoint to checkpoint below which bars touch: gaps would be all one sees


@dataclass(frozen=True)
class Kinds:
    """The kinds heads are counted by: the column that names them, their order from below, their colours."""

    column: str
    order: Sequence[str]
    colours: Mapping[str, str]


def draw_shares(axes: Axes, axis: CheckpointAxis, data: pd.DataFrame, kinds: Kinds) -> None:
    """`data` has a row per checkpoint, window and kind, with `share` and `se`."""
    view = axis.view
    own, matched = data[data["window"] == OWN], data[data["window"] == MATCHED]
    close = axis.pitch < CLOSE
    wide, thin = (0.7, 0.3) if close else (WIDTH, THIN)
    if close and matched.empty:
        wide = 1.0
    if not matched.empty:
        _stack(axes, axis, matched, kinds, thin, wide / 2 + thin / 2 + (0.0 if close else GAP))
    _write_shares(axes, axis, _stack(axes, axis, own, kinds, wide, 0.0), kinds)
    first = own[own[kinds.column] == kinds.order[0]]
    x, y, se = np.arange(len(view.stops)), heights(view, first, "share"), heights(view, first, "se")
    draw_errors(axes, x, y, se, INK, axis.pitch, min(1.1, 18 * axis.pitch))
    axes.set_ylim(0, 1)
    ticks = [i / 5 for i in range(6)]
    scale(axes, "y", ticks, [bare(tick, 1) for tick in ticks], axis.paper)


def _stack(
    axes: Axes, axis: CheckpointAxis, data: pd.DataFrame, kinds: Kinds, width: float, offset: float
) -> list[tuple[str, Array, Array]]:
    """Bars from 0 to 1; returns (kind, bottom, height) of each layer."""
    bottom = np.zeros(len(axis.view.stops))
    layers = []
    for kind in kinds.order:
        height = np.nan_to_num(heights(axis.view, data[data[kinds.column] == kind], "share"))
        colour = kinds.colours[kind] if offset == 0 else pale(kinds.colours[kind], 0.3)
        label = kind if offset == 0 else f"{kind}, {axis.view.matched_text}"
        axes.bar(
            np.arange(len(height)) + offset, height, width, bottom, color=colour, edgecolor=PAPER, label=label,
            linewidth=0.0 if axis.pitch < CLOSE else 0.5, zorder=2,
        )  # fmt: skip
        layers.append((kind, bottom.copy(), height))
        bottom += height
    return layers


def _write_shares(
    axes: Axes, axis: CheckpointAxis, layers: list[tuple[str, Array, Array]], kinds: Kinds
) -> None:
    """Percentages inside the layers high and wide enough for them."""
    size = axis.paper.points(9)
    if extent("88%", size)[0] > axis.pitch * WIDTH:
        return
    lowest = size * LINE / 72 / inches(axes)[1]
    place = {"ha": "center", "va": "center_baseline", "zorder": 6}
    for kind, bottom, height in layers:
        for x in np.flatnonzero(height >= lowest).tolist():
            middle, ink = bottom[x] + height[x] / 2, ink_on(kinds.colours[kind])
            write(axes, x, middle, percent(height[x]), size, ink, **place)


def count_rows(data: pd.DataFrame, kinds: Kinds) -> list[Row]:
    """The numbers of heads as lines of the table below; the unmeasured heads if there are some."""
    own = data[data["window"] == OWN]
    rows = []
    for kind in (*kinds.order, UNMEASURED):
        part = own[own[kinds.column] == kind]
        texts = {model: f"{count:,}" for model, count in zip(part["model"], part["heads"], strict=True)}
        if texts:
            rows.append(Row(kind, texts, kinds.colours[kind], hatched=kind == UNMEASURED))
    return rows


def share_keys(view: View, data: pd.DataFrame, kinds: Kinds) -> list[Key]:
    """What the table does not explain: the bar of uncertainty and the thin bars."""
    keys = []
    if data["se"].notna().any():
        keys.append(error_key(f"±1 standard error over documents, {kinds.order[0]}"))
    if view.rematched:
        mark = Patch(facecolor=pale(kinds.colours[kinds.order[0]], 0.3))
        keys.append(Key(mark, f"thin bar: {view.matched_text} only"))
    return keys
