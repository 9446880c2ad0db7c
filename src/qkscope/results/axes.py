"""axes.safetensors: each checkpoint's axes, means and paths, from which pictures are drawn without the moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path as FilePath
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from qkscope import store
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.moments import merge_all
from qkscope.sums.path import Path
from qkscope.sums.rotation import Rotation, pack_rotations, unpack_rotations
from qkscope.sums.unit import Unit, window

Array = NDArray[np.float64]
T = TypeVar("T")

_ARRAYS = ("v", "mean_q", "mean_k")


@dataclass(frozen=True)
class CheckpointAxes:
    """One checkpoint over its own window, in single precision: q rows follow `heads`, k rows follow `heads.keys`.

    v (H, d, components) · mean_q (H, d), mean_k (K, d) · path_q, path_k · by layer: rotation, scale of the scores
    """

    heads: HeadIndex
    v: Array
    mean_q: Array
    mean_k: Array
    path_q: Path
    path_k: Path
    rotations: Mapping[int, Rotation | None]
    scales: Mapping[int, float]

    @classmethod
    def of(cls, units: Sequence[Unit], width: int, v: Array) -> CheckpointAxes:
        """The axes `v`, measured from the same units over the same window, with means and paths."""
        units = [unit for unit in units if unit.tokens]
        sums = [window(unit, width) for unit in units]
        mean_q, mean_k = (merge_all([pair[i] for pair in sums]).mean_x for i in (0, 1))
        path_q, path_k = (
            reduce(Path.merge, [path.window(width) for path in found if path is not None])
            for found in ([unit.path_q for unit in units], [unit.path_k for unit in units])
        )
        first = units[0]
        return cls(first.heads, v, mean_q, mean_k, path_q, path_k, first.rotations, first.scales)

    def row(self, layer: int, head: int) -> int:
        """The row of a head."""
        return int(np.flatnonzero((self.heads.layer == layer) & (self.heads.head == head))[0])


def dump_axes(checkpoints: Mapping[str, CheckpointAxes]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and description for a file."""
    tensors: dict[str, NDArray[Any]] = {}
    entries: list[Any] = []
    for number, (name, found) in enumerate(checkpoints.items()):
        for field in _ARRAYS:
            tensors[f"{number}.{field}"] = getattr(found, field).astype(np.float32)
        for kind, path in (("q", found.path_q), ("k", found.path_k)):
            tensors |= {f"{number}.path_{kind}.edges": path.edges, f"{number}.path_{kind}.n": path.n}
            tensors[f"{number}.path_{kind}.total"] = path.total.astype(np.float32)
        arrays, rotations = pack_rotations(found.rotations)
        tensors |= {f"{number}.{key}": array for key, array in arrays.items()}
        scales = [[layer, scale] for layer, scale in found.scales.items()]
        entry = {"heads": found.heads.to_meta(), "rotations": rotations, "scales": scales}
        entries.append([name, entry])
    return tensors, {"checkpoints": entries}


def read_axes(path: FilePath, most: int | None = None) -> dict[str, CheckpointAxes]:
    """The axes by checkpoint, in the study's order. A file with more than `most` bytes of arrays is refused unread."""
    return read_checkpoints(path, most, "an axes file", _unpacked)


def _unpacked(own: Mapping[str, NDArray[Any]], entry: Any, _: Any) -> CheckpointAxes:
    v, mean_q, mean_k = (own[field].astype(np.float64) for field in _ARRAYS)
    path_q, path_k = (
        Path(own[f"{kind}.edges"], own[f"{kind}.n"], own[f"{kind}.total"].astype(np.float64))
        for kind in ("path_q", "path_k")
    )
    rotations = unpack_rotations(own, entry["rotations"])
    scales = {int(layer): float(scale) for layer, scale in entry["scales"]}
    heads = HeadIndex.from_meta(entry["heads"])
    return CheckpointAxes(heads, v, mean_q, mean_k, path_q, path_k, rotations, scales)


def read_checkpoints(
    path: FilePath, most: int | None, what: str, unpack: Callable[[dict[str, NDArray[Any]], Any, Any], T]
) -> dict[str, T]:
    """By checkpoint, what `unpack` makes of its arrays, its entry and the file's whole description."""
    tensors, meta = store.read_tensors(path, most)
    try:
        found = {}
        for number, (name, entry) in enumerate(meta["checkpoints"]):
            start = f"{number}."
            own = {key.removeprefix(start): each for key, each in tensors.items() if key.startswith(start)}
            found[str(name)] = unpack(own, entry, meta)
        return found
    except store.MALFORMED as error:
        raise store.damaged(path, f"not {what}: {store.in_short(error)}") from error
