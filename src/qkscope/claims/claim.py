"""A claim: one question about a study and its answer, computed once and quoted by summary, figures and report."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from qkscope.words import Unit, joined, measured, sentence

Window = Literal["own", "matched"]
Population = Literal["RoPE", "NoPE", "all"]
View = Literal[
    "signal", "roles", "emergence", "causes", "scores", "ablation", "spectrum", "distance", "classes", "portrait"
]  # fmt: skip

# Directions of a change, the outcome of a comparison, what a share or count amounts to, and causes.
VERDICTS = (
    *("rises", "falls", "rises and falls", "flat", "unclear"),
    *("higher", "lower", "equal"),
    *("majority", "largest", "tie"),
    "level",
    *("training", "RoPE settings", "window", "training and text", "several causes", "coordinates only"),
    "not separable",
)


@dataclass(frozen=True)
class Row:
    """One number of a claim, over the heads of one population.

    what        the number in words
    measure     its variable in the dataset and column of heads.csv; a class for a count of heads
    model       the checkpoint it was measured at; with `from_model`, the change from that checkpoint to this one
    se          standard error over documents; NaN where none is known
    verdict     what is known about this number alone: one of VERDICTS, "level" where nothing is compared
    at          its coordinate on the view's axis, if it is not of the whole population: a layer, a wavelength in
                tokens or a distance in tokens
    effect      of a cause, its column in causes.csv
    """

    what: str
    measure: str
    population: Population
    model: str
    value: float
    se: float = math.nan
    from_model: str | None = None
    window: Window = "own"
    unit: Unit = "r"
    verdict: str = "level"
    at: float | None = None
    effect: str = ""

    @property
    def text(self) -> str:
        """The number as a reader sees it; a change has a sign."""
        signed = self.from_model is not None or self.unit in ("logits", "nats per token")
        return measured(self.value, self.se, self.unit, signed)


@dataclass(frozen=True)
class See:
    """The view of the report that shows a claim's numbers, and how it is set to do so."""

    view: View
    measure: str
    checkpoint: str
    population: Population


@dataclass(frozen=True)
class Claim:
    """A question about a study and its answer, with the numbers behind it.

    headline   one sentence with at most three numbers: those of the first rows, in order
    detail     one or two sentences with more numbers and errors
    meaning    how to interpret it, and the control behind it
    caveat     "" or one sentence about what limits it
    window     the window that headline and verdict refer to
    rule       how errors and verdict were computed
    surprise   rank among claims: opposing directions first, plain levels last
    """

    id: str
    question: str
    headline: str
    detail: str
    meaning: str
    caveat: str
    verdict: str
    rows: tuple[Row, ...]
    window: Window
    rule: str
    see: See
    surprise: float

    @property
    def answer(self) -> str:
        """Headline and detail as one text."""
        return joined(sentence(self.headline), self.detail)

    def record(self) -> dict[str, Any]:
        """As summary.json has it."""
        found = asdict(self) | {"answer": self.answer, "uncertainty": joined(self.rule, self.caveat)}
        del found["rows"]
        return found | {"numbers": [asdict(row) | {"text": row.text} for row in self.rows]}
