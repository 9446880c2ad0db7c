"""Figure 13: the axis along which heads drift with position, over the checkpoints; where the study measures it."""

from __future__ import annotations

from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from qkscope.figures.gallery.fig12_plasticity import missing
from qkscope.figures.picture import Caption, Drawing, Picture, heads_of, path
from qkscope.figures.tools import marks
from qkscope.figures.tools.axis import CheckpointAxis, Panel, draw_stack
from qkscope.figures.view import ALL, View
from qkscope.results.aggregate import means
from qkscope.results.dataset import NAME

COLOUR, DASHED = "#34495e", (0, (3, 1.5))
LOOKS = {
    ALL: marks.Look("mean over heads", COLOUR, "o"),
    "RoPE": marks.Look("RoPE heads", COLOUR, "o"),
    "NoPE": marks.Look("NoPE heads", COLOUR, "o", hollow=True, dashes=DASHED),
}


def draw(view: View, width: float | None = None) -> Drawing:
    """Above: overlap of the drift axis with PC0. Below: the bias it gives to keys, in logits over the window."""
    data = view.each_population(partial(means, names=("pc0_overlap", "bias_logits"), of="pc0_overlap"))
    names = view.populations or (ALL,)

    def lines(axes: Axes, axis: CheckpointAxis, value: str) -> None:
        for name in names:
            rows = data[data["population"] == name]
            marks.draw_line(axes, axis, rows, LOOKS[name], f"mean_{value}", f"se_{value}")

    def overlap(axes: Axes, axis: CheckpointAxis) -> None:
        lines(axes, axis, "pc0_overlap")
        marks.correlation_scale(
            axes, axis.paper, *marks.read_limits(data, [("mean_pc0_overlap", "se_pc0_overlap")])
        )

    def bias(axes: Axes, axis: CheckpointAxis) -> None:
        lines(axes, axis, "bias_logits")
        marks.number_scale(
            axes, axis.paper, *marks.read_limits(data, [("mean_bias_logits", "se_bias_logits")])
        )

    panels = [Panel("overlap with PC0", 2.3, overlap), Panel("mean bias, logits", 2.3, bias)]
    keys = [*(LOOKS[name].key for name in names), marks.error_key()]
    caption = Caption(
        title=f"The axis of drift with position{view.over_training}{view.over_matched}",
        shows="Queries and keys drift along an axis a as position grows. Above: how much a coincides with PC0, as the "
        "mean over heads of |a · PC0|. Below: how many logits more the mean query gives a key at the end of the window "
        "than one at its beginning because of that drift; positive means that nearer keys are favoured.",
        made="means over heads of pc0_overlap and of bias_logits = scale · (a · mean query) · slope of keys · window, "
        "with ±1 standard error over documents.",
        drawn="two line plots.",
        events=_events(view, data, names),
        takeaway="Where the overlap is close to 1, r_q and r_k on PC0 describe the drift; where it is small, they "
        "describe another direction than the one along which position moves the vectors. The bias is that of the mean "
        "query, which no single query is: it tells the sign of the tendency, not what a token attends to.",
        table=NAME,
        variables=("pc0_overlap", "bias_logits"),
        window="matched",
    )  # fmt: skip
    return Drawing(
        draw_stack(view, caption.title, panels, keys, width, spaced=True, matched=True), data, caption
    )


def _events(view: View, data: pd.DataFrame, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The paths of overlap and bias of each population."""
    found = []
    for name in names:
        rows = data[data["population"] == name]
        last = rows.iloc[-1]
        at = f" at {last['label']}" if len(rows) > 1 else ""
        bias = path(rows, "mean_bias_logits", "se_bias_logits", signed=True)
        found.append(
            (
                f"{heads_of(name)}: overlap with PC0 {path(rows, 'mean_pc0_overlap', 'se_pc0_overlap')}",
                f"The mean bias over the window, in logits, is {bias}. "
                f"Across heads the overlap has a standard deviation of {last['sd_pc0_overlap']:.2f}{at}.",
            )
        )
    return tuple(found)


PICTURE = Picture("13_drift", (), draw, lambda view: missing(view, "rotation", "bias_logits"))
