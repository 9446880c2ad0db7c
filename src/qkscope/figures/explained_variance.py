"""How much of a head's variance PC0 holds, over the checkpoints."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from qkscope.aggregate import explained_variance
from qkscope.figures import ledger
from qkscope.figures.axis import CheckpointAxis
from qkscope.figures.course import mean_of
from qkscope.figures.lines import Look, band_key, draw_quantity, error_key, read_limits, value_rows
from qkscope.figures.prose import Words, certainty, story
from qkscope.figures.style import VARIANCE, Key, name_axis, number, scale, sheet
from qkscope.figures.view import Drawing, View, look
from qkscope.results import Results

NAME = "04_explained_variance"
SHARE = Look("mean explained variance", VARIANCE, "o")


def why_not(view: View) -> str | None:
    """Why there is nothing to draw, if so."""
    if not view.results.heads["explained_variance"].notna().any():
        return "the table has no explained_variance"
    return view.why_no_course


def draw(results: Results) -> Drawing:
    """Purple circles: the mean; shaded: +/- 1 standard deviation across heads."""
    view = look(results)
    data = view.both_windows(explained_variance)
    rows = value_rows(view, data, {SHARE: "mean"}, digits=3)
    axis = CheckpointAxis(view, left=ledger.room(rows))
    height, table = 3.8, ledger.height(rows)
    page = sheet(
        title(view), view.subtitle, axis.sheet_width, axis.above + height + axis.below + table, _keys(data)
    )
    axes = page.axes(axis.left, axis.above, axis.width, height)
    axis.draw(axes)
    axis.mark_missing(axes)
    draw_quantity(axes, view, data, SHARE, "mean", "se", "sd")
    variance_scale(axes, read_limits(data, [("mean", "sd")])[1])
    name_axis(axes, y="explained variance, PC0")
    below = page.axes(axis.left, axis.above + height + axis.below, axis.width, table)
    ledger.draw_ledger(below, rows, axis)
    return Drawing(page.figure, data)


def variance_scale(axes: Axes, high: float) -> None:
    """A vertical axis from 0 to just above the highest value, in round steps."""
    top = min(1.0, max(0.05, high * 1.05))
    step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2) if top / s <= 6.5 or s == 0.2)
    top = float(np.ceil(top / step - 1e-9) * step)
    axes.set_ylim(0, top * 1.02)
    ticks = [float(tick) for tick in np.arange(0, top + step / 2, step)]
    scale(axes, "y", ticks, [number(tick, 2 if step < 0.1 else 1) for tick in ticks], grid=True)


def title(view: View) -> str:
    return "Explained variance of PC0" + (" over training" if view.training else "")


def describe(view: View, data: pd.DataFrame) -> Words:
    """In words: the course of the mean."""
    told = story(view, "mean explained variance of PC0", mean_of("ev"))
    return Words(
        shows="How much of the variance of a head's queries and keys lies along its first shared axis, PC0: the mean "
        "over heads, with a band of ±1 standard deviation across heads"
        + (" and bars of ±1 standard error over documents." if data["se"].notna().any() else ".")
        + (f" Dotted with hollow marks: over the {view.matched_text}." if view.rematched else ""),
        says=(told.text if told else "",),
        made="For each checkpoint, the mean and the standard deviation of explained_variance over the heads.",
        takeaway=told.short if told else "",
        certainty=certainty(told.own if told else None),
    )


def _keys(data: pd.DataFrame) -> list[Key]:
    keys = [band_key(VARIANCE)]
    if data["se"].notna().any():
        keys.append(error_key())
    return keys
