"""Measures that a study may ask for by name, beside those it always has.

Each is a function from the units of a checkpoint and a window to `Measured`: numbers of every head over all documents
and without each group of them. A new one is such a function, its name here and in the study's schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from qkscope.measures import per_kind, plasticity, rotation
from qkscope.measures.blocks import Block, blocks
from qkscope.measures.jackknife import jackknife
from qkscope.measures.pca import BATCH
from qkscope.measures.reservoir import plasticity_samples
from qkscope.moments import Moments
from qkscope.unit import Unit, window
from qkscope.workers import cores, one_thread_each

Array = NDArray[np.float64]
Groups = list[tuple[Moments, Moments]]

ROTATION = (*rotation.NAMES, "bias_logits")


@dataclass(frozen=True)
class Measured:
    """What one measure found of H heads. NaN where there is no such number.

    values (1 + G, len(names), H): the whole, then without each group of documents
    about   numbers about the measurement itself, (H,) each
    cells   (H, B, B) by bucket of the query and of the key, where the measure has such a map
    """

    names: tuple[str, ...]
    values: Array
    about: Mapping[str, Array] = field(default_factory=dict)
    cells: Array | None = None

    def value(self, name: str) -> Array:
        """Over all documents. (H,)"""
        return np.asarray(self.values[0, self.names.index(name)])

    def left_out(self, name: str) -> Array:
        """Without each group of documents. (G, H)"""
        return np.asarray(self.values[1:, self.names.index(name)])

    def error(self, name: str) -> Array:
        """Jackknife standard error. (H,)"""
        return jackknife(self.left_out(name))


def rotation_measure(units: Sequence[Unit], width: int) -> Measured:
    """The rotation model, and its bias in logits: scale * bias_strength * window.

    Above nought, of two keys that differ in position alone the later one, nearer to the query, scores higher.
    """

    def one(groups: Groups, rows: NDArray[np.int64]) -> Array:
        return rotation_samples(groups, width, scale[rows])

    heads = units[0].heads
    scales = next(unit.scales for unit in units if unit.tokens)
    scale = np.array([scales[int(layer)] for layer in heads.layer])
    return Measured(ROTATION, _batched(units, width, one))


def rotation_samples(groups: Groups, width: int, scale: Array) -> Array:
    """ROTATION of some heads, row by row: (1 + G, len(ROTATION), H); scale (H,)."""
    whole, _, left = rotation.rotation_errors(groups, width)
    values = np.concatenate([np.array([[getattr(whole, name) for name in rotation.NAMES]]), left])
    bias = values[:, rotation.NAMES.index("bias_strength")] * scale * width
    return np.concatenate([values, bias[:, None]], axis=1)


def per_kind_measure(units: Sequence[Unit], width: int) -> Measured:
    """Queries alone and keys alone."""
    found = _batched(units, width, lambda groups, _: per_kind.per_kind_samples(groups))
    return Measured(per_kind.NAMES, found)


def plasticity_measure(units: Sequence[Unit], width: int) -> Measured:
    """How open it is which of two keys a query prefers, from the keys that the units keep."""
    values, cells, error = plasticity_samples(units, width)
    return Measured(plasticity.NAMES, values, {"sampling_se": error}, cells)


def _batched(units: Sequence[Unit], width: int, one: Callable[[Groups, NDArray[np.int64]], Array]) -> Array:
    """(1 + G, names, H) of all heads, a block at a time on every core; `one` has its moments by group, and its rows."""
    filled = [unit for unit in units if unit.tokens]
    batches = blocks(units[0].heads, BATCH // units[0].sink_q.mean_x.shape[1] ** 2)

    def some(block: Block) -> Array:
        rows = block.queries, block.keys
        return one([window(unit, width, rows=rows) for unit in filled], block.queries)

    with one_thread_each(), ThreadPoolExecutor(cores()) as pool:
        found = np.concatenate(list(pool.map(some, batches)), axis=2)
    return found[:, :, np.argsort(np.concatenate([block.queries for block in batches]))]


OPTIONAL: dict[str, Callable[[Sequence[Unit], int], Measured]] = {
    "rotation": rotation_measure,
    "per_kind": per_kind_measure,
    "plasticity": plasticity_measure,
}


def unknown_measures(asked: Sequence[str]) -> str | None:
    """What to say where something else than a list of OPTIONAL is asked for."""
    unknown = [name for name in asked if name not in OPTIONAL]
    if not isinstance(asked, str) and not unknown:
        return None
    found = repr(asked) if isinstance(asked, str) else ", ".join(map(repr, unknown))
    return f"measures: found {found}; expected a list with any of {', '.join(OPTIONAL)}"
