"""What pictures of measures that a study asks for have in common."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from qkscope.anatomy_means import asked_for, head_means
from qkscope.figures.tools.sheet import Paper, scale
from qkscope.figures.view import View


def why_not(view: View, measure: str) -> str | None:
    """Why a measure over the checkpoints is not drawn, if so."""
    table = view.results.optional.get(measure)
    if table is None or not set(view.order) <= set(table["model"]):
        return f"the results have no {measure}.csv: add {measure} to the study's measures and run it again"
    return view.why_no_course


def over_checkpoints(view: View, measure: str, names: Sequence[str]) -> pd.DataFrame:
    """Means over heads of the measure's columns `names`, over own windows and over the matched one."""
    results, again = view.results, None
    if view.rematched and f"{measure}_matched" in results.optional:
        again = head_means(asked_for(results, measure, view.rematched, matched=True), names)
    return view.windows(head_means(asked_for(results, measure, view.order), names), again)


def number_scale(axes: Axes, paper: Paper, data: pd.DataFrame, pairs: list[tuple[str, str]]) -> None:
    """A vertical axis for numbers of any size, nought included."""
    low = min(0.0, *(float((data[value] - data[spread].fillna(0)).min()) for value, spread in pairs))
    high = max(0.0, *(float((data[value] + data[spread].fillna(0)).max()) for value, spread in pairs))
    room = 0.06 * (high - low or 1.0)
    axes.set_ylim(low - room, high + room)
    ticks = [t for t in MaxNLocator(5).tick_values(low, high) if low - room <= t <= high + room]
    scale(axes, "y", ticks, [f"{t:g}".replace("-", "−") for t in ticks], paper, grid=True)
    axes.axhline(0, color="#777777", linewidth=0.9, zorder=1)
