"""Tables of heads that have the published SmolLM3-3B numbers.

The published figures give, per checkpoint, the mean of r_q, r_k and explained variance, the number of heads of each
class, and the mean of r_q and r_k in ten depth bins. This builds 300 heads (the published sample) that have the
published classes together with the published means, or together with the published cells: how many heads of each
class stand in each bin is a small integer programme; within a bin all heads then move by one common fraction of
their class's range until the bin's mean is right. Not with both at once: the cells of r_k, weighted by their
heads, lie up to 0.011 from the means read off the line plot.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import Bounds, LinearConstraint, milp

from qkscope.results import Results
from qkscope.results.tables import QK_COLUMNS, from_qk
from qkscope.results.taxonomy import CLASSES
from qkscope.study.timeline import timeline_from_names
from qkscope.sums.head_index import depth, depth_bin, sample_heads

LAYERS, Q_HEADS, COUNT = 36, 16, 300
PUBLISHED: dict[str, Any] = json.loads((files("qkscope") / "published" / "smollm3.json").read_text("utf-8"))
# kind of head: its class, the range of r_q, the range of r_k. Keys may follow position backwards in any class.
KINDS = [
    ("position-dominated", (0.705, 0.995), (0.705, 0.995)),
    ("position-dominated", (0.705, 0.995), (-0.995, -0.705)),
    ("Q-positional", (0.705, 0.995), (-0.295, 0.295)),
    ("K-positional", (0.0, 0.295), (0.705, 0.995)),
    ("content-focused", (0.0, 0.295), (-0.295, 0.295)),
    ("mixed", (0.305, 0.695), (-0.995, 0.995)),
    ("mixed", (0.705, 0.995), (0.305, 0.695)),
    ("mixed", (0.705, 0.995), (-0.695, -0.305)),
]


def _targets(i: int, value: str, sizes: np.ndarray, exact: str) -> np.ndarray:
    """Mean of each bin: the printed cells, all moved alike where the mean over heads is to be the published one."""
    printed = np.array(PUBLISHED[f"depth_heatmap_{value}"][i])
    if exact == "cells":
        return printed
    return printed + PUBLISHED[f"mean_{value}"][i] - (printed * sizes).sum() / sizes.sum()


def _kinds_per_bin(sizes: np.ndarray, q: np.ndarray, k: np.ndarray, counts: dict[str, int]) -> np.ndarray:
    """(bins, kinds) head counts: right per bin and per class, with both means of each bin within reach."""
    bins, kinds = len(sizes), len(KINDS)

    def row(pairs: list[tuple[int, int, float]]) -> np.ndarray:
        line = np.zeros((bins, kinds))
        for b, c, value in pairs:
            line[b, c] = value
        return line.ravel()

    rules = []
    for b in range(bins):
        rules.append((row([(b, c, 1) for c in range(kinds)]), sizes[b], sizes[b]))
        for column, target in ((1, q[b]), (2, k[b])):
            low = row([(b, c, KINDS[c][column][0]) for c in range(kinds)])
            high = row([(b, c, KINDS[c][column][1]) for c in range(kinds)])
            rules += [(low, -np.inf, target * sizes[b]), (high, target * sizes[b], np.inf)]
    for name in CLASSES:
        members = row([(b, c, 1) for b in range(bins) for c in range(kinds) if KINDS[c][0] == name])
        rules.append((members, counts[name], counts[name]))
    matrix, low, high = (np.array(part) for part in zip(*rules, strict=True))
    solved = milp(
        np.zeros(bins * kinds),
        constraints=LinearConstraint(matrix, low, high),
        integrality=np.ones(bins * kinds),
        bounds=Bounds(0, np.inf),
    )
    assert solved.success
    return np.rint(solved.x).astype(int).reshape(bins, kinds)


def _values(kinds: list[int], column: int, mean: float) -> np.ndarray:
    """One value per head inside its kind's range, with exactly this mean."""
    low = np.array([KINDS[c][column][0] for c in kinds])
    high = np.array([KINDS[c][column][1] for c in kinds])
    return low + (high - low) * (mean - low.mean()) / (high - low).mean()


def _checkpoint(i: int, exact: str) -> pd.DataFrame:
    pairs = sample_heads(range(LAYERS), Q_HEADS, COUNT, 0)
    layer, head = (np.array(part) for part in zip(*pairs, strict=True))
    bins = depth_bin(depth(layer, LAYERS))
    sizes = np.bincount(bins, minlength=10)
    q, k = _targets(i, "r_q", sizes, exact), _targets(i, "r_k", sizes, exact)
    counts = {name: PUBLISHED["taxonomy_head_counts"][name][i] for name in CLASSES}
    per_bin = _kinds_per_bin(sizes, q, k, counts)
    r_q, r_k = np.zeros(COUNT), np.zeros(COUNT)
    for b in range(10):
        kinds = np.repeat(np.arange(len(KINDS)), per_bin[b]).tolist()
        rows = np.flatnonzero(bins == b)
        r_q[rows], r_k[rows] = _values(kinds, 1, q[b]), _values(kinds, 2, k[b])
    table = pd.DataFrame({"model": PUBLISHED["checkpoints"][i], "layer": layer, "head": head, "pc": 0})
    swing = np.where(np.arange(COUNT) % 2 == 0, 0.05, -0.05)
    variance = PUBLISHED["mean_explained_variance"][i] + swing
    # SmolLM3 leaves every fourth layer unrotated.
    rope = (layer % 4 != 3).astype(float)
    return table.assign(kv_head=head // 4, r_q=r_q, r_k=r_k, explained_variance=variance, rope=rope)


@cache
def published_qk(exact: str = "means") -> pd.DataFrame:
    """qk.csv of the ten published checkpoints, PC0 only, in an order that is not the one of training.

    `exact` says which published numbers it has besides the class counts: "means" or "cells".
    """
    tables = [_checkpoint(i, exact) for i in reversed(range(len(PUBLISHED["checkpoints"])))]
    return pd.concat(tables, ignore_index=True).reindex(columns=list(QK_COLUMNS))


def published_results(exact: str = "means") -> Results:
    """The same as loaded results."""
    qk = published_qk(exact)
    timeline = timeline_from_names(list(dict.fromkeys(qk["model"])), "SmolLM3-3B")
    return Results(Path("results/smollm3_training_progress"), timeline, from_qk(qk))
