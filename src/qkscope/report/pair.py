"""Two runs on one page: the second one's numbers on the first one's grid, what both say, and what differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from qkscope.comparison import compare_matched
from qkscope.comparison.words import closing, printed
from qkscope.report.data import grid_of, payload
from qkscope.report.story import SUBJECTS

if TYPE_CHECKING:
    from qkscope.claims import Claim
    from qkscope.comparison import Comparison, Matched
    from qkscope.timeline import Timeline

LETTERS = ("A", "B")
# What a run has of its own; everything else on the page is shared.
OF_A_RUN = ("stops", "own", "matched", "more", "omitted", "aggregates", "causes", "curves")
# Rows of differing numbers that the page lists; `qkscope compare --csv` writes all.
MOST_ROWS = 400

Said = list[tuple[str, "Claim"]]


@dataclass(frozen=True)
class Difference:
    """What the page says of how the runs differ: a sentence, a word, rows of a table, and lines below it."""

    sentence: str
    verdict: str
    rows: list[tuple[str, ...]]
    lines: list[str]


def same_windows(found: Matched) -> Matched:
    """Matched windows are shown where both runs have the same one."""
    sides = (found.ours, found.theirs)
    if all(side.matched is not None for side in sides) and (
        sides[0].timeline.matched_window == sides[1].timeline.matched_window
    ):
        return found
    ours, theirs = (replace(side, matched=None, loo_matched=None) for side in sides)
    return replace(found, ours=ours, theirs=theirs)


def pair_payload(found: Matched) -> dict[str, Any]:
    """The page's data of the first run, and under `other` what the second has of its own, row by row the same."""
    grid = grid_of(found.ours)
    data = payload(found.ours, grid)
    other = payload(found.theirs, replace(grid, models=list(found.theirs.timeline.models)))
    return data | {"runs": list(found.names), "other": {name: other[name] for name in OF_A_RUN}}


def difference(found: Matched) -> Difference:
    """What differs between two matched runs."""
    judged = _labelled(compare_matched(found), found.ours.timeline)
    rows, lines = printed(judged.rows), closing(judged)
    if len(rows) > MOST_ROWS:
        lines = [f"{len(rows) - MOST_ROWS} more are listed by `qkscope compare`.", *lines]
    return Difference(judged.sentence(), judged.outcome, rows[:MOST_ROWS], lines)


def _labelled(judged: Comparison, timeline: Timeline) -> Comparison:
    """Checkpoints under the names that the pictures give them."""
    rows = tuple(replace(row, checkpoint=timeline.stop(row.checkpoint).label) for row in judged.rows)
    return replace(judged, rows=rows)


def answers(ours: Sequence[Claim], theirs: Sequence[Claim]) -> dict[str, list[Said]]:
    """Each question once, by subject, with the letter and the answer of each run that has one."""
    sides = [{claim.id: claim for claim in side} for side in (ours, theirs)]
    found: dict[str, list[Said]] = {name: [] for name in SUBJECTS.values()}
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        said = [(letter, side[name]) for letter, side in zip(LETTERS, sides, strict=True) if name in side]
        found[SUBJECTS[said[0][1].see.view]].append(said)
    return {name: cards for name, cards in found.items() if cards}
