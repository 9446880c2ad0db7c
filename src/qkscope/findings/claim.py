"""A claim: one question about a study with its answer, computed once and quoted by summary, figures and report."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from qkscope.words import Unit, joined, measured, sentence

Window = Literal["own", "matched"]

CANNOT_TELL = "cannot tell"
# What a verdict may be: the direction of a course, the answer to a plain question, or a cause.
VERDICTS = (
    *("rises", "falls", "rises and falls", "no change"),
    *("yes", "in part", "no"),
    *("training", "rotation", "window", "text", "another axis", "several causes"),
    CANNOT_TELL,
)
# What a number's own verdict may be besides: a difference between sets of heads, a count against its noise, or none.
ROW_VERDICTS = (*VERDICTS, "higher", "lower", "the same", "beyond noise", "within noise", "")


@dataclass(frozen=True)
class Row:
    """One number that a claim rests on: a level at `to_model`, or one of the way from `from_model` to it.

    `verdict` is the judge's word on this number alone ("" for a level that is not judged). `se` is NaN where no
    error is known. `signed` says whether it is a difference: a change is, a count of heads is not.
    """

    what: str
    to_model: str
    value: float
    from_model: str | None = None
    se: float = math.nan
    window: Window = "own"
    verdict: str = ""
    unit: Unit = "r"
    signed: bool | None = None

    @property
    def text(self) -> str:
        """The number as a reader sees it."""
        change = self.from_model is not None and self.unit != "heads"
        return measured(self.value, self.se, self.unit, change if self.signed is None else self.signed)


@dataclass(frozen=True)
class Claim:
    """One question and its answer.

    headline  at most 20 words and two numbers
    detail    one or two sentences more
    doubt     what casts doubt on the headline, as a sentence; "" if nothing known does
    rows      the numbers, for a small table
    window    over which window the verdict was reached
    rule      how errors and verdict were made, in words generated from the judge's constants
    view      the part of the report that shows it
    """

    id: str
    question: str
    verdict: str
    headline: str
    detail: str
    rows: tuple[Row, ...]
    window: Window
    rule: str
    view: str
    doubt: str = ""

    @property
    def answer(self) -> str:
        """Headline and detail in a row, as one text."""
        return joined(sentence(self.headline), self.detail)

    def record(self) -> dict[str, Any]:
        """As summary.json has it."""
        found = asdict(self) | {"answer": self.answer, "uncertainty": joined(self.rule, self.doubt)}
        del found["rows"]
        return found | {"numbers": [asdict(row) | {"text": row.text} for row in self.rows]}
