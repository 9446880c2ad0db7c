"""The heads of one layer over some documents: all that r alone does not tell of them.

Where the model's rotation is not known, the path is of the vectors as they are: eta and the shares are then those of
slow changes with position only, and what needs the rotation itself is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from qkscope.lags import distances
from qkscope.measures.anatomy import FIRST_QUERY, Layout, anatomy
from qkscope.measures.distance import distance_curve, pairs_by_bin
from qkscope.measures.grid import Grid, whole_grid
from qkscope.measures.position import (
    Phase,
    constant_part,
    correlation,
    eta_squared,
    linear_reading,
    projected_paths,
)
from qkscope.moments import Moments, Unit
from qkscope.path import SINK, Path
from qkscope.rotation import Rotation

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
class Kind:
    """Queries, or the keys that each reads: moments of all tokens and of those from position 4 on.

    `groups` are the latter of each group of documents, `paths` the paths.
    """

    every: Moments
    late: Moments
    groups: tuple[Moments, ...]
    paths: tuple[Path, ...]

    def between(self, weight: Array) -> Array:
        """The covariance of documents' means over late tokens, from those of groups; weight (G,). (H, d, d)"""
        apart = np.stack([group.mean_x - self.late.mean_x for group in self.groups])  # (G, H, d)
        return np.asarray(np.einsum("g,ghd,ghe->hde", weight, apart, apart, optimize=True))

    @cached_property
    def path(self) -> Path:
        """The path over all groups."""
        return reduce(Path.merge, self.paths)


@dataclass(frozen=True)
class Positions:
    """Where the tokens of some documents stand; the same for every head.

    counts (T,) tokens at each position · places that stand for all · layout None in a window too short for scores
    lags (D,) distances, with pairs (D, B, B) by bins of their query and key
    between (G,) what makes the covariance of documents' means of those of groups
    """

    counts: Array
    places: Grid
    layout: Layout | None
    lags: NDArray[np.int64]
    pairs: Array
    between: Array

    @classmethod
    def of(cls, groups: Sequence[Unit], width: int, edges: NDArray[np.int64]) -> Positions:
        counts = np.sum([unit.counts(width) for unit in groups], axis=0)
        layout = Layout.of(counts) if counts[FIRST_QUERY:].sum() else None
        lags = distances(len(counts))
        return cls(
            counts,
            whole_grid(counts, PLACES),
            layout,
            lags,
            pairs_by_bin(edges, counts, lags),
            _between(groups, width),
        )

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
class LayerSums:
    """H heads of one layer: v (H, d) their first axes, scale of the scores, where their tokens stand.

    `phase` (2, P) are the `phases` of positions about their mean: of all tokens, and of those from position 4 on;
    `wave` are the `waves` at `at.places`.
    `rotation` is None where it is not known.
    """

    q: Kind
    k: Kind
    v: Array
    at: Positions
    rotation: Rotation | None
    phase: Phase
    wave: Array
    scale: float

    @property
    def turning(self) -> Rotation:
        """The rotation that the paths are to be read with."""
        return self.rotation or Rotation.none(self.v.shape[1])


def head_numbers(layer: LayerSums) -> dict[str, Array]:
    """MEASURES, LATE and r along v by name, (H,) each."""
    found = _anatomy(layer)
    for name, kind in (("q", layer.q), ("k", layer.k)):
        projected = projected_paths(kind.paths, layer.at.places, layer.wave, layer.turning, layer.v)
        for late in (False, True):
            found |= _along(layer, kind, name, projected, late)
    return found


def mean_scores(layer: LayerSums) -> Array:
    """The distance curve, in logits. (H, D); NaN where the rotation is not known"""
    if layer.rotation is None:
        return np.full((len(layer.v), len(layer.at.lags)), np.nan)
    q, k, at = layer.q.path, layer.k.path, layer.at
    return distance_curve(q, k, layer.rotation, layer.scale, at.lags, at.pairs)


def _along(layer: LayerSums, kind: Kind, name: str, projected: Array, late: bool) -> dict[str, Array]:
    """r, eta, the constant part and the best linear reading of one kind, of all tokens or from position 4 on."""
    start, sums = (SINK, kind.late) if late else (0, kind.every)
    places, missing = layer.at.places.since(start), np.full(len(layer.v), np.nan)
    found = {f"r_{name}": correlation(sums, layer.v), f"R_{name}": linear_reading(sums)}
    found |= {f"eta_{name}": missing, f"r_{name}_const": missing}
    if places.tokens.any():
        here = projected[:, :, -len(places.t) :]
        found[f"eta_{name}"] = np.sqrt(eta_squared(kind.paths, places, here, sums, layer.v))
        if layer.rotation is not None:
            path = kind.path.window(len(layer.at.counts), start)
            found[f"r_{name}_const"] = constant_part(
                path, layer.rotation, layer.phase[int(late)], sums, layer.v
            )
    return {f"{key}_from4": value for key, value in found.items()} if late else found


def _anatomy(layer: LayerSums) -> dict[str, Array]:
    if layer.at.layout is None:
        return dict.fromkeys((*SHARES, "score_sd", "sink"), np.full(len(layer.v), np.nan))
    q, k = layer.q, layer.k
    between = k.between(layer.at.between)
    parts = anatomy(q.path, k.path, q.late, k.late, layer.turning, layer.at.layout, between)
    found = {f"share_{name}": share for name, share in parts.shares.items()}
    return found | {"score_sd": layer.scale * parts.score_sd, "sink": layer.scale * parts.sink}
