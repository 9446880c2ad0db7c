"""Figure 12: how open it is which of two keys a query prefers, over the checkpoints; where the study measures it."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from qkscope.anatomy_means import asked_for, head_means
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools import marks
from qkscope.figures.tools.axis import CheckpointAxis, Panel, draw_stack
from qkscope.figures.view import ALL, ROPE, View

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


def missing(view: View, measure: str) -> str | None:
    """Why a measure that studies have to ask for cannot be drawn, if so."""
    table = view.results.optional.get(measure)
    if table is None or not set(view.order) <= set(table["model"]):
        return f"the results have no {measure}.csv: add {measure} to the study's measures and run it again"
    return view.why_no_course


def table_of(view: View, measure: str) -> str:
    """The file that `by_population` reads."""
    matched = view.rematched and f"{measure}_matched" in view.results.optional
    return f"{measure}{'_matched' if matched else ''}.csv"


def by_population(view: View, measure: str, names: tuple[str, ...]) -> pd.DataFrame:
    """Means over heads of columns of an optional table, over the same tokens: of all heads or of each population."""
    results, again = view.results, None
    matched = bool(view.rematched) and f"{measure}_matched" in results.optional
    frames = []
    for population in view.populations or (ALL,):

        def means(order: list[str], over_matched: bool, population: str = population) -> pd.DataFrame:
            found = asked_for(results, measure, order, matched=over_matched)
            if population != ALL:
                found = [each.of(each.heads["rope"] == ROPE[population]) for each in found]
            return head_means(found, names)

        kept = [model for model in view.order if not matched or model not in view.rematched]
        again = means(view.rematched, True) if matched else None
        table = view.windows(means(kept, False), again)
        table.insert(4, "population", population)
        frames.append(table)
    return pd.concat(frames, ignore_index=True)


def draw(view: View, width: float | None = None) -> Drawing:
    """Above: the mean over heads. Below: for queries in the first and in the last fifth of the window."""
    data = by_population(
        view, "plasticity", ("plasticity", "plasticity_first", "plasticity_last", "plasticity_drop")
    )
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
        table=table_of(view, "plasticity"),
        window="matched",
    )
    return Drawing(
        draw_stack(view, caption.title, panels, keys, width, spaced=True, matched=True), data, caption
    )


PICTURE = Picture("12_plasticity", ("plasticity",), draw, lambda view: missing(view, "plasticity"))
