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

from qkscope.figures.ledger import Row
from qkscope.figures.lines import error_key, heights, pale
from qkscope.figures.style import INK, PAPER, Key, ink_on, name_axis, number, scale, write
from qkscope.figures.view import MATCHED, OWN, View
from qkscope.taxonomy import UNMEASURED

WIDTH, THIN = 0.58, 0.13  # of one checkpoint's place
BESIDE = WIDTH / 2 + 0.025 + THIN / 2


@dataclass(frozen=True)
class Kinds:
    """The kinds heads are counted by: the column that names them, their order from below, their colours."""

    column: str
    order: Sequence[str]
    colours: Mapping[str, str]


def draw_shares(axes: Axes, view: View, data: pd.DataFrame, kinds: Kinds, pitch: float) -> None:
    """`data` has a row per checkpoint, window and kind, with `share` and `se`."""
    own, matched = data[data["window"] == OWN], data[data["window"] == MATCHED]
    if not matched.empty:
        _stack(axes, view, matched, kinds, THIN, BESIDE)
    tops = _stack(axes, view, own, kinds, WIDTH, 0.0)
    _write_shares(axes, tops, kinds, pitch)
    first = own[own[kinds.column] == kinds.order[0]]
    height, se = heights(view, first, "share"), heights(view, first, "se")
    known = np.flatnonzero(np.isfinite(height) & np.isfinite(se))
    if len(known):
        axes.errorbar(
            known, height[known], yerr=se[known], fmt="none", ecolor=INK, elinewidth=1.2, capsize=3, capthick=1.2,
            zorder=5,
        )  # fmt: skip
    axes.set_ylim(0, 1)
    ticks = [i / 5 for i in range(6)]
    scale(axes, "y", ticks, [number(tick, 1) for tick in ticks])
    name_axis(axes, y="share of heads")


def _stack(
    axes: Axes, view: View, data: pd.DataFrame, kinds: Kinds, width: float, offset: float
) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Bars from 0 to 1; returns (kind, bottom, height) of each layer."""
    bottom = np.zeros(len(view.stops))
    layers = []
    for kind in kinds.order:
        height = np.nan_to_num(heights(view, data[data[kinds.column] == kind], "share"))
        colour = kinds.colours[kind] if offset == 0 else pale(kinds.colours[kind], 0.3)
        label = kind if offset == 0 else f"{kind}, {view.matched_text}"
        axes.bar(
            np.arange(len(height)) + offset, height, width, bottom, color=colour, edgecolor=PAPER, linewidth=0.5,
            label=label, zorder=2,
        )  # fmt: skip
        layers.append((kind, bottom.copy(), height))
        bottom += height
    return layers


def _write_shares(
    axes: Axes, layers: list[tuple[str, np.ndarray, np.ndarray]], kinds: Kinds, pitch: float
) -> None:
    """Percentages inside the layers high and wide enough for them."""
    if pitch * WIDTH < 0.38:
        return
    for kind, bottom, height in layers:
        for x in np.flatnonzero(height >= 0.055).tolist():
            text = f"{100 * height[x]:.0f}%"
            middle = bottom[x] + height[x] / 2
            write(
                axes,
                x,
                middle,
                text,
                9,
                ink_on(kinds.colours[kind]),
                ha="center",
                va="center_baseline",
                zorder=6,
            )


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
        keys.append(Key(error_key().mark, f"±1 standard error over documents, {kinds.order[0]}"))
    if view.rematched:
        keys.append(
            Key(
                Patch(facecolor=pale(kinds.colours[kinds.order[0]], 0.3)),
                f"thin bar: {view.matched_text} only",
            )
        )
    return keys
