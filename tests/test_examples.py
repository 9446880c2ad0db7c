"""The examples run: notebooks from top to bottom, shown with their output, and a training script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from frames import write_example

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small stand-ins for what the notebooks read: two results folders and a checkpoint."""
    folder = tmp_path_factory.mktemp("notebooks")
    for name in ("nano", "nano-beginning"):
        write_example(folder / "results" / name, name)
    checkpoint = folder / "results" / "nano" / "checkpoints" / "stage3-step-760"
    tiny.save_checkpoint(checkpoint, seed=1, tokenizer=True, max_position_embeddings=256)
    (folder / "examples").mkdir()
    return folder


def test_notebooks_run_from_top_to_bottom(folder):
    command = [sys.executable, "-c", EXECUTE, str(folder / "examples"), *map(str, NOTEBOOKS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_training_script_writes_a_report(tmp_path):
    script = ROOT / "examples" / "train_with_qkscope.py"
    assert len(script.read_text().splitlines()) <= 60
    command = [sys.executable, str(script), "2", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "stopped measuring" not in done.stderr
    assert (tmp_path / "live" / "report.html").is_file(), done.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_shown_with_its_output(notebook):
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(cell["execution_count"] for cell in cells)
    assert sum(bool(cell["outputs"]) for cell in cells) >= len(cells) - 1
    assert not [output for output in outputs if output["output_type"] == "error"]
