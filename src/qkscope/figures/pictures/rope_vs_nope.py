"""Layers with rotary position embedding against layers without, over the checkpoints."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from qkscope.aggregate import rope_split
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools import lines
from qkscope.figures.tools.axis import CheckpointAxis
from qkscope.figures.tools.ledger import Row
from qkscope.figures.tools.stack import Panel, draw_stack
from qkscope.figures.tools.style import ROPE_COLOURS
from qkscope.figures.view import View

QUANTITIES = (("r_q", "mean r_q"), ("abs_r_k", "mean |r_k|"))
LOOKS = {
    "RoPE": lines.Look("layers with RoPE", ROPE_COLOURS["RoPE"], "o"),
    "NoPE": lines.Look("layers without (NoPE)", ROPE_COLOURS["NoPE"], "D", hollow=True),
}


class RopeVsNope(Picture):
    """Above: mean r_q; below: mean |r_k|. Filled circles: RoPE; open diamonds: NoPE."""

    name = "09_rope_vs_nope"
    claims = ("position", "queries_keys")

    def title(self, view: View) -> str:
        return f"Layers with and without rotary embedding{view.over_training}"

    def why_not(self, view: View) -> str | None:
        if view.why_no_course:
            return view.why_no_course
        kinds = set(rope_split(view.results.heads, None, view.order)["rope"])
        if not kinds:
            return "the table does not say which layers use RoPE"
        if len(kinds) == 1:
            return f"all measured heads are in {kinds.pop()} layers: there is nothing to compare"
        return None

    def draw(self, view: View, width: float | None = None) -> Drawing:
        columns = ["rope", "heads", "mean_r_q", "se_r_q", "mean_abs_r_k", "se_abs_r_k"]
        data = view.both_windows(rope_split)[["model", "label", "window", "tokens", *columns]]
        panels = [Panel(f"{text}, PC0", 2.5, partial(_marks, data, name)) for name, text in QUANTITIES]
        keys = [lines.error_key()] if data[["se_r_q", "se_abs_r_k"]].notna().any(axis=None) else []
        return Drawing(draw_stack(view, self.title(view), panels, _rows(view, data), keys, width), data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        counts = data.groupby("rope")["heads"].max()
        layers = " and ".join(f"{counts[kind]} of {kind} layers" for kind in LOOKS if kind in counts)
        return Caption(
            shows="Means over the heads of layers with rotary position embedding (RoPE, filled circles) and of layers "
            "without (NoPE, open diamonds): r_q above, |r_k| below." + view.matched_sentence,
            made=f"For each {view.noun}, the means over the measured heads of either kind of layer: {layers}.",
        )


def _marks(data: pd.DataFrame, name: str, axes: Axes, axis: CheckpointAxis) -> None:
    mean, se = f"mean_{name}", f"se_{name}"
    lines.correlation_scale(axes, axis.paper, *lines.read_limits(data, [(mean, se)]))
    for kind, look in LOOKS.items():
        lines.draw_quantity(axes, axis, data[data["rope"] == kind], look, mean, se)


def _rows(view: View, data: pd.DataFrame) -> list[Row]:
    """The values of both panels, named by quantity and kind of layer."""
    found = []
    for name, text in QUANTITIES:
        for kind, look in LOOKS.items():
            named = replace(look, name=f"{text}, {kind}")
            rows = lines.value_rows(view, data[data["rope"] == kind], {named: f"mean_{name}"})
            found += [replace(row, legend=row.name.removeprefix(f"{text}, ")) for row in rows]
    return found


PICTURE = RopeVsNope()
