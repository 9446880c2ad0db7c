"""Layers with rotary position embedding against layers without, over the checkpoints."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from qkscope.aggregate import rope_split
from qkscope.figures.axis import CheckpointAxis
from qkscope.figures.lines import Look, correlation_scale, draw_quantity, error_key, read_limits, write_values
from qkscope.figures.style import ROPE_COLOURS, Key, name_axis, sheet
from qkscope.figures.view import OWN, Drawing, View, look
from qkscope.results import Results

NAME = "09_rope_vs_nope"
LOOKS = {
    "RoPE": Look("layers with RoPE", ROPE_COLOURS["RoPE"], "o"),
    "NoPE": Look("layers without (NoPE)", ROPE_COLOURS["NoPE"], "D", hollow=True),
}


def why_not(view: View) -> str | None:
    """Why there is nothing to draw, if so."""
    if view.of_models:
        return "it compares layers over training, and this is a study of several models"
    kinds = set(rope_split(view.results.heads, None, view.order)["rope"])
    if not kinds:
        return "the table does not say which layers use RoPE"
    if len(kinds) == 1:
        return f"all measured heads are in {kinds.pop()} layers: there is nothing to compare"
    return None


def draw(results: Results) -> Drawing:
    """Left or above: mean r_q; below: mean |r_k|. Filled circles: RoPE; open diamonds: NoPE."""
    view = look(results)
    columns = ["rope", "heads", "mean_r_q", "se_r_q", "mean_abs_r_k", "se_abs_r_k"]
    data = view.both_windows(rope_split)[["model", "label", "window", "tokens", *columns]]
    axis = CheckpointAxis(view)
    height, gap = 2.7, 0.25
    body = axis.above + 2 * height + gap + axis.below
    page = sheet(title(view), view.subtitle, axis.sheet_width, body, _keys(view, data))
    for i, (name, text) in enumerate((("r_q", "mean r_q, PC0"), ("abs_r_k", "mean |r_k|, PC0"))):
        axes = page.axes(axis.left, axis.above + i * (height + gap), axis.width, height)
        axis.draw(axes, names=i == 1, phases=i == 0)
        axis.mark_missing(axes)
        _panel(axes, view, data, name)
        name_axis(axes, y=text)
    return Drawing(page.figure, data)


def _panel(axes: Axes, view: View, data: pd.DataFrame, name: str) -> None:
    mean, se = f"mean_{name}", f"se_{name}"
    low, high = read_limits(data, [(mean, se)])
    correlation_scale(axes, min(0.0, low), high + 0.08)
    own = data[data["window"] == OWN]
    level = own.groupby("rope")[mean].mean()
    for kind, look_of in LOOKS.items():
        part = data[data["rope"] == kind]
        draw_quantity(axes, view, part, look_of, mean, se)
        write_values(axes, view, part, mean, look_of.colour, above=bool(level[kind] >= level.max()), se=se)


def title(view: View) -> str:
    return "Layers with and without rotary embedding" + (" over training" if view.training else "")


def _keys(view: View, data: pd.DataFrame) -> list[Key]:
    keys = [look_of.key() for look_of in LOOKS.values()]
    if data[["se_r_q", "se_abs_r_k"]].notna().any(axis=None):
        keys.append(error_key())
    if view.rematched:
        keys.append(LOOKS["RoPE"].matched_key(f"dotted, hollow: {view.matched_text} only"))
    return keys
