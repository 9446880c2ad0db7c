"""Whether keys follow position with queries or against them, and what a mean r_k near zero may hide."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from qkscope.aggregate import polarity_shares, position_signal
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools.axis import CheckpointAxis
from qkscope.figures.tools.bars import Kinds, count_rows, draw_shares, share_keys
from qkscope.figures.tools.lines import Look, correlation_scale, draw_quantity, read_limits, value_rows
from qkscope.figures.tools.stack import Panel, draw_stack
from qkscope.figures.tools.style import POLARITY_COLOURS, R_K
from qkscope.figures.view import View
from qkscope.taxonomy import POLARITIES

KINDS = Kinds("polarity", POLARITIES, POLARITY_COLOURS)
SIGNED = Look("mean r_k", R_K, "s")
SIZE = Look("mean |r_k|", "#7f1d1d", "^", dashes=(0, (5, 1.5)))


class Polarity(Picture):
    """Above: mean r_k beside mean |r_k|. Below: shares of concordant, neutral and discordant heads."""

    name = "02_polarity"
    claims = ("queries_keys", "classes")

    def title(self, view: View) -> str:
        return "Do keys follow position with queries or against them?"

    def why_not(self, view: View) -> str | None:
        return view.why_no_course

    def draw(self, view: View, width: float | None = None) -> Drawing:
        limits = view.results.thresholds
        shares = view.both_windows(lambda heads, loo, order: polarity_shares(heads, loo, order, limits))
        data = _merge(view.both_windows(position_signal), shares)

        def means(axes: Axes, axis: CheckpointAxis) -> None:
            draw_quantity(axes, axis, data, SIGNED, "mean_r_k", "se_r_k")
            draw_quantity(axes, axis, data, SIZE, "mean_abs_r_k", "se_abs_r_k")
            ends = read_limits(data, [("mean_r_k", "se_r_k"), ("mean_abs_r_k", "se_abs_r_k")])
            correlation_scale(axes, axis.paper, *ends)

        def bars(axes: Axes, axis: CheckpointAxis) -> None:
            draw_shares(axes, axis, shares, KINDS)

        panels = [Panel("r_k on PC0", 2.6, means), Panel("share of heads", 2.3, bars)]
        values = value_rows(view, data, {SIGNED: "mean_r_k", SIZE: "mean_abs_r_k"})
        rows, keys = [*values, *count_rows(shares, KINDS)], share_keys(view, shares, KINDS)
        return Drawing(draw_stack(view, self.title(view), panels, rows, keys, width), data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        low = view.results.thresholds.low
        return Caption(
            shows="Above: mean r_k (red squares) and mean |r_k| (dark triangles); where they part, heads of opposite "
            "sign cancel in the mean. Below: the share of heads whose keys follow position with the queries "
            f"(concordant, r_k > {low:g}), against them (discordant, r_k < −{low:g}) or neither (neutral)."
            + view.matched_sentence,
            made="Mean of r_k and of |r_k| over the measured heads; heads counted by the sign of r_k after the axis "
            "is turned so that r_q is not negative.",
        )


def _merge(means: pd.DataFrame, shares: pd.DataFrame) -> pd.DataFrame:
    """A row per checkpoint and window: the means, then heads, share and error of each polarity."""
    data = means[["model", "label", "window", "tokens", "mean_r_k", "se_r_k", "mean_abs_r_k", "se_abs_r_k"]]
    for kind in dict.fromkeys(shares["polarity"]):
        part = shares[shares["polarity"] == kind][["model", "window", "heads", "share", "se"]]
        names = {"heads": f"heads_{kind}", "share": f"share_{kind}", "se": f"se_share_{kind}"}
        data = data.merge(part.rename(columns=names), on=["model", "window"], how="left", validate="1:1")
    return data


PICTURE = Polarity()
