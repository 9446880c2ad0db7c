"""The five classes of heads over the checkpoints, as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from qkscope.aggregate import class_shares
from qkscope.figures import ledger
from qkscope.figures.axis import CheckpointAxis
from qkscope.figures.bars import Kinds, count_rows, draw_shares, share_keys
from qkscope.figures.course import class_share
from qkscope.figures.prose import Story, Words, certainty, figure, joined, listing, md, story
from qkscope.figures.style import CLASS_COLOURS, sheet
from qkscope.figures.view import MATCHED, OWN, Drawing, View, look
from qkscope.results import Results
from qkscope.taxonomy import CLASSES, UNMEASURED, transitions

NAME = "03_taxonomy_evolution"
KINDS = Kinds("class", CLASSES, CLASS_COLOURS)


def draw(results: Results) -> Drawing:
    """Fractions of the measured heads from 0 to 1, counts in the table below."""
    view = look(results)
    data = view.both_windows(lambda heads, loo, order: class_shares(heads, loo, order, results.thresholds))
    rows = count_rows(data, KINDS)
    axis = CheckpointAxis(view, left=ledger.room(rows))
    height, table = 3.9, ledger.height(rows)
    body = axis.above + height + axis.below + table
    page = sheet(title(view), view.subtitle, axis.sheet_width, body, share_keys(view, data, KINDS))
    axes = page.axes(axis.left, axis.above, axis.width, height)
    axis.draw(axes)
    axis.mark_missing(axes)
    draw_shares(axes, view, data, KINDS, axis.pitch)
    below = page.axes(axis.left, axis.above + height + axis.below, axis.width, table)
    ledger.draw_ledger(below, rows, axis)
    return Drawing(page.figure, data)


def title(view: View) -> str:
    return "Head taxonomy" + (" by model" if view.of_models else " over training" if view.training else "")


def describe(view: View, data: pd.DataFrame) -> Words:
    """In words: how each class's share changes, and which classes it came from, head by head."""
    limits = view.results.thresholds
    told = [
        story(view, f"the share of {kind} heads", class_share(view, kind), percent=True) for kind in CLASSES
    ]
    stories = [each for each in told if each and each.own.values.max() > 0]
    never = [kind for kind in CLASSES if not data.loc[data["class"] == kind, "heads"].any()]
    absent = f"No head is {' or '.join(never)} in any {view.noun}." if never else ""
    return Words(
        shows="The share of heads of each class, as bars stacked from 0 to 1; the table below counts the heads."
        + (f" Thin bars: the same heads over the {view.matched_text}." if view.rematched else ""),
        says=(*_counts(view, data), *(each.text for each in stories), absent, gains(view), _unsure(data)),
        made=f"Each head is classed by r_q and |r_k| on PC0: position-dominated if both are above {limits.high:g}, "
        f"Q-positional if r_q is above {limits.high:g} and |r_k| below {limits.low:g}, K-positional the other way "
        f"round, content-focused if both are below {limits.low:g}, mixed otherwise. Shares are of the measured heads.",
        takeaway=_takeaway(view, data, stories),
        certainty=certainty(stories[0].own if stories else None, not view.of_models),
    )


def _takeaway(view: View, data: pd.DataFrame, stories: Sequence[Story]) -> str:
    """The shares that change; without a course, the shares there are."""
    if view.of_models:
        return joined(*(each.short for each in stories))
    if len(view.order) == 1:
        return joined(*_counts(view, data))
    moved = [each.short for each in stories if len(each.own) > 1 and each.own.direction]
    still = "" if moved else f"No class gains or loses a share beyond noise. {_counts(view, data)[-1]}"
    return joined(still, *moved, gains(view))


def _counts(view: View, data: pd.DataFrame) -> list[str]:
    """Heads of each class at the first and the last checkpoint, or in every model."""
    own = data[(data["window"] == OWN) & (data["class"] != UNMEASURED)]
    preposition = "In" if view.of_models else "At"

    def at(model: str) -> str:
        rows = own[own["model"] == model]
        counts = rows[["class", "heads", "share"]].itertuples(index=False)
        parts = [f"{n} {kind} ({figure(share, True)})" for kind, n, share in counts]
        return (
            f"{preposition} {md(view.labels[model])}, of {int(rows['heads'].sum())} heads: {listing(parts)}."
        )

    ends = view.order if view.of_models else dict.fromkeys((view.order[0], view.order[-1]))
    return [at(model) for model in ends]


def gains(view: View) -> str:
    """Which classes gained from which between the first and the last checkpoint, over the window both share."""
    if view.of_models or len(view.order) < 2:
        return ""
    results, ends = view.results, (view.order[0], view.order[-1])
    windows = [view.stops[view.place[model]].window for model in ends]
    same = windows[0] == windows[1]
    matched = results.matched is not None and set(ends) <= set(results.matched["model"]) and not same
    table = transitions(results.matched if matched else results.heads, ends)
    net: dict[tuple[str, str], int] = {}
    for a, b, n in table[["from_class", "to_class", "heads"]].itertuples(index=False):
        net[a, b] = net.get((a, b), 0) + int(n)
        net[b, a] = net.get((b, a), 0) - int(n)
    best = sorted(((n, a, b) for (a, b), n in net.items() if a != b and n > 0), reverse=True)[:3]
    if not best:
        return "Head by head, no class gains from another between the first and the last checkpoint."
    flows = listing([f"{b} gains {n} from {a}" for n, a, b in best])
    over = f" (over the {view.matched_text} of both)" if matched else ""
    return f"Head by head, from {md(view.labels[ends[0]])} to {md(view.labels[ends[1]])}{over}, net: {flows}."


def _unsure(data: pd.DataFrame) -> str:
    """Heads so close to a threshold that their class is uncertain."""
    own = data[(data["window"] != MATCHED) & data["borderline"].notna()]
    if own.empty:
        return ""
    last = own[own["model"] == own["model"].iloc[-1]]
    return (
        f"At {md(last['label'].iloc[0])}, {int(last['borderline'].sum())} of {int(last['heads'].sum())} heads are "
        "within one standard error of a threshold that would change their class."
    )
