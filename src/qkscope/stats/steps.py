"""The steps of causes.csv, judged: which effects are more than noise, and which causes interact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qkscope.measures.pca import FEWEST_GROUPS
from qkscope.results.tables import ROTATION, WEIGHTS, WINDOW
from qkscope.stats.attribution import NUMBERS
from qkscope.stats.levels import CONTRAST_LEVEL, ROUNDING, two_sided_p
from qkscope.stats.series import INVARIANT, Change, Changed, judge, what_changed

if TYPE_CHECKING:
    import pandas as pd

UNDIVIDED = "weights_and_rotation"  # training and settings, where they are not separable
Row = Mapping[str, Any]
Effects = Mapping[tuple[str, str, str], Change]


@dataclass(frozen=True)
class Step:
    """What changed between two neighbouring checkpoints.

    columns   the column of causes.csv of each factor that changed, in the order in which the factors act
    rows      rows of causes.csv by measure and population
    effects   judged effects by measure, population and factor
    """

    before: str
    after: str
    columns: Mapping[str, str]
    rows: Mapping[tuple[str, str], Row]
    effects: Effects

    @property
    def window(self) -> int:
        """Over how many tokens weights and settings were exchanged."""
        return int(self._any["window_tokens"])

    @property
    def same_text(self) -> bool:
        return bool(self._any["same_text"])

    @property
    def _any(self) -> Row:
        return next(iter(self.rows.values()))

    def clear(self, measure: str, population: str) -> list[str]:
        """The factors with a clear effect on a mean, in the order in which they act."""
        found = ((factor, self.effects.get((measure, population, factor))) for factor in self.columns)
        return [factor for factor, effect in found if effect is not None and effect.clear]

    def training_changed(self, population: str) -> Changed:
        """Whether training changed attention or only coordinates."""
        column = self.columns.get(WEIGHTS) or self.columns.get(UNDIVIDED, "")
        rows = [self.rows[m, population] for m in INVARIANT if (m, population) in self.rows]
        return what_changed([_effect(row, column) for row in rows if column])


def steps(table: pd.DataFrame, measures: Sequence[str], populations: Sequence[str]) -> list[Step]:
    """The steps of causes.csv with the effects on these means, judged together."""
    wanted = {NUMBERS[m]: m for m in dict.fromkeys((*measures, *INVARIANT))}
    found: dict[tuple[str, str], dict[tuple[str, str], Row]] = {}
    for row in table[table["number"].isin(list(wanted))].to_dict("records"):
        if row["population"] in populations and math.isfinite(row["total"]):
            ends = found.setdefault((row["from_model"], row["to_model"]), {})
            ends[wanted[row["number"]], row["population"]] = {str(name): x for name, x in row.items()}
    columns = {ends: _columns(next(iter(rows.values()))) for ends, rows in found.items()}
    tested = {
        (ends, key, factor): _effect(row, column)
        for ends, rows in found.items()
        for key, row in rows.items()
        if key[0] in measures
        for factor, column in columns[ends].items()
    }
    effects = dict(zip(tested, judge(list(tested.values())), strict=True))
    return [
        Step(
            *ends,
            columns[ends],
            rows,
            {(*key, factor): c for (at, key, factor), c in effects.items() if at == ends},
        )
        for ends, rows in found.items()
    ]


def _columns(row: Row) -> dict[str, str]:
    found: dict[str, str] = {}
    if math.isnan(row["rotation"]):
        found[UNDIVIDED] = UNDIVIDED
    elif _nothing(row, "rotation"):
        found[WEIGHTS] = "weights_first"
    elif math.isfinite(row["rotation_first"]):
        found |= {ROTATION: "rotation_first", WEIGHTS: "weights_first"}
    else:
        found |= {WEIGHTS: "weights_other_order", ROTATION: "rotation_other_order"}
    return found if _nothing(row, "window") else found | {WINDOW: "window"}


def _nothing(row: Row, name: str) -> bool:
    """Whether a factor did not change at all."""
    return bool(row[name] == 0 and not row[f"{name}_se"] > 0)


def _effect(row: Row, column: str) -> Change:
    return Change(row["number"], 0, 1, row[column], row[f"{column}_se"], int(row["groups"]) - 1)


def interacts(row: Row) -> bool:
    """Whether training's effects before and after the change of RoPE settings differ by more than noise.

    The settings' effects before and after training then differ by as much.
    """
    size, se, df = abs(row["interaction"]), row["interaction_se"], int(row["groups"]) - 1
    if not size > ROUNDING or df < FEWEST_GROUPS - 1 or math.isnan(se):
        return False
    return se == 0 or two_sided_p(size / se, df) < CONTRAST_LEVEL
