"""The heads of one layer over some documents: all that r alone does not tell of them.

Where the model's rotation is not known, the path is of the vectors as they are: eta and the shares are then those of
slow changes with position only, and what needs the rotation itself is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.anatomy import Layout, anatomy
from qkscope.measures.distance import distance_curve
from qkscope.measures.grid import grid
from qkscope.measures.position import constant_part, correlation, eta_squared, linear_reading
from qkscope.moments import Moments
from qkscope.path import SINK, Path
from qkscope.rotation import Rotation

Array = NDArray[np.float64]

# Along the first axis: these depend on which axis that is.
ALONG_AXIS = ("eta_q", "eta_k", "r_q_const", "r_k_const")
SHARES = ("share_position", "share_key", "share_match", "share_query_position")
MEASURES = (*ALONG_AXIS, "R_q", "R_k", *SHARES, "score_sd", "sink")
# The same without the first four tokens of each document, and Pearson's r itself.
LATE = tuple(f"{name}_from4" for name in ("r_q", "r_k", *ALONG_AXIS, "R_q", "R_k"))
# Positions evaluated for eta: every one in windows up to this.
PLACES = 1024


@dataclass(frozen=True)
class Kind:
    """Queries, or the keys that each reads: moments of all tokens, of those from position 4 on, a path per group."""

    every: Moments
    late: Moments
    paths: tuple[Path, ...]

    @property
    def path(self) -> Path:
        """The path over all groups."""
        return reduce(Path.merge, self.paths)


@dataclass(frozen=True)
class LayerSums:
    """H heads of one layer: v (H, d) their first axes, counts (T,) tokens at each position, scale of the scores.

    `rotation` is None and `scale` NaN where they are not known; `layout` is None in a window too short for scores.
    """

    q: Kind
    k: Kind
    v: Array
    counts: Array
    layout: Layout | None
    rotation: Rotation | None
    scale: float

    @property
    def turning(self) -> Rotation:
        """The rotation that the paths are to be read with."""
        return self.rotation or Rotation.none(self.v.shape[1])


def head_numbers(layer: LayerSums) -> dict[str, Array]:
    """MEASURES and LATE by name, (H,) each."""
    found = _anatomy(layer)
    for name, kind in (("q", layer.q), ("k", layer.k)):
        found |= _along(layer, kind.every, kind, name, 0, "")
        found |= _along(layer, kind.late, kind, name, SINK, "_from4")
    return found


def mean_scores(layer: LayerSums, lags: NDArray[np.int64]) -> Array:
    """The distance curve at `lags`, in logits. (H, D); NaN where the rotation is not known"""
    if layer.rotation is None:
        return np.full((len(layer.v), len(lags)), np.nan)
    return distance_curve(layer.q.path, layer.k.path, layer.rotation, layer.counts, layer.scale, lags)


def _along(
    layer: LayerSums, sums: Moments, kind: Kind, name: str, start: int, suffix: str
) -> dict[str, Array]:
    """r, eta, the constant part and the best linear reading of one kind, over tokens from `start` on."""
    missing = np.full(len(layer.v), np.nan)
    counts = np.where(np.arange(len(layer.counts)) < start, 0.0, layer.counts)
    found = {f"r_{name}": correlation(sums, layer.v), f"R_{name}": linear_reading(sums)}
    some = bool(counts.sum())
    places = grid(counts, start, PLACES) if some else None
    eta = missing if places is None else eta_squared(kind.paths, layer.turning, places, sums, layer.v)
    found[f"eta_{name}"] = np.sqrt(eta)
    constant = missing
    if layer.rotation is not None and some:
        constant = constant_part(kind.path.window(len(counts), start), layer.rotation, counts, sums, layer.v)
    found[f"r_{name}_const"] = constant
    return {key + suffix: value for key, value in found.items() if key + suffix in (*MEASURES, *LATE)}


def _anatomy(layer: LayerSums) -> dict[str, Array]:
    if layer.layout is None:
        return dict.fromkeys((*SHARES, "score_sd", "sink"), np.full(len(layer.v), np.nan))
    q, k = layer.q, layer.k
    parts = anatomy(q.path, k.path, q.late, k.late, layer.turning, layer.layout)
    found = {f"share_{name}": share for name, share in parts.shares.items()}
    return found | {"score_sd": layer.scale * parts.score_sd, "sink": layer.scale * parts.sink}
