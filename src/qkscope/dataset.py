"""The labelled dataset: every number of a study as variables over (cell, sample, head).

    cell    a (checkpoint, window) that was measured; coordinates `checkpoint`, `window`, `own`, `matched`, `groups`,
            `weights_of`, `rotation_of` (the last two differ from `checkpoint` in counterfactual cells)
    sample  0 = all documents, g = without group g
    head    union of (layer, head) over the study; coordinates `layer` and `number`

Maps, curves and spectra have further dimensions instead of `sample`, and their error in a variable `<name>_se`. Where a cell
has no such head, group or entry, the value is NaN.

`measures.safetensors` holds sample 0 in float64 and the other samples as float32 differences from it. Dimensions, coordinates,
labels, units and a digest per variable are JSON in its header. Variables are read when they are first used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope import store
from qkscope.errors import StoreError
from qkscope.measures.registry import Variable

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

NAME = "measures.safetensors"
FORMAT = 1
LEFT_OUT = ".left_out"
# A header names variables, cells and heads; that of a study of 154 checkpoints with 1,024 heads has 0.1 MB.
HEADER_BYTES = 64_000_000
_TYPES = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4")}
_AGAIN = "run the study again to have it rewritten"


@dataclass(frozen=True)
class CellInfo:
    """Which cell it is: coordinates of the dimension `cell`."""

    checkpoint: str
    window: int
    own: bool
    matched: bool
    groups: int
    weights_of: str
    rotation_of: str


@dataclass(frozen=True)
class Labels:
    """Coordinates of a dataset. head (H, 2): layer and number; `lengths` of the further dimensions."""

    cells: tuple[CellInfo, ...]
    heads: tuple[tuple[int, int], ...]
    lengths: Mapping[str, int] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return 1 + max((cell.groups for cell in self.cells), default=0)

    def shape(self, variable: Variable) -> tuple[int, ...]:
        return (len(self.cells), len(self.heads), *(self.lengths[name] for name in variable.dims))


@dataclass(frozen=True)
class CellArrays:
    """One cell's arrays: (1 + G, H) where sampled and without dims, else (H, *dims); rows follow `heads`."""

    heads: Sequence[tuple[int, int]]
    arrays: Mapping[str, NDArray[Any]]


def write_dataset(
    path: Path, cells: Sequence[CellInfo], variables: Sequence[Variable], numbers: Sequence[CellArrays]
) -> None:
    """Write all cells as one file, a variable at a time; `numbers` may read its arrays from disk."""
    heads = tuple(sorted({head for each in numbers for head in each.heads}))
    known = [v for v in variables if any(v.name in each.arrays for each in numbers)]
    lengths: dict[str, int] = {}
    for variable in known:
        for each in numbers:
            shape = each.arrays[variable.name].shape if variable.name in each.arrays else ()
            for name, length in zip(variable.dims, shape[len(shape) - len(variable.dims) :], strict=False):
                lengths[name] = max(lengths.get(name, 0), int(length))
    labels = Labels(tuple(cells), heads, lengths)
    row = {head: i for i, head in enumerate(heads)}
    rows = [np.array([row[head] for head in each.heads], dtype=np.int64) for each in numbers]
    entries = [entry for variable in known for entry in _entries(variable, labels)]
    header = _header(labels, known, entries, dict.fromkeys((name for name, *_ in entries), "0" * 64))
    digests: dict[str, str] = {}
    with store.replacing(path) as temporary, temporary.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for variable in known:
            for name, array in _gathered(variable, labels, numbers, rows):
                data = np.ascontiguousarray(array)
                digests[name] = hashlib.sha256(data.data).hexdigest()
                file.write(data.data)
        whole = _header(labels, known, entries, digests)
        file.seek(8)
        file.write(whole)


def _entries(variable: Variable, labels: Labels) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(name, type, shape) of the arrays of a variable."""
    shape = labels.shape(variable)
    yield variable.name, "F64", shape
    if variable.sampled and variable.dims:
        yield f"{variable.name}_se", "F32", shape
    elif variable.sampled:
        yield f"{variable.name}{LEFT_OUT}", "F32", (shape[0], labels.samples - 1, shape[1])


def _header(
    labels: Labels,
    variables: Sequence[Variable],
    entries: Sequence[tuple[str, str, tuple[int, ...]]],
    digests: Mapping[str, str],
) -> bytes:
    described = {
        "format": FORMAT,
        "cells": [asdict(cell) for cell in labels.cells],
        "heads": labels.heads,
        "lengths": dict(labels.lengths),
        "variables": [asdict(variable) for variable in variables],
        "digests": dict(digests),
    }
    table: dict[str, Any] = {"__metadata__": {"dataset": json.dumps(described, ensure_ascii=False)}}
    at = 0
    for name, kind, shape in entries:
        stop = at + int(np.prod(shape, dtype=np.int64)) * _TYPES[kind].itemsize
        table[name] = {"dtype": kind, "shape": shape, "data_offsets": (at, stop)}
        at = stop
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    return text + b" " * (-len(text) % 8)


def _gathered(
    variable: Variable, labels: Labels, numbers: Sequence[CellArrays], rows: Sequence[NDArray[np.int64]]
) -> Iterator[tuple[str, NDArray[Any]]]:
    """The arrays of one variable over all cells, padded with NaN."""
    for name, kind, size in _entries(variable, labels):
        whole = np.full(size, np.nan, dtype=_TYPES[kind])
        for i, (each, at) in enumerate(zip(numbers, rows, strict=True)):
            source = name.removesuffix(LEFT_OUT)
            if source not in each.arrays:
                continue
            array = np.asarray(each.arrays[source])
            if name.endswith(LEFT_OUT):
                whole[i, : len(array) - 1, at] = (array[1:] - array[:1]).T
            elif variable.sampled and not variable.dims:
                whole[i, at] = array[0]
            else:
                inner = tuple(slice(length) for length in array.shape[1:])
                whole[(i, at, *inner)] = array
        yield name, whole


class Measures:
    """An open `measures.safetensors`: names, labels and, on request, the arrays."""

    def __init__(self, path: Path) -> None:
        """Check header and size; a StoreError names the file and what is wrong. Arrays are not read yet."""
        self.path = Path(path)
        with store.clear_errors(self.path), self.path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            data = file.read(size) if size <= HEADER_BYTES else b""
            whole = os.fstat(file.fileno()).st_size
        try:
            table = json.loads(data)
            described = json.loads(table.pop("__metadata__")["dataset"])
            if described["format"] != FORMAT:
                raise ValueError(f"format {described['format']!r} instead of {FORMAT}")
            self.labels = _labels(described)
            self.variables = {v.name: v for v in map(_variable, described["variables"])}
            self._digests = {str(name): str(digest) for name, digest in described["digests"].items()}
            self._entries = _checked(table, self.labels, self.variables, self._digests, whole - 8 - size)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise StoreError(f"{self.path}: damaged ({store.in_short(error)}); {_AGAIN}") from error
        self._start = 8 + size

    def __contains__(self, name: object) -> bool:
        return name in self.variables

    def array(self, name: str) -> Array:
        """A variable over (cell, sample, head), or (cell, head, *dims); `<name>_se` of one with dims. Float64."""
        variable = self.variables.get(name)
        whole = self._read(name)
        if variable is None or not variable.sampled or variable.dims:
            return whole
        left = self._read(f"{name}{LEFT_OUT}")  # (cell, G, head)
        return np.concatenate([whole[:, None], whole[:, None] + left], axis=1)

    def _read(self, name: str) -> Array:
        kind, shape, start, stop = self._entries[name]
        with store.clear_errors(self.path), self.path.open("rb") as file:
            file.seek(self._start + start)
            data = file.read(stop - start)
        if hashlib.sha256(data).hexdigest() != self._digests[name]:
            raise StoreError(f"{self.path}: damaged (the bytes of {name} are not those that were written); {_AGAIN}")
        return np.frombuffer(data, dtype=kind).reshape(shape).astype(np.float64)

    def dataset(self) -> xr.Dataset:
        """As xarray; each variable is read when its values are first used, and then kept."""
        import xarray as xr
        from xarray.core import indexing

        found: dict[str, xr.Variable] = {}
        for name, dims, shape, attrs in self._described():
            lazy = indexing.LazilyIndexedArray(_backend(self, name, shape))
            found[name] = xr.Variable(dims, indexing.MemoryCachedArray(lazy), attrs)
        return xr.Dataset(found, coords=_coords(self.labels))

    def _described(self) -> Iterator[tuple[str, tuple[str, ...], tuple[int, ...], dict[str, str]]]:
        labels = self.labels
        for v in self.variables.values():
            attrs = {"label": v.label, "units": v.units, "description": v.description}
            shape = labels.shape(v)
            if v.sampled and not v.dims:
                attrs["along_axis"] = str(int(v.along_axis))
                yield v.name, ("cell", "sample", "head"), (shape[0], labels.samples, shape[1]), attrs
                continue
            yield v.name, ("cell", "head", *v.dims), shape, attrs
            if v.sampled:
                error = attrs | {"label": f"error of {v.label}", "description": "jackknife standard error"}
                yield f"{v.name}_se", ("cell", "head", *v.dims), shape, error


def _backend(measures: Measures, name: str, shape: tuple[int, ...]) -> Any:
    from xarray.backends import BackendArray
    from xarray.core import indexing

    class OnDisk(BackendArray):
        def __init__(self) -> None:
            self.shape, self.dtype = shape, np.dtype(np.float64)

        def __getitem__(self, key: Any) -> Any:
            support = indexing.IndexingSupport.BASIC
            return indexing.explicit_indexing_adapter(key, self.shape, support, lambda k: measures.array(name)[k])

    return OnDisk()


def _coords(labels: Labels) -> dict[str, Any]:
    cells = labels.cells
    coords: dict[str, Any] = {
        name: ("cell", np.array([getattr(cell, name) for cell in cells], dtype=kind))
        for name, kind in (
            ("checkpoint", object), ("window", np.int64), ("own", bool), ("matched", bool), ("groups", np.int64),
            ("weights_of", object), ("rotation_of", object),
        )
    }  # fmt: skip
    layer, number = np.array(labels.heads, dtype=np.int64).reshape(-1, 2).T
    coords |= {"layer": ("head", layer), "number": ("head", number)}
    coords["head"] = [f"L{a}H{b}" for a, b in labels.heads]
    coords["sample"] = np.arange(labels.samples)
    for name, length in labels.lengths.items():
        coords[name] = np.arange(length) - (name == "pair")  # pair -1 is all that does not rotate
    return coords


def _labels(described: Mapping[str, Any]) -> Labels:
    cells = tuple(CellInfo(**cell) for cell in described["cells"])
    for cell in cells:
        flags = type(cell.own) is bool and type(cell.matched) is bool
        numbers = all(type(n) is int and 0 <= n < 2**31 for n in (cell.window, cell.groups))
        names = all(isinstance(n, str) and n for n in (cell.checkpoint, cell.weights_of, cell.rotation_of))
        if not (flags and numbers and names):
            raise ValueError(f"not a cell: {str(cell)[:80]}")
    if len({(cell.checkpoint, cell.window) for cell in cells}) < len(cells):
        raise ValueError("two cells of one checkpoint and window")
    heads = tuple((int(layer), int(number)) for layer, number in described["heads"])
    if len(set(heads)) < len(heads) or any(n < 0 for head in heads for n in head):
        raise ValueError("heads that are not (layer, number), each once")
    return Labels(cells, heads, {str(name): int(n) for name, n in described["lengths"].items()})


def _variable(record: Mapping[str, Any]) -> Variable:
    variable = Variable(**{**record, "dims": tuple(record["dims"])})
    texts = (variable.name, variable.label, variable.units, variable.description, *variable.dims)
    if not all(isinstance(text, str) for text in texts) or not variable.name:
        raise ValueError(f"not a variable: {str(record)[:80]}")
    return variable


def _checked(
    table: Mapping[str, Any],
    labels: Labels,
    variables: Mapping[str, Variable],
    digests: Mapping[str, str],
    room: int,
) -> dict[str, tuple[np.dtype[Any], tuple[int, ...], int, int]]:
    """Every array that the variables need, with the shape that the labels ask for, within the file."""
    found = {}
    for variable in variables.values():
        for name, kind, shape in _entries(variable, labels):
            entry = table[name]
            start, stop = (int(n) for n in entry["data_offsets"])
            size = int(np.prod(shape, dtype=object)) * _TYPES[kind].itemsize
            if entry["dtype"] != kind or tuple(entry["shape"]) != shape or stop - start != size:
                raise ValueError(f"{name} is {entry['dtype']} {entry['shape']}, expected {kind} {list(shape)}")
            if not 0 <= start <= stop <= room:
                raise ValueError(f"{name} lies outside the file")
            digests[name]  # noqa: B018  # a KeyError names what is missing
            found[name] = _TYPES[kind], shape, start, stop
    if sum(stop - start for _, _, start, stop in found.values()) != room:
        raise ValueError("the arrays do not fill the file")
    return found


# --- aggregation ------------------------------------------------------------------------------------------------------


def over_heads(values: xr.DataArray, where: xr.DataArray | None = None) -> xr.DataArray:
    """The mean over heads (all, or those `where` is true in sample 0's terms), sample by sample.

    Sample 0 averages the heads that are finite there. A head that is missing from one left-out sample would shift that
    sample's mean by its own level, so left-out samples average the heads finite in all of them, about the same mean.
    """
    import xarray as xr

    with xr.set_options(arithmetic_join="exact"):
        chosen = values if where is None else values.where(where)
        if "sample" not in chosen.dims:
            return chosen.mean("head")
        whole = chosen.isel(sample=0, drop=True)
        full = whole.mean("head")
        real = xr.where(chosen["sample"] <= chosen["groups"], 1.0, np.nan)
        kept = chosen.where((np.isfinite(chosen) | np.isnan(real)).all("sample"))
        shift = (kept - kept.isel(sample=0, drop=True)).mean("head")
        return (full + shift).where(real.notnull()).transpose(..., "sample")


def difference(values: xr.DataArray, before: Any, after: Any, dim: str = "checkpoint") -> xr.DataArray:
    """`after` minus `before` along `dim`, within each sample: both were measured on the same documents."""
    import xarray as xr

    with xr.set_options(arithmetic_join="exact"):
        later, earlier = (values.sel({dim: at}).drop_vars(_other_coords(values, dim), errors="ignore") for at in (after, before))
        groups = np.minimum(values["groups"].sel({dim: after}).item(), values["groups"].sel({dim: before}).item())
        return (later - earlier).assign_coords(groups=groups)


def _other_coords(values: xr.DataArray, dim: str) -> list[str]:
    return [str(name) for name, coord in values.coords.items() if coord.dims == (dim,)]


def jackknife(values: xr.DataArray) -> xr.DataArray:
    """Delete-one-group standard error: sqrt((G-1)/G sum_g (a_g - mean a)^2) over the left-out samples.

    NaN with fewer than two groups, where a left-out value is missing, and where groups agree in every digit (the same
    documents in all of them, which is no certainty).
    """
    left = values.isel(sample=slice(1, None))
    real = left["sample"] <= left["groups"]
    count = left["groups"]
    missing = (real & left.isnull()).any("sample")
    mean = left.where(real).sum("sample") / count.where(count > 0)
    spread = ((left - mean) ** 2).where(real).sum("sample")
    error = ((count - 1) / count.where(count > 1) * spread) ** 0.5
    return error.where(~missing & (error >= 1e-12))
