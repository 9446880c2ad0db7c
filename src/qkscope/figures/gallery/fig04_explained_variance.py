"""Figure 04: how much of a head's variance PC0 holds, over the checkpoints."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from qkscope.figures.picture import Caption, Drawing, Picture, heads_of, path
from qkscope.figures.tools import marks
from qkscope.figures.tools.axis import CheckpointAxis, Panel, draw_stack
from qkscope.figures.tools.style import VARIANCE
from qkscope.figures.view import ALL, View
from qkscope.results.aggregate import explained_variance

SHARE = marks.Look("mean explained variance", VARIANCE, "o")
BY_POPULATION = {
    "RoPE": marks.Look("RoPE heads", VARIANCE, "o"),
    "NoPE": marks.Look("NoPE heads", VARIANCE, "o", hollow=True, dashes=(0, (3, 1.5))),
}


def why_not(view: View) -> str | None:
    if not view.results.own()["explained_variance"].notnull().any():
        return "the results have no explained_variance"
    return view.why_no_course


def draw(view: View, width: float | None = None) -> Drawing:
    """Purple circles: the mean; shaded: +/- 1 standard deviation across heads."""
    data = view.with_populations(explained_variance)
    whole, apart = data[data["population"] == ALL], data[data["population"] != ALL]
    top = max(marks.read_limits(whole, [("mean", "sd")])[1], marks.read_limits(apart, [("mean", "se")])[1])

    def all_heads(axes: Axes, axis: CheckpointAxis) -> None:
        marks.draw_quantity(axes, axis, whole, SHARE, "mean", "se", "sd")
        marks.share_scale(axes, axis.paper, top)

    def populations(axes: Axes, axis: CheckpointAxis) -> None:
        for name, look in BY_POPULATION.items():
            marks.draw_line(axes, axis, apart[apart["population"] == name], look, "mean", "se")
        marks.share_scale(axes, axis.paper, top)

    keys = [SHARE.key, marks.band_key(VARIANCE)]
    keys += [marks.error_key()] if data["se"].notna().any() else []
    keys += [SHARE.matched_key(f"{SHARE.name}, {view.matched_text}")] if view.rematched else []
    panels = [Panel("explained variance, PC0", 3.2, all_heads, "All heads" if len(apart) else "")]
    if len(apart):
        keys += [look.key for look in BY_POPULATION.values()]
        heading = f"RoPE and NoPE heads{view.over_matched}"
        panels.append(Panel("explained variance", 2.4, populations, heading))
    caption = _caption(view, data)
    return Drawing(draw_stack(view, caption.title, panels, keys, width, spaced=True), data, caption)


def _caption(view: View, data: pd.DataFrame) -> Caption:
    return Caption(
        title=f"Explained variance of PC0{view.over_training}",
        shows="The share of the variance of a head's queries and keys that lies along PC0, their first shared axis: "
        "the mean over all heads, with a band of ±1 standard deviation across heads."
        + view.window_sentence
        + (f" The lower panel has RoPE and NoPE heads apart{view.over_matched}." if view.populations else ""),
        made=f"for each {view.noun}, mean and standard deviation of explained_variance over the heads.",
        drawn="line plot with a band" + ("; both panels have the same scale." if view.populations else "."),
        variables=("explained_variance",),
        events=_events(view, data),
        takeaway="A large share means that queries and keys differ mostly along one direction, so that correlations on "
        "PC0 describe most of what these vectors do; with a small share, position may be carried by other axes that "
        "this figure and r_q do not see. The share depends on how queries and keys are scaled, which attention scores "
        "do not: compare it within one model.",
        care="The upper panel pools RoPE and NoPE heads, as the published figure does."
        if view.populations
        else "",
    )


def _events(view: View, data: pd.DataFrame) -> tuple[tuple[str, str], ...]:
    """The path of each population."""
    found = []
    for name in view.populations or (ALL,):
        rows = data[data["population"] == name]
        known = rows[rows["mean"].notna() & ((rows["window"] == "own") | (name != ALL))]
        if known.empty:
            continue
        last = known.iloc[-1]
        at = f" at {last['label']}" if len(known) > 1 else ""
        headline = f"{heads_of(name)}: PC0's mean share of the variance is {path(known, 'mean', 'se')}"
        found.append((headline, f"The standard deviation across heads{at} is {last['sd']:.2f}."))
    return tuple(found)


PICTURE = Picture("04_explained_variance", (), draw, why_not)
