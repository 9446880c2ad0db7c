"""Vectors on disk -> the same tables that a study has."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkscope import defaults
from qkscope.anatomy_table import anatomy_table
from qkscope.checkpoints.address import on_hub
from qkscope.errors import VectorsError
from qkscope.heads import HeadIndex
from qkscope.measure_table import measure_frames, write_measures
from qkscope.measures.beyond import Beyond, measure_beyond
from qkscope.measures.optional import OPTIONAL, Measured, unknown_measures
from qkscope.measures.pca import Axes, join_axes, measure_batch
from qkscope.moments import Moments
from qkscope.owner import Holding, Part, head_mask, refuse_other, writing
from qkscope.progress import progress
from qkscope.rotation import Rotation
from qkscope.scanning.head_measures import head_measures
from qkscope.store import short_digest, write_csv
from qkscope.table import heads_table, qk_table
from qkscope.taxonomy import Thresholds, transitions
from qkscope.timeline import timeline_from_names
from qkscope.unit import Unit
from qkscope.vectors.files import document_lengths, read_moments, read_rows, read_turned
from qkscope.vectors.hub import fetch_vectors
from qkscope.vectors.layout import ModelFolder, find_models, infer_ratio, require_keys
from qkscope.workers import cores, one_thread_each

if TYPE_CHECKING:
    import pandas as pd

# Bytes at the end of a parquet file that tell it from others.
FOOTER = 65536
# A rotation, or a function from the dimension of the vectors to one.
Turn = Rotation | Callable[[int], Rotation]
# The optional measures of a head by name, and the window they are over.
_Asked = tuple[int, dict[str, Measured]]


@dataclass(frozen=True)
class Analysis:
    """Tables of all models under one root, and what could not be measured (`problems`, one line each)."""

    qk: pd.DataFrame
    heads: pd.DataFrame
    transitions: pd.DataFrame
    problems: list[str] = field(default_factory=list)
    anatomy: pd.DataFrame | None = None
    """A row a head: what decides its scores. None where it was not said how the vectors were rotated."""
    optional: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    """By file: rotation, per_kind, plasticity (where the files have buckets), a row a head; and what is behind them."""

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
    measures: Sequence[str] = tuple(OPTIONAL),
    replace: bool = False,
) -> Analysis:
    """Measure stored query and key vectors of every model under `root`, a folder or `hub:owner/name`.

    With `out`, write qk.csv, heads.csv, transitions.csv and one table for each of `measures` to that folder.

    rotation    how the vectors were rotated (`Rotation.plain(64, 10000.0)`, or a function of their dimension), for
                all layers or by layer; also computes anatomy.csv, with a score scale of 1 / sqrt(dim)
    measures    optional measures: rotation, per_kind, plasticity (needs files with buckets); () is four times faster
    replace     overwrite results in `out` that come from other vectors or have more models, heads or measures
    """
    import pandas as pd

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
    tables, problems, anatomies = [], [], []
    optional: dict[str, list[pd.DataFrame]] = {}
    with progress("Analysing vectors", sum(len(model.queries) for model in models), unit="heads") as bar:
        for model, ratio in zip(models, ratios, strict=True):
            heads = HeadIndex.of(model.queries, ratio)
            axes, beyond, asked = _measure_model(model, heads, settings, bar.advance)
            for name, frames in asked.items():
                optional.setdefault(name, []).extend(frames)
            anatomies += [anatomy_table(model.name, *each, None) for each in beyond]
            tables.append(qk_table(model.name, heads, axes))
            problems += _unmeasured(model, heads, axes)
            bar.done(f"{model.name}: {len(heads)} heads")
    qk = pd.concat(tables, ignore_index=True)
    order = timeline_from_names([model.name for model in models]).models
    by_head = heads_table(qk, thresholds=thresholds)
    anatomy = pd.concat(anatomies, ignore_index=True) if anatomies else None
    joined = {name: pd.concat(frames, ignore_index=True) for name, frames in optional.items()}
    result = Analysis(qk, by_head, transitions(by_head, order), problems, anatomy, joined)
    if out is not None and holds is not None:
        with writing(Path(out), holds, short_digest([holds.record(), qk.to_csv()]), replace) as folder:
            _write_tables(result, folder)
    return result


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


def _write_tables(result: Analysis, out: Path) -> None:
    write_csv(out / "qk.csv", result.qk)
    write_csv(out / "heads.csv", result.heads)
    write_csv(out / "transitions.csv", result.transitions)
    if result.anatomy is not None:
        write_csv(out / "anatomy.csv", result.anatomy)
    write_measures(out, result.optional)


@dataclass(frozen=True)
class _Settings:
    groups: int
    components: int
    rotation: Turn | Mapping[int, Turn] | None
    measures: tuple[str, ...]

    def turn(self, layer: int, dim: int) -> Rotation | None:
        """The rotation of a layer's vectors, if it was said."""
        of = self.rotation
        found = of.get(layer) if isinstance(of, Mapping) else of
        return found if isinstance(found, Rotation) or found is None else found(dim)


def _measure_model(
    model: ModelFolder, heads: HeadIndex, settings: _Settings, advance: Any
) -> tuple[Axes, list[tuple[HeadIndex, Axes, Beyond]], dict[str, list[pd.DataFrame]]]:
    """All heads of one model: a key head and the query heads that read it, at a time, on every core."""

    def one(key: int) -> tuple[list[tuple[int, Axes, _Asked]], tuple[HeadIndex, Axes, Beyond] | None]:
        layer, kv_head = (int(i) for i in heads.keys[key])
        key_file = model.keys[layer, kv_head]
        k = read_moments(key_file, settings.groups)
        key_rows = read_rows(key_file, vectors="plasticity" in settings.measures)
        measured, queries = [], []
        for row in np.flatnonzero(heads.kv_row == key):
            query_file = model.queries[layer, int(heads.head[row])]
            q = read_moments(query_file, settings.groups)
            if q[0].M.shape != k[0].M.shape:
                raise VectorsError(
                    f"{query_file}: vectors have {q[0].M.shape[1]} dimensions, but those in {key_file} have "
                    f"{k[0].M.shape[1]}; a query head and its key head must have the same: check --gqa-ratio"
                )
            pairs = [(a, b) for a, b in zip(q, k, strict=True) if a.n[0] or b.n[0]]
            asked = head_measures(query_file, key_rows, pairs, settings.groups, settings.measures)
            measured.append((int(row), measure_batch(pairs, settings.components), asked))
            queries.append((query_file, q))
            advance(1)
        rotation = settings.turn(layer, k[0].M.shape[1])
        if rotation is None:
            return measured, None
        rows = [row for row, _, _ in measured]
        meta = {"layer": heads.layer[rows], "head": heads.head[rows], "kv_head": heads.kv_head[rows]}
        some = HeadIndex.from_meta(meta | {"rope": np.full(len(rows), int(len(rotation.pairs) > 0))})
        units = _turned_units(some, queries, (key_file, k), rotation)
        axes = join_axes([each for _, each, _ in measured])
        return measured, (some, axes, measure_beyond(units, units[0].windows[0], axes))

    with one_thread_each(), ThreadPoolExecutor(cores()) as pool:
        parts = list(pool.map(one, range(len(heads.keys))))
    measured = sorted((each for some, _ in parts for each in some), key=lambda each: each[0])
    joined = join_axes([axes for _, axes, _ in measured])
    frames = _frames(model.name, heads, [asked for _, _, asked in measured])
    return joined, [beyond for _, beyond in parts if beyond is not None], frames


def _frames(model: str, heads: HeadIndex, asked: Sequence[_Asked]) -> dict[str, list[pd.DataFrame]]:
    """Tables of the optional measures, head after head."""
    found: dict[str, list[pd.DataFrame]] = {}
    for row, (window, measured) in enumerate(asked):
        one = HeadIndex.from_meta({name: values[row : row + 1] for name, values in heads.to_meta().items()})
        for name, numbers in measured.items():
            for file, frame in measure_frames(name, model, window, one, numbers).items():
                found.setdefault(file, []).append(frame)
    return found


def _turned_units(
    heads: HeadIndex,
    queries: list[tuple[Path, list[Moments]]],
    key: tuple[Path, list[Moments]],
    rotation: Rotation,
) -> list[Unit]:
    """One unit a group of documents, of one key head and its query heads."""
    files = [path for path, _ in queries] + [key[0]]
    lengths = [document_lengths(path) for path in files]
    if any(each != lengths[-1] for each in lengths):
        raise VectorsError(
            f"{key[0]}: has other documents than the files of its query heads; expected the same"
        )
    width, groups = max(lengths[-1].values()), len(key[1])
    turned = [read_turned(path, groups, width, rotation) for path in files]
    layer = int(heads.layer[0])
    units = []
    for g in range(groups):
        paths = [each.paths[g] for each in turned]
        path_q = replace(paths[0], total=np.concatenate([each.total for each in paths[:-1]]))
        units.append(
            Unit(
                heads=heads,
                windows=(width,),
                q=(Moments.concat([moments[g] for _, moments in queries]),),
                k=(key[1][g],),
                sink_q=Moments.concat([each.sinks[g] for each in turned[:-1]]),
                sink_k=turned[-1].sinks[g],
                path_q=path_q,
                path_k=paths[-1],
                rotations={layer: rotation},
                scales={layer: rotation.dim**-0.5},
                lengths=turned[-1].lengths[g],
            )
        )
    return units


def _unmeasured(model: ModelFolder, heads: HeadIndex, axes: Axes) -> list[str]:
    """A line for each head without a correlation on PC0: what was found in its files."""
    lines = []
    for row in np.flatnonzero(np.isnan(axes.r_q[:, 0]) | np.isnan(axes.r_k[:, 0])):
        layer, head, kv_head = int(heads.layer[row]), int(heads.head[row]), int(heads.kv_head[row])
        files = model.queries[layer, head], model.keys[layer, kv_head]
        found = []
        for file, n, bad in zip(
            files, (axes.n_q[row], axes.n_k[row]), (axes.bad_q[row], axes.bad_k[row]), strict=True
        ):
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
