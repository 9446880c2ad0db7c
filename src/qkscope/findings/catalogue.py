"""Questions about a study, answered with a number, its uncertainty and a verdict.

    aggregate -> evidence (own windows, matched window) -> course, standing, window -> findings -> summary

Each question is asked twice: of every checkpoint over its own window, and of all over the same window. Where
the two disagree the verdict is the matched window's, because own windows compare measurements, not models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qkscope.findings import course, standing, turnover
from qkscope.findings.changes import LEVEL, SMALLEST
from qkscope.findings.evidence import (
    FAILS,
    HOLDS,
    UNKNOWN,
    Evidence,
    Reading,
    matched_evidence,
    own_evidence,
    plain,
)
from qkscope.findings.window import growing_window, window_jumps
from qkscope.findings.wording import lower_first, percent, tokens
from qkscope.results import Results


@dataclass(frozen=True)
class Finding:
    """One question and its answer. `view` names the part of the report that shows it."""

    id: str
    question: str
    verdict: str
    answer: str
    own: dict[str, Any]
    matched: dict[str, Any] | None
    uncertainty: str
    view: str


@dataclass(frozen=True)
class Question:
    """An entry of the catalogue; `course` marks the questions that need several checkpoints."""

    id: str
    text: str
    view: str
    ask: Callable[[Evidence], Reading]
    course: bool = True


COURSE = (
    Question("r_q_rises", "Does r_q rise throughout training, never falling?", "signal", course.rises),
    Question(
        "long_context",
        "Does r_k fall where long-context training begins, or do heads change sign?",
        "signal",
        course.long_context,
    ),
    Question("sign_changes", "Do heads change the sign of r_k?", "portrait", turnover.sign_changes),
    Question(
        "content_vanishes", "Do content-focused heads vanish early?", "taxonomy", turnover.content_vanishes
    ),
    Question("feeds", "Do other classes feed position-dominated, and which?", "taxonomy", turnover.feeds),
    Question("jumps", "Are there jumps, and where?", "signal", course.jumps),
    Question("plateaus", "Are there plateaus, and where?", "signal", course.rests),
)
STANDING = (
    Question(
        "early_layers",
        "Are early layers more positional than late ones?",
        "depth",
        standing.early_layers,
        False,
    ),
    Question("rope", "Do layers without RoPE differ from those with it?", "depth", standing.rotation, False),
)
NO_ERRORS = "Without standard errors this cannot be told from noise."
MODELS = Question("models", "Do the models differ in r_q?", "signal", standing.models_differ)


def findings(results: Results) -> list[Finding]:
    """All questions that make sense for the study, in the order in which they are best read."""
    own, matched = own_evidence(results), matched_evidence(results)
    if not own.samples:
        return []
    signal = Question("signal", "Is there any signal of position?", "signal", standing.signal, False)
    training = results.timeline.kind == "training"
    several = len(own.samples) > 1
    asked = [signal, *((COURSE if training else (MODELS,)) if several else ()), *STANDING]
    found = [_answer(question, own, matched) for question in asked if _applies(question, own)]
    if training and not several:
        found.insert(1, _no_course(own))
    if training and own.widened:
        found.insert(1, _window_finding(own, matched))
    return found


def summary(results: Results, found: list[Finding]) -> dict[str, Any]:
    """What summary.json holds; see `qkscope.findings.summarize`."""
    from qkscope.findings.summarize import summarize

    return summarize(results, found)


def _no_course(own: Evidence) -> Finding:
    """One entry in place of all questions about the course of training."""
    text = f"Only {own.label(0)} was measured: one checkpoint says nothing about the course of training."
    reading = Reading(UNKNOWN, text)
    return Finding(
        "course",
        "How do the heads change over training?",
        UNKNOWN,
        text,
        _as_dict(reading),
        None,
        "",
        "signal",
    )


def _applies(question: Question, own: Evidence) -> bool:
    """Rotation is no question where every layer is known to rotate."""
    if question.id != "rope":
        return True
    return not all("rope" in s.heads and (s.heads["rope"] == 1).all() for s in own.samples)


def _answer(question: Question, own: Evidence, matched: Evidence | None) -> Finding:
    """Ask over own windows and, where it differs, over the matched window; join the two."""
    mine = _ask(question, own)
    theirs = None if matched is None else _ask(question, matched)
    verdict, answer = mine.verdict, mine.text
    if theirs is not None and matched is not None and matched.window is not None:
        verdict = theirs.verdict
        if theirs.text != mine.text:
            same = theirs.verdict == mine.verdict and theirs.brief
            said = f"{theirs.brief}." if same else lower_first(theirs.text)
            answer += f" Over the first {tokens(matched.window)} of every checkpoint: {said}"
        if question.id == "jumps":
            answer += window_jumps(own, matched)
        elif {mine.verdict, theirs.verdict} == {HOLDS, FAILS}:
            answer += " What differs between the two comes from the window, not the model."
    elif question.course and own.widened and verdict != UNKNOWN:
        verdict = UNKNOWN
        answer += " The windows differ and no common window was measured, so this may be the window's doing."
    return Finding(
        question.id,
        question.text,
        verdict,
        answer,
        _as_dict(mine),
        None if theirs is None else _as_dict(theirs),
        _uncertainty(question, own),
        question.view,
    )


def _ask(question: Question, e: Evidence) -> Reading:
    if question.course and len(e.samples) < 2:
        return Reading(UNKNOWN, "Fewer than two checkpoints were measured over this window.")
    reading = question.ask(e)
    if question.id != "signal" and e.groups < 2 and reading.verdict != UNKNOWN:
        return Reading(UNKNOWN, f"{reading.text} {NO_ERRORS}", reading.numbers)
    return reading


def _window_finding(own: Evidence, matched: Evidence | None) -> Finding:
    answer, mine, theirs = growing_window(own, matched)
    verdict = mine.verdict
    if own.groups < 2 and verdict != UNKNOWN:
        verdict, answer = UNKNOWN, f"{answer} {NO_ERRORS}"
    return Finding(
        "window",
        "Is what changes where the window grows a change of the model?",
        verdict,
        answer,
        _as_dict(mine),
        None if theirs is None else _as_dict(theirs),
        _uncertainty(COURSE[0], own),
        "signal",
    )


def _as_dict(reading: Reading) -> dict[str, Any]:
    found: dict[str, Any] = plain(reading.numbers)
    return {"answer": reading.text, "verdict": reading.verdict} | found


def _uncertainty(question: Question, e: Evidence) -> str:
    """How the ± of a finding was made and when a difference counts."""
    if e.groups < 2:
        return "No standard errors: the documents were not measured in groups."
    base = f"± is one standard error from leaving out each of {e.groups} groups of documents"
    parts = {
        "signal": "A head that ignores position passes its test with the stated chance.",
        "sign_changes": "What noise alone would do follows from each head's standard errors.",
        "feeds": f"{base}. What noise alone would do follows from each head's standard errors.",
    }
    if question.id in parts:
        return parts[question.id]
    if question.course:
        text = (
            f"{base}, differences between checkpoints taken on the same documents. A change counts if it is at "
            f"least {SMALLEST} (2 points for a share) and passes a t-test held at {percent(LEVEL)} over all series "
            "and steps together"
        )
    else:
        text = f"{base}. A difference counts if it is at least {SMALLEST} and passes a t-test at 1%"
    dropped = f" {e.dropped} heads not measured throughout are left out." if e.dropped else ""
    return f"{text}.{dropped}"
