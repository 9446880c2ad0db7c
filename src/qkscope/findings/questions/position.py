"""How the means over all heads change over training."""

from __future__ import annotations

from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL
from qkscope.findings.phrases import course
from qkscope.inference.evidence import MEAN_ABS_R_K, MEAN_EV, MEAN_R_K, MEAN_R_Q, SPREAD_R_K, SPREAD_R_Q
from qkscope.inference.levels import rule_of_change


@question("r_q", "How does mean r_q change over training?", view="signal", place=20, rule=rule_of_change())
def r_q(s: Asked) -> Answer:
    """How closely queries follow position."""
    return course(s, MEAN_R_Q, _closely("Queries", any(c.delta < 0 for c in s.best.steps(MEAN_R_Q))))


@question(
    "abs_r_k", "How does mean |r_k| change over training?", view="signal", place=21, rule=rule_of_change()
)
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


@question("r_k", "How does mean r_k change over training?", view="signal", place=23, rule=rule_of_change())
def r_k(s: Asked) -> Answer:
    """Signed: heads whose keys run against the queries count against the others."""
    return course(s, MEAN_R_K, _moves("Keys, counted with their sign,"))


@question(
    "variance", "How does the explained variance of PC0 change over training?", view="signal", place=60,
    rule=rule_of_change(),
)  # fmt: skip
def variance(s: Asked) -> Answer | None:
    """The share of a head's variance along its first axis."""
    if MEAN_EV not in s.best.series:
        return None
    return course(s, MEAN_EV, _moves("The first axis") | _HOLDS)


_HOLDS = {
    "rises": "The first axis comes to hold more of a head's variance",
    "falls": "The first axis comes to hold less of a head's variance",
}


def _moves(what: str) -> dict[str, str]:
    return {
        "rises": f"{what} come to follow position more with the queries",
        "falls": f"{what} come to follow position less with the queries",
        "rises and falls": f"{what} go up and down",
        "no change": f"{what} end as they began",
        CANNOT_TELL: f"{what} do not change clearly",
    }


@question("spread", "Do heads become more alike?", view="portrait", place=70, rule=rule_of_change())
def spread(s: Asked) -> Answer:
    """The standard deviation of r_q across heads."""
    says = {
        "rises": "Heads grow apart in r_q",
        "falls": "Heads become more alike in r_q",
        "rises and falls": "Heads grow apart in r_q and together again",
        "no change": "Heads stay as different in r_q as they were",
        CANNOT_TELL: "Whether heads become more alike cannot be told",
    }
    found = course(s, SPREAD_R_Q, says)
    keys = course(s, SPREAD_R_K, says)
    return Answer(
        found.verdict,
        found.headline.replace(f": {SPREAD_R_Q}", ", standard deviation"),
        found.detail,
        found.rows + keys.rows,
    )
