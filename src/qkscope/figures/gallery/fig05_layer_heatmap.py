"""Figures 05 and 06: a mean by checkpoint (rows, top to bottom) and depth (columns).

The first panel has ten bins of depth over own windows, as published; the second has every layer, over the same tokens
for every checkpoint. r_q is blue, r_k red, from 0 to 1, or from -1 where a mean is negative; a place without heads is
hatched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from numpy.typing import NDArray

from qkscope.figures import style
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.sheet import Paper, draw_cells, name_axis, sheet
from qkscope.figures.view import View
from qkscope.results.aggregate import depth_cells, means, present, values
from qkscope.sums.head_index import DEPTH_BINS
from qkscope.words import MINUS, bare, number

LOWEST = -0.05  # a mean down to this is noise about zero


@dataclass(frozen=True)
class Panel:
    """One heat map: `grid` is (checkpoints, columns); columns in `nope` are layers without rotary embedding."""

    heading: str
    grid: NDArray[np.float64]
    names: list[str]
    title: str
    nope: frozenset[int] = frozenset()


def draw(value: str, view: View, width: float | None = None) -> Drawing:
    """Depth bins above, layers below; a model with ten layers or fewer has one panel, of its layers."""
    bins = view.windows(depth_cells(view.results.own(), view.order, value), None)
    layers = view.over_same_tokens(partial(depth_cells, value=value, by="layer"))
    held = _layers_of_bins(view)
    shallow = bool(held) and all(len(found) <= 1 for found in held.values())
    tables = {} if shallow else {"depth_bin": bins}
    panels = [] if shallow else [_bins_panel(view, bins, held)]
    if held:
        tables["layer"] = layers
        panels.append(_layers_panel(view, layers))
    signed = any(np.nanmin(panel.grid, initial=0.0) < LOWEST for panel in panels)
    colours = style.colour_scale(signed, keys=value == "r_k")
    rows = _Rows(view, Paper(width))
    caption = _caption(view, value, list(tables), layers, signed)
    heights = [rows.height(panel) for panel in panels]
    page = sheet(rows.paper, caption.title, view.subtitle(), rows.width, sum(heights) + rows.paper.bar)
    top = 0.0
    for panel, height in zip(panels, heights, strict=True):
        axes = page.axes(rows.left, top + rows.head, rows.cells, rows.row * len(view.checkpoints))
        page.write_heading(panel.heading, rows.left, top + rows.head - 0.06)
        rows.draw(axes, panel, colours)
        top += height
    page.colour_bar(f"mean $r_{value[-1]}$, PC0", colours)
    columns = ["model", "label", "window", "tokens", "depth_bin", "layer", "mean", "se", "heads"]
    kinds = {"depth_bin": "Int64", "layer": "Int64"}
    found = [table.reindex(columns=columns).astype(kinds) for table in tables.values()]
    return Drawing(page.figure, pd.concat(found, ignore_index=True), caption)


def _layers_of_bins(view: View) -> dict[int, list[int]]:
    """Which measured layers each bin of depth holds; empty where models have different numbers of layers."""
    heads = view.results.heads
    if heads.groupby("layer")["depth_bin"].nunique().max() > 1:
        return {}
    found = heads.groupby("depth_bin")["layer"].unique()
    return {b: sorted(int(i) for i in found.get(b, ())) for b in range(DEPTH_BINS)}


def _bins_panel(view: View, data: pd.DataFrame, held: dict[int, list[int]]) -> Panel:
    """Ten bins of depth, with the layers that each holds where all models have the same."""
    names = [f"{b / 10:.1f}–{(b + 1) / 10:.1f}" for b in range(DEPTH_BINS)]
    if held:
        names = [f"{name}\n{_range(held[b])}" for b, name in enumerate(names)]
    heading = f"All heads, ten bins{view.over_own}"
    title = "depth, and the layers each bin holds" if held else "depth"
    return Panel(heading, _grid(view, data, "depth_bin", range(DEPTH_BINS)), names, title)


def _layers_panel(view: View, data: pd.DataFrame) -> Panel:
    layers = sorted(data["layer"].unique())
    nope = frozenset(i for i, layer in enumerate(layers) if layer in view.nope_layers)
    names = [f"{layer}\nN" if i in nope else f"{layer}" for i, layer in enumerate(layers)]
    title, heading = f"layer{' (N: NoPE)' if nope else ''}", f"All heads, by layer{view.over_matched}"
    return Panel(heading, _grid(view, data, "layer", layers), names, title, nope)


def _grid(view: View, data: pd.DataFrame, by: str, columns: Sequence[int]) -> NDArray[np.float64]:
    """The means (checkpoints, columns), NaN where there is none; what prints as 0.00 is drawn as zero."""
    table = data.pivot(index="model", columns=by, values="mean")
    table = table.reindex(index=[checkpoint.model for checkpoint in view.checkpoints], columns=columns)
    grid = table.to_numpy(np.float64)
    return np.where((grid > -0.005) & (grid < 0), 0.0, grid)


def _caption(view: View, value: str, panels: list[str], layers: pd.DataFrame, signed: bool) -> Caption:
    whose, above_and_below = "queries", "blue is above zero, orange below"
    if value == "r_k":
        whose, above_and_below = "keys", "red is above zero, teal below"
    columns = {"depth_bin": "a tenth of the depth", "layer": "a layer"}
    both, bins = len(panels) == 2, "depth_bin" in panels
    over = {True: "heads of each bin", False: f"heads of each layer{view.of_matched}"}
    column = " (above) or ".join(columns[by] for by in panels) + (" (below)" if both else "")
    return Caption(
        title=f"Mean $r_{value[-1]}$ on PC0 by {'depth' if bins else 'layer'}{view.over_training}",
        shows=f"Each row is a {view.noun}, each column {column}. The darker a cell, the further from zero is the mean "
        f"{value} on PC0 of the heads there, that is, the more closely their {whose} follow position"
        + (f"; {above_and_below}." if signed else ".")
        + (" Under each bin stand the layers that it holds." if both else "")
        + (" Layers marked N have no rotary embedding (NoPE)." if view.populations else ""),
        made=("depth is layer / (layers − 1), cut into ten bins; " if bins else "")
        + f"for each {view.noun}, the mean of {value} over the measured {over[bins]}"
        + (f", and over the {over[False]}." if both else "."),
        drawn=f"heat map, colours from {MINUS + '1' if signed else '0'} to 1"
        + (", the same in both panels." if both else "."),
        events=_events(view, value, layers) if "layer" in panels else (),
        takeaway=("The upper panel compares with the published figure; which layers encode position is read from the "
        "lower one. " if both else "")
        + "Heads of a pale cell may follow position along another axis than PC0.",
        variables=(value,),
        window="both" if both else "own" if bins else "matched",
        care="Bins pool RoPE and NoPE layers, as the published figure does: a bin's mean may be that of neither."
        if view.populations and bins
        else "",
    )  # fmt: skip


def _events(view: View, value: str, data: pd.DataFrame) -> tuple[tuple[str, str], ...]:
    """Levels of layers at the last checkpoint, and the layer that changed most since the first."""
    first, last = view.order[0], view.order[-1]
    table = data[data["model"] == last].dropna(subset=["mean"]).set_index("layer")
    rope, nope = (table[table.index.isin(view.nope_layers) == kind] for kind in (False, True))
    kind, label = "RoPE layer" if view.populations else "layer", view.labels[last]
    if rope.empty:
        return ()

    def level(layer: int, of: pd.DataFrame) -> str:
        return f"layer {layer} ({number(of.loc[layer, 'mean'], of.loc[layer, 'se'])})"

    top, low = rope["mean"].idxmax(), rope["mean"].idxmin()
    ends = f"is largest in {level(top, rope)} and smallest in {level(low, rope)}"
    if top == low:
        ends = f"is {number(rope.loc[top, 'mean'], rope.loc[top, 'se'])}"
    detail = ""
    if len(nope):
        low_n, high_n = (bare(float(end), 2) for end in (nope["mean"].min(), nope["mean"].max()))
        span = f"lie between {low_n} and {high_n}" if low_n != high_n else f"are {low_n}"
        detail = f"The means of NoPE layers {span}."
    found = [(f"Of {len(rope)} {kind}{'s' if len(rope) > 1 else ''}, mean {value} at {label} {ends}", detail)]
    before = data[data["model"] == first].dropna(subset=["mean"]).set_index("layer")
    change = (rope["mean"] - before["mean"]).dropna()
    if view.training and len(change):
        most = change.abs().idxmax()
        start, end = (number(of.loc[most, "mean"], of.loc[most, "se"]) for of in (before, rope))
        text = (
            f"Layer {most} changed most since {view.labels[first]}: mean {value} went from {start} to {end}"
        )
        found.append((text, _signs(view) if value == "r_k" else ""))
    return tuple(found)


def _signs(view: View) -> str:
    """How many heads have r_k below zero at the first and last checkpoint, and mean |r_k| there."""
    kind, said = "RoPE heads" if view.populations else "heads", []
    data, ends = view.same_tokens, (view.order[0], view.order[-1])
    r_k = values(data, "r_k").isel(sample=0).where(present(data, view.main))
    for _, row in means(data, ends, ("abs_r_k",), population=view.main).iterrows():
        below, size = int((r_k.sel(checkpoint=row["model"]) < 0).sum()), bare(row["mean_abs_r_k"])
        said.append(f"{below} of {row['heads']} {kind} at {view.labels[row['model']]} (mean |r_k| {size})")
    return f"Heads of opposite sign cancel in a mean: r_k is below zero in {said[0]} and {said[1]}."


class _Rows:
    """The rows that both panels share, a checkpoint each; all sizes in inches."""

    def __init__(self, view: View, paper: Paper) -> None:
        self.view, self.paper, count = view, paper, len(view.checkpoints)
        self.size = paper.points(10 if count <= 14 else 9 if count <= 30 else 8)
        high = 0.36 if count <= 14 else 0.29 if count <= 30 else 0.25
        self.row = min(high, 9.0 / count) if paper.width is None else min(0.6 * high, 4.5 / count)
        most = 16 if paper.narrow else 34
        self.names = [style.shorten(name, most) for name in view.drawn_labels.values()]
        self.left = paper.margin + max(style.extent(name, self.size)[0] for name in self.names) + 0.12
        self.room = self._room_for_phases()
        right = self.room + (0.2 if self.room else 0.1) * paper.factor + paper.margin
        self.cells = 7.4 if paper.width is None else paper.width - self.left - right
        self.width, self.head = self.left + self.cells + right, 0.32 * paper.factor

    def _room_for_phases(self) -> float:
        """For the phase names right of the cells."""
        size, most = self.paper.points(9), 1.7 if self.paper.width is None else 0.2 * self.paper.width
        lines = [
            line for name in self.view.phase_names for line in style.wrap(name, most, size, "bold") if line
        ]
        return min(max((style.extent(line, size, "bold")[0] for line in lines), default=0.0), most)

    def height(self, panel: Panel) -> float:
        """Of a panel with its heading and the names of its columns."""
        lines = 1 + any("\n" in name for name in panel.names)
        names = lines * self.paper.points(8.5) / 72 * 1.3
        return self.head + self.row * len(self.names) + names + 0.46 * self.paper.factor

    def draw(self, axes: Axes, panel: Panel, colours: style.ColourScale) -> None:
        rows, columns = panel.grid.shape
        axes.set_xlim(-0.5, columns - 0.5)
        axes.set_ylim(rows - 0.5, -0.5)
        axes.patch.set(**style.NOT_MEASURED)
        draw_cells(axes, np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5, panel.grid, colours)
        for spine in axes.spines.values():
            spine.set_visible(False)
        self._write_cells(axes, panel.grid, colours)
        self._name_rows(axes)
        self._name_columns(axes, panel)
        self._name_phases(axes, columns)
        axes.tick_params(length=0)

    def _write_cells(self, axes: Axes, grid: NDArray[np.float64], colour_scale: style.ColourScale) -> None:
        """Means of two decimals, where all fit."""
        columns = grid.shape[1]
        wide = style.extent(f"{MINUS}0.00", self.size)[0] + 0.05
        if wide > self.cells / columns or self.size / 72 * style.LINE > self.row:
            return
        colours, norm = colour_scale
        place: dict[str, Any] = {"ha": "center", "va": "center_baseline", "zorder": 4}
        for (y, x), mean in np.ndenumerate(grid):
            if np.isfinite(mean):
                text = f"{mean:.2f}".replace("-", MINUS)
                style.write(axes, x, y, text, self.size, style.ink_on(to_hex(colours(norm(mean)))), **place)
        for y, checkpoint in enumerate(self.view.checkpoints):
            if checkpoint.missing:
                style.write_not_measured(axes, (columns - 1) / 2, y, self.paper.points(9), **place)

    def _name_rows(self, axes: Axes) -> None:
        shown = range(0, len(self.names), style.every_nth(self.size, self.row))
        axes.set_yticks(shown, [self.names[i] for i in shown], **style.lettering(self.size))
        for label, i in zip(axes.get_yticklabels(), shown, strict=True):
            label.set_color(self.view.ink(i))

    def _name_columns(self, axes: Axes, panel: Panel) -> None:
        """As many names as fit, and the mark of every NoPE layer."""
        size, names = self.paper.points(8.5), panel.names
        widest = max(style.extent(line, size)[0] for name in names for line in name.split("\n"))
        every = max(1, int(np.ceil((widest + 0.05) / self.cells * len(names))))
        texts = {i: name for i, name in enumerate(names) if i % every == 0}
        texts = dict(sorted((dict.fromkeys(panel.nope, "\nN") | texts).items()))
        axes.set_xticks(list(texts), list(texts.values()), **style.lettering(size), linespacing=1.25)
        name_axis(axes, self.paper, x=panel.title)

    def _name_phases(self, axes: Axes, columns: int) -> None:
        """Names right of their rows, with dashed lines between them; left out where there is no room for them."""
        edge, inch = columns - 0.5, columns / self.cells
        x, size = edge + 0.08 * self.paper.factor * inch, self.paper.points(9)
        line, runs = size / 72 * style.LINE / self.row, self.view.phases
        if len(runs) == 1:
            return
        texts = []
        for name, first, last in runs:
            ends, span = [-0.5, edge], [first - 0.4, last + 0.4]
            if first:
                axes.plot(ends, [first - 0.5] * 2, color=style.PAPER, linewidth=2.6, zorder=5, clip_on=False)
                axes.plot(
                    ends, [first - 0.5] * 2, color=style.SEPARATOR, linewidth=1.2, linestyle=style.DASHES, zorder=5.1,
                    clip_on=False,
                )  # fmt: skip
            axes.plot([x, x], span, color=style.MUTED, linewidth=1.2, zorder=5, clip_on=False)
            lines = style.wrap(style.drawable(name), self.room, size, "bold")
            high = len(lines) * line > last - first + 1
            if high or not style.fits(lines, self.room + 0.02, size, "bold"):
                lines = [style.shorten_to(style.drawable(name), self.room, size, "bold")]
            texts.append("\n".join(lines))
        places = [(first + last) / 2 for _, first, last in runs]
        if not any("\n" in text for text in texts):
            places = style.spread(places, line, -0.5, len(self.names) - 0.5)
        if places[0] < -0.5 - line:
            return
        place = {"ha": "left", "va": "center", "linespacing": 1.1, "weight": "bold"}
        for text, y in zip(texts, places, strict=True):
            style.write(axes, x + 0.08 * self.paper.factor * inch, y, text, size, style.MUTED, **place)


def _range(layers: Sequence[int]) -> str:
    """`8–11`; `8, 11` where those between were not measured."""
    if len(layers) > 1 and layers[-1] - layers[0] == len(layers) - 1:
        return f"{layers[0]}–{layers[-1]}"
    return ", ".join(map(str, layers)) or "none"


QUERIES = Picture("05_layer_heatmap_rq", (), partial(draw, "r_q"))
KEYS = Picture("06_layer_heatmap_rk", (), partial(draw, "r_k"))
