"""Questions about the course of training: each takes the evidence of one kind of window and gives a reading."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qkscope.aggregate import positional_below_null
from qkscope.findings.changes import SMALLEST, Change, plateaus
from qkscope.findings.conversions import beyond_noise, flows_into, turn_chances
from qkscope.findings.evidence import (
    CONTENT,
    DOMINATED,
    FAILS,
    HOLDS,
    MEAN_ABS_R_K,
    MEAN_R_K,
    MEAN_R_Q,
    UNKNOWN,
    Evidence,
    Reading,
)
from qkscope.findings.significance import t_quantile
from qkscope.findings.wording import about, count, decimals, listing, number, percent

# Content-focused heads have vanished when they are fewer than this share, early if within this part of the study.
VANISHED = 0.05
EARLY = 1 / 3
# A sentence names so many places of jumps.
PLACES = 4


def span(e: Evidence, name: str, start: int, stop: int) -> str:
    """`from 0.67 ± 0.01 (S1-40K) to 0.87 ± 0.01 (LC2-20K)`."""
    series = e.series[name]
    places = decimals(max(series.se(start), series.se(stop)))

    def write(i: int) -> str:
        if name in (DOMINATED, CONTENT):
            return percent(series.at(i), series.se(i))
        return number(series.at(i), series.se(i), places=places)

    return f"from {write(start)} ({e.label(start)}) to {write(stop)} ({e.label(stop)})"


def between(e: Evidence, start: int, stop: int) -> str:
    return f"between {e.label(start)} and {e.label(stop)}"


def verb(c: Change) -> str:
    """What a change does: `stays level` only if a change worth a word is excluded (or errors are not known)."""
    if c.clear:
        return "rises" if c.delta > 0 else "falls"
    if math.isnan(c.se):
        return "stays level"
    return "stays level" if abs(c.delta) + margin(c) < SMALLEST else "does not clearly change"


def margin(c: Change) -> float:
    """Half the 95% interval of a change; infinite without an error."""
    return t_quantile(0.975, c.df) * c.se if c.df > 0 and math.isfinite(c.se) else math.inf


def amount(c: Change) -> str:
    if c.series in (DOMINATED, CONTENT):
        error = "" if math.isnan(c.se) else f" ± {max(100 * c.se, 1):.0f}"
        return f"{100 * c.delta:+.0f}{error} points".replace("-", "\u2212")
    return number(c.delta, c.se, signed=True)


def by_noise(expected: float) -> str:
    """` (3.1 expected from noise alone)`, or nothing where that is not known."""
    return "" if math.isnan(expected) else f" ({about(expected)} expected from noise alone)"


def record(e: Evidence, c: Change) -> dict[str, Any]:
    """A change as summary.json has it."""
    return {
        "series": c.series,
        "from": e.stops[c.start].model,
        "to": e.stops[c.stop].model,
        "change": c.delta,
        "se": c.se,
        "clear": c.clear,
    }


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
    return Reading(verdict, text + ".", numbers)


def long_context(e: Evidence) -> Reading:
    """Mean r_k at the onset of long-context training, and how much of its change is heads changing sign."""
    if e.onset is None:
        return Reading(UNKNOWN, "No checkpoint of this study begins long-context training.")
    i = e.onset
    signed, strength = (e.steps(name)[i - 1] for name in (MEAN_R_K, MEAN_ABS_R_K))
    turned = _turned(e, i - 1)
    text = (
        f"Where long-context training begins, mean r_k {verb(signed)} {span(e, MEAN_R_K, i - 1, i)}, "
        f"{amount(signed)}, and mean |r_k| {verb(strength)} ({amount(strength)}); "
        f"{turned['heads']} of {e.heads} heads change sign{by_noise(turned['expected'])}"
    )
    if turned["beyond_noise"]:
        text += (
            f", which makes {number(turned['of_change'], math.nan, signed=True)} of the change of mean r_k"
        )
    if signed.clear:
        verdict = HOLDS if signed.delta < 0 else FAILS
    else:
        verdict = FAILS if signed.delta - margin(signed) > -SMALLEST else UNKNOWN
    numbers = {"r_k": record(e, signed), "abs_r_k": record(e, strength), "sign_changes": turned}
    return Reading(verdict, text + ".", numbers)


def _turned(e: Evidence, i: int) -> dict[str, Any]:
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
    }


def sign_changes(e: Evidence) -> Reading:
    """Heads that turn from following position with the queries to following it against them, or back."""
    found = [_turned(e, i) for i in range(len(e.pairs))]
    real = sorted((t for t in found if t["beyond_noise"]), key=lambda t: -t["heads"])
    numbers = {"steps": found}
    if not all(p.has_errors for p in e.pairs):
        total = sum(t["heads"] for t in found)
        text = f"r_k changes sign {total} times over the {count(len(found), 'step')} of {e.heads} heads. "
        return Reading(
            UNKNOWN, text + "Without standard errors it cannot be told how often by noise.", numbers
        )
    if real:
        return Reading(HOLDS, _turn_text(e, real), numbers)
    worst = max(found, key=lambda t: t["heads"])
    text = (
        f"No more heads change the sign of r_k than noise explains: at most {worst['heads']} of {e.heads} in "
        f"one step, where {about(worst['expected'])} are expected from noise alone."
    )
    hidden = max(t["expected"] for t in found) > 0.1 * e.heads
    return Reading(UNKNOWN if hidden else FAILS, text, numbers)


def _turn_text(e: Evidence, real: list[dict[str, Any]]) -> str:
    top = real[0]
    i = [p.from_model for p in e.pairs].index(top["from"])
    signed, strength = e.steps(MEAN_R_K)[i], e.steps(MEAN_ABS_R_K)[i]
    text = (
        f"{top['heads']} of {e.heads} heads change the sign of r_k {between(e, i, i + 1)} "
        f"({about(top['expected'])} expected from noise alone) while mean |r_k| {verb(strength)} "
        f"{span(e, MEAN_ABS_R_K, i, i + 1)}"
    )
    weaker = strength.clear and strength.delta < 0
    if signed.clear and signed.delta < 0 and not weaker and top["of_change"] < signed.delta / 2:
        text += (
            f": mean r_k falls by {number(-signed.delta, signed.se)} because heads turn round, not because "
            "their keys follow position less"
        )
    if len(real) > 1:
        also = [f"{t['heads']} at {e.timeline.stop(t['to']).label}" for t in real[1:4]]
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
        return Reading(UNKNOWN, f"{course}: too few at the start to speak of vanishing.", numbers)
    if gone is None:
        sure = series.at(last) - 2 * error[last] > VANISHED
        ending = "they never vanish" if sure else "whether they stay below 5% is within the noise"
        return Reading(FAILS if sure else UNKNOWN, f"{course}: {ending}.", numbers)
    place = f"from {e.label(gone)} on, checkpoint {gone + 1} of {last + 1}, they stay below 5%"
    early = gone <= max(1, math.ceil(EARLY * last))
    return Reading(HOLDS if early else FAILS, f"{course}; {place}.", numbers)


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
        return Reading(FAILS, text, numbers)
    sources = [
        f"{row['class']} ({row['entered']} heads enter, {row['left']} return, {about(row['expected'])} entries "
        f"expected from noise alone; most {between(e, row['at'], row['at'] + 1)})"
        for row in real.to_dict("records")
    ]
    return Reading(HOLDS, f"{share}; they come from {listing(sources)}.{_below_null(e)}", numbers)


def _below_null(e: Evidence) -> str:
    """A word on heads whose class comes from the size of r alone."""
    last = e.samples[-1].heads
    below = positional_below_null(last, e.thresholds) & (last["class"] == "position-dominated").to_numpy()
    count_below = int(below.sum())
    return f" {count_below} of those at {e.label(-1)} do not exceed their null." if count_below else ""


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
        return Reading(HOLDS, _jumps_text(e, found), numbers)
    steady = [c for c in e.changes if c.clear]
    worst = max((c.se for c in e.steps(MEAN_R_Q)), default=math.nan)
    if steady:
        names = listing(sorted({c.series for c in steady}))
        return Reading(FAILS, f"There is no jump; what changes ({names}) does so steadily.", numbers)
    text = "There is no jump: no step of any series stands out from noise."
    return Reading(FAILS if worst < SMALLEST else UNKNOWN, text, numbers)


def _jumps_text(e: Evidence, found: list[Change]) -> str:
    """The places with the largest jumps, in order of training, with all that jumps there."""
    by_place: dict[int, list[Change]] = {}
    for c in sorted(found, key=lambda c: -abs(c.delta)):
        by_place.setdefault(c.stop, []).append(c)
    named = sorted(list(by_place)[:PLACES])
    parts = []
    for place in named:
        what = ", ".join(f"{c.series} {amount(c)}" for c in by_place[place])
        parts.append(f"{between(e, place - 1, place)} ({what})")
    more = len(by_place) - len(named)
    return f"There are jumps {'; '.join(parts)}{f'; and {more} smaller' if more else ''}."


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
        return Reading(HOLDS, f"{_upper('; '.join(texts))}.", numbers)
    if len(e.stops) < 3:
        return Reading(UNKNOWN, "A plateau takes three checkpoints.", numbers)
    errors = [c.se for name in found for c in e.steps(name)]
    text = "Neither mean r_q nor mean |r_k| stays within 0.02 over three checkpoints."
    if max(errors) > SMALLEST / 2:
        return Reading(UNKNOWN, f"{text[:-1]} as far as the noise of some steps lets one see.", numbers)
    return Reading(FAILS, text, numbers)


def _level(e: Evidence, name: str, first: int, last: int) -> float:
    return float(np.mean([e.series[name].at(i) for i in range(first, last + 1)]))
