"""results.json: what was measured, part by part, each with the machine and its load."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness import Row

HERE = Path(__file__).parent
Kept = dict[str, dict[str, Any]]


def read(folder: Path = HERE) -> Kept:
    """By part: note, machine, load, seconds, rows."""
    path = folder / "results.json"
    found: Kept = json.loads(path.read_text()) if path.exists() else {}
    return found


def keep(folder: Path, part: str, record: dict[str, Any], rows: Sequence[Row], order: Sequence[str]) -> Kept:
    """Put a part's record in the place of an earlier one; the others stay."""
    found = read(folder) | {part: record | {"rows": [_plain(row) for row in rows]}}
    found = {name: found[name] for name in order if name in found}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return found


def rows_of(record: dict[str, Any]) -> list[Row]:
    return [Row(**row) for row in record["rows"]]


def _plain(row: Row) -> dict[str, Any]:
    """Without what is empty; six digits are more than any clock gives."""
    return {name: _short(value) for name, value in asdict(row).items() if value}


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
