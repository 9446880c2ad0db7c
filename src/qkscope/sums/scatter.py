"""Scatter matrices -> half the bytes of their upper triangles, and back.

M is kept as its diagonal in float64 and, above it, M_ij / sqrt(M_ii M_jj) as whole multiples of a step, in int32. The
step is a power of two a head, just large enough for its largest correlation: what is lost is at most 2^-32 of
sqrt(M_ii M_jj), where float32 would lose up to 2^-25 of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BITS = 31
# Numbers of float64 that a block of heads has.
BLOCK = 2**17


def pack_scatter(name: str, M: Array) -> dict[str, NDArray[Any]]:
    """M (H, d, d), symmetric, as arrays of a file. A head whose M is not finite comes back as NaN off the diagonal."""
    heads, dim, _ = M.shape
    codes = np.empty((heads, dim * (dim - 1) // 2), dtype=np.int32)
    step = np.empty(heads)
    for some in _blocks(heads, dim):
        codes[some], step[some] = _codes(M[some])
    return {name: codes, f"{name}.diagonal": np.diagonal(M, axis1=1, axis2=2).copy(), f"{name}.step": step}


@dataclass(frozen=True)
class PackedScatter:
    """The matrices (H, d, d) that `pack_scatter` took apart, unpacked head by head when they are used.

    codes (H, d (d-1) / 2) int32 · diagonal (H, d) · step (H,). The matrices take three times the memory.
    """

    codes: NDArray[np.int32]
    diagonal: Array
    step: Array

    @classmethod
    def of(cls, tensors: Mapping[str, NDArray[Any]], name: str) -> PackedScatter:
        return cls(*(tensors[name + part] for part in ("", ".diagonal", ".step")))

    @property
    def shape(self) -> tuple[int, int, int]:
        heads, dim = self.diagonal.shape
        return heads, dim, dim

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:]

    def __getitem__(self, rows: Any) -> Array:
        """The matrices of the heads at `rows`: a number, an index array or a slice."""
        if isinstance(rows, int | np.integer):
            return np.asarray(self[rows : rows + 1][0])
        codes, diagonal, step = self.codes[rows], self.diagonal[rows], self.step[rows]
        heads, dim = diagonal.shape
        full = np.empty((heads, dim, dim))
        for some in _blocks(heads, dim) if dim > 1 else ():
            scale, here = np.sqrt(diagonal[some]), full[some]
            packed = codes[some] * step[some, None]
            # With mode "clip", numpy needs no buffer besides `out`.
            packed.take(_square(dim), axis=1, out=here.reshape(len(here), -1), mode="clip")
            here *= scale[:, :, None] * scale[:, None, :]
        at = np.arange(dim)
        full[:, at, at] = diagonal
        return full


def _codes(M: Array) -> tuple[NDArray[np.int32], Array]:
    """Whole multiples (H, d (d-1) / 2) and steps (H,)."""
    heads, dim, _ = M.shape
    scale = np.sqrt(np.diagonal(M, axis1=1, axis2=2))
    # A dimension that does not vary varies with no other.
    scale = np.where(scale == 0, np.inf, scale)
    with np.errstate(invalid="ignore"):
        whole = M / (scale[:, :, None] * scale[:, None, :])
    packed = whole.reshape(heads, dim * dim).take(_above(dim), axis=1)
    largest = np.maximum(packed.max(axis=1, initial=0.0), -packed.min(axis=1, initial=0.0))
    finite = np.isfinite(largest)
    packed[~finite] = 0.0
    exponent = np.frexp(np.where(finite, largest, 0.0))[1] - BITS
    # A power of two changes no digit.
    packed *= np.ldexp(1.0, -exponent)[:, None]
    np.rint(packed, out=packed)
    np.clip(packed, 1 - 2**BITS, 2**BITS - 1, out=packed)
    return packed.astype(np.int32), np.where(finite, np.ldexp(1.0, exponent), np.nan)


def _blocks(heads: int, dim: int) -> list[slice]:
    """Some heads at a time: what is computed on the way stays in the processor's cache."""
    size = max(1, BLOCK // dim**2)
    return [slice(start, start + size) for start in range(0, heads, size)]


@lru_cache(maxsize=4)
def _above(dim: int) -> NDArray[np.int64]:
    """Indices of the entries above the diagonal of a matrix laid out row by row."""
    rows, columns = np.triu_indices(dim, 1)
    return rows * dim + columns


@lru_cache(maxsize=4)
def _square(dim: int) -> NDArray[np.int64]:
    """For each entry of the matrix, laid out row by row, its place among those above the diagonal; 0 on it."""
    rows, columns = np.triu_indices(dim, 1)
    index = np.zeros((dim, dim), dtype=np.int64)
    index[rows, columns] = index[columns, rows] = np.arange(len(rows))
    return index.ravel()
