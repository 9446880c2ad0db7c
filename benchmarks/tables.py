"""Sums and vectors on disk -> tables, beside the loops that people write."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness import Row, Side, Size, alone, interleave, peak_megabytes
from benchmarks.made import random_unit, study_of_units
from qkscope.run.plan import PlannedCheckpoint
from qkscope.study import Study

if TYPE_CHECKING:
    from qkscope.run.assemble import AssembledCells

GROUPS, RATIO, COMPONENTS = 8, 4, 10
TABLES, TEN = "unit files to tables", "10 x 576 heads, s"


def pooled(q: Any, t_q: Any, k: Any, t_k: Any) -> None:
    """What a notebook does for one head: PCA of the stacked vectors, then pearsonr per component."""
    from scipy.stats import pearsonr
    from sklearn.decomposition import PCA

    pca = PCA(n_components=COMPONENTS).fit(np.concatenate([q, k]))
    for x, t in ((q, t_q), (k, t_k)):
        made = pca.transform(x)
        for i in range(COMPONENTS):
            pearsonr(made[:, i], t)


def assembly(size: Size) -> Iterator[Row]:
    """First table: seconds per head and sample (all documents, or all but one of 8 groups), windows of 4K and 32K.
    scikit-learn starts from 8192 + 8192 vectors and computes no errors; qkscope starts from the sums that capture
    writes. Second table: from unit files to the dataset and tables of a study of ten checkpoints (six with a window
    of 4K, two of 32K, two of 64K), on all cores, and scaled to SmolLM3's 576 heads.
    """
    from qkscope.measures import measure
    from qkscope.measures.cell import Cell, measure_cell
    from qkscope.measures.registry import chosen
    from qkscope.sums.head_index import HeadIndex

    rng = np.random.default_rng(0)
    dim, windows, tokens = size.pick(128, 16), (4096, 32768), size.pick(8192, 64)
    heads = HeadIndex.of([(i, h) for i in range(2) for h in range(16)], RATIO)
    units = [random_unit(group, heads, dim, windows) for group in range(GROUPS)]
    scatter = rng.standard_normal((4 * (1 + GROUPS), dim, dim))
    scatter = scatter @ scatter.transpose(0, 2, 1)
    x, t = rng.standard_normal((2 * tokens, dim), dtype=np.float32), np.arange(tokens)
    every = len(heads) * (1 + GROUPS)
    sides = [
        Side("scikit-learn + pearsonr, from vectors", "peer", lambda: pooled(x[:tokens], t, x[tokens:], t)),
        Side("LAPACK eigh only", "limit", lambda: np.linalg.eigh(scatter), len(scatter)),
        Side("axes and r", "ours", lambda: measure(units, windows[-1]), every),
        Side("all measures", "ours", lambda: measure_cell(Cell.of(units, windows[-1]), chosen(())), every),
    ]
    yield from interleave(f"Assembly, per head of {dim} and sample", sides, size.rounds)
    yield from _study(size, dim)


def _study(size: Size, dim: int) -> Iterator[Row]:
    """Peak memory in a process of its own."""
    checkpoints, layers = size.pick((10, 1) if size.quick else (10, 12), (3, 1))
    with tempfile.TemporaryDirectory() as name:
        made = study_of_units(Path(name), checkpoints, layers, dim, (4096, 32768, 65536))
        side = Side(TABLES, "ours", lambda: write_study(*made, name))
        table = f"Tables of {checkpoints} x {16 * layers} heads of {dim}, 3 windows"
        (row,) = interleave(table, [side], min(size.rounds, 2), warm=False)
        whole = median(row.wall) * 10 * 576 / (checkpoints * 16 * layers)
        yield replace(row, facts={TEN: whole, "peak MB": alone(peak_of_tables, *made, name)})


def write_study(study: Study, planned: Sequence[PlannedCheckpoint], folder: str) -> None:
    """Every cell from its unit files, then the dataset and its tables; nothing is cached."""
    from qkscope.run.assemble import assemble

    shutil.rmtree(Path(folder) / "cells", ignore_errors=True)
    write_out(assemble(study, planned, Path(folder)), planned, folder)


def write_out(made: AssembledCells, planned: Sequence[PlannedCheckpoint], folder: str) -> None:
    from qkscope.results.tables import write_tables
    from qkscope.results.taxonomy import Thresholds

    out = Path(folder) / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    write_tables(out, made.cells, [each.checkpoint.name for each in planned], Thresholds())


def peak_of_tables(study: Study, planned: Sequence[PlannedCheckpoint], folder: str) -> float:
    return peak_megabytes(lambda: write_study(study, planned, folder))


def memory(size: Size) -> Iterator[Row]:
    """Peak memory of a process that puts 154 checkpoints of 1,024 heads of 128 together, each over two windows (308
    cells of the size of Pythia-6.9B's), writes dataset and tables, and loads them again. The cells are cached: one of
    16 heads is measured and repeated. Measuring a checkpoint takes its units besides, three times their files.
    """
    checkpoints, layers, dim = size.pick((154, 64, 128), (4, 2, 16))
    with tempfile.TemporaryDirectory() as name:
        made = _cached_cells(Path(name), checkpoints, layers, dim)
        peak, table = (
            alone(_peaks, *made, name),
            f"Memory of {checkpoints} x {16 * layers} heads of {dim}, 2 windows",
        )
        for what, megabytes in peak.items():
            yield Row(table, what, "ours", facts={"peak MB": megabytes})


def _cached_cells(
    root: Path, checkpoints: int, layers: int, dim: int
) -> tuple[Study, list[PlannedCheckpoint]]:
    """A study whose cells are all cached: those of one checkpoint with 16 heads, repeated for each layer."""
    from qkscope import store
    from qkscope.measures.registry import variables
    from qkscope.run.assemble import assemble

    study, planned = study_of_units(root, checkpoints, 1, dim, (512, 2048), growing=False)
    (first,) = assemble(study, planned[:1], root).drawn
    for path in sorted(first.parent.iterdir()):
        if path != first:
            arrays, meta = store.read_tensors(path)
            sampled = {n for n, v in variables().items() if v.sampled and not v.dims} | {"loo_v"}
            wide = {n: np.concatenate([a] * layers, axis=int(n in sampled)) for n, a in arrays.items()}
            heads = [(layer, head) for layer in range(layers) for _, head in meta["heads"]]
            shapes = {name: array.shape for name, array in wide.items()}
            path.unlink()
            store.write_tensors(path, wide, {**meta, "heads": heads, "shapes": shapes})
    for each in planned[1:]:
        shutil.copytree(first.parent, root / "cells" / each.checkpoint.folder, copy_function=os.link)
    return study, planned


def _peaks(study: Study, planned: Sequence[PlannedCheckpoint], folder: str) -> dict[str, float]:
    """Of assembling and of loading, each over the whole process."""
    from qkscope.results import load_results
    from qkscope.run.assemble import assemble

    def load() -> None:
        results = load_results(Path(folder) / "out")
        assert len(results.own().checkpoint) == len(planned)
        results.heads.describe()
        for variable in results.data.data_vars.values():
            variable.isel(cell=0).load()

    made = []
    return {
        "cached cells joined": peak_megabytes(
            lambda: made.append(assemble(study, planned, Path(folder))), whole=True
        ),
        "dataset and tables written": peak_megabytes(lambda: write_out(made[0], planned, folder), whole=True),
        "loaded": peak_megabytes(load, whole=True),
    }


def vectors(size: Size) -> Iterator[Row]:
    """Seconds per query head: from parquet files of 8000 vectors of 128 per head and kind, four query heads per
    key head, to axes, r and tables. qkscope also computes errors from 8 groups of documents; `everything` adds
    three more measures. The peers process one head after the other, so eight heads represent any number; files of
    further heads are links to those of the first.
    """
    from qkscope.measures.registry import optional_names
    from qkscope.scanning.analyze import analyze

    rows, dim = size.pick(8000, 200), size.pick(128, 16)
    counts = size.pick((64, 576), (8, 16))
    with tempfile.TemporaryDirectory() as name:
        roots = {count: _vector_files(Path(name) / str(count), count // 8, rows, dim) for count in counts}
        first = roots[counts[0]] / "model"
        sides = [
            Side("pandas + scikit-learn + scipy, 8 heads", "peer", partial(_notebook, first), 8),
            Side("float32 PCA per head and kind, 8 heads", "peer", partial(_per_kind_tool, first), 8),
            *(
                Side(f"qkscope, {what}{n} heads", "ours", partial(analyze, at, measures=asked), n)
                for what, asked in (("axes and r, ", ()), ("everything, ", optional_names()))
                for n, at in roots.items()
            ),
        ]
        yield from interleave("Stored vectors to tables, per head", sides, size.rounds, warm=False)


def _read(path: Path) -> tuple[Any, Any]:
    import pandas as pd

    frame = pd.read_parquet(path / "data.parquet")
    return np.stack(frame["vector"]), frame["position"]


def _notebook(folder: Path) -> None:
    for head in range(8):
        pooled(*_read(folder / f"l00h{head:02d}q"), *_read(folder / f"l00h{head // RATIO:02d}k"))


def _per_kind_tool(folder: Path) -> None:
    """The public tool's way: a PCA in float32 for every head and kind, then pearsonr per component."""
    from scipy.stats import pearsonr
    from sklearn.decomposition import PCA

    for path in sorted(folder.glob("l00*")):
        x, t = _read(path)
        made = PCA(n_components=COMPONENTS).fit_transform(x.astype(np.float32))
        for i in range(COMPONENTS):
            pearsonr(made[:, i], t)


def _vector_files(root: Path, layers: int, rows: int, dim: int) -> Path:
    """A folder in the public layout: layers of 8 query and 2 key heads, all files those of the first layer."""
    from qkscope.vectors import write_vectors

    rng = np.random.default_rng(0)
    t = np.arange(rows)
    for kind, count in (("q", 8), ("k", 8 // RATIO)):
        for head in range(count):
            x = rng.standard_normal((rows, dim), dtype=np.float32)
            path = write_vectors(
                root, "model", 0, head, kind, example_id=t % 100, position=t, vector=x, window=rows
            )
            for layer in range(1, layers):
                other = root / "model" / f"l{layer:02d}h{head:02d}{kind}" / path.name
                other.parent.mkdir(parents=True)
                other.hardlink_to(path)
    return root
