"""Mean r_q and r_k on PC0 over the checkpoints."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from qkscope.aggregate import position_signal
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools import lines
from qkscope.figures.tools.axis import CheckpointAxis
from qkscope.figures.tools.stack import Panel, draw_stack
from qkscope.figures.tools.style import R_K, R_Q
from qkscope.figures.view import View

COLUMNS = ["mean_r_q", "sd_r_q", "se_r_q", "mean_r_k", "sd_r_k", "se_r_k"]
QUERY = lines.Look("mean r_q (queries)", R_Q, "o")
KEY = lines.Look("mean r_k (keys)", R_K, "s")


class PositionSignal(Picture):
    """Blue circles: r_q; red squares: r_k; shaded: +/- 1 standard deviation across heads."""

    name = "01_position_signal"
    claims = ("position", "long_context", "queries_keys", "emergence")

    def title(self, view: View) -> str:
        return f"Position correlation on PC0{view.over_training}"

    def why_not(self, view: View) -> str | None:
        return view.why_no_course

    def draw(self, view: View, width: float | None = None) -> Drawing:
        data = view.both_windows(position_signal)[["model", "label", "window", "tokens", "heads", *COLUMNS]]

        def marks(axes: Axes, axis: CheckpointAxis) -> None:
            lines.draw_quantity(axes, axis, data, QUERY, "mean_r_q", "se_r_q", "sd_r_q")
            lines.draw_quantity(axes, axis, data, KEY, "mean_r_k", "se_r_k", "sd_r_k")
            limits = lines.read_limits(data, [("mean_r_q", "sd_r_q"), ("mean_r_k", "sd_r_k")])
            lines.correlation_scale(axes, axis.paper, *limits)

        panel = Panel("correlation with position, PC0", 4.2, marks)
        rows = lines.value_rows(view, data, {QUERY: "mean_r_q", KEY: "mean_r_k"})
        keys = [lines.band_key("#555555"), *([lines.error_key()] if _errors(data) else [])]
        return Drawing(draw_stack(view, self.title(view), [panel], rows, keys, width), data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        return Caption(
            shows="Mean r_q (blue circles) and mean r_k (red squares) on PC0"
            + (", checkpoint after checkpoint in the order of training." if view.training else ".")
            + " The shaded bands are ±1 standard deviation across heads"
            + ("; bars are ±1 standard error over documents." if _errors(data) else ".")
            + view.matched_sentence,
            made=f"For each {view.noun}, mean and standard deviation of r_q and r_k over all measured heads.",
        )


def _errors(data: pd.DataFrame) -> bool:
    return bool(data[["se_r_q", "se_r_k"]].notna().any(axis=None))


PICTURE = PositionSignal()
