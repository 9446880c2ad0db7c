"""How open it is which of two keys a query prefers, over the checkpoints."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools import lines
from qkscope.figures.tools.asked import over_checkpoints, why_not
from qkscope.figures.tools.axis import CheckpointAxis
from qkscope.figures.tools.stack import Panel, draw_stack
from qkscope.figures.view import View

OVERALL = lines.Look("mean plasticity", "#117733", "o")
FIRST = lines.Look("first fifth of the window", "#1b4f72", "^")
LAST = lines.Look("last fifth of the window", "#c0660c", "s")
COLUMNS = {OVERALL: "plasticity", FIRST: "first", LAST: "last"}


class PlasticityPicture(Picture):
    """Above: the mean over heads. Below: of queries in the first and in the last fifth of the window."""

    name = "19_plasticity"
    claims = ("plasticity",)

    def title(self, view: View) -> str:
        return f"Attention plasticity{view.over_training}"

    def why_not(self, view: View) -> str | None:
        return why_not(view, "plasticity")

    def draw(self, view: View, width: float | None = None) -> Drawing:
        data = over_checkpoints(view, "plasticity", ("plasticity", "first", "last", "drop"))

        def whole(axes: Axes, axis: CheckpointAxis) -> None:
            lines.draw_quantity(
                axes, axis, data, OVERALL, "mean_plasticity", "se_plasticity", "sd_plasticity"
            )
            lines.correlation_scale(
                axes, axis.paper, *lines.read_limits(data, [("mean_plasticity", "sd_plasticity")])
            )

        def ends(axes: Axes, axis: CheckpointAxis) -> None:
            for look in (FIRST, LAST):
                lines.draw_quantity(axes, axis, data, look, f"mean_{COLUMNS[look]}", f"se_{COLUMNS[look]}")
            pairs = [(f"mean_{name}", f"se_{name}") for name in ("first", "last")]
            lines.correlation_scale(axes, axis.paper, *lines.read_limits(data, pairs))

        panels = [Panel("plasticity", 2.4, whole), Panel("by place of query", 2.2, ends)]
        rows = lines.value_rows(
            view, data, {look: f"mean_{name}" for look, name in COLUMNS.items()}, digits=3
        )
        keys = [lines.band_key(OVERALL.colour), lines.error_key()]
        return Drawing(draw_stack(view, self.title(view), panels, rows, keys, width), data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        return Caption(
            shows="How open it is which of two keys of a document a query prefers, if only the query's place is known: "
            "1 where both are as likely, 0 where one always wins. Above: the mean over heads, with a band of ±1 "
            "standard deviation across heads. Below: for queries in the first and in the last fifth of the window."
            + view.matched_sentence,
            made="Means over heads of plasticity, first and last; a head's value is the plain mean "
            "over its cells of query bucket and earlier key bucket, sixteen buckets a window.",
            table="plasticity.csv",
        )


PICTURE = PlasticityPicture()
