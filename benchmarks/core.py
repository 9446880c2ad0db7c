"""Moments to r, and vectors on disk to r, against the loop that people write: one run, ratios.

    python benchmarks/core.py [--heads 576] [--rows 8000] [--dim 128]

Both sides run in this process, alternating, on the same data. Absolute times mean little on a shared machine; the
ratios are what is claimed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet  # noqa: F401  both sides read with it: its import is not timed
from scipy.stats import pearsonr
from sklearn.decomposition import PCA

from qkscope.measures.pca import join_axes, measure_batch
from qkscope.moments import Accumulator, Moments
from qkscope.scanning.vectors import analyze
from qkscope.vectors import write_vectors

RATIO = 4


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def peer(q: Any, t_q: Any, k: Any, t_k: Any) -> list[tuple[float, float]]:
    """What a notebook does for one head: PCA of the stacked vectors, then pearsonr per component."""
    pca = PCA(n_components=10).fit(np.concatenate([q, k]))
    a, b = pca.transform(q), pca.transform(k)
    return [(pearsonr(a[:, i], t_q).statistic, pearsonr(b[:, i], t_k).statistic) for i in range(10)]


def moments_to_r(heads: int, rows: int, dim: int, sample: int) -> None:
    rng = np.random.default_rng(0)
    spread = np.geomspace(3, 0.3, dim).astype(np.float32)
    t = np.arange(rows)
    vectors = [(rng.standard_normal((2, rows, dim), dtype=np.float32) * spread) for _ in range(sample)]
    parts = []
    for pair in vectors:
        for x in pair:
            total = Accumulator()
            total.update(x[None], t.astype(float))
            parts.append(total.moments())
    q = Moments.concat([parts[2 * (i % sample)] for i in range(heads)])
    k = Moments.concat([parts[2 * (i % sample) + 1] for i in range(heads)])
    slow, _ = timed(lambda: [peer(x[0], t, x[1], t) for x in vectors])
    few = np.array_split(np.arange(heads), heads // 4)
    fast, _ = timed(lambda: join_axes([measure_batch([(q.select(r), k.select(r))], 10) for r in few]))
    slow_a_head, fast_a_head = slow / sample, fast / heads
    print(f"moments to r, {heads} heads, d={dim}: {fast:.2f} s, {1e3 * fast_a_head:.2f} ms a head")
    print(
        f"scikit-learn PCA + pearsonr over {rows}+{rows} vectors ({sample} heads): {1e3 * slow_a_head:.1f} ms a head"
    )
    print(f"  ratio {slow_a_head / fast_a_head:.1f} times faster")


def notebook(root: Path) -> None:
    """pandas.read_parquet + np.stack + the loop above, head by head."""
    for folder in sorted(root.glob("*/l*q")):
        layer, head = int(folder.name[1:3]), int(folder.name[4:6])
        q = pd.read_parquet(folder / "data.parquet")
        k = pd.read_parquet(folder.parent / f"l{layer:02d}h{head // RATIO:02d}k" / "data.parquet")
        peer(np.stack(q["vector"]), q["position"], np.stack(k["vector"]), k["position"])


def _resident(name: str) -> int:
    """VmRSS or VmHWM of this process in kB."""
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(name))
    return int(line.split()[1])


def _peak(name: str, root: Path, answer: Any) -> None:
    """Seconds and peak memory of one side, in a process of its own; imports are done before the clock starts."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = _resident("VmRSS")
    seconds, _ = timed((lambda: notebook(root)) if name == "notebook" else (lambda: analyze(root)))
    answer.put((seconds, (_resident("VmHWM") - before) / 1024))


def from_disk(rows: int, dim: int, layers: int) -> None:
    root = Path(tempfile.mkdtemp(prefix="qkscope-bench-"))
    rng = np.random.default_rng(0)
    try:
        for layer in range(layers):
            for kind, count in (("q", 2 * RATIO), ("k", 2)):
                for head in range(count):
                    x = rng.standard_normal((rows, dim), dtype=np.float32)
                    t = np.arange(rows)
                    at = ("model", layer, head, kind)
                    write_vectors(root, *at, example_id=t % 100, position=t, vector=x, window=rows)
        context = multiprocessing.get_context("spawn")
        answer = context.Queue()
        found = {}
        for name in ("notebook", "qkscope"):
            child = context.Process(target=_peak, args=(name, root, answer))
            child.start()
            seconds, memory = found[name] = answer.get()
            child.join()
            print(
                f"{name}: {layers * 2 * RATIO} heads from disk in {seconds:.2f} s, {memory:.0f} MB over start"
            )
        theirs, ours = found["notebook"], found["qkscope"]
        print(
            f"  ratio {theirs[0] / ours[0]:.1f} times faster, null and errors included; "
            f"{ours[1] / theirs[1]:.2f} of the memory"
        )
    finally:
        shutil.rmtree(root)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--heads", type=int, default=576)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--sample", type=int, default=12, help="heads of which the peer is timed")
    parser.add_argument(
        "--layers", type=int, default=8, help="layers written to disk, eight query heads each"
    )
    options = parser.parse_args()
    moments_to_r(options.heads, options.rows, options.dim, options.sample)
    from_disk(options.rows, options.dim, options.layers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
