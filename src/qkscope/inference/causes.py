"""A change between neighbouring checkpoints -> the parts of it that weights, rotation settings and window account for.

All three may change at once. A cell is the same heads measured with some of the three as the later checkpoint has
them and the others as the earlier one has them. Going from one checkpoint to the other by exchanging one factor after
the other, each adds something; what it adds depends on the order. Its part is the average over all orders whose cells
were measured: over the full table of 2 x 2 x 2 cells, Shapley's value. Parts sum to the change exactly, whatever the
orders. Errors are the jackknife's over groups of documents, which all cells share.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.causes_table import AXES, CAUSES_COLUMNS, FACTORS, WEIGHTS, WINDOW
from qkscope.inference.levels import ONE_HEAD
from qkscope.inference.transitions import class_probabilities
from qkscope.measures.jackknife import jackknife
from qkscope.taxonomy import CLASSES, Thresholds, classify

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
Cell = frozenset[str]
"""The factors that are the later checkpoint's."""
Heads = Mapping[str, Array]
"""A measure -> its values (1 + G, H): of all documents, then without each group of them."""

# Measures whose means are taken apart beside those of r; whichever of them were measured.
ANATOMY = (
    *("eta_q", "eta_k", "R_q", "R_k"),
    *("share_position", "share_key", "share_match", "share_query_position"),
)
MEAN_R_Q, MEAN_R_K, MEAN_ABS_R_K = "mean r_q", "mean r_k", "mean |r_k|"
# Of the rotation model, what does not shrink with the window by construction.
DRIFT = ("slope_q", "slope_k", "bias_logits")


@dataclass(frozen=True)
class Step:
    """Two neighbours and the cells between them; `frozenset()` is the earlier, all of `changed` the later one.

    same_axis (H,) is 1 where a head's first axis stayed, 0 where it is another, NaN where that is not known.
    Cells of the two checkpoints' weights share their documents only if `same_text`.
    """

    before: str
    after: str
    changed: tuple[str, ...]
    cells: Mapping[Cell, Heads]
    same_axis: Array | None = None
    same_text: bool = True


def share_of(kind: str) -> str:
    """The name of a class's share."""
    return f"share of {kind} heads"


def average(values: Array) -> Array:
    """(1 + G, H) -> (1 + G,): mean over the heads that a row has."""
    here = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(here, values, 0.0).sum(axis=1) / here.sum(axis=1))


def shapley(measured: Collection[Cell], players: Sequence[Cell]) -> dict[Cell, dict[Cell, float]] | None:
    """Each player's part as weights of the cells: over all orders that lead through measured cells; None if none does.

    A player is a set of factors that are exchanged together.
    """
    walks = []
    for order in permutations(players):
        path = [frozenset().union(*order[:n]) for n in range(len(order) + 1)]
        if all(cell in measured for cell in path):
            walks.append((order, path))
    if not walks:
        return None
    found: dict[Cell, dict[Cell, float]] = {player: {} for player in players}
    for order, path in walks:
        for player, (start, stop) in zip(order, pairwise(path), strict=True):
            part = found[player]
            part[stop] = part.get(stop, 0.0) + 1.0 / len(walks)
            part[start] = part.get(start, 0.0) - 1.0 / len(walks)
    return found


def attribute(
    steps: Sequence[Step], limits: Thresholds | None = None, numbers: Collection[str] | None = None
) -> pd.DataFrame:
    """causes.csv: a row for every step and number (of `numbers`, if given), with CAUSES_COLUMNS.

    A factor that does not change has no part: exactly 0. One whose part cannot be told from another's is NaN.
    """
    import pandas as pd

    rows = [row for step in steps for row in _rows(step, limits or Thresholds(), numbers)]
    return pd.DataFrame(rows, columns=list(CAUSES_COLUMNS))


def _rows(step: Step, limits: Thresholds, wanted: Collection[str] | None) -> list[dict[str, Any]]:
    weights = _weights(step)
    numbers = {cell: _numbers(heads, limits) for cell, heads in step.cells.items()}
    unseen = {cell: _unseen(heads, limits, wanted) for cell, heads in step.cells.items()}
    rows = []
    for name in numbers[frozenset()]:
        values = {cell: found[name] for cell, found in numbers.items()}
        kept = np.logical_and.reduce([np.isfinite(each[0]) for each in values.values()])
        if kept.any() and (wanted is None or name in wanted):
            hidden = {cell: found.get(name, 0.0) for cell, found in unseen.items()}
            row = _row(step, weights, {cell: each[:, kept] for cell, each in values.items()}, kept, hidden)
            rows.append({"from_model": step.before, "to_model": step.after, "number": name} | row)
    return rows


def _weights(step: Step) -> dict[str, dict[Cell, float]]:
    """What the cells weigh in the total and in each part that can be told."""
    alone = [frozenset({factor}) for factor in step.changed]
    last = frozenset(step.changed)
    found = shapley(step.cells, alone)
    if found is None:  # weights and rotation changed together and nothing tells them apart
        model = last - {WINDOW}
        found = shapley(step.cells, [model, frozenset({WINDOW})] if WINDOW in last else [model]) or {}
    named = {next(iter(player)): part for player, part in found.items() if len(player) == 1}
    return {"total": {last: 1.0, frozenset(): -1.0}} | named


def _row(
    step: Step,
    weights: Mapping[str, Mapping[Cell, float]],
    values: Mapping[Cell, Array],
    kept: NDArray[np.bool_],
    unseen: Mapping[Cell, float],
) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in ("total", *FACTORS):
        if name != "total" and name not in step.changed:
            row |= {name: 0.0, f"{name}_se": 0.0}
        else:
            row |= _part(name, weights.get(name), values, step.same_text, unseen)
    groups = min(len(each) for each in values.values()) - 1
    row |= {"same_text": int(step.same_text), "heads": int(kept.sum()), "groups": groups}
    stayed = np.full(len(kept), np.nan) if step.same_axis is None else step.same_axis
    for name, flag in zip(AXES, (1.0, 0.0), strict=True):
        known = WEIGHTS in weights and bool(np.isfinite(stayed[kept]).all())
        theirs = {cell: np.where(stayed[kept] == flag, each, 0.0) for cell, each in values.items()}
        row |= _part(name, weights[WEIGHTS] if known else None, theirs, step.same_text, {})
    return row


def _part(
    name: str,
    weights: Mapping[Cell, float] | None,
    values: Mapping[Cell, Array],
    same_text: bool,
    unseen: Mapping[Cell, float],
) -> dict[str, float]:
    """A weighted sum of cells over the heads' mean, and its error."""
    if weights is None:
        return {name: math.nan, f"{name}_se": math.nan}
    means = {cell: average(values[cell]) for cell in weights}
    value = float(sum(weight * means[cell][0] for cell, weight in weights.items()))
    hidden = sum(weight**2 * unseen.get(cell, 0.0) for cell, weight in weights.items())
    # Without common documents nothing cancels between the two checkpoints: the errors of their cells add.
    sets = [list(weights)]
    if not same_text:
        sets = [[cell for cell in weights if (WEIGHTS in cell) == later] for later in (False, True)]
    variance = sum(_variance({cell: means[cell] for cell in cells}, weights) for cells in sets if cells)
    return {name: value, f"{name}_se": math.sqrt(variance + hidden)}


def _variance(means: Mapping[Cell, Array], weights: Mapping[Cell, float]) -> float:
    lengths = {len(each) for each in means.values()}
    if len(lengths) > 1:
        return math.nan
    return float(jackknife(np.sum([weights[cell] * each[1:] for cell, each in means.items()], axis=0))) ** 2


def _numbers(heads: Heads, limits: Thresholds) -> dict[str, Array]:
    """Every number as values of its heads (1 + G, H), whose mean it is; a share's are 0 and 1."""
    r_q, r_k = heads["r_q"], heads["r_k"]
    found = {MEAN_R_Q: r_q, MEAN_R_K: r_k, MEAN_ABS_R_K: np.abs(r_k)}
    found |= {f"mean {name}": heads[name] for name in (*ANATOMY, *DRIFT) if name in heads}
    kinds = classify(r_q, r_k, limits)
    known = np.isfinite(r_q) & np.isfinite(r_k)
    return found | {share_of(kind): np.where(known, kinds == kind, np.nan) for kind in CLASSES}


def _unseen(heads: Heads, limits: Thresholds, wanted: Collection[str] | None) -> dict[str, float]:
    """The variance of each share that leaving documents out does not show: few heads sit on the edge of a class."""
    if wanted is not None and not any(share_of(kind) in wanted for kind in CLASSES):
        return {}
    (r_q, se_q), (r_k, se_k) = ((heads[name][0], jackknife(heads[name][1:])) for name in ("r_q", "r_k"))
    chances = class_probabilities(r_q, r_k, se_q, se_k, limits)
    variance = np.nansum(chances * (1.0 - chances), axis=1)
    heads_squared = max(chances.shape[1], 1) ** 2
    return {
        share_of(kind): max(ONE_HEAD, float(each)) / heads_squared
        for kind, each in zip(CLASSES, variance, strict=True)
    }
