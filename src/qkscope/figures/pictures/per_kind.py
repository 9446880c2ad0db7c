"""Queries alone and keys alone: how much of their variance is linear in position, and how far they lie apart."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools import lines
from qkscope.figures.tools.asked import over_checkpoints, why_not
from qkscope.figures.tools.axis import CheckpointAxis
from qkscope.figures.tools.stack import Panel, draw_stack
from qkscope.figures.tools.style import R_K, R_Q, VARIANCE
from qkscope.figures.view import View

LOOKS = {
    "linear_q": lines.Look("queries, linear in position", R_Q, "o"),
    "linear_k": lines.Look("keys, linear in position", R_K, "s"),
    "separability": lines.Look("between queries and keys", VARIANCE, "^"),
}


class PerKind(Picture):
    """Above: the share of each kind's variance that is linear in position. Below: the share between the two centres."""

    name = "21_per_kind"
    claims = ("queries_keys",)

    def title(self, view: View) -> str:
        return f"Queries alone and keys alone{view.over_training}"

    def why_not(self, view: View) -> str | None:
        return why_not(view, "per_kind")

    def draw(self, view: View, width: float | None = None) -> Drawing:
        data = over_checkpoints(view, "per_kind", list(LOOKS))

        def panel(*names: str) -> Panel:
            def marks(axes: Axes, axis: CheckpointAxis) -> None:
                for name in names:
                    lines.draw_quantity(axes, axis, data, LOOKS[name], f"mean_{name}", f"se_{name}")
                ends = lines.read_limits(data, [(f"mean_{name}", f"se_{name}") for name in names])
                lines.share_scale(axes, axis.paper, ends[1])

            return Panel("share of variance", 2.2, marks)

        panels = [panel("linear_q", "linear_k"), panel("separability")]
        rows = lines.value_rows(view, data, {look: f"mean_{name}" for name, look in LOOKS.items()}, digits=3)
        return Drawing(draw_stack(view, self.title(view), panels, rows, [lines.error_key()], width), data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        return Caption(
            shows="Above: of the variance of a head's queries, and of its keys, each taken alone, the share that is "
            "linear in position. Below: of the variance of both together, the share between the centre of the "
            "queries and that of the keys." + view.matched_sentence,
            made="Means over heads of linear_q, linear_k (the sum over a kind's own axes of explained variance times r "
            "squared) and separability.",
            table="per_kind.csv",
        )


PICTURE = PerKind()
