"""What a depth heat map tells, in words."""

from __future__ import annotations

import numpy as np
import pandas as pd

from qkscope.aggregate import DEPTH_BINS
from qkscope.figures.course import Statistic, follow, mean_of
from qkscope.figures.heatmap import Heat
from qkscope.figures.prose import Words, certainty, difference, figure, joined, md
from qkscope.figures.view import MATCHED, OWN, View


def describe_cells(view: View, data: pd.DataFrame, heat: Heat) -> Words:
    """In words: strongest and weakest depth, where it changed most, whether depths became more alike."""
    name = f"r_{heat.value[-1]}"
    own = data[data["window"] == OWN]
    grid = own.pivot(index="model", columns="depth_bin", values="mean").reindex(view.order)
    last = _extremes(view, grid, view.order[-1], name)
    change, basis = _where(view, heat, name)
    spread = _evenness(view, grid, name)
    return Words(
        shows=f"Mean {name} on PC0 of the heads in each of ten depth bins (columns, from the first layers to the "
        f"last), one row a {view.noun}. Colour runs from 0 to 1; the value is printed in each cell."
        + (" Negative means are green and dotted." if (own["mean"] < 0).any() else "")
        + (" Hatched cells with a dash have no head." if own["mean"].isna().any() else "")
        + (
            f" The lower block repeats the checkpoints of longer windows over their {view.matched_text}."
            if view.rematched
            else ""
        ),
        says=(
            _extremes(view, grid, view.order[0], name) if len(grid) > 1 else "",
            last,
            change,
            spread,
            _below(view, own, name),
            _matched_cells(view, data, name),
        ),
        made="Depth is layer / (number of layers - 1), cut into ten equal bins; each cell is the mean over the "
        "measured heads of its bin.",
        takeaway=_common(view, grid, name) if view.of_models else joined(last, change, spread),
        certainty=basis,
    )


def _bin(b: int) -> str:
    return f"{b / 10:.1f}–{(b + 1) / 10:.1f}"


def _extremes(view: View, grid: pd.DataFrame, model: str, name: str) -> str:
    row = grid.loc[model].dropna()
    if row.empty:
        return ""
    high, low = int(row.idxmax()), int(row.idxmin())
    where = f"At {md(view.labels[model])}" if not view.of_models else f"In {md(view.labels[model])}"
    if high == low:
        return f"{where} all measured heads are in depth {_bin(high)}, with mean {name} {figure(row[high])}."
    strongest = f"strongest at depth {_bin(high)} ({figure(row[high])})"
    return f"{where} {name} is {strongest} and weakest at depth {_bin(low)} ({figure(row[low])})."


def _common(view: View, grid: pd.DataFrame, name: str) -> str:
    """The depth that is strongest in most models."""
    tops = grid.dropna(how="all").idxmax(axis=1)
    top = int(tops.mode().iloc[0])
    count = int((tops == top).sum())
    return f"{name} is strongest at depth {_bin(top)} in {count} of {len(tops)} model{'s' if len(tops) > 1 else ''}."


def _where(view: View, heat: Heat, name: str) -> tuple[str, str]:
    """The depth that changed most from first to last, and how many rise or fall; and how sure that is."""
    found = {}
    for b in range(DEPTH_BINS):
        course = follow(view, f"depth {_bin(b)}", _bin_mean(heat, b))
        if course is not None and course.models[0] == view.order[0] and course.models[-1] == view.order[-1]:
            found[b] = course
    basis = certainty(next(iter(found.values()), None), view.training)
    if not view.training or not found:
        return "", basis
    ups = [b for b, course in found.items() if course.direction > 0]
    downs = [b for b, course in found.items() if course.direction < 0]
    most = max(found, key=lambda b: abs(found[b].whole.delta))
    ends = f"{md(view.labels[view.order[0]])} to {md(view.labels[view.order[-1]])}"
    size = f"{difference(found[most].whole)}, at depth {_bin(most)}"
    largest = f"The largest change is {size}"
    if not found[most].judged:
        return (
            f"From {ends}: the largest change is {size}. No uncertainty is available, so this may be noise.",
            basis,
        )
    if not ups and not downs:
        return (
            f"From {ends} {name} changes beyond noise at no depth. {largest}, which is not clearly more than noise.",
            basis,
        )
    clear = "" if found[most].direction else ", which is not clearly more than noise"
    text = f"From {ends} {name} rises clearly in {len(ups)} and falls clearly in {len(downs)} of {len(found)} bins."
    return f"{text} {largest}{clear}.", basis


def _bin_mean(heat: Heat, b: int) -> Statistic:
    return mean_of(heat.value, lambda sample: sample.heads["depth_bin"].to_numpy() == b)


def _evenness(view: View, grid: pd.DataFrame, name: str) -> str:
    """Whether the depths became more alike."""
    if not view.training:
        return ""
    first, last = (float(grid.loc[m].max() - grid.loc[m].min()) for m in (view.order[0], view.order[-1]))
    if not (np.isfinite(first) and np.isfinite(last)):
        return ""
    verb = "is nearly the same" if abs(last - first) < 0.02 else "narrows" if last < first else "widens"
    return f"The range from the weakest to the strongest depth {verb}: {figure(first)} first, {figure(last)} last."


def _below(view: View, own: pd.DataFrame, name: str) -> str:
    negative = own[own["mean"] < 0]
    if negative.empty:
        return ""
    lowest = own.loc[own["mean"].idxmin()]
    place = f"{md(lowest['label'])}, depth {_bin(int(lowest['depth_bin']))}"
    cells = f"{len(negative)} of {int(own['mean'].notna().sum())} cells are negative"
    return f"{cells}, the lowest {figure(lowest['mean'])} at {place}."


def _matched_cells(view: View, data: pd.DataFrame, name: str) -> str:
    """What the last checkpoint looks like over the matched window."""
    if not view.rematched:
        return ""
    model = view.rematched[-1]
    part = data[data["model"] == model].pivot(index="depth_bin", columns="window", values="mean").dropna()
    if part.empty:
        return ""
    shift = part[MATCHED] - part[OWN]
    b = int(shift.abs().idxmax())
    if abs(shift[b]) < 0.01:
        return f"Over the {view.matched_text}, {md(view.labels[model])} differs from its own window by less than 0.01."
    return (
        f"Over the {view.matched_text}, {md(view.labels[model])} differs from its own window most at depth {_bin(b)}: "
        f"{figure(part.loc[b, MATCHED])} instead of {figure(part.loc[b, OWN])}."
    )
