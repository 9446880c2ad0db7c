"""Queries and keys each taken alone: how much of either's variance is linear in position."""

from __future__ import annotations

import numpy as np

from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL, Row
from qkscope.findings.questions.drift import of_course
from qkscope.inference.contrast import contrast
from qkscope.inference.levels import rule_of_contrast
from qkscope.measures.jackknife import jackknife
from qkscope.words import number, percent, sentence

KINDS = {"linear_k": "keys'", "linear_q": "queries'"}


@question(
    "alone", "Is more of the keys' variance linear in position than of the queries'?", view="head", place=39, of="any",
    rule=rule_of_contrast(),
)  # fmt: skip
def alone(s: Asked) -> Answer | None:
    """The share of each kind's own variance that a straight line through position explains, at the last checkpoint."""
    found = of_course(s, "per_kind")
    if not found:
        return None
    last = found[-1]
    means = {name: last.mean(name) for name in KINDS}
    if not all(np.isfinite(mean[0]) for mean in means.values()):
        return None
    c = contrast(means["linear_k"], means["linear_q"])
    verdict = {"more": "yes", "less": "no", "same": "no", "": CANNOT_TELL}[c.sure]
    words = {
        "more": "More of the keys' variance than of the queries' is linear in position",
        "less": "More of the queries' variance than of the keys' is linear in position",
        "same": "About as much of the keys' variance as of the queries' is linear in position",
        "": "Whether more of the keys' variance is linear in position cannot be told",
    }
    sizes = f"keys {percent(c.first)}, queries {percent(c.second)}"
    detail = (
        f"{s.over}at {s.best.label(-1)}, in the mean of heads, the difference is {number(c.difference, c.se)}"
    )
    rows = tuple(
        Row(f"share of {KINDS[name]} variance that is linear in position", last.model, float(mean[0]),
            se=float(jackknife(mean[1:])), window=s.best.name, verdict=c.verdict if name == "linear_k" else "",
            unit="share")
        for name, mean in means.items()
    )  # fmt: skip
    return Answer(verdict, f"{words[c.sure]}: {sizes}", sentence(detail), rows)
