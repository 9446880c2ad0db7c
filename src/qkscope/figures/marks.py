"""Lines over checkpoints with bands and error bars, their entries in the legend, and vertical scales.

Where a checkpoint's own window is not the matched one, the value over the matched window is drawn beside the own one,
as a dotted line with hollow marks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from qkscope.figures.axis import CheckpointAxis
from qkscope.figures.sheet import Key, Paper, dot, inches, scale, stroke, swatch
from qkscope.figures.style import INK, PAPER, ROPE_COLOURS, pale
from qkscope.figures.view import ALL, MATCHED, OWN, View

Array = np.ndarray[Any, np.dtype[Any]]
DASHED = (0, (3, 1.5))


@dataclass(frozen=True)
class Look:
    """How one quantity is drawn."""

    name: str
    colour: str
    marker: str
    hollow: bool = False
    dashes: str | tuple[int, tuple[float, ...]] = "-"

    @property
    def face(self) -> str:
        return PAPER if self.hollow else self.colour

    @property
    def key(self) -> Key:
        """Its entry in the legend."""
        key = stroke(
            self.name, self.colour, linestyle=self.dashes, linewidth=1.8, marker=self.marker, markersize=6,
            markerfacecolor=self.face, markeredgecolor=self.colour, markeredgewidth=1.3,
        )  # fmt: skip
        return replace(key, math=True)

    def of(self, population: str) -> Look:
        """How the same quantity is drawn of one population: hollow and dashed of NoPE heads.

        A quantity without a colour of its own (INK) has the population's.
        """
        if population == ALL:
            return self
        nope = population == "NoPE"
        name = f"{self.name.removeprefix('mean ')}, {population} heads"
        colour = ROPE_COLOURS[population] if self.colour == INK else self.colour
        return Look(name, colour, self.marker, nope, DASHED if nope else "-")

    def over(self, window: str) -> Look:
        """How the same quantity is drawn over the matched window."""
        return Look(f"{self.name}, {window}", pale(self.colour), self.marker, True, ":")


def band_key(text: str = "±1 standard deviation across heads") -> Key:
    return swatch(text, "#555555", alpha=0.16, linewidth=0)


def error_key(text: str = "±1 standard error over documents", marker: str = "|") -> Key:
    """A bar as errorbar draws it; marker "_" is one across."""
    return dot(text, "#444444", marker=marker, markersize=9, markeredgewidth=1.3)


def heights(view: View, table: pd.DataFrame, column: str) -> Array:
    """A column by checkpoint of the study; NaN where the table has no such checkpoint."""
    found = np.full(len(view.checkpoints), np.nan)
    found[[view.place[model] for model in table["model"]]] = table[column].to_numpy(np.float64)
    return found


def draw_quantity(
    axes: Axes, axis: CheckpointAxis, data: pd.DataFrame, look: Look, mean: str, se: str, sd: str = ""
) -> None:
    """A line of own windows and, beside it, one of the matched window; `mean`, `se` and `sd` name columns."""
    own = data[data["window"] == OWN]
    x, y = np.array(axis.at), heights(axis.view, own, mean)
    if sd:
        _band(axes, x, y, heights(axis.view, own, sd), look.colour)
    draw_line(axes, axis, own, look, mean, se)
    matched = data[data["window"] == MATCHED]
    if len(matched):
        _matched(axes, axis, y, matched, look.over(axis.view.matched_text), mean, se)


def draw_line(axes: Axes, axis: CheckpointAxis, data: pd.DataFrame, look: Look, mean: str, se: str) -> None:
    """One line with error bars, whatever the window of its numbers."""
    x, y = np.array(axis.at), heights(axis.view, data, mean)
    draw_errors(axes, x, y, heights(axis.view, data, se), look.colour, axis.pitch)
    size = mark_size(axis, 7.0)
    axes.plot(
        x, y, color=look.colour, linestyle=look.dashes, linewidth=min(2.2, 0.6 + 0.3 * size), marker=look.marker,
        label=look.name, markersize=size, markerfacecolor=look.face, markeredgecolor=look.colour,
        markeredgewidth=min(1.5 if look.hollow else 0.8, 0.3 * size), zorder=4, solid_capstyle="round",
    )  # fmt: skip


def draw_populations(
    data: pd.DataFrame,
    looks: Mapping[str, Look],
    scale: Callable[..., None],
    limits: tuple[float, float],
    axes: Axes,
    axis: CheckpointAxis,
) -> None:
    """A line per population and look, whose key is the end of its columns' names (`mean_r_q`: "_r_q"), on a scale."""
    for name, rows in data.groupby("population", sort=False):
        for end, look in looks.items():
            draw_line(axes, axis, rows, look.of(str(name)), f"mean{end}", f"se{end}")
    scale(axes, axis.paper, *limits)


def mark_size(axis: CheckpointAxis, most: float) -> float:
    """Points of a mark: smaller on a paper's column, and where checkpoints stand close."""
    gaps = np.diff(axis.at)
    pitch = axis.pitch * (float(np.median(gaps)) if len(gaps) else 1.0)
    return float(np.clip(0.55 * 72 * pitch, 1.5, most * axis.paper.factor))


def _band(axes: Axes, x: Array, y: Array, sd: Array, colour: str) -> None:
    """Shaded +/- 1 sd; a checkpoint without neighbours gets a short stretch of it."""
    look: dict[str, Any] = {"color": colour, "alpha": 0.13, "linewidth": 0, "zorder": 1}
    axes.fill_between(x, y - sd, y + sd, **look)
    known = np.pad(np.isfinite(y) & np.isfinite(sd), 1)
    half = 0.18 if len(y) > 2 else 0.07
    for i in np.flatnonzero(known[1:-1] & ~known[:-2] & ~known[2:]):
        axes.fill_between([x[i] - half, x[i] + half], y[i] - sd[i], y[i] + sd[i], **look)


def draw_errors(
    axes: Axes, x: Array, y: Array, se: Array, colour: str, pitch: float, width: float = 1.3
) -> None:
    """Bars of +/- `se` where it is known; caps are shorter where marks stand closer than `pitch` inches."""
    known = np.isfinite(y) & np.isfinite(se)
    if known.any():
        axes.errorbar(
            x[known], y[known], yerr=se[known], fmt="none", ecolor=colour, elinewidth=width,
            capsize=min(3.2, 9 * pitch), capthick=width, zorder=3.5,
        )  # fmt: skip


def _matched(
    axes: Axes, axis: CheckpointAxis, own: Array, matched: pd.DataFrame, look: Look, mean: str, se: str
) -> None:
    """Dotted line of the matched window, leaving the own line at the last checkpoint where the two are one."""
    x, y, error = np.array(axis.at), heights(axis.view, matched, mean), heights(axis.view, matched, se)
    known, size = np.isfinite(y), mark_size(axis, 5.5)
    beside = np.pad(known, 1)
    line = np.where(~known & (beside[:-2] | beside[2:]), own, y)
    axes.plot(x, line, color=look.colour, linestyle=":", linewidth=1.8 * axis.paper.factor, zorder=3)
    draw_errors(axes, x, y, error, look.colour, axis.pitch, 1.0)
    axes.plot(
        x[known], y[known], linestyle="none", marker=look.marker, markersize=size, markerfacecolor=PAPER,
        markeredgecolor=look.colour, markeredgewidth=min(1.4, 0.3 * size), zorder=3.8, label=look.name,
    )  # fmt: skip


def correlation_scale(axes: Axes, paper: Paper, low: float, high: float) -> None:
    """A vertical axis for correlations: from 0, or lower if need be, to 1 and a little more."""
    wide = 0.2 if high - min(low, 0) > 0.6 else 0.1
    bottom = -0.03 if low >= -0.03 else max(-1.05, low - 0.03)
    top = min(1.05, max(0.2, wide * np.ceil((high + 0.02) / wide)))
    _scale(axes, paper, bottom, top + 0.02, 11)


def share_scale(axes: Axes, paper: Paper, low: float, high: float) -> None:
    """A vertical axis for shares, from 0 to just above the highest one; `low` is at least 0."""
    _scale(axes, paper, 0.0, min(1.02, max(0.05, high * 1.08)), 7)


def number_scale(axes: Axes, paper: Paper, low: float, high: float) -> None:
    """A vertical axis for numbers of any size, 0 included."""
    low, high = min(0.0, low), max(0.0, high)
    room = 0.06 * (high - low or 1.0)
    _scale(axes, paper, low - room, high + room, 6)


def _scale(axes: Axes, paper: Paper, low: float, high: float, most: int) -> None:
    """From `low` to `high`, with at most `most` round numbers that do not crowd, and a line at 0 inside."""
    axes.set_ylim(low, high)
    room = int(inches(axes)[1] / (paper.points(9.5) / 72 * 1.9))
    ticks = MaxNLocator(max(2, min(most, room)), steps=[1, 2, 5, 10]).tick_values(low, high)
    ticks = [tick for tick in ticks if low <= tick <= high]
    scale(axes, "y", ticks, paper, grid=True)
    if low < 0:
        axes.axhline(0, color="#777777", linewidth=0.9, zorder=1)


def read_limits(data: pd.DataFrame, pairs: Sequence[tuple[str, str]]) -> tuple[float, float]:
    """Lowest and highest of value -/+ spread over the (value, spread) columns; 0 where nothing is known."""
    values, spreads = (data[list(names)].to_numpy(np.float64) for names in zip(*pairs, strict=True))
    ends = np.stack([values - np.nan_to_num(spreads), values + np.nan_to_num(spreads)])
    known = ends[np.isfinite(ends)]
    return (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
