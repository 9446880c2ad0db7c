"""What a person waits for: the start of a command, reading results, figures, the report."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.harness import Role, Row, Side, Size, interleave, say
from benchmarks.made import study_of_llamas

if TYPE_CHECKING:
    import pandas as pd


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


def random_qk(checkpoints: int, layers: int, heads: int, components: int) -> pd.DataFrame:
    """A qk table of random numbers."""
    import pandas as pd

    from qkscope.results.tables import QK_COLUMNS

    names = ["model", "layer", "head", "pc"]
    each = [[f"step{i}" for i in range(checkpoints)], range(layers), range(heads), range(components)]
    frame = pd.MultiIndex.from_product(each, names=names).to_frame(index=False)
    frame = frame.assign(kv_head=frame["head"] // 4, n_q=1000, n_k=1000, rope=1)
    rest = [name for name in QK_COLUMNS if name not in frame]
    frame[rest] = np.random.default_rng(0).uniform(0, 1, (len(frame), len(rest)))
    return frame


def reading(size: Size) -> Iterator[Row]:
    """A qk.csv of 100,000 rows; pandas does not check its contents."""
    import pandas as pd

    from qkscope.results import load_results

    several = size.pick(25, 2)
    frame = random_qk(several, several, 16, 10)
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


# What a reader does with the raster in sight: another checkpoint, selection, order or measure, until the next frame
# has been drawn.
CLICKS = """async () => {
  document.getElementById("emergence").scrollIntoView();
  const ways = [
    () => store.set({ checkpoint: (store.state.checkpoint + 1) % data.checkpoints.length }),
    () => store.select([store.state.heads.size ? [...store.state.heads][0] + 1 : 0]),
    () => store.select(data.heads.slice(0, 12).map(({ index }) => index)),
    () => store.set({ rows: store.state.rows === "onset" ? "depth" : "onset" }),
    () => store.set({ map: store.state.map === "class" ? "r_q" : "class" }),
  ];
  const taken = [];
  for (let i = 0; i < 20; i += 1) {
    await new Promise((done) => setTimeout(done, 300));
    const start = performance.now();
    ways[i % ways.length]();
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    taken.push(performance.now() - start);
  }
  return taken;
}"""
PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"


def page(size: Size) -> Iterator[Row]:
    """The report in a browser: of the demo where it has been run, and of 154 checkpoints of 1,024 heads."""
    import shutil

    from playwright.sync_api import sync_playwright

    from qkscope.report import write_report
    from qkscope.results import load_results

    checkpoints, layers = size.pick((154, 32), (3, 2))
    demo = Path("results/nano")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as tools:
        table = Path(name) / "qk.csv"
        random_qk(checkpoints, layers, 32, 1).to_csv(table, index=False)
        reports = {f"{checkpoints} x {32 * layers} heads": write_report(table, Path(name) / "large.html")}
        if demo.is_dir():
            reports = {"the demo": write_report(load_results(demo), Path(name) / "demo.html")} | reports
        chromium = tools.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for what, path in reports.items():
            taken: list[tuple[float, float, float]] = []
            for number in range(size.rounds):
                opened = chromium.new_page(viewport={"width": 1440, "height": 900})
                opened.goto(path.as_uri())
                opened.wait_for_selector("html[data-ready]", timeout=120_000)
                ready = float(opened.locator("html").get_attribute("data-ready") or "nan")
                clicks = opened.evaluate(CLICKS)
                taken.append((opened.evaluate(PAINTED), ready, float(np.median(clicks))))
                opened.close()
                say(f"Report of {what}: round {number + 1} of {size.rounds}: {taken[-1][2]:.0f} ms a click")
            paint, ready, click = (round(float(each)) for each in np.median(taken, axis=0))
            times = {"first paint, ms": paint, "ready, ms": ready, "click, ms": click}
            yield Row(
                "The report in a browser", what, "ours", facts=times | {"MB": path.stat().st_size / 1e6}
            )
        chromium.close()
