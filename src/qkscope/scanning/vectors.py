"""Vectors on disk -> the same dataset and tables that a study has, and plasticity from all pairs of stored keys."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope import defaults
from qkscope.checkpoints.hub import on_hub
from qkscope.errors import VectorsError
from qkscope.measures.cell import Cell, CellNumbers, join_numbers, measure_cell
from qkscope.measures.pca import whole_and_without
from qkscope.measures.plasticity import NAMES, Plasticity, QueryLine, plasticity, query_line
from qkscope.measures.registry import MeasureGroup, chosen, unknown_measures
from qkscope.measures.reservoir import GROUP
from qkscope.progress import progress
from qkscope.results import Results
from qkscope.results.dataset import CellData, CellInfo, dataset
from qkscope.results.owner import Holding, Part, head_mask, refuse_other, writing
from qkscope.results.results_folder import results_of
from qkscope.results.tables import write_tables
from qkscope.results.taxonomy import Thresholds, transitions
from qkscope.store import short_digest
from qkscope.sums import FactSum, MomentSum, PathSum
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.moments import Moments
from qkscope.sums.rotation import Rotation
from qkscope.sums.unit import Unit
from qkscope.vectors import (
    ModelFolder,
    Rows,
    Turned,
    document_lengths,
    fetch_vectors,
    find_models,
    infer_ratio,
    read_moments,
    read_rows,
    read_turned,
    require_keys,
)
from qkscope.workers import cores, one_thread_each

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


# Bytes at the end of a parquet file that tell it from others.
FOOTER = 65536
# A rotation, or a function from the dimension of the vectors to one.
Turn = Rotation | Callable[[int], Rotation]


@dataclass(frozen=True)
class Analysis:
    """Stored vectors of all models under one root, measured: one cell per model, as `results`.

    `problems` has a line for each head that could not be measured, with the reason.
    """

    results: Results
    problems: list[str] = field(default_factory=list)

    @property
    def data(self) -> xr.Dataset:
        """Every measure over (cell, sample, head)."""
        return self.results.data

    @property
    def heads(self) -> pd.DataFrame:
        """A row per model and head: every scalar measure with its error, and the class."""
        return self.results.heads

    @property
    def qk(self) -> pd.DataFrame:
        """A row per model, head and principal component."""
        return self.results.qk

    @property
    def transitions(self) -> pd.DataFrame:
        """Heads that moved between classes from one checkpoint to the next."""
        return transitions(self.heads, self.results.timeline.models)

    def summary(self) -> str:
        """A line a model: heads, mean r_q and r_k, and the share of each class."""
        lines = []
        for model, rows in self.heads.groupby("model", sort=False):
            counts = rows["class"].value_counts()
            shares = ", ".join(f"{count / len(rows):.0%} {name}" for name, count in counts.items())
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
    holds = None
    if out is not None:
        holds = _holding(Path(root).name, models, ratios, settings)
        refuse_other(Path(out), holds, replace=replace)
    cells, problems = [], []
    with progress("Analysing vectors", sum(len(model.queries) for model in models), unit="heads") as bar:
        for model, ratio in zip(models, ratios, strict=True):
            heads = HeadIndex.of(model.queries, ratio)
            numbers = _measure_model(model, heads, settings, bar.advance)
            cells.append(CellData.of(CellInfo(model.name, numbers.window, groups=numbers.groups), numbers))
            problems += _unmeasured(model, numbers)
            bar.done(f"{model.name}: {len(heads)} heads")
    limits, name = thresholds or Thresholds(), Path(root).name
    results = dataclasses.replace(results_of(dataset(cells), Path(out or root), name), thresholds=limits)
    if out is not None and holds is not None:
        made_from = short_digest([holds.record(), results.qk.to_csv()])
        with writing(Path(out), holds, made_from, replace) as folder:
            write_tables(folder, cells, results.timeline.models, limits)
    return Analysis(results, problems)


def _holding(name: str, models: Sequence[ModelFolder], ratios: Sequence[int], settings: _Settings) -> Holding:
    """What an analysis of these folders leaves."""
    parts = {
        model.name: Part(weights=_files_digest(model, ratio), heads=head_mask(model.queries))
        for model, ratio in zip(models, ratios, strict=True)
    }
    measures = [*settings.measures, *(["anatomy"] if settings.rotation else [])]
    about = {"groups": settings.groups}
    return Holding("analysis", name, parts, (), measures, settings.components, about)


def _files_digest(model: ModelFolder, ratio: int) -> str:
    """Of each file's size and end, where a parquet file says how long its columns are and what they range over."""
    found = []
    for kind, files in (("q", model.queries), ("k", model.keys)):
        for place, path in sorted(files.items()):
            end = b""
            with (
                suppress(OSError),
                path.open("rb") as file,
            ):  # those who read it all say what is wrong with it
                size = file.seek(0, 2)
                file.seek(max(0, size - FOOTER))
                end = size.to_bytes(8, "little") + file.read()
            found.append([kind, *place, hashlib.blake2b(end, digest_size=20).hexdigest()])
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
        """The rotation of a layer's vectors, if it was said."""
        of = self.rotation
        found = of.get(layer) if isinstance(of, Mapping) else of
        return found if isinstance(found, Rotation) or found is None else found(dim)


def _measure_model(model: ModelFolder, heads: HeadIndex, settings: _Settings, advance: Any) -> CellNumbers:
    """All heads of one model: a key head and the query heads that read it, at a time, on every core."""

    def one(key: int) -> tuple[NDArray[np.int64], CellNumbers]:
        layer, kv_head = (int(i) for i in heads.keys[key])
        key_file, rows = model.keys[layer, kv_head], np.flatnonzero(heads.kv_row == key)
        k = read_moments(key_file, settings.groups)
        key_rows = read_rows(key_file, vectors="plasticity" in settings.measures)
        files = [model.queries[layer, int(heads.head[row])] for row in rows]
        queries = [read_moments(file, settings.groups) for file in files]
        for file, q in zip(files, queries, strict=True):
            if q[0].M.shape != k[0].M.shape:
                raise VectorsError(
                    f"{file}: vectors have {q[0].M.shape[1]} dimensions, but those in {key_file} have "
                    f"{k[0].M.shape[1]}; a query head and its key head must have the same: check --gqa-ratio"
                )
        rotation = settings.turn(layer, k[0].M.shape[1])
        turned = None if rotation is None else _turned(files, key_file, settings.groups, rotation)
        found = []
        for i, (row, file, q) in enumerate(zip(rows, files, queries, strict=True)):
            some = {name: [values[row]] for name, values in heads.to_meta().items()}
            if rotation is not None:
                some["rope"] = [int(len(rotation.pairs) > 0)]
            query_rows = read_rows(file, vectors=False)
            width = int(max(query_rows.position.max(), key_rows.position.max())) + 1
            sums = _Stored(
                HeadIndex.from_meta(some), width, q, k, rotation, (turned[i], turned[-1]) if turned else None
            )
            units = [unit for g in range(settings.groups) if (unit := sums.unit(g)) is not None]
            numbers = measure_cell(Cell.of(units, width, settings.components), settings.measured)
            if "plasticity" in settings.measures:
                pairs = [(a, b) for a, b in zip(q, k, strict=True) if a.n[0] or b.n[0]]
                exact = exact_plasticity(query_rows, key_rows, pairs, settings.groups)
                numbers = dataclasses.replace(numbers, arrays={**numbers.arrays, **exact})
            found.append(numbers)
            advance(1)
        return rows, join_numbers(found)

    with one_thread_each(), ThreadPoolExecutor(cores()) as pool:
        parts = list(pool.map(one, range(len(heads.keys))))
    joined = join_numbers([numbers for _, numbers in parts])
    return joined.select(np.argsort(np.concatenate([rows for rows, _ in parts])))


@dataclass(frozen=True)
class _Stored:
    """One query head and its key head on disk: moments by group of documents, and, with a rotation, what it adds."""

    heads: HeadIndex
    width: int
    q: list[Moments]
    k: list[Moments]
    rotation: Rotation | None
    turned: tuple[Turned, Turned] | None

    def unit(self, group: int) -> Unit | None:
        """One group of documents; None if it has no vectors."""
        q, k, layer = self.q[group], self.k[group], int(self.heads.layer[0])
        tokens = int(max(q.n[0], k.n[0]))
        if not tokens:
            return None
        none = Moments.empty(1, q.mean_x.shape[1])
        facts = FactSum(
            self.heads, (self.width,), (tokens,), {layer: self.rotation}, {layer: q.mean_x.shape[1] ** -0.5}
        )
        moments = MomentSum((self.width,), (q,), (k,), none, none)
        if self.turned is None:
            return Unit.of(facts, moments)
        of_q, of_k = self.turned
        return Unit.of(
            dataclasses.replace(facts, lengths=of_k.lengths[group]),
            dataclasses.replace(moments, sink_q=of_q.sinks[group], sink_k=of_k.sinks[group]),
            PathSum(of_q.paths[group], of_k.paths[group]),
        )


def _turned(files: Sequence[Path], key_file: Path, groups: int, rotation: Rotation) -> list[Turned]:
    """Paths and sinks of query heads and, last, of their key head, which must hold the same documents."""
    every = [*files, key_file]
    lengths = [document_lengths(path) for path in every]
    if any(each != lengths[-1] for each in lengths):
        raise VectorsError(
            f"{key_file}: has other documents than the files of its query heads; expected the same"
        )
    return [read_turned(path, groups, max(lengths[-1].values()), rotation) for path in every]


def _unmeasured(model: ModelFolder, numbers: CellNumbers) -> list[str]:
    """A line for each head without a correlation on PC0: what was found in its files."""
    lines = []
    heads = numbers.heads
    for row in np.flatnonzero(np.isnan(numbers.value("r_q")) | np.isnan(numbers.value("r_k"))):
        layer, head, kv_head = int(heads.layer[row]), int(heads.head[row]), int(heads.kv_head[row])
        files = model.queries[layer, head], model.keys[layer, kv_head]
        found = []
        counts = (int(numbers.value(name)[row]) for name in ("n_q", "n_k"))
        for file, n, bad in zip(files, counts, numbers.bad[row], strict=True):
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


Array = NDArray[np.float64]


def exact_plasticity(
    queries: Rows, keys: Rows, groups: Sequence[tuple[Moments, Moments]], documents: int
) -> dict[str, Array]:
    """Plasticity of one head from all pairs of its stored keys, as variables of a cell of one head.

    Documents are dealt into `documents` groups. NaN where a file has no buckets.
    """
    shape = (1 + len(groups) if len(groups) > 1 else 1, len(NAMES))
    values, cells = np.full(shape, np.nan), np.full((1, 1), np.nan)
    if queries.bucket is not None and keys.bucket is not None:
        rows = _Placed.of(queries, keys, queries.bucket, keys.bucket, documents)
        values, cells = _exact(rows, [q for q, _ in groups])
    names = [variable.name for variable in GROUP.variables]
    return dict(zip(names, [*values.T[:, :, None], np.zeros(1), cells[None]], strict=True))


@dataclass(frozen=True)
class _Placed:
    """A head's rows: where the queries stand, and the keys by document and bucket; groups of documents of both."""

    position: NDArray[np.int64]
    query_bucket: NDArray[np.int64]
    query_group: NDArray[np.int64]
    vector: NDArray[Any]
    key_bucket: NDArray[np.int64]
    key_group: NDArray[np.int64]
    document: NDArray[np.int64]

    @classmethod
    def of(
        cls, q: Rows, k: Rows, q_bucket: NDArray[np.int64], k_bucket: NDArray[np.int64], documents: int
    ) -> _Placed:
        groups = q.example % documents, k.example % documents
        return cls(q.position, q_bucket, groups[0], k.vector, k_bucket, groups[1], k.example)

    @property
    def groups(self) -> list[int]:
        return sorted({*self.query_group.tolist(), *self.key_group.tolist()})

    @property
    def buckets(self) -> int:
        return int(max(self.query_bucket.max(), self.key_bucket.max())) + 1

    def by_bucket(self, buckets: int) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """For each bucket its keys, document after document, and how many each document has."""
        order = np.lexsort([self.document, self.key_bucket])
        document = self.document[order]
        for start, stop in pairwise(np.searchsorted(self.key_bucket[order], np.arange(buckets + 1))):
            yield self.vector[order[start:stop]], np.unique(document[start:stop], return_counts=True)[1]

    def without(self, group: int) -> _Placed:
        q, k = self.query_group != group, self.key_group != group
        queries = self.position[q], self.query_bucket[q], self.query_group[q]
        return _Placed(*queries, self.vector[k], self.key_bucket[k], self.key_group[k], self.document[k])


def _exact(rows: _Placed, sums: Sequence[Moments]) -> tuple[Array, Array]:
    """Over all documents and without each group of them: values (1 + G, 4), and cells (B, B) of all."""
    left = [rows, *(rows.without(group) for group in rows.groups)] if len(sums) > 1 else [rows]
    pairs = zip(whole_and_without(sums), left, strict=True)
    found = [_of_sample(moments, part, rows.buckets) for moments, part in pairs]
    return np.stack([each.numbers for each in found]), found[0].cells


def _of_sample(moments: Moments, rows: _Placed, buckets: int) -> Plasticity:
    """NaN where queries do not vary in position, or some vectors are broken."""
    broken = bool(moments.bad[0]) or not np.isfinite(rows.vector).all()
    if broken or moments.n[0] < 2 or moments.T[0] <= 0 or not len(rows.vector):
        return Plasticity(np.full((buckets, buckets), np.nan))
    line = _line(moments, rows, buckets)
    return plasticity(line, rows.by_bucket(buckets))


def _line(moments: Moments, rows: _Placed, buckets: int) -> QueryLine:
    n = np.bincount(rows.query_bucket, minlength=buckets)
    with np.errstate(invalid="ignore"):
        places = np.bincount(rows.query_bucket, rows.position, minlength=buckets) / n
    means = np.stack(
        [rows.vector[rows.key_bucket == c].mean(axis=0, dtype=np.float64) for c in np.unique(rows.key_bucket)]
    )
    one = moments.mean_x[0], float(moments.mean_t[0]), moments.M[0], moments.C[0], float(moments.T[0])
    return query_line(int(moments.n[0]), *one, places, means)
