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
from matplotlib.colors import to_rgb
from matplotlib.container import ErrorbarContainer
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from qkscope.figures.ledger import Row
from qkscope.figures.style import PAPER, Key, number, scale
from qkscope.figures.view import MATCHED, OWN, View

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
        """A piece of the line, for the table that names it."""
        return self._line(self.colour, 6.5, self.face, self.dashes)

    def matched_sample(self) -> Line2D:
        return self._line(pale(self.colour), 5, PAPER, ":")

    def _line(self, colour: str, size: float, face: str, dashes: Any) -> Line2D:
        return Line2D(
            [], [], color=colour, linestyle=dashes, linewidth=2, marker=self.marker, markersize=size,
            markerfacecolor=face, markeredgecolor=colour, markeredgewidth=1.4,
        )  # fmt: skip


def pale(colour: str, share: float = 0.45) -> str:
    """A colour mixed with white: the matched window's."""
    mixed = [round(255 * (part + (1 - part) * share)) for part in to_rgb(colour)]
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def band_key(colour: str) -> Key:
    return Key(Patch(facecolor=colour, alpha=0.16, linewidth=0), "±1 standard deviation across heads")


def error_key() -> Key:
    """A bar as errorbar draws it."""
    line = Line2D([], [], color="#444444", linestyle="none", marker="|", markersize=11, markeredgewidth=1.3)
    return Key(line, "±1 standard error over documents (where larger than the mark)")


def heights(view: View, table: pd.DataFrame, column: str) -> Array:
    """A column by place on the axis; NaN where there is no such checkpoint."""
    found = np.full(len(view.stops), np.nan)
    found[[view.place[model] for model in table["model"]]] = table[column].to_numpy(np.float64)
    return found


def draw_quantity(
    axes: Axes, view: View, data: pd.DataFrame, look: Look, mean: str, se: str, sd: str = ""
) -> None:
    """`data` has rows of own and matched windows; `mean`, `se` and `sd` name its columns."""
    own = data[data["window"] == OWN]
    x = np.arange(len(view.stops))
    y = heights(view, own, mean)
    if sd:
        _band(axes, y, heights(view, own, sd), look.colour)
    _errors(axes, x, y, heights(view, own, se), look.colour)
    _matched(axes, view, y, data[data["window"] == MATCHED], look, mean, se)
    dense = len(x) > 20
    axes.plot(
        x, y, color=look.colour, linestyle=look.dashes, linewidth=2.2, marker=look.marker, label=look.name,
        markersize=5 if dense else 7, markerfacecolor=look.face, markeredgecolor=look.colour,
        markeredgewidth=1.5 if look.hollow else 0.8, zorder=4, solid_capstyle="round",
    )  # fmt: skip


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


def _errors(
    axes: Axes, x: Array, y: Array, se: Array, colour: str, width: float = 1.3
) -> ErrorbarContainer | None:
    known = np.isfinite(y) & np.isfinite(se)
    if not known.any():
        return None
    return axes.errorbar(
        x[known], y[known], yerr=se[known], fmt="none", ecolor=colour, elinewidth=width, capsize=3.2,
        capthick=width, zorder=3.5,
    )  # fmt: skip


def _matched(
    axes: Axes, view: View, own: Array, matched: pd.DataFrame, look: Look, mean: str, se: str
) -> None:
    """Dotted line of the matched window, leaving the own line at the last checkpoint where the two are one."""
    if matched.empty:
        return
    y, error = heights(view, matched, mean), heights(view, matched, se)
    colour = pale(look.colour)
    known = np.flatnonzero(np.isfinite(y))
    line = y.copy()
    for i in known:
        for neighbour in (i - 1, i + 1):
            if 0 <= neighbour < len(line) and not np.isfinite(y[neighbour]):
                line[neighbour] = own[neighbour]
    axes.plot(np.arange(len(line)), line, color=colour, linestyle=":", linewidth=1.8, zorder=3)
    _errors(axes, known, y[known], error[known], colour, 1.0)
    axes.plot(
        known, y[known], linestyle="none", marker=look.marker, markersize=5.5, markerfacecolor=PAPER,
        markeredgecolor=colour, markeredgewidth=1.4, zorder=3.8, label=f"{look.name}, {view.matched_text}",
    )  # fmt: skip


def value_rows(view: View, data: pd.DataFrame, looks: Mapping[Look, str], digits: int = 2) -> list[Row]:
    """Lines of the table below: each quantity's column over own windows, then over the matched one."""
    rows = []
    for window in (OWN, MATCHED):
        part = data[data["window"] == window]
        for look, column in looks.items():
            known = part[part[column].notna()]
            texts = {m: number(v, digits) for m, v in zip(known["model"], known[column], strict=True)}
            if window == OWN:
                rows.append(Row(look.name, texts, look.colour, look.sample()))
            elif texts:
                name = f"{look.name.partition(' (')[0]}, {view.matched_text}"
                rows.append(Row(name, texts, look.colour, look.matched_sample()))
    return rows


def correlation_scale(axes: Axes, low: float, high: float) -> None:
    """A vertical axis for correlations: from 0, or lower if need be, to 1 and a little more."""
    step = 2 if high - min(low, 0) > 0.6 else 1
    bottom = -0.03 if low >= -0.03 else max(-1.05, step * np.floor((low - 0.02) * 10 / step) / 10)
    top = min(1.05, max(0.2, step * np.ceil((high + 0.02) * 10 / step) / 10))
    axes.set_ylim(bottom, top + 0.02)
    ticks = [tick / 10 for tick in range(-10, 11, step) if bottom - 1e-9 <= tick / 10 <= top + 0.02]
    scale(axes, "y", ticks, [number(tick, 1) for tick in ticks], grid=True)
    if bottom < -0.03:
        axes.axhline(0, color="#777777", linewidth=0.9, zorder=1)


def read_limits(data: pd.DataFrame, pairs: list[tuple[str, str]]) -> tuple[float, float]:
    """Lowest and highest of value -/+ spread over the (value, spread) columns."""
    lows, highs = [], []
    for value, spread in pairs:
        around = data[spread].fillna(0).to_numpy(np.float64)
        values = data[value].to_numpy(np.float64)
        lows.append(np.nanmin(values - around, initial=1.0))
        highs.append(np.nanmax(values + around, initial=-1.0))
    return float(min(lows)), float(max(highs))
