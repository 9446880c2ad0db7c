"""Figure 01: mean r_q and r_k on PC0 over the checkpoints, of all heads and of RoPE and NoPE heads."""

from __future__ import annotations

from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from qkscope.figures.picture import Caption, Drawing, Picture, heads_of, path
from qkscope.figures.tools import marks
from qkscope.figures.tools.axis import CheckpointAxis, Panel, draw_stack
from qkscope.figures.tools.style import R_K, R_Q
from qkscope.figures.view import ALL, MATCHED, View
from qkscope.results.aggregate import means
from qkscope.words import joined, sentence

QUERY, KEY = marks.Look("mean $r_q$", R_Q, "o"), marks.Look("mean $r_k$", R_K, "s")
ALL_HEADS = {"r_q": QUERY, "r_k": KEY}
BY_POPULATION = {
    "RoPE": {
        "r_q": marks.Look("$r_q$, RoPE heads", R_Q, "o"),
        "r_k": marks.Look("$r_k$, RoPE heads", R_K, "s"),
    },
    "NoPE": {
        "r_q": marks.Look("$r_q$, NoPE heads", R_Q, "o", hollow=True, dashes=(0, (3, 1.5))),
        "r_k": marks.Look("$r_k$, NoPE heads", R_K, "s", hollow=True, dashes=(0, (3, 1.5))),
    },
}


def draw(view: View, width: float | None = None) -> Drawing:
    """Blue circles: r_q; red squares: r_k; shaded: +/- 1 standard deviation across heads."""
    data = view.with_populations(partial(means, names=("r_q", "r_k")))
    whole, apart = data[data["population"] == ALL], data[data["population"] != ALL]
    limits = marks.read_limits(whole, [("mean_r_q", "sd_r_q"), ("mean_r_k", "sd_r_k")])
    if len(apart):
        ends = marks.read_limits(apart, [("mean_r_q", "se_r_q"), ("mean_r_k", "se_r_k")])
        limits = min(limits[0], ends[0]), max(limits[1], ends[1])

    def all_heads(axes: Axes, axis: CheckpointAxis) -> None:
        for value, look in ALL_HEADS.items():
            marks.draw_quantity(axes, axis, whole, look, f"mean_{value}", f"se_{value}", f"sd_{value}")
        marks.correlation_scale(axes, axis.paper, *limits)

    def populations(axes: Axes, axis: CheckpointAxis) -> None:
        for name, looks in BY_POPULATION.items():
            for value, look in looks.items():
                rows = apart[apart["population"] == name]
                marks.draw_line(axes, axis, rows, look, f"mean_{value}", f"se_{value}")
        marks.correlation_scale(axes, axis.paper, *limits)

    errors = bool(data[["se_r_q", "se_r_k"]].notna().any(axis=None))
    keys = [QUERY.key, KEY.key, marks.band_key(), *([marks.error_key()] if errors else [])]
    if view.rematched:
        keys += [look.matched_key(f"{look.name}, {view.matched_text}") for look in ALL_HEADS.values()]
    panels = [Panel("correlation with position, PC0", 3.6, all_heads, "All heads" if len(apart) else "")]
    if len(apart):
        keys += [look.key for looks in BY_POPULATION.values() for look in looks.values()]
        panels.append(Panel("correlation", 2.6, populations, f"RoPE and NoPE heads{view.over_matched}"))
    caption = _caption(view, data, errors)
    return Drawing(draw_stack(view, caption.title, panels, keys, width, spaced=True), data, caption)


def _caption(view: View, data: pd.DataFrame, errors: bool) -> Caption:
    below = (
        f" The lower panel has the means of RoPE heads (filled) and NoPE heads (hollow, dashed){view.over_matched}."
        if view.populations
        else ""
    )
    return Caption(
        title=f"Position correlation on PC0{view.over_training}",
        shows="Lines are the mean over all heads of r_q (blue circles) and r_k (red squares), the correlation of "
        f"queries and keys with position along PC0. Shaded bands are ±1 standard deviation "
        f"across heads{', bars ±1 standard error over documents' if errors else ''}."
        + (" Vertical dashed lines separate training phases." if len(view.phases) > 1 else "")
        + view.window_sentence + below,
        made=f"for each {view.noun}, mean and standard deviation of r_q and r_k over all measured heads"
        + (", then the means over the heads of layers with and without rotary embedding." if view.populations else "."),
        events=_events(view, data),
        drawn="line plot with bands" + ("; both panels have the same scale." if view.populations else "."),
        variables=("r_q", "r_k"),
        care="The upper panel pools RoPE and NoPE heads, as the published figure does."
        if view.populations
        else "",
    )  # fmt: skip


def _events(view: View, data: pd.DataFrame) -> tuple[tuple[str, str], ...]:
    """The paths of r_q and r_k of each population, over the same tokens."""
    found: list[str] = []
    for name in view.populations or (ALL,):
        rows = data[data["population"] == name]
        if name == ALL:
            rows = rows[(rows["window"] == MATCHED) | ~rows["model"].isin(view.rematched)]
            rows = rows.sort_values("model", key=lambda models: models.map(view.place), kind="stable")
        said = [f"mean {value} {path(rows, f'mean_{value}', f'se_{value}')}" for value in ALL_HEADS]
        found.append(f"{heads_of(name)}{'' if found else view.over_matched}: {'; '.join(said)}")
    first, *rest = found
    return ((first, joined(*map(sentence, rest))),)


PICTURE = Picture(
    "01_position_signal", ("queries_keys", "long_context"), draw, lambda view: view.why_no_course
)
