"""Figure 07: r_q against r_k on PC0, a point per head, at representative checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from qkscope.figures import style
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.sheet import Key, Paper, dot, draw_panels, scale
from qkscope.figures.view import MATCHED, OWN, View
from qkscope.results.taxonomy import CLASSES, UNMEASURED, Thresholds
from qkscope.words import tokens

X_LIMITS, Y_LIMITS = (-0.05, 1.05), (-1.05, 1.05)


def draw(view: View, width: float | None = None) -> Drawing:
    """Coloured by class, or by family in a study of models of several; RoPE heads circles, NoPE heads diamonds."""
    again = [model for model in view.shown if model in view.rematched]
    data = _points(view, view.shown, again)
    colours = {name: style.CLASS_COLOURS[name] for name in CLASSES}
    if families := _families(view):
        colours = dict(zip(families, cycle(style.FAMILY_COLOURS), strict=False))
    paper, count = Paper(width), len(view.shown)
    drawn = []
    for model, window in [(model, OWN) for model in view.shown] + [(model, MATCHED) for model in again]:
        points = data[(data["model"] == model) & (data["window"] == window)]
        heading, size = view.drawn_labels[model], points["tokens"].iloc[0]
        if view.rematched and size is not pd.NA:
            heading += f" · {size:,}" if paper.narrow else f" · {tokens(size)}"
        drawn.append((heading, partial(_portrait, points, colours, view.results.thresholds, paper)))
    columns = 2 if paper.narrow else 4 if count > 6 and count % 4 in (0, 3) else 3
    caption = _caption(view, data)
    page = draw_panels(
        paper, caption.title, view.subtitle(), _keys(data, colours), drawn, "$r_q$", "$r_k$",
        columns=min(columns, count), wide={1: 5.4, 2: 4.2}.get(count, 3.0), shape=0.85 if count == 1 else 1.1,
        between=0.3, shared="xy",
    )  # fmt: skip
    return Drawing(page.figure, data, caption)


def _families(view: View) -> list[str]:
    """Families of the models, if there are several."""
    found = dict.fromkeys(checkpoint.phase for checkpoint in view.checkpoints)
    return list(found) if view.of_models and len(found) > 1 else []


def _caption(view: View, data: pd.DataFrame) -> Caption:
    count, named = data["model"].nunique(), view.results.timeline.portraits
    where = "by model" if view.several_models else "over training" if view.training else "head by head"
    chosen = "those the study names" if named else "the first and second, the last, and some ends of phases"
    limits = view.results.thresholds
    again = f" The last panels show the {view.noun}s with longer windows again, over the {view.matched_text}."
    return Caption(
        title=f"Phase portraits: $r_q$ against $r_k$ on PC0, {where}",
        shows=f"Each point is a head: r_q across, r_k up, at {count} {view.noun}{'s' if count > 1 else ''}. Dashed "
        f"lines are the thresholds of the taxonomy, {limits.low:g} and {limits.high:g}; "
        f"colour is the {'family' if 'family' in data else 'class'}."
        + (" Circles are heads of RoPE layers, diamonds of NoPE layers." if view.populations else "")
        + (again if (data["window"] == MATCHED).any() else ""),
        made=f"none; every measured head is one point. The {view.noun}s shown are "
        + (f"{chosen}." if count < len(view.order) else f"all {view.noun}s."),
        drawn="grid of scatter plots with the same axis limits, −0.05 to 1.05 for r_q and −1.05 to 1.05 for r_k.",
        variables=("r_q", "r_k"),
        takeaway="Queries of a head far to the right follow position, keys of one far from the middle line. A head "
        "that jumps between portraits may have changed little: a different direction can have become its PC0.",
    )  # fmt: skip


def _points(view: View, models: Sequence[str], again: Sequence[str]) -> pd.DataFrame:
    """A row per head of the checkpoints shown, over own windows, then over the matched one."""
    columns = ["model", "layer", "head", "r_q", "r_k", "class", "rope"]

    def of(heads: pd.DataFrame, some: Sequence[str]) -> pd.DataFrame:
        return heads.set_index("model", drop=False).loc[list(some), columns].reset_index(drop=True)

    matched = of(view.results.to_dataframe(matched=True), again) if again else None
    points = view.windows(of(view.results.heads, models), matched)
    if _families(view):
        points["family"] = points["model"].map({each.model: each.phase for each in view.checkpoints})
    return points


def _portrait(
    points: pd.DataFrame, colours: dict[str, str], limits: Thresholds, paper: Paper, axes: Axes
) -> None:
    """One portrait: thresholds and points."""
    axes.set_xlim(*X_LIMITS)
    axes.set_ylim(*Y_LIMITS)
    line: dict[str, Any] = {"color": "#9a9a9a", "linestyle": style.DASHES, "zorder": 1}
    line["linewidth"] = 0.9 * paper.factor
    for limit in (limits.low, limits.high):
        axes.axvline(limit, **line)
        for sign in (1, -1):
            axes.axhline(sign * limit, **line)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color("#b5b5b5")
    column = "family" if "family" in points else "class"
    nope = points["rope"] == 0
    size = float(np.clip(9000 / max(len(points), 1), 13, 28)) * paper.factor**4
    for name, colour in colours.items():
        mine = (points[column] == name) & (points["class"] != UNMEASURED)
        for some, marker, area in ((points[mine & ~nope], "o", 1.1), (points[mine & nope], "D", 1.2)):
            if len(some):
                axes.scatter(
                    some["r_q"], some["r_k"], area * size, color=colour, marker=marker, alpha=0.75, zorder=3,
                    clip_on=False, edgecolors=style.INK if marker == "D" else style.PAPER,
                    linewidths=0.7 if marker == "D" else 0.25,
                )  # fmt: skip
    ticks = (0.0, limits.low, limits.high, 1.0)
    scale(axes, "x", ticks, paper)
    scale(axes, "y", (-1.0, -limits.high, -limits.low, *ticks), paper)
    if (points["class"] == UNMEASURED).all():
        place = {"ha": "center", "va": "center", "transform": axes.transAxes}
        style.write(axes, 0.5, 0.5, "no measured head", paper.points(9.5), style.MUTED, **place)


def _keys(data: pd.DataFrame, colours: dict[str, str]) -> list[Key]:
    keys = [dot(name, colour) for name, colour in colours.items()]
    if (data["rope"] == 0).any():
        keys.append(dot("circle: RoPE head", style.PAPER, markeredgecolor=style.INK))
        keys.append(dot("diamond: NoPE head", style.PAPER, markeredgecolor=style.INK, marker="D"))
    return keys


PICTURE = Picture("07_phase_portraits", ("classes", "queries_keys"), draw)
