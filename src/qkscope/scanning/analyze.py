"""Vectors on disk -> the same dataset and tables that a study has, and plasticity from all pairs of stored keys."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkscope import defaults
from qkscope.checkpoints.hub import on_hub
from qkscope.errors import VectorsError
from qkscope.measures.cell import Cell, CellNumbers, join_numbers, measure_cell
from qkscope.measures.pca import whole_and_without
from qkscope.measures.plasticity import GROUP, NAMES, means_of_cells, plasticity, query_line
from qkscope.measures.registry import MeasureGroup, chosen, unknown_measures
from qkscope.progress import progress
from qkscope.results.dataset import CellData, CellInfo
from qkscope.results.owner import Holding, Part, head_mask, refuse_other
from qkscope.results.taxonomy import Thresholds
from qkscope.scanning.measured import MeasuredHeads, results_in_memory
from qkscope.store import short_digest
from qkscope.sums import FactSum, MomentSum, PathSum
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.moments import Moments
from qkscope.sums.rotation import Rotation
from qkscope.sums.unit import Unit
from qkscope.vectors import (
    DerotatedSums,
    ModelFolder,
    Rows,
    document_lengths,
    fetch_vectors,
    find_models,
    infer_ratio,
    read_derotated,
    read_moments,
    read_rows,
    require_keys,
)
from qkscope.workers import cores, one_thread_each

Array = NDArray[np.float64]

# Bytes at the end of a parquet file that tell it from others.
FOOTER = 65536
# A rotation, or a function from the dimension of the vectors to one.
Turn = Rotation | Callable[[int], Rotation]


@dataclass(frozen=True, repr=False)
class Analysis(MeasuredHeads):
    """Stored vectors of all models under one root, measured: one cell per model, as `results`.

    `problems` has a line for each head that could not be measured, with the reason.
    """

    problems: list[str]

    def summary(self) -> str:
        """A line a model: heads, mean r_q and r_k, and the share of each class."""
        lines = []
        for model, rows in self.heads.groupby("model", sort=False):
            counts = rows["class"].value_counts(normalize=True)
            shares = ", ".join(f"{share:.0%} {name}" for name, share in counts.items())
            means = f"mean r_q {rows['r_q'].mean():.3f}, mean r_k {rows['r_k'].mean():.3f}"
            lines.append(f"{model}: {len(rows)} heads, {means}; {shares}")
        return "\n".join(lines)


def analyze(
    root: Path | str,
    out: Path | str | None = None,
    *,
    gqa_ratio: int | None = None,
    groups: int = defaults.GROUPS,
    components: int = defaults.COMPONENTS,
    thresholds: Thresholds | None = None,
    rotation: Turn | Mapping[int, Turn] | None = None,
    measures: Sequence[str] = ("rotation", "per_kind", "plasticity"),
    replace: bool = False,
) -> Analysis:
    """Measure stored query and key vectors of every model under `root`, a folder or `hub:owner/name`.

    With `out`, write measures.safetensors, qk.csv, heads.csv and transitions.csv to that folder.

    rotation    how the vectors were rotated (`Rotation.plain(64, 10000.0)`, or a function of their dimension), for
                all layers or by layer; adds score anatomy and the rest that needs it, with a score scale of
                1 / sqrt(dim)
    measures    optional measures: rotation, per_kind, plasticity (needs files with buckets); () is four times faster
    replace     overwrite results in `out` that come from other vectors or have more models, heads or measures
    """
    if mistake := unknown_measures(measures):
        raise VectorsError(mistake)
    models = find_models(*fetch_vectors(root)) if on_hub(root) else find_models(Path(root))
    ratios = [gqa_ratio or infer_ratio(model) for model in models]
    for model, ratio in zip(models, ratios, strict=True):
        require_keys(model, ratio)
    settings = _Settings(groups, components, rotation, tuple(measures))
    parts = {
        model.name: Part(weights=_files_digest(model, ratio), heads=head_mask(model.queries))
        for model, ratio in zip(models, ratios, strict=True)
    }
    held = [*measures, *(["anatomy"] if rotation else [])]
    holds = Holding("analysis", Path(root).name, parts, (), held, components, {"groups": groups})
    if out is not None:
        refuse_other(Path(out), holds, replace=replace)
    cells, problems = [], []
    with progress("Analysing vectors", sum(len(model.queries) for model in models), unit="heads") as bar:
        for model, ratio in zip(models, ratios, strict=True):
            numbers = _measure_model(model, ratio, settings, bar.advance)
            cells.append(CellData.of(CellInfo(model.name, numbers.window, groups=numbers.groups), numbers))
            problems += _unmeasured(model, numbers)
            bar.done(f"{model.name}: {len(model.queries)} heads")
    results = results_in_memory(cells, Path(root).name, Path(out or root))
    results = dataclasses.replace(results, thresholds=thresholds or Thresholds())
    found = Analysis(results, cells, holds, problems)
    if out is not None:
        found.save(out, replace=replace)
    return found


def _files_digest(model: ModelFolder, ratio: int) -> str:
    """Of each file's size and end, where a parquet file says how long its columns are and what they range over."""
    found = []
    for kind, files in (("q", model.queries), ("k", model.keys)):
        for head, path in sorted(files.items()):
            end = b""
            # A file that cannot be read is reported when its vectors are read.
            with suppress(OSError), path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - FOOTER))
                end = size.to_bytes(8, "little") + file.read()
            found.append([kind, *head, hashlib.blake2b(end, digest_size=20).hexdigest()])
    return short_digest([ratio, found])


@dataclass(frozen=True)
class _Settings:
    groups: int
    components: int
    rotation: Turn | Mapping[int, Turn] | None
    measures: tuple[str, ...]

    @property
    def measured(self) -> list[MeasureGroup]:
        """What is computed from sums that stored vectors give; plasticity is computed from the vectors themselves."""
        return [group for group in chosen(self.measures) if not group.sums and "keys" not in group.needs]

    def turn(self, layer: int, dim: int) -> Rotation | None:
        """The rotation of a layer's vectors; None if it was not given."""
        of = self.rotation
        found = of.get(layer) if isinstance(of, Mapping) else of
        return found if isinstance(found, Rotation) or found is None else found(dim)


def _measure_model(model: ModelFolder, ratio: int, settings: _Settings, advance: Any) -> CellNumbers:
    """All heads of one model: a key head and the query heads that read it, at a time, on every core."""
    heads = HeadIndex.of(model.queries, ratio)

    def one(key: int) -> list[tuple[int, CellNumbers]]:
        layer, kv_head = (int(i) for i in heads.keys[key])
        key_file, rows = model.keys[layer, kv_head], np.flatnonzero(heads.kv_row == key)
        k = read_moments(key_file, settings.groups)
        dim = k[0].M.shape[1]
        key_rows = read_rows(key_file, vectors="plasticity" in settings.measures)
        files = [model.queries[layer, int(heads.head[row])] for row in rows]
        queries = [read_moments(file, settings.groups) for file in files]
        for file, q in zip(files, queries, strict=True):
            if q[0].M.shape[1] != dim:
                raise VectorsError(
                    f"{file}: vectors have {q[0].M.shape[1]} dimensions, but those in {key_file} have {dim}; "
                    "a query head and its key head must have the same: check --gqa-ratio"
                )
        rotation = settings.turn(layer, dim)
        derotated = None if rotation is None else _derotated(files, key_file, settings.groups, rotation)
        found = []
        rope = {layer: None if rotation is None else len(rotation.pairs) > 0}
        for i, (row, file, q) in enumerate(zip(rows, files, queries, strict=True)):
            head = HeadIndex.of([(layer, int(heads.head[row]))], ratio, rope)
            query_rows = read_rows(file, vectors=False)
            width = int(max(query_rows.position.max(), key_rows.position.max())) + 1
            extra = (derotated[i], derotated[-1]) if derotated else None
            units = _units(head, width, q, k, rotation, extra)
            cell = Cell.of(units, width, settings.components, num_layers=int(heads.layer.max()) + 1)
            numbers = measure_cell(cell, settings.measured)
            if "plasticity" in settings.measures:
                groups = [a for a, b in zip(q, k, strict=True) if a.n[0] or b.n[0]]
                exact = exact_plasticity(query_rows, key_rows, groups, settings.groups)
                numbers = dataclasses.replace(numbers, arrays={**numbers.arrays, **exact})
            found.append((int(row), numbers))
            advance(1)
        return found

    with one_thread_each(), ThreadPoolExecutor(cores()) as pool:
        by_row = dict(chain.from_iterable(pool.map(one, range(len(heads.keys)))))
    return join_numbers([by_row[row] for row in range(len(heads))])


def _units(
    heads: HeadIndex,
    width: int,
    q: Sequence[Moments],
    k: Sequence[Moments],
    rotation: Rotation | None,
    derotated: tuple[DerotatedSums, DerotatedSums] | None,
) -> list[Unit]:
    """One query head and its key head, a unit for each group of documents that has vectors.

    `derotated` is what the rotation adds to the moments of the queries and of the keys.
    """
    units, layer, dim = [], int(heads.layer[0]), k[0].M.shape[1]
    for group, (of_q, of_k) in enumerate(zip(q, k, strict=True)):
        tokens = int(max(of_q.n[0], of_k.n[0]))
        if not tokens:
            continue
        facts = FactSum(heads, (width,), (tokens,), {layer: rotation}, {layer: dim**-0.5})
        sink_q = sink_k = Moments.empty(1, dim)
        paths = []
        if derotated is not None:
            facts = dataclasses.replace(facts, lengths=derotated[1].lengths[group])
            sink_q, sink_k = (each.sinks[group] for each in derotated)
            paths = [PathSum(*(each.paths[group] for each in derotated))]
        units.append(Unit.of(facts, MomentSum((width,), (of_q,), (of_k,), sink_q, sink_k), *paths))
    return units


def _derotated(files: Sequence[Path], key_file: Path, groups: int, rotation: Rotation) -> list[DerotatedSums]:
    """Paths and sinks of query heads and, last, of their key head, which must hold the same documents."""
    every = [*files, key_file]
    lengths = [document_lengths(path) for path in every]
    if any(each != lengths[-1] for each in lengths):
        raise VectorsError(
            f"{key_file}: has other documents than the files of its query heads; expected the same"
        )
    return [read_derotated(path, groups, lengths[-1], rotation) for path in every]


def _unmeasured(model: ModelFolder, numbers: CellNumbers) -> list[str]:
    """A line for each head without a correlation on PC0: what was found in its files."""
    lines = []
    heads = numbers.heads
    for row in np.flatnonzero(np.isnan(numbers.value("r_q")) | np.isnan(numbers.value("r_k"))):
        layer, head, kv_head = int(heads.layer[row]), int(heads.head[row]), int(heads.kv_head[row])
        files = model.queries[layer, head], model.keys[layer, kv_head]
        found = []
        for file, kind in zip(files, "qk", strict=True):
            n, bad = (int(numbers.value(f"{name}_{kind}")[row]) for name in ("n", "bad"))
            if bad:
                found.append(
                    f"{file}: {bad} of {n} vectors are NaN or infinite; write them again or remove them"
                )
            elif n < 2:
                found.append(f"{file}: {n} row; at least 2 are needed")
        found = found or [
            f"{files[0]}, {files[1]}: positions, or vectors along PC0, are all equal; expected them to vary"
        ]
        lines.append(f"head {head} of layer {layer} of {model.name} is unmeasured: {'; '.join(found)}")
    return lines


def exact_plasticity(
    queries: Rows, keys: Rows, groups: Sequence[Moments], documents: int
) -> dict[str, Array]:
    """Plasticity of one head from all pairs of its stored keys, as variables of a cell of one head.

    Documents are dealt into `documents` groups; `groups` are the moments of the queries of those that have vectors.
    NaN where a file has no buckets.
    """
    several = len(groups) > 1
    values, cells = np.full((1 + len(groups) if several else 1, len(NAMES)), np.nan), np.full((1, 1), np.nan)
    if len(queries.bucket) and len(keys.bucket):
        buckets = int(max(queries.bucket.max(), keys.bucket.max())) + 1
        of_query, of_key = queries.example % documents, keys.example % documents
        left_out = np.union1d(of_query, of_key) if several else ()
        samples = [(queries, keys)]
        samples += [(queries.take(of_query != group), keys.take(of_key != group)) for group in left_out]
        pairs = zip(whole_and_without(groups), samples, strict=True)
        found = [_plasticity(moments, *sample, buckets) for moments, sample in pairs]
        values, cells = np.stack([means_of_cells(each) for each in found]), found[0]
    names = [variable.name for variable in GROUP.variables]
    return dict(zip(names, [*values.T[:, :, None], np.zeros(1), cells[None]], strict=True))


def _plasticity(moments: Moments, queries: Rows, keys: Rows, buckets: int) -> Array:
    """Cells of one sample of documents; NaN where queries do not vary in position, or some vectors are not finite."""
    broken = bool(moments.bad[0]) or not np.isfinite(keys.vector).all()
    if broken or moments.n[0] < 2 or moments.T[0] <= 0 or not len(keys.vector):
        return np.full((buckets, buckets), np.nan)
    n = np.bincount(queries.bucket, minlength=buckets)
    with np.errstate(invalid="ignore"):
        positions = np.bincount(queries.bucket, queries.position, minlength=buckets) / n
    means = np.stack(
        [keys.vector[keys.bucket == c].mean(axis=0, dtype=np.float64) for c in np.unique(keys.bucket)]
    )
    one = moments.mean_x[0], float(moments.mean_t[0]), moments.M[0], moments.C[0], float(moments.T[0])
    line = query_line(int(moments.n[0]), *one, positions, means)
    return plasticity(line, _by_bucket(keys, buckets))


def _by_bucket(keys: Rows, buckets: int) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
    """For each bucket its keys, document after document, and how many each document has."""
    order = np.lexsort([keys.example, keys.bucket])
    document = keys.example[order]
    for start, stop in pairwise(np.searchsorted(keys.bucket[order], np.arange(buckets + 1))):
        yield keys.vector[order[start:stop]], np.unique(document[start:stop], return_counts=True)[1]
