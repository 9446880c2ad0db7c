"""What is known of a unit: its heads and documents, and of each layer the rotation and the scale of its scores."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from qkscope.sums.base import Arrays, Batch, LayerFacts, Meta, Request, Sum
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.rotation import Rotation, pack_rotations, unpack_rotations


@dataclass
class FactSum(Sum):
    """What measures need to know besides the sums.

    lengths            tokens read from each document, descending
    rotations          by layer: R_t, or None if unknown. The path of such a layer has sums of the vectors after
                       rotation: read it with `Rotation.none`
    scales             by layer: the factor between q.k and the score
    unknown_rotations  by layer: why its rotation is unknown
    """

    name = "facts"

    heads: HeadIndex
    windows: tuple[int, ...]
    lengths: tuple[int, ...]
    rotations: dict[int, Rotation | None]
    scales: dict[int, float]
    unknown_rotations: dict[int, str] = field(default_factory=dict)

    @classmethod
    def start(cls, request: Request, **parameters: Any) -> FactSum:
        layers = np.unique(request.heads.layer).tolist()
        return cls(request.heads, request.windows, (), dict.fromkeys(layers), {})

    def begin(self, batch: Batch) -> None:
        self.lengths += batch.lengths

    def layer(self, index: int, q: Any, k: Any, facts: LayerFacts) -> None:
        self.rotations[index], self.scales[index] = facts.rotation, facts.scale
        if facts.unknown:
            self.unknown_rotations[index] = facts.unknown

    def merge(self, other: Self) -> Self:
        return replace(self, lengths=tuple(sorted([*self.lengths, *other.lengths], reverse=True)))

    def window(self, width: int) -> Self:
        windows = tuple(edge for edge in self.windows if edge <= width)
        return replace(self, windows=windows, lengths=tuple(min(n, width) for n in self.lengths))

    def counts(self, width: int) -> NDArray[np.float64]:
        """How many tokens stand at each position below `width`. (width,)"""
        ends = np.bincount(np.minimum(self.lengths, width).astype(np.int64), minlength=width + 1)
        return np.asarray(len(self.lengths) - np.cumsum(ends)[:width], dtype=np.float64)

    def to_arrays(self) -> tuple[Arrays, Meta]:
        arrays, rotations = pack_rotations(self.rotations)
        meta = {
            "heads": self.heads.to_meta(),
            "windows": self.windows,
            "lengths": self.lengths,
            "rotations": rotations,
            "scales": sorted(self.scales.items()),
            "unknown_rotations": sorted(self.unknown_rotations.items()),
        }
        return arrays, meta

    @classmethod
    def from_arrays(cls, arrays: Arrays, meta: Meta, facts: FactSum | None = None) -> Self:
        windows, lengths = ([int(n) for n in meta[name]] for name in ("windows", "lengths"))
        if not windows or windows[0] < 1 or sorted(set(windows)) != windows:
            raise ValueError(f"windows are {windows}, expected ascending numbers of tokens")
        if any(not 0 < length <= windows[-1] for length in lengths):
            raise ValueError(f"a document's length is not between 1 and {windows[-1]} tokens")
        return cls(
            heads=HeadIndex.from_meta(meta["heads"]),
            windows=tuple(windows),
            lengths=tuple(lengths),
            rotations=unpack_rotations(arrays, meta["rotations"]),
            scales={int(layer): float(scale) for layer, scale in meta["scales"]},
            unknown_rotations={int(layer): str(why) for layer, why in meta["unknown_rotations"]},
        )
