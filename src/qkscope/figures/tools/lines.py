"""A quantity over the checkpoints: its line and marks, the band across heads, the bars of uncertainty.

Across a change of window the value over the matched window is drawn beside the own one: dotted, with hollow marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from qkscope.figures.tools.axis import CheckpointAxis
from qkscope.figures.tools.ledger import Row
from qkscope.figures.tools.sheet import Key, Paper, inches, scale
from qkscope.figures.tools.style import PAPER, pale
from qkscope.figures.view import MATCHED, OWN, View
from qkscope.words import bare

Array = np.ndarray[Any, np.dtype[Any]]


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

    def sample(self) -> Line2D:
        """A piece of the line, for the table or legend that names it."""
        return self._line(self.colour, 6, self.face, self.dashes)

    def matched_sample(self) -> Line2D:
        return self._line(pale(self.colour), 5, PAPER, ":")

    def _line(self, colour: str, size: float, face: str, dashes: Any) -> Line2D:
        return Line2D(
            [], [], color=colour, linestyle=dashes, linewidth=1.8, marker=self.marker, markersize=size,
            markerfacecolor=face, markeredgecolor=colour, markeredgewidth=1.3,
        )  # fmt: skip


def band_key(colour: str) -> Key:
    return Key(Patch(facecolor=colour, alpha=0.16, linewidth=0), "±1 standard deviation across heads")


def error_key(text: str = "±1 standard error over documents (where larger than the mark)") -> Key:
    """A bar as errorbar draws it."""
    line = Line2D([], [], color="#444444", linestyle="none", marker="|", markersize=9, markeredgewidth=1.3)
    return Key(line, text)


def heights(view: View, table: pd.DataFrame, column: str) -> Array:
    """A column by place on the axis; NaN where there is no such checkpoint."""
    found = np.full(len(view.stops), np.nan)
    found[[view.place[model] for model in table["model"]]] = table[column].to_numpy(np.float64)
    return found


def draw_quantity(
    axes: Axes, axis: CheckpointAxis, data: pd.DataFrame, look: Look, mean: str, se: str, sd: str = ""
) -> None:
    """`data` has rows of own and matched windows; `mean`, `se` and `sd` name its columns."""
    view, own = axis.view, data[data["window"] == OWN]
    x, y = np.arange(len(view.stops)), heights(view, own, mean)
    if sd:
        _band(axes, y, heights(view, own, sd), look.colour)
    draw_errors(axes, x, y, heights(view, own, se), look.colour, axis.pitch)
    _matched(axes, axis, y, data[data["window"] == MATCHED], look, mean, se)
    size = mark_size(axis, 7.0)
    axes.plot(
        x, y, color=look.colour, linestyle=look.dashes, linewidth=min(2.2, 0.6 + 0.3 * size), marker=look.marker,
        label=look.name, markersize=size, markerfacecolor=look.face, markeredgecolor=look.colour,
        markeredgewidth=min(1.5 if look.hollow else 0.8, 0.3 * size), zorder=4, solid_capstyle="round",
    )  # fmt: skip


def mark_size(axis: CheckpointAxis, most: float) -> float:
    """Points of a mark: smaller on a paper's column, and where checkpoints stand close."""
    return float(np.clip(0.55 * 72 * axis.pitch, 1.5, most * axis.paper.factor))


def _band(axes: Axes, y: Array, sd: Array, colour: str) -> None:
    """Shaded +/- 1 sd over each run of neighbours; a lone checkpoint gets a short stretch of it."""
    finite = np.flatnonzero(np.isfinite(y) & np.isfinite(sd))
    for run in np.split(finite, np.flatnonzero(np.diff(finite) > 1) + 1):
        if len(run) == 0:
            continue
        x, low, high = run.astype(float), y[run] - sd[run], y[run] + sd[run]
        if len(run) == 1:
            half = 0.18 if len(y) > 2 else 0.07
            x, low, high = np.array([x[0] - half, x[0] + half]), low.repeat(2), high.repeat(2)
        axes.fill_between(x, low, high, color=colour, alpha=0.13, linewidth=0, zorder=1)


def draw_errors(
    axes: Axes, x: Array, y: Array, se: Array, colour: str, pitch: float, width: float = 1.3
) -> None:
    """Bars of +/- `se` where it is known; their caps get shorter where marks stand closer than `pitch` inches."""
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
    y, error = heights(axis.view, matched, mean), heights(axis.view, matched, se)
    colour, size = pale(look.colour), mark_size(axis, 5.5)
    known = np.flatnonzero(np.isfinite(y))
    line = y.copy()
    for i in known:
        for neighbour in (i - 1, i + 1):
            if 0 <= neighbour < len(line) and not np.isfinite(y[neighbour]):
                line[neighbour] = own[neighbour]
    wide = 1.8 * axis.paper.factor
    axes.plot(np.arange(len(line)), line, color=colour, linestyle=":", linewidth=wide, zorder=3)
    draw_errors(axes, known, y[known], error[known], colour, axis.pitch, 1.0)
    axes.plot(
        known, y[known], linestyle="none", marker=look.marker, markersize=size, markerfacecolor=PAPER,
        markeredgecolor=colour, markeredgewidth=min(1.4, 0.3 * size), zorder=3.8,
        label=f"{look.name}, {axis.view.matched_text}",
    )  # fmt: skip


def value_rows(view: View, data: pd.DataFrame, looks: Mapping[Look, str], digits: int = 2) -> list[Row]:
    """Lines of the table below: each quantity's column over own windows, then over the matched one."""
    rows = []
    for window in (OWN, MATCHED):
        part = data[data["window"] == window]
        for look, column in looks.items():
            known = part[part[column].notna()]
            texts = {m: bare(v, digits) for m, v in zip(known["model"], known[column], strict=True)}
            if window == OWN:
                rows.append(Row(look.name, texts, look.colour, look.sample()))
            elif texts:
                name = f"{look.name.partition(' (')[0]}, {view.matched_text}"
                rows.append(Row(name, texts, look.colour, look.matched_sample()))
    return rows


def _steps(axes: Axes, paper: Paper, span: float, sizes: tuple[float, ...]) -> float:
    """The smallest round step at which the numbers of a vertical axis do not crowd."""
    most = inches(axes)[1] / (paper.points(9.5) / 72 * 1.9)
    return next((step for step in sizes if span / step <= most), sizes[-1])


def correlation_scale(axes: Axes, paper: Paper, low: float, high: float) -> None:
    """A vertical axis for correlations: from 0, or lower if need be, to 1 and a little more."""
    wide = 2 if high - min(low, 0) > 0.6 else 1
    bottom = -0.03 if low >= -0.03 else max(-1.05, wide * np.floor((low - 0.02) * 10 / wide) / 10)
    top = min(1.05, max(0.2, wide * np.ceil((high + 0.02) * 10 / wide) / 10))
    axes.set_ylim(bottom, top + 0.02)
    step = max(wide, round(10 * _steps(axes, paper, top - bottom, (0.1, 0.2, 0.5, 1.0))))
    ticks = [tick / 10 for tick in range(-10, 11, step) if bottom - 1e-9 <= tick / 10 <= top + 0.02]
    scale(axes, "y", ticks, [bare(tick, 1) for tick in ticks], paper, grid=True)
    if bottom < -0.03:
        axes.axhline(0, color="#777777", linewidth=0.9, zorder=1)


def share_scale(axes: Axes, paper: Paper, high: float) -> None:
    """A vertical axis from 0 to just above the highest share, in round steps."""
    top = min(1.0, max(0.05, high * 1.05))
    sizes = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    step = _steps(axes, paper, top, tuple(size for size in sizes if top / size <= 6.5))
    top = float(np.ceil(top / step - 1e-9) * step)
    axes.set_ylim(0, top * 1.02)
    ticks = [float(tick) for tick in np.arange(0, top + step / 2, step)]
    scale(axes, "y", ticks, [bare(tick, 2 if step < 0.1 else 1) for tick in ticks], paper, grid=True)


def read_limits(data: pd.DataFrame, pairs: list[tuple[str, str]]) -> tuple[float, float]:
    """Lowest and highest of value -/+ spread over the (value, spread) columns."""
    lows, highs = [], []
    for value, spread in pairs:
        around = data[spread].fillna(0).to_numpy(np.float64)
        values = data[value].to_numpy(np.float64)
        lows.append(np.nanmin(values - around, initial=1.0))
        highs.append(np.nanmax(values + around, initial=-1.0))
    return float(min(lows)), float(max(highs))
