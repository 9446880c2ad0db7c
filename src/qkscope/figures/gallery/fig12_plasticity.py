"""Figure 12: how open it is which of two keys a query prefers, over the checkpoints; where the study measures it."""

from __future__ import annotations

from functools import partial

from matplotlib.axes import Axes

from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools import marks
from qkscope.figures.tools.axis import CheckpointAxis, Panel, draw_stack
from qkscope.figures.view import ALL, View
from qkscope.results.aggregate import means
from qkscope.results.dataset import NAME

COLOUR, PALE = "#34495e", "#9aa5b1"
DASHED = (0, (3, 1.5))
OVERALL = {
    ALL: marks.Look("mean plasticity", COLOUR, "o"),
    "RoPE": marks.Look("RoPE heads", COLOUR, "o"),
    "NoPE": marks.Look("NoPE heads", COLOUR, "o", hollow=True, dashes=DASHED),
}
ENDS = {
    "plasticity_first": marks.Look("queries in the first fifth of the window", COLOUR, "^"),
    "plasticity_last": marks.Look("queries in the last fifth", PALE, "s"),
}


NAMES = ("plasticity", "plasticity_first", "plasticity_last", "plasticity_drop")


def missing(view: View, measure: str, variable: str) -> str | None:
    """Why an optional measure cannot be drawn, if so."""
    data = view.same_tokens
    if variable not in data or not data[variable].isel(sample=0).notnull().any("head").all():
        return f"the results have no {variable}: add {measure} to the study's measures and run it again"
    return view.why_no_course


def draw(view: View, width: float | None = None) -> Drawing:
    """Above: the mean over heads. Below: for queries in the first and in the last fifth of the window."""
    data = view.each_population(partial(means, names=NAMES, of="plasticity"))
    names = view.populations or (ALL,)
    pairs = [(f"mean_{name}", f"se_{name}") for name in ("plasticity", "plasticity_first", "plasticity_last")]
    limits = marks.read_limits(data, pairs)

    def whole(axes: Axes, axis: CheckpointAxis) -> None:
        for name in names:
            rows = data[data["population"] == name]
            marks.draw_line(axes, axis, rows, OVERALL[name], "mean_plasticity", "se_plasticity")
        marks.correlation_scale(axes, axis.paper, *limits)

    def ends(axes: Axes, axis: CheckpointAxis) -> None:
        rows = data[data["population"] == names[0]]
        for value, look in ENDS.items():
            marks.draw_line(axes, axis, rows, look, f"mean_{value}", f"se_{value}")
        marks.correlation_scale(axes, axis.paper, *limits)

    of = f"{names[0]} heads, by place of the query" if view.populations else "By place of the query"
    panels = [
        Panel("plasticity", 2.3, whole, f"Mean over heads{view.over_matched}"),
        Panel("plasticity", 2.3, ends, of + view.over_matched),
    ]
    keys = [OVERALL[name].key for name in names] + [look.key for look in ENDS.values()] + [marks.error_key()]
    caption = Caption(
        title=f"Attention plasticity{view.over_training}",
        shows="Plasticity says how open it is which of two keys of a text a query prefers when only the query's place "
        "is known: 1 where both are equally likely to win, 0 where one always does. Above is the mean over heads"
        + (" of RoPE (filled) and NoPE layers (hollow)" if view.populations else "")
        + "; below are queries in the first and in the last fifth of the window.",
        made="a head's value is the mean over pairs of query bucket and earlier key bucket, sixteen buckets a window; "
        "drawn are means over heads with ±1 standard error over documents.",
        drawn="line plots, both panels on one scale.",
        table=NAME,
        variables=NAMES,
        window="matched",
    )
    return Drawing(
        draw_stack(view, caption.title, panels, keys, width, spaced=True, matched=True), data, caption
    )


PICTURE = Picture(
    "12_plasticity", ("plasticity",), draw, lambda view: missing(view, "plasticity", "plasticity")
)
