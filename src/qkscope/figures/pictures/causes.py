"""Figure 11: a waterfall of what training, RoPE settings and window add to mean r_q and r_k at each step."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from qkscope.causes_table import FACTORS
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.stories import path
from qkscope.figures.tools.axis import CheckpointAxis, Panel, draw_stack
from qkscope.figures.tools.marks import correlation_scale, draw_errors, error_key
from qkscope.figures.tools.sheet import Key
from qkscope.figures.tools.style import CAUSE_COLOURS, INK, MUTED, PAPER
from qkscope.figures.view import View
from qkscope.words import bare

DRAWN = {"mean r_q": "r_q", "mean r_k": "r_k"}
UNDIVIDED = "undivided"
NAMES = {"weights": "training (weights)", "rotation": "RoPE settings", "window": "window"}
EDGE = 0.12  # of the distance between checkpoints: half the width of a level
SMALLEST = 0.0005  # parts below this leave no mark


def why_not(view: View) -> str | None:
    if len(view.order) < 2:
        return "it needs two checkpoints, and there is one"
    if view.of_models:
        return view.why_no_course
    found = _table(view)
    return "causes were not measured: `qkscope run` does" if found is None or found.empty else None


def draw(view: View, width: float | None = None) -> Drawing:
    """Levels of the checkpoints, and between them a bar for every factor that changed, from level to level."""
    data = _bars(view)
    ends = data[["start", "stop"]].to_numpy()
    limits = float(ends.min()), float(ends.max())
    panels = [
        Panel(f"mean $r_{name[-1]}$", 2.6, partial(_draw, data[data["number"] == number], limits))
        for number, name in DRAWN.items()
        if (data["number"] == number).any()
    ]
    caption = _caption(view, data)
    return Drawing(draw_stack(view, caption.title, panels, _keys(data), width, matched=True), data, caption)


def _caption(view: View, data: pd.DataFrame) -> Caption:
    over = f" over the {view.matched_text} of every text" if view.rematched else ""
    return Caption(
        title=f"What changed mean $r_q$ and $r_k$ of all heads{view.over_matched}",
        shows=f"Black lines are mean r_q (above) and mean r_k (below), with their signs, of all {_heads(view)} of each "
        f"{view.noun}{over}. Between two of them stands one bar for each thing "
        "that changed: training of the weights, RoPE settings, window. Each bar begins where the one before it ends, "
        "so a long bar down beside one up is a change whose parts oppose each other.",
        made="each part is the effect of exchanging one factor, averaged over the orders of exchange measured with "
        "counterfactual checkpoints (Shapley values); parts add up to the change.",
        drawn="waterfall; both panels have the same scale, error bars are ±1 standard error over documents.",
        takeaway="Parts that oppose each other can leave a small change of the mean behind two large ones, and the "
        "effect of one factor depends on what it is combined with; the bars average over that.",
        stories=_stories(view, data),
        care="All heads are pooled, RoPE and NoPE; heads whose r_k has opposite signs cancel."
        if view.populations
        else "",
        table="causes_matched.csv" if view.rematched else "causes.csv",
        window="matched",
    )  # fmt: skip


def _heads(view: View) -> str:
    return "heads, RoPE and NoPE together," if view.populations else "heads"


def _stories(view: View, data: pd.DataFrame) -> tuple[tuple[str, str], ...]:
    """The levels drawn: the path of each mean, and its largest steps."""
    found = []
    for number_name, steps in data.groupby("number", sort=False):
        ends = steps.groupby(["from_model", "to_model"], sort=False).agg({"start": "first", "stop": "last"})
        models = [ends.index[0][0], *(after for _, after in ends.index)]
        levels = pd.DataFrame(
            {
                "label": [view.labels[model] for model in models],
                "level": [ends["start"].iloc[0], *ends["stop"]],
                "se": np.nan,
            }
        )
        change = ends["stop"] - ends["start"]
        before, after = change.abs().idxmax()
        largest = bare(float(change.loc[(before, after)]), signed=True)
        found.append(
            (
                f"{number_name} of all heads{view.over_matched}: {path(levels, 'level', 'se')}",
                f"The largest step, {largest}, is from {view.labels[before]} to {view.labels[after]}.",
            )
        )
    return tuple(found)


def _table(view: View) -> pd.DataFrame | None:
    """Over the same tokens where windows differ: no checkpoint runs past its trained length there."""
    results = view.results
    return results.causes_matched if view.rematched else results.causes


def _bars(view: View) -> pd.DataFrame:
    """number, from_model, to_model, part, start, stop, se: a row per bar, in the order of the steps."""
    table, rows = _table(view), []
    heads = view.results.matched if view.rematched else view.results.heads
    columns = ["number", "from_model", "to_model", "part", "start", "stop", "se"]
    if table is None or heads is None:
        return pd.DataFrame(columns=columns)
    for what, column in DRAWN.items():
        levels = heads.groupby("model")[column].mean()
        for step in table[table["number"] == what].to_dict("records"):
            start = float(levels[step["from_model"]])
            known = np.isfinite([step[factor] for factor in FACTORS]).all()
            for part in FACTORS if known else (UNDIVIDED,):
                source = part if known else "total"
                stop, error = start + step[source], step[f"{source}_se"]
                if abs(step[source]) > SMALLEST or error > 0:
                    rows.append((what, step["from_model"], step["to_model"], part, start, stop, error))
                start = stop
    return pd.DataFrame(rows, columns=columns)


def _draw(data: pd.DataFrame, limits: tuple[float, float], axes: Axes, axis: CheckpointAxis) -> None:
    place = axis.view.place
    for (before, after), step in data.groupby(["from_model", "to_model"], sort=False):
        left, right = place[before] + EDGE, place[after] - EDGE
        edges = np.linspace(left, right, len(step) + 1)
        low, high = step["start"].to_numpy(), step["stop"].to_numpy()
        axes.hlines(low[0], place[before] - EDGE, left, color=INK, linewidth=2.0, zorder=4)
        axes.hlines(high[-1], right, place[after] + EDGE, color=INK, linewidth=2.0, zorder=4)
        colours = [CAUSE_COLOURS.get(part, MUTED) for part in step["part"]]
        axes.bar(
            edges[:-1], high - low, np.diff(edges), low, align="edge", color=colours, edgecolor=PAPER,
            linewidth=0.6, zorder=2, hatch=["//" if part == UNDIVIDED else "" for part in step["part"]],
        )  # fmt: skip
        middle = (edges[:-1] + edges[1:]) / 2
        draw_errors(axes, middle, high, step["se"].to_numpy(), INK, axis.pitch / 3, 0.9)
    correlation_scale(axes, axis.paper, *limits)


def _keys(data: pd.DataFrame) -> list[Key]:
    there = set(data["part"])
    keys = [Key(Patch(facecolor=CAUSE_COLOURS[part]), NAMES[part]) for part in FACTORS if part in there]
    if UNDIVIDED in there:
        mark = Patch(facecolor=MUTED, hatch="//", edgecolor=PAPER)
        keys.append(Key(mark, "training and RoPE settings, not separable"))
    keys.append(Key(Line2D([], [], color=INK, linewidth=2.0), "mean of a checkpoint"))
    return [*keys, *([error_key()] if data["se"].notna().any() else [])]


PICTURE = Picture("11_causes", (), draw, why_not)
