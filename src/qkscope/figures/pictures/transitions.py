"""Which heads moved from which class to which, as a flow between consecutive checkpoints."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch, Rectangle
from matplotlib.path import Path as Outline

from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools.axis import CheckpointAxis
from qkscope.figures.tools.sheet import Key, inches, scale
from qkscope.figures.tools.stack import Panel, draw_stack
from qkscope.figures.tools.style import CLASS_COLOURS, INK, LINE, MUTED, PAPER, extent, halo, write
from qkscope.figures.view import MATCHED, OWN, View
from qkscope.taxonomy import CLASSES, UNMEASURED, transitions

NODE = 0.16  # of one checkpoint's place: the column of classes the flows run between
STAYED, MOVED = 0.16, 0.62  # opacity
HATCHED = " Hatched: heads whose first axis is another than at the checkpoint before; plain: the same axis."


class Transitions(Picture):
    """Ribbons as high as their number of heads, in the colour of the class they leave; pale where heads stay, hatched
    where another axis became the first."""

    name = "08_transitions"
    claims = ("classes",)

    def title(self, view: View) -> str:
        return "Which heads change their class"

    def why_not(self, view: View) -> str | None:
        if len(view.order) < 2:
            return "it needs two checkpoints, and there is one"
        if view.of_models:
            return "heads of different models cannot move into one another"
        if transitions(view.results.heads, view.order).empty:
            return "no head is in two consecutive checkpoints"
        return None

    def draw(self, view: View, width: float | None = None) -> Drawing:
        data = _flows(view)
        headings = {OWN: ""} | ({MATCHED: view.matched_heading} if view.rematched else {})
        high = 4.2 if len(headings) == 1 else 3.3
        panels = [
            Panel("heads", high, partial(_draw_flows, data[data["window"] == window]), heading)
            for window, heading in headings.items()
        ]
        return Drawing(draw_stack(view, self.title(view), panels, keys=_keys(data), width=width), data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        axes = data["same_axis"].notna().any()
        lower = f" The lower panel is the same over the {view.matched_text} of every checkpoint."
        return Caption(
            shows="Columns are the heads of a checkpoint by class; ribbons between columns are the same heads at the "
            "next checkpoint, in the colour of the class they leave: pale where they stay, strong where they move. "
            "Numbers are heads." + (HATCHED if axes else "") + (lower if view.rematched else ""),
            made="Heads are matched by layer and head number between consecutive checkpoints and counted by their "
            "class before and after; only heads in both are counted.",
        )


def _flows(view: View) -> pd.DataFrame:
    """A row per ribbon: window, from_model, to_model, from_class, to_class, heads, and same_axis, how many of these
    kept their first axis (NaN where that is not known)."""
    tables = [transitions(view.results.heads, view.order).assign(window=OWN)]
    matched = view.results.matched
    if view.rematched and matched is not None:
        there = set(matched["model"])
        found = transitions(matched, [model for model in view.order if model in there])
        tables.append(found.assign(window=MATCHED))
    columns = ["window", "from_model", "to_model", "from_class", "to_class", "heads", "same_axis"]
    return pd.concat(tables, ignore_index=True)[columns]


def _draw_flows(data: pd.DataFrame, axes: Axes, axis: CheckpointAxis) -> None:
    """Columns of classes at the checkpoints, ribbons between them."""
    place = axis.view.place
    steps = list(data.groupby(["from_model", "to_model"], sort=False))
    most = max(int(step["heads"].sum()) for _, step in steps)
    axes.set_ylim(0, most * 1.03)
    for i, ((before, after), step) in enumerate(steps):
        left, right = place[before] + NODE / 2, place[after] - NODE / 2
        # Each step draws its half of a column: where heads differ between steps, the halves differ too.
        wide = NODE if i == 0 else NODE / 2
        _column(axes, left - wide, wide, step.groupby("from_class")["heads"].sum().to_dict())
        wide = NODE if i == len(steps) - 1 else NODE / 2
        _column(axes, right, wide, step.groupby("to_class")["heads"].sum().to_dict())
        _ribbons(axes, axis, left, right, step)
    _write_moved(axes, axis, steps, most)
    sizes = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10**9)
    room = max(2.0, inches(axes)[1] / 0.3)
    ticks = list(range(0, most + 1, next(s for s in sizes if most / s <= min(7.0, room))))
    scale(axes, "y", ticks, [f"{tick:,}" for tick in ticks], axis.paper)


def _write_moved(
    axes: Axes, axis: CheckpointAxis, steps: list[tuple[tuple[str, str], pd.DataFrame]], most: int
) -> None:
    """How many heads move at each step, above it, if all numbers fit side by side."""
    size = axis.paper.points(8.5)
    moved = [int(step.loc[step["from_class"] != step["to_class"], "heads"].sum()) for _, step in steps]
    for ending in (" moved", ""):
        texts = [f"{count}{ending}" for count in moved]
        if max(extent(text, size)[0] for text in texts) + 0.04 <= axis.pitch:
            break
    else:
        return
    high = inches(axes)[1]
    axes.set_ylim(0, most * (1 + 0.06 / high + size / 72 * LINE / high * 1.2))
    for ((before, after), _), text in zip(steps, texts, strict=True):
        middle = (axis.view.place[before] + axis.view.place[after]) / 2
        box = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}
        at = {"ha": "center", "va": "bottom", "zorder": 6, "bbox": box}
        write(axes, middle, most * (1 + 0.04 / high), text, size, MUTED, **at)


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
                rule = Line2D([left, left + width], [bottom] * 2, color=PAPER, linestyle="-")
                rule.set(linewidth=0.7, zorder=4.5)
                axes.add_artist(rule)
        bottom += count


def _ribbons(axes: Axes, axis: CheckpointAxis, left: float, right: float, step: pd.DataFrame) -> None:
    """Stack the ribbons inside their classes on both sides: by target where they leave, by origin where they land."""
    classes = (*CLASSES, UNMEASURED)
    flows = step.set_index(["from_class", "to_class"])
    counts = {(str(a), str(b)): int(n) for (a, b), n in flows["heads"].items()}
    swapped = (flows["heads"] - flows["same_axis"]).fillna(0).astype(int).to_dict()
    start = _stacked([(a, b) for a in classes for b in classes], counts)
    stop = _stacked([(a, b) for b in classes for a in classes], counts)
    size = axis.paper.points(8.5)
    least = size / 72 * LINE / inches(axes)[1] * axes.get_ylim()[1]
    written: list[float] = []
    for (a, b), count in sorted(counts.items(), key=lambda item: -item[1]):
        low, high = start[a, b], stop[a, b]
        ribbon = PathPatch(_ribbon(left, right, low, high, count))
        colour = CLASS_COLOURS[a] if a != UNMEASURED else "#bbbbbb"
        alpha, zorder = (STAYED, 2) if a == b else (MOVED, 3)
        ribbon.set(facecolor=colour, linewidth=0, alpha=alpha, zorder=zorder)
        axes.add_artist(ribbon)
        if other := swapped[a, b]:
            _hatch(axes, _ribbon(left, right, low + count - other, high + count - other, other))
        # Close to where the ribbon leaves: there ribbons stand side by side and do not cross yet.
        x, y = left + 0.13 * (right - left), low + 0.025 * (high - low) + count / 2
        fits = count >= 0.75 * least and extent(f"{count}", size)[0] <= 0.4 * axis.pitch
        if a != b and fits and all(abs(y - other) > least for other in written):
            written.append(y)
            place = {"ha": "center", "va": "center_baseline", "zorder": 6, "path_effects": halo(2.2)}
            write(axes, x, y, f"{count}", size, INK, **place)


def _hatch(axes: Axes, outline: Outline) -> None:
    """The part of a ribbon whose heads have another first axis."""
    part = PathPatch(outline, fill=False, hatch="/////", edgecolor=PAPER, linewidth=0, zorder=3.5)
    axes.add_artist(part)


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
    present = {*data["from_class"], *data["to_class"], *CLASSES}
    names = [name for name in (*CLASSES, UNMEASURED) if name in present]
    keys = [Key(Patch(facecolor=CLASS_COLOURS[name], edgecolor=MUTED, linewidth=0.3), name) for name in names]
    keys.append(Key(Patch(facecolor=INK, alpha=STAYED, linewidth=0), "pale: heads that stay"))
    moving = "strong: heads that move, in the colour they leave"
    keys.append(Key(Patch(facecolor=INK, alpha=MOVED, linewidth=0), moving))
    if (data["same_axis"] < data["heads"]).any():
        mark = Patch(facecolor=MUTED, hatch="/////", edgecolor=PAPER, linewidth=0)
        keys.append(Key(mark, "hatched: another axis became the first"))
    return keys


PICTURE = Transitions()
