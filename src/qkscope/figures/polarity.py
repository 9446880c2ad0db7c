"""Whether keys follow position with queries or against them, and what a mean r_k near zero may hide."""

from __future__ import annotations

import pandas as pd

from qkscope.aggregate import polarity_shares, position_signal
from qkscope.figures import ledger
from qkscope.figures.axis import CheckpointAxis
from qkscope.figures.bars import Kinds, count_rows, draw_shares, share_keys
from qkscope.figures.course import mean_of, polarity_share
from qkscope.figures.lines import Look, correlation_scale, draw_quantity, read_limits, value_rows
from qkscope.figures.prose import Words, certainty, figure, joined, md, story
from qkscope.figures.style import POLARITY_COLOURS, R_K, name_axis, sheet
from qkscope.figures.view import OWN, Drawing, View, look
from qkscope.results import Results
from qkscope.taxonomy import POLARITIES

NAME = "02_polarity"
KINDS = Kinds("polarity", POLARITIES, POLARITY_COLOURS)
SIGNED = Look("mean r_k", R_K, "s")
SIZE = Look("mean |r_k|", "#7f1d1d", "^", dashes=(0, (5, 1.5)))


def draw(results: Results) -> Drawing:
    """Above: mean r_k beside mean |r_k|. Below: shares of concordant, neutral and discordant heads."""
    view = look(results)
    means = view.both_windows(position_signal)
    shares = view.both_windows(
        lambda heads, loo, order: polarity_shares(heads, loo, order, results.thresholds)
    )
    data = _merge(means, shares)
    rows = [*value_rows(view, data, {SIGNED: "mean_r_k", SIZE: "mean_abs_r_k"}), *count_rows(shares, KINDS)]
    axis = CheckpointAxis(view, left=ledger.room(rows))
    upper, lower, gap, table = 2.6, 2.3, 0.25, ledger.height(rows)
    body = axis.above + upper + gap + lower + axis.below + table
    page = sheet(title(view), view.subtitle, axis.sheet_width, body, share_keys(view, shares, KINDS))
    axes = page.axes(axis.left, axis.above, axis.width, upper)
    axis.draw(axes, names=False)
    axis.mark_missing(axes)
    draw_quantity(axes, view, data, SIGNED, "mean_r_k", "se_r_k")
    draw_quantity(axes, view, data, SIZE, "mean_abs_r_k", "se_abs_r_k")
    low, high = read_limits(data, [("mean_r_k", "se_r_k"), ("mean_abs_r_k", "se_abs_r_k")])
    correlation_scale(axes, low, high)
    name_axis(axes, y="r_k on PC0")
    bars = page.axes(axis.left, axis.above + upper + gap, axis.width, lower)
    axis.draw(bars, phases=False)
    draw_shares(bars, view, shares, KINDS, axis.pitch)
    below = page.axes(axis.left, axis.above + upper + gap + lower + axis.below, axis.width, table)
    ledger.draw_ledger(below, rows, axis)
    return Drawing(page.figure, data)


def title(view: View) -> str:
    return "Do keys follow position with queries or against them?"


def _merge(means: pd.DataFrame, shares: pd.DataFrame) -> pd.DataFrame:
    """A row per checkpoint and window: the means, then heads, share and error of each polarity."""
    data = means[["model", "label", "window", "tokens", "mean_r_k", "se_r_k", "mean_abs_r_k", "se_abs_r_k"]]
    for kind in dict.fromkeys(shares["polarity"]):
        part = shares[shares["polarity"] == kind][["model", "window", "heads", "share", "se"]]
        names = {"heads": f"heads_{kind}", "share": f"share_{kind}", "se": f"se_share_{kind}"}
        data = data.merge(part.rename(columns=names), on=["model", "window"], how="left", validate="1:1")
    return data


def describe(view: View, data: pd.DataFrame) -> Words:
    """In words: both means, the shares of either direction, and whether the mean hides two opposite groups."""
    low = view.results.thresholds.low
    means = [story(view, "mean r_k", mean_of("r_k")), story(view, "mean |r_k|", mean_of("abs_r_k"))]
    kinds = [
        story(view, f"the share of {k} heads", polarity_share(view, k), percent=True) for k in POLARITIES
    ]
    told = [each for each in (*means, *kinds) if each]
    return Words(
        shows="Above: mean r_k (red squares) and mean |r_k| (dark triangles); where they part, heads of opposite sign "
        "cancel in the mean. Below: the share of heads whose keys follow position with the queries (concordant, "
        f"r_k > {low:g}), against them (discordant, r_k < -{low:g}) or neither (neutral).",
        says=(*(each.text for each in told), _hidden(data)),
        made="Mean of r_k and of |r_k| over the measured heads; heads counted by the sign of r_k after the axis is "
        "turned so that r_q is not negative.",
        takeaway=joined(_hidden(data), *(each.short for each in kinds[:1] + kinds[2:] if each)),
        certainty=certainty(told[0].own if told else None),
    )


def _hidden(data: pd.DataFrame) -> str:
    """What the mean of r_k does not show, at the last checkpoint."""
    last = data[data["window"] == OWN].iloc[-1]
    gap = last["mean_abs_r_k"] - last["mean_r_k"]
    means = f"mean r_k is {figure(last['mean_r_k'])} and mean |r_k| {figure(last['mean_abs_r_k'])}"
    where = f"At {md(last['label'])} {means}"
    against = (
        f"{int(last['heads_discordant'])} heads ({figure(last['share_discordant'], True)}) are discordant"
    )
    if gap < 0.05:
        return f"{where}: hardly any heads cancel in the mean ({against})."
    return f"{where}: heads of opposite sign cancel in the mean ({against})."
