"""Mean r_q and r_k on PC0 over the checkpoints."""

from __future__ import annotations

import pandas as pd

from qkscope.aggregate import above_null, position_signal
from qkscope.figures import ledger
from qkscope.figures.axis import CheckpointAxis
from qkscope.figures.course import mean_of
from qkscope.figures.lines import (
    Look,
    band_key,
    correlation_scale,
    draw_quantity,
    error_key,
    read_limits,
    value_rows,
)
from qkscope.figures.prose import Words, certainty, joined, md, story
from qkscope.figures.style import R_K, R_Q, Key, name_axis, sheet
from qkscope.figures.view import OWN, Drawing, View, look
from qkscope.results import Results

NAME = "01_position_signal"
COLUMNS = ["mean_r_q", "sd_r_q", "se_r_q", "mean_r_k", "sd_r_k", "se_r_k"]
QUERY = Look("mean r_q (queries)", R_Q, "o")
KEY = Look("mean r_k (keys)", R_K, "s")


def draw(results: Results) -> Drawing:
    """Blue circles: r_q; red squares: r_k; shaded: +/- 1 standard deviation across heads."""
    view = look(results)
    data = view.both_windows(position_signal)
    data = data[["model", "label", "window", "tokens", "heads", *COLUMNS]]
    rows = value_rows(view, data, {QUERY: "mean_r_q", KEY: "mean_r_k"})
    axis = CheckpointAxis(view, left=ledger.room(rows))
    height, table = 4.2, ledger.height(rows)
    page = sheet(
        title(view), view.subtitle, axis.sheet_width, axis.above + height + axis.below + table, _keys(data)
    )
    axes = page.axes(axis.left, axis.above, axis.width, height)
    axis.draw(axes)
    axis.mark_missing(axes)
    draw_quantity(axes, view, data, QUERY, "mean_r_q", "se_r_q", "sd_r_q")
    draw_quantity(axes, view, data, KEY, "mean_r_k", "se_r_k", "sd_r_k")
    correlation_scale(axes, *read_limits(data, [("mean_r_q", "sd_r_q"), ("mean_r_k", "sd_r_k")]))
    name_axis(axes, y="correlation with position, PC0")
    below = page.axes(axis.left, axis.above + height + axis.below, axis.width, table)
    ledger.draw_ledger(below, rows, axis)
    return Drawing(page.figure, data)


def title(view: View) -> str:
    return "Position correlation on PC0" + (" over training" if view.training else "")


def describe(view: View, data: pd.DataFrame) -> Words:
    """In words: the course of both means, how they compare, and how many heads beat chance."""
    q, k = story(view, "mean r_q", mean_of("r_q")), story(view, "mean r_k", mean_of("r_k"))
    own = data[data["window"] == OWN]
    compare = _compare(own)
    told = [each for each in (q, k) if each]
    return Words(
        shows="Mean r_q (blue circles) and mean r_k (red squares) on PC0"
        + (", checkpoint after checkpoint in the order of training." if view.training else ".")
        + " The shaded bands are ±1 standard deviation across heads"
        + ("; bars are ±1 standard error over documents." if own["se_r_q"].notna().any() else ".")
        + (
            f" Dotted lines with hollow marks are the same over the {view.matched_text}."
            if view.rematched
            else ""
        ),
        says=(*(each.text for each in told), compare, _null(view)),
        made="For each checkpoint, the mean and the standard deviation of r_q and r_k over all measured heads.",
        takeaway=joined(*(each.short for each in told)),
        certainty=certainty(told[0].own if told else None),
    )


def _compare(own: pd.DataFrame) -> str:
    """Whether queries or keys follow position more closely."""
    ahead, count = int((own["mean_r_q"] > own["mean_r_k"]).sum()), len(own)
    if count == 1:
        more, less = ("Queries", "keys") if ahead else ("Keys", "queries")
        return f"{more} follow position more closely than {less} in the mean."
    where = {count: "at every checkpoint", 0: "at no checkpoint"}.get(
        ahead, f"at {ahead} of {count} checkpoints"
    )
    return f"Queries follow position more closely than keys {where} (mean r_q above mean r_k)."


def _null(view: View) -> str:
    """How many heads exceed what chance reaches."""
    table = above_null(view.results.heads, view.order)
    if table.empty or not table["heads"].iloc[-1]:
        return ""
    last = table.iloc[-1]
    where = f"At {md(view.labels[last['model']])}," if len(view.order) > 1 else "In this checkpoint"
    return (
        f"{where} {last['above_q']} of {last['heads']} heads follow position in q, and {last['above_k']} in k, more "
        "closely than chance reaches."
    )


def _keys(data: pd.DataFrame) -> list[Key]:
    keys = [band_key("#555555")]
    if data[["se_r_q", "se_r_k"]].notna().any(axis=None):
        keys.append(error_key())
    return keys
