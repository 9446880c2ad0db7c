"""Mean r_q and r_k on PC0 over the checkpoints."""

from __future__ import annotations

import pandas as pd

from qkscope.aggregate import position_signal
from qkscope.figures.axis import CheckpointAxis
from qkscope.figures.lines import (
    Look,
    band_key,
    correlation_scale,
    draw_quantity,
    error_key,
    read_limits,
    write_values,
)
from qkscope.figures.style import R_K, R_Q, Key, name_axis, sheet
from qkscope.figures.view import Drawing, View, look
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
    axis = CheckpointAxis(view)
    height = 4.2
    page = sheet(
        title(view), view.subtitle, axis.sheet_width, axis.above + height + axis.below, _keys(view, data)
    )
    axes = page.axes(axis.left, axis.above, axis.width, height)
    axis.draw(axes)
    axis.mark_missing(axes)
    draw_quantity(axes, view, data, QUERY, "mean_r_q", "se_r_q", "sd_r_q")
    draw_quantity(axes, view, data, KEY, "mean_r_k", "se_r_k", "sd_r_k")
    higher = bool(data["mean_r_q"].mean() >= data["mean_r_k"].mean())
    write_values(axes, view, data, "mean_r_q", R_Q, above=higher, se="se_r_q")
    write_values(axes, view, data, "mean_r_k", R_K, above=not higher, se="se_r_k")
    correlation_scale(axes, *read_limits(data, [("mean_r_q", "sd_r_q"), ("mean_r_k", "sd_r_k")]))
    name_axis(axes, y="correlation with position, PC0")
    return Drawing(page.figure, data)


def title(view: View) -> str:
    return "Position correlation on PC0" + (" over training" if view.training else "")


def _keys(view: View, data: pd.DataFrame) -> list[Key]:
    keys = [QUERY.key(), KEY.key(), band_key("#555555")]
    if data[["se_r_q", "se_r_k"]].notna().any(axis=None):
        keys.append(error_key())
    if view.rematched:
        keys.append(QUERY.matched_key(f"dotted, hollow: {view.matched_text} only"))
    return keys
