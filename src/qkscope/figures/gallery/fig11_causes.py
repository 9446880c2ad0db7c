"""Figure 11: a waterfall of what training, RoPE settings and window add at each step."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from qkscope.figures.axis import CheckpointAxis, Panel, draw_stack
from qkscope.figures.marks import correlation_scale, draw_errors, error_key
from qkscope.figures.picture import Caption, Drawing, Picture, heads_of, path
from qkscope.figures.sheet import Key, stroke, swatch
from qkscope.figures.style import CAUSE_COLOURS, INK, MUTED, PAPER
from qkscope.figures.view import ALL, View
from qkscope.results.aggregate import finite, over_heads, present, values
from qkscope.words import bare, listing, number

# Means that are drawn: column of the heads, title of the panel. The last two are published r.
DRAWN = {
    "mean share_positional": ("share_positional", "position's share"),
    "mean r_q": ("r_q", "mean $r_q$"),
    "mean r_k": ("r_k", "mean $r_k$"),
}
NAMES = {"mean share_positional": "position's share of score variance"}
# Bars of a step, in the order in which the causes act: their column in causes.csv and their colour.
PARTS = {"RoPE settings": "rotation_first", "training": "weights_first", "window": "window"}
COLOURS = {part: CAUSE_COLOURS[column.removesuffix("_first")] for part, column in PARTS.items()}
# Of the first two, the part from heads whose first axis stayed.
STAYED = {"RoPE settings": "rotation_same_axis", "training": "weights_same_axis"}
CHANGED = "outlined: heads whose PC0 became a different direction"
UNDIVIDED = "training and RoPE settings, not separable"
EDGE = 0.12  # of the distance between checkpoints: half the width of a level
MOST_EVENTS = 1  # means that the README quotes: the causes' claim comes after it
GAP = 0.008  # on either side of a bar
SMALLEST = 0.0005  # parts below this leave no mark


def why_not(view: View) -> str | None:
    if len(view.order) < 2:
        return "it needs two checkpoints, and there is one"
    if view.of_models:
        return view.why_not_training
    return "causes were not measured: `qkscope run` does" if _bars(view).empty else None


def draw(view: View, width: float | None = None) -> Drawing:
    """Levels of the checkpoints, and between them a bar for every factor that changed, from level to level."""
    data = _bars(view)
    ends = data[["start", "stop"]].to_numpy()
    limits = float(ends.min()), float(ends.max())
    panels = [
        Panel(title, 2.6, partial(_draw, data[data["number"] == number], limits))
        for number, (_, title) in DRAWN.items()
        if (data["number"] == number).any()
    ]
    caption = _caption(view, data)
    return Drawing(draw_stack(view, caption.title, panels, _keys(data), width), data, caption)


def _caption(view: View, data: pd.DataFrame) -> Caption:
    heads, count = heads_of(view.main), view.count(view.main)
    many = f"all {count:,} heads" if view.main == ALL else f"the {count:,} {heads}"
    scores = "mean share_positional" in set(data["number"])
    plain = "position's share, mean " if scores else "mean "
    share = "position's mean share of score variance, " if scores else ""
    return Caption(
        title=f"What changed {plain}$r_q$ and $r_k$ of {heads}{view.over_own}",
        shows=f"Black lines are {share}mean r_q and mean r_k, with their signs, of {many} of each "
        f"{view.noun} over its training context. Between two of them stands a bar for each thing that changed, in this "
        "order: RoPE settings, training, window. Each begins where the one before it ends."
        + (" The filled part of a bar is from heads whose first axis stayed, the outlined part from heads in which a "
           "different direction became PC0." if data["stayed"].notna().any() else ""),
        made=f"effects are means over {heads}. RoPE settings: the earlier weights with the later settings, minus the "
        "earlier checkpoint. Training: the later checkpoint minus that. Both over the shorter of the two windows, so "
        "that no weights run past their trained length. Window: what is added when each checkpoint is read over "
        "its own window instead.",
        drawn="waterfall; all panels have the same scale, error bars are ±1 standard error over documents.",
        takeaway="Opposing parts can leave a small change of the mean behind two large ones. causes.csv has the "
        "effects in the other order too.",
        events=_events(view, data),
        care="r also depends on how queries and keys are scaled against each other; position's share does not. Heads "
        "whose r_k has opposite signs cancel in mean r_k."
        + (" NoPE heads are not shown; causes.csv has them." if view.populations else ""),
        table="causes.csv",
        variables=(*PARTS.values(), *STAYED.values()),
        window="own",
    )  # fmt: skip


def _events(view: View, data: pd.DataFrame) -> tuple[tuple[str, str], ...]:
    """The levels drawn: the path of each mean, and the step with the largest parts."""
    found = []
    for name, bars in list(data.groupby("number", sort=False))[:MOST_EVENTS]:
        steps = [step for _, step in bars.groupby(["from_model", "to_model"], sort=False)]
        models = [steps[0]["from_model"].iloc[0], *(step["to_model"].iloc[0] for step in steps)]
        level = [steps[0]["start"].iloc[0], *(step["stop"].iloc[-1] for step in steps)]
        labels = [view.labels[model] for model in models]
        trend = path(pd.DataFrame({"label": labels, "level": level, "se": np.nan}), "level", "se")
        largest = max(steps, key=lambda step: float((step["stop"] - step["start"]).abs().sum()))
        parts = [
            f"{row['part']} {number(row['stop'] - row['start'], row['se'], signed=True)}"
            for row in largest.to_dict("records")
        ]
        total = bare(float(largest["stop"].iloc[-1] - largest["start"].iloc[0]), signed=True)
        before, after = (view.labels[largest[end].iloc[0]] for end in ("from_model", "to_model"))
        headline = f"{NAMES.get(str(name), name)} of {heads_of(view.main)}{view.over_own}: {trend}"
        together = f", together {total}." if len(parts) > 1 else "."
        found.append((headline, f"The largest bars are from {before} to {after}: {listing(parts)}{together}"))
    return tuple(found)


def _bars(view: View) -> pd.DataFrame:
    """A row per bar, in the order of the steps.

    A step starts at the mean of its first checkpoint over the heads that both checkpoints have. `stayed` is the part of
    the bar from heads whose first axis stayed, NaN where that is not known or does not apply.
    """
    columns = ["number", "population", "from_model", "to_model", "part", "start", "stop", "stayed", "se"]
    table, rows = view.results.causes, []
    if table is None:
        return pd.DataFrame(columns=columns)
    for what, (name, _) in DRAWN.items():
        steps = table[(table["number"] == what) & table["population"].isin([view.main, ALL])]
        for step in steps.to_dict("records"):
            start = _level(view, step, name)
            for part, (value, error) in _parts(step).items():
                if abs(value) > SMALLEST or error > 0:
                    place = what, step["population"], step["from_model"], step["to_model"], part
                    stayed = step.get(STAYED.get(part, ""), np.nan)
                    rows.append((*place, start, start + value, stayed, error))
                start += value
    return pd.DataFrame(rows, columns=columns)


def _level(view: View, step: Mapping[Hashable, Any], name: str) -> float:
    """The mean at which a step starts: of its first checkpoint, over the heads that both checkpoints have."""
    own = view.results.own()
    before, after = (values(own, name).sel(checkpoint=step[end]) for end in ("from_model", "to_model"))
    here = present(own, step["population"]).sel(checkpoint=step["to_model"])
    both = here & finite(after.isel(sample=0, drop=True))
    return float(over_heads(before, both).isel(sample=0))


def _parts(step: Mapping[Hashable, Any]) -> dict[str, tuple[float, float]]:
    """Effect and error of each bar of a step; what cannot be separated is one bar."""
    parts = {part: (step[column], step[f"{column}_se"]) for part, column in PARTS.items()}
    if all(np.isfinite(value) for value, _ in parts.values()):
        return parts
    together = "weights_and_rotation"
    return {UNDIVIDED: (step[together], step[f"{together}_se"]), "window": parts["window"]}


def _draw(data: pd.DataFrame, limits: tuple[float, float], axes: Axes, axis: CheckpointAxis) -> None:
    place = axis.view.place
    for (before, after), step in data.groupby(["from_model", "to_model"], sort=False):
        left, right = place[before] + EDGE, place[after] - EDGE
        edges = np.linspace(left, right, len(step) + 1)
        low, high = step["start"].to_numpy(), step["stop"].to_numpy()
        axes.hlines(low[0], place[before] - EDGE, left, color=INK, linewidth=2.0, zorder=4)
        axes.hlines(high[-1], right, place[after] + EDGE, color=INK, linewidth=2.0, zorder=4)
        width, stayed = np.diff(edges) - 2 * GAP, step["stayed"].to_numpy()
        turn = np.where(np.isfinite(stayed), low + stayed, high)
        colours = [COLOURS.get(part, MUTED) for part in step["part"]]
        hatched = (step["part"] == UNDIVIDED).to_list()
        # Edges in the bars' own colour keep the smallest bars visible; hatches are drawn in the edge's colour.
        rims = [PAPER if each else colour for each, colour in zip(hatched, colours, strict=True)]
        axes.bar(
            edges[:-1] + GAP, turn - low, width, low, align="edge", color=colours, edgecolor=rims,
            linewidth=0.6, zorder=2, hatch=["//" if each else "" for each in hatched],
        )  # fmt: skip
        rest = np.abs(high - turn) > SMALLEST
        axes.bar(
            (edges[:-1] + GAP)[rest], (high - turn)[rest], width[rest], turn[rest], align="edge", color="none",
            edgecolor=np.array(colours)[rest], linewidth=0.8, zorder=3,
        )  # fmt: skip
        middle = (edges[:-1] + edges[1:]) / 2
        draw_errors(axes, middle, high, step["se"].to_numpy(), INK, axis.pitch / 3, 0.9)
    correlation_scale(axes, axis.paper, *limits)


def _keys(data: pd.DataFrame) -> list[Key]:
    there = set(data["part"])
    keys = [swatch(part, colour) for part, colour in COLOURS.items() if part in there]
    if ((data["stop"] - data["start"] - data["stayed"]).abs() > SMALLEST).any():
        keys.append(swatch(CHANGED, PAPER, edgecolor=MUTED))
    if UNDIVIDED in there:
        keys.append(swatch(UNDIVIDED, MUTED, hatch="//", edgecolor=PAPER))
    keys.append(stroke("mean of a checkpoint", INK))
    return [*keys, *([error_key()] if data["se"].notna().any() else [])]


PICTURE = Picture("11_causes", ("causes",), draw, why_not)
