"""A mean by checkpoint (rows, top to bottom) and depth (columns), printed in its cell where there is room.

Colours run from 0 to 1. A negative mean gets a colour of another hue, hatched, so that it cannot be taken for zero; a
bin without heads is an empty hatched cell with a dash. Columns are ten bins of depth, or the layers themselves where
a model has no more than ten. Rows of checkpoints whose own window is not the matched one come again below, measured
over the matched window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, Normalize, to_hex
from matplotlib.patches import Rectangle

from qkscope.aggregate import DEPTH_BINS, depth_cells
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools import style
from qkscope.figures.tools.sheet import SMALLEST, Paper, Sheet, name_axis, scale, sheet
from qkscope.figures.view import MATCHED, OWN, View
from qkscope.heads import depth, depth_bin
from qkscope.words import MINUS, bare

# From a tint that is plainly not white to a deep green: the side of the negatives, whatever the map of the positives.
NEGATIVE = LinearSegmentedColormap.from_list("negative", ["#cfe8e0", "#7cc1ad", "#2b8a72", "#0b5242"])


@dataclass(frozen=True)
class Columns:
    """The bins of depth that are drawn, their names, and what they are called."""

    bins: tuple[int, ...]
    names: tuple[str, ...]
    title: str


def columns_of(view: View) -> Columns:
    """Ten bins of depth; the layers where all models have the same number of them, ten or fewer."""
    heads = view.results.heads
    deep = heads[heads["depth"] > 0]
    counts = set((deep["layer"] / deep["depth"]).round().astype(int) + 1) or {1}
    if len(counts) == 1 and (count := counts.pop()) <= DEPTH_BINS:
        bins = depth_bin(depth(np.arange(count), count))
        return Columns(tuple(bins.tolist()), tuple(str(layer) for layer in range(count)), "layer")
    names = [f"{b / 10:.1f}–{(b + 1) / 10:.1f}" for b in range(DEPTH_BINS)]
    return Columns(tuple(range(DEPTH_BINS)), tuple(names), "depth in the network")


class Heatmap(Picture):
    """Means of `value`, a column of the heads table, in the colours of a map of matplotlib."""

    def __init__(self, name: str, claims: tuple[str, ...], value: str, colours: str) -> None:
        self.name, self.claims, self.value, self.colours = name, claims, value, colours

    def title(self, view: View) -> str:
        return f"Mean {self.value} on PC0 by depth{view.over_training}"

    def colour(self, mean: float) -> str:
        """The colour of a cell."""
        return str(to_hex(NEGATIVE(-mean) if mean < 0 else colormaps[self.colours](mean)))

    def draw(self, view: View, width: float | None = None) -> Drawing:
        columns = columns_of(view)
        data = view.both_windows(lambda heads, loo, order: depth_cells(heads, loo, order, self.value))
        data = data[data["depth_bin"].isin(columns.bins)].reset_index(drop=True)
        frame = _Frame(view, self, data, columns, Paper(width))
        page = sheet(frame.paper, self.title(view), view.subtitle, frame.width, frame.body)
        axes = page.axes(frame.left, frame.above, frame.cells, frame.main)
        frame.block(axes, data[data["window"] == OWN], [stop.model for stop in view.stops])
        frame.phases(axes)
        if view.rematched:
            top = frame.above + frame.main + frame.gap
            axes = page.axes(frame.left, top, frame.cells, frame.second)
            frame.block(axes, data[data["window"] == MATCHED], view.rematched)
            page.write_heading(view.matched_heading, frame.left, top - 0.06)
        frame.name_columns(axes)
        frame.bar(page)
        return Drawing(page.figure, data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        layers = columns_of(view).title == "layer"
        place = "a layer" if layers else "a tenth of the network's depth, early layers left"
        again = f" The rows below are the same over the {view.matched_text}." if view.rematched else ""
        return Caption(
            shows=f"Mean {self.value} on PC0: a row is a {view.noun}, a column {place}. The darker, the closer the "
            f"heads follow position; means below zero are green and dotted, a dash is a place without heads.{again}",
            made=f"For each {view.noun}, the mean of {self.value} over the measured heads of each column; "
            "depth is layer / (layers − 1).",
        )


class _Frame:
    """Sizes in inches, and the parts of the picture."""

    def __init__(self, view: View, heat: Heatmap, data: pd.DataFrame, columns: Columns, paper: Paper) -> None:
        self.view, self.heat, self.data, self.columns, self.paper = view, heat, data, columns, paper
        self.missing = {stop.model for stop in view.stops if stop.missing}
        count = len(view.stops)
        self.size = paper.points(10 if count <= 14 else 9 if count <= 30 else 8)
        high = 0.4 if count <= 14 else 0.31 if count <= 30 else 0.25
        self.row = min(high, 12.0 / count) if paper.width is None else min(0.6 * high, 6.0 / count)
        names = [style.shorten(view.labels[stop.model], 16 if paper.narrow else 34) for stop in view.stops]
        self.names = dict(zip((stop.model for stop in view.stops), names, strict=True))
        self.left = paper.margin + max(style.extent(name, self.size)[0] for name in names) + 0.12
        self.side_size = paper.points(9)
        self.side = self._side()
        inner = 7.2 if paper.width is None else paper.width - self.left - self.side - paper.margin
        self.cell = min(inner / len(columns.bins), 1.0)
        self.cells = self.cell * len(columns.bins)
        self.width = self.left + self.cells + self.side + paper.margin
        self.above, self.gap = 0.08, 0.42 * paper.factor
        self.main, self.second = self.row * count, self.row * len(view.rematched)
        self.foot = self.above + self.main + (self.gap + self.second if view.rematched else 0.0)
        self.under = 0.82 * paper.factor + 0.05
        self.body = self.foot + self.under + 0.14 + self.paper.points(8.5) / 72 * 2
        self.printed = self._room_for_numbers()

    def _side(self) -> float:
        """Room for the phase names right of the cells."""
        most = 1.7 if self.paper.width is None else 0.2 * self.paper.width
        phases = [style.drawable(name) for name, _, _ in self.view.phases]
        lines = [line for name in phases for line in style.wrap(name, most, self.side_size, "bold")]
        widest = max((style.extent(line, self.side_size, "bold")[0] for line in lines), default=0.0)
        return 0.22 * self.paper.factor + min(widest, most) if widest else 0.1

    def _room_for_numbers(self) -> bool:
        known = self.data["mean"].dropna()
        widest = max((style.extent(_text(mean), self.size)[0] for mean in known), default=0.0)
        return widest + 0.05 <= self.cell and self.size / 72 * style.LINE <= self.row

    def block(self, axes: Axes, data: pd.DataFrame, models: Sequence[str]) -> None:
        """One row of cells per model."""
        table = data.pivot(index="model", columns="depth_bin", values="mean")
        grid = table.reindex(index=list(models), columns=list(self.columns.bins)).to_numpy(np.float64)
        wide = len(self.columns.bins)
        axes.set_xlim(-0.5, wide - 0.5)
        axes.set_ylim(len(models) - 0.5, -0.5)
        # Edges in the cells' own colour: viewers of the SVG would show hairlines between them otherwise.
        look: dict[str, Any] = {"norm": Normalize(0, 1), "edgecolors": "face", "linewidth": 0.2}
        edges = np.arange(wide + 1) - 0.5, np.arange(len(models) + 1) - 0.5
        axes.pcolormesh(*edges, np.ma.masked_invalid(grid), cmap=self.heat.colours, **look)
        self._name_rows(axes, models)
        for y, model in enumerate(models):
            for x in range(wide):
                self._cell(axes, x, y, grid[y, x], "" if model in self.missing else "–")
            if model in self.missing and self.size / 72 * style.LINE <= self.row:
                place = {"ha": "center", "va": "center_baseline", "colour": style.MUTED}
                style.write(axes, (wide - 1) / 2, y, "not measured", self.paper.points(9), **place)

    def _name_rows(self, axes: Axes, models: Sequence[str]) -> None:
        for spine in axes.spines.values():
            spine.set_visible(False)
        every = max(1, int(np.ceil(self.size / 72 * style.LINE / self.row - 1e-9)))
        shown = range(0, len(models), every)
        scale(axes, "y", shown, [self.names[models[i]] for i in shown], self.paper)
        for label, i in zip(axes.get_yticklabels(), shown, strict=True):
            label.set_fontsize(self.size)
            label.set_color("#a0a0a0" if models[i] in self.missing else style.INK)
        axes.tick_params(length=0)
        axes.set_xticks([])

    def _cell(self, axes: Axes, x: int, y: int, mean: float, dash: str) -> None:
        empty = not np.isfinite(mean)
        colour = "#f4f4f4" if empty else self.heat.colour(mean)
        hatch = "////" if empty else "...." if mean < 0 else None
        if hatch:
            edge = "#d0d0d0" if empty else style.PAPER
            cover = Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor=edge, hatch=hatch)
            cover.set_linewidth(0)
            axes.add_artist(cover)
        text = dash if empty else _text(mean)
        if text and self.printed:
            ink = style.MUTED if empty else style.ink_on(colour)
            rim = {"bbox": {"facecolor": colour, "edgecolor": "none", "pad": 1.2}} if hatch else {}
            style.write(axes, x, y, text, self.size, ink, ha="center", va="center_baseline", zorder=4, **rim)

    def phases(self, axes: Axes) -> None:
        """Names right of their rows, dashed lines between them."""
        edge, runs = len(self.columns.bins) - 0.5, self.view.phases
        x = edge + 0.08 * self.paper.factor / self.cell
        for _, first, last in runs:
            if first:
                ends = [-0.5, edge], [first - 0.5] * 2
                under: dict[str, Any] = {"color": style.PAPER, "linewidth": 2.6, "solid_capstyle": "butt"}
                axes.plot(*ends, **under, zorder=5, clip_on=False)
                dashed: dict[str, Any] = {
                    "color": style.SEPARATOR,
                    "linewidth": 1.2,
                    "linestyle": style.DASHES,
                }
                axes.plot(*ends, **dashed, zorder=5.1, clip_on=False)
            side: dict[str, Any] = {"color": style.MUTED, "linewidth": 1.2, "zorder": 5}
            axes.plot([x, x], [first - 0.4, last + 0.4], **side, clip_on=False)
        self._name_phases(axes, x + 0.08 * self.paper.factor / self.cell)

    def _name_phases(self, axes: Axes, x: float) -> None:
        """In as many lines as their rows are high, in one if need be, moved apart where that is not enough."""
        room, size = self.side - 0.2 * self.paper.factor, self.side_size
        line = size / 72 * style.LINE / self.row
        texts, heights = [], []
        for name, first, last in self.view.phases:
            lines = style.wrap(style.drawable(name), room, size, "bold")
            if len(lines) * line > last - first + 1 or not style.fits(lines, room + 0.02, size, "bold"):
                lines = [style.shorten_to(style.drawable(name), room, size, "bold")]
            texts.append("\n".join(lines))
            heights.append(len(lines))
        centres = [(first + last) / 2 for _, first, last in self.view.phases]
        bottom = len(self.view.stops) - 0.5
        places = style.spread(centres, line, -0.5, bottom) if max(heights) == 1 else centres
        if places and places[0] < -0.5 - line:
            return
        place = {"ha": "left", "va": "center", "linespacing": 1.1}
        for text, y in zip(texts, places, strict=True):
            style.write(axes, x, y, text, size, style.MUTED, weight="bold", **place)

    def name_columns(self, axes: Axes) -> None:
        """Columns below the last block, with how many heads stand in each where there is room."""
        size = self.paper.points(8.5)
        counts = [sorted(set(self.data.loc[self.data["depth_bin"] == b, "heads"])) for b in self.columns.bins]
        heads = [f"{found[0]}" if len(found) == 1 else f"{found[0]}–{found[-1]}" for found in counts]
        texts = [f"{name}\nn = {n}" for name, n in zip(self.columns.names, heads, strict=True)]
        title = f"{self.columns.title} (n: heads)"
        places: list[float] = list(range(len(texts)))
        if not style.fits([line for text in texts for line in text.split("\n")], self.cell - 0.04, size):
            texts, title = list(self.columns.names), self.columns.title
            if not style.fits(texts, self.cell - 0.04, size):
                # The edges of bins take less room than their ranges.
                places, texts = [-0.5, 4.5, 9.5], ["0", "0.5", "1"]
        axes.set_xticks(places, texts, **style.lettering(size), linespacing=1.25)
        name_axis(axes, self.paper, x=title)

    def bar(self, page: Sheet) -> None:
        """The scale of colours: 0 to 1, and down to the lowest cell if there are negative ones."""
        lowest = float(np.nanmin(self.data["mean"], initial=0.0))
        low = -np.ceil(-lowest * 10) / 10 if lowest < 0 else 0.0
        size, name = max(SMALLEST, self.paper.points(8.5)), f"mean {self.heat.value}"
        named = self.paper.margin + style.extent(name, size)[0] + 0.06
        length = min(3.6, self.left + self.cells - named)
        left = max(named, self.left + (self.cells - length) / 2)
        axes = page.axes(left, self.foot + self.under, length, 0.12)
        edges = np.linspace(low, 1, 201)
        middles = (edges[:-1] + edges[1:]) / 2
        ramp = ListedColormap([self.heat.colour(value) for value in middles])
        look: dict[str, Any] = {"cmap": ramp, "edgecolors": "face", "linewidth": 0.2}
        axes.pcolormesh(edges, [0, 1], np.arange(len(middles))[None, :], **look)
        axes.set_xlim(low, 1)
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        step = 2 if length > 1.5 else 5
        ticks = [t / 10 for t in range(-10, 11, step) if t / 10 >= low]
        scale(axes, "x", ticks, [bare(t, 1) for t in ticks], self.paper)
        axes.tick_params(labelsize=size, length=2)
        beside: dict[str, Any] = {"ha": "right", "va": "center", "transform": axes.transAxes}
        style.write(axes, -0.06 / length, 0.5, name, size, **beside)
        for spine in axes.spines.values():
            spine.set_visible(False)


def _text(mean: float) -> str:
    """A mean of -0.004 keeps its minus: "0.00" would deny what the colour says."""
    return MINUS + f"{-mean:.2f}" if mean < 0 else f"{mean:.2f}"
