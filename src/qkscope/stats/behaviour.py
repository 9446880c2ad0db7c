"""How well measures of geometry predict what heads do: rank correlations over the heads of one checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.jackknife import jackknife
from qkscope.results.aggregate import Population
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
    """Of each row; NaN where one is constant. (S, H) -> (S,)"""
    x, y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    size = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    return np.asarray((x * y).sum(axis=1) / np.where(size > 0, size, np.nan))
