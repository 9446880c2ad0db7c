"""Figure 03: the five classes of heads over the checkpoints, as stacked bars; of all heads and of each population."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from qkscope.figures.axis import CheckpointAxis, Panel, draw_stack
from qkscope.figures.marks import Array, draw_errors, error_key, heights
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.sheet import inches, scale, swatch
from qkscope.figures.style import CLASS_COLOURS, INK, LINE, PAPER, extent, ink_on, pale, write
from qkscope.figures.view import ALL, MATCHED, OWN, View
from qkscope.results.aggregate import class_shares
from qkscope.results.taxonomy import CLASSES, UNMEASURED
from qkscope.words import percent

WIDTH, GAP, THIN = 0.58, 0.025, 0.13  # of bars, in checkpoints
CLOSE = 0.1  # inches between checkpoints below which bars touch


def draw(view: View, width: float | None = None) -> Drawing:
    """Fractions of the measured heads from 0 to 1."""
    data = view.with_populations(partial(class_shares, limits=view.results.thresholds))
    headings = {ALL: f"All heads{view.over_own}" if view.populations else ""}
    headings |= {name: view.count_text(name) + view.over_matched for name in view.populations}
    panels = [
        Panel(
            "share of heads",
            3.6 if name == ALL else 1.9,
            partial(_bars, data[data["population"] == name]),
            heading,
        )
        for name, heading in headings.items()
    ]
    keys = [swatch(name, CLASS_COLOURS[name]) for name in CLASSES]
    if view.rematched:
        keys.append(swatch(f"thin bar: {view.matched_text}", pale(CLASS_COLOURS[CLASSES[0]], 0.3)))
    if data["se"].notna().any():
        keys.append(error_key(f"±1 standard error over documents, {CLASSES[0]}"))
    caption = _caption(view, data)
    return Drawing(draw_stack(view, caption.title, panels, keys, width), data, caption)


def _bars(data: pd.DataFrame, axes: Axes, axis: CheckpointAxis) -> None:
    """Bars over own windows; thin ones beside them over the matched window, where both are."""
    again = (data["window"] == MATCHED) & data["model"].isin(data.loc[data["window"] == OWN, "model"])
    own, close, both = data[~again], axis.pitch < CLOSE, bool(again.any())
    wide, thin, gap = (0.7, 0.3, 0.0) if close else (WIDTH, THIN, GAP)
    if close and not both:
        wide = 1.0
    if both:
        _stack(axes, axis, data[again], thin, wide / 2 + thin / 2 + gap)
    _stack(axes, axis, own, wide, 0.0)
    first = own[own["class"] == CLASSES[0]]
    # Beside the percentages, which are in the middle of a bar.
    x, y = np.arange(len(axis.view.checkpoints)) + 0.4 * wide, heights(axis.view, first, "share")
    draw_errors(axes, x, y, heights(axis.view, first, "se"), INK, axis.pitch, min(1.1, 18 * axis.pitch))
    axes.set_ylim(0, 1)
    ticks = np.linspace(0, 1, 6 if inches(axes)[1] > 1.6 else 3).tolist()
    scale(axes, "y", ticks, axis.paper)


def _stack(axes: Axes, axis: CheckpointAxis, data: pd.DataFrame, width: float, offset: float) -> None:
    """A layer per class, from 0 to 1; with percentages where bars stand at their checkpoint."""
    bottom = np.zeros(len(axis.view.checkpoints))
    for name in CLASSES:
        height = np.nan_to_num(heights(axis.view, data[data["class"] == name], "share"))
        colour = pale(CLASS_COLOURS[name], 0.3) if offset else CLASS_COLOURS[name]
        axes.bar(
            np.arange(len(height)) + offset, height, width, bottom, color=colour, edgecolor=PAPER, zorder=2,
            label=f"{name}, {axis.view.matched_text}" if offset else name,
            linewidth=0.0 if axis.pitch < CLOSE else 0.5,
        )  # fmt: skip
        if not offset:
            _write_shares(axes, axis, bottom, height, ink_on(colour))
        bottom += height


def _write_shares(axes: Axes, axis: CheckpointAxis, bottom: Array, height: Array, ink: str) -> None:
    """Percentages inside the bars that are high and wide enough for them."""
    size = axis.paper.points(9)
    if extent("88%", size)[0] > axis.pitch * WIDTH:
        return
    place = {"ha": "center", "va": "center_baseline", "zorder": 6}
    for x in np.flatnonzero(height >= size * LINE / 72 / inches(axes)[1]).tolist():
        write(axes, x, bottom[x] + height[x] / 2, percent(height[x]), size, ink, **place)


def _caption(view: View, data: pd.DataFrame) -> Caption:
    low, high = view.results.thresholds.low, view.results.thresholds.high
    unmeasured = int(data.loc[(data["class"] == UNMEASURED) & (data["population"] == ALL), "heads"].sum())
    return Caption(
        title="Head taxonomy" + (" by model" if view.several_models else view.over_training),
        shows=f"Stacked bars are the share of heads of each class, from 0 to 1, one bar per {view.noun}."
        + ("" if view.of_models else view.phases_sentence)
        + (f" Thin bars are the same heads over the {view.matched_text}." if view.rematched else "")
        + (f" The lower panels count RoPE and NoPE heads apart{view.of_matched}." if view.populations else ""),
        made=f"each head is classified by r_q and |r_k| on PC0. Position-dominated: both above {high:g}. Q-positional: "
        f"r_q above {high:g}, |r_k| below {low:g}. K-positional: r_q below {low:g}, |r_k| above {high:g}. "
        f"Content-focused: both below {low:g}. Mixed: all others. Counts are divided by the number of measured heads"
        + (f"; {unmeasured} measurements that are not finite are left out." if unmeasured else "."),
        drawn="stacked bar chart: position-dominated blue, Q-positional indigo, K-positional pink, content-focused "
        "green, mixed gray.",
        variables=("r_q", "r_k"),
        takeaway="A head near a threshold changes class with a small change of r; the phase portraits show how near "
        "heads are.",
        care=view.pooled_sentence,
    )  # fmt: skip


PICTURE = Picture("03_taxonomy_evolution", ("classes",), draw)
