"""Questions about heads that become another kind: sign of r_k, content-focused heads, position-dominated heads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qkscope.aggregate import positional_below_null
from qkscope.findings.conversions import beyond_noise, flows_into, perhaps_beyond_noise, turn_chances
from qkscope.findings.evidence import (
    CONTENT,
    DOMINATED,
    FAILS,
    HOLDS,
    MEAN_ABS_R_K,
    MEAN_R_K,
    UNKNOWN,
    Evidence,
    Reading,
    spoken,
)
from qkscope.findings.phrases import between, by_noise, span, verb
from qkscope.findings.wording import about, count, listing, lower_first, number

# Content-focused heads have vanished when they are fewer than this share, early if within this part of the study.
VANISHED = 0.05
EARLY = 1 / 3


def turned(e: Evidence, i: int) -> dict[str, Any]:
    """Heads whose r_k changes sign between checkpoints i and i + 1, and what they do to its mean."""
    p = e.pairs[i]
    chances = turn_chances(p)
    heads = int(p.turned.sum())
    moved = float((p.r_k[1] - p.r_k[0])[p.turned].sum()) / max(e.heads, 1)
    return {
        "from": p.from_model,
        "to": p.to_model,
        "heads": heads,
        "expected": float(chances.sum()),
        "of_change": moved,
        "beyond_noise": p.has_errors and beyond_noise(heads, chances, e.heads),
        "perhaps": p.has_errors and perhaps_beyond_noise(heads, chances, e.heads),
    }


def sign_changes(e: Evidence) -> Reading:
    """Heads that turn from following position with the queries to following it against them, or back."""
    found = [turned(e, i) for i in range(len(e.pairs))]
    real = sorted((t for t in found if t["beyond_noise"]), key=lambda t: -t["heads"])
    numbers = {"steps": found}
    if not all(p.has_errors for p in e.pairs):
        total = sum(t["heads"] for t in found)
        text = f"r_k changes sign {total} times over the {count(len(found), 'step')} of {e.heads} heads. "
        return Reading(
            UNKNOWN, text + "Without standard errors it cannot be told how often by noise.", numbers
        )
    if real:
        brief = f"{real[0]['heads']} of {e.heads} heads{by_noise(real[0]['expected'])} at {_to(e, real[0])}"
        return Reading(HOLDS, _turn_text(e, real), numbers, brief)
    worst = max(found, key=lambda t: t["heads"] - t["expected"])
    brief = f"at most {worst['heads']} of {e.heads} heads{by_noise(worst['expected'])}"
    most = f"{worst['heads']} of {e.heads} in one step, where {about(worst['expected'])} are expected from noise alone"
    if any(t["perhaps"] for t in found):
        text = f"Perhaps: up to {most}, which is more but not clearly more."
        return Reading(UNKNOWN, text, numbers, brief)
    text = f"No more heads change the sign of r_k than noise explains: at most {most}."
    hidden = max(t["expected"] for t in found) > 0.1 * e.heads
    return Reading(UNKNOWN if hidden else FAILS, text, numbers, brief)


def _to(e: Evidence, turn: dict[str, Any]) -> str:
    return spoken(e.timeline.stop(turn["to"]))


def _turn_text(e: Evidence, real: list[dict[str, Any]]) -> str:
    top = real[0]
    i = [p.from_model for p in e.pairs].index(top["from"])
    signed, strength = e.steps(MEAN_R_K)[i], e.steps(MEAN_ABS_R_K)[i]
    text = (
        f"{top['heads']} of {e.heads} heads change the sign of r_k {between(e, i, i + 1)}"
        f"{by_noise(top['expected'])} while mean |r_k| {verb(strength)} {span(e, MEAN_ABS_R_K, i, i + 1)}"
    )
    weaker = strength.clear and strength.delta < 0
    if signed.clear and signed.delta < 0 and not weaker and top["of_change"] < signed.delta / 2:
        text += (
            f": mean r_k falls by {number(-signed.delta, signed.se)} because heads turn round, not because "
            "their keys follow position less"
        )
    if len(real) > 1:
        also = [f"{t['heads']} at {_to(e, t)}" for t in real[1:4]]
        text += f"; also {listing(also)}"
    return text + "."


def content_vanishes(e: Evidence) -> Reading:
    """Content-focused heads: there at first, then below 5% for good within the first third of the checkpoints."""
    series = e.series[CONTENT]
    last = len(series.values) - 1
    error = [float(np.nan_to_num(series.error(i))) for i in range(last + 1)]
    below = [series.at(i) + error[i] < VANISHED for i in range(last + 1)]
    gone = next((i for i in range(last + 1) if all(below[i:])), None)
    numbers: dict[str, Any] = {
        "shares": [series.at(i) for i in range(last + 1)],
        "se": [series.se(i) for i in range(last + 1)],
        "below_5_percent_from": None if gone is None else e.stops[gone].model,
    }
    course = f"Content-focused heads go {span(e, CONTENT, 0, last)} of {e.heads} heads"
    if series.at(0) - error[0] < VANISHED:
        return Reading(
            UNKNOWN, f"{course}: too few at the start to speak of vanishing.", numbers, lower_first(course)
        )
    if gone is None:
        sure = series.at(last) - 2 * error[last] > VANISHED
        ending = "they do not vanish" if sure else "whether they stay below 5% is within the noise"
        return Reading(FAILS if sure else UNKNOWN, f"{course}: {ending}.", numbers, lower_first(course))
    place = f"from {e.label(gone)} on, checkpoint {gone + 1} of {last + 1}, they stay below 5%"
    early = gone <= max(1, math.ceil(EARLY * last))
    return Reading(
        HOLDS if early else FAILS, f"{course}; {place}.", numbers, f"{lower_first(course)}; {place}"
    )


def feeds(e: Evidence) -> Reading:
    """The classes whose heads become position-dominated more often than noise moves them."""
    flows = flows_into(e.pairs, "position-dominated", e.thresholds)
    numbers = {"flows": flows.drop(columns="at").to_dict("records")}
    share = f"Position-dominated heads go {span(e, DOMINATED, 0, len(e.samples) - 1)}"
    if not all(p.has_errors for p in e.pairs):
        entries = [f"{row['entered']} from {row['class']}" for row in numbers["flows"] if row["entered"]]
        text = (
            f"{share}; over all steps {listing(entries) or 'no'} heads enter. Without standard errors it cannot "
            "be told how many of them by noise."
        )
        return Reading(UNKNOWN, text, numbers)
    real = flows[flows["feeds"]].sort_values("entered", ascending=False)
    if real.empty:
        entered, left, expected = (flows[c].sum() for c in ("entered", "left", "expected"))
        text = (
            f"{share}; no class feeds them beyond noise: {entered} heads enter and {left} leave over all steps, "
            f"{about(expected)} entries are expected from noise alone."
        )
        return Reading(FAILS, text, numbers, f"{lower_first(share)}, {entered} heads enter and {left} leave")
    sources = [
        f"{row['class']} ({row['entered']} heads enter, {row['left']} return, {about(row['expected'])} entries "
        f"expected from noise alone; most {between(e, row['at'], row['at'] + 1)})"
        for row in real.to_dict("records")
    ]
    short = listing([f"{row['class']} ({row['entered']})" for row in real.to_dict("records")])
    text = f"{share}; they come from {listing(sources)}.{_below_null(e)}"
    return Reading(HOLDS, text, numbers, f"{lower_first(share)}, from {short}")


def _below_null(e: Evidence) -> str:
    """A word on heads whose class comes from the size of r alone."""
    last = e.samples[-1].heads
    below = positional_below_null(last, e.thresholds) & (last["class"] == "position-dominated").to_numpy()
    count_below = int(below.sum())
    return f" {count_below} of those at {e.label(-1)} do not exceed their null." if count_below else ""
