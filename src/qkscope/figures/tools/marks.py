"""Lines with bands and error bars, stacked bars, and the vertical scales under them.

Where a checkpoint's own window is not the matched one, the value over the matched window is drawn beside the own one:
lines dotted with hollow marks, bars thin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from qkscope.figures.tools.axis import CheckpointAxis
from qkscope.figures.tools.sheet import Key, Paper, inches, scale
from qkscope.figures.tools.style import INK, LINE, PAPER, extent, ink_on, pale, write
from qkscope.figures.view import MATCHED, OWN, View
from qkscope.words import bare, percent

Array = np.ndarray[Any, np.dtype[Any]]
WIDTH, GAP, THIN = 0.58, 0.025, 0.13  # of bars, in checkpoints
CLOSE = 0.1  # inches between checkpoints below which bars touch


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
        return Key(self._sample(self.colour, 6, self.face, self.dashes), self.name, math=True)

    def matched_key(self, text: str) -> Key:
        """The entry of its line over the matched window."""
        return Key(self._sample(pale(self.colour), 5, PAPER, ":"), text, math=True)

    def _sample(self, colour: str, size: float, face: str, dashes: Any) -> Line2D:
        return Line2D(
            [], [], color=colour, linestyle=dashes, linewidth=1.8, marker=self.marker, markersize=size,
            markerfacecolor=face, markeredgecolor=colour, markeredgewidth=1.3,
        )  # fmt: skip


def band_key(colour: str = "#555555") -> Key:
    return Key(Patch(facecolor=colour, alpha=0.16, linewidth=0), "±1 standard deviation across heads")


def error_key(text: str = "±1 standard error over documents") -> Key:
    """A bar as errorbar draws it."""
    line = Line2D([], [], color="#444444", linestyle="none", marker="|", markersize=9, markeredgewidth=1.3)
    return Key(line, text)


def heights(view: View, table: pd.DataFrame, column: str) -> Array:
    """A column by checkpoint of the study; NaN where the table has no such checkpoint."""
    found = np.full(len(view.stops), np.nan)
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
    _matched(axes, axis, y, data[data["window"] == MATCHED], look, mean, se)


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


def mark_size(axis: CheckpointAxis, most: float) -> float:
    """Points of a mark: smaller on a paper's column, and where checkpoints stand close."""
    gaps = np.diff(axis.at)
    pitch = axis.pitch * (float(np.median(gaps)) if len(gaps) else 1.0)
    return float(np.clip(0.55 * 72 * pitch, 1.5, most * axis.paper.factor))


def _band(axes: Axes, x: Array, y: Array, sd: Array, colour: str) -> None:
    """Shaded +/- 1 sd over each run of neighbours; a lone checkpoint gets a short stretch of it."""
    finite = np.flatnonzero(np.isfinite(y) & np.isfinite(sd))
    for run in np.split(finite, np.flatnonzero(np.diff(finite) > 1) + 1):
        if len(run) == 0:
            continue
        place, low, high = x[run], y[run] - sd[run], y[run] + sd[run]
        if len(run) == 1:
            half = 0.18 if len(y) > 2 else 0.07
            place = np.array([place[0] - half, place[0] + half])
            low, high = low.repeat(2), high.repeat(2)
        axes.fill_between(place, low, high, color=colour, alpha=0.13, linewidth=0, zorder=1)


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
    if matched.empty:
        return
    x, y, error = np.array(axis.at), heights(axis.view, matched, mean), heights(axis.view, matched, se)
    colour, size = pale(look.colour), mark_size(axis, 5.5)
    known = np.flatnonzero(np.isfinite(y))
    line = y.copy()
    for i in known:
        for neighbour in (i - 1, i + 1):
            if 0 <= neighbour < len(line) and not np.isfinite(y[neighbour]):
                line[neighbour] = own[neighbour]
    axes.plot(x, line, color=colour, linestyle=":", linewidth=1.8 * axis.paper.factor, zorder=3)
    draw_errors(axes, x[known], y[known], error[known], colour, axis.pitch, 1.0)
    axes.plot(
        x[known], y[known], linestyle="none", marker=look.marker, markersize=size, markerfacecolor=PAPER,
        markeredgecolor=colour, markeredgewidth=min(1.4, 0.3 * size), zorder=3.8,
        label=f"{look.name}, {axis.view.matched_text}",
    )  # fmt: skip


@dataclass(frozen=True)
class Kinds:
    """What stacked bars consist of: the column that names the kinds, their order from below, their colours."""

    column: str
    order: Sequence[str]
    colours: Mapping[str, str]

    @property
    def keys(self) -> list[Key]:
        return [Key(Patch(facecolor=self.colours[kind]), kind) for kind in self.order]


def draw_shares(axes: Axes, axis: CheckpointAxis, data: pd.DataFrame, kinds: Kinds) -> None:
    """`data` has a row per checkpoint, window and kind, with `share` and `se`; thin bars where both windows are."""
    again = (data["window"] == MATCHED) & data["model"].isin(data.loc[data["window"] == OWN, "model"])
    own, matched, both = data[~again], data[again], bool(again.any())
    close = axis.pitch < CLOSE
    wide, thin = (0.7, 0.3) if close else (WIDTH, THIN)
    if close and not both:
        wide = 1.0
    if both:
        _stack(axes, axis, matched, kinds, thin, wide / 2 + thin / 2 + (0.0 if close else GAP))
    _write_shares(axes, axis, _stack(axes, axis, own, kinds, wide, 0.0), kinds)
    first = own[own[kinds.column] == kinds.order[0]]
    # Beside the percentages, which are in the middle of a bar.
    x, y = np.arange(len(axis.view.stops)) + 0.4 * wide, heights(axis.view, first, "share")
    draw_errors(axes, x, y, heights(axis.view, first, "se"), INK, axis.pitch, min(1.1, 18 * axis.pitch))
    axes.set_ylim(0, 1)
    step = 0.2 if inches(axes)[1] > 1.6 else 0.5
    ticks = [float(tick) for tick in np.arange(0, 1.01, step)]
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


def thin_key(view: View, kinds: Kinds) -> list[Key]:
    """What thin bars are, where there are some."""
    mark = Patch(facecolor=pale(kinds.colours[kinds.order[0]], 0.3))
    return [Key(mark, f"thin bar: {view.matched_text}")] if view.rematched else []


def _step(axes: Axes, paper: Paper, span: float, sizes: tuple[float, ...]) -> float:
    """The smallest round step at which the numbers of a vertical axis do not crowd."""
    most = inches(axes)[1] / (paper.points(9.5) / 72 * 1.9)
    return next((step for step in sizes if span / step <= most), sizes[-1])


def correlation_scale(axes: Axes, paper: Paper, low: float, high: float) -> None:
    """A vertical axis for correlations: from 0, or lower if need be, to 1 and a little more."""
    wide = 2 if high - min(low, 0) > 0.6 else 1
    bottom = -0.03 if low >= -0.03 else max(-1.05, wide * np.floor((low - 0.02) * 10 / wide) / 10)
    top = min(1.05, max(0.2, wide * np.ceil((high + 0.02) * 10 / wide) / 10))
    axes.set_ylim(bottom, top + 0.02)
    step = max(wide, round(10 * _step(axes, paper, top - bottom, (0.1, 0.2, 0.5, 1.0))))
    ticks = [tick / 10 for tick in range(-10, 11, step) if bottom - 1e-9 <= tick / 10 <= top + 0.02]
    scale(axes, "y", ticks, [bare(tick, 1) for tick in ticks], paper, grid=True)
    if bottom < -0.03:
        axes.axhline(0, color="#777777", linewidth=0.9, zorder=1)


def share_scale(axes: Axes, paper: Paper, high: float) -> None:
    """A vertical axis from 0 to just above the highest share, in round steps."""
    top = min(1.0, max(0.05, high * 1.05))
    sizes = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    step = _step(axes, paper, top, tuple(size for size in sizes if top / size <= 6.5))
    top = float(np.ceil(top / step - 1e-9) * step)
    axes.set_ylim(0, top * 1.02)
    ticks = [float(tick) for tick in np.arange(0, top + step / 2, step)]
    scale(axes, "y", ticks, [bare(tick, 2 if step < 0.1 else 1) for tick in ticks], paper, grid=True)


def number_scale(axes: Axes, paper: Paper, low: float, high: float) -> None:
    """A vertical axis for numbers of any size, 0 included."""
    low, high = min(0.0, low), max(0.0, high)
    room = 0.06 * (high - low or 1.0)
    axes.set_ylim(low - room, high + room)
    most = max(2, int(inches(axes)[1] / (paper.points(9.5) / 72 * 2.4)))
    ticks = [t for t in MaxNLocator(min(5, most)).tick_values(low, high) if low - room <= t <= high + room]
    scale(axes, "y", ticks, [f"{t:g}".replace("-", "−") for t in ticks], paper, grid=True)
    axes.axhline(0, color="#777777", linewidth=0.9, zorder=1)


def read_limits(data: pd.DataFrame, pairs: Sequence[tuple[str, str]]) -> tuple[float, float]:
    """Lowest and highest of value -/+ spread over the (value, spread) columns."""
    lows, highs = [np.nan], [np.nan]
    for value, spread in pairs:
        around = data[spread].fillna(0).to_numpy(np.float64)
        values = data[value].to_numpy(np.float64)
        known = np.isfinite(values)
        lows += (values - around)[known].tolist()
        highs += (values + around)[known].tolist()
    if len(lows) == 1:
        return 0.0, 0.0
    return float(np.nanmin(lows)), float(np.nanmax(highs))
