"""A block of heads of one rotation over some documents: all that r alone does not tell of them.

Where the model's rotation is not known, the path is of the vectors as they are: eta and the shares are then those of
slow changes with position only, and what needs the rotation itself is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.anatomy import FIRST_QUERY, Anatomy, Layout, Staging, anatomy
from qkscope.measures.blocks import per_query
from qkscope.measures.distance import BinPairs, distance_curve, mean_waves, means_beyond, third_octaves
from qkscope.measures.grid import Grid, whole_grid
from qkscope.measures.position import (
    Along,
    Phase,
    about_mean,
    constant_part,
    correlation,
    eta_squared,
    linear_reading,
    phases,
    projected_paths,
)
from qkscope.measures.waves import Pairs, waves
from qkscope.moments import Moments
from qkscope.path import SINK, Path
from qkscope.rotation import Rotation
from qkscope.unit import Unit

Array = NDArray[np.float64]

# Along the first axis: these depend on which axis that is.
ALONG_AXIS = ("eta_q", "eta_k", "r_q_const", "r_k_const")
SHARES = ("share_position", "share_key", "share_match", "share_query_position")
MEASURES = (*ALONG_AXIS, "R_q", "R_k", *SHARES, "score_sd", "sink")
# The same without the first four tokens of each document, and Pearson's r itself.
LATE = tuple(f"{name}_from4" for name in ("r_q", "r_k", *ALONG_AXIS, "R_q", "R_k"))
# Positions evaluated for eta, beside the first four: every one in windows up to this.
PLACES = 1024


@dataclass(frozen=True)
class GroupPaths:
    """Queries of a block, or its keys, by group of documents, over tokens from position 4 on and by bins of position.

    late_mean (G, H, d) · n (G, B) tokens · means (G, H, B, d) before rotation, as pairs
    """

    late_mean: Array
    n: NDArray[np.int64]
    means: Pairs

    @classmethod
    def of(cls, rotation: Rotation, late: Sequence[Moments], paths: Sequence[Path]) -> GroupPaths:
        means = np.stack([path.filled.mean for path in paths])
        return cls(
            np.stack([sums.mean_x for sums in late]),
            np.stack([path.n for path in paths]),
            Pairs.of(rotation, means),
        )


@dataclass(frozen=True)
class Kind:
    """Queries, or the keys that they read: moments of all tokens and of those from position 4 on, and the path.

    `groups` are all groups of documents, `taken` (G,) those that are in these sums.
    """

    every: Moments
    late: Moments
    path: Path
    groups: GroupPaths
    taken: NDArray[np.bool_]

    @property
    def n(self) -> NDArray[np.int64]:
        """Tokens by group and bin, none of groups that are left out. (G, B)"""
        return np.where(self.taken[:, None], self.groups.n, 0)

    def between(self, weight: Array) -> Array:
        """The covariance of documents' means over late tokens, from those of groups; weight (G,). (H, d, d)"""
        apart = (self.groups.late_mean[self.taken] - self.late.mean_x).transpose(1, 0, 2)  # (H, G, d)
        return np.asarray((apart * weight[:, None]).transpose(0, 2, 1) @ apart)


@dataclass(frozen=True)
class Positions:
    """Where the tokens of some documents stand; the same for every head.

    counts (T,) tokens at each position · edges (B + 1,) of the paths' bins · places that stand for all
    lags   the pairs of bins at each distance, and how many pairs of tokens are `counted` there
    between (G,) what makes the covariance of documents' means of those of groups
    """

    counts: Array
    edges: NDArray[np.int64]
    places: Grid
    lags: BinPairs
    counted: list[Array]
    between: Array

    @classmethod
    def of(cls, groups: Sequence[Unit], width: int, lags: BinPairs, edges: NDArray[np.int64]) -> Positions:
        counts = np.sum([unit.counts(width) for unit in groups], axis=0)
        places = whole_grid(counts, PLACES)
        return cls(counts, edges, places, lags, lags.counted(counts), _between(groups, width))

    @property
    def scored(self) -> bool:
        """Whether any query has keys to choose from."""
        return bool(self.counts[FIRST_QUERY:].sum())

    def layout(self, rotation: Rotation) -> Layout:
        """What stands for all positions where scores are taken apart: bins, where nothing turns within them."""
        return self._sampled if len(rotation.pairs) else self._binned

    @cached_property
    def _sampled(self) -> Layout:
        return Layout.of(self.counts)

    @cached_property
    def _binned(self) -> Layout:
        return Layout.of(self.counts, self.edges)

    def since(self, start: int) -> Array:
        """The counts with those before `start` left out. (T,)"""
        return np.where(np.arange(len(self.counts)) < start, 0.0, self.counts)


def _between(groups: Sequence[Unit], width: int) -> Array:
    """Weights (G,) with which the scatter of groups' means makes the covariance of documents' means.

    The mean of a group of e documents scatters by 1/e of theirs; of G groups, one degree of freedom is lost to the
    mean of all. Zero with one group, which does not tell.
    """
    late = [np.clip(np.minimum(unit.lengths, width) - SINK, 0, None).astype(np.float64) for unit in groups]
    tokens, squares = np.array([x.sum() for x in late]), np.array([(x**2).sum() for x in late])
    if len(groups) < 2 or not tokens.all():
        return np.zeros(len(groups))
    documents, share = tokens**2 / squares, tokens / tokens.sum()
    every = tokens.sum() ** 2 / squares.sum()
    return np.asarray(share * documents * (1 - 1 / every) / (1 - (share**2).sum()))


@dataclass(frozen=True)
class Turning:
    """What a rotation does at the positions of a window, once for all heads; `known` is False where none is known.

    phase (1 + G, 2, P) `phases` of positions about their mean, in each sample: of all tokens, and from position 4 on
    wave `waves` at the places, lags `mean_waves` at the distances · stage None in a window too short for scores
    """

    rotation: Rotation
    known: bool
    phase: Phase
    wave: Array
    lags: Array
    stage: Staging | None

    @classmethod
    def of(cls, rotation: Rotation | None, dim: int, samples: Sequence[Positions]) -> Turning:
        turning, first = rotation or Rotation.none(dim), samples[0]
        weights = np.stack([about_mean(np.stack([at.since(0), at.since(SINK)])) for at in samples])
        return cls(
            rotation=turning,
            known=rotation is not None,
            phase=phases(turning, weights),
            wave=waves(turning, first.places.t),
            lags=mean_waves(turning, first.lags.lags),
            stage=Staging.of(turning, first.layout(turning), first.edges) if first.scored else None,
        )


@dataclass(frozen=True)
class BlockSums:
    """A block of H heads of one rotation over some documents.

    v (H, d) their first axes, scale (H,) of their scores, where their tokens stand, phase (2, P) of that in `turning`
    """

    q: Kind
    k: Kind
    v: Array
    scale: Array
    at: Positions
    turning: Turning
    phase: Phase

    @cached_property
    def along(self) -> dict[str, tuple[Along, Along]]:
        """The moments of queries and of keys along v: of all tokens, and of those from position 4 on."""
        return {
            name: (Along(kind.every, self.v), Along(kind.late, self.v))
            for name, kind in (("q", self.q), ("k", self.k))
        }

    @cached_property
    def anatomy(self) -> Anatomy | None:
        """The parts of the variance of scores; None in a window too short for them."""
        if not self.at.scored or self.turning.stage is None:
            return None
        layout, between = self.at.layout(self.turning.rotation), self.k.between(self.at.between)
        q, k = self.q, self.k
        return anatomy(q.path, k.path, q.late, k.late, self.turning.stage, layout, between)


def head_numbers(block: BlockSums) -> dict[str, Array]:
    """MEASURES, LATE and r along v by name: (H,) each, or (K,) what is the same for all queries that read a key."""
    found = _anatomy(block)
    v = Pairs.of(block.turning.rotation, block.v)
    for name, kind in (("q", block.q), ("k", block.k)):
        projected = projected_paths(kind.groups.means, block.at.edges, block.at.places, block.turning.wave, v)
        for late in (False, True):
            found |= _along(block, kind, name, projected, late)
    return found


def mean_scores(block: BlockSums) -> Array:
    """The distance curve in logits. (H, D); NaN where the rotation is not known or no query has two keys."""
    if not block.turning.known or block.anatomy is None:
        return np.full((len(block.v), len(block.at.lags.lags)), np.nan)
    rotation, at = block.turning.rotation, block.at
    paths = block.q.path.filled, block.k.path.filled
    q, k = (Pairs.of(rotation, path.mean) for path in paths)
    curve = distance_curve(q, k, at.lags, at.counted, block.turning.lags)
    # The query at position 5 has one key, the one at 4.
    query, key = (
        path.at(rotation, np.array([t]))[:, 0] for path, t in zip(paths, (SINK + 1, SINK), strict=True)
    )
    only = np.einsum("hd,hd->h", query, per_query(key, len(query)))
    means = np.concatenate([only[:, None], block.anatomy.query_mean], axis=1)
    curve -= means_beyond(at.lags.lags, at.counts, at.layout(rotation).queries, means)
    return block.scale[:, None] * (curve @ third_octaves(at.lags.lags).T)


def _along(block: BlockSums, kind: Kind, name: str, projected: Array, late: bool) -> dict[str, Array]:
    """r, eta, the constant part and the best linear reading of one kind, of all tokens or from position 4 on."""
    start, along = SINK if late else 0, block.along[name][late]
    places, missing = block.at.places.since(start), np.full(len(block.v), np.nan)
    found = {f"r_{name}": correlation(along), f"R_{name}": linear_reading(along.sums)}
    found |= {f"eta_{name}": missing, f"r_{name}_const": missing}
    if places.tokens.any():
        here = projected[:, :, -len(places.t) :]
        found[f"eta_{name}"] = np.sqrt(eta_squared(kind.n, block.at.edges, places, here, along))
        if block.turning.known:
            path = kind.path.window(len(block.at.counts), start)
            found[f"r_{name}_const"] = constant_part(
                path, block.turning.rotation, block.phase[int(late)], along
            )
    return {f"{key}_from4": value for key, value in found.items()} if late else found


def _anatomy(block: BlockSums) -> dict[str, Array]:
    parts = block.anatomy
    if parts is None:
        return dict.fromkeys((*SHARES, "score_sd", "sink"), np.full(len(block.v), np.nan))
    found = {f"share_{name}": share for name, share in parts.shares.items()}
    return found | {"score_sd": block.scale * parts.score_sd, "sink": block.scale * parts.sink}
