"""What a person waits for: the start of a command, reading results, figures, the report."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness import Role, Row, Side, Size, interleave
from benchmarks.made import study_of_llamas


def start(size: Size) -> Iterator[Row]:
    """Whole processes, with files in the page cache."""
    commands: list[tuple[str, Role, str]] = [
        ("python, nothing imported", "limit", "pass"),
        ("import qkscope", "ours", "import qkscope"),
        ("qkscope --help", "ours", "from qkscope.cli import main; main(['--help'])"),
        ("import nnsight", "peer", "import nnsight"),
        ("import transformer_lens", "peer", "import transformer_lens"),
    ]
    python = partial(subprocess.run, check=True, stdout=subprocess.DEVNULL)
    sides = [Side(name, role, partial(python, [sys.executable, "-c", code])) for name, role, code in commands]
    yield from interleave("Start", sides, size.rounds)


def reading(size: Size) -> Iterator[Row]:
    """A qk.csv of 100,000 rows; pandas does not check its contents."""
    import pandas as pd

    from qkscope.results import load_results
    from qkscope.results.tables import QK_COLUMNS

    names = ["model", "layer", "head", "pc"]
    several = range(size.pick(25, 2))
    each = [[f"step{i}" for i in several], several, range(16), range(10)]
    frame = pd.MultiIndex.from_product(each, names=names).to_frame(index=False)
    frame = frame.assign(kv_head=frame["head"] // 4, n_q=1000, n_k=1000, rope=1)
    rest = [name for name in QK_COLUMNS if name not in frame]
    frame[rest] = np.random.default_rng(0).uniform(0, 1, (len(frame), len(rest)))
    with tempfile.TemporaryDirectory() as name:
        table = Path(name) / "qk.csv"
        frame.to_csv(table, index=False)
        sides = [
            Side("pandas.read_csv", "limit", partial(pd.read_csv, table)),
            Side("load_results", "ours", partial(load_results, table)),
        ]
        yield from interleave(f"Reading {len(frame):,} rows", sides, size.rounds)


def drawing(size: Size) -> Iterator[Row]:
    """Figures and report of a study of ten random models with 144 heads of 8, from its tables."""
    from qkscope.figures import draw_all
    from qkscope.report import write_report
    from qkscope.results import load_results
    from qkscope.run import run

    shape = {"hidden_size": 96, "intermediate_size": 96, "num_attention_heads": 12, "num_key_value_heads": 3}
    checkpoints, layers = size.pick((10, 12), (2, 2))
    with tempfile.TemporaryDirectory() as name:
        study = study_of_llamas(Path(name), checkpoints, 4, 8, 64, **shape, num_hidden_layers=layers)
        out = Path(name) / "out"
        run(study, out)
        results = load_results(out)
        page = (out / "report.html").stat().st_size / 1e6
        sides = [
            Side("load_results", "ours", partial(load_results, out)),
            Side(
                "all figures",
                "ours",
                partial(draw_all, results),
                facts={"figures": len(list((out / "figures").iterdir()))},
            ),
            Side("report", "ours", partial(write_report, results), facts={"MB": page}),
        ]
        table = f"A study of {checkpoints} x {12 * layers} heads"
        yield from interleave(table, sides, size.rounds, warm=False)
