"""Units -> what r alone does not tell of each head: position, anatomy, distance curve and spectrum, with errors.

Everything is computed from all documents and again without each group of them. The first axis of an array of samples
is the whole and then each leave-one-out sample: the jackknife over rows 1 to G is the error of row 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkscope.errors import StoreError
from qkscope.measures import spectrum
from qkscope.measures.jackknife import jackknife
from qkscope.measures.layer import (
    ALONG_AXIS,
    LATE,
    MEASURES,
    Kind,
    LayerSums,
    Positions,
    head_numbers,
    mean_scores,
)
from qkscope.measures.pca import Axes, cores, one_thread_each, whole_and_without
from qkscope.measures.position import Phase, about_mean, phases
from qkscope.measures.waves import waves
from qkscope.moments import Moments, Unit, window
from qkscope.path import SINK, Path
from qkscope.rotation import Rotation

Array = NDArray[np.float64]

_Pairs = list[tuple[Moments, Moments]]

EVERY = (*MEASURES, *LATE)
# Numbers of a block of heads at a position: what is computed of one then stays in a core's cache.
BLOCK = 512


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
    lags = source.samples[0][1].lags
    curve = np.full((len(source.samples), len(heads), len(lags)), np.nan)

    def one(rows: NDArray[np.int64]) -> Spectrum | None:
        sampled = source.block(rows)
        for s, sums in enumerate(sampled):
            found = head_numbers(sums)
            values[s][:, rows] = [found[name] for name in EVERY]
            curve[s, rows] = mean_scores(sums)
        return _spectrum(rows, sampled)

    with one_thread_each(), ThreadPoolExecutor(cores()) as pool:
        blocks = _blocks(heads.layer, BLOCK // axes.v.shape[1])
        spectra = tuple(found for found in pool.map(one, blocks) if found)
    unmeasured = (axes.bad_q > 0) | (axes.bad_k > 0)
    values[:, :, unmeasured] = np.nan
    curve[:, unmeasured] = np.nan
    return Beyond(values, lags, curve, spectra, axes.lost)


@dataclass(frozen=True)
class _Source:
    """Units, a window, and the samples of groups: (groups taken, where their tokens stand).

    turns   by layer: `phases` of every sample (1 + G, 2, P), and `waves`
    """

    units: Sequence[Unit]
    width: int
    axes: Axes
    samples: list[tuple[list[int], Positions]]
    turns: dict[int, tuple[Phase, Array]]

    @classmethod
    def of(cls, units: Sequence[Unit], width: int, axes: Axes) -> _Source:
        groups = list(range(len(units)))
        taken = [groups] + ([[h for h in groups if h != g] for g in groups] if len(units) > 1 else [])
        edges = _path(units[0], 0).window(width).edges
        samples = [(some, Positions.of([units[g] for g in some], width, edges)) for some in taken]
        return cls(units, width, axes, samples, _turns(units[0], [at for _, at in samples]))

    def block(self, rows: NDArray[np.int64]) -> list[LayerSums]:
        """The heads at `rows`, all of one layer, over each sample."""
        first = self.units[0]
        layer = int(first.heads.layer[rows[0]])
        every = [window(unit, self.width, rows=rows) for unit in self.units]
        late = [window(unit, self.width, skip_sink=self.width > SINK, rows=rows) for unit in self.units]
        kinds = (self._kind(i, of, every, late) for i, of in enumerate((rows, first.heads.kv_row[rows])))
        axes = np.concatenate([self.axes.v[rows][None, :, :, 0], self.axes.loo_v[:, rows]])
        every_phase, wave = self.turns[layer]
        places = [at for _, at in self.samples]
        return [
            LayerSums(q, k, v, at, first.rotations[layer], phase, wave, first.scales[layer])
            for q, k, v, at, phase in zip(*kinds, axes, places, every_phase, strict=True)
        ]

    def _kind(self, index: int, rows: NDArray[np.int64], every: _Pairs, late: _Pairs) -> list[Kind]:
        groups = [pair[index] for pair in late]
        samples = whole_and_without([pair[index] for pair in every]), whole_and_without(groups)
        paths = [_path(unit, index).window(self.width).select(rows) for unit in self.units]
        return [
            Kind(a, b, tuple(groups[g] for g in some), tuple(paths[g] for g in some))
            for a, b, (some, _) in zip(*samples, self.samples, strict=True)
        ]


def _blocks(layers: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Rows of heads: of one layer each, and at most `size`."""
    rows = [np.flatnonzero(layers == layer) for layer in np.unique(layers)]
    return [block for each in rows for block in np.array_split(each, -(-len(each) // max(size, 1)))]


def _turns(unit: Unit, samples: Sequence[Positions]) -> dict[int, tuple[Phase, Array]]:
    """What a rotation does to positions, by layer; each rotation once."""
    weights = np.stack([about_mean(np.stack([at.since(0), at.since(SINK)])) for at in samples])
    found: dict[int, tuple[Phase, Array]] = {}
    for rotation in unit.rotations.values():
        if id(rotation) not in found:
            turning = rotation or Rotation.none(unit.sink_q.mean_x.shape[1])
            found[id(rotation)] = phases(turning, weights), waves(turning, samples[0].places.t)
    return {layer: found[id(rotation)] for layer, rotation in unit.rotations.items()}


def _path(unit: Unit, index: int) -> Path:
    path = (unit.path_q, unit.path_k)[index]
    if path is None:
        raise StoreError(
            "a unit without its path cannot be taken apart; delete its file to have it measured again"
        )
    return path


def _spectrum(rows: NDArray[np.int64], sampled: Sequence[LayerSums]) -> Spectrum | None:
    rotation = sampled[0].rotation
    if rotation is None:
        return None
    kinds = {"q": [s.q.every for s in sampled], "k": [s.k.every for s in sampled]}
    return Spectrum(
        rows,
        2 * len(rotation.pairs) < rotation.dim,
        spectrum.wavelengths(rotation),
        {name: np.stack([spectrum.energy(x, rotation) for x in sums]) for name, sums in kinds.items()},
        {
            name: np.stack([spectrum.signal(x, rotation, s.v) for x, s in zip(sums, sampled, strict=True)])
            for name, sums in kinds.items()
        },
    )
