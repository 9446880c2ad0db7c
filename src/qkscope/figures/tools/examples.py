"""The heads that stand for what decides where heads look: those decided most by position, by the key, by the match."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from qkscope.anatomy_means import PARTS
from qkscope.figures.view import View

WHY_NOT = "the results have no anatomy: measure the study again to have it"


@dataclass(frozen=True)
class Example:
    """A head, and the part that decides it most at the last checkpoint."""

    layer: int
    head: int
    part: str
    share: float

    @property
    def heading(self) -> str:
        return f"layer {self.layer} head {self.head}: {self.part} {self.share:.0%}"

    def of(self, table: pd.DataFrame) -> pd.DataFrame:
        """This head's rows of a table."""
        return table[(table["layer"] == self.layer) & (table["head"] == self.head)]


def examples(view: View) -> list[Example]:
    """One head for each of position, key and match, all different."""
    anatomy = view.results.anatomy
    if anatomy is None:
        return []
    rows = anatomy[anatomy["model"] == view.order[-1]].dropna(subset=list(PARTS.values()))
    found: list[Example] = []
    for part in list(PARTS)[:3]:
        rest = rows[~rows.set_index(["layer", "head"]).index.isin([(e.layer, e.head) for e in found])]
        if len(rest):
            best = rest.loc[rest[PARTS[part]].idxmax()]
            found.append(Example(int(best["layer"]), int(best["head"]), part, float(best[PARTS[part]])))
    return found
