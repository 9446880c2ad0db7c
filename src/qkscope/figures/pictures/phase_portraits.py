"""r_q against r_k on PC0, a point per head, at representative checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools import style
from qkscope.figures.tools.representatives import family_colours, representatives
from qkscope.figures.tools.sheet import Key, Paper, name_axis, scale, sheet
from qkscope.figures.view import MATCHED, OWN, View
from qkscope.taxonomy import CLASSES, UNMEASURED, Thresholds
from qkscope.words import MINUS, percent, tokens

HOLLOW = " Hollow: heads whose first axis is another than at the checkpoint before; filled: the same axis."
X_LIMITS, Y_LIMITS = (-0.05, 1.05), (-1.05, 1.05)


class PhasePortraits(Picture):
    """Coloured by class, or by family in a study of models; RoPE heads circles, NoPE heads diamonds; heads hollow whose
    first axis is another than before."""

    name = "07_phase_portraits"
    claims = ("queries_keys", "classes")

    def title(self, view: View) -> str:
        where = "by model" if view.of_models else "over training" if view.training else "head by head"
        return f"Phase portraits: r_q against r_k on PC0, {where}"

    def draw(self, view: View, width: float | None = None) -> Drawing:
        models = representatives(view)
        again = [model for model in models if model in view.rematched]
        data = _points(view, models, again)
        classes = {name: style.CLASS_COLOURS[name] for name in CLASSES}
        colours = family_colours(view) if view.of_models else classes
        grid = _Grid(Paper(width), len(models), len(again))
        page = sheet(grid.paper, self.title(view), view.subtitle, grid.width, grid.body, _keys(data, colours))
        if again:
            page.write_heading(view.matched_heading, grid.paper.left, grid.heading)
        for window, group in ((OWN, models), (MATCHED, again)):
            for i, model in enumerate(group):
                axes = page.axes(*grid.place(i, window), grid.wide, grid.high)
                points = data[(data["model"] == model) & (data["window"] == window)]
                _portrait(axes, points, colours, view.results.thresholds, grid.paper)
                _write_title(axes, view, model, window, grid)
                bottom, first = i + grid.columns >= len(group), i % grid.columns == 0
                axes.tick_params(labelleft=first, labelbottom=bottom)
                name_axis(axes, grid.paper, x="r_q" if bottom else None, y="r_k" if first else None)
        return Drawing(page.figure, data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        count, named = data["model"].nunique(), view.results.timeline.portraits
        again = f" The last row of panels is over the {view.matched_text}." if view.rematched else ""
        again = again if (data["window"] == MATCHED).any() else ""
        rope = data.get("rope", pd.Series(dtype=float)).notna().any()
        return Caption(
            shows=f"One point a head: r_q across, r_k up, on PC0, at {count} {view.noun}{'s' if count > 1 else ''}. "
            "Dashed lines are the thresholds of the taxonomy; percentages are the share of heads in each region, "
            f"split by the sign of r_k. Colour is the {'family' if view.of_models else 'class'}."
            + (" Circles: heads of RoPE layers; diamonds: NoPE." if rope else "")
            + (HOLLOW if data["same_axis"].notna().any() else "")
            + again,
            made="No aggregation: every measured head of the table is one point, over its own window where the panel "
            f"does not say otherwise. The {view.noun}s are "
            + ("those the study names." if named else "the first, the last and ends of phases."),
        )


class _Grid:
    """Where panels stand, in inches: those over own windows, then from a new row those over the matched one.

    `heading` is the foot of the heading over the latter.
    """

    def __init__(self, paper: Paper, count: int, again: int) -> None:
        self.paper, gap = paper, 0.22 * paper.factor
        self.columns = min(count, 2 if paper.narrow else 4 if count > 6 and count % 4 in (0, 3) else 3)
        self.wide = {1: 5.4, 2: 4.2}.get(count, 3.0)
        if paper.width is not None:
            room = paper.width - paper.left - paper.right - (self.columns - 1) * gap
            self.wide = min(room / self.columns, 3.3)
        self.high = self.wide * (0.85 if count == 1 else 1.0 if count == 2 else 1.13)
        # Over each row stand the panels' names, under each block the name of their axis.
        self.head, foot = 0.36 * paper.factor, 0.52 * paper.factor
        self.pitch, self.row = self.wide + gap, self.high + self.head
        self.width = paper.left + self.columns * self.pitch - gap + paper.right
        own, matched = -(-count // self.columns), -(-again // self.columns)
        self.heading = own * self.row + foot + 0.26 * paper.factor
        self.body = (self.heading if again else own * self.row) + matched * self.row + foot

    def place(self, i: int, window: str) -> tuple[float, float]:
        row, column = divmod(i, self.columns)
        start = self.heading if window == MATCHED else 0.0
        return self.paper.left + column * self.pitch, start + row * self.row + self.head


def _points(view: View, models: Sequence[str], again: Sequence[str]) -> pd.DataFrame:
    """A row per head of the checkpoints shown, over own windows, then over the matched one."""
    results = view.results
    points = view.windows(_some(results.heads, models), _some(results.matched, again))
    if view.of_models:
        points["family"] = points["model"].map({stop.model: stop.phase for stop in view.stops})
    return points


def _some(heads: pd.DataFrame | None, models: Sequence[str]) -> pd.DataFrame | None:
    if heads is None or not models:
        return None
    heads = heads[heads["model"].isin(models)]
    place = {model: i for i, model in enumerate(models)}
    heads = heads.iloc[np.argsort(heads["model"].map(place).to_numpy(), kind="stable")]
    heads = heads if "same_axis" in heads else heads.assign(same_axis=np.nan)
    names = ["model", "layer", "head", "r_q", "r_k", "class", "rope", "same_axis"]
    return heads[[name for name in names if name in heads]]


def _portrait(
    axes: Axes, points: pd.DataFrame, colours: dict[str, str], limits: Thresholds, paper: Paper
) -> None:
    """One portrait: thresholds, points, the share of heads in each region."""
    axes.set_xlim(*X_LIMITS)
    axes.set_ylim(*Y_LIMITS)
    line: dict[str, Any] = {"color": "#9a9a9a", "linestyle": style.DASHES, "zorder": 1}
    line["linewidth"] = 0.9 * paper.factor
    for limit in (limits.low, limits.high):
        axes.axvline(limit, **line)
        for sign in (1, -1):
            axes.axhline(sign * limit, **line)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color("#b5b5b5")
    column = "family" if "family" in points else "class"
    rope = points["rope"] if "rope" in points else pd.Series(np.nan, points.index)
    size = float(np.clip(9000 / max(len(points), 1), 13, 28)) * paper.factor**4
    for name, colour in colours.items():
        mine = (points[column] == name) & (points["class"] != UNMEASURED)
        for nope, hollow in product((False, True), repeat=2):
            some = points[mine & ((rope == 0) == nope) & ((points["same_axis"] == 0) == hollow)]
            if len(some):
                _scatter(axes, some, colour, nope, hollow, size)
    ticks = (0.0, limits.low, limits.high, 1.0)
    both = (*(-tick for tick in reversed(ticks[1:])), *ticks)
    scale(axes, "x", ticks, [f"{tick:g}" for tick in ticks], paper)
    scale(axes, "y", both, [f"{tick:g}".replace("-", MINUS) for tick in both], paper)
    _write_regions(axes, points, limits, paper)


def _scatter(axes: Axes, points: pd.DataFrame, colour: str, nope: bool, hollow: bool, size: float) -> None:
    face, edge, rim = ("none", colour, 0.9) if hollow else (colour, style.PAPER, 0.25)
    marker, size = ("D", 0.8 * size) if nope else ("o", 1.1 * size)
    axes.scatter(
        points["r_q"], points["r_k"], size, facecolors=face, edgecolors=edge, marker=marker, linewidths=rim,
        alpha=0.75, zorder=3, clip_on=False,
    )  # fmt: skip


def _write_regions(axes: Axes, points: pd.DataFrame, limits: Thresholds, paper: Paper) -> None:
    """The share of measured heads in each region, at the region's outer edge; classes split by the sign of r_k."""
    measured = points[points["class"] != UNMEASURED]
    size = paper.points(9.5)
    if measured.empty:
        place = {"ha": "center", "va": "center", "transform": axes.transAxes}
        style.write(axes, 0.5, 0.5, "no measured head", size, style.MUTED, **place)
        return
    sign = measured["r_k"] >= 0
    middle = (limits.low + limits.high) / 2
    regions = [
        ("position-dominated", sign, 1.03, 1.02, "right", "top"),
        ("position-dominated", ~sign, 1.03, -1.02, "right", "bottom"),
        ("Q-positional", None, 1.03, 0.02 - limits.low, "right", "bottom"),
        ("K-positional", sign, -0.03, 1.02, "left", "top"),
        ("K-positional", ~sign, -0.03, -1.02, "left", "bottom"),
        ("content-focused", None, -0.03, 0.02 - limits.low, "left", "bottom"),
        ("mixed", None, middle, -1.02, "center", "bottom"),
    ]
    for name, side, x, y, ha, va in regions:
        inside = (measured["class"] == name) & (True if side is None else side)
        share = float(inside.mean())
        # Whole percents; a few heads are never 0%.
        text = ("<1%" if 0 < share < 0.005 else percent(share)) + (" mixed" if name == "mixed" else "")
        colour = style.CLASS_COLOURS[name] if inside.any() else "#ababab"
        colour = "#5f5f5f" if name == "mixed" else colour
        place = {"ha": ha, "va": va, "zorder": 6, "path_effects": style.halo(3)}
        style.write(axes, x, y, text, size, colour, weight="bold", **place)


def _write_title(axes: Axes, view: View, model: str, window: str, grid: _Grid) -> None:
    """The checkpoint's name left; right, as far as there is room, its phase and window."""
    stop, paper = view.stops[view.place[model]], grid.paper
    size, small = paper.points(11), paper.points(8.5)
    count = stop.window if window == OWN else view.results.timeline.matched_window
    over = tokens(count) if count else ""
    name = style.shorten_to(view.labels[model], grid.wide, size, "bold")
    axes.set_title(name, loc="left", pad=4, **style.lettering(size, style.INK, "bold"))
    room = grid.wide - style.extent(name, size, "bold")[0] - 0.12
    both = " · ".join(filter(None, (style.drawable(stop.phase), over)))
    rest = next((text for text in (both, over) if style.extent(text, small)[0] <= room), "")
    axes.set_title(rest, loc="right", pad=4, **style.lettering(small, style.MUTED))


def _keys(data: pd.DataFrame, colours: dict[str, str]) -> list[Key]:
    def dot(colour: str, marker: str = "o", face: str | None = None) -> Line2D:
        mark = Line2D([], [], linestyle="none", marker=marker, markersize=6, color=colour)
        mark.set_markerfacecolor(face or colour)
        return mark

    keys = [Key(dot(colour), name) for name, colour in colours.items()]
    if "rope" in data and data["rope"].notna().any():
        keys.append(Key(dot(style.MUTED), "head of a RoPE layer"))
        if (data["rope"] == 0).any():
            keys.append(Key(dot(style.MUTED, "D"), "head of a NoPE layer"))
    if (data["same_axis"] == 0).any():
        keys.append(Key(dot(style.MUTED, "o", style.PAPER), "hollow: another axis became the first"))
    return keys


PICTURE = PhasePortraits()
