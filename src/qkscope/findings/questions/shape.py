"""Jumps and plateaus of the main series."""

from __future__ import annotations

import numpy as np

from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL, Row
from qkscope.findings.phrases import amount, between, row, the
from qkscope.inference.course import Jump, intervals, jumps, plateaus
from qkscope.inference.evidence import MEAN_ABS_R_K, MEAN_EV, MEAN_R_K, MEAN_R_Q, Evidence, share_of
from qkscope.inference.levels import PLATEAU, SMALLEST, rule_of_change, rule_of_jump, rule_of_plateau
from qkscope.words import bare, capital, count, joined, listing, sentence

SHARES = share_of("position-dominated"), share_of("content-focused")
MAIN = (MEAN_R_Q, MEAN_R_K, MEAN_ABS_R_K, MEAN_EV, *SHARES)
RESTING = (MEAN_R_Q, MEAN_ABS_R_K)


@question(
    "jumps", "Are there jumps, and where?", view="signal", place=40, rule=joined(rule_of_change(), rule_of_jump())
)  # fmt: skip
def find_jumps(s: Asked) -> Answer:
    """The steps that are more than noise and stand out, per interval and per training step."""
    e = s.best
    every = [jump for name in MAIN if name in e.series for jump in jumps(e.steps(name), e.stops)]
    every.sort(key=lambda j: (MAIN.index(j.change.series), -abs(j.change.delta)))
    placed = [j for j in every if j.placed]
    rows = tuple(row(e, j.change) for j in placed)
    vague = _vague(e, [j for j in every if not j.placed])
    if placed:
        first = placed[0].change
        headline = f"{capital(first.series)} jumps {between(e, first)}: {amount(e, first).partition(' ±')[0]}"
        return Answer("yes", headline, joined(sentence(f"{s.over}{_places(e, placed)}"), vague), rows)
    steps = [c for name in MAIN if name in e.series for c in e.steps(name)]
    if vague:
        return Answer(
            CANNOT_TELL, "Large changes fall into intervals too long to call them jumps", vague, rows
        )
    if any(c.clear for c in steps):
        names = listing(list(dict.fromkeys(c.series for c in steps if c.clear)))
        detail = sentence(f"{s.over}clear steps, none of which stands out, are those of {names}")
        return Answer("no", "No step stands out enough to be a jump", detail, rows)
    known = e.sure and all(c.excluded for c in steps if c.series == MEAN_R_Q)
    return Answer("no" if known else CANNOT_TELL, "No step of any series stands out from noise", "", rows)


def _places(e: Evidence, found: list[Jump]) -> str:
    """The headline's jump with its error, then where the other series have their largest."""
    largest = {j.change.series: j.change for j in reversed(found)}
    first = found[0].change
    others = [
        f"{the(c.series)} at {e.label(c.stop)}" for c in reversed(list(largest.values())) if c is not first
    ]
    more = f"; others that jump are {listing(others)}" if others else ""
    return f"{the(first.series)} jumps by {amount(e, first)}{more}"


def _vague(e: Evidence, found: list[Jump]) -> str:
    if not found:
        return ""
    top = max(found, key=lambda j: abs(j.change.delta)).change
    steps = intervals(e.stops)[top.start] or 0
    return (
        f"The largest change of {the(top.series)}, {amount(e, top)}, lies somewhere within {steps:,} training steps "
        f"{between(e, top)} and cannot be placed."
    )


@question("plateaus", "Are there plateaus, and where?", view="signal", place=41, rule=rule_of_plateau())
def find_plateaus(s: Asked) -> Answer | None:
    """Where mean r_q and mean |r_k| rest."""
    e = s.best
    if len(e.stops) < PLATEAU:
        return None
    runs = [(name, a, b) for name in RESTING for a, b in plateaus(e.series[name])] if e.sure else []
    if runs:
        levels = {(n, i, j): float(np.mean([e.series[n].at(k) for k in range(i, j + 1)])) for n, i, j in runs}
        said = [f"from {e.label(i)} to {e.label(j)}, at {bare(level)}" for (_, i, j), level in levels.items()]
        longest = max(range(len(runs)), key=lambda k: runs[k][2] - runs[k][1])
        parts = [
            f"{n} stays within {bare(SMALLEST)} {where}" for (n, _, _), where in zip(runs, said, strict=True)
        ]
        rows = tuple(
            Row(
                f"level of {n} at rest",
                e.stops[j].model,
                level,
                e.stops[i].model,
                window=e.name,
                signed=False,
            )
            for (n, i, j), level in levels.items()
        )
        headline = f"{capital(runs[longest][0])} rests {said[longest]}"
        return Answer("yes", headline, sentence(s.over + "; ".join(parts)), rows)
    errors = [c.se for name in RESTING for c in e.steps(name)]
    if not e.sure or max(errors) > SMALLEST / 2:
        return Answer(CANNOT_TELL, "Errors are too large to see a plateau")
    return Answer("no", f"Neither mean r_q nor mean |r_k| rests over {count(PLATEAU, 'checkpoint')}")
