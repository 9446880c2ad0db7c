"""How the means over all heads change over training."""

from __future__ import annotations

from dataclasses import replace

from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL
from qkscope.findings.phrases import course, rows_of
from qkscope.inference.evidence import MEAN_ABS_R_K, MEAN_EV, MEAN_R_K, MEAN_R_Q, SPREAD_R_K, SPREAD_R_Q


@question("r_q", "How does mean r_q change over training?", view="signal", place=20)
def r_q(s: Asked) -> Answer:
    """How closely queries follow position."""
    return course(s, MEAN_R_Q, _closely("Queries", any(c.delta < 0 for c in s.best.steps(MEAN_R_Q))))


@question("abs_r_k", "How does mean |r_k| change over training?", view="signal", place=21)
def abs_r_k(s: Asked) -> Answer:
    """How closely keys follow position, with the queries or against them."""
    return course(s, MEAN_ABS_R_K, _closely("Keys", any(c.delta < 0 for c in s.best.steps(MEAN_ABS_R_K))))


def _closely(who: str, sometimes_falls: bool) -> dict[str, str]:
    return {
        "rises": f"{who} follow position {'more' if sometimes_falls else 'ever more'} closely",
        "falls": f"{who} follow position less closely",
        "rises and falls": f"{who} follow position more closely at times and less at others",
        "no change": f"{who} follow position as closely at the end as at the start",
        CANNOT_TELL: f"Whether {who.lower()} come to follow position more closely cannot be told",
    }


@question("r_k", "How does mean r_k change over training?", view="signal", place=23)
def r_k(s: Asked) -> Answer:
    """Signed: heads whose keys run against the queries count against the others."""
    says = {
        "rises": "Keys come to follow position more with the queries",
        "falls": "Keys come to follow position less with the queries",
        "rises and falls": "Keys follow position with the queries, more at times and less at others",
        "no change": "Keys follow position with the queries as much at the end as at the start",
        CANNOT_TELL: "Whether keys come to follow position more with the queries cannot be told",
    }
    return course(s, MEAN_R_K, says)


@question("variance", "How does the explained variance of PC0 change over training?", view="signal", place=60)
def variance(s: Asked) -> Answer | None:
    """The share of a head's variance along its first axis."""
    if MEAN_EV not in s.best.series:
        return None
    says = {
        "rises": "The first axis comes to hold more of the variance",
        "falls": "The first axis comes to hold less of the variance",
        "rises and falls": "The first axis holds more variance at times and less at others",
        "no change": "The first axis holds as much variance as at the start",
        CANNOT_TELL: "Whether the first axis comes to hold more variance cannot be told",
    }
    return course(s, MEAN_EV, says, short="mean")


@question("spread", "Do heads become more alike?", view="portrait", place=70)
def spread(s: Asked) -> Answer:
    """The standard deviation of r_q across heads; that of r_k in the table."""
    says = {
        "rises": "Heads grow apart in r_q",
        "falls": "Heads become more alike in r_q",
        "rises and falls": "Heads grow apart in r_q at times and together at others",
        "no change": "Heads stay as different in r_q as they were",
        CANNOT_TELL: "Whether heads become more alike in r_q cannot be told",
    }
    found = course(s, SPREAD_R_Q, says, short="standard deviation")
    return replace(found, rows=found.rows + rows_of(s, SPREAD_R_K))
