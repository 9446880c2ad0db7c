"""What heads do: how well measures of geometry predict it, and when heads acquire their roles.

Predictions are rank correlations over the heads of one checkpoint; a role comes within an interval of checkpoints
that errors over documents allow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.samples import jackknife
from qkscope.results.aggregate import Population
from qkscope.results.roles import Role, standings
from qkscope.stats.evidence import Evidence

Array = NDArray[np.float64]

# Measures of how much a head uses position, and of what it does.
GEOMETRY = ("share_position", "abs_r_q_balanced", "abs_r_q")
BEHAVIOUR = ("attn_by_position", "role_local", "sink_score")
FEWEST = 8  # heads that a rank correlation needs


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rank correlation over heads; samples (1 + G,): over all documents, then without each group."""

    geometry: str
    behaviour: str
    heads: int
    samples: Array

    @property
    def value(self) -> float:
        return float(self.samples[0])

    @property
    def se(self) -> float:
        return float(jackknife(self.samples[1:]))


def rank_correlations(evidence: Evidence, population: Population, i: int) -> list[RankCorrelation]:
    """Every geometry with every behaviour that the study measured, over the heads that have all of them in every
    sample."""
    import pandas as pd

    known = [name for name in (*GEOMETRY, *BEHAVIOUR) if evidence.known(name, population)]
    groups = evidence.groups_at[i]
    scores = {name: evidence.values(name).to_numpy()[i, : 1 + groups] for name in known}
    here = evidence.mask(i, population)
    for values in scores.values():
        here = here & np.isfinite(values).all(axis=0)
    if here.sum() < FEWEST:
        return []
    ranks = {name: pd.DataFrame(values[:, here]).rank(axis=1).to_numpy() for name, values in scores.items()}
    found = [
        RankCorrelation(x, y, int(here.sum()), _pearson(ranks[x], ranks[y]))
        for x in GEOMETRY
        for y in BEHAVIOUR
        if x in ranks and y in ranks
    ]
    # Without rotation, position predicts nothing: a behaviour that is the same in all heads has no ranks.
    return [each for each in found if np.isfinite(each.value)]


def _pearson(x: Array, y: Array) -> Array:
    """Pearson's correlation of each row; NaN where one is constant. (S, H) -> (S,)"""
    x, y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    size = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    return np.asarray((x * y).sum(axis=1) / np.where(size > 0, size, np.nan))


@dataclass(frozen=True)
class Acquired:
    """One head's role: clearly lacking at checkpoint `after`, clearly there from checkpoint `by` on.

    after  None where the head never clearly lacked the role before
    """

    layer: int
    head: int
    after: int | None
    by: int


@dataclass(frozen=True)
class RoleEmergence:
    """A role in one population: how many heads clearly have it at each checkpoint, and who acquired it when.

    counts    by checkpoint
    acquired  heads that have it at the end and kept it since, earliest first
    lost      heads that clearly had it and clearly lack it at the end
    heads     of the population
    """

    role: Role
    counts: tuple[int, ...]
    acquired: tuple[Acquired, ...]
    lost: tuple[tuple[int, int], ...]
    heads: int

    @property
    def first(self) -> tuple[Acquired, ...]:
        """The heads that acquired it in the earliest interval."""
        return tuple(each for each in self.acquired if each.by == self.acquired[0].by)


def role_emergence(evidence: Evidence, role: Role, population: Population) -> RoleEmergence:
    """The role in the heads that every checkpoint has."""
    here = evidence.where(population).to_numpy().all(axis=0)
    here &= np.isfinite(evidence.values(role.variable).to_numpy()[:, 0]).all(axis=0)
    standing = standings(evidence.data, role)[:, here]
    acquired, lost = [], []
    for name, over_training in zip(evidence.heads(here), standing.T, strict=True):
        if over_training[-1] < 0 < over_training.max():
            lost.append(name)
        if found := _acquired(over_training):
            acquired.append(Acquired(*name, *found))
    acquired.sort(key=lambda each: (each.by, each.layer, each.head))
    counts = tuple(int(n) for n in (standing > 0).sum(axis=1))
    return RoleEmergence(role, counts, tuple(acquired), tuple(lost), int(here.sum()))


def _acquired(standing: NDArray[np.int64]) -> tuple[int | None, int] | None:
    """(after, by) of a head that has its role at the end; None if it has not. standing (checkpoints,)

    A checkpoint at which errors are too large to tell neither ends a role nor begins it.
    """
    lacking = np.flatnonzero(standing < 0)
    after = int(lacking[-1]) if len(lacking) else None
    later = [int(i) for i in np.flatnonzero(standing > 0) if after is None or i > after]
    return (after, later[0]) if later else None
