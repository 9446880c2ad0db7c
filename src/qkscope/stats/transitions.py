"""Transitions: heads that change class or sign between checkpoints, and how many would do so by noise alone.

A head near a threshold changes class whenever it is measured anew. Its r_q and r_k are taken as normal with
their standard errors, around the value that fits both checkpoints if nothing had changed; the chance that two
such measurements fall into different classes, summed over heads, is what noise alone would move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from qkscope.measures.pca import FAINT
from qkscope.results.aggregate import error, measured, ordered
from qkscope.results.taxonomy import Thresholds, classify
from qkscope.stats.levels import MOST, REACH, normal_cdf

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

NOISE_COLUMNS = (
    "from_model",
    "to_model",
    "changed",
    "expected_by_noise",
    "sign_changes",
    "sign_changes_expected",
)


@dataclass(frozen=True)
class Pair:
    """Two checkpoints' values of the heads measured in both, (2, H) each: r_q, r_k and their standard errors.

    same_axis (H,) is 1 where the later first axis is the earlier one, 0 where another axis became the first, NaN
    where that is not known. Below `low`, |r_k| is too small for its sign to mean something.
    """

    from_model: str
    to_model: str
    r_q: Array
    r_k: Array
    se_q: Array
    se_k: Array
    same_axis: Array
    low: float = Thresholds().low

    def classes(self, thresholds: Thresholds | None) -> NDArray[Any]:
        """(2, H) names."""
        return classify(self.r_q, self.r_k, thresholds)

    @property
    def turned(self) -> NDArray[np.bool_]:
        """(H,): r_k changed its sign along one axis, from clearly one to clearly the other."""
        clear = (np.abs(self.r_k) > self.low).all(axis=0)
        return np.asarray(clear & (self.r_k[0] * self.r_k[1] < 0) & (self.same_axis != 0))

    @property
    def judged(self) -> NDArray[np.bool_]:
        """(H,): heads with standard errors in both checkpoints; those whose axis is lost without some documents lack
        them."""
        return np.asarray(np.isfinite(self.se_q).all(axis=0) & np.isfinite(self.se_k).all(axis=0))

    @property
    def has_errors(self) -> bool:
        """Whether most heads have their errors, so that changes can be compared with noise."""
        return bool(self.judged.sum() > MOST * len(self.judged))


def pairs(data: xr.Dataset, order: Sequence[str], low: float = Thresholds().low) -> list[Pair]:
    """The heads measured in both, for each two consecutive checkpoints of `order`."""
    data = ordered(data, order)
    names, known = data["checkpoint"].to_numpy().tolist(), measured(data).to_numpy()
    r_q, r_k = (data[name].isel(sample=0).to_numpy() for name in ("r_q", "r_k"))
    se_q, se_k = (error(data, name).to_numpy() for name in ("r_q", "r_k"))
    same = data["same_axis"].to_numpy() if "same_axis" in data else np.full_like(r_q, np.nan)
    found = []
    for i, j in pairwise(range(len(names))):
        here = known[i] & known[j]
        q, k, error_q, error_k = (each[[i, j]][:, here] for each in (r_q, r_k, se_q, se_k))
        found.append(Pair(names[i], names[j], q, k, error_q, error_k, same[j, here], low))
    return found


def class_probabilities(r_q: Array, r_k: Array, se_q: Array, se_k: Array, limit: Thresholds) -> Array:
    """The chance of each class when a head with these values is measured, (len(CLASSES), ...)."""
    q_high = 1.0 - _below(limit.high, r_q, se_q)
    q_low = _below(limit.low, r_q, se_q)
    k_high = 1.0 - _below(limit.high, r_k, se_k) + _below(-limit.high, r_k, se_k)
    k_low = _below(limit.low, r_k, se_k) - _below(-limit.low, r_k, se_k)
    four = [q_high * k_high, q_high * k_low, q_low * k_high, q_low * k_low]
    return np.stack([*four, 1.0 - sum(four)])


def _below(limit: float, mean: Array, se: Array) -> Array:
    """P(x < limit) for x normal; a step where there is no noise; NaN without a standard error."""
    with np.errstate(divide="ignore", invalid="ignore"):
        z = (limit - mean) / se
    return normal_cdf(np.where(np.isnan(z) & (se == 0.0), -np.inf, z))


def unchanged(values: Array, se: Array) -> Array:
    """(2, H) -> (H,): the value that fits both measurements if the head had not changed, near the first."""
    weight = np.where(se.sum(axis=0) > 0, se[0] ** 2 / np.maximum((se**2).sum(axis=0), 1e-300), 0.0)
    return np.asarray(values[0] + np.clip((values[1] - values[0]) * weight, -REACH * se[0], REACH * se[0]))


def noise_transitions(p: Pair, thresholds: Thresholds | None = None) -> Array:
    """(classes, classes, H): the chance that noise alone shows a head in class a first and in class b then."""
    limit = thresholds or Thresholds()
    r_q, r_k = unchanged(p.r_q, p.se_q), unchanged(p.r_k, p.se_k)
    first = class_probabilities(r_q, r_k, p.se_q[0], p.se_k[0], limit)
    then = class_probabilities(r_q, r_k, p.se_q[1], p.se_k[1], limit)
    return np.asarray(first[:, None] * then[None, :])


def turn_chances(p: Pair) -> Array:
    """(H,): the chance that noise alone shows r_k beyond `low` with different signs, along one axis.

    The axis is turned so that r_q is not negative, or r_k where r_q is below FAINT = e. So r_k comes out negative with
    P(q > e, k < -low) + P(q < -e, k > low), and positive with the same signs exchanged or where q is faint. A head that
    did not change and shows both signs was turned one way and the other: turned alike, its two measurements agree.
    """
    alike = np.stack([np.ones_like(p.r_k[0]), np.where(p.r_k[0] * p.r_k[1] < 0, -1.0, 1.0)])
    r_q, r_k = unchanged(alike * p.r_q, p.se_q), unchanged(alike * p.r_k, p.se_k)
    signs = []
    for se_q, se_k in zip(p.se_q, p.se_k, strict=True):
        above, below = 1.0 - _below(p.low, r_k, se_k), _below(-p.low, r_k, se_k)
        with_q, against_q = 1.0 - _below(FAINT, r_q, se_q), _below(-FAINT, r_q, se_q)
        negative = with_q * below + against_q * above
        signs.append((negative, above + below - negative))
    (first_negative, first_positive), (then_negative, then_positive) = signs
    chance = first_negative * then_positive + first_positive * then_negative
    return np.where(p.same_axis == 0, 0.0, chance)


def turned(p: Pair) -> tuple[int, float]:
    """How many heads change the sign of r_k, and how many would by noise alone (NaN where errors are not known)."""
    return int(p.turned.sum()), _expected(p, turn_chances(p))


def moved(p: Pair, thresholds: Thresholds | None = None) -> tuple[int, float]:
    """How many heads change class, and how many would by noise alone (NaN where errors are not known)."""
    before, after = p.classes(thresholds)
    stay = np.einsum("aah->h", noise_transitions(p, thresholds))
    return int((before != after).sum()), _expected(p, 1.0 - stay)


def _expected(p: Pair, chances: Array) -> float:
    """The sum of the chances of the heads that have errors, if most have."""
    return float(chances[p.judged].sum()) if p.has_errors else math.nan


def transition_noise(
    data: xr.Dataset, order: Sequence[str], thresholds: Thresholds | None = None
) -> pd.DataFrame:
    """How many heads change class or sign between consecutive checkpoints, and how many would by noise alone.

    Columns: from_model, to_model, changed, expected_by_noise, sign_changes, sign_changes_expected. Expectations
    are NaN without standard errors. Only heads measured in both checkpoints count.
    """
    found = pairs(data, order, (thresholds or Thresholds()).low)
    rows = [(p.from_model, p.to_model, *moved(p, thresholds), *turned(p)) for p in found]
    return pd.DataFrame(rows, columns=list(NOISE_COLUMNS))
