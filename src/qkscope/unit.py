"""A unit of work: what one checkpoint's heads did on one group of documents, as arrays of a file and back.

Context windows are cut into rings, one set of moments each: merging the first rings gives the moments of any shorter
window. The first four tokens, where attention sinks stand, have moments of their own that can be taken away again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkscope.errors import StoreError
from qkscope.heads import HeadIndex
from qkscope.key_sample import KeySample, pack_samples, unpack_samples
from qkscope.lags import LagScores, pack_scores, unpack_scores
from qkscope.moments import Moments, merge_all
from qkscope.path import SINK, Path
from qkscope.rotation import Rotation, pack_rotations, unpack_rotations
from qkscope.scatter import pack_scatter, unpack_scatter

Array = NDArray[np.float64]
Rows = NDArray[np.int64] | slice


def rings(length: int, windows: Sequence[int]) -> list[tuple[int, int]]:
    """(start, stop) of each ring that a document of `length` tokens reaches; rings end at the ascending `windows`."""
    starts = (0, *windows)
    return [
        (start, min(length, edge)) for start, edge in zip(starts, windows, strict=False) if start < length
    ]


@dataclass(frozen=True)
class Unit:
    """Sums of one checkpoint over one group of documents: a unit of work, stored as one file.

    q[i], k[i]            moments of ring i, which ends at windows[i]; q's rows follow `heads`, k's `heads.keys`
    sink_q, sink_k        moments of each document's first four tokens, which are also part of the rings
    path_q, path_k        sums of the derotated vectors by bins of position, rows as above; None if not captured
    rotations             by layer: R_t, or None if unknown. The path of such a layer has sums of the vectors after
                          rotation: read it with `Rotation.none`
    scales                by layer: the factor between q.k and the score
    lengths               number of tokens read from each document, descending
    unknown_rotations     by layer: why its rotation is unknown
    scores                sums of the scores of a few queries, by distance; None if not captured
    keys                  samples of keys, rows as above, one per window; empty if not requested
    """

    heads: HeadIndex
    windows: tuple[int, ...]
    q: tuple[Moments, ...]
    k: tuple[Moments, ...]
    sink_q: Moments
    sink_k: Moments
    path_q: Path | None
    path_k: Path | None
    rotations: Mapping[int, Rotation | None]
    scales: Mapping[int, float]
    lengths: tuple[int, ...]
    unknown_rotations: Mapping[int, str] = field(default_factory=dict)
    keys: tuple[KeySample, ...] = ()
    scores: LagScores | None = None

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
        """How many tokens stand at each position below `width`. (width,)"""
        ends = np.bincount(np.minimum(self.lengths, width).astype(np.int64), minlength=width + 1)
        return np.asarray(len(self.lengths) - np.cumsum(ends)[:width], dtype=np.float64)

    def to_tensors(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays and description for a file: M as `scatter` keeps it, the path's sums in float32."""
        tensors: dict[str, NDArray[Any]] = {}
        for kind, moments in (("q", self.q), ("k", self.k)):
            for i, ring in enumerate(moments):
                tensors |= _pack(f"{kind}.{i}", ring)
        for kind, sink in (("q", self.sink_q), ("k", self.sink_k)):
            tensors |= _pack(f"{kind}.sink", sink)
        for kind, path in (("q", self.path_q), ("k", self.path_k)):
            if path is not None:
                tensors |= {f"{kind}.path.edges": path.edges, f"{kind}.path.n": path.n}
                tensors[f"{kind}.path.total"] = path.total.astype(np.float32)
        meta = {"windows": self.windows, "lengths": self.lengths, "heads": self.heads.to_meta()}
        meta["scales"] = sorted(self.scales.items())
        meta["unknown_rotations"] = sorted(self.unknown_rotations.items())
        arrays, meta["rotations"] = pack_rotations(self.rotations)
        return tensors | arrays | pack_samples(self.keys) | pack_scores(self.scores), meta

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> Unit:
        """What `to_tensors` took apart."""
        count = range(len(meta["windows"]))
        return cls(
            heads=HeadIndex.from_meta(meta["heads"]),
            windows=tuple(meta["windows"]),
            q=tuple(_unpack(tensors, f"q.{i}") for i in count),
            k=tuple(_unpack(tensors, f"k.{i}") for i in count),
            sink_q=_unpack(tensors, "q.sink"),
            sink_k=_unpack(tensors, "k.sink"),
            path_q=_unpack_path(tensors, "q.path"),
            path_k=_unpack_path(tensors, "k.path"),
            rotations=unpack_rotations(tensors, meta["rotations"]),
            scales={int(layer): float(scale) for layer, scale in meta["scales"]},
            lengths=tuple(meta["lengths"]),
            unknown_rotations={int(layer): why for layer, why in meta["unknown_rotations"]},
            keys=unpack_samples(tensors),
            scores=unpack_scores(tensors),
        )


def window(
    unit: Unit, width: int, skip_sink: bool = False, rows: tuple[Rows, Rows] = (slice(None), slice(None))
) -> tuple[Moments, Moments]:
    """(q, k) moments over each document's first `width` tokens; `skip_sink` leaves its first four out.

    Of all query and all key heads, or of those at `rows`.
    """
    if width not in unit.windows:
        raise StoreError(
            f"a window of {width} tokens was not measured; measured windows: {list(unit.windows)}"
        )
    last = unit.windows.index(width) + 1
    q, k = (
        merge_all([ring.select(at) for ring in rings[:last]])
        for rings, at in zip((unit.q, unit.k), rows, strict=True)
    )
    if not skip_sink:
        return q, k
    if width < SINK:
        raise StoreError(
            f"a window of {width} tokens has no tokens after the first {SINK}; choose a longer one"
        )
    return q.without(unit.sink_q.select(rows[0])), k.without(unit.sink_k.select(rows[1]))


def _pack(name: str, moments: Moments) -> dict[str, NDArray[Any]]:
    arrays = {f"{name}.{f.name}": getattr(moments, f.name) for f in fields(moments)}
    return arrays | pack_scatter(f"{name}.M", moments.M)


def _unpack(tensors: Mapping[str, NDArray[Any]], name: str) -> Moments:
    values = {f.name: tensors[f"{name}.{f.name}"] for f in fields(Moments)}
    return Moments(**values | {"M": unpack_scatter(tensors, f"{name}.M")})


def _unpack_path(tensors: Mapping[str, NDArray[Any]], name: str) -> Path | None:
    if f"{name}.total" not in tensors:
        return None
    total = tensors[f"{name}.total"].astype(np.float64)
    return Path(tensors[f"{name}.edges"], tensors[f"{name}.n"], total)
