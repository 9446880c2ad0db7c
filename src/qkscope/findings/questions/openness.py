"""Plasticity: how open it is which of two keys a query prefers, over training, over depth and along the window."""

from __future__ import annotations

import numpy as np

from qkscope.aggregate import column
from qkscope.anatomy_means import Measured
from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL, Row
from qkscope.findings.phrases import taken
from qkscope.findings.questions.drift import levels_of, of_course
from qkscope.inference.contrast import Contrast, contrast
from qkscope.inference.course import direction
from qkscope.inference.levels import rule_of_change, rule_of_contrast
from qkscope.inference.series import Series, judged, whole
from qkscope.words import arrow, bare, number, sentence

MEAN = "mean plasticity"


def _found(s: Asked) -> list[Measured]:
    found = of_course(s, "plasticity")
    known = [np.isfinite(each.mean("plasticity")[0]) for each in found]
    return found if all(known) else []


@question("plasticity", "Does plasticity change over training?", view="head", place=38, rule=rule_of_change())
def plasticity(s: Asked) -> Answer | None:
    """The course of the mean over heads."""
    found = _found(s)
    if not found:
        return None
    series = Series(MEAN, tuple(each.mean("plasticity") for each in found))
    changes = judged([series])
    overall = whole(changes)
    words = {
        "rises": "Plasticity rises",
        "falls": "Plasticity falls",
        "rises and falls": "Plasticity rises at times and falls at others",
        "no change": "Plasticity does not change",
        CANNOT_TELL: "Whether plasticity changes cannot be told",
    }
    said, where = taken(s.best, changes, words)
    last = len(series) - 1
    first, final = (f"{number(series.at(i), series.se(i))} ({s.best.label(i)})" for i in (0, last))
    detail = f"{s.over}{MEAN} goes from {first} to {final}{where}"
    models = [stop.model for stop in s.best.stops]
    change = Row(MEAN, models[-1], overall.delta, models[0], overall.se, s.best.name, overall.verdict)
    rows = (change, *levels_of(s, found, "plasticity", MEAN))
    headline = f"{said}: {MEAN} {arrow(series.at(0), series.at(last))}"
    return Answer(direction(changes), headline, sentence(detail), rows)


@question(
    "plasticity_depth", "Does plasticity fall with depth?", view="head", place=39, of="any", rule=rule_of_contrast()
)  # fmt: skip
def plasticity_depth(s: Asked) -> Answer | None:
    """The first third of the depth against the last third, at the last checkpoint, in layers that rotate."""
    found = _found(s)
    if not found:
        return None
    last = found[-1]
    depth, rotates = (column(last.heads, name) for name in ("depth", "rope"))
    # Layers without rotation lie at fixed depths: compared with the others, they would pass for an effect of depth.
    alike = rotates == 1 if (rotates == 1).any() else np.ones(len(depth), dtype=bool)
    early, late = alike & (depth <= 1 / 3), alike & (depth >= 2 / 3)
    if not early.any() or not late.any():
        return None
    c = contrast(last.mean("plasticity", early), last.mean("plasticity", late))
    words = {
        "more": "Early layers are more plastic than late ones",
        "less": "Late layers are more plastic than early ones",
        "same": "Early and late layers are equally plastic",
        "": "Whether plasticity falls with depth cannot be told",
    }
    what = "mean plasticity, first third minus last third of the depth"
    only = "" if alike.all() else "among layers with RoPE, "
    says = f"{s.over}{only}plasticity at {s.best.label(-1)} in the first third of the depth less that in the last is"
    return _compared(s, last, c, words, what, "early", "late", says)


@question(
    "plasticity_late", "Is attention less open late in the window?", view="head", place=39, of="any",
    rule=rule_of_contrast(),
)  # fmt: skip
def plasticity_late(s: Asked) -> Answer | None:
    """The first fifth of the query buckets against the last fifth, at the last checkpoint."""
    found = _found(s)
    if not found:
        return None
    last = found[-1]
    c = contrast(last.mean("first"), last.mean("last"))
    words = {
        "more": "Plasticity falls towards the end of the window",
        "less": "Plasticity rises towards the end of the window",
        "same": "Plasticity is about the same at both ends of the window",
        "": "Whether plasticity falls along the window cannot be told",
    }
    what = "mean plasticity, first minus last fifth of the query buckets"
    says = f"{s.over}plasticity at {s.best.label(-1)} for queries in the first fifth of the window less the last is"
    return _compared(s, last, c, words, what, "first", "last", says)


def _compared(
    s: Asked, last: Measured, c: Contrast, words: dict[str, str], what: str, one: str, other: str, says: str
) -> Answer:
    verdict = {"more": "yes", "less": "no", "same": "no", "": CANNOT_TELL}[c.sure]
    headline = f"{words[c.sure]}: {bare(c.first)} {one}, {bare(c.second)} {other}"
    rows = (Row(what, last.model, c.difference, se=c.se, window=s.best.name, verdict=c.verdict, signed=True),)
    return Answer(verdict, headline, sentence(f"{says} {number(c.difference, c.se, signed=True)}"), rows)
