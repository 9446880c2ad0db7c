"""Studies with a known truth, as tables: what a run would have written had its heads been so."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from frames import results_of
from scipy.signal import lfilter

from qkscope.results import Results
from qkscope.study.timeline import Timeline, TimelineCheckpoint
from qkscope.sums import FactSum, MomentSum, PathSum
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.moments import Accumulator, Moments
from qkscope.sums.path import SINK, Bins, bin_edges
from qkscope.sums.path import Path as BinSums
from qkscope.sums.rotation import Rotation
from qkscope.sums.unit import Unit, rings

LAYERS, PER_LAYER, GROUPS = 12, 10, 8


def truth(seed: int, checkpoints: int, heads: int = LAYERS * PER_LAYER) -> tuple[np.ndarray, np.ndarray]:
    """(checkpoints, heads) r_q and r_k that never change: spread over all classes and both signs."""
    rng = np.random.default_rng(seed)
    r_q, r_k = rng.uniform(0.1, 0.9, heads), rng.uniform(-0.9, 0.9, heads)
    return np.tile(r_q, (checkpoints, 1)), np.tile(r_k, (checkpoints, 1))


def measured(
    names: Sequence[str],
    r_q: np.ndarray,
    r_k: np.ndarray,
    *,
    seed: int = 0,
    noise: float = 0.03,
    shared: float = 0.3,
    groups: int = GROUPS,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """qk (PC0) and leave-one-out tables of heads with true values (checkpoints, heads), measured with noise.

    Each group of documents is off by its own error: a part common to all heads (`shared` of the standard
    deviation) and a part of each head's own. The full measurement averages the groups, so its standard error is
    `noise`; leaving one out averages the others.
    """
    rng = np.random.default_rng(seed)
    tables, left_out = [], []
    count = r_q.shape[1]
    layer, head = np.divmod(np.arange(count), PER_LAYER)
    for name, q, k in zip(names, r_q, r_k, strict=True):
        values = [_with_errors(rng, true, noise, shared, groups) for true in (q, k)]
        full = [v.mean(axis=0) for v in values]
        loo = [(v.sum(axis=0) - v) / (groups - 1) for v in values]
        se = [np.sqrt((groups - 1) / groups * ((o - o.mean(axis=0)) ** 2).sum(axis=0)) for o in loo]
        common = {"model": name, "layer": layer, "head": head}
        tables.append(
            pd.DataFrame(
                common
                | {"kv_head": head // 2, "pc": 0, "r_q": full[0], "r_k": full[1], "explained_variance": 0.3}
                | {"n_q": 1000, "n_k": 1000, "r_q_se": se[0], "r_k_se": se[1]}
                | {"r_q_null": 0.05, "r_k_null": 0.05, "rope": np.where(layer % 4 == 3, 0.0, 1.0)}
            )
        )
        left_out.append(
            pd.DataFrame(
                {"model": name, "layer": np.tile(layer, groups), "head": np.tile(head, groups)}
                | {"group": np.repeat(np.arange(groups), count)}
                | {"r_q": loo[0].ravel(), "r_k": loo[1].ravel(), "explained_variance": 0.3}
            )
        )
    return pd.concat(tables, ignore_index=True), pd.concat(left_out, ignore_index=True)


def _with_errors(
    rng: np.random.Generator, true: np.ndarray, noise: float, shared: float, groups: int
) -> np.ndarray:
    """(groups, heads): values of each group of documents alone."""
    scale = noise * np.sqrt(groups)
    together = rng.normal(0.0, scale * shared, (groups, 1))
    apart = rng.normal(0.0, scale * np.sqrt(1 - shared**2), (groups, len(true)))
    return true + together + apart


def results(
    qk: pd.DataFrame,
    loo: pd.DataFrame | None,
    *,
    windows: Sequence[int | None] | None = None,
    matched: tuple[pd.DataFrame, pd.DataFrame] | None = None,
    kind: str = "training",
    labels: Sequence[str] | None = None,
    phases: Sequence[str] | None = None,
    **more: Any,
) -> Results:
    """A Results as `load_results` gives it; `more` goes to `results_of`."""
    names = list(dict.fromkeys(qk["model"]))
    windows = windows or [None] * len(names)
    checkpoints = tuple(
        TimelineCheckpoint(name, label, phase, window=window, step=i)
        for i, (name, label, phase, window) in enumerate(
            zip(names, labels or names, phases or ["Stage 1"] * len(names), windows, strict=True)
        )
    )
    smallest = min((w for w in windows if w is not None), default=None)
    timeline = Timeline("simulated", "A simulated study", checkpoints, kind=kind, matched_window=smallest)  # type: ignore[arg-type]
    same, same_loo = matched or (None, None)
    layers = 1 + int(qk["layer"].max())
    fields: dict[str, Any] = {"study": {"groups": GROUPS}, "layers": layers} | more
    return results_of(qk, timeline, loo, matched=same, left_out_matched=same_loo, **fields)


PARTS = ("share_position", "share_query_position", "share_key", "share_match")


def anatomy(
    names: Sequence[str],
    values: Mapping[str, np.ndarray],
    rope: np.ndarray,
    *,
    seed: int = 0,
    noise: float = 0.01,
    groups: int = GROUPS,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables of further measures, and without each group: true values (checkpoints, heads), measured with noise."""
    rng = np.random.default_rng(seed)
    count = len(rope)
    layer, head = np.divmod(np.arange(count), PER_LAYER)
    tables, left_out = [], []
    for i, name in enumerate(names):
        each = {m: _with_errors(rng, true[i], noise, 0.3, groups) for m, true in values.items()}
        full = {m: v.mean(axis=0) for m, v in each.items()}
        loo = {m: (v.sum(axis=0) - v) / (groups - 1) for m, v in each.items()}
        heads = {"model": name, "layer": layer, "head": head, "kv_head": head // 2, "rope": rope}
        tables.append(pd.DataFrame(heads | full))
        heads = {"model": name, "layer": np.tile(layer, groups), "head": np.tile(head, groups)}
        heads |= {"group": np.repeat(np.arange(groups), count)}
        left_out.append(pd.DataFrame(heads | {m: v.ravel() for m, v in loo.items()}))
    return pd.concat(tables, ignore_index=True), pd.concat(left_out, ignore_index=True)


def ar1(rng: np.random.Generator, shape: tuple[int, ...], phi: float) -> np.ndarray:
    """Stationary autocorrelated noise of unit variance along the last axis."""
    start = rng.normal(size=(*shape[:-1], 1))
    steps = rng.normal(size=(*shape[:-1], shape[-1] - 1)) * np.sqrt(1 - phi**2)
    driven = np.concatenate([start, steps], axis=-1)
    return np.asarray(lfilter([1.0], [1.0, -phi], driven, axis=-1))


def units(
    heads: int,
    vectors: Callable[[int, str], np.ndarray],
    *,
    windows: Sequence[int],
    groups: int = GROUPS,
    documents: int = 2,
) -> list[Unit]:
    """One unit per group, through the real sums; `vectors(document, kind)` is (heads, tokens, dim)."""
    index = HeadIndex.of([divmod(i, PER_LAYER) for i in range(heads)], 1)
    found = []
    for group in range(groups):
        numbers = range(group * documents, (group + 1) * documents)
        found.append(unit_of(index, windows, [(vectors(i, "q"), vectors(i, "k")) for i in numbers]))
    return found


def unit_of(
    heads: HeadIndex,
    windows: Sequence[int],
    documents: Sequence[tuple[np.ndarray, np.ndarray]],
    rotations: Mapping[int, Rotation | None] | None = None,
    scale: float = 1.0,
) -> Unit:
    """The unit of documents given as (q, k) vectors, each (heads, tokens, dim), as attention sees them.

    Without `rotations` every layer's is the identity.
    """
    layers = np.unique(heads.layer).tolist()
    dim = documents[0][0].shape[2]
    rotations = rotations or dict.fromkeys(layers, Rotation.none(dim))
    lengths = [min(q.shape[1], windows[-1]) for q, _ in documents]
    parts = {}
    for kind, row_layers in enumerate((heads.layer, heads.keys[:, 0])):
        turns = [rotations[int(layer)] or Rotation.none(dim) for layer in row_layers]
        parts[kind] = _sums([pair[kind] for pair in documents], windows, turns)
    (q, sink_q, path_q), (k, sink_k, path_k) = parts[0], parts[1]
    ordered = tuple(sorted(lengths, reverse=True))
    return Unit.of(
        FactSum(heads, tuple(windows), ordered, dict(rotations), dict.fromkeys(layers, scale)),
        MomentSum(tuple(windows), q, k, sink_q, sink_k),
        PathSum(path_q, path_k),
    )


def stored(unit: Unit) -> Unit:
    """The unit as it comes back from its files."""
    arrays, meta = unit.facts.to_arrays()
    facts = FactSum.from_arrays(arrays, json.loads(json.dumps(meta)))
    others = [each for each in unit.sums.values() if each.name != "facts"]
    return Unit.of(facts, *(type(each).from_arrays(*each.to_arrays(), facts) for each in others))


def _sums(
    vectors: Sequence[np.ndarray], windows: Sequence[int], rotations: Sequence[Rotation]
) -> tuple[tuple[Moments, ...], Moments, BinSums]:
    """Rings, sink and path of one kind: vectors (heads, tokens, dim) a document, a rotation a head."""
    edges = bin_edges(windows)
    sums, sink = [Accumulator() for _ in windows], Accumulator()
    n, total = np.zeros(len(edges) - 1, dtype=np.int64), 0.0
    for x in vectors:
        x = x[:, : windows[-1]]
        t = np.arange(x.shape[1])
        for ring, (start, stop) in enumerate(rings(len(t), windows)):
            sums[ring].update(x[:, start:stop], t[start:stop])
        sink.update(x[:, :SINK], t[:SINK])
        bins = Bins(edges, t)
        u = np.stack([turn.derotate(each, t) for turn, each in zip(rotations, x, strict=True)])
        n, total = n + bins.n, total + bins.sums(u)
    none = Moments.empty(len(rotations), x.shape[2])
    reached = len(rings(max(x.shape[1] for x in vectors), windows))
    moments = [each.moments() if i < reached else none for i, each in enumerate(sums)]
    return tuple(moments), sink.moments(), BinSums(edges, n, np.asarray(total))
