"""What measures share of one sample of a cell: moments, paths and rotations of a block of heads, at its positions.

Every number is computed over all documents (sample 0) and again without each group of them; `jackknife` turns these
left-out samples into a standard error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.anatomy import FIRST_QUERY, QUERIES, Anatomy, Layout, RotatedLayout, anatomy, path_about
from qkscope.measures.distance import BinPairs, mean_waves, queries_beyond
from qkscope.measures.position import Along, Phase, about_mean, bin_phases, phases
from qkscope.measures.waves import Grid, Pairs, as_left_out, sampled_grid, waves, whole_grid
from qkscope.sums.moments import Moments
from qkscope.sums.path import SINK, Path
from qkscope.sums.rotation import Rotation
from qkscope.sums.unit import Unit

Array = NDArray[np.float64]

# Positions at which paths are evaluated, besides the first four: every one in windows up to this length.
GRID_SIZE = 1024


def jackknife(left_out: Array) -> Array:
    """Delete-one-group standard error: sqrt((G-1)/G * sum_g (a_g - mean a)^2) over axis 0 of (G, ...).

    NaN with fewer than two groups, or where a leave-one-out value is missing.
    """
    count = len(left_out)
    if count < 2:
        return np.full(left_out.shape[1:], np.nan)
    spread = ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0)
    return np.asarray(np.sqrt((count - 1) / count * spread))


@dataclass(frozen=True)
class GroupPaths:
    """Queries of a block, or its keys, by group of documents.

    late_mean (G, H, d) over tokens from position 4 on · n (G, B) tokens by bin · means (G, H, B, d) before rotation
    """

    late_mean: Array
    n: NDArray[np.int64]
    means: Pairs

    @classmethod
    def of(cls, rotation: Rotation, late: Sequence[Moments], paths: Sequence[Path]) -> GroupPaths:
        late_mean, n = np.stack([sums.mean_x for sums in late]), np.stack([path.n for path in paths])
        return cls(late_mean, n, Pairs.of(rotation, np.stack([path.filled.mean for path in paths])))


@dataclass(frozen=True)
class Kind:
    """Queries of a block, or its keys, in one sample: moments of all tokens, of those from position 4 on, and the path.

    `groups` are all groups of documents; `taken` (G,) says which of them are in this sample.
    """

    every: Moments
    late: Moments
    path: Path
    groups: GroupPaths
    taken: NDArray[np.bool_]

    @property
    def n(self) -> NDArray[np.int64]:
        """Tokens by group and bin, 0 for groups that are left out. (G, B)"""
        return np.where(self.taken[:, None], self.groups.n, 0)

    def between(self, weight: Array) -> Array:
        """Covariance of documents' means over late tokens, estimated from groups; weight (G,). (H, d, d)"""
        apart = (self.groups.late_mean[self.taken] - self.late.mean_x).transpose(1, 0, 2)  # (H, G, d)
        return (apart * weight[:, None]).transpose(0, 2, 1) @ apart


@dataclass(frozen=True)
class Positions:
    """Where the tokens of one sample are; the same for every head.

    counts (T,) tokens at each position · edges (B + 1,) of the paths' bins · grid: positions that represent all
    lags: pairs of bins at each distance; `counted`: pairs of tokens there
    between (G,) weights that turn the scatter of groups' means into the covariance of documents' means
    """

    counts: Array
    edges: NDArray[np.int64]
    grid: Grid
    lags: BinPairs
    counted: list[Array]
    between: Array

    @classmethod
    def of(cls, groups: Sequence[Unit], width: int, lags: BinPairs, edges: NDArray[np.int64]) -> Positions:
        counts = np.sum([unit.counts(width) for unit in groups], axis=0)
        grid = whole_grid(counts, GRID_SIZE)
        return cls(counts, edges, grid, lags, lags.counted(counts), _between(groups, width))

    @property
    def scored(self) -> bool:
        """Whether any query has at least two keys from position 4 on."""
        return bool(self.counts[FIRST_QUERY:].sum())

    def layout(self, rotation: Rotation) -> Layout:
        """The positions at which scores are evaluated: bins, where nothing rotates within them."""
        return Layout.of(self.counts, None if len(rotation.pairs) else self.edges)

    @cached_property
    def beyond(self) -> Array:
        """`queries_beyond` of the queries of both layouts. (D, 1 + I)"""
        return queries_beyond(self.lags.lags, self.counts, sampled_grid(self.counts, FIRST_QUERY, QUERIES))

    def since(self, start: int) -> Array:
        """The counts with 0 before `start`. (T,)"""
        return np.where(np.arange(len(self.counts)) < start, 0.0, self.counts)


def _between(groups: Sequence[Unit], width: int) -> Array:
    """Weights (G,) that turn the scatter of groups' means into the covariance of documents' means.

    The mean of a group of e documents scatters by 1/e of theirs; with G groups, one degree of freedom goes to the
    overall mean. Zero with one group, from which it cannot be estimated.
    """
    late = [np.clip(np.minimum(unit.lengths, width) - SINK, 0, None).astype(np.float64) for unit in groups]
    tokens, squares = np.array([x.sum() for x in late]), np.array([(x**2).sum() for x in late])
    if len(groups) < 2 or not tokens.all():
        return np.zeros(len(groups))
    documents, share = tokens**2 / squares, tokens / tokens.sum()
    every = tokens.sum() ** 2 / squares.sum()
    return np.asarray(share * documents * (1 - 1 / every) / (1 - (share**2).sum()))


@dataclass(frozen=True)
class RotationTable:
    """A rotation at the positions of one sample, evaluated once for all heads.

    known: False where no rotation was found, and `rotation` turns nothing
    phase (2, P) `phases` of positions about their mean: of all tokens, and from position 4 on
    by_bin (B, P) `bin_phases` of the tokens by the paths' bins
    wave `waves` at the grid, lags `mean_waves` at the distances · rotated: None where no query has two keys
    """

    rotation: Rotation
    known: bool
    phase: Phase
    by_bin: Phase
    wave: Array
    lags: Array
    rotated: RotatedLayout | None


def rotation_tables(found: Rotation | None, dim: int, samples: Sequence[Positions]) -> list[RotationTable]:
    """The table of each sample; `found` is None where no rotation was found."""
    rotation, first = found or Rotation.none(dim), samples[0]
    weights = np.stack([about_mean(np.stack([at.since(0), at.since(SINK)])) for at in samples])
    phase = phases(rotation, weights)
    by_bin = bin_phases(rotation, np.stack([at.counts for at in samples]), first.edges)
    wave, lags = waves(rotation, first.grid.t), mean_waves(rotation, first.lags.lags)
    rotated = RotatedLayout.of(rotation, first.layout(rotation), first.edges) if first.scored else None
    known = found is not None
    tables = [RotationTable(rotation, known, phase[0], by_bin[0], wave, lags, rotated)]
    wave, lags, rotated = as_left_out(rotation, (wave, lags, rotated))
    for i, at in enumerate(samples[1:], 1):
        here = None
        if rotated and at.scored:
            here = replace(rotated, layout=as_left_out(rotation, at.layout(rotation)))
        tables.append(RotationTable(rotation, known, phase[i], by_bin[i], wave, lags, here))
    return tables


@dataclass(frozen=True)
class SampleSums:
    """A block of H heads in one sample of the documents.

    v (H, d) first axes · scale (H,) of the scores · at: where the tokens are

    Paths of left-out samples, and what is evaluated at positions, are in single precision.
    """

    q: Kind
    k: Kind
    v: Array
    scale: Array
    at: Positions
    table: RotationTable

    @cached_property
    def along(self) -> dict[str, tuple[Along, Along]]:
        """Moments of queries and of keys along v: of all tokens, and of those from position 4 on."""
        q, k = ((Along(kind.every, self.v), Along(kind.late, self.v)) for kind in (self.q, self.k))
        return {"q": q, "k": k}

    @cached_property
    def key_path(self) -> Path:
        """The path of keys about their mean over tokens from position 4 on: scores compare keys with each other."""
        return path_about(self.k.path, self.k.late.mean_x, self.table.rotation, self.table.by_bin)

    @cached_property
    def anatomy(self) -> Anatomy | None:
        """The parts of the variance of scores; None in a window too short for them."""
        if self.table.rotated is None:
            return None
        between = self.k.between(self.at.between)
        return anatomy(self.q.path, self.key_path, self.q.late, self.k.late, self.table.rotated, between)
