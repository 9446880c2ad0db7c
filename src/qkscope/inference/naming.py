"""Parts of changes -> causes with a name: which of them are more than noise.

A part is judged as a change is: by its size and by a t-test that is held over all steps, numbers and factors together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qkscope.causes_table import FACTORS, ROTATION, WEIGHTS, WINDOW
from qkscope.inference.evidence import MEAN_R_K, MEAN_R_Q
from qkscope.inference.levels import CONFIDENCE, SMALLEST, STUDY_LEVEL
from qkscope.inference.significance import holm, t_quantile, two_sided_p
from qkscope.measures.null import FEWEST_GROUPS

if TYPE_CHECKING:
    import pandas as pd

NAMED = (MEAN_R_Q, MEAN_R_K)
TRAINING, TEXT, ANOTHER_AXIS = "training", "text", "another axis"
CAUSES = {WEIGHTS: TRAINING, ROTATION: "rotation", WINDOW: "window"}


@dataclass(frozen=True)
class Part:
    """What one factor contributes to a number's change; `cause` is its name, `known` whether it could be told."""

    before: str
    after: str
    number: str
    cause: str
    value: float
    se: float
    p: float
    clear: bool = False
    excluded: bool = False

    @property
    def known(self) -> bool:
        return math.isfinite(self.value)

    @property
    def verdict(self) -> str:
        """The judge's word on this part alone."""
        if self.clear:
            return "rises" if self.value > 0 else "falls"
        return "no change" if self.excluded else "cannot tell"


def parts(table: pd.DataFrame, numbers: Sequence[str] = NAMED) -> list[Part]:
    """The parts of every step's change of `numbers` by the factors that changed, judged together."""
    judged = table[table["number"].isin(numbers)]
    found: list[Part] = []
    for row in judged.to_dict("records"):
        found += [
            _part(row, factor) for factor in FACTORS if row[factor] != 0.0 or row[f"{factor}_se"] != 0.0
        ]
    passed = holm([part.p for part in found], STUDY_LEVEL)
    return [
        replace(part, clear=bool(ok and abs(part.value) >= SMALLEST))
        for part, ok in zip(found, passed, strict=True)
    ]


def causes(found: Sequence[Part]) -> list[str]:
    """The names of the causes that are clear among some parts, the largest part first."""
    clear = sorted((part for part in found if part.clear), key=lambda part: -abs(part.value))
    return list(dict.fromkeys(part.cause for part in clear))


def named(found: Sequence[Part]) -> str:
    """One word for what some parts of one step show: a cause, `several causes`, `no change` or `cannot tell`."""
    names = causes(found)
    if len(names) == 1:
        return names[0]
    if names:
        return "several causes"
    return "no change" if found and all(part.excluded for part in found) else "cannot tell"


def _part(row: dict[str, float | str], factor: str) -> Part:
    value, se, df = float(row[factor]), float(row[f"{factor}_se"]), int(row["groups"]) - 1
    p, margin = _p(value, se, df), _margin(se, df)
    cause = CAUSES[factor]
    if factor == WEIGHTS:
        cause = TEXT if not row["same_text"] else ANOTHER_AXIS if _swapped(row, df) else TRAINING
    excluded = abs(value) + margin < SMALLEST
    before, after, number = (str(row[name]) for name in ("from_model", "to_model", "number"))
    return Part(before, after, number, cause, value, se, p, excluded=excluded)


def _swapped(row: dict[str, float | str], df: int) -> bool:
    """Whether what the weights did is all done by heads whose first axis is another than it was.

    Heads that kept theirs then contribute less than a change worth a word, or less than noise.
    """
    stayed, swapped = ((float(row[name]), float(row[f"{name}_se"])) for name in ("same_axis", "another_axis"))
    level = 1.0 - CONFIDENCE
    clear = _p(*swapped, df) < level and abs(swapped[0]) >= SMALLEST
    return clear and (abs(stayed[0]) < SMALLEST or not _p(*stayed, df) < level)


def _p(value: float, se: float, df: int) -> float:
    if df < FEWEST_GROUPS - 1 or not math.isfinite(se) or not math.isfinite(value):
        return math.nan
    if se == 0.0:
        return float(value == 0.0)
    return two_sided_p(value / se, df)


def _margin(se: float, df: int) -> float:
    known = df >= FEWEST_GROUPS - 1 and math.isfinite(se)
    return t_quantile((1 + CONFIDENCE) / 2, df) * se if known else math.inf
