"""causes.csv -> what the page draws of it: each change between neighbouring checkpoints with its parts.

Parts are those of the real order: new RoPE settings, then training, then the longer window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qkscope.stats.levels import AGREES_WITHIN

if TYPE_CHECKING:
    import pandas as pd

# The page's name of a factor -> its column.
_REAL = {"rotation": "rotation_first", "weights": "weights_first", "window": "window"}
_OTHER = {"weights": "weights_other_order", "rotation": "rotation_other_order"}


def causes(table: pd.DataFrame | None, models: Sequence[str], population: str) -> list[dict[str, Any]]:
    """A dictionary per change between two checkpoints of the page, of the heads of one population.

    A factor whose part is unknown is left out. `other` are the parts in the other order, training first, where the two
    orders differ by more than their error: there the factors interact.
    """
    if table is None:
        return []
    place = {model: number for number, model in enumerate(models)}
    here = table["from_model"].isin(place) & table["to_model"].isin(place)
    # A checkpoint with one kind of heads has them all in one row.
    here &= table["population"].isin((population, "all"))
    return [
        {
            "from": place[row["from_model"]],
            "to": place[row["to_model"]],
            "number": row["number"],
            "heads": int(row["heads"]),
            "total": row["total"],
            "total_se": _known(row["total_se"]),
            "parts": _parts(row, _REAL),
            "other": _parts(row, _OTHER) if interacts(row) else [],
        }
        for row in table[here].to_dict("records")
        if math.isfinite(row["total"])
    ]


def _parts(row: Mapping[Any, Any], columns: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"name": name, "value": row[column], "se": _known(row[f"{column}_se"])}
        for name, column in columns.items()
        if math.isfinite(row[column])
    ]


def interacts(row: Mapping[Any, Any]) -> bool:
    """Whether training changed the number by another amount before the RoPE settings changed than after.

    Its effects in the two orders differ by more than their errors; the settings' differ by as much.
    """
    first, other = row["weights_first"], row["weights_other_order"]
    error = math.hypot(row["weights_first_se"], row["weights_other_order_se"])
    return bool(abs(first - other) > AGREES_WITHIN * error)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
