"""causes.csv: its columns and how it is read. A row is one number's change between neighbours, taken apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qkscope.errors import TableError
from qkscope.store import in_short, read_csv

if TYPE_CHECKING:
    import pandas as pd

WEIGHTS, ROTATION, WINDOW = FACTORS = ("weights", "rotation", "window")
AXES = ("same_axis", "another_axis")
CAUSES_COLUMNS = (
    *("from_model", "to_model", "number", "total", *FACTORS, *(f"{name}_se" for name in ("total", *FACTORS))),
    # Of the weights' part, what heads contribute whose first axis stayed and whose first axis is another.
    *(*AXES, *(f"{name}_se" for name in AXES), "same_text", "heads", "groups"),
)


def read_causes(path: Path) -> pd.DataFrame | None:
    """A causes.csv, if there is one. A damaged file is an error, never 'not known'."""
    if not path.is_file():
        return None
    try:
        names = {"from_model": str, "to_model": str, "number": str}
        frame = read_csv(path, dtype=names, keep_default_na=False, na_values=[""])
    except (ValueError, OSError) as error:
        raise TableError(f"{path}: not a readable CSV file ({in_short(error)})") from error
    missing = [name for name in CAUSES_COLUMNS if name not in frame.columns]
    if missing:
        raise TableError(
            f"{path}: column missing: {', '.join(missing[:5])}; run the study again to rewrite it"
        )
    return frame
