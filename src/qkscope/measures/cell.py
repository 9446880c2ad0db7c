"""One cell, a checkpoint over one window: its sums, in blocks of heads, with all that measures share computed once.

Every number is computed over all documents and again without each group of them. These are the samples: sample 0 is the
whole, sample g is without group g; the jackknife over samples 1 to G is the standard error of sample 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import cached_property, reduce
from itertools import compress
from threading import Lock
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from qkscope.defaults import COMPONENTS
from qkscope.errors import StudyError
from qkscope.measures.blocks import Block, blocks
from qkscope.measures.distance import BinPairs
from qkscope.measures.pca import Axes, measure_batch, met_bad, whole_and_without, with_left_out
from qkscope.measures.registry import MeasureGroup, Variable, variables
from qkscope.measures.samples import (
    GroupPaths,
    Kind,
    Positions,
    RotationTable,
    SampleSums,
    jackknife,
    rotation_tables,
)
from qkscope.measures.waves import as_left_out
from qkscope.sums import PathSum, Sum
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.moments import Moments
from qkscope.sums.path import SINK, Path
from qkscope.sums.scores import distances
from qkscope.sums.unit import Unit, samples_of, window
from qkscope.workers import cores, one_thread_each

Array = NDArray[np.float64]
S = TypeVar("S", bound=Sum)
T = TypeVar("T")

# Elements of a block's scatter matrices: enough heads of 128 dimensions (16) that Python's own time hardly counts.
BLOCK_ELEMENTS = 1 << 18


@dataclass(frozen=True, eq=False)
class Cell:
    """The units of a checkpoint (one per group of documents) over the first `width` tokens."""

    units: Sequence[Unit]
    width: int
    components: int = COMPONENTS
    num_layers: int | None = None
    """Layers of the model, measured or not; None where that is not known."""
    _samples: dict[type[Sum], list[Any]] = field(default_factory=dict, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    @classmethod
    def of(
        cls, units: Sequence[Unit], width: int, components: int = COMPONENTS, num_layers: int | None = None
    ) -> Cell:
        """The units with tokens. Raises if they are of different heads, or if there are none."""
        for unit in units:
            if unit.heads.to_meta() != units[0].heads.to_meta():
                raise StudyError(
                    "units of different heads cannot be merged; measure them in separate studies"
                )
        filled = [unit for unit in units if unit.tokens]
        if not filled:
            raise StudyError("there are no tokens to measure; give at least one document")
        return cls(filled, width, components, num_layers)

    @property
    def heads(self) -> HeadIndex:
        return self.units[0].heads

    @property
    def dim(self) -> int:
        return int(self.units[0].q[0].mean_x.shape[1])

    @cached_property
    def taken(self) -> NDArray[np.bool_]:
        """Which groups are in each sample. (1 + G, G)"""
        every = np.ones((1, len(self.units)), dtype=bool)
        return np.concatenate([every, ~np.eye(len(self.units), dtype=bool)]) if len(self.units) > 1 else every

    @cached_property
    def positions(self) -> list[Positions]:
        """Token positions of each sample."""
        edges = self.units[0].get(PathSum).q.window(self.width).edges
        lags = BinPairs.of(edges, distances(self.width))
        return [
            Positions.of(list(compress(self.units, some)), self.width, lags, edges) for some in self.taken
        ]

    @cached_property
    def tables(self) -> dict[int, list[RotationTable]]:
        """By layer, of each sample; layers of one rotation share theirs."""
        rotations, tables = self.units[0].rotations, dict[int, list[RotationTable]]()
        for rotation in rotations.values():
            if id(rotation) not in tables:
                tables[id(rotation)] = rotation_tables(rotation, self.dim, self.positions)
        return {layer: tables[id(rotation)] for layer, rotation in rotations.items()}

    def has(self, group: MeasureGroup) -> bool:
        """Whether the sums that a group needs were measured."""
        names = {*group.needs, *(kind.name for kind in group.sums)}
        return all(names <= unit.sums.keys() for unit in self.units)

    def sums_of(self, kind: type[S]) -> list[S]:
        """A sum over the window: over all documents, then without each group. Merged once for all blocks."""
        with self._lock:
            if kind not in self._samples:
                self._samples[kind] = samples_of(self.units, kind, self.width)
            return cast("list[S]", self._samples[kind])

    def blocks(self) -> list[Block]:
        """The rows of all heads, in blocks of one rotation."""
        number = {id(rotation): i for i, rotation in enumerate(self.units[0].rotations.values())}
        kinds = [number.get(id(self.units[0].rotations.get(int(layer))), -1) for layer in self.heads.layer]
        size = max(1, BLOCK_ELEMENTS // self.dim**2)
        return blocks(self.heads, size, kinds)


class HeadBlock:
    """What `compute` of a measure gets: H query heads of one rotation and the K key heads they read."""

    def __init__(self, cell: Cell, rows: Block) -> None:
        self.cell, self.rows = cell, rows

    def __len__(self) -> int:
        return len(self.rows.queries)

    @property
    def samples(self) -> int:
        """1 + G."""
        return len(self.cell.taken)

    @property
    def width(self) -> int:
        return self.cell.width

    @cached_property
    def layers(self) -> NDArray[np.int64]:
        return self.cell.heads.layer[self.rows.queries]

    @cached_property
    def scale(self) -> Array:
        """The factor that turns q.k into a score; NaN where it is not known. (H,)"""
        scales = self.cell.units[0].scales
        return np.array([scales.get(int(layer), np.nan) for layer in self.layers])

    @property
    def tables(self) -> list[RotationTable]:
        """The rotation of its layers, at the positions of each sample."""
        return self.cell.tables[int(self.layers[0])]

    @cached_property
    def groups(self) -> list[tuple[Moments, Moments]]:
        """(q, k) moments of each group over the window. Merging rings is done once for all measures."""
        rows = self.rows.queries, self.rows.keys
        return [window(unit, self.width, rows=rows) for unit in self.cell.units]

    @cached_property
    def moments(self) -> list[tuple[Moments, Moments]]:
        """(q, k) of each sample: rows of q are the H queries, rows of k the K keys."""
        return with_left_out(self.groups)

    def sums_of(self, kind: type[S]) -> list[S]:
        """A sum of all heads over the window, of each sample; the block's are at `rows.queries` and `rows.keys`."""
        return self.cell.sums_of(kind)

    @cached_property
    def unmeasured(self) -> NDArray[np.bool_]:
        """Heads with a query or key that is not finite. (H,)"""
        return met_bad(*self.moments[0])

    @cached_property
    def axes(self) -> Axes:
        return measure_batch(self.groups, self.cell.components, self.moments)

    @cached_property
    def sums(self) -> list[SampleSums]:
        """Moments, paths and first axes of each sample."""
        first = np.concatenate([self.axes.v[None, :, :, 0], self.axes.loo_v])
        kinds = (self._kind(i, rows) for i, rows in enumerate((self.rows.queries, self.rows.keys)))
        return [
            SampleSums(q, k, v, self.scale, at, table)
            for q, k, v, at, table in zip(*kinds, first, self.cell.positions, self.tables, strict=True)
        ]

    def _kind(self, index: int, rows: NDArray[np.int64]) -> list[Kind]:
        """The queries (index 0) or the keys (index 1) at `rows` in each sample."""
        rotation, late = self.tables[0].rotation, [group[index] for group in self.groups]
        if self.width > SINK:
            sinks = [(unit.sink_q, unit.sink_k)[index].select(rows) for unit in self.cell.units]
            late = [moments.without(sink) for moments, sink in zip(late, sinks, strict=True)]
        sums = [unit.get(PathSum) for unit in self.cell.units]
        paths = [(each.q, each.k)[index].window(self.width).select(rows) for each in sums]
        groups, whole = GroupPaths.of(rotation, late, paths), reduce(Path.merge, paths)
        left_out = [as_left_out(rotation, whole.without(path)) for path in paths if len(paths) > 1]
        by_sample = (
            [sample[index] for sample in self.moments],
            whole_and_without(late),
            [whole, *left_out],
            [groups, *[as_left_out(rotation, groups)] * len(left_out)],
            self.cell.taken,
        )
        return [Kind(*parts) for parts in zip(*by_sample, strict=True)]


@dataclass(frozen=True)
class CellNumbers:
    """What was measured of the H heads of a cell.

    arrays  by variable: (1 + G, H) where sampled, (H, *dims) otherwise; sampled ones with dims have a `_se` beside
            them. Without H where a variable is not per head
    v       (H, d, components) the axes; loo_v (G, H, d) the first axis of each left-out sample
    """

    heads: HeadIndex
    window: int
    arrays: Mapping[str, Array]
    v: Array
    loo_v: Array

    @property
    def groups(self) -> int:
        """Groups of documents, 0 where nothing was left out."""
        return len(self.loo_v)

    def value(self, name: str) -> Array:
        """A variable over all documents. (H,)"""
        array = self.arrays[name]
        return array[0] if variables()[name].sampled else array

    def error(self, name: str) -> Array:
        """Jackknife standard error (H,). NaN along an axis that some left-out sample does not have."""
        variable, error = variables()[name], jackknife(self.arrays[name][1:])
        return np.where(self.arrays[variable.axis_lost] > 0, np.nan, error) if variable.along_axis else error


def join_numbers(parts: Sequence[CellNumbers]) -> CellNumbers:
    """The heads of all parts, one after the other. Parts with fewer groups or entries are padded with NaN."""
    heads = HeadIndex.from_meta(
        {
            name: np.concatenate([getattr(p.heads, name) for p in parts]).tolist()
            for name in parts[0].heads.to_meta()
        }
    )
    names = [name for name in parts[0].arrays if all(name in part.arrays for part in parts)]

    def joined(arrays: Sequence[Array], samples_first: bool) -> Array:
        found = _join([array.swapaxes(0, 1) if samples_first else array for array in arrays])
        return found.swapaxes(0, 1) if samples_first else found

    arrays = {
        name: parts[0].arrays[name]
        if _is_whole(name)
        else joined([p.arrays[name] for p in parts], _is_sampled(name))
        for name in names
    }
    v, loo_v = np.concatenate([part.v for part in parts]), joined([part.loo_v for part in parts], True)
    return CellNumbers(heads, max(part.window for part in parts), arrays, v, loo_v)


def measure(units: Sequence[Unit], width: int, components: int = COMPONENTS) -> Axes:
    """Principal axes, r_q and r_k of all heads over the first `width` tokens. `units` has one unit per document group.

    Standard errors are delete-one-group jackknife errors; with fewer than two groups they are NaN.
    """
    parts, order = _by_block(Cell.of(units, width, components), lambda block: block.axes)
    found = {}
    for name in (each.name for each in fields(Axes)):
        axis = 1 if name.startswith("loo_") else 0
        found[name] = np.concatenate([getattr(part, name) for part in parts], axis).take(order, axis)
    return Axes(**found)


def measure_cell(cell: Cell, groups: Sequence[MeasureGroup]) -> CellNumbers:
    """All variables of `groups`, block by block on every core. Groups whose sums are missing are left out."""
    wanted = [group for group in groups if cell.has(group)]

    def one(block: HeadBlock) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for group in wanted:
            computed = group.compute(block) if group.compute else {}
            for variable in group.variables if group.compute else ():
                found |= _stored(variable, computed, block.unmeasured)
        return found | {"v": block.axes.v, "loo_v": block.axes.loo_v.transpose(1, 0, 2)}

    if all(unit.find(PathSum) for unit in cell.units):
        with one_thread_each():
            cell.tables  # noqa: B018  # computed once, before threads ask for it
    found, order = _by_block(cell, one)
    joined = {name: _join([part[name] for part in found])[order] for name in found[0]}
    v, loo_v = joined.pop("v"), joined.pop("loo_v").transpose(1, 0, 2)
    arrays = {name: array.T.copy() if _is_sampled(name) else array for name, array in joined.items()}
    for group in wanted:
        computed = group.compute_cell(cell) if group.compute_cell else {}
        for variable in group.variables if group.compute_cell else ():
            arrays |= _stored(variable, computed, None)
    return CellNumbers(cell.heads, cell.width, arrays, v, loo_v)


def _by_block(cell: Cell, work: Callable[[HeadBlock], T]) -> tuple[list[T], NDArray[np.int64]]:
    """What `work` returns for every block, on all cores; and the order that sorts their heads, one after the other."""
    blocks = cell.blocks()
    with one_thread_each(), ThreadPoolExecutor(cores()) as pool:
        found = list(
            pool.map(lambda rows: work(HeadBlock(cell, rows)), blocks)
        )  # a block's matrices are freed with it
    return found, np.argsort(np.concatenate([rows.queries for rows in blocks]))


def _is_sampled(name: str) -> bool:
    """Whether a variable's array has samples in its first dimension."""
    variable = variables().get(name)
    return variable is not None and variable.sampled and not variable.dims


def _is_whole(name: str) -> bool:
    """Whether an array is of the whole cell, not per head."""
    variable = variables().get(name.removesuffix("_se"))
    return variable is not None and not variable.per_head


def _stored(
    variable: Variable, computed: Mapping[str, Array], bad: NDArray[np.bool_] | None
) -> dict[str, Array]:
    """A variable as it is stored: (1 + G, ...), or (*dims) with a `_se` beside it; of a block, heads come first.

    bad (H,): heads of a block with a query or key that is not finite; they are NaN in sampled variables. None: not per
    head.
    """
    name, array = variable.name, np.asarray(computed[variable.name])
    if not variable.sampled:
        return {name: array}
    if f"{name}_se" in computed:
        return {name: array, f"{name}_se": np.asarray(computed[f"{name}_se"])}
    if bad is not None:
        array = np.where(bad.reshape(1, -1, *[1] * len(variable.dims)), np.nan, array)
    if variable.dims:
        return {name: array[0], f"{name}_se": jackknife(array[1:])}
    return {name: array if bad is None else array.T}


def _join(parts: Sequence[Array]) -> Array:
    """Blocks one after the other; extra dimensions are padded with NaN to the largest."""
    shape = np.max([part.shape[1:] for part in parts], axis=0)
    missing = [[(0, 0), *((0, n - m) for n, m in zip(shape, part.shape[1:], strict=True))] for part in parts]
    return np.concatenate(
        [
            np.pad(part, widths, constant_values=np.nan) if np.any(widths) else part
            for part, widths in zip(parts, missing, strict=True)
        ]
    )
