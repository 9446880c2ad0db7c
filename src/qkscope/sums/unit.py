"""A unit of work: the sums of one checkpoint over one group of documents.

Context windows are cut into rings, one set of moments each: merging the first rings gives the moments of any shorter
window. The first four tokens, where attention sinks are, have moments of their own that can be taken out again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from qkscope.errors import StoreError
from qkscope.sums import FactSum, KeySum, MomentSum, PathSum, ScoreSum, Sum, rings
from qkscope.sums.base import ring_count
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.keys import KeySample
from qkscope.sums.moments import Moments, merge_all
from qkscope.sums.path import SINK, Path
from qkscope.sums.rotation import Rotation

__all__ = ["Unit", "rings", "samples_of", "unknown_rotation_warning", "window"]

Array = NDArray[np.float64]
Rows = NDArray[np.int64] | slice
S = TypeVar("S", bound=Sum)


@dataclass(frozen=True)
class Unit:
    """Sums of one checkpoint over one group of documents: a unit of work. Each sum is stored as one file.

    sums               by name; `facts` is always there, any other may be missing
    q[i], k[i]         moments of ring i, which ends at windows[i]; rows of q as in `heads`, of k as in `heads.keys`
    sink_q, sink_k     moments of each document's first four tokens, which are also part of the rings
    path_q, path_k     sums of the vectors before rotation by bins of position; None if not measured
    scores             sums of the scores of a few queries, by distance; None if not measured
    keys               samples of keys, one per window; empty if not measured
    rotations, scales  by layer: R_t, or None if unknown; the factor between q.k and the score
    unknown_rotations  by layer: why its rotation is unknown
    lengths            number of tokens read from each document, descending
    """

    sums: Mapping[str, Sum]

    @classmethod
    def of(cls, *sums: Sum) -> Unit:
        return cls({each.name: each for each in sums})

    def find(self, kind: type[S]) -> S | None:
        """The sum of this class; None if it was not measured."""
        found = self.sums.get(kind.name)
        return found if isinstance(found, kind) else None

    def get(self, kind: type[S]) -> S:
        """The sum of this class. Raises StoreError if it was not measured."""
        if (found := self.find(kind)) is None:
            raise StoreError(
                f"this unit has no sum {kind.name!r}, only {', '.join(self.sums)}; run the study again to measure it"
            )
        return found

    @property
    def facts(self) -> FactSum:
        return self.get(FactSum)

    @property
    def moments(self) -> MomentSum:
        return self.get(MomentSum)

    @property
    def heads(self) -> HeadIndex:
        return self.facts.heads

    @property
    def windows(self) -> tuple[int, ...]:
        return self.facts.windows

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.facts.lengths

    @property
    def rotations(self) -> Mapping[int, Rotation | None]:
        return self.facts.rotations

    @property
    def unknown_rotations(self) -> Mapping[int, str]:
        return self.facts.unknown_rotations

    @property
    def scales(self) -> Mapping[int, float]:
        return self.facts.scales

    @property
    def q(self) -> tuple[Moments, ...]:
        return self.moments.q

    @property
    def k(self) -> tuple[Moments, ...]:
        return self.moments.k

    @property
    def sink_q(self) -> Moments:
        return self.moments.sink_q

    @property
    def sink_k(self) -> Moments:
        return self.moments.sink_k

    @property
    def path_q(self) -> Path | None:
        return found.q if (found := self.find(PathSum)) else None

    @property
    def path_k(self) -> Path | None:
        return found.k if (found := self.find(PathSum)) else None

    @property
    def scores(self) -> ScoreSum | None:
        return self.find(ScoreSum)

    @property
    def keys(self) -> tuple[KeySample, ...]:
        return found.samples if (found := self.find(KeySum)) else ()

    @property
    def documents(self) -> int:
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def filled(self) -> tuple[int, ...]:
        """How many documents fill each of `windows`."""
        return tuple(sum(length >= edge for length in self.lengths) for edge in self.windows)

    def counts(self, width: int) -> Array:
        """Number of tokens at each position below `width`. (width,)"""
        return self.facts.counts(width)


def window(
    unit: Unit, width: int, skip_sink: bool = False, rows: tuple[Rows, Rows] = (slice(None), slice(None))
) -> tuple[Moments, Moments]:
    """(q, k) moments over each document's first `width` tokens; `skip_sink` leaves its first four out.

    Of all query and all key heads, or of those at `rows`.
    """
    last = ring_count(unit.windows, width)
    q = merge_all([ring.select(rows[0]) for ring in unit.q[:last]])
    k = merge_all([ring.select(rows[1]) for ring in unit.k[:last]])
    if not skip_sink:
        return q, k
    if width < SINK:
        raise StoreError(
            f"a window of {width} tokens has no tokens after the first {SINK}; choose a longer one"
        )
    return q.without(unit.sink_q.select(rows[0])), k.without(unit.sink_k.select(rows[1]))


def samples_of(units: Sequence[Unit], kind: type[S], width: int) -> list[S]:
    """A sum over each document's first `width` tokens: of all units, then without each one if there are several."""
    parts = [unit.get(kind).window(width) for unit in units]
    without = [[*parts[:i], *parts[i + 1 :]] for i in range(len(parts))] if len(parts) > 1 else []
    return [reduce(kind.merge, some) for some in (parts, *without)]


def unknown_rotation_warning(units: Sequence[Unit]) -> str | None:
    """The warning about layers whose rotation is not known, and its consequence; None if there are none."""
    reasons = {layer: why for unit in units for layer, why in unit.unknown_rotations.items()}
    if not reasons:
        return None
    return (
        f"the rotation of layer{'s' * (len(reasons) > 1)} {', '.join(map(str, sorted(reasons)))} is unknown "
        f"({'; '.join(sorted(set(reasons.values())))}): how their mean vector changes with position is "
        "estimated from position bins of the rotated vectors, which misses rotations faster than one bin"
    )
