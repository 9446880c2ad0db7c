"""A mean by checkpoint (rows, top to bottom) and depth (ten columns), printed in its cell.

Colours run from 0 to 1. A negative mean gets a colour of another hue, hatched, so that it cannot be taken for zero; a
bin without heads is an empty hatched cell with a dash. Rows of checkpoints whose own window is not the matched one
come again below, measured over the matched window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, ListedColormap, Normalize, to_hex
from matplotlib.patches import Rectangle

from qkscope.aggregate import DEPTH_BINS, depth_cells
from qkscope.figures.style import (
    INK,
    MARGIN,
    MUTED,
    PAPER,
    SEPARATOR,
    Sheet,
    extent,
    ink_on,
    lettering,
    name_axis,
    number,
    plain,
    scale,
    sheet,
    shorten,
    wrap,
    write,
)
from qkscope.figures.view import MATCHED, OWN, Drawing, View

CELL = 0.72  # inches
# From a tint that is plainly not white to a deep green: the side of the negatives, whatever the map of the positives.
NEGATIVE = LinearSegmentedColormap.from_list("negative", ["#cfe8e0", "#7cc1ad", "#2b8a72", "#0b5242"])


@dataclass(frozen=True)
class Heat:
    """Which value is mapped, in which colours."""

    value: str
    colours: str

    def colour(self, mean: float) -> str:
        """The colour of a cell."""
        return str(to_hex(NEGATIVE(-mean) if mean < 0 else self._map(mean)))

    @cached_property
    def _map(self) -> Colormap:
        return colormaps[self.colours]


def draw_heatmap(view: View, heat: Heat, title: str) -> Drawing:
    """The whole figure."""
    data = view.both_windows(lambda heads, loo, order: depth_cells(heads, loo, order, heat.value))
    frame = _Frame(view, heat, data)
    page = sheet(title, view.subtitle, frame.width, frame.body)
    axes = page.axes(frame.left, frame.above, frame.cells, frame.main)
    frame.block(axes, data[data["window"] == OWN], [stop.model for stop in view.stops])
    frame.phases(axes)
    last = axes
    if view.rematched:
        top = frame.above + frame.main + frame.gap
        last = page.axes(frame.left, top, frame.cells, frame.second)
        frame.block(last, data[data["window"] == MATCHED], view.rematched)
        heading = f"the same checkpoints over their {view.matched_text}"
        last.set_title(heading, loc="left", pad=5, **lettering(10, MUTED, "bold"))
    frame.bins(last, data)
    frame.bar(page)
    return Drawing(page.figure, data)


class _Frame:
    """Sizes in inches, and the parts of the picture."""

    def __init__(self, view: View, heat: Heat, data: pd.DataFrame) -> None:
        self.view, self.heat, self.data = view, heat, data
        self.missing = {stop.model for stop in view.stops if stop.missing}
        count = len(view.stops)
        self.row = 0.4 if count <= 14 else 0.31 if count <= 30 else 0.25
        self.size = 10 if count <= 14 else 9 if count <= 30 else 8
        names = [shorten(view.labels[stop.model], 34) for stop in view.stops]
        self.names = dict(zip((stop.model for stop in view.stops), names, strict=True))
        self.left = MARGIN + 0.28 + max(extent(name, self.size)[0] for name in names) + 0.12
        self.cells = CELL * DEPTH_BINS
        self.side = self._side()
        self.width = self.left + self.cells + self.side + 0.85
        self.above, self.gap = 0.08, 0.42
        self.main = self.row * count
        self.second = self.row * len(view.rematched)
        self.below = 0.7
        extra = self.gap + self.second if view.rematched else 0.0
        self.body = self.above + self.main + extra + self.below

    def _side(self) -> float:
        """Room for the phase names right of the cells."""
        lines = [
            line for name, first, last in self.view.phases for line in self._phase_lines(name, first, last)
        ]
        return 0.3 + max((extent(line, 9, "bold")[0] for line in lines), default=0.0)

    def _phase_lines(self, name: str, first: int, last: int) -> list[str]:
        most = max(1, int((last - first + 1) * self.row / 0.17))
        lines = wrap(plain(name), 1.35, 9, "bold")
        return lines if len(lines) <= most else [shorten(plain(name), 26)]

    def block(self, axes: Axes, data: pd.DataFrame, models: Sequence[str]) -> None:
        """One row of cells per model."""
        table = data.pivot(index="model", columns="depth_bin", values="mean")
        grid = table.reindex(index=list(models), columns=range(DEPTH_BINS)).to_numpy(np.float64)
        axes.set_xlim(-0.5, DEPTH_BINS - 0.5)
        axes.set_ylim(len(models) - 0.5, -0.5)
        edges = np.arange(DEPTH_BINS + 1) - 0.5, np.arange(len(models) + 1) - 0.5
        # Edges in the cells' own colour: viewers of the SVG would show hairlines between them otherwise.
        look: dict[str, Any] = {
            "cmap": self.heat.colours,
            "norm": Normalize(0, 1),
            "edgecolors": "face",
            "linewidth": 0.2,
        }
        axes.pcolormesh(*edges, np.ma.masked_invalid(grid), **look)
        self._name_rows(axes, models)
        place = {"ha": "center", "va": "center"}
        for y, model in enumerate(models):
            for x in range(DEPTH_BINS):
                self._cell(axes, x, y, grid[y, x], "" if model in self.missing else "–")
            if model in self.missing:
                write(axes, (DEPTH_BINS - 1) / 2, y, "not measured", self.size - 1, MUTED, **place)

    def _name_rows(self, axes: Axes, models: Sequence[str]) -> None:
        for spine in axes.spines.values():
            spine.set_visible(False)
        scale(axes, "y", range(len(models)), [self.names[model] for model in models])
        for label, model in zip(axes.get_yticklabels(), models, strict=True):
            label.set_fontsize(self.size)
            label.set_color("#a0a0a0" if model in self.missing else INK)
        axes.tick_params(length=0)
        axes.set_xticks([])

    def _cell(self, axes: Axes, x: int, y: int, mean: float, dash: str) -> None:
        empty = not np.isfinite(mean)
        colour = "#f4f4f4" if empty else self.heat.colour(mean)
        hatch = "////" if empty else "...." if mean < 0 else None
        if hatch:
            edge = "#d0d0d0" if empty else PAPER
            cover = Rectangle(
                (x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor=edge, hatch=hatch, linewidth=0
            )
            axes.add_artist(cover)
        # A mean of -0.004 keeps its minus: "0.00" would deny what the colour says.
        text = dash if empty else number(mean) if mean >= 0 else "\u2212" + number(-mean)
        if text:
            ink = MUTED if empty else ink_on(colour)
            rim = {"bbox": {"facecolor": colour, "edgecolor": "none", "pad": 1.2}} if hatch else {}
            write(axes, x, y, text, self.size, ink, ha="center", va="center_baseline", zorder=4, **rim)

    def phases(self, axes: Axes) -> None:
        """Names right of their rows, dashed lines between them."""
        edge = DEPTH_BINS - 0.5
        for name, first, last in self.view.phases:
            if first:
                axes.plot(
                    [-0.5, edge], [first - 0.5] * 2, color=PAPER, linewidth=2.6, solid_capstyle="butt", zorder=5,
                    clip_on=False,
                )  # fmt: skip
                axes.plot(
                    [-0.5, edge], [first - 0.5] * 2, color=SEPARATOR, linewidth=1.2, linestyle=(0, (4, 3)), zorder=5.1,
                    clip_on=False, label="phase",
                )  # fmt: skip
            x = edge + 0.12 / CELL
            axes.plot([x, x], [first - 0.4, last + 0.4], color=MUTED, linewidth=1.2, clip_on=False, zorder=5)
            lines = self._phase_lines(name, first, last)
            place = {"ha": "left", "va": "center", "linespacing": 1.1}
            write(
                axes, x + 0.1 / CELL, (first + last) / 2, "\n".join(lines), 9, MUTED, weight="bold", **place
            )

    def bins(self, axes: Axes, data: pd.DataFrame) -> None:
        """Depth bins below the last block, with how many heads stand in each."""
        counts = [sorted(set(part["heads"])) for _, part in data.groupby("depth_bin", sort=True)]
        texts = []
        for b, found in enumerate(counts):
            heads = f"{found[0]}" if len(found) == 1 else f"{found[0]}–{found[-1]}"
            texts.append(f"{b / 10:.1f}–{(b + 1) / 10:.1f}\nn = {heads}")
        axes.set_xticks(range(DEPTH_BINS), texts, **lettering(8.5), linespacing=1.25)
        name_axis(axes, x="depth in the network (n: heads in the bin)")

    def bar(self, page: Sheet) -> None:
        """The scale of colours: 0 to 1, and down to the lowest cell if there are negative ones."""
        lowest = float(np.nanmin(self.data["mean"], initial=0.0))
        low = -np.ceil(-lowest * 10) / 10 if lowest < 0 else 0.0
        height = max(min(3.2, self.main), 1.0)
        axes = page.axes(self.left + self.cells + self.side + 0.12, self.above, 0.17, height)
        edges = np.linspace(low, 1, 201)
        middles = (edges[:-1] + edges[1:]) / 2
        ramp = ListedColormap([self.heat.colour(value) for value in middles])
        axes.pcolormesh(
            [0, 1], edges, np.arange(len(middles))[:, None], cmap=ramp, edgecolors="face", linewidth=0.2
        )
        axes.set_xlim(0, 1)
        axes.set_ylim(low, 1)
        axes.set_xticks([])
        step = 2 if height > 1.5 else 5
        ticks = [t / 10 for t in range(-10, 11, step) if t / 10 >= low]
        scale(axes, "y", ticks, [number(t, 1) for t in ticks])
        axes.yaxis.tick_right()
        axes.tick_params(labelsize=8.5, length=2)
        for spine in axes.spines.values():
            spine.set_visible(False)
