"""Whose a results folder is: no run, scan or analysis writes over another study."""

from __future__ import annotations

from pathlib import Path

import yaml

from qkscope import store
from qkscope.errors import StoreError


def study_of(folder: Path) -> str | None:
    """The name of the study that a folder belongs to; None if it is nobody's, or nothing readable says."""
    try:
        record = folder / "study.yaml"
        if record.is_file():
            found = yaml.safe_load(record.read_text(encoding="utf-8"))
        else:
            plan = folder / "moments" / "plan.json"
            found = {"name": store.read_json(plan)["study"]} if plan.is_file() else None
        name = found["name"] if found else None
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError, StoreError, RecursionError):
        return None
    return name if isinstance(name, str) else None


def refuse_other_study(folder: Path, name: str | None) -> None:
    """Raise if `folder` belongs to a study that is not called `name`; None is no study at all."""
    owner = study_of(folder)
    if owner is not None and owner != name:
        raise StoreError(
            f"{folder} holds the results of the study {owner!r}, which would be overwritten; choose another folder "
            "with --out, or move it away"
        )
