"""The axis along which heads drift with position: how close it is to PC0, and which keys its drift favours."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools import lines
from qkscope.figures.tools.asked import number_scale, over_checkpoints, why_not
from qkscope.figures.tools.axis import CheckpointAxis
from qkscope.figures.tools.stack import Panel, draw_stack
from qkscope.figures.view import View

OVERLAP = lines.Look("overlap with PC0", "#1b4f72", "o")
BIAS = lines.Look("bias, logits over the window", "#c0660c", "s")
NAMES = ("pc0_overlap", "bias_logits")


class Drift(Picture):
    """Above: overlap of the drift axis with PC0. Below: the bias it gives to keys, in logits over the window."""

    name = "18_drift"
    claims = ("distance",)

    def title(self, view: View) -> str:
        return f"The axis of drift with position{view.over_training}"

    def why_not(self, view: View) -> str | None:
        return why_not(view, "rotation")

    def draw(self, view: View, width: float | None = None) -> Drawing:
        data = over_checkpoints(view, "rotation", NAMES)

        def overlap(axes: Axes, axis: CheckpointAxis) -> None:
            lines.draw_quantity(
                axes, axis, data, OVERLAP, "mean_pc0_overlap", "se_pc0_overlap", "sd_pc0_overlap"
            )
            ends = lines.read_limits(data, [("mean_pc0_overlap", "sd_pc0_overlap")])
            lines.correlation_scale(axes, axis.paper, *ends)

        def bias(axes: Axes, axis: CheckpointAxis) -> None:
            lines.draw_quantity(axes, axis, data, BIAS, "mean_bias_logits", "se_bias_logits")
            number_scale(axes, axis.paper, data, [("mean_bias_logits", "se_bias_logits")])

        panels = [Panel("overlap with PC0", 2.4, overlap), Panel("mean bias, logits", 2.2, bias)]
        rows = lines.value_rows(view, data, {OVERLAP: "mean_pc0_overlap", BIAS: "mean_bias_logits"})
        keys = [lines.band_key(OVERLAP.colour), lines.error_key()]
        return Drawing(draw_stack(view, self.title(view), panels, rows, keys, width), data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        return Caption(
            shows="Above: how far the axis a along which queries and keys drift with position is PC0, as the mean over "
            "heads of |a · PC0|; the band is ±1 standard deviation across heads. Below: how many logits more the mean "
            "query gives a key at the end of the window than one at its beginning, by the drift of keys along that "
            "axis: above zero near keys are favoured, below it far ones." + view.matched_sentence,
            made="Means over heads of pc0_overlap and of bias_logits = scale · (a · mean query) · slope of keys · "
            "window. A slope per token shrinks with the window; over the window it does not.",
            table="rotation.csv",
        )


PICTURE = Drift()
