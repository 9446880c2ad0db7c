"""Whether the tables, figures and report of a folder still are what its units would give, so that they can stay.

Compares sizes and times, not contents: what went in (unit files, study, program) and what came out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qkscope import store

NOTE = Path("moments") / "finished.json"
_MADE = ("*.csv", "*.parquet", "study.yaml", "summary.json", "report.html", "figures/**/*")


def is_finished(results: Path, made_from: dict[str, Any], units: Iterable[Path]) -> bool:
    """Nothing changed since `note_finished`: not what it was made from, not what was made."""
    try:
        note = json.loads((results / NOTE).read_text())
        return bool(note == {"from": _inputs(made_from, units), "made": _outputs(results)})
    except (OSError, ValueError):
        return False


def note_finished(results: Path, made_from: dict[str, Any], units: Iterable[Path]) -> None:
    store.write_json(results / NOTE, {"from": _inputs(made_from, units), "made": _outputs(results)})


def _inputs(made_from: dict[str, Any], units: Iterable[Path]) -> dict[str, Any]:
    package = Path(__file__).parent.parent
    program = sorted(path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc")
    described: dict[str, Any] = json.loads(json.dumps(made_from, default=str))
    return {
        "study": described,
        "units": _stamps(units),
        "program": [
            [str(path.relative_to(package)), *stamp]
            for path, stamp in zip(program, _stamps(program), strict=True)
        ],
    }


def _outputs(results: Path) -> list[list[Any]]:
    """Only what a run makes: a study may keep its own files in the same folder."""
    files = sorted(path for pattern in _MADE for path in results.glob(pattern) if path.is_file())
    return [
        [str(path.relative_to(results)), *stamp] for path, stamp in zip(files, _stamps(files), strict=True)
    ]


def _stamps(paths: Iterable[Path]) -> list[list[int]]:
    return [[path.stat().st_size, path.stat().st_mtime_ns] for path in paths]
