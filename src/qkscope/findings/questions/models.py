"""Studies of several models, and of one checkpoint."""

from __future__ import annotations

import math

from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL
from qkscope.findings.phrases import level_row
from qkscope.inference.contrast import contrast
from qkscope.inference.evidence import MEAN_R_Q
from qkscope.inference.levels import rule_of_contrast
from qkscope.words import bare, number, sentence


@question(
    "models", "Do the models differ in r_q?", view="signal", place=20, of="models", rule=rule_of_contrast()
)
def models(s: Asked) -> Answer:
    """The models with the highest and the lowest mean r_q, against each other."""
    e = s.best
    series = e.series[MEAN_R_Q]
    ranked = sorted(range(len(series)), key=lambda i: -series.at(i))
    top, low = ranked[0], ranked[-1]
    looks = math.comb(len(series), 2)
    found = contrast(series.values[top], series.values[low], paired=False, looks=looks)
    verdict = {"more": "yes", "same": "no"}.get(found.sure, CANNOT_TELL)
    rows = tuple(level_row(e, MEAN_R_Q, i) for i in ranked)
    ends = [f"in {e.label(i)} ({bare(value)})" for i, value in ((top, found.first), (low, found.second))]
    headline = f"Mean r_q is highest {ends[0]} and lowest {ends[1]}"
    apart = f"the difference is {number(found.difference, found.se)}"
    return Answer(verdict, headline, sentence(apart), rows)


@question(
    "course",
    "How do the heads change over training?",
    view="signal",
    place=20,
    of="any",
    rule="",
    tested=False,
)
def course(s: Asked) -> Answer | None:
    """One entry in place of all questions about the course of training, where there is one checkpoint only."""
    if s.results.timeline.kind != "training" or len(s.own.samples) > 1:
        return None
    return Answer(CANNOT_TELL, f"Only {s.own.label(0)} was measured: one checkpoint has no course")
