"""A layer's rotary map R_t as plain numbers: which dimensions turn together, how fast, and how much they grow.

At position t the pair p = (i, j) turns by the angle a = t * frequency[p]:

    x_i = scale (u_i cos a - u_j sin a),   x_j = scale (u_i sin a + u_j cos a)

Dimensions in no pair stay as they are; a layer without rotation has no pairs. Knows nothing of models: what a model
does is determined by `capture.probe_rotation` and written down here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Dims = NDArray[np.int64] | slice
Turns = tuple[Array, Array]


@dataclass(frozen=True)
class Rotation:
    """R_t of one layer: `pairs` (P, 2) dimensions, `frequency` (P,) radians a token, `scale` of the turned ones."""

    dim: int
    pairs: NDArray[np.int64]
    frequency: Array
    scale: float = 1.0

    @classmethod
    def none(cls, dim: int) -> Rotation:
        """The identity: a layer without rotary embedding."""
        return cls(dim, np.empty((0, 2), dtype=np.int64), np.empty(0))

    @classmethod
    def plain(
        cls, dim: int, theta: float, rotary_dim: int | None = None, interleaved: bool = False
    ) -> Rotation:
        """Unscaled rotary embedding: the first `rotary_dim` dimensions (all by default) in P pairs, theta^(-p/P).

        Pairs are halves apart, or neighbours where `interleaved`.
        """
        count = (dim if rotary_dim is None else rotary_dim) // 2
        first = np.arange(count)
        pairs = np.stack([2 * first, 2 * first + 1] if interleaved else [first, first + count], axis=1)
        return cls(dim, pairs, theta ** -(first / max(count, 1)))

    @property
    def wavelength(self) -> Array:
        """Tokens per full turn of each pair. (P,)"""
        return 2 * np.pi / self.frequency

    @cached_property
    def still(self) -> NDArray[np.int64]:
        """Dimensions that do not turn."""
        return np.setdiff1d(np.arange(self.dim), self.pairs)

    @cached_property
    def _halves(self) -> tuple[Dims, Dims]:
        first, second = self.pairs.T
        return as_slice(first), as_slice(second)

    def split(self, x: Array) -> tuple[Array, Array]:
        """The first and the second dimensions of the pairs: x (..., d) -> (..., P) twice."""
        first, second = self._halves
        return x[..., first], x[..., second]

    def paired(self, x: Array) -> NDArray[np.complex128]:
        """Each pair as one complex number, which rotation multiplies by exp(i t frequency): x (..., d) -> (..., P)."""
        first, second = self.split(x)
        found = np.empty(first.shape, dtype=np.result_type(x, np.complex64))
        found.real, found.imag = first, second
        return found

    def rotate(self, u: Array, t: Array) -> Array:
        """R_t u: u (..., T, d) or (..., 1, d), t (T,) -> (..., T, d)."""
        return self.turn(u, self.turns(t))

    def derotate(self, x: Array, t: Array) -> Array:
        """R_t^-1 x: x (..., T, d), t (T,) -> (..., T, d)."""
        cos, sin = self.turns(t)
        return self.turn(x, (cos / self.scale**2, -sin / self.scale**2))

    def products(self, u: Array, w: Array, count: int) -> Array:
        """(R_i u).(R_(i-D) w) at each distance 0 <= D < count, for any i: u, w (..., d) -> (..., count)."""
        # With D = a + b, exp(i D f) = exp(i a f) exp(i b f): two short tables instead of one of all distances.
        step = max(1, round(count**0.5))
        far, near = (
            np.exp(1j * np.outer(each, self.frequency))
            for each in (np.arange(0, count, step), np.arange(step))
        )
        pairs = self.scale**2 * self.paired(u) * self.paired(w).conj()
        found = ((pairs[..., None, :] * far) @ near.T).real
        still = (u[..., self.still] * w[..., self.still]).sum(axis=-1)
        return np.asarray(found.reshape(*u.shape[:-1], -1)[..., :count] + still[..., None])

    def turns(self, t: Array) -> Turns:
        """What `turn` needs to rotate to t (T,): scaled cosine and sine of every pair's angle, (T, P) each."""
        angle = np.asarray(t, dtype=np.float64)[:, None] * self.frequency
        return self.scale * np.cos(angle), self.scale * np.sin(angle)

    def turn(self, x: Array, turns: Turns) -> Array:
        """x (..., T, d) or (..., 1, d) turned by `turns`: (..., T, d)."""
        cos, sin = turns
        (a, b), (first, second) = self.split(x), self.pairs.T
        shape = np.broadcast_shapes(x.shape[:-1], (len(cos),))
        turned = np.empty((*shape, self.dim), dtype=np.result_type(x, cos))
        turned[..., self.still] = x[..., self.still]
        turned[..., first], turned[..., second] = a * cos - b * sin, a * sin + b * cos
        return turned


def as_slice(dims: NDArray[np.int64]) -> Dims:
    """Evenly spaced dimensions as a slice, which is a view where an index array is a copy."""
    steps = np.unique(np.diff(dims))
    if len(steps) == 1 and steps[0] > 0:
        return slice(dims[0], dims[-1] + 1, steps[0])
    return dims if len(dims) else slice(0, 0)


def same_rotation(a: Rotation | None, b: Rotation | None, length: int) -> bool:
    """Whether two rotations agree on all of the first `length` positions, to a thousandth of a radian."""
    if a is None or b is None:
        return a is b
    if a.dim != b.dim or not np.array_equal(a.pairs, b.pairs):
        return False
    drift = np.abs(a.frequency - b.frequency).max(initial=0.0) * length
    return bool(drift < 1e-3 and abs(a.scale / b.scale - 1) < 1e-4)


def pack_rotations(
    rotations: Mapping[int, Rotation | None],
) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]]:
    """Arrays and a description for a file: each rotation once, with the layers that have it."""
    arrays: dict[str, NDArray[Any]] = {}
    found: dict[bytes, dict[str, Any]] = {}
    for layer, rotation in sorted(rotations.items()):
        parts = () if rotation is None else (rotation.pairs, rotation.frequency, np.float64(rotation.scale))
        entry = found.setdefault(b"|".join(part.tobytes() for part in parts), {"layers": []})
        entry["layers"].append(layer)
        if rotation is not None and "scale" not in entry:
            entry |= {"number": len(found) - 1, "dim": rotation.dim, "scale": rotation.scale}
            name = f"rotation.{entry['number']}"
            arrays |= {f"{name}.pairs": rotation.pairs, f"{name}.frequency": rotation.frequency}
    return arrays, list(found.values())


def unpack_rotations(
    tensors: Mapping[str, NDArray[Any]], entries: list[dict[str, Any]]
) -> dict[int, Rotation | None]:
    """What `pack_rotations` took apart."""
    rotations: dict[int, Rotation | None] = {}
    for entry in entries:
        rotation = None
        if "scale" in entry:
            pairs, frequency = (
                tensors[f"rotation.{entry['number']}.{each}"] for each in ("pairs", "frequency")
            )
            rotation = Rotation(entry["dim"], pairs, frequency, entry["scale"])
        rotations |= dict.fromkeys(entry["layers"], rotation)
    return dict(sorted(rotations.items()))
