"""Each statistical constant is assigned once: in stats/levels.py."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from qkscope.stats import levels

SOURCE = Path(levels.__file__).parent.parent
LEVELS = Path(levels.__file__)
CONSTANTS = [
    name
    for name in vars(levels)
    if name.isupper() and re.search(rf"^[\w, ]*\b{name}\b[\w, ]* = ", LEVELS.read_text(), re.M)
]
# Who judges, or tells what was judged. Pictures have sizes of letters and inches, measures have formulas.
JUDGES = [
    *(SOURCE / "stats").glob("*.py"),
    *(SOURCE / "claims").rglob("*.py"),
    *(SOURCE / "comparison").glob("*.py"),
]
# Halves and units of formulas (a half of a variance, a third of the depth) are no thresholds.
PLAIN = {0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 1 / 3}


def others() -> dict[Path, str]:
    return {path: path.read_text() for path in SOURCE.rglob("*.py") if path != LEVELS}


def test_there_are_constants():
    assert {"STUDY_LEVEL", "SMALLEST", "CONFIDENCE", "MISSED"} <= set(CONSTANTS)


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_is_said_once(name):
    """Assigned in levels.py, imported elsewhere."""
    said = re.compile(rf"^[\w, ]*\b{name}\b[\w, ]*(: [\w\[\], ]+)? = ", re.M)
    assert len(said.findall(LEVELS.read_text())) == 1
    judging = {path: text for path, text in others().items() if path in JUDGES}
    assert [str(path) for path, text in judging.items() if said.search(text)] == []


def test_no_judge_has_a_number_of_its_own():
    values = {getattr(levels, name) for name in CONSTANTS if isinstance(getattr(levels, name), float)} - PLAIN
    assert len(values) > 5
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}: {node.value}"
        for path in JUDGES
        if path != LEVELS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, float) and node.value in values
    ]
    assert found == []
