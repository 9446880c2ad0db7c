"""Claim about a study of several models: which follows position most."""

from __future__ import annotations

import math

from qkscope.claims.claim import Claim, See
from qkscope.claims.context import Context, name_of
from qkscope.claims.templates import DIFFERENT, UNCLEAR, rank, rule
from qkscope.stats.contrast import contrast
from qkscope.stats.levels import rule_of_contrast
from qkscope.words import joined, sentence


def between_models(c: Context) -> Claim | None:
    """The models with the strongest and the weakest position signal."""
    if not c.several_models:
        return None
    e, measure = c.best, c.lead
    known = [i for i in range(len(e)) if math.isfinite(e.level(measure, c.main, i)[0])]
    order = sorted(known, key=lambda i: -e.level(measure, c.main, i)[0])
    if len(order) < 2:
        return None
    top, low = order[0], order[-1]
    first, last = (e.mean(measure, c.main, i) for i in (top, low))
    gap = contrast(first, last, paired=False, looks=len(order) - 1)
    name, values = name_of(measure), [c.value(measure, c.main, i) for i in (top, low)]
    words = {
        "higher": f"{name}{c.heads()} is higher in {c.labels[top]} ({values[0]}) than in {c.labels[low]} ({values[1]})",
        "equal": f"{name}{c.heads()} is the same in all models, from {values[1]} to {values[0]}",
    }
    unclear = (
        f"{name}{c.heads()} is {values[0]} in {c.labels[top]} and {values[1]} in {c.labels[low]}, which errors do not "
        "tell apart"
    )
    verdict = gap.verdict if gap.verdict in words else "unclear"
    levels = [f"{c.level(measure, c.main, i)} ({c.labels[i]})" for i in order]
    windows = {stop.window for stop in e.stops}
    differ = (
        "The models were measured over different windows." if len(windows) > 1 and c.matched is None else ""
    )
    rows = tuple(c.row(measure, c.main, i) for i in (top, low, *order[1:-1]))
    return Claim(
        "position",
        "Which model follows position most?",
        sentence(words.get(verdict, unclear)),
        sentence(f"{c.over}{name}{c.heads()}: {', '.join(levels)}"),
        "The models have different heads and texts of their own, so their errors add and nothing cancels.",
        joined(c.caveat, differ),
        verdict,
        rows,
        e.name,
        rule(c, rule_of_contrast()),
        See("signal", measure, c.model(top), c.main),
        rank(UNCLEAR if verdict == "unclear" else DIFFERENT, gap.difference),
    )
