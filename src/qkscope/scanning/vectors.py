"""Vectors on disk -> the same tables that a study has."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkscope.errors import VectorsError
from qkscope.heads import HeadIndex
from qkscope.measures.pca import Axes, cores, join_axes, measure_batch, one_thread_each
from qkscope.progress import progress
from qkscope.store import write_csv
from qkscope.table import heads_table, qk_table
from qkscope.taxonomy import Thresholds, transitions
from qkscope.timeline import timeline_from_names
from qkscope.vectors.files import read_moments
from qkscope.vectors.layout import ModelFolder, find_models, infer_ratio, require_keys

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Analysis:
    """Tables of all models under one root, and what could not be measured (`problems`, one line each)."""

    qk: pd.DataFrame
    heads: pd.DataFrame
    transitions: pd.DataFrame
    problems: list[str] = field(default_factory=list)

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
    groups: int = 8,
    components: int = 10,
    thresholds: Thresholds | None = None,
) -> Analysis:
    """Measure every model under `root`; write qk.csv, heads.csv and transitions.csv to `out` if given."""
    import pandas as pd

    models = find_models(Path(root))
    ratios = [gqa_ratio or infer_ratio(model) for model in models]
    for model, ratio in zip(models, ratios, strict=True):
        require_keys(model, ratio)
    settings = _Settings(groups, components)
    tables, problems = [], []
    with progress("Analysing vectors", sum(len(model.queries) for model in models), unit="heads") as bar:
        for model, ratio in zip(models, ratios, strict=True):
            heads = HeadIndex.of(model.queries, ratio)
            axes = _measure_model(model, heads, settings, bar.advance)
            tables.append(qk_table(model.name, heads, axes))
            problems += _unmeasured(model, heads, axes)
            bar.done(f"{model.name}: {len(heads)} heads")
    qk = pd.concat(tables, ignore_index=True)
    order = timeline_from_names([model.name for model in models]).models
    by_head = heads_table(qk, thresholds=thresholds)
    result = Analysis(qk, by_head, transitions(by_head, order), problems)
    if out is not None:
        save_tables(result, Path(out))
    return result


def save_tables(result: Analysis, out: Path) -> None:
    write_csv(out / "qk.csv", result.qk)
    write_csv(out / "heads.csv", result.heads)
    write_csv(out / "transitions.csv", result.transitions)


@dataclass(frozen=True)
class _Settings:
    groups: int
    components: int


def _measure_model(model: ModelFolder, heads: HeadIndex, settings: _Settings, advance: Any) -> Axes:
    """All heads of one model: a key head and the query heads that read it, at a time, on every core."""

    def one(key: int) -> list[tuple[int, Axes]]:
        layer, kv_head = (int(i) for i in heads.keys[key])
        key_file = model.keys[layer, kv_head]
        k = read_moments(key_file, settings.groups)
        measured = []
        for row in np.flatnonzero(heads.kv_row == key):
            query_file = model.queries[layer, int(heads.head[row])]
            q = read_moments(query_file, settings.groups)
            if q[0].M.shape != k[0].M.shape:
                raise VectorsError(
                    f"{query_file}: vectors of {q[0].M.shape[1]} numbers, but {key_file} has {k[0].M.shape[1]}; "
                    "a query head and its key head have the same: is --gqa-ratio right?"
                )
            pairs = [(a, b) for a, b in zip(q, k, strict=True) if a.n[0] or b.n[0]]
            measured.append((int(row), measure_batch(pairs, settings.components)))
            advance(1)
        return measured

    with one_thread_each(), ThreadPoolExecutor(cores()) as pool:
        measured = dict(pair for pairs in pool.map(one, range(len(heads.keys))) for pair in pairs)
    return join_axes([measured[row] for row in range(len(heads))])


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
                    f"{file}: {bad} of {n} vectors are NaN or infinite; write them again or leave them out"
                )
            elif n < 2:
                found.append(f"{file}: {n} row; at least two are needed")
        found = found or [
            f"{files[0]}, {files[1]}: positions, or vectors along PC0, are all equal; expected them to vary"
        ]
        lines.append(f"head {head} of layer {layer} of {model.name} is unmeasured: {'; '.join(found)}")
    return lines
