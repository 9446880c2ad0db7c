"""Questions about the course of training: each takes the evidence of one kind of window and gives a reading."""

from __future__ import annotations

import math

import numpy as np

from qkscope.findings.changes import SMALLEST, Change, plateaus
from qkscope.findings.evidence import (
    FAILS,
    HOLDS,
    MEAN_ABS_R_K,
    MEAN_R_K,
    MEAN_R_Q,
    UNKNOWN,
    Evidence,
    Reading,
)
from qkscope.findings.phrases import amount, between, by_noise, margin, record, span, verb
from qkscope.findings.turnover import turned
from qkscope.findings.wording import listing, number


def rises(e: Evidence) -> Reading:
    """Mean r_q: clearly higher at the end, and no step clearly down."""
    overall, steps = e.overall(MEAN_R_Q), e.steps(MEAN_R_Q)
    up = [c for c in steps if c.clear and c.delta > 0]
    down = [c for c in steps if c.clear and c.delta < 0]
    text = f"Mean r_q {verb(overall)} {span(e, MEAN_R_Q, 0, overall.stop)}"
    if down:
        falls = [f"{amount(c)} {between(e, c.start, c.stop)}" for c in down]
        text += f", but it falls by {listing(falls)}".replace("by \u2212", "by ")
    elif len(steps) > 1:
        rising = f"{len(up)} {'rises' if len(up) == 1 else 'rise'}" if up else "none rises"
        text += f"; of its {len(steps)} steps {rising} by {SMALLEST} or more and none falls by as much"
    if down or (overall.clear and overall.delta < 0) or overall.delta + margin(overall) < SMALLEST:
        verdict = FAILS
    else:
        verdict = HOLDS if overall.clear else UNKNOWN
    numbers = {"overall": record(e, overall), "steps": [record(e, c) for c in steps]}
    brief = f"mean r_q {verb(overall)} {span(e, MEAN_R_Q, 0, overall.stop)}"
    return Reading(verdict, text + ".", numbers, brief)


def long_context(e: Evidence) -> Reading:
    """Mean r_k at the onset of long-context training, and how much of its change is heads changing sign."""
    if e.onset is None:
        return Reading(UNKNOWN, "No checkpoint of this study begins long-context training.")
    i = e.onset
    signed, strength = (e.steps(name)[i - 1] for name in (MEAN_R_K, MEAN_ABS_R_K))
    flips = turned(e, i - 1)
    text = (
        f"Where long-context training begins, mean r_k {verb(signed)} {span(e, MEAN_R_K, i - 1, i)}, "
        f"{amount(signed)}, and mean |r_k| {verb(strength)} ({amount(strength)}); "
        f"{flips['heads']} of {e.heads} heads change sign{by_noise(flips['expected'])}"
    )
    if flips["beyond_noise"]:
        text += f", which makes {number(flips['of_change'], math.nan, signed=True)} of the change of mean r_k"
    if signed.clear:
        verdict = HOLDS if signed.delta < 0 else FAILS
    else:
        verdict = FAILS if signed.delta - margin(signed) > -SMALLEST else UNKNOWN
    numbers = {"r_k": record(e, signed), "abs_r_k": record(e, strength), "sign_changes": flips}
    brief = f"mean r_k {amount(signed)}, mean |r_k| {amount(strength)}, {flips['heads']} heads change sign"
    return Reading(verdict, text + ".", numbers, brief)


def jumps(e: Evidence) -> Reading:
    """The steps that are more than noise and stand out from the other steps of their series."""
    found = [c for c in e.changes if c.jump]
    numbers = {
        "jumps": [record(e, c) | {"window_changes": c.stop in e.widened} for c in found],
        "change_point": {
            name: e.stops[max(e.steps(name), key=lambda c: abs(c.delta)).stop].model
            for name in e.series
            if any(c.jump for c in e.steps(name))
        },
    }
    if found:
        places = _places(e, found)
        main = [c for c in found if c.series in (MEAN_R_Q, MEAN_R_K, MEAN_ABS_R_K)]
        brief = f"jumps {_places(e, main)}" if main else f"jumps {places}"
        return Reading(HOLDS, f"There are jumps {places}.", numbers, brief)
    steady = [c for c in e.changes if c.clear]
    worst = max((c.se for c in e.steps(MEAN_R_Q)), default=math.nan)
    if steady:
        names = listing(sorted({c.series for c in steady}))
        return Reading(FAILS, f"There is no jump; what changes ({names}) does so steadily.", numbers)
    text = "There is no jump: no step of any series stands out from noise."
    return Reading(FAILS if worst < SMALLEST else UNKNOWN, text, numbers)


def _places(e: Evidence, found: list[Change]) -> str:
    """Where each series has its largest jump, in order of training; the others are counted."""
    largest: dict[str, Change] = {}
    for c in sorted(found, key=lambda c: -abs(c.delta)):
        largest.setdefault(c.series, c)
    parts = []
    for place in sorted({c.stop for c in largest.values()}):
        here = [c for c in largest.values() if c.stop == place]
        parts.append(f"{between(e, place - 1, place)} ({', '.join(f'{c.series} {amount(c)}' for c in here)})")
    more = len(found) - len(largest)
    return "; ".join(parts) + (f"; and {more} smaller" if more else "")


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def rests(e: Evidence) -> Reading:
    """Where mean r_q and mean |r_k| stay within 0.02 over three or more checkpoints."""
    found = {name: plateaus(e.series[name]) for name in (MEAN_R_Q, MEAN_ABS_R_K)}
    numbers = {
        name: [
            {"from": e.stops[a].model, "to": e.stops[b].model, "level": _level(e, name, a, b)}
            for a, b in runs
        ]
        for name, runs in found.items()
    }
    texts = []
    for name, runs in found.items():
        places = [f"from {e.label(a)} to {e.label(b)} (at {_level(e, name, a, b):.2f})" for a, b in runs]
        if places:
            texts.append(f"{name} stays within 0.02 {listing(places)}")
    if texts:
        return Reading(HOLDS, f"{_upper('; '.join(texts))}.", numbers, "; ".join(texts))
    if len(e.stops) < 3:
        return Reading(UNKNOWN, "A plateau takes three checkpoints.", numbers)
    errors = [c.se for name in found for c in e.steps(name)]
    text = "Neither mean r_q nor mean |r_k| stays within 0.02 over three checkpoints."
    if max(errors) > SMALLEST / 2:
        return Reading(UNKNOWN, f"{text[:-1]} as far as the noise of some steps lets one see.", numbers)
    return Reading(FAILS, text, numbers)


def _level(e: Evidence, name: str, first: int, last: int) -> float:
    return float(np.mean([e.series[name].at(i) for i in range(first, last + 1)]))
