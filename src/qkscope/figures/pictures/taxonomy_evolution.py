"""The five classes of heads over the checkpoints, as stacked bars."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from qkscope.aggregate import class_shares
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools.axis import CheckpointAxis
from qkscope.figures.tools.bars import Kinds, count_rows, draw_shares, share_keys
from qkscope.figures.tools.stack import Panel, draw_stack
from qkscope.figures.tools.style import CLASS_COLOURS
from qkscope.figures.view import View
from qkscope.taxonomy import CLASSES

KINDS = Kinds("class", CLASSES, CLASS_COLOURS)


class TaxonomyEvolution(Picture):
    """Fractions of the measured heads from 0 to 1, counts in the table below."""

    name = "03_taxonomy_evolution"
    claims = ("classes",)

    def title(self, view: View) -> str:
        return "Head taxonomy" + (" by model" if view.of_models else view.over_training)

    def draw(self, view: View, width: float | None = None) -> Drawing:
        limits = view.results.thresholds
        data = view.both_windows(lambda heads, loo, order: class_shares(heads, loo, order, limits))

        def bars(axes: Axes, axis: CheckpointAxis) -> None:
            draw_shares(axes, axis, data, KINDS)

        rows, keys = count_rows(data, KINDS), share_keys(view, data, KINDS)
        panels = [Panel("share of heads", 3.9, bars)]
        return Drawing(draw_stack(view, self.title(view), panels, rows, keys, width), data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        low, high = view.results.thresholds.low, view.results.thresholds.high
        return Caption(
            shows="The share of heads of each class, as bars stacked from 0 to 1; the table below counts the heads."
            + (f" Thin bars: the same heads over the {view.matched_text}." if view.rematched else ""),
            made=f"Each head is classed by r_q and |r_k| on PC0: position-dominated if both are above {high:g}, "
            f"Q-positional if r_q is above {high:g} and |r_k| below {low:g}, K-positional the other way round, "
            f"content-focused if both are below {low:g}, mixed otherwise. Shares are of the measured heads.",
        )


PICTURE = TaxonomyEvolution()
