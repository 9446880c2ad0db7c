"""Changes of a study as they stand in a sentence and in summary.json."""

from __future__ import annotations

import math
from typing import Any

from qkscope.findings.changes import SMALLEST, Change
from qkscope.findings.evidence import CONTENT, DOMINATED, Evidence
from qkscope.findings.significance import t_quantile
from qkscope.findings.wording import about, decimals, number, percent


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
