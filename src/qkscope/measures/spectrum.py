"""Which frequencies carry a head's vectors and its position signal: shares by rotary pair.

With x the vectors and v the axis: energy = E|x_pair|^2 / E|x|^2, and r_pair = v_pair.C_pair / sqrt(v.M.v * T), the
part of Pearson's r that comes from the pair, so that the pairs sum to r. Dimensions that do not rotate are one entry,
the last, of endless wavelength.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.blocks import per_query
from qkscope.measures.position import Along
from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.sums.moments import Moments
from qkscope.sums.rotation import Rotation

if TYPE_CHECKING:
    from qkscope.measures.cell import HeadBlock

Array = NDArray[np.float64]


def wavelengths(rotation: Rotation) -> Array:
    """Tokens per turn of each pair, then inf for what does not rotate. (P + 1,)"""
    return np.append(rotation.wavelength, np.inf)


def energy(sums: Moments, rotation: Rotation) -> Array:
    """Each pair's share of E|x|^2. (H, P + 1), rows sum to 1"""
    n = np.maximum(sums.n, 1)[:, None]
    squares = np.einsum("hdd->hd", sums.M) / n + sums.mean_x**2
    total = squares.sum(axis=1, keepdims=True)
    return by_pair(squares / np.where(total > 0, total, np.nan), rotation)


def signal(along: Along, rotation: Rotation) -> Array:
    """Each pair's part of r along the axes. (H, P + 1), rows sum to r"""
    return by_pair(along.over_spread(along.v * per_query(along.sums.C, len(along.v))), rotation)


def by_pair(values: Array, rotation: Rotation) -> Array:
    """Sums over the two dimensions of each pair, then over the unrotated ones: (H, d) -> (H, P + 1)."""
    turning = values[:, rotation.pairs].sum(axis=2)
    return np.concatenate([turning, values[:, rotation.still].sum(axis=1, keepdims=True)], axis=1)


def compute(block: HeadBlock) -> Mapping[str, Array]:
    """Energy and signal by pair. The first entry (pair -1) is all that does not rotate, NaN where everything does."""
    rotation, count = block.tables[0].rotation, len(block)
    shape = (block.samples, count, len(rotation.pairs) + 1)
    wavelength = np.broadcast_to(np.roll(wavelengths(rotation), 1), shape[1:])
    if not block.tables[0].known:
        empty = np.full(shape, np.nan)
        names = ("energy_q", "energy_k", "signal_q", "signal_k")
        return {"wavelength": np.full(shape[1:], np.nan), **dict.fromkeys(names, empty)}
    found: dict[str, Array] = {"wavelength": wavelength}
    for name in "qk":
        along = [sums.along[name][0] for sums in block.sums]
        shares = [per_query(energy(each.sums, rotation), count) for each in along]
        found[f"energy_{name}"] = np.roll(np.stack(shares), 1, axis=2)
        found[f"signal_{name}"] = np.roll(np.stack([signal(each, rotation) for each in along]), 1, axis=2)
        if not len(rotation.still):
            for values in (found[f"energy_{name}"], found[f"signal_{name}"]):
                values[:, :, 0] = np.nan
    return found


GROUP = MeasureGroup(
    name="spectrum",
    needs=("moments", "path"),
    compute=compute,
    variables=(
        Variable("wavelength", "wavelength", "tokens", "tokens per turn of a rotary pair; inf: does not rotate",
                 ("pair",), sampled=False),
        Variable("energy_q", "energy of queries", "share", "share of E|q|^2 by rotary pair", ("pair",)),
        Variable("energy_k", "energy of keys", "share", "share of E|k|^2 by rotary pair", ("pair",)),
        Variable("signal_q", "part of r_q", "", "part of r_q that a rotary pair carries; sums to r_q", ("pair",)),
        Variable("signal_k", "part of r_k", "", "part of r_k that a rotary pair carries; sums to r_k", ("pair",)),
    ),
)  # fmt: skip
