"""Figures 01 and 04: mean r_q, r_k and explained variance on PC0 over the checkpoints.

The upper panel has all heads over both windows, the lower one RoPE and NoPE heads over the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkscope.figures import marks
from qkscope.figures.axis import CheckpointAxis, Panel, draw_stack
from qkscope.figures.picture import Caption, Drawing, Picture, heads_of, path
from qkscope.figures.style import R_K, R_Q, VARIANCE
from qkscope.figures.view import ALL, MATCHED, OWN, View
from qkscope.results.aggregate import explained_variance, means
from qkscope.words import joined, sentence

# The columns of each line: `mean` with this at its end, likewise `se` and `sd`.
SIGNAL = {"_r_q": marks.Look("mean $r_q$", R_Q, "o"), "_r_k": marks.Look("mean $r_k$", R_K, "s")}
VARIANCES = {"": marks.Look("mean explained variance", VARIANCE, "o")}


def draw_signal(view: View, width: float | None = None) -> Drawing:
    """Blue circles: r_q; red squares: r_k; shaded: +/- 1 standard deviation across heads."""
    data = view.with_populations(partial(means, names=("r_q", "r_k")))
    errors = bool(data[["se_r_q", "se_r_k"]].notna().any(axis=None))
    bars = ", bars ±1 standard error over documents" if errors else ""
    below = f" The lower panel has the means of RoPE heads (filled) and NoPE heads (hollow, dashed){view.of_matched}."
    caption = Caption(
        title=f"Position correlation on PC0{view.over_training}",
        shows="Lines are the mean over all heads of r_q (blue circles) and r_k (red squares), the correlation of "
        f"queries and keys with position along PC0. Shaded bands are ±1 standard deviation across heads{bars}."
        + view.window_sentence + view.phases_sentence + (below if view.populations else ""),
        made=f"for each {view.noun}, mean and standard deviation of r_q and r_k over all measured heads"
        + (", then the means over the heads of layers with and without rotary embedding." if view.populations else "."),
        events=_signal_events(view, data),
        drawn="line plot with bands" + ("; both panels have the same scale." if view.populations else "."),
        variables=("r_q", "r_k"),
        takeaway="Near 1, queries or keys of most heads move steadily along PC0 as position grows; near 0 they do not, "
        "along this axis. Neither says whether heads attend by position.",
        care=view.pooled_sentence,
    )  # fmt: skip
    panels = {"correlation with position, PC0": 3.6, "correlation": 2.6}
    figure = _draw(view, data, SIGNAL, panels, marks.correlation_scale, caption.title, width)
    return Drawing(figure, data, caption)


def draw_variance(view: View, width: float | None = None) -> Drawing:
    """Purple circles: the mean; shaded: +/- 1 standard deviation across heads."""
    data = view.with_populations(explained_variance)
    caption = Caption(
        title=f"Explained variance of PC0{view.over_training}",
        shows="The share of the variance of a head's queries and keys that lies along PC0, their first shared axis: "
        "the mean over all heads, with a band of ±1 standard deviation across heads."
        + view.window_sentence
        + (f" The lower panel has RoPE and NoPE heads apart{view.of_matched}." if view.populations else ""),
        made=f"for each {view.noun}, mean and standard deviation of explained_variance over the heads.",
        drawn="line plot with a band" + ("; both panels have the same scale." if view.populations else "."),
        variables=("explained_variance",),
        events=_variance_events(view, data),
        takeaway="A large share means that queries and keys differ mostly along one direction, so that correlations on "
        "PC0 describe most of what these vectors do; with a small share, position may be carried by other axes that "
        "this figure and r_q do not see. The share depends on how queries and keys are scaled, which attention scores "
        "do not: compare it within one model.",
        care=view.pooled_sentence,
    )
    panels = {"explained variance, PC0": 3.2, "explained variance": 2.4}
    figure = _draw(view, data, VARIANCES, panels, marks.share_scale, caption.title, width)
    return Drawing(figure, data, caption)


def _draw(
    view: View,
    data: pd.DataFrame,
    looks: Mapping[str, marks.Look],
    panels: Mapping[str, float],
    scale: Callable[..., None],
    title: str,
    width: float | None,
) -> Figure:
    """Both panels on one scale; `panels` are the names of their vertical axes with their heights."""
    whole, apart = data[data["population"] == ALL], data[data["population"] != ALL]
    ends = [marks.read_limits(whole, [(f"mean{end}", f"sd{end}") for end in looks])]
    if len(apart):
        ends.append(marks.read_limits(apart, [(f"mean{end}", f"se{end}") for end in looks]))
    limits = min(low for low, _ in ends), max(high for _, high in ends)

    def all_heads(axes: Axes, axis: CheckpointAxis) -> None:
        for end, look in looks.items():
            marks.draw_quantity(axes, axis, whole, look, f"mean{end}", f"se{end}", f"sd{end}")
        scale(axes, axis.paper, *limits)

    upper, lower = panels.items()
    stack = [Panel(*upper, all_heads, f"All heads{view.over_own}" if len(apart) else "")]
    keys = [*(look.key for look in looks.values()), marks.band_key()]
    if data[[f"se{end}" for end in looks]].notna().any(axis=None):
        keys.append(marks.error_key())
    if view.rematched:
        keys += [look.over(view.matched_text).key for look in looks.values()]
    if len(apart):
        keys += [look.of(name).key for name in view.populations for look in looks.values()]
        populations = partial(marks.draw_populations, apart, looks, scale, limits)
        stack.append(Panel(*lower, populations, f"RoPE and NoPE heads{view.over_matched}"))
    return draw_stack(view, title, stack, keys, width, spaced=True)


def _signal_events(view: View, data: pd.DataFrame) -> tuple[tuple[str, str], ...]:
    """The paths of r_q and r_k of each population, over the same tokens."""
    found: list[str] = []
    for name in view.populations or (ALL,):
        rows = data[data["population"] == name]
        if name == ALL:
            rows = rows[(rows["window"] == MATCHED) | ~rows["model"].isin(view.rematched)]
            rows = rows.sort_values("model", key=lambda models: models.map(view.place), kind="stable")
        said = [f"mean {value} {path(rows, f'mean_{value}', f'se_{value}')}" for value in ("r_q", "r_k")]
        found.append(f"{heads_of(name)}{'' if found else view.over_matched}: {'; '.join(said)}")
    first, *rest = found
    return ((first, joined(*map(sentence, rest))),)


def _variance_events(view: View, data: pd.DataFrame) -> tuple[tuple[str, str], ...]:
    """The path of each population."""
    found = []
    for name in view.populations or (ALL,):
        rows = data[data["population"] == name]
        known = rows[rows["mean"].notna() & ((rows["window"] == OWN) | (name != ALL))]
        if known.empty:
            continue
        last = known.iloc[-1]
        at = f" at {last['label']}" if len(known) > 1 else ""
        headline = f"{heads_of(name)}: PC0's mean share of the variance is {path(known, 'mean', 'se')}"
        found.append((headline, f"The standard deviation across heads{at} is {last['sd']:.2f}."))
    return tuple(found)


def _no_variance(view: View) -> str | None:
    if not view.results.own()["explained_variance"].notnull().any():
        return "the results have no explained_variance"
    return view.why_not_training


POSITION_SIGNAL = Picture(
    "01_position_signal", ("queries_keys", "long_context"), draw_signal, lambda view: view.why_not_training
)
EXPLAINED_VARIANCE = Picture("04_explained_variance", (), draw_variance, _no_variance)
