"""Stacked shares of heads, a bar per checkpoint, with the number of heads of each kind in a table below.

The table's left column is the legend. Where the own window is not the matched one, a thin second bar stands beside
the first: the same heads over the matched window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from qkscope.figures.axis import CheckpointAxis
from qkscope.figures.lines import error_key, heights, pale
from qkscope.figures.style import INK, MUTED, PAPER, Key, ink_on, name_axis, number, scale, write
from qkscope.figures.view import MATCHED, OWN, View
from qkscope.taxonomy import UNMEASURED

LEFT = 1.95  # inches: the names of the kinds stand left of the table
ROW = 0.215  # inches, one line of the table
WIDTH, THIN = 0.58, 0.13  # of one checkpoint's place
BESIDE = WIDTH / 2 + 0.025 + THIN / 2


@dataclass(frozen=True)
class Kinds:
    """The kinds heads are counted by: the column that names them, their order from below, their colours."""

    column: str
    order: Sequence[str]
    colours: Mapping[str, str]

    def present(self, data: pd.DataFrame) -> list[str]:
        """The kinds with a line in the table: all, and the unmeasured heads if there are some."""
        some = bool((data[self.column] == UNMEASURED).any())
        return [*self.order, *([UNMEASURED] if some else [])]

    def table_height(self, data: pd.DataFrame) -> float:
        return ROW * len(self.present(data)) + 0.1


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


def draw_counts(axes: Axes, view: View, data: pd.DataFrame, kinds: Kinds, axis: CheckpointAxis) -> None:
    """The table: a line per kind with its swatch and name, a number per checkpoint."""
    rows = kinds.present(data)
    axes.set_axis_off()
    axes.set_xlim(-0.5, len(view.stops) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    inch = 1 / axis.pitch
    size = 9 if axis.pitch >= 0.33 else 7 if axis.pitch >= 0.24 else 0
    own = data[data["window"] == OWN]
    for y, kind in enumerate(rows):
        hatch = "////" if kind == UNMEASURED else ""
        place = (-0.5 - 1.72 * inch, y - 0.3)
        swatch = Rectangle(
            place, 0.2 * inch, 0.6, facecolor=kinds.colours[kind], hatch=hatch, edgecolor=MUTED
        )
        swatch.set(clip_on=False, linewidth=0.6 if hatch else 0)
        axes.add_artist(swatch)
        write(axes, -0.5 - 1.45 * inch, y, kind, 9, INK, ha="left", va="center_baseline")
        counts = own[own[kinds.column] == kind]
        for model, count in zip(counts["model"], counts["heads"], strict=True):
            if size:
                colour = INK if count else "#a5a5a5"
                write(
                    axes, view.place[model], y, f"{count:,}", size, colour, ha="center", va="center_baseline"
                )


def share_keys(view: View, data: pd.DataFrame, kinds: Kinds) -> list[Key]:
    """What the table does not explain: the bar of uncertainty and the thin bars."""
    keys = []
    if data["se"].notna().any():
        keys.append(Key(error_key().mark, f"±1 standard error over documents ({kinds.order[0]})"))
    if view.rematched:
        keys.append(
            Key(
                Patch(facecolor=pale(kinds.colours[kinds.order[0]], 0.3)),
                f"thin bar: {view.matched_text} only",
            )
        )
    return keys
