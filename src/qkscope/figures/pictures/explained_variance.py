"""How much of a head's variance PC0 holds, over the checkpoints."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from qkscope.aggregate import explained_variance
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools import lines
from qkscope.figures.tools.axis import CheckpointAxis
from qkscope.figures.tools.stack import Panel, draw_stack
from qkscope.figures.tools.style import VARIANCE
from qkscope.figures.view import View

SHARE = lines.Look("mean explained variance", VARIANCE, "o")


class ExplainedVariance(Picture):
    """Purple circles: the mean; shaded: +/- 1 standard deviation across heads."""

    name = "04_explained_variance"
    claims = ("position",)

    def title(self, view: View) -> str:
        return f"Explained variance of PC0{view.over_training}"

    def why_not(self, view: View) -> str | None:
        if not view.results.heads["explained_variance"].notna().any():
            return "the table has no explained_variance"
        return view.why_no_course

    def draw(self, view: View, width: float | None = None) -> Drawing:
        data = view.both_windows(explained_variance)

        def marks(axes: Axes, axis: CheckpointAxis) -> None:
            lines.draw_quantity(axes, axis, data, SHARE, "mean", "se", "sd")
            lines.share_scale(axes, axis.paper, lines.read_limits(data, [("mean", "sd")])[1])

        panel = Panel("explained variance, PC0", 3.8, marks)
        rows = lines.value_rows(view, data, {SHARE: "mean"}, digits=3)
        keys = [lines.band_key(VARIANCE), *([lines.error_key()] if data["se"].notna().any() else [])]
        return Drawing(draw_stack(view, self.title(view), [panel], rows, keys, width), data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        return Caption(
            shows="How much of the variance of a head's queries and keys lies along its first shared axis, PC0: the "
            "mean over heads, with a band of ±1 standard deviation across heads"
            + (" and bars of ±1 standard error over documents." if data["se"].notna().any() else ".")
            + view.matched_sentence,
            made=f"For each {view.noun}, mean and standard deviation of explained_variance over the heads.",
        )


PICTURE = ExplainedVariance()
