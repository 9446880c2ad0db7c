"""Transitions: heads that change class or sign between checkpoints, and how many would do so by noise alone.

A head near a threshold changes class whenever it is measured anew. Its r_q and r_k are taken as normal with
their standard errors, around the value that fits both checkpoints if nothing had changed; the chance that two
such measurements fall into different classes, summed over heads, is what noise alone would move.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtr

from qkscope.measures.pca import FAINT
from qkscope.results.aggregate import error, measured, ordered, values
from qkscope.results.taxonomy import CLASSES, Thresholds, classify
from qkscope.stats.levels import MOST, REACH

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """Two checkpoints' values of the heads measured in both, (2, H) each: r_q, r_k and their standard errors.

    same_axis (H,) is 1 where the later first axis is the earlier one, 0 where another axis became the first, NaN
    where that is not known.
    """

    r_q: Array
    r_k: Array
    se_q: Array
    se_k: Array
    same_axis: Array
    limits: Thresholds = field(default_factory=Thresholds)

    @property
    def turned(self) -> NDArray[np.bool_]:
        """(H,): r_k changed its sign along one axis, from clearly one to clearly the other."""
        clear = (np.abs(self.r_k) > self.limits.low).all(axis=0)
        return np.asarray(clear & (self.r_k[0] * self.r_k[1] < 0) & (self.same_axis != 0))


def pairs(data: xr.Dataset, order: Sequence[str], limits: Thresholds) -> Iterator[tuple[str, str, Pair]]:
    """The names of each two consecutive checkpoints of `order`, and the heads measured in both."""
    data = ordered(data, order)
    names, known = data["checkpoint"].to_numpy().tolist(), measured(data).to_numpy()
    r_q, r_k = (data[name].isel(sample=0).to_numpy() for name in ("r_q", "r_k"))
    se_q, se_k = (error(data, name).to_numpy() for name in ("r_q", "r_k"))
    same = data["same_axis"].to_numpy() if "same_axis" in data else np.full_like(r_q, np.nan)
    for i, j in pairwise(range(len(names))):
        here = known[i] & known[j]
        q, k, error_q, error_k = (each[[i, j]][:, here] for each in (r_q, r_k, se_q, se_k))
        yield names[i], names[j], Pair(q, k, error_q, error_k, same[j, here], limits)


def class_probabilities(r_q: Array, r_k: Array, se_q: Array, se_k: Array, limit: Thresholds) -> Array:
    """The chance of each class when a head with these values is measured, (len(CLASSES), ...)."""
    q_high = 1.0 - _below(limit.high, r_q, se_q)
    q_low = _below(limit.low, r_q, se_q)
    k_high = 1.0 - _below(limit.high, r_k, se_k) + _below(-limit.high, r_k, se_k)
    k_low = _below(limit.low, r_k, se_k) - _below(-limit.low, r_k, se_k)
    four = [q_high * k_high, q_high * k_low, q_low * k_high, q_low * k_low]
    return np.stack([*four, 1.0 - sum(four)])


def hidden_variance(data: xr.Dataset, limits: Thresholds) -> dict[str, Array]:
    """By class, per head the variance of its membership that leaving documents out does not show.

    `data` has checkpoints or cells, (checkpoint or cell, head).
    """
    q, k = (values(data, name).isel(sample=0).to_numpy() for name in ("r_q", "r_k"))
    se_q, se_k = (error(data, name).to_numpy() for name in ("r_q", "r_k"))
    chances = class_probabilities(q, k, se_q, se_k, limits)
    return dict(zip(CLASSES, np.nan_to_num(chances * (1.0 - chances)), strict=True))


def _below(limit: float, mean: Array, se: Array) -> Array:
    """P(x < limit) for x normal; a step where there is no noise; NaN without a standard error."""
    with np.errstate(divide="ignore", invalid="ignore"):
        z = (limit - mean) / se
    return np.asarray(ndtr(np.where(np.isnan(z) & (se == 0.0), -np.inf, z)))


def unchanged(values: Array, se: Array) -> Array:
    """(2, H) -> (H,): the value that fits both measurements if the head had not changed, near the first."""
    weight = np.where(se.sum(axis=0) > 0, se[0] ** 2 / np.maximum((se**2).sum(axis=0), 1e-300), 0.0)
    return np.asarray(values[0] + np.clip((values[1] - values[0]) * weight, -REACH * se[0], REACH * se[0]))


def noise_transitions(p: Pair) -> Array:
    """(classes, classes, H): the chance that noise alone shows a head in class a first and in class b then."""
    r_q, r_k = unchanged(p.r_q, p.se_q), unchanged(p.r_k, p.se_k)
    first, then = (class_probabilities(r_q, r_k, p.se_q[i], p.se_k[i], p.limits) for i in (0, 1))
    return first[:, None] * then[None, :]


def turn_chances(p: Pair) -> Array:
    """(H,): the chance that noise alone shows r_k beyond `low` with different signs, along one axis.

    The axis is turned so that r_q is not negative, or r_k where r_q is below FAINT = e. So r_k comes out negative with
    P(q > e, k < -low) + P(q < -e, k > low), and positive with the same signs exchanged or where q is faint. A head that
    did not change and shows both signs was turned one way and the other: turned alike, its two measurements agree.
    """
    low, turn = p.limits.low, np.where(p.r_k[0] * p.r_k[1] < 0, -1.0, 1.0)
    alike = np.stack([np.ones_like(turn), turn])
    r_q, r_k = unchanged(alike * p.r_q, p.se_q), unchanged(alike * p.r_k, p.se_k)
    signs = []
    for se_q, se_k in zip(p.se_q, p.se_k, strict=True):
        above, below = 1.0 - _below(low, r_k, se_k), _below(-low, r_k, se_k)
        with_q, against_q = 1.0 - _below(FAINT, r_q, se_q), _below(-FAINT, r_q, se_q)
        negative = with_q * below + against_q * above
        signs.append((negative, above + below - negative))
    (first_negative, first_positive), (then_negative, then_positive) = signs
    chance = first_negative * then_positive + first_positive * then_negative
    return np.where(p.same_axis == 0, 0.0, chance)


def transition_noise(
    data: xr.Dataset, order: Sequence[str], thresholds: Thresholds | None = None
) -> pd.DataFrame:
    """How many heads change class or sign between consecutive checkpoints, and how many would by noise alone.

    Columns: from_model, to_model, changed, expected_by_noise, sign_changes, sign_changes_expected. Expectations
    sum over the heads that have errors (a head whose axis is lost without some documents has none); NaN unless most
    have. Only heads measured in both checkpoints count.
    """
    rows = []
    for before, after, p in pairs(data, order, thresholds or Thresholds()):
        first, then = classify(p.r_q, p.r_k, p.limits)
        judged = np.isfinite(p.se_q).all(axis=0) & np.isfinite(p.se_k).all(axis=0)
        moves = 1.0 - np.einsum("aah->h", noise_transitions(p))
        most = judged.sum() > MOST * judged.size
        changed, turned = (
            (int(moved.sum()), float(chances[judged].sum()) if most else math.nan)
            for moved, chances in ((first != then, moves), (p.turned, turn_chances(p)))
        )
        rows.append((before, after, *changed, *turned))
    columns = ["from_model", "to_model", "changed", "expected_by_noise"]
    return pd.DataFrame(rows, columns=[*columns, "sign_changes", "sign_changes_expected"])
