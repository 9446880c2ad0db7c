"""The notebooks: they run from top to bottom, and are shown with their output."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from frames import cells_of

from qkscope.results.dataset import NAME, CellData, write_dataset
from qkscope.results.tables import read_qk

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
# All in one kernel, which forgets between them: starting one takes as long as running it.
EXECUTE = """
import sys, nbformat, nbclient
cells = []
for path in sys.argv[2:]:
    cells += [nbformat.v4.new_code_cell("%reset -f"), *nbformat.read(path, 4).cells]
nbclient.NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=120).execute(cwd=sys.argv[1])
"""


def _cells(place: Path) -> list[CellData]:
    """The tables of an earlier version as cells: own windows, and the matched one where it is another."""
    last = "lc-512-to-1k-step-80"
    own, matched = (read_qk(place / name) for name in ("qk.csv", "qk_matched.csv"))
    short, long = own[own["model"] != last], own[own["model"] == last]
    return [
        *cells_of(short, layers=12, window=256, matched=True),
        *cells_of(long, layers=12, window=1024),
        *cells_of(matched[matched["model"] == last], layers=12, window=256, own=False, matched=True),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small stand-ins for what the notebooks read: two results folders and a checkpoint."""
    folder = tmp_path_factory.mktemp("notebooks")
    cells = _cells(Path(__file__).parent / "old_results")
    for name in ("nano", "nano-beginning"):
        study = folder / "results" / name / "study.yaml"
        study.parent.mkdir(parents=True)
        shutil.copy(Path(__file__).parent / "old_results" / "study.yaml", study)
        write_dataset(study.parent / NAME, cells)
        study.write_text(re.sub(r"^name: .*", f"name: {name}", study.read_text(), flags=re.M))
    checkpoint = folder / "results" / "nano" / "checkpoints" / "stage3-step-760"
    tiny.save_checkpoint(checkpoint, seed=1, tokenizer=True, max_position_embeddings=256)
    (folder / "examples").mkdir()
    return folder


def test_notebooks_run_from_top_to_bottom(folder):
    command = [sys.executable, "-c", EXECUTE, str(folder / "examples"), *map(str, NOTEBOOKS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_shown_with_its_output(notebook):
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(cell["execution_count"] for cell in cells)
    assert sum(bool(cell["outputs"]) for cell in cells) >= len(cells) - 1
    assert not [output for output in outputs if output["output_type"] == "error"]
