"""Which heads moved from which class to which, as a flow between consecutive checkpoints."""

from __future__ import annotations

from collections import defaultdict

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch, Rectangle
from matplotlib.path import Path as Outline

from qkscope.figures.axis import CheckpointAxis
from qkscope.figures.prose import Words, figure, joined, listing, md, small
from qkscope.figures.style import (
    CLASS_COLOURS,
    INK,
    MUTED,
    PAPER,
    Key,
    halo,
    lettering,
    name_axis,
    scale,
    sheet,
    write,
)
from qkscope.figures.taxonomy_evolution import gains
from qkscope.figures.view import MATCHED, OWN, Drawing, View, look
from qkscope.inference import transition_noise
from qkscope.results import Results
from qkscope.taxonomy import CLASSES, UNMEASURED, transitions

NAME = "08_transitions"
NODE = 0.16  # of one checkpoint's place: the column of classes the flows run between
STAYED, MOVED = 0.16, 0.62  # opacity


def why_not(view: View) -> str | None:
    """Why there is nothing to draw, if so."""
    if len(view.order) < 2:
        return "it needs two checkpoints, and there is one"
    if view.of_models:
        return "heads of different models cannot move into one another"
    if transitions(view.results.heads, view.order).empty:
        return "no head is in two consecutive checkpoints"
    return None


def draw(results: Results) -> Drawing:
    """Ribbons as high as their number of heads, in the colour of the class they leave; pale where heads stay."""
    view = look(results)
    data = flows(view)
    axis = CheckpointAxis(view)
    gap = 0.42
    panels = [OWN, *([MATCHED] if view.rematched else [])]
    height = 4.2 if len(panels) == 1 else 3.3
    body = axis.above + len(panels) * height + (len(panels) - 1) * gap + axis.below
    page = sheet("Which heads change their class", view.subtitle, axis.sheet_width, body, _keys(data))
    for i, window in enumerate(panels):
        axes = page.axes(axis.left, axis.above + i * (height + gap), axis.width, height)
        axis.draw(axes, names=i == len(panels) - 1, phases=i == 0)
        draw_flows(axes, view, data[data["window"] == window], axis.pitch)
        if window == MATCHED:
            heading = f"every checkpoint over its {view.matched_text}"
            axes.set_title(heading, loc="left", pad=6, **lettering(10, MUTED, "bold"))
    return Drawing(page.figure, data)


def flows(view: View) -> pd.DataFrame:
    """window, from_model, to_model, from_class, to_class, heads: a row per ribbon."""
    tables = [transitions(view.results.heads, view.order).assign(window=OWN)]
    matched = view.results.matched
    if view.rematched and matched is not None:
        there = set(matched["model"])
        found = transitions(matched, [model for model in view.order if model in there])
        tables.append(found.assign(window=MATCHED))
    return pd.concat(tables, ignore_index=True)[
        ["window", "from_model", "to_model", "from_class", "to_class", "heads"]
    ]


def draw_flows(axes: Axes, view: View, data: pd.DataFrame, pitch: float) -> None:
    """Columns of classes at the checkpoints, ribbons between them."""
    steps = list(data.groupby(["from_model", "to_model"], sort=False))
    most = max(int(step["heads"].sum()) for _, step in steps)
    for i, ((before, after), step) in enumerate(steps):
        left, right = view.place[before], view.place[after]
        # Each step draws its half of a column: where heads differ between steps, the halves differ too.
        wide = NODE if i == 0 else NODE / 2
        _column(axes, left + NODE / 2 - wide, wide, step.groupby("from_class")["heads"].sum().to_dict())
        wide = NODE if i == len(steps) - 1 else NODE / 2
        _column(axes, right - NODE / 2, wide, step.groupby("to_class")["heads"].sum().to_dict())
        _ribbons(axes, left + NODE / 2, right - NODE / 2, step, most, pitch)
        moved = int(step.loc[step["from_class"] != step["to_class"], "heads"].sum())
        text = f"{moved} moved" if pitch >= 0.8 else f"{moved}"
        place = {"ha": "center", "va": "bottom", "zorder": 6}
        box = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.0}
        size = 8.5 if pitch >= 0.4 else 7
        write(axes, (left + right) / 2, most * 1.02, text, size, MUTED, bbox=box, **place)
    axes.set_ylim(0, most * 1.085)
    step_size = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 10**9) if most / s <= 7)
    ticks = list(range(0, most + 1, step_size))
    scale(axes, "y", ticks, [f"{tick:,}" for tick in ticks])
    name_axis(axes, y="heads")


def _column(axes: Axes, left: float, width: float, counts: dict[str, int]) -> None:
    bottom = 0
    for name in (*CLASSES, UNMEASURED):
        count = counts.get(name, 0)
        if count:
            hatch = "////" if name == UNMEASURED else None
            box = Rectangle((left, bottom), width, count, facecolor=CLASS_COLOURS[name], hatch=hatch)
            box.set(edgecolor=MUTED, linewidth=0, zorder=4)
            axes.add_artist(box)
            if bottom:
                rule = Line2D(
                    [left, left + width], [bottom] * 2, color=PAPER, linewidth=0.7, linestyle="-", zorder=4.5
                )
                axes.add_artist(rule)
        bottom += count


def _ribbons(axes: Axes, left: float, right: float, step: pd.DataFrame, most: int, pitch: float) -> None:
    """Stack the ribbons inside their classes on both sides: by target where they leave, by origin where they land."""
    classes = (*CLASSES, UNMEASURED)
    counts = {(a, b): int(n) for a, b, n in step[["from_class", "to_class", "heads"]].itertuples(index=False)}
    start = _stacked([(a, b) for a in classes for b in classes], counts)
    stop = _stacked([(a, b) for b in classes for a in classes], counts)
    for (a, b), count in counts.items():
        low, high = start[a, b], stop[a, b]
        ribbon = PathPatch(_ribbon(left, right, low, high, count))
        colour = CLASS_COLOURS[a] if a != UNMEASURED else "#bbbbbb"
        ribbon.set(
            facecolor=colour, linewidth=0, alpha=STAYED if a == b else MOVED, zorder=2 if a == b else 3
        )
        axes.add_artist(ribbon)
        if a != b and count >= 0.045 * most and pitch >= 0.7:
            # Close to where the ribbon leaves: there ribbons stand side by side and do not cross yet.
            x, y = left + 0.13 * (right - left), low + 0.025 * (high - low) + count / 2
            place = {"ha": "center", "va": "center_baseline", "zorder": 6, "path_effects": halo(2.2)}
            write(axes, x, y, f"{count}", 8.5, INK, **place)


def _stacked(pairs: list[tuple[str, str]], counts: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """Where each ribbon begins when they are piled up in this order."""
    begin: dict[tuple[str, str], int] = defaultdict(int)
    total = 0
    for pair in pairs:
        begin[pair] = total
        total += counts.get(pair, 0)
    return begin


def _ribbon(left: float, right: float, low: float, high: float, count: float) -> Outline:
    """A band of constant height that swings from `low` on the left to `high` on the right."""
    middle = (left + right) / 2
    points = [
        (left, low), (middle, low), (middle, high), (right, high),
        (right, high + count), (middle, high + count), (middle, low + count), (left, low + count), (left, low),
    ]  # fmt: skip
    curve = [Outline.CURVE4] * 3
    return Outline(points, [Outline.MOVETO, *curve, Outline.LINETO, *curve, Outline.CLOSEPOLY])


def _keys(data: pd.DataFrame) -> list[Key]:
    present = {*data["from_class"], *data["to_class"]}
    names = [name for name in (*CLASSES, UNMEASURED) if name in present or name in CLASSES]
    keys = [Key(Patch(facecolor=CLASS_COLOURS[name], edgecolor=MUTED, linewidth=0.3), name) for name in names]
    keys.append(Key(Patch(facecolor=INK, alpha=STAYED, linewidth=0), "pale: heads that stay"))
    keys.append(
        Key(
            Patch(facecolor=INK, alpha=MOVED, linewidth=0),
            "strong: heads that move, in the colour they leave",
        )
    )
    return keys


def title(view: View) -> str:
    return "Which heads change their class"


def describe(view: View, data: pd.DataFrame) -> Words:
    """In words: the step where most heads move, the largest flows, and how many would move by noise alone."""
    own = data[data["window"] == OWN]
    says = [_steps(view, own), _largest_flows(view, own), gains(view)]
    if view.rematched:
        matched = _steps(view, data[data["window"] == MATCHED])
        says.append(f"Over the {view.matched_text} of every checkpoint: {small(matched)}")
    noise = transition_noise(view.results.heads, view.order, view.results.thresholds)
    return Words(
        shows="Columns are the heads of a checkpoint by class; ribbons between columns are the same heads at the next "
        "checkpoint, in the colour of the class they leave: pale where they stay, strong where they move. Numbers "
        "are heads."
        + (
            f" The lower panel is the same over the {view.matched_text} of every checkpoint."
            if view.rematched
            else ""
        ),
        says=tuple(says),
        made="Heads are matched by layer and head number between consecutive checkpoints and counted by their class "
        "before and after; only heads in both are counted.",
        takeaway=joined(says[0], gains(view)),
        certainty=_noise(view, noise),
    )


def _steps(view: View, data: pd.DataFrame) -> str:
    """How many heads move at the busiest step and at the quietest."""
    moved = data.assign(moved=data["heads"].where(data["from_class"] != data["to_class"], 0))
    steps = moved.groupby(["from_model", "to_model"], sort=False)[["moved", "heads"]].sum().reset_index()

    def at(row: pd.Series) -> str:
        share = figure(row["moved"] / row["heads"], True)
        ends = f"from {md(view.labels[row['from_model']])} to {md(view.labels[row['to_model']])}"
        return f"{row['moved']} of {row['heads']} heads ({share}) {ends}"

    most, least = steps.loc[steps["moved"].idxmax()], steps.loc[steps["moved"].idxmin()]
    if not most["moved"]:
        return "No head changes its class at any step."
    if len(steps) == 1:
        return f"{at(most)} change their class."
    return (
        f"Most heads change their class at the step {_step(at(most))}; fewest at the step {_step(at(least))}."
    )


def _step(text: str) -> str:
    """`84 of 300 heads (28.0%) from a to b` -> `from a to b, 84 of 300 heads (28.0%)`."""
    counts, _, ends = text.partition(" from ")
    return f"from {ends}, {counts}"


def _largest_flows(view: View, data: pd.DataFrame) -> str:
    moves = (
        data[data["from_class"] != data["to_class"]]
        .sort_values("heads", ascending=False, kind="stable")
        .head(3)
    )
    if moves.empty:
        return ""
    parts = [
        f"{row.heads} from {row.from_class} to {row.to_class} ({md(view.labels[row.from_model])} to "
        f"{md(view.labels[row.to_model])})"
        for row in moves.itertuples()
    ]
    return f"The largest flows are {listing(parts)}."


def _noise(view: View, noise: pd.DataFrame) -> str:
    if noise.empty or noise["expected_by_noise"].isna().all():
        return (
            "No uncertainty is available: without standard errors of the heads, it is not known how many would "
            "change their class by noise alone."
        )
    row = noise.loc[noise["changed"].idxmax()]
    ends = f"{md(view.labels[row['from_model']])} to {md(view.labels[row['to_model']])}"
    return (
        f"A head near a threshold changes its class by noise. From {ends}, {row['changed']} heads change; by their own "
        f"standard errors about {row['expected_by_noise']:.1f} would without any real change."
    )
