"""Figures 12 and 13, where the study measures them: attention plasticity, and the axis of drift with position."""

from __future__ import annotations

from functools import partial

import pandas as pd

from qkscope.figures import marks
from qkscope.figures.axis import Panel, draw_stack
from qkscope.figures.picture import Caption, Drawing, Picture, heads_of, path
from qkscope.figures.style import INK, SEPARATOR
from qkscope.figures.view import ALL, View
from qkscope.results.aggregate import means
from qkscope.results.dataset import NAME

PLASTICITY = marks.Look("mean plasticity", INK, "o")
ENDS = {
    "_plasticity_first": marks.Look("queries in the first fifth of the window", INK, "^"),
    "_plasticity_last": marks.Look("queries in the last fifth", SEPARATOR, "s"),
}
MEASURES = ("plasticity", "plasticity_first", "plasticity_last", "plasticity_drop")
DRIFT = marks.Look("mean", INK, "o")


def missing(view: View, measure: str, variable: str) -> str | None:
    """Why an optional measure cannot be drawn, if so."""
    data = view.same_tokens
    if variable not in data or not data[variable].isel(sample=0).notnull().any("head").all():
        return f"the results have no {variable}: add {measure} to the study's measures and run it again"
    return view.why_not_training


def draw_plasticity(view: View, width: float | None = None) -> Drawing:
    """Above: the mean over heads. Below: for queries in the first and in the last fifth of the window."""
    data = view.each_population(partial(means, names=MEASURES, of="plasticity"))
    limits = marks.read_limits(data, [(f"mean{end}", f"se{end}") for end in ("_plasticity", *ENDS)])

    scale = marks.correlation_scale
    whole = partial(marks.draw_populations, data, {"_plasticity": PLASTICITY}, scale, limits)
    main = data[data["population"] == view.main].assign(population=ALL)
    ends = partial(marks.draw_populations, main, ENDS, scale, limits)
    of = f"{view.main} heads, by place of the query" if view.populations else "By place of the query"
    panels = [
        Panel("plasticity", 2.3, whole, "Mean over heads"),
        Panel("plasticity", 2.3, ends, of),
    ]
    keys = [PLASTICITY.of(name).key for name in view.populations or (ALL,)]
    keys += [*(look.key for look in ENDS.values()), marks.error_key()]
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
        variables=MEASURES,
        window="matched",
    )
    figure = draw_stack(view, caption.title, panels, keys, width, spaced=True, matched=True)
    return Drawing(figure, data, caption)


def draw_drift(view: View, width: float | None = None) -> Drawing:
    """Above: overlap of the drift axis with PC0. Below: the bias it gives to keys, in logits over the window."""
    data = view.each_population(partial(means, names=("pc0_overlap", "bias_logits"), of="pc0_overlap"))

    panels = []
    for title, end, scale in (
        ("overlap with PC0", "_pc0_overlap", marks.correlation_scale),
        ("mean bias, logits", "_bias_logits", marks.number_scale),
    ):
        limits = marks.read_limits(data, [(f"mean{end}", f"se{end}")])
        panels.append(Panel(title, 2.3, partial(marks.draw_populations, data, {end: DRIFT}, scale, limits)))
    keys = [*(DRIFT.of(name).key for name in view.populations or (ALL,)), marks.error_key()]
    caption = Caption(
        title=f"The axis of drift with position{view.over_training}",
        shows="Queries and keys drift along an axis a as position grows. Above: how much a coincides with PC0, as the "
        "mean over heads of |a · PC0|. Below: how many logits more the mean query gives a key at the end of the window "
        "than one at its beginning because of that drift; positive means that nearer keys are favoured.",
        made="means over heads of pc0_overlap and of bias_logits = scale · (a · mean query) · slope of keys · window, "
        "with ±1 standard error over documents.",
        drawn="two line plots.",
        events=_drift_events(view, data),
        takeaway="Where the overlap is close to 1, r_q and r_k on PC0 describe the drift; where it is small, they "
        "describe another direction than the one along which position moves the vectors. The bias is that of the mean "
        "query, which no single query is: it gives the sign of the tendency, not what a token attends to.",
        table=NAME,
        variables=("pc0_overlap", "bias_logits"),
        window="matched",
    )
    figure = draw_stack(view, caption.title, panels, keys, width, spaced=True, matched=True)
    return Drawing(figure, data, caption)


def _drift_events(view: View, data: pd.DataFrame) -> tuple[tuple[str, str], ...]:
    """The paths of overlap and bias of each population."""
    found = []
    for name in view.populations or (ALL,):
        rows = data[data["population"] == name]
        last = rows.iloc[-1]
        at = f" at {last['label']}" if len(rows) > 1 else ""
        headline = f"{heads_of(name)}: overlap with PC0 {path(rows, 'mean_pc0_overlap', 'se_pc0_overlap')}"
        bias = path(rows, "mean_bias_logits", "se_bias_logits", signed=True)
        detail = f"The mean bias over the window, in logits, is {bias}. "
        detail += f"Across heads the overlap has a standard deviation of {last['sd_pc0_overlap']:.2f}{at}."
        found.append((headline, detail))
    return tuple(found)


PLASTICITY_PICTURE = Picture(
    "12_plasticity",
    ("plasticity",),
    draw_plasticity,
    lambda view: missing(view, "plasticity", "plasticity"),
)
DRIFT_PICTURE = Picture("13_drift", (), draw_drift, lambda view: missing(view, "rotation", "bias_logits"))
