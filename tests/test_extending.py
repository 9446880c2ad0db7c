"""docs/extending.md, done word by word in a copy of the package: measure, claim and picture of a study run whole."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "docs" / "extending.md"
BLOCK = re.compile(r'^```(\w+) title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)

RUN = """
import json, sys
from pathlib import Path
import qkscope
from small_study import make_study, one_thread, without_drawing
from qkscope.claims import summary
from qkscope.figures.drawing import draw_all
from qkscope.run import run

here = Path(sys.argv[1])
assert Path(qkscope.__file__).is_relative_to(here), qkscope.__file__
one_thread()
study, drawn = make_study(here / "study"), draw_all
without_drawing()
run(study, here / "out")
from qkscope.figures import drawing as catalogue
catalogue.CATALOGUE = tuple(p for p in catalogue.CATALOGUE if p.name == "14_cone")
print(drawn(here / "out"))
(here / "summary.json").write_text(json.dumps(summary(qkscope.load_results(here / "out"))))
"""


def edited(text: str, diff: str) -> str:
    """A file with one hunk of a diff applied: its old lines must stand in the file exactly once."""
    lines = diff.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] in " -")
    new = "".join(line[1:] for line in lines if line[0] in " +")
    assert text.count(old) == 1, old
    return text.replace(old, new)


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The package with everything the guide adds to it."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").mkdir()
    found = BLOCK.findall(GUIDE.read_text())
    # One more, without a title, is a part of another package's project file.
    assert len(found) == GUIDE.read_text().count("\n```") // 2 - 1
    for kind, name, text in found:
        path = folder / name
        assert (kind == "diff") == path.exists(), name
        path.write_text(edited(path.read_text(), text) if kind == "diff" else text)
    return folder


def python(folder: Path, *arguments: str) -> str:
    paths = os.pathsep.join([str(folder / "src"), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": paths}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_measure_passes_its_test(copy):
    assert "1 passed" in python(copy, "-m", "pytest", "-q", "tests/test_cone.py")


def test_the_code_is_as_the_house_asks(copy):
    settings = f"--config={ROOT / 'pyproject.toml'}"
    names = [name for kind, name, _ in BLOCK.findall(GUIDE.read_text()) if kind == "python"]
    python(copy, "-m", "ruff", "check", settings, *names)
    python(copy, "-m", "ruff", "format", "--check", settings, *names)


def assert_measured(out: Path) -> None:
    """The measure is in the table, from a sum of its own in every unit."""
    units = list((out / "units").glob("*/*"))
    assert len([path for path in units if path.is_dir()]) == 12
    assert all((path / "directions.safetensors").is_file() for path in units if path.is_dir())
    rows = list(csv.DictReader((out / "heads.csv").read_text().splitlines()))
    for name in ("cone_q", "cone_k"):
        assert all(0 < float(row[name]) < 1 and float(row[f"{name}_se"]) > 0 for row in rows)


def test_a_measure_of_another_package_is_in_the_results(tmp_path):
    """The guide's measure, registered by a distribution of its own through an entry point."""
    (block,) = (
        text for _, name, text in BLOCK.findall(GUIDE.read_text()) if name.endswith("measures/cone.py")
    )
    (tmp_path / "theirs.py").write_text(block)
    about = tmp_path / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[qkscope.measures]\ncone = theirs:GROUP\n")
    paths = os.pathsep.join([str(tmp_path), str(ROOT / "src"), str(ROOT / "tests")])
    code = (
        "import sys\nfrom pathlib import Path\nfrom small_study import make_study, run_quietly\n"
        "run_quietly(make_study(Path(sys.argv[1]) / 'study'), Path(sys.argv[1]) / 'out')\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env={**os.environ, "PYTHONPATH": paths}, check=True
    )
    assert_measured(tmp_path / "out")


def test_measure_claim_and_picture_are_there_after_a_run(copy):
    out = copy / "out"
    assert "14_cone" in python(copy, "-c", RUN, str(copy))
    assert_measured(out)
    (claim,) = (
        one for one in json.loads((copy / "summary.json").read_text())["findings"] if one["id"] == "cone"
    )
    assert [row["measure"] for row in claim["numbers"]][:3] == ["cone_k", "cone_q", "cone_k-cone_q"]
    figure = out / "figures" / "14_cone"
    assert {path.name for path in figure.iterdir()} == {
        "figure.png",
        "figure.svg",
        "figure.pdf",
        "data.csv",
        "README.md",
    }
    assert claim["headline"] in (figure / "README.md").read_text().replace("\\_", "_")
