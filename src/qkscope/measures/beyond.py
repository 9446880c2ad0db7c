"""Units -> what r alone does not tell of each head: position, anatomy, distance curve and spectrum, with errors.

Everything is computed from all documents and again without each group of them. The first axis of an array of samples
is the whole and then each leave-one-out sample: the jackknife over rows 1 to G is the error of row 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from qkscope.errors import StoreError
from qkscope.lags import distances
from qkscope.measures import spectrum
from qkscope.measures.blocks import Block, blocks, per_query
from qkscope.measures.distance import BinPairs
from qkscope.measures.jackknife import jackknife
from qkscope.measures.layer import (
    ALONG_AXIS,
    LATE,
    MEASURES,
    BlockSums,
    GroupPaths,
    Kind,
    Positions,
    Turning,
    head_numbers,
    mean_scores,
)
from qkscope.measures.pca import Axes, whole_and_without
from qkscope.moments import Moments
from qkscope.path import SINK, Path
from qkscope.rotation import Rotation
from qkscope.unit import Unit, window
from qkscope.workers import cores, one_thread_each

Array = NDArray[np.float64]

EVERY = (*MEASURES, *LATE)
# Numbers of a block of heads at a position: enough that Python is not the cost, few enough for a cache.
BLOCK = 2048


@dataclass(frozen=True)
class Spectrum:
    """The heads at `rows`, of one layer. wavelength (P + 1,); energy, signal {"q", "k"} (1 + G, rows, P + 1).

    `still` says whether there are dimensions that do not rotate: the last entry is theirs.
    """

    rows: NDArray[np.int64]
    still: bool
    wavelength: Array
    energy: dict[str, Array]
    signal: dict[str, Array]


@dataclass(frozen=True)
class Beyond:
    """What was measured of H heads. NaN where there is no such number.

    values (1 + G, len(EVERY), H) · distance (D,), curve (1 + G, H, D) · spectra of layers of known rotation
    lost (H,): leave-one-out samples without the first axis
    """

    values: Array
    distance: NDArray[np.int64]
    curve: Array
    spectra: tuple[Spectrum, ...]
    lost: NDArray[np.int64]

    def value(self, name: str) -> Array:
        """One of EVERY over all documents. (H,)"""
        return np.asarray(self.values[0, EVERY.index(name)])

    def left_out(self, name: str) -> Array:
        """The same without each group of documents. (G, H)"""
        return np.asarray(self.values[1:, EVERY.index(name)])

    def error(self, name: str) -> Array:
        """Jackknife standard error (H,). NaN along an axis that some leave-one-out sample does not have."""
        along = name.removesuffix("_from4") in (*ALONG_AXIS, "r_q", "r_k")
        return np.asarray(np.where(along & (self.lost > 0), np.nan, jackknife(self.left_out(name))))


def measure_beyond(units: Sequence[Unit], width: int, axes: Axes) -> Beyond:
    """All heads over the first `width` tokens of the documents of all units, along the first axis of `axes`."""
    units = [unit for unit in units if unit.tokens]
    heads = units[0].heads
    source = _Source.of(units, width, axes)
    values = np.full((len(source.samples), len(EVERY), len(heads)), np.nan)
    lags = source.samples[0][1].lags.lags
    curve = np.full((len(source.samples), len(heads), len(lags)), np.nan)

    def one(block: Block) -> _Spectra:
        sampled = source.block(block)
        for s, sums in enumerate(sampled):
            found = head_numbers(sums)
            values[s][:, block.queries] = [per_query(found[name], len(block.queries)) for name in EVERY]
            curve[s, block.queries] = mean_scores(sums)
        return _spectra(sampled)

    blocked = blocks(heads, BLOCK // axes.v.shape[1], [source.kinds[int(layer)] for layer in heads.layer])
    with one_thread_each(), ThreadPoolExecutor(cores()) as pool:
        spectra = _by_layer(units[0], blocked, list(pool.map(one, blocked)))
    unmeasured = (axes.bad_q > 0) | (axes.bad_k > 0)
    values[:, :, unmeasured] = np.nan
    curve[:, unmeasured] = np.nan
    return Beyond(values, lags, curve, spectra, axes.lost)


@dataclass(frozen=True)
class _Source:
    """Units, a window, and the samples of groups: (which groups are taken, where their tokens stand).

    kinds   by layer: which of `turnings`, so that heads of one rotation are measured together
    """

    units: Sequence[Unit]
    width: int
    axes: Axes
    samples: list[tuple[NDArray[np.bool_], Positions]]
    kinds: dict[int, int]
    turnings: list[Turning]

    @classmethod
    def of(cls, units: Sequence[Unit], width: int, axes: Axes) -> _Source:
        first, count = units[0], len(units)
        every = np.ones((1, count), dtype=bool)
        taken = np.concatenate([every, ~np.eye(count, dtype=bool)]) if count > 1 else every
        edges = _path(first, 0).window(width).edges
        lags = BinPairs.of(edges, distances(width))
        chosen = [[unit for unit, here in zip(units, some, strict=True) if here] for some in taken]
        samples = [Positions.of(some, width, lags, edges) for some in chosen]
        different = {id(rotation): rotation for rotation in first.rotations.values()}
        number = {known: i for i, known in enumerate(different)}
        kinds = {layer: number[id(rotation)] for layer, rotation in first.rotations.items()}
        dim = first.sink_q.mean_x.shape[1]
        turnings = [Turning.of(rotation, dim, samples) for rotation in different.values()]
        return cls(units, width, axes, list(zip(taken, samples, strict=True)), kinds, turnings)

    def block(self, block: Block) -> list[BlockSums]:
        """The heads of a block, all of one rotation, over each sample."""
        first, rows = self.units[0], (block.queries, block.keys)
        layers = first.heads.layer[block.queries]
        turning = self.turnings[self.kinds[int(layers[0])]]
        every = [window(unit, self.width, rows=rows) for unit in self.units]
        kinds = (
            self._kind(i, rows[i], turning.rotation, [pair[i] for pair in every]) for i in range(len(rows))
        )
        axes = np.concatenate([self.axes.v[block.queries][None, :, :, 0], self.axes.loo_v[:, block.queries]])
        scale = np.array([first.scales[int(layer)] for layer in layers])
        return [
            BlockSums(q, k, v, scale, at, turning, phase)
            for q, k, v, (_, at), phase in zip(*kinds, axes, self.samples, turning.phase, strict=True)
        ]

    def _kind(
        self, index: int, rows: NDArray[np.int64], rotation: Rotation, every: list[Moments]
    ) -> list[Kind]:
        late = every
        if self.width > SINK:
            sinks = [(unit.sink_q, unit.sink_k)[index].select(rows) for unit in self.units]
            late = [sums.without(sink) for sums, sink in zip(every, sinks, strict=True)]
        paths = [_path(unit, index).window(self.width).select(rows) for unit in self.units]
        groups = GroupPaths.of(rotation, late, paths)
        return [
            Kind(a, b, reduce(Path.merge, list(compress(paths, some))), groups, some)
            for a, b, (some, _) in zip(
                whole_and_without(every), whole_and_without(late), self.samples, strict=True
            )
        ]


def _path(unit: Unit, index: int) -> Path:
    path = (unit.path_q, unit.path_k)[index]
    if path is None:
        raise StoreError(
            "a unit without its mean path cannot be decomposed; delete its file to measure it again"
        )
    return path


# By kind, "q" or "k": energy and signal, (1 + G, H, P + 1) each.
_Spectra = dict[str, tuple[Array, Array]]


def _spectra(sampled: Sequence[BlockSums]) -> _Spectra:
    """Of a block's heads."""
    rotation, count = sampled[0].turning.rotation, len(sampled[0].v)
    found = {}
    for name in "qk":
        along = [block.along[name][0] for block in sampled]
        energy = [per_query(spectrum.energy(each.sums, rotation), count) for each in along]
        found[name] = np.stack(energy), np.stack([spectrum.signal(each, rotation) for each in along])
    return found


def _by_layer(unit: Unit, blocked: Sequence[Block], found: Sequence[_Spectra]) -> tuple[Spectrum, ...]:
    """The spectra of blocks, put together for each layer of known rotation."""
    spectra = []
    for layer in np.unique(unit.heads.layer):
        rotation = unit.rotations[int(layer)]
        if rotation is None:
            continue
        here = [unit.heads.layer[block.queries] == layer for block in blocked]
        rows = np.concatenate([block.queries[some] for block, some in zip(blocked, here, strict=True)])
        order = np.argsort(rows)
        energy, signal = (
            {
                name: np.concatenate(
                    [of[name][i][:, some] for of, some in zip(found, here, strict=True) if some.any()], axis=1
                )[:, order]
                for name in "qk"
            }
            for i in (0, 1)
        )
        still = 2 * len(rotation.pairs) < rotation.dim
        spectra.append(Spectrum(rows[order], still, spectrum.wavelengths(rotation), energy, signal))
    return tuple(spectra)
