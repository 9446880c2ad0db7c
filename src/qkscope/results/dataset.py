"""The labelled dataset: every number of a study as a variable over (cell, sample, head).

    cell    a (checkpoint, window) that was measured; coordinates are the fields of `CellInfo`
    sample  0 = all documents, g = without group g of them
    head    union of (layer, head) over the study; coordinates `layer` and `number`

Maps, curves and spectra have further dimensions instead of `sample`, and their standard error in `<name>_se`. The loss
is one number per cell, without `head`. Where a cell has no such head, group or entry, the value is NaN.

`measures.safetensors` stores sample 0 in float64 and the other samples as float32 differences from it. Dimensions,
coordinates, labels, units and a digest per array are JSON in its header. Variables are read when they are first used.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from qkscope import store
from qkscope.errors import StoreError
from qkscope.measures.registry import Variable, variables
from qkscope.sums.attention_rows import distance_bins
from qkscope.sums.scores import distances
from qkscope.sums.token_loss import position_bins

if TYPE_CHECKING:
    import xarray as xr

    from qkscope.measures.cell import CellNumbers

Array = NDArray[np.float64]

NAME = "measures.safetensors"
LEFT_OUT = ".left_out"
# The header lists variables, cells and heads (0.2 MB for 154 checkpoints with 1,024 heads). Limits of what is read.
HEADER_BYTES, LONGEST = 16_000_000, 1_000_000
# One array: plasticity by bucket of 150 checkpoints with 1,024 heads, over two windows, has 0.6 GB.
ARRAY_BYTES = 1 << 31
Count = Annotated[int, Field(ge=0, le=LONGEST)]
_TYPES: dict[str, np.dtype[Any]] = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4")}
# Dimensions with fixed coordinates.
_FIXED = {"distance": distances, "position_bin": position_bins, "distance_bin": distance_bins}
_AGAIN = "run the study again to rewrite it"


@dataclass(frozen=True)
class CellInfo:
    """Which checkpoint and window a cell is; its fields are coordinates of the dimension `cell`.

    own, matched   it is the checkpoint's training context; the first tokens that every checkpoint is measured over
    groups         how many groups of documents were left out in turn
    weights_of, rotation_of  differ from `checkpoint` in counterfactual cells: whose weights, whose RoPE settings
    settings       the RoPE settings themselves, so that equal ones can be found
    texts          digest of the documents: only cells with the same documents have paired errors
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    checkpoint: Annotated[str, Field(min_length=1)]
    window: Annotated[int, Field(ge=0, lt=2**31)]
    own: bool = True
    matched: bool = False
    groups: Count = 0
    weights_of: str = ""
    rotation_of: str = ""
    settings: str = ""
    texts: str = ""


@dataclass(frozen=True)
class CellData:
    """One cell's arrays by variable: (1 + G, H) where sampled and without dims, else (H, *dims); rows follow `heads`.

    Without H where a variable is not per head.
    `shapes` may be given where reading an array is not free.
    """

    info: CellInfo
    heads: Sequence[tuple[int, int]]
    arrays: Mapping[str, Array]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.shapes.get(name) or self.arrays[name].shape

    @classmethod
    def of(cls, info: CellInfo, numbers: CellNumbers) -> CellData:
        return cls(info, numbers.heads.pairs, numbers.arrays)


class Labels(BaseModel):
    """Variables, coordinates and lengths of further dimensions of a dataset: the JSON in a file's header."""

    format: Literal[1] = 1
    cells: tuple[CellInfo, ...]
    heads: tuple[tuple[Count, Count], ...]
    lengths: dict[str, Count]
    variables: tuple[Variable, ...]
    digests: dict[str, str] = {}
    """Of each stored array."""

    @property
    def samples(self) -> int:
        return 1 + max((cell.groups for cell in self.cells), default=0)

    def shape(self, variable: Variable) -> tuple[int, ...]:
        heads = (len(self.heads),) if variable.per_head else ()
        return (len(self.cells), *heads, *(self.lengths[name] for name in variable.dims))

    def layout(self) -> dict[str, dict[str, Any]]:
        """The header's entry for each stored array, in the file's order."""
        found: dict[str, dict[str, Any]] = {}
        at = 0
        for variable in self.variables:
            for name, kind, shape in _entries(variable, self):
                stop = at + math.prod(shape) * _TYPES[kind].itemsize
                found[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, stop]}
                at = stop
        return found


def dataset(cells: Sequence[CellData]) -> xr.Dataset:
    """The cells as one dataset in memory."""
    labels = _labels_of(cells)
    arrays = {name: array for v in labels.variables for name, array in _gathered(v, labels, cells)}
    return _as_xarray(labels, lambda name, shape: arrays[name])


def write_dataset(path: Path, cells: Sequence[CellData]) -> None:
    """Write the cells as one file, one variable at a time: `arrays` of a cell may be read from disk on access."""
    labels = _labels_of(cells)
    layout = labels.layout()

    def header(digests: dict[str, str]) -> bytes:
        described = labels.model_copy(update={"digests": digests}).model_dump_json()
        return store.tensors_header({"__metadata__": {"dataset": described}, **layout})

    digests = dict.fromkeys(layout, "0" * 64)
    with store.replacing(path) as temporary, temporary.open("wb") as file:
        file.write(header(digests))
        for variable in labels.variables:
            for name, array in _gathered(variable, labels, cells):
                for part, values in _stored(variable, name, array):
                    digests[part] = hashlib.sha256(values.data).hexdigest()
                    file.write(values.data)
        file.seek(0)
        file.write(header(digests))


def _labels_of(cells: Sequence[CellData]) -> Labels:
    """Labels that hold all cells, and the variables that some cell has."""
    known = [v for v in variables().values() if any(v.name in cell.arrays for cell in cells)]
    lengths: dict[str, int] = {}
    for cell in cells:
        for variable in known:
            if variable.dims and variable.name in cell.arrays:
                shape = cell.shape(variable.name)[1 if variable.per_head else 0 :]
                for name, length in zip(variable.dims, shape, strict=True):
                    lengths[name] = max(lengths.get(name, 0), length)
    heads = tuple(sorted({head for cell in cells for head in cell.heads}))
    infos = tuple(cell.info for cell in cells)
    return Labels(cells=infos, heads=heads, lengths=lengths, variables=tuple(known))


def _gathered(
    variable: Variable, labels: Labels, cells: Sequence[CellData]
) -> Iterator[tuple[str, NDArray[Any]]]:
    """The arrays of one variable over all cells, padded with NaN."""
    row = {head: i for i, head in enumerate(labels.heads)}
    sampled = variable.sampled and not variable.dims
    shape = labels.shape(variable)
    names = [variable.name, *([f"{variable.name}_se"] if variable.sampled and variable.dims else [])]
    for name in names:
        whole = np.full((shape[0], labels.samples, *shape[1:]) if sampled else shape, np.nan)
        for i, cell in enumerate(cells):
            if name not in cell.arrays:
                continue
            array, at = cell.arrays[name], np.array([row[head] for head in cell.heads], dtype=np.int64)
            if not variable.per_head:
                whole[i][np.ix_(*map(np.arange, array.shape))] = array
            elif sampled:
                whole[i, : len(array), at] = array.T
            else:
                whole[i][np.ix_(at, *map(np.arange, array.shape[1:]))] = array
        yield name, whole


def _stored(variable: Variable, name: str, array: Array) -> Iterator[tuple[str, NDArray[Any]]]:
    """An array as it is written: see the module's docstring."""
    if name != variable.name:
        yield name, array.astype(_TYPES["F32"])
    elif variable.sampled and not variable.dims:
        yield name, np.ascontiguousarray(array[:, 0])
        yield f"{name}{LEFT_OUT}", (array[:, 1:] - array[:, :1]).astype(_TYPES["F32"])
    else:
        yield name, array


def _entries(variable: Variable, labels: Labels) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(name, type, shape) of the stored arrays of a variable."""
    shape = labels.shape(variable)
    yield variable.name, "F64", shape
    if variable.sampled and variable.dims:
        yield f"{variable.name}_se", "F32", shape
    elif variable.sampled:
        yield f"{variable.name}{LEFT_OUT}", "F32", (shape[0], labels.samples - 1, *shape[1:])


def read_dataset(path: Path) -> xr.Dataset:
    """The dataset in a `measures.safetensors`; a StoreError names the file and what is wrong with it.

    Header and sizes are checked at once; each array, and its digest, when it is first used.
    """
    file = _File(Path(path))
    return _as_xarray(file.labels, lambda name, shape: _lazy(file.array, name, shape))


class _File:
    """A `measures.safetensors`: its labels and variables and, on request, its arrays.

    It stays open, so that arrays read later are of the same file even if a run has replaced it since.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with store.clear_errors(path):
            self._file = os.open(path, os.O_RDONLY)
            weakref.finalize(self, os.close, self._file)
            size = int.from_bytes(os.pread(self._file, 8, 0), "little")
            data = os.pread(self._file, size, 8) if size <= HEADER_BYTES else b""
            whole = os.fstat(self._file).st_size
        try:
            if size > HEADER_BYTES:
                raise ValueError(f"a header of {size:,} bytes; at most {HEADER_BYTES:,} are read")
            table = json.loads(data)
            self.labels = Labels.model_validate_json(table["__metadata__"]["dataset"], strict=True)
            _check_labels(self.labels)
            self._layout = self.labels.layout()
            self._check_layout(table, whole - 8 - size)
        except store.MALFORMED as error:
            raise StoreError(f"{path}: damaged ({store.in_short(error)})", _AGAIN) from error
        self._start = 8 + size

    def _check_layout(self, table: Mapping[str, Any], room: int) -> None:
        """Refuse a table that does not have every array that the labels ask for, one after the other, to the end."""
        end = 0
        for name, entry in self._layout.items():
            start, end = entry["data_offsets"]
            if table[name] != entry:
                raise ValueError(f"{name} is {table[name]}, expected {entry}")
            if end - start > ARRAY_BYTES:
                raise ValueError(f"{name} has {end - start:,} bytes; at most {ARRAY_BYTES:,} are read")
            if name not in self.labels.digests:
                raise ValueError(f"{name} has no digest")
        if end != room:
            raise ValueError(f"{room:,} bytes of arrays, expected {end:,}")

    def __reduce__(self) -> Any:
        return _reopened, (self.path, self.labels.digests)

    def array(self, name: str) -> Array:
        """A variable over (cell, sample, head), or (cell, head, *dims), in float64; without head if not per head."""
        whole, left = self._read(name), f"{name}{LEFT_OUT}"
        if left not in self._layout:
            return whole
        return np.concatenate([whole[:, None], whole[:, None] + self._read(left)], axis=1)

    def _read(self, name: str) -> Array:
        entry = self._layout[name]
        start, stop = entry["data_offsets"]
        with store.clear_errors(self.path):
            data = _pread(self._file, stop - start, self._start + start)
        if hashlib.sha256(data).hexdigest() != self.labels.digests[name]:
            raise StoreError(f"{self.path}: damaged (the bytes of {name} do not match their digest)", _AGAIN)
        return np.frombuffer(data, dtype=_TYPES[entry["dtype"]]).reshape(entry["shape"]).astype(np.float64)


def _reopened(path: Path, digests: dict[str, str]) -> _File:
    """The same file in another process, where it was sent to."""
    file = _File(path)
    if file.labels.digests != digests:
        raise StoreError(f"{path}: a run has replaced it while it was being read", "run the command again")
    return file


def _pread(file: int, size: int, at: int) -> bytes:
    """`size` bytes, or fewer at the end of the file; one call reads at most 2 GB."""
    parts = []
    while size > 0 and (part := os.pread(file, min(size, 1 << 30), at)):
        parts.append(part)
        size, at = size - len(part), at + len(part)
    return b"".join(parts)


def _check_labels(labels: Labels) -> None:
    """Raise a ValueError for duplicates, excessive lengths and invalid names."""
    if len({(cell.checkpoint, cell.window) for cell in labels.cells}) < len(labels.cells):
        raise ValueError("duplicate cell (checkpoint, window)")
    for which in ("own", "matched"):
        names = [cell.checkpoint for cell in labels.cells if getattr(cell, which)]
        if len(set(names)) < len(names):
            raise ValueError(f"a checkpoint with two {which} cells")
    if len(set(labels.heads)) < len(labels.heads):
        raise ValueError("duplicate head (layer, number)")
    for name, coordinates in _FIXED.items():
        if (length := labels.lengths.get(name, 0)) > (most := len(coordinates(2**40))):
            raise ValueError(f"dimension {name} of length {length:,}, expected at most {most:,}")
    for variable in labels.variables:
        if not variable.name.isidentifier():
            raise ValueError(f"not a variable: {variable.name[:80]!r}")


def _as_xarray(labels: Labels, read: Callable[[str, tuple[int, ...]], Any]) -> xr.Dataset:
    """A dataset of the arrays that `read` returns by name and shape."""
    import xarray as xr

    found: dict[str, xr.Variable] = {}
    for v in labels.variables:
        attrs: dict[str, Any] = {"label": v.label, "units": v.units, "description": v.description}
        attrs["detail"] = int(v.detail)
        heads = ("head",) if v.per_head else ()
        shape, dims = labels.shape(v), ("cell", *heads, *v.dims)
        if v.sampled and not v.dims:
            shape, dims = (shape[0], labels.samples, *shape[1:]), ("cell", "sample", *heads)
            attrs["axis_lost"] = v.axis_lost if v.along_axis else ""
        found[v.name] = xr.Variable(dims, read(v.name, shape), attrs)
        if v.sampled and v.dims:
            error = attrs | {"label": f"error of {v.label}", "description": "jackknife standard error"}
            found[f"{v.name}_se"] = xr.Variable(dims, read(f"{v.name}_se", shape), error)
    return xr.Dataset(found, coords=_coords(labels))


def _lazy(read: Callable[[str], Array], name: str, shape: tuple[int, ...]) -> Any:
    """An array for xarray that is read from its file when its values are first used, and then cached."""
    from xarray.core import indexing

    lazy = indexing.LazilyIndexedArray(_on_disk(read, name, shape))
    return indexing.MemoryCachedArray(lazy)  # type: ignore[no-untyped-call]


def _on_disk(read: Callable[[str], Array], name: str, shape: tuple[int, ...]) -> Any:
    from xarray.backends import BackendArray
    from xarray.core import indexing

    class OnDisk(BackendArray):
        def __init__(self) -> None:
            self.shape, self.dtype = shape, np.dtype(np.float64)

        def __getitem__(self, key: Any) -> Any:
            support = indexing.IndexingSupport.BASIC
            return indexing.explicit_indexing_adapter(key, self.shape, support, lambda k: read(name)[k])

        def __reduce__(self) -> Any:
            return _on_disk, (read, name, shape)

    return OnDisk()


def _coords(labels: Labels) -> dict[str, Any]:
    kinds = {"window": np.int64, "groups": np.int64, "own": bool, "matched": bool}
    coords: dict[str, Any] = {}
    for name in CellInfo.__dataclass_fields__:
        column = [getattr(cell, name) for cell in labels.cells]
        coords[name] = ("cell", np.array(column, dtype=kinds.get(name, object)))
    layer, number = np.array(labels.heads, dtype=np.int64).reshape(-1, 2).T
    coords |= {"layer": ("head", layer), "number": ("head", number)}
    coords["head"] = [f"L{a}H{b}" for a, b in labels.heads]
    coords["sample"] = np.arange(labels.samples)
    for name, length in labels.lengths.items():
        coords[name] = np.arange(length) - (name == "pair")  # pair -1 is what does not rotate
    for name, coordinates in _FIXED.items():
        if name in coords:
            coords[name] = coordinates(2**40)[: labels.lengths[name]]
    return coords
