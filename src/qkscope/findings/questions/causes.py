"""What caused the changes between neighbours: training, rotation settings, window, text, or another first axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL, Row
from qkscope.inference.evidence import spoken
from qkscope.inference.levels import rule_of_causes
from qkscope.inference.naming import ANOTHER_AXIS, NAMED, TEXT, TRAINING, Part, causes, named, parts
from qkscope.words import bare, capital, joined, listing, number, sentence, tokens

if TYPE_CHECKING:
    import pandas as pd

WORDS = {
    TRAINING: "training",
    "rotation": "rotation",
    "window": "the window",
    TEXT: "other text",
    ANOTHER_AXIS: "another first axis",
}
Step = tuple[str, str]


@question(
    "causes", "What caused the changes between checkpoints?", view="causes", place=11, rule=rule_of_causes(), of="any",
)  # fmt: skip
def why(s: Asked) -> Answer | None:
    """The causes of the step at which more than the weights changed; of the largest step where none is such."""
    if s.results.timeline.kind != "training" or len(s.own.samples) < 2:
        return None
    table = s.results.causes
    if table is None or table.empty:
        text = "the table does not say what else than the weights changed: `qkscope run` measures it"
        return Answer(CANNOT_TELL, "The causes of changes between checkpoints cannot be told", sentence(text))
    found = parts(table)
    if not found:
        text = "every number of neighbouring checkpoints is the same to its last digit: are they copies?"
        return Answer("no change", "Nothing changed between checkpoints", sentence(text))
    step = _telling(found)
    here = [part for part in found if (part.before, part.after) == step]
    again = s.results.causes_matched
    same = [] if again is None else [p for p in parts(again) if (p.before, p.after) == step]
    # Over the same tokens nothing is extrapolated; the window's own part shows over own windows alone.
    matched = s.matched is not None and bool(causes(same))
    judged = same if matched else here
    blind = [part for part in here if not part.known]
    verdict = CANNOT_TELL if blind and not causes(judged) else named(judged)
    headline = _undivided(s, step, blind) if blind else _headline(s, step, judged, matched)
    detail = _detail(s, step, here, same if matched else ())
    rows = (*(_rows(same, "matched") if s.matched is not None else ()), *_rows(found, "own"))
    return Answer(verdict, headline, detail, rows, _doubt(s, here), window="matched" if matched else "own")


def _telling(found: Sequence[Part]) -> Step:
    """The step with the largest part that is not training's, else the one with the largest part of all."""
    besides = [part for part in found if part.cause != TRAINING]
    unknown = [part for part in besides if not part.known]
    clear = [part for part in besides if part.clear]
    part = max(unknown or clear or besides or found, key=lambda part: abs(part.value) if part.known else 0.0)
    return part.before, part.after


def _headline(s: Asked, step: Step, here: Sequence[Part], matched: bool) -> str:
    """`At LC1-40, over the same tokens, rotation lowers mean r_q by 0.09, training raises it by 0.04`."""
    clear = [part for part in here if part.clear]
    where = f"at {_label(s, step[1])}" + (", over the same tokens," if matched else "")
    if not clear:
        level = bool(here) and all(part.excluded for part in here)
        return capital(f"{where} " + ("nothing changes" if level else "no cause stands out from noise"))
    # Of the numbers that something else than training moved, the first: the one that pictures open with.
    besides = [part for part in clear if part.cause != TRAINING] or clear
    what = min((part.number for part in besides), key=NAMED.index)
    largest = max((part for part in clear if part.number == what), key=lambda part: abs(part.value))
    said: list[str] = []
    for verb, sign in sorted((("lowers", -1), ("raises", 1)), key=lambda way: -way[1] * largest.value):
        names = [WORDS[p.cause] for p in clear if p.number == what and sign * p.value > 0]
        if names:
            verb = verb if len(names) == 1 else verb[:-1]
            subject = "it" if said else what
            said.append(f"{listing(names)} {verb} {subject} by {bare(_sum(clear, what, sign))}")
    return capital(f"{where} " + ", ".join(said))


def _sum(clear: Sequence[Part], what: str, sign: int) -> float:
    return sum(abs(p.value) for p in clear if p.number == what and sign * p.value > 0)


def _undivided(s: Asked, step: Step, blind: Sequence[Part]) -> str:
    names = listing(list(dict.fromkeys(WORDS[part.cause] for part in blind)))
    return f"At {_label(s, step[1])} {names} change together and cannot be told apart"


def _detail(s: Asked, step: Step, own: Sequence[Part], same: Sequence[Part]) -> str:
    """The change of each number with its parts: over the same tokens where they are judged, and over own windows."""
    table, again = s.results.causes, s.results.causes_matched
    ends = f"between {_label(s, step[0])} and {_label(s, step[1])}, "
    over = f"over their own windows, {_sizes(table, own)}" if table is not None else ""
    if again is None or not same:
        return sentence(ends + over)
    first = f"over the first {tokens(s.results.timeline.matched_window or 0)} of both, "
    return joined(sentence(ends + first + _sizes(again, same)), sentence(over), _opposed(same, own))


def _sizes(table: pd.DataFrame, here: Sequence[Part]) -> str:
    """Each number's change with all its parts: `mean r_q changes by +0.01 ± 0.01 (training +0.05 ± 0.01, ...)`."""
    said = []
    for what in dict.fromkeys(part.number for part in here):
        mine = [part for part in here if part.number == what]
        row = table[
            (table["from_model"] == mine[0].before)
            & (table["to_model"] == mine[0].after)
            & (table["number"] == what)
        ].iloc[0]
        total = number(float(row["total"]), float(row["total_se"]), signed=True)
        said.append(f"{what} changes by {total} ({_each(mine)})")
    return " and ".join(said)


def _each(mine: Sequence[Part]) -> str:
    return ", ".join(
        f"{part.cause} " + (number(part.value, part.se, signed=True) if part.known else "unknown")
        for part in mine
    )


def _opposed(same: Sequence[Part], own: Sequence[Part]) -> str:
    """Why a cause may lower a number over the same tokens and raise it over own windows."""
    first = {(part.number, part.cause): part.value for part in same if part.clear}
    found = [p for p in own if p.clear and p.value * first.get((p.number, p.cause), 0.0) < 0]
    if not found:
        return ""
    cause = capital(WORDS[found[0].cause])
    return (
        f"{cause} has the other sign over own windows because its part there is averaged over both windows, and "
        "what it does depends on the window."
    )


def _doubt(s: Asked, here: Sequence[Part]) -> str:
    """What the attribution cannot see."""
    if any(part.cause == TEXT for part in here):
        return (
            "The two checkpoints read different text: what it did and what training did cannot be told apart."
        )
    if any(not part.known for part in here):
        return "Rotation settings changed and no counterfactual checkpoint was measured (controls: {rotation: false})."
    if s.results.record.corpus.start == "beginning":
        return "Texts are read from their beginning, where content is tied to position."
    return ""


def _rows(found: Sequence[Part], window: Literal["own", "matched"]) -> list[Row]:
    return [
        Row(f"{p.number}, by {WORDS[p.cause]}", p.after, p.value, p.before, p.se, window, p.verdict)
        for p in found
    ]


def _label(s: Asked, model: str) -> str:
    return spoken(s.results.timeline.stop(model))
