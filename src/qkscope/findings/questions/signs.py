"""Do keys follow position with the queries or against them, and do heads turn round?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL
from qkscope.findings.phrases import (
    NO_HEAD_ERRORS,
    amount,
    at_step,
    course,
    ends,
    goes,
    moved_row,
    rows_of,
    without_errors,
)
from qkscope.inference.evidence import MEAN_ABS_R_K, MEAN_R_K, Evidence, share_of, spoken
from qkscope.inference.levels import HIDING, SMALLEST, rule_of_noise, rule_of_turning
from qkscope.inference.transitions import Moved, part_of_turned, turned
from qkscope.taxonomy import POLARITIES
from qkscope.words import about, bare, joined, listing, number, sentence

CONCORDANT, _, DISCORDANT = (share_of(kind) for kind in POLARITIES)
TURNING = "heads that change the sign of r_k"


@question(
    "sign_changes", "Do heads change the sign of r_k?", view="portrait", place=31,
    rule=joined(rule_of_turning(), rule_of_noise()),
)  # fmt: skip
def sign_changes(s: Asked) -> Answer:
    """Heads that turn from following position with the queries to following it against them, or back."""
    e = s.best
    found = [turned(p) for p in e.pairs]
    unjudged = max(m.unjudged for m in found)
    return replace(_sign_changes(s, found, unjudged), doubt=without_errors(unjudged))


def _sign_changes(s: Asked, found: Sequence[Moved], unjudged: int) -> Answer:
    e = s.best
    rows = tuple(moved_row(e, TURNING, m) for m in found)
    axes = _another_axis(e)
    real = sorted((m for m in found if m.verdict == "yes"), key=lambda m: -m.heads)
    most = real[0] if real else max(found, key=lambda m: m.heads - (m.expected if m.known else 0.0))
    step = at_step(e, most.from_model, most.to_model)
    size = f"{most.heads} of {e.heads} heads change the sign of r_k {step}"
    if not most.known:
        return Answer(CANNOT_TELL, size, joined(NO_HEAD_ERRORS, axes), rows)
    noise = f"{s.over}noise alone would turn {about(most.expected)} there"
    if real:
        also = [f"{m.heads} at {spoken(e.timeline.stop(m.to_model))}" for m in real[1:4]]
        more = f"; {listing(also)} are more than noise explains too" if also else ""
        return Answer("yes", size, joined(sentence(noise + more), _what_falls(e, most), axes), rows)
    if any(m.verdict == CANNOT_TELL for m in found):
        return Answer(CANNOT_TELL, f"At most {size}, perhaps by noise", joined(sentence(noise), axes), rows)
    # Where noise turns many heads or many have no error, some that really turn could hide among them.
    hidden = max(m.expected for m in found) + unjudged > HIDING * e.heads
    verdict = CANNOT_TELL if hidden else "no"
    if not most.heads:
        low = bare(e.thresholds.low, 1)
        none = f"{s.over}no head has the other sign after a step with |r_k| above {low} at both ends"
        return Answer(verdict, "No head changes the sign of r_k", joined(sentence(none), axes), rows)
    said = joined(sentence(noise), axes)
    return Answer(verdict, f"At most {size}, no more than noise explains", said, rows)


def _another_axis(e: Evidence) -> str:
    """How often r_k has the other sign because it is another axis's, and so is not called a change of sign."""
    swapped = sum(int((p.reversed & (p.same_axis == 0)).sum()) for p in e.pairs)
    times = {1: "once", 2: "twice"}.get(swapped, f"{swapped} times")
    return (
        f"Not counted: r_k has the other sign {times} because another axis became the first."
        if swapped
        else ""
    )


def _what_falls(e: Evidence, m: Moved) -> str:
    """That a fall of mean r_k is heads turning round, where it is."""
    i = [p.from_model for p in e.pairs].index(m.from_model)
    signed, strength = e.steps(MEAN_R_K)[i], e.steps(MEAN_ABS_R_K)[i]
    only_signs = signed.verdict == "falls" != strength.verdict
    if not only_signs or part_of_turned(e.pairs[i]) > signed.delta / 2:
        return ""
    return (
        f"Mean r_k falls there by {number(-signed.delta, signed.se)} because heads turn round, not because their keys "
        f"follow position less: mean |r_k| changes by {amount(e, strength)}."
    )


@question(
    "polarity", "Do more heads' keys come to follow position with the queries?", view="portrait", place=32
)
def polarity(s: Asked) -> Answer:
    """Concordant and discordant heads, and what the mean of r_k hides of them."""
    e = s.best
    says = {
        "rises": "More heads' keys come to follow position with the queries",
        "falls": "Fewer heads' keys follow position with the queries",
        "rises and falls": "Heads whose keys follow position with the queries become more at times, fewer at others",
        "no change": "As many heads' keys follow position with the queries as at the start",
        CANNOT_TELL: "Whether more heads' keys follow position with the queries cannot be told",
    }
    found = course(s, CONCORDANT, says, short="concordant")
    against = f"{s.over}{goes(e, CONCORDANT)}, that of discordant ones {ends(e, DISCORDANT)}"
    apart = e.series[MEAN_ABS_R_K].at(-1) - e.series[MEAN_R_K].at(-1)
    if apart < SMALLEST:
        hides = f"At {e.label(-1)} mean r_k is about as large as mean |r_k|: hardly any heads cancel in it."
    else:
        hides = f"At {e.label(-1)} mean r_k is {number(apart)} below mean |r_k|: heads of opposite sign cancel in it."
    names = (*(share_of(kind) for kind in POLARITIES), MEAN_R_K, MEAN_ABS_R_K)
    return replace(found, detail=joined(sentence(against), hides), rows=rows_of(s, *names))
