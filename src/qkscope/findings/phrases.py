"""Pieces of sentences and table rows that several questions share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qkscope.findings.catalogue import Answer, Asked
from qkscope.findings.claim import CANNOT_TELL, Row
from qkscope.inference.contrast import Contrast
from qkscope.inference.course import direction
from qkscope.inference.evidence import Evidence, spoken
from qkscope.inference.series import Change, whole
from qkscope.inference.transitions import Moved
from qkscope.words import Unit, about, arrow, count, joined, measured, sentence, tokens

NO_HEAD_ERRORS = "Without errors of single heads it is not known how many do so by noise."
# A count of heads against its noise, in the words of a row.
BY_NOISE = {"yes": "beyond noise", "no": "within noise", CANNOT_TELL: CANNOT_TELL}


def level(e: Evidence, name: str, i: int) -> str:
    """`0.67 ± 0.01`, or `34 ± 2%`."""
    series = e.series[name]
    return measured(series.at(i), series.se(i), _unit(e, name), signed=False)


def amount(e: Evidence, c: Change) -> str:
    """`+0.14 ± 0.01`, or `−23 ± 2 points`."""
    return measured(c.delta, c.se, _unit(e, c.series), signed=True)


def the(name: str) -> str:
    """A series as the subject of a sentence."""
    return name if name.startswith("mean") else f"the {name}"


def ends(e: Evidence, name: str) -> str:
    """`from 0.67 ± 0.01 (S1-40K) to 0.87 ± 0.01 (LC2-20K)`."""
    return f"from {level(e, name, 0)} ({e.label(0)}) to {level(e, name, -1)} ({e.label(-1)})"


def goes(e: Evidence, name: str) -> str:
    """`the share of mixed heads goes from ... to ...`."""
    return f"{the(name)} goes {ends(e, name)}"


def span(e: Evidence, name: str, start: int = 0, stop: int = -1) -> str:
    """`0.09 → 0.45`."""
    series = e.series[name]
    return arrow(series.at(start), series.at(range(len(series))[stop]), share=series.heads is not None)


def between(e: Evidence, c: Change) -> str:
    return f"between {e.label(c.start)} and {e.label(c.stop)}"


def by_noise(expected: float) -> str:
    """` (noise alone: 3.1)`, or nothing where that is not known."""
    return "" if math.isnan(expected) else f" (noise alone: {about(expected)})"


def row(e: Evidence, c: Change) -> Row:
    """A judged change as a row of the table."""
    before, after = e.stops[c.start].model, e.stops[c.stop].model
    return Row(c.series, after, c.delta, before, c.se, e.name, c.verdict, _unit(e, c.series))


def level_row(e: Evidence, name: str, i: int) -> Row:
    """A series at one checkpoint."""
    series = e.series[name]
    return Row(name, e.stops[i].model, series.at(i), se=series.se(i), window=e.name, unit=_unit(e, name))


def contrast_row(e: Evidence, what: str, model: str, c: Contrast) -> Row:
    """A difference between two sets of heads of one checkpoint."""
    return Row(what, model, c.difference, se=c.se, window=e.name, verdict=c.verdict, signed=True)


def at_step(e: Evidence, before: str, after: str) -> str:
    """`between S1-50 and S1-180`, by the names of two checkpoints."""
    return f"between {spoken(e.timeline.stop(before))} and {spoken(e.timeline.stop(after))}"


def moved_row(e: Evidence, what: str, m: Moved) -> Row:
    """A count of heads at one step, against what noise alone would do."""
    verdict = BY_NOISE[m.verdict]
    return Row(what, m.to_model, m.heads, m.from_model, math.nan, e.name, verdict, "heads")


def without_errors(most: int) -> str:
    """That the largest number of heads at any one step could not be judged; nothing where all could."""
    if not most:
        return ""
    verb = "has" if most == 1 else "have"
    return (
        f"At one step {count(most, 'head')} {verb} no standard error, since leaving out some documents makes another "
        "axis the first: noise is judged by the other heads."
    )


def _unit(e: Evidence, name: str) -> Unit:
    return "share" if name in e.series and e.series[name].heads else "r"


def rows_of(s: Asked, *names: str) -> tuple[Row, ...]:
    """Each series from first to last over every window there is, and the steps that are clear over the judged one."""
    found: list[Row] = []
    for name in names:
        both = [s.best] if s.matched is None else [s.matched, s.own]
        found += [row(e, e.overall(name)) for e in both if name in e.series]
        found += [row(s.best, c) for c in s.best.steps(name) if c.clear]
    return tuple(found)


def course(s: Asked, name: str, says: dict[str, str], short: str = "") -> Answer:
    """The course of one series: `says` has the headline's words for each verdict, `short` its name there."""
    e = s.best
    words, where = taken(e, e.changes_of(name), says)
    detail = joined(sentence(f"{s.over}{goes(e, name)}{where}"), beside(s, name))
    return Answer(e.direction(name), f"{words}: {short or name} {span(e, name)}", detail, rows_of(s, name))


def taken(e: Evidence, changes: Sequence[Change], says: dict[str, str]) -> tuple[str, str]:
    """The headline's words for all changes of one series, and where in training the largest of them are."""
    verdict, overall = direction(changes), whole(changes).verdict
    if verdict != "rises and falls":
        return says[verdict], _largest(e, [c for c in changes if c.kind == "step"])
    words = f"{says[overall]}, though not steadily" if overall in ("rises", "falls") else says[verdict]
    return words, _turns(e, changes)


def _largest(e: Evidence, steps: Sequence[Change]) -> str:
    if len(steps) < 2:
        return ""
    top = max(steps, key=lambda c: abs(c.delta))
    clear = "" if top.clear else ", which is not clear of noise"
    return f"; the largest step is {amount(e, top)}, {between(e, top)}{clear}"


def _turns(e: Evidence, changes: Sequence[Change]) -> str:
    """The largest clear step up and down; where no step is clear, the slow swing that is."""
    parts = []
    for sign, verb in ((1, "rises"), (-1, "falls")):
        clear = [c for c in changes if c.clear and sign * c.delta > 0]
        most = max(clear, key=lambda c: (c.kind == "step", sign * c.delta))
        parts.append(f"{verb} {between(e, most)} ({amount(e, most)})")
    return f"; it {' and '.join(parts)}"


def beside(s: Asked, name: str) -> str:
    """Where own windows end in the same series, worded so that it stands beside the matched window's."""
    if s.matched is None or name not in s.own.series:
        return ""
    windows = [stop.window for stop in s.own.stops if stop.window is not None]
    over = f"Over own windows, {min(windows):,} to {tokens(max(windows))}"
    return f"{over}, it ends at {level(s.own, name, -1)}."
