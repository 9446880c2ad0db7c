"""A waterfall: what training, rotation settings and window add to mean r_q and r_k from checkpoint to checkpoint."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from qkscope.causes_table import FACTORS
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools.axis import CheckpointAxis
from qkscope.figures.tools.lines import correlation_scale, draw_errors, error_key
from qkscope.figures.tools.sheet import Key
from qkscope.figures.tools.stack import Panel, draw_stack
from qkscope.figures.tools.style import CAUSE_COLOURS, INK, MUTED, PAPER
from qkscope.figures.view import View

DRAWN = {"mean r_q": "r_q", "mean r_k": "r_k"}
UNDIVIDED = "undivided"
NAMES = {"weights": "training (weights)", "rotation": "rotation settings", "window": "window"}
EDGE = 0.12  # of one checkpoint's place: room beside the level of a checkpoint
SMALLEST = 0.0005  # parts below this leave no mark


class Causes(Picture):
    """Levels of the checkpoints, and between them a bar for every factor that changed, from level to level."""

    name = "17_causes"
    claims = ("long_context",)

    def title(self, view: View) -> str:
        return (
            f"What caused the changes over the {view.matched_text}?"
            if view.rematched
            else "What caused the changes?"
        )

    def why_not(self, view: View) -> str | None:
        if len(view.order) < 2:
            return "it needs two checkpoints, and there is one"
        if view.of_models:
            return view.why_no_course
        found = _table(view)
        return "causes were not measured: `qkscope run` does" if found is None or found.empty else None

    def draw(self, view: View, width: float | None = None) -> Drawing:
        data = _bars(view)
        panels = [
            Panel(number, 2.6, partial(_draw, data[data["number"] == number]))
            for number in DRAWN
            if (data["number"] == number).any()
        ]
        return Drawing(draw_stack(view, self.title(view), panels, keys=_keys(data), width=width), data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        over = f" over the {view.matched_text} of every checkpoint" if view.rematched else ""
        return Caption(
            shows="Horizontal lines are the checkpoints' levels. Between two of them stands a bar for everything that "
            f"changed: it begins where the one before ends, and the last ends at the next level{over}. A long bar "
            "down beside a short one up is a change whose parts work against each other.",
            made="Each part is what exchanging one factor adds, averaged over the orders of exchange that were "
            "measured with counterfactual checkpoints (Shapley's values); parts sum to the change.",
            table="causes_matched.csv" if view.rematched else "causes.csv",
            window="matched",
        )


def _table(view: View) -> pd.DataFrame | None:
    """Over the same tokens where windows differ: there nothing is extrapolated."""
    results = view.results
    return results.causes_matched if view.rematched else results.causes


def _bars(view: View) -> pd.DataFrame:
    """number, from_model, to_model, part, start, stop, se: a row per bar, in the order of the steps."""
    table, rows = _table(view), []
    heads = view.results.matched if view.rematched else view.results.heads
    if table is None or heads is None:
        return pd.DataFrame()
    for number, column in DRAWN.items():
        levels = heads.groupby("model")[column].mean()
        for step in table[table["number"] == number].to_dict("records"):
            start = float(levels[step["from_model"]])
            known = np.isfinite([step[factor] for factor in FACTORS]).all()
            for part in FACTORS if known else (UNDIVIDED,):
                source = part if known else "total"
                stop = start + step[source]
                ends = {"from_model": step["from_model"], "to_model": step["to_model"]}
                if abs(step[source]) > SMALLEST or step[f"{source}_se"] > 0:
                    error = step[f"{source}_se"]
                    rows.append(
                        {"number": number, **ends, "part": part, "start": start, "stop": stop, "se": error}
                    )
                start = stop
    return pd.DataFrame(rows, columns=["number", "from_model", "to_model", "part", "start", "stop", "se"])


def _draw(data: pd.DataFrame, axes: Axes, axis: CheckpointAxis) -> None:
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
            linewidth=0.6, zorder=2,
        )  # fmt: skip
        middle = (edges[:-1] + edges[1:]) / 2
        draw_errors(axes, middle, high, step["se"].to_numpy(), INK, axis.pitch / 3, 0.9)
    ends = data[["start", "stop"]].to_numpy()
    correlation_scale(axes, axis.paper, float(ends.min()), float(ends.max()))


def _keys(data: pd.DataFrame) -> list[Key]:
    there = set(data["part"])
    keys = [Key(Patch(facecolor=CAUSE_COLOURS[part]), NAMES[part]) for part in FACTORS if part in there]
    if UNDIVIDED in there:
        keys.append(Key(Patch(facecolor=MUTED), "training and rotation, not told apart"))
    keys.append(Key(Line2D([], [], color=INK, linewidth=2.0), "level of a checkpoint"))
    return [*keys, *([error_key("±1 standard error over documents")] if data["se"].notna().any() else [])]


PICTURE = Causes()
