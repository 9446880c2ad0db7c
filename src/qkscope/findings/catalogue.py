"""The questions a study is asked, and `claims`: their answers, computed once a study.

    Results -> Asked (own windows, matched window) -> one function a question -> Claim -> summary, figures, report

A question is a function in a module of `findings/questions/` under `@question(...)`. Nothing else lists it. It is
asked of the matched window where there is one, because own windows compare measurements; what own windows show
stands beside it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pkgutil import iter_modules
from typing import Literal

from qkscope.aggregate import Sample
from qkscope.findings import questions
from qkscope.findings.claim import CANNOT_TELL, Claim, Row, Window
from qkscope.inference.evidence import Evidence, matched_evidence, own_evidence
from qkscope.inference.levels import rule_of_change, rule_of_error
from qkscope.results import Results
from qkscope.words import count, joined, lower_first, sentence

Of = Literal["training", "models", "any"]
CHANGE = rule_of_change()

UNMATCHED = "Windows differ and no common one was measured, so this may be the window's doing."
# What noise was judged by, where that is not groups of documents.
DOUBTS = {
    "heads": "Noise is judged by groups of heads, not of documents: other documents may move the numbers more.",
    "too few groups": "Two groups of documents cannot pass the test: measure with more groups.",
    "nothing": "Without errors this cannot be told from noise.",
}


@dataclass(frozen=True)
class Asked:
    """A study as the questions see it."""

    results: Results

    @cached_property
    def own(self) -> Evidence:
        """Each checkpoint over its own window."""
        return own_evidence(self.results)

    @cached_property
    def matched(self) -> Evidence | None:
        """Every checkpoint over the same window; None where that is its own, or was not measured."""
        found = matched_evidence(self.results)
        if found is None or [s.model for s in found.stops] != [s.model for s in self.own.stops]:
            return None
        return found

    @property
    def best(self) -> Evidence:
        """What verdicts rest on: the matched window where there is one."""
        return self.matched or self.own

    @property
    def comparable(self) -> bool:
        """Whether checkpoints can be compared at all: over one window."""
        return self.matched is not None or not self.own.widened

    @property
    def over(self) -> str:
        """`over the first 256 tokens of every checkpoint, `, or nothing where own windows are the same."""
        window = self.matched and self.matched.window
        return f"over the first {window:,} tokens of every checkpoint, " if window else ""

    @property
    def final(self) -> tuple[Sample, ...]:
        """What is compared within itself: every model, or the last checkpoint of training."""
        return self.best.samples if self.results.timeline.kind == "models" else self.best.samples[-1:]


@dataclass(frozen=True)
class Answer:
    """What a question's function gives: the part of a `Claim` that is about the data.

    `window` is given where it is not the one that verdicts usually rest on.
    """

    verdict: str
    headline: str
    detail: str = ""
    rows: tuple[Row, ...] = ()
    doubt: str = ""
    window: Window | None = None


@dataclass(frozen=True)
class Question:
    """An entry of the catalogue. `place` orders answers as they are best read; `of` says which studies are asked."""

    id: str
    text: str
    view: str
    place: int
    of: Of
    rule: str
    tested: bool
    ask: Callable[[Asked], Answer | None]


QUESTIONS: dict[str, Question] = {}


def question(
    name: str,
    text: str,
    *,
    view: str,
    place: int,
    rule: str = CHANGE,
    of: Of = "training",
    tested: bool = True,
) -> Callable[[Callable[[Asked], Answer | None]], Callable[[Asked], Answer | None]]:
    """Put a function into the catalogue as question `name`.

    `of="training"` asks it of several checkpoints of one model, "models" of several models, "any" of every study. The
    function gives None where the question makes no sense. `tested` says that its verdict rests on errors over groups:
    where they are missing, the claim says so.
    """

    def enter(ask: Callable[[Asked], Answer | None]) -> Callable[[Asked], Answer | None]:
        QUESTIONS[name] = Question(name, text, view, place, of, rule, tested, ask)
        return ask

    return enter


# By the identity of the study: a Results is frozen, and its tables cannot be hashed.
_KNOWN: dict[int, tuple[Claim, ...]] = {}


def claims(results: Results) -> tuple[Claim, ...]:
    """All questions that make sense for the study with their answers, in the order in which they are best read."""
    key = id(results)
    if key not in _KNOWN:
        _KNOWN[key] = tuple(_answered(Asked(results)))
        weakref.finalize(results, _KNOWN.pop, key, None)
    return _KNOWN[key]


def _answered(asked: Asked) -> Iterator[Claim]:
    for module in iter_modules(questions.__path__, questions.__name__ + "."):
        import_module(module.name)
    for each in sorted(QUESTIONS.values(), key=lambda q: (q.place, q.id)):
        answer = each.ask(asked) if _applies(each, asked) else None
        if answer is not None:
            yield _claim(each, answer, asked)


def _applies(asking: Question, asked: Asked) -> bool:
    kind, several = asked.results.timeline.kind, len(asked.own.samples) > 1
    return bool(asked.own.samples) and (asking.of == "any" or (asking.of == kind and several))


def _claim(asking: Question, answer: Answer, asked: Asked) -> Claim:
    e = asked.best
    doubts, verdict, headline = [answer.doubt], answer.verdict, answer.headline
    if asking.of == "training" and not asked.comparable:
        verdict, headline = CANNOT_TELL, f"Over differing windows, {lower_first(headline)}"
        doubts.append(UNMATCHED)
    if asking.tested:
        doubts.append(DOUBTS.get(e.basis, ""))
    error = rule_of_error(e.basis, e.groups) if asking.tested else ""
    be = "is" if e.dropped == 1 else "are"
    left_out = f"{count(e.dropped, 'head')} not measured throughout {be} left out"
    rule = joined(error, asking.rule, sentence(left_out) if e.dropped else "")
    head = (asking.id, asking.text, verdict, headline, answer.detail, answer.rows)
    return Claim(*head, answer.window or e.name, rule, asking.view, joined(*doubts))
