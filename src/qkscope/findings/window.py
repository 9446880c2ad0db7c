"""Is it the model that changed, or the measurement? Own windows against one window for all checkpoints."""

from __future__ import annotations

import math

from qkscope.findings.changes import SMALLEST, Change
from qkscope.findings.evidence import (
    FAILS,
    HOLDS,
    MEAN_ABS_R_K,
    MEAN_EV,
    MEAN_R_K,
    MEAN_R_Q,
    UNKNOWN,
    Evidence,
    Reading,
)
from qkscope.findings.phrases import amount, margin, record
from qkscope.findings.wording import listing, number, tokens
from qkscope.measures.jackknife import jackknife

COMPARED = (MEAN_R_Q, MEAN_R_K, MEAN_ABS_R_K, MEAN_EV)
MODEL, WINDOW, BOTH, UNCLEAR, NOTHING = "model", "window", "both", "unclear", "nothing"


def cause(own: Change, matched: Change) -> str:
    """What a change over own windows comes from, given the change over one window for both checkpoints.

    `window` asks that the model's own share of the change be small: not clear over the matched window, and at
    most half of what own windows show. `both` is a model change whose size the window alters.
    """
    if not own.clear and not matched.clear:
        return NOTHING
    if matched.clear:
        same = own.clear and abs(own.delta - matched.delta) < max(SMALLEST, abs(own.delta) / 4)
        return MODEL if same else BOTH
    bound = abs(matched.delta) + (0.0 if math.isnan(matched.se) else margin(matched))
    return WINDOW if bound < max(SMALLEST, abs(own.delta) / 2) else UNCLEAR


def growing_window(own: Evidence, matched: Evidence | None) -> tuple[str, Reading, Reading | None]:
    """What changes where the window does: the answer, and what own windows and the same window show."""
    places = own.widened
    if matched is None or [s.model for s in matched.stops] != [s.model for s in own.stops]:
        return _alone(own, places), _side(own, places, UNKNOWN), None
    texts, causes = [], []
    for i in places:
        judged = {name: (own.steps(name)[i - 1], matched.steps(name)[i - 1]) for name in _names(own, matched)}
        found = {name: cause(*pair) for name, pair in judged.items()}
        causes += list(found.values())
        texts.append(_place_text(own, matched, i, judged, found))
    effect = window_effect(own, matched, len(own.stops) - 1)
    mine, theirs = (_side(e, places, _verdict(causes)) for e in (own, matched))
    mine.numbers["window_effect"] = effect
    return " ".join(texts) + _effect_text(own, matched, effect), mine, theirs


def _side(e: Evidence, places: list[int], verdict: str) -> Reading:
    """The changes at the places where the window changes, over one kind of window."""
    changes = {i: [e.steps(name)[i - 1] for name in COMPARED if name in e.series] for i in places}
    texts = [
        f"at {e.label(i)} {', '.join(f'{c.series} {amount(c)}' for c in here)}" for i, here in changes.items()
    ]
    records = [record(e, c) for here in changes.values() for c in here]
    text = "; ".join(texts)
    return Reading(verdict, text[:1].upper() + text[1:] + ".", {"changes": records})


def window_effect(own: Evidence, matched: Evidence, i: int) -> dict[str, dict[str, float]]:
    """What the longer window alone does to checkpoint i: own minus matched, paired over document groups."""
    found = {}
    for name in _names(own, matched):
        mine, theirs = own.series[name].values[i], matched.series[name].values[i]
        paired = len(mine) == len(theirs) and own.heads == matched.heads
        se = float(jackknife(mine[1:] - theirs[1:])) if paired else math.nan
        found[name] = {"difference": float(mine[0] - theirs[0]), "se": se}
    return found


def _effect_text(own: Evidence, matched: Evidence, effect: dict[str, dict[str, float]]) -> str:
    last = own.stops[-1]
    if last.window == matched.window or last.window is None or matched.window is None:
        return ""
    parts = [
        f"{name} {number(effect[name]['difference'], effect[name]['se'], signed=True)}"
        for name in (MEAN_R_Q, MEAN_R_K)
    ]
    return (
        f" Measured over {tokens(last.window)} instead of its first {matched.window:,}, {own.label(-1)} differs "
        f"from itself by {' and '.join(parts)}."
    )


def window_jumps(own: Evidence, matched: Evidence) -> str:
    """A sentence about the jumps over own windows that the matched window shows to be the window's; or nothing."""
    if [s.model for s in matched.stops] != [s.model for s in own.stops]:
        return ""
    names = [name for name in own.series if name in matched.series]
    found = [
        f"{name} at {own.label(i)}"
        for i in own.widened
        for name in names
        if own.steps(name)[i - 1].jump and cause(own.steps(name)[i - 1], matched.steps(name)[i - 1]) == WINDOW
    ]
    if not found:
        return ""
    jumps, come = ("jumps", "come") if len(found) > 1 else ("jump", "comes")
    return f" The {jumps} of {listing(found)} over own windows {come} from the window, not the model."


def _names(own: Evidence, matched: Evidence) -> list[str]:
    return [name for name in COMPARED if name in own.series and name in matched.series]


def _alone(own: Evidence, places: list[int]) -> str:
    where = listing([f"{own.label(i)} ({_grows(own, i)})" for i in places])
    return (
        f"The window changes at {where}, and the checkpoints were not measured over a common window: "
        "a change there may be the model's or the window's."
    )


def _grows(e: Evidence, i: int) -> str:
    before, after = e.stops[i - 1].window or 0, e.stops[i].window or 0
    return f"{'grows' if after > before else 'shrinks'} from {before:,} to {tokens(after)}"


def _place_text(
    own: Evidence,
    matched: Evidence,
    i: int,
    judged: dict[str, tuple[Change, Change]],
    found: dict[str, str],
) -> str:
    by_cause: dict[str, list[str]] = {}
    for name, (mine, theirs) in judged.items():
        by_cause.setdefault(found[name], []).append(f"{name} {amount(mine)} against {amount(theirs)}")
    endings = {
        WINDOW: "from the window, not the model",
        MODEL: "from the model",
        BOTH: "from the model, altered or hidden by the window",
        UNCLEAR: "from either, which cannot be told",
    }
    parts = [f"{listing(by_cause[kind])}, {ending}" for kind, ending in endings.items() if kind in by_cause]
    head = f"At {own.label(i)} the window {_grows(own, i)}"
    if not parts:
        return f"{head}, and nothing clearly changes."
    return f"{head}. Changes over own windows against the first {tokens(matched.window or 0)}: {'; '.join(parts)}."


def _verdict(causes: list[str]) -> str:
    """Whether what changes with the window is the model's."""
    kinds = set(causes) - {NOTHING}
    if not kinds:
        return FAILS
    if kinds & {MODEL, BOTH}:
        return HOLDS
    return UNKNOWN if UNCLEAR in kinds else FAILS
