"""causes.csv -> what the page draws of it: each change between neighbouring checkpoints with its parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from qkscope.report.palette import CAUSES


def causes(table: pd.DataFrame | None, models: Sequence[str]) -> list[dict[str, Any]]:
    """A dictionary per change between two checkpoints of the page; a factor whose part is unknown is left out."""
    if table is None:
        return []
    place = {model: number for number, model in enumerate(models)}
    here = table[table["from_model"].isin(place) & table["to_model"].isin(place)]
    return [
        {
            "from": place[row["from_model"]],
            "to": place[row["to_model"]],
            "number": row["number"],
            "total": row["total"],
            "total_se": _known(row["total_se"]),
            "parts": [
                {"name": name, "value": row[name], "se": _known(row[f"{name}_se"])}
                for name in CAUSES
                if math.isfinite(row[name])
            ],
        }
        for row in here.to_dict("records")
        if math.isfinite(row["total"])
    ]


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
