"""Figure 03: the five classes of heads over the checkpoints, as stacked bars; of all heads and of each population."""

from __future__ import annotations

from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools import marks
from qkscope.figures.tools.axis import CheckpointAxis, Panel, draw_stack
from qkscope.figures.tools.style import CLASS_COLOURS
from qkscope.figures.view import ALL, View
from qkscope.results.aggregate import class_shares
from qkscope.results.taxonomy import CLASSES, UNMEASURED

KINDS = marks.Kinds("class", CLASSES, CLASS_COLOURS)


def draw(view: View, width: float | None = None) -> Drawing:
    """Fractions of the measured heads from 0 to 1."""
    data = view.with_populations(partial(class_shares, limits=view.results.thresholds))

    def bars(rows: pd.DataFrame, axes: Axes, axis: CheckpointAxis) -> None:
        marks.draw_shares(axes, axis, rows, KINDS)

    headings = {ALL: "All heads" if view.populations else ""}
    headings |= {name: view.population_text(name) for name in view.populations}
    panels = [
        Panel(
            "share of heads",
            3.6 if name == ALL else 1.9,
            partial(bars, data[data["population"] == name]),
            heading,
        )
        for name, heading in headings.items()
    ]
    keys = [*KINDS.keys, *marks.thin_key(view, KINDS)]
    if data["se"].notna().any():
        keys.append(marks.error_key(f"±1 standard error over documents, {CLASSES[0]}"))
    caption = _caption(view, data)
    return Drawing(draw_stack(view, caption.title, panels, keys, width), data, caption)


def _caption(view: View, data: pd.DataFrame) -> Caption:
    low, high = view.results.thresholds.low, view.results.thresholds.high
    unmeasured = int(data.loc[(data["class"] == UNMEASURED) & (data["population"] == ALL), "heads"].sum())
    return Caption(
        title="Head taxonomy" + (" by model" if view.of_models else view.over_training),
        shows=f"Stacked bars are the share of heads of each class, from 0 to 1, one bar per {view.noun}."
        + (
            " Vertical dashed lines separate training phases."
            if len(view.phases) > 1 and not view.of_models
            else ""
        )
        + (f" Thin bars are the same heads over the {view.matched_text}." if view.rematched else "")
        + (
            f" The lower panels count RoPE and NoPE heads apart{view.over_matched}."
            if view.populations
            else ""
        ),
        made=f"each head is classified by r_q and |r_k| on PC0. Position-dominated: both above {high:g}. Q-positional: "
        f"r_q above {high:g}, |r_k| below {low:g}. K-positional: r_q below {low:g}, |r_k| above {high:g}. "
        f"Content-focused: both below {low:g}. Mixed: all others. Counts are divided by the number of measured heads"
        + (f"; {unmeasured} measurements that are not finite are left out." if unmeasured else "."),
        drawn="stacked bar chart: position-dominated blue, Q-positional indigo, K-positional pink, content-focused "
        "green, mixed gray.",
        variables=("r_q", "r_k"),
        care="The upper panel pools RoPE and NoPE heads, as the published figure does."
        if view.populations
        else "",
    )


PICTURE = Picture("03_taxonomy_evolution", ("classes",), draw)
