"""Pieces of sentences and table rows that several questions share."""

from __future__ import annotations

import math

from qkscope.findings.catalogue import Answer, Asked
from qkscope.findings.claim import Row
from qkscope.inference.evidence import Evidence
from qkscope.inference.series import Change
from qkscope.words import about, arrow, joined, number, percent, points, sentence


def level(e: Evidence, name: str, i: int) -> str:
    """`0.67 ± 0.01`, or `34 ± 2%`."""
    series = e.series[name]
    return percent(series.at(i), series.se(i)) if series.heads else number(series.at(i), series.se(i))


def amount(e: Evidence, c: Change) -> str:
    """`+0.14 ± 0.01`, or `−23 ± 2 points`."""
    return points(c.delta, c.se) if e.series[c.series].heads else number(c.delta, c.se, signed=True)


def ends(e: Evidence, name: str) -> str:
    """`from 0.67 ± 0.01 (S1-40K) to 0.87 ± 0.01 (LC2-20K)`."""
    last = len(e.stops) - 1
    return f"from {level(e, name, 0)} ({e.label(0)}) to {level(e, name, last)} ({e.label(last)})"


def span(e: Evidence, name: str, start: int = 0, stop: int = -1) -> str:
    """`0.09 → 0.45`."""
    series = e.series[name]
    return arrow(series.at(start), series.at(range(len(series))[stop]), share=series.heads is not None)


def between(e: Evidence, c: Change) -> str:
    return f"between {e.label(c.start)} and {e.label(c.stop)}"


def by_noise(expected: float) -> str:
    """`; noise alone would move 3.1`, or nothing where that is not known."""
    return "" if math.isnan(expected) else f"; noise alone would move {about(expected)}"


def row(e: Evidence, c: Change) -> Row:
    """A judged change as a row of the table."""
    before, after = e.stops[c.start].model, e.stops[c.stop].model
    return Row(c.series, after, c.delta, before, c.se, e.name, c.verdict)


def rows_of(s: Asked, *names: str) -> tuple[Row, ...]:
    """Each series from first to last over every window there is, and the steps that are clear over the judged one."""
    found = []
    for name in names:
        for e in dict.fromkeys(("best", "own")):
            evidence: Evidence = getattr(s, e)
            if name in evidence.series and (e == "best" or evidence is not s.best):
                found.append(row(evidence, evidence.overall(name)))
        found += [row(s.best, c) for c in s.best.steps(name) if c.clear]
    return tuple(found)


def course(s: Asked, name: str, says: dict[str, str]) -> Answer:
    """The course of one series: `says` has the headline's words for each verdict."""
    e = s.best
    verdict = e.direction(name)
    words = says[verdict] if s.comparable else f"Over windows that differ, {name} goes"
    joint = "" if words.endswith(name + " goes") else f": {name}"
    where = _turns(e, name) if verdict == "rises and falls" else _largest(e, name)
    detail = sentence(f"{s.over}{name} goes {ends(e, name)}{where}")
    return Answer(
        verdict, f"{words}{joint} {span(e, name)}", joined(detail, beside(s, name)), rows_of(s, name)
    )


def _largest(e: Evidence, name: str) -> str:
    steps = e.steps(name)
    if len(steps) < 2:
        return ""
    top = max(steps, key=lambda c: abs(c.delta))
    clear = "" if top.clear else ", which is not clear of noise"
    return f"; the largest step is {amount(e, top)}, {between(e, top)}{clear}"


def _turns(e: Evidence, name: str) -> str:
    """The largest clear step up and down; where no step is clear, the slow swing that is."""
    parts = []
    for sign, verb in ((1, "rises"), (-1, "falls")):
        clear = [c for c in e.changes_of(name) if c.clear and sign * c.delta > 0]
        most = max(clear, key=lambda c: (c.kind == "step", sign * c.delta))
        parts.append(f"{verb} {between(e, most)} ({amount(e, most)})")
    return f"; it {' and '.join(parts)}"


def beside(s: Asked, name: str) -> str:
    """What own windows show of the same series, worded so that it stands beside the matched window's."""
    if s.matched is None or name not in s.own.series:
        return ""
    last = len(s.own.stops) - 1
    return f"Over own windows, which differ, it ends at {level(s.own, name, last)}."
