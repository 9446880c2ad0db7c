"""Figures 05 and 06: a mean by checkpoint (rows, top to bottom) and depth (columns), from 0 to 1.

The first panel has ten bins of depth over own windows, as published; the second has every layer, over the same tokens
for every checkpoint. Means below zero have a colour of their own, and a place without heads is gray.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize, to_hex

from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools import style
from qkscope.figures.tools.sheet import Paper, Sheet, name_axis, sheet
from qkscope.figures.view import View
from qkscope.results.aggregate import depth_cells, means, present, values
from qkscope.sums.head_index import DEPTH_BINS
from qkscope.words import MINUS, bare, number

NEGATIVE, EMPTY = "#bfe3d5", "#e4e4e4"


def heatmap(name: str, value: str, colours: str) -> Picture:
    """The figure of means of a measure, in the colours of a map of matplotlib."""
    return Picture(name, (), partial(draw, value, colours))


def draw(value: str, colours: str, view: View, width: float | None = None) -> Drawing:
    """Depth bins above, layers below; a model with ten layers or fewer has one panel, of its layers."""
    bins = view.windows(depth_cells(view.results.own(), view.order, value), None)
    layers = view.over_same_tokens(partial(depth_cells, value=value, by="layer"))
    held = _layers_of_bins(view)
    shallow = bool(held) and all(len(found) <= 1 for found in held.values())
    names = (
        []
        if shallow
        else [(bins, "depth_bin", f"All heads, ten bins{', training context' if view.rematched else ''}")]
    )
    if held:
        names.append((layers, "layer", f"All heads, by layer{view.over_matched}"))
    frame = _Frame(view, Paper(width), colormaps[colours].with_extremes(under=NEGATIVE, bad=EMPTY))
    caption = _caption(view, value, [by for _, by, _ in names], layers)
    blocks = [frame.block(data, by, heading, held) for data, by, heading in names]
    body = sum(block.height for block in blocks) + frame.bar_height
    page = sheet(frame.paper, caption.title, view.subtitle(), frame.width, body)
    top = 0.0
    for block in blocks:
        frame.draw(page, block, top)
        top += block.height
    lowest = min(float(np.nanmin(block.grid, initial=0.0)) for block in blocks)
    frame.colour_bar(page, top, f"mean $r_{value[-1]}$, PC0", below=lowest < 0)
    columns = ["model", "label", "window", "tokens", "depth_bin", "layer", "mean", "se", "heads"]
    tables = [data.reindex(columns=columns) for data, _, _ in names]
    merged = pd.concat(
        [table.astype({"depth_bin": "Int64", "layer": "Int64"}) for table in tables], ignore_index=True
    )
    return Drawing(page.figure, merged, caption)


def _layers_of_bins(view: View) -> dict[int, list[int]]:
    """Which measured layers each bin of depth holds; empty where models have different numbers of layers."""
    heads = view.results.heads
    if heads.groupby("layer")["depth_bin"].nunique().max() > 1:
        return {}
    found = heads.groupby("depth_bin")["layer"].unique()
    return {b: sorted(int(i) for i in found.get(b, ())) for b in range(DEPTH_BINS)}


def _caption(view: View, value: str, panels: list[str], layers: pd.DataFrame) -> Caption:
    kind, colour = ("queries", "blue") if value == "r_q" else ("keys", "red")
    columns = {"depth_bin": "a tenth of the depth", "layer": "a layer"}
    both = len(panels) == 2
    column = " (above) or ".join(columns[by] for by in panels) + (" (below)" if both else "")
    return Caption(
        title=f"Mean $r_{value[-1]}$ on PC0 by depth{view.over_training}",
        shows=f"Each row is a {view.noun}, each column {column}. The darker the {colour}, the larger the mean {value} "
        f"on PC0 of the heads there, that is, the more closely their {kind} follow position; green is below zero."
        + (" Under each bin stand the layers that it holds." if both else "")
        + (" Layers marked N have no rotary embedding (NoPE)." if view.populations else ""),
        made="depth is layer / (layers − 1), cut into ten bins; "
        f"for each {view.noun}, the mean of {value} over the measured heads of each bin"
        + (", and of each layer" if both else "")
        + (f" over the {view.matched_text}." if both and view.rematched else "."),
        drawn=f"heat map, colour map {'Blues' if value == 'r_q' else 'Reds'} from 0 to 1"
        + (", the same in both panels." if both else "."),
        events=_events(view, value, layers) if "layer" in panels else (),
        takeaway="The upper panel compares with the published figure; which layers encode position is read from the "
        "lower one."
        if both
        else "",
        variables=(value,),
        care="Bins pool RoPE and NoPE layers, as the published figure does: a bin's mean may be that of neither."
        if view.populations and "depth_bin" in panels
        else "",
    )


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


class _Block:
    """One panel: its numbers (rows, columns), names and size in inches."""

    def __init__(
        self, grid: np.ndarray[Any, Any], names: Sequence[str], below: Sequence[str], title: str, heading: str
    ) -> None:
        self.grid, self.names, self.below, self.title, self.heading = grid, names, below, title, heading
        self.nope: set[int] = set()
        self.height = 0.0


class _Frame:
    """Sizes in inches that both panels share, and the parts of the figure."""

    def __init__(self, view: View, paper: Paper, colours: Colormap) -> None:
        self.view, self.paper, self.colours = view, paper, colours
        self.missing = {stop.model for stop in view.stops if stop.missing}
        count = len(view.stops)
        self.size = paper.points(10 if count <= 14 else 9 if count <= 30 else 8)
        high = 0.36 if count <= 14 else 0.29 if count <= 30 else 0.25
        self.row = min(high, 9.0 / count) if paper.width is None else min(0.6 * high, 4.5 / count)
        self.names = [
            style.shorten(view.labels[stop.model], 16 if paper.narrow else 34) for stop in view.stops
        ]
        self.left = paper.margin + max(style.extent(name, self.size)[0] for name in self.names) + 0.12
        self.side = self._side()
        self.cells = 7.4 if paper.width is None else paper.width - self.left - self.side - paper.margin
        self.width = self.left + self.cells + self.side + paper.margin
        self.bar_height = 0.12 + 0.45 * paper.factor

    def _side(self) -> float:
        """Room for the phase names right of the cells."""
        size, most = self.paper.points(9), 1.7 if self.paper.width is None else 0.2 * self.paper.width
        phases = [style.drawable(name) for name, _, _ in self.view.phases]
        lines = [line for name in phases for line in style.wrap(name, most, size, "bold")]
        widest = max((style.extent(line, size, "bold")[0] for line in lines), default=0.0)
        return 0.22 * self.paper.factor + min(widest, most) if widest else 0.1

    def block(self, data: pd.DataFrame, by: str, heading: str, held: dict[int, list[int]]) -> _Block:
        """A panel of `data`, with a column for each value of `by`."""
        columns = sorted(data[by].unique())
        table = data.pivot(index="model", columns=by, values="mean")
        grid = table.reindex(index=[stop.model for stop in self.view.stops], columns=columns).to_numpy(
            np.float64
        )
        # What prints as 0.00 is drawn as zero.
        grid = np.where((grid > -0.005) & (grid < 0), 0.0, grid)
        if by == "depth_bin":
            names = [f"{b / 10:.1f}–{(b + 1) / 10:.1f}" for b in columns]
            below = [_range(held[b]) for b in columns] if held else []
            title = "depth, and the layers each bin holds" if held else "depth"
            found = _Block(grid, names, below, title, heading)
        else:
            found = _Block(grid, [str(layer) for layer in columns], [], "layer", heading)
            found.nope = {i for i, layer in enumerate(columns) if layer in self.view.nope_layers}
        lines = 2 if found.below and self._fit(found) else 1
        marks = lines + bool(found.nope)
        small = self.paper.points(8.5) / 72 * 1.3
        head = 0.32 * self.paper.factor
        found.height = head + self.row * len(self.names) + marks * small + 0.46 * self.paper.factor
        return found

    def _cell(self, block: _Block) -> float:
        return self.cells / len(block.names)

    def _fit(self, block: _Block) -> bool:
        """Whether both lines of names fit under their columns."""
        return style.fits([*block.names, *block.below], self._cell(block) - 0.04, self.paper.points(8.5))

    def draw(self, page: Sheet, block: _Block, top: float) -> None:
        head = 0.32 * self.paper.factor
        rows, columns = block.grid.shape
        axes = page.axes(self.left, top + head, self.cells, self.row * rows)
        page.write_heading(block.heading, self.left, top + head - 0.06)
        axes.set_xlim(-0.5, columns - 0.5)
        axes.set_ylim(rows - 0.5, -0.5)
        # Edges in the cells' own colour: viewers of the SVG would show hairlines between them otherwise.
        look: dict[str, Any] = {"norm": Normalize(0, 1), "edgecolors": "face", "linewidth": 0.2}
        edges = np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5
        axes.pcolormesh(*edges, np.ma.masked_invalid(block.grid), cmap=self.colours, **look)
        self._write_cells(axes, block)
        self._name_rows(axes)
        self._name_columns(axes, block)
        self._phases(axes, columns)

    def _write_cells(self, axes: Axes, block: _Block) -> None:
        """Means of two decimals, where all fit."""
        wide = style.extent(f"{MINUS}0.00", self.size)[0] + 0.05
        if wide > self._cell(block) or self.size / 72 * style.LINE > self.row:
            return
        place: dict[str, Any] = {"ha": "center", "va": "center_baseline", "zorder": 4}
        for (y, x), mean in np.ndenumerate(block.grid):
            if np.isfinite(mean):
                colour = NEGATIVE if mean < 0 else str(to_hex(self.colours(mean)))
                text = f"{mean:.2f}".replace("-", MINUS)
                style.write(axes, x, y, text, self.size, style.ink_on(colour), **place)
        for y, stop in enumerate(self.view.stops):
            if stop.missing:
                style.write(
                    axes, (block.grid.shape[1] - 1) / 2, y, "not measured", self.paper.points(9), **place
                )

    def _name_rows(self, axes: Axes) -> None:
        for spine in axes.spines.values():
            spine.set_visible(False)
        every = max(1, int(np.ceil(self.size / 72 * style.LINE / self.row - 1e-9)))
        shown = range(0, len(self.names), every)
        axes.set_yticks(shown, [self.names[i] for i in shown], **style.lettering(self.size))
        for label, i in zip(axes.get_yticklabels(), shown, strict=True):
            label.set_color("#a0a0a0" if self.view.stops[i].missing else style.INK)
        axes.tick_params(length=0)

    def _name_columns(self, axes: Axes, block: _Block) -> None:
        """Names below, with the layers of a bin or the mark of a NoPE layer."""
        size, cell = self.paper.points(8.5), self._cell(block)
        texts, title = [str(name) for name in block.names], block.title
        places: list[float] = list(range(len(texts)))
        if block.below and self._fit(block):
            texts = [f"{name}\n{layers}" for name, layers in zip(texts, block.below, strict=True)]
        elif block.below:
            texts, title = [layers or "–" for layers in block.below], "layers of each bin of depth"
        widest = max(style.extent(line, size)[0] for text in texts for line in text.split("\n"))
        every = max(1, int(np.ceil((widest + 0.05) / cell)))
        if block.nope:
            texts = [f"{text}\nN" if i in block.nope else text for i, text in enumerate(texts)]
            title += " (N: NoPE)"
        shown = [i for i in places if i % every == 0 or i in block.nope]
        texts = [texts[int(i)] if i % every == 0 else "\nN" for i in shown]
        axes.set_xticks(shown, texts, **style.lettering(size), linespacing=1.25)
        name_axis(axes, self.paper, x=title)

    def _phases(self, axes: Axes, columns: int) -> None:
        """Names right of their rows, dashed lines between them."""
        edge, runs, inch = columns - 0.5, self.view.phases, columns / self.cells
        x = edge + 0.08 * self.paper.factor * inch
        for _, first, last in runs:
            if first:
                ends = [-0.5, edge], [first - 0.5] * 2
                axes.plot(
                    *ends, color=style.PAPER, linewidth=2.6, solid_capstyle="butt", zorder=5, clip_on=False
                )
                dashed: dict[str, Any] = {"linewidth": 1.2, "linestyle": style.DASHES}
                axes.plot(*ends, color=style.SEPARATOR, **dashed, zorder=5.1, clip_on=False)
            axes.plot(
                [x, x], [first - 0.4, last + 0.4], color=style.MUTED, linewidth=1.2, zorder=5, clip_on=False
            )
        self._name_phases(axes, x + 0.08 * self.paper.factor * inch)

    def _name_phases(self, axes: Axes, x: float) -> None:
        """In as many lines as their rows are high, in one if need be, moved apart where that is not enough."""
        room, size = self.side - 0.2 * self.paper.factor, self.paper.points(9)
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

    def colour_bar(self, page: Sheet, top: float, name: str, below: bool) -> None:
        """From 0 to 1, with the colour of negative means at its end where there are some."""
        length, size = min(3.6, 0.7 * self.cells), self.paper.points(8.5)
        axes = page.axes(self.left + (self.cells - length) / 2, top + 0.04, length, 0.12)
        mappable = ScalarMappable(Normalize(0, 1), self.colours)
        bar = page.figure.colorbar(
            mappable,
            cax=axes,
            orientation="horizontal",
            extend="min" if below else "neither",
            extendfrac=0.06,
        )
        bar.outline.set_visible(False)
        ticks = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0] if length > 1.5 else [0.0, 0.5, 1.0]
        bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        axes.tick_params(length=2, bottom=True, labelbottom=True)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], **style.lettering(size))
        axes.set_xlabel(
            name + (" (green: below 0)" if below else ""), **style.lettering(size, math=True), labelpad=2
        )


def _range(layers: Sequence[int]) -> str:
    """`8–11`; `8, 11` where those between were not measured."""
    if not layers:
        return "none"
    whole = list(layers) == list(range(layers[0], layers[-1] + 1))
    if len(layers) == 1:
        return f"{layers[0]}"
    return f"{layers[0]}–{layers[-1]}" if whole else ", ".join(map(str, layers))


QUERIES = heatmap("05_layer_heatmap_rq", "r_q", "Blues")
KEYS = heatmap("06_layer_heatmap_rk", "r_k", "Reds")
