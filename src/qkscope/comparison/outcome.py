"""What a comparison finds, as data: every number that both sides have, and what to know when reading them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pandas as pd

from qkscope.comparison import phrases as words
from qkscope.stats.levels import ROUNDING
from qkscope.store import write_csv

if TYPE_CHECKING:
    from rich.console import RenderableType


# A mean over heads, a class's share of the heads, or a cell of the maps of r_q and r_k by depth.
Kind = Literal["mean", "share", "r_q by depth", "r_k by depth"]


class Quantity(NamedTuple):
    """A number that is compared at several checkpoints: what people call it, and of which kind it is."""

    name: str
    kind: Kind


@dataclass(frozen=True)
class Row:
    """One number on both sides. `agrees` is None where one cannot tell, for example because neither has an error."""

    quantity: str
    checkpoint: str
    ours: float
    se: float
    theirs: float
    their_se: float
    difference: float
    agrees: bool | None
    kind: Kind

    @property
    def equal(self) -> bool:
        """The same number on both sides, up to rounding."""
        return abs(self.difference) < ROUNDING


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`: numbers that both sides have, checkpoints that only one side has, and notes."""

    ours: str
    theirs: str
    rows: tuple[Row, ...]
    only_ours: tuple[str, ...]
    only_theirs: tuple[str, ...]
    notes: tuple[str, ...]
    heads: pd.DataFrame | None = None
    """A row per checkpoint and head of two runs: r_q and r_k on both sides, their difference and its error."""
    seeds: tuple[int, int] | None = None
    """How many runs each side has, where it has several: errors are then over these."""
    clear: tuple[Row, ...] = ()
    """Of several runs a side: the numbers over all checkpoints that differ when all are looked at together."""

    @property
    def agree(self) -> bool:
        """Whether no number differs by more than its uncertainty; those one cannot tell of do not count."""
        return all(row.agrees is not False for row in self.rows)

    @property
    def outcome(self) -> Literal["agree", "differ", "cannot tell"]:
        """What the sentence says, in a word: of all numbers but the cells of the depth maps."""
        judged = [row.agrees for row in words.headline_rows(self.rows)]
        return "differ" if False in judged else "cannot tell" if None in judged else "agree"

    def table(self) -> pd.DataFrame:
        """The rows as a table."""
        return pd.DataFrame([asdict(row) for row in self.rows])

    def to_json(self) -> str:
        """Everything but the heads, for a machine; what is not known is null."""
        rows = [{name: _json(value) for name, value in asdict(row).items()} for row in self.rows]
        whole = {
            "ours": self.ours,
            "theirs": self.theirs,
            "agree": self.agree,
            "outcome": self.outcome,
            "sentence": self.sentence(),
        }
        whole |= {"rows": rows, "only_ours": self.only_ours, "only_theirs": self.only_theirs}
        whole |= {"notes": self.notes, "seeds": self.seeds}
        return json.dumps(whole, indent=2, ensure_ascii=False)

    def save(self, path: Path) -> None:
        """Every row as CSV; of two runs every head too, in `<name>_heads.csv` beside it."""
        write_csv(path, self.table())
        if self.heads is not None:
            write_csv(path.with_name(f"{path.stem}_heads.csv"), self.heads)

    def sentence(self) -> str:
        """What differs, in one sentence."""
        return words.difference(self)

    def verdict(self) -> str:
        """How many numbers agree, in a sentence."""
        return words.verdict(self)

    def to_text(self) -> str:
        """The comparison as plain text."""
        return words.plain(self)

    def __str__(self) -> str:
        return self.to_text()

    def __rich__(self) -> RenderableType:
        return words.rich(self)


def _json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
