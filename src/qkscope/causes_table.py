"""causes.csv: its columns and how it is read. A row is one number's change between neighbours, split by cause."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qkscope.errors import TableError
from qkscope.store import in_short, read_csv

if TYPE_CHECKING:
    import pandas as pd

WEIGHTS, ROTATION, WINDOW = FACTORS = ("weights", "rotation", "window")
EFFECTS = (
    *("total", *FACTORS, "weights_first", "rotation_first"),
    *("weights_other_order", "rotation_other_order", "weights_same_axis", "rotation_same_axis"),
)
CAUSES_COLUMNS = (
    *("from_model", "to_model", "number", "population", "total", *FACTORS),
    *(f"{name}_se" for name in ("total", *FACTORS)),
    *(column for name in EFFECTS[4:] for column in (name, f"{name}_se")),
    *("window_tokens", "same_text", "heads", "groups"),
)


def read_causes(path: Path) -> pd.DataFrame | None:
    """A causes.csv, if there is one. A damaged file is an error, never 'not known'."""
    if not path.is_file():
        return None
    try:
        names = dict.fromkeys(("from_model", "to_model", "number", "population"), str)
        frame = read_csv(path, dtype=names, keep_default_na=False, na_values=[""])
    except (ValueError, OSError) as error:
        raise TableError(f"{path}: not a readable CSV file ({in_short(error)})") from error
    missing = [name for name in CAUSES_COLUMNS if name not in frame.columns]
    if missing:
        raise TableError(
            f"{path}: column missing: {', '.join(missing[:5])}; run the study again to rewrite it"
        )
    return frame
