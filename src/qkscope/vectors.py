"""Query and key vectors on disk <-> moments: the parquet layout of this field's public datasets.

    <root>/<model>/l<LL>h<HH>{q,k}/data.parquet
    bucket int32, example_id int32, position int32, vector list<float> or fixed-size list, sliding_window

A q folder's HH is a query head, a k folder's HH the key head before repetition. Documents are identified by
`example_id`: jackknife groups go by it. Files are read with pyarrow in batches, one key head and its
query heads at a time on each core; vectors are never all in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.checkpoints import hub
from qkscope.checkpoints.hub import split_address
from qkscope.errors import VectorsError
from qkscope.store import in_short, replacing
from qkscope.sums.keys import bucket_size
from qkscope.sums.moments import Accumulator, Moments
from qkscope.sums.path import SINK, Bins, bin_edges
from qkscope.sums.path import Path as BinSums
from qkscope.sums.rotation import Rotation
from qkscope.words import listing, some

if TYPE_CHECKING:
    import pyarrow as pa


_BATCH_ROWS = 8_192
# Compression hides how many rows a file has: more than this is no head's sample, and would fill the memory.
MAX_ROWS = 20_000_000
# A map of query and key buckets has the square of this many cells.
MAX_BUCKET = 1023


def read_moments(path: Path, groups: int) -> list[Moments]:
    """Moments of one head's vectors, by document group; groups without rows are empty."""
    examples, positions = _labels(path)
    group = examples % groups
    sums = [Accumulator() for _ in range(groups)]
    dim = 0
    for rows, batch in _batches(path):
        dim = batch.shape[1]
        for g in np.unique(group[rows]):
            member = np.flatnonzero(group[rows] == g)
            sums[g].update(batch[member][None], positions[rows][member])
    counts = np.bincount(group, minlength=groups)
    return [
        total.moments() if count else Moments.empty(1, dim) for total, count in zip(sums, counts, strict=True)
    ]


@dataclass(frozen=True)
class Rows:
    """All rows of one file: example, position and bucket (n,) int64 and vector (n, dim).

    Buckets are empty where the file has none, vectors if they were not requested.
    """

    example: NDArray[np.int64]
    position: NDArray[np.int64]
    bucket: NDArray[np.int64]
    vector: NDArray[Any]

    def take(self, rows: NDArray[np.bool_]) -> Rows:
        """Some of the rows, of a file with buckets."""
        vector = self.vector[rows] if len(self.vector) else self.vector
        return Rows(self.example[rows], self.position[rows], self.bucket[rows], vector)


def read_rows(path: Path, vectors: bool = True) -> Rows:
    """A file's rows with its own buckets."""
    examples, positions, *buckets = _labels(path, "bucket")
    bucket = buckets[0] if buckets else np.empty(0, np.int64)
    if len(bucket) and (bucket.min() < 0 or bucket.max() > MAX_BUCKET):
        raise VectorsError(
            f"{path}: buckets from {bucket.min()} to {bucket.max()}; expected 0 to {MAX_BUCKET}"
        )
    found = [batch for _, batch in _batches(path)] if vectors else []
    return Rows(examples, positions, bucket, np.concatenate(found) if found else np.empty((0, 0)))


@dataclass(frozen=True)
class DerotatedSums:
    """What a rotation adds to one head's moments, by document group: the sink, the path, the documents' lengths."""

    sinks: list[Moments]
    paths: list[BinSums]
    lengths: list[tuple[int, ...]]


def document_lengths(path: Path) -> dict[int, int]:
    """Tokens of each example; every position from 0 on must be there once, or nothing can be said of a document."""
    examples, positions = _labels(path)
    order = np.lexsort([positions, examples])
    ids, starts, counts = np.unique(examples[order], return_index=True, return_counts=True)
    expected = np.arange(len(order)) - np.repeat(starts, counts)
    if not np.array_equal(positions[order], expected):
        raise VectorsError(
            f"{path}: some positions of a document are missing or repeated; with RoPE settings each example needs "
            "every position from 0 on exactly once (a sample of the vectors can be analysed without them)"
        )
    return {int(i): int(count) for i, count in zip(ids, counts, strict=True)}


def read_derotated(path: Path, groups: int, lengths: Mapping[int, int], rotation: Rotation) -> DerotatedSums:
    """Bin sums of one head's vectors before `rotation`, and the moments of the first four tokens.

    `lengths` are the `document_lengths` of the file.
    """
    examples, positions = _labels(path)
    group = examples % groups
    edges = bin_edges((max(lengths.values()),))
    sinks = [Accumulator() for _ in range(groups)]
    n = np.zeros((groups, len(edges) - 1), np.int64)
    total = np.zeros((groups, 1, len(edges) - 1, rotation.dim))
    for rows, batch in _batches(path):
        t = positions[rows]
        u = rotation.derotate(batch.astype(np.float64), t.astype(np.float64))
        for g in np.unique(group[rows]):
            here = group[rows] == g
            bins = Bins(edges, t[here])
            n[g] += bins.n
            total[g] += bins.sums(u[None, here])
            first = here & (t < SINK)
            sinks[g].update(batch[first][None], t[first])
    by_group: list[list[int]] = [[] for _ in range(groups)]
    for example, length in lengths.items():
        by_group[example % groups].append(length)
    return DerotatedSums(
        sinks=[s.moments() if n[g].any() else Moments.empty(1, rotation.dim) for g, s in enumerate(sinks)],
        paths=[BinSums(edges, n[g], total[g]) for g in range(groups)],
        lengths=[tuple(sorted(each, reverse=True)) for each in by_group],
    )


def write_vectors(
    root: Path,
    model: str,
    layer: int,
    head: int,
    kind: str,
    *,
    example_id: NDArray[Any],
    position: NDArray[Any],
    vector: NDArray[Any],
    window: int,
    sliding_window: int | None = None,
    token_str: Sequence[str] | None = None,
) -> Path:
    """Write one head's vectors (rows, dim) in the public layout; returns the file's path.

    `window` is what was read of each document: it is cut into sixteen buckets. `token_str` names each row's token.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, dim = vector.shape
    flat = pa.array(np.ascontiguousarray(vector, dtype=np.float32).reshape(-1))
    columns = {
        "bucket": (np.asarray(position) // bucket_size(window)).astype(np.int32),
        "example_id": np.asarray(example_id, dtype=np.int32),
        "position": np.asarray(position, dtype=np.int32),
        "vector": pa.FixedSizeListArray.from_arrays(flat, dim),
        "sliding_window": pa.repeat(pa.scalar(sliding_window, pa.int32()), rows),
    }
    if token_str is not None:
        columns["token_str"] = pa.array(list(token_str), pa.string())
    path = root / model / f"l{layer:02d}h{head:02d}{kind}" / "data.parquet"
    with replacing(path) as temporary:
        pq.write_table(pa.table(columns), temporary, compression="zstd")
    return path


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """An open parquet file; any error in it becomes a VectorsError that names it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
            yield file
    except FileNotFoundError as error:
        raise VectorsError(f"{path}: no such file; each head's folder needs a data.parquet") from error
    except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError) as error:
        raise VectorsError(
            f"{path}: truncated or not a parquet file ({in_short(error)}); write or download it again"
        ) from error


def _labels(path: Path, *optional: str) -> list[NDArray[np.int64]]:
    """example_id and position of every row and, if the file has them, `optional` columns; its columns are checked."""
    with _parquet(path) as file:
        _check_schema(path, file.schema_arrow)
        rows = file.metadata.num_rows
        if not 0 < rows <= MAX_ROWS:
            raise VectorsError(
                f"{path}: {f'{rows:,}' if rows else 'no'} rows; expected 2 to {MAX_ROWS:,} per head"
            )
        names = ["example_id", "position", *(name for name in optional if name in file.schema_arrow.names)]
        table = file.read(columns=names)
        for name in names:
            if missing := table[name].null_count:
                raise VectorsError(f"{path}: {missing} rows without {name}; every row needs one")
        return [table[name].to_numpy().astype(np.int64) for name in names]


def _check_schema(path: Path, schema: pa.Schema) -> None:
    import pyarrow as pa

    twice = {name for name in schema.names if schema.names.count(name) > 1}
    if twice:
        raise VectorsError(f"{path}: duplicate columns {', '.join(sorted(twice))}; expected one of each")
    if missing := [name for name in ("example_id", "position", "vector") if name not in schema.names]:
        found = ", ".join(schema.names) or "none"
        raise VectorsError(f"{path}: column missing: {', '.join(missing)}; found {found}")
    for name in ("example_id", "position"):
        if not pa.types.is_integer(kind := schema.field(name).type):
            raise VectorsError(f"{path}: column {name} is {kind}, expected a whole number (int32)")
    kind = schema.field("vector").type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not (lists and pa.types.is_floating(kind.value_type)):
        raise VectorsError(f"{path}: column vector is {kind}, expected a list of float32")


def _batches(path: Path) -> Iterator[tuple[slice, NDArray[Any]]]:
    """(rows, vectors (rows, dim)) a batch at a time, all of one dimension, without a Python loop over the rows."""
    seen, dim = 0, None
    with _parquet(path) as file:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=["vector"], use_threads=False):
            vectors, rows = batch.column(0), batch.num_rows
            flat = vectors.flatten()
            if vectors.null_count or flat.null_count:
                raise VectorsError(
                    f"{path}: some vectors or their values are null; every row needs a complete vector"
                )
            # Lists of a fixed size have no lengths.
            sized = hasattr(vectors, "value_lengths")
            lengths = np.unique(vectors.value_lengths().to_numpy() if sized else [len(flat) // rows])
            dim = int(lengths[0]) if dim is None else dim
            short, long = min(dim, lengths[0]), max(dim, lengths[-1])
            if short != long:
                raise VectorsError(
                    f"{path}: vectors of {short} and of {long} dimensions; expected all to have the same"
                )
            if dim == 0:
                raise VectorsError(f"{path}: empty vectors; expected a list of float32 in every row")
            yield slice(seen, seen + rows), flat.to_numpy(zero_copy_only=False).reshape(rows, dim)
            seen += rows


# l100h128q is head 128 of layer 100. No model needs more digits, and the search for a ratio would take hours.
_FOLDER = re.compile(r"l([0-9]{1,5})h([0-9]{1,5})([qk])")
Head = tuple[int, int]


@dataclass(frozen=True)
class ModelFolder:
    """One model's vectors: the file of each query head and of each key head, by (layer, head)."""

    name: str
    path: Path
    queries: dict[Head, Path]
    keys: dict[Head, Path]

    @classmethod
    def read(cls, path: Path) -> ModelFolder:
        files: dict[str, dict[Head, Path]] = {"q": {}, "k": {}}
        for folder in _listed(path):
            match = _FOLDER.fullmatch(folder.name)
            if match and folder.is_dir():
                heads, head = files[match[3]], (int(match[1]), int(match[2]))
                if head in heads:
                    raise VectorsError(
                        f"{folder} and {heads[head].parent} are the same head; remove one of them"
                    )
                heads[head] = folder / "data.parquet"
        return cls(path.resolve().name, path, files["q"], files["k"])


def is_vectors(name: str) -> bool:
    """Whether a path below a root is a file of the layout: `<model>/l00h00q/data.parquet`, or without the model."""
    *above, folder, file = ["", *name.split("/")]
    return len(above) <= 2 and bool(_FOLDER.fullmatch(folder)) and file == "data.parquet"


def find_models(root: Path, model_name: str = "") -> list[ModelFolder]:
    """The models under `root`: its folders that hold heads, or `root` itself, named `model_name` if that is given."""
    expected = f"expected {root}/<model>/l00h00q/data.parquet and so on"
    if not root.is_dir():
        raise VectorsError(f"{root}: no such folder; {expected}")
    folders = [ModelFolder.read(path) for path in [root, *_listed(root)] if path.is_dir()]
    found = [folder for folder in folders if folder.queries or folder.keys]
    if not found:
        raise VectorsError(f"{root}: no vectors found; {expected}")
    if only_keys := [folder.path for folder in found if not folder.queries]:
        raise VectorsError(f"{only_keys[0]}: has key heads but no query heads (l<LL>h<HH>q); both are needed")
    return [replace(found[0], name=model_name or found[0].name)] if found[0].path == root else found


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise VectorsError(f"{folder}: cannot be read ({error.strerror})") from error


def infer_ratio(model: ModelFolder) -> int:
    """Query heads per key head, where only one number fits the folders that are there."""
    queries, keys = set(model.queries), set(model.keys)
    highest = max(head for _, head in queries)
    fitting = [r for r in range(1, highest + 2) if {(layer, head // r) for layer, head in queries} == keys]
    whole = _whole_ratio(queries, keys)
    if whole in fitting:
        return whole
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise VectorsError(
            f"{model.path}: the folders fit {listing([str(ratio) for ratio in fitting])} query heads per key head; "
            "set the right one with --gqa-ratio (the model's number of query heads over its number of key heads)"
        )
    raise VectorsError(f"{model.path}: {_no_ratio(queries, keys)}")


def require_keys(model: ModelFolder, ratio: int) -> None:
    """Raise for the first query head whose key head is not there."""
    lost = sorted((layer, head) for layer, head in model.queries if (layer, head // ratio) not in model.keys)
    if lost:
        layer, head = lost[0]
        more = f" (and {len(lost) - 1} more query heads lack theirs)" if len(lost) > 1 else ""
        raise VectorsError(
            f"{model.path}: query head l{layer:02d}h{head:02d}q needs key head l{layer:02d}h{head // ratio:02d}k at "
            f"{ratio} query heads per key head, but that folder is missing{more}; add it, or remove the query head"
        )


def _whole_ratio(queries: set[Head], keys: set[Head]) -> int | None:
    """The ratio of a complete set: the same heads 0..n-1 in every layer, n_q a multiple of n_k."""
    sizes = []
    for heads in (queries, keys):
        layers = {layer for layer, _ in heads}
        count = max((head for _, head in heads), default=-1) + 1
        if heads != {(layer, head) for layer in layers for head in range(count)}:
            return None
        sizes.append(count)
    return sizes[0] // sizes[1] if sizes[1] and sizes[0] % sizes[1] == 0 else None


def _no_ratio(queries: set[Head], keys: set[Head]) -> str:
    """Why no ratio fits: what the best one lacks or leaves over."""
    if not keys:
        return "there are query heads but no key heads (l<LL>h<HH>k); both are needed"

    def wrong(ratio: int) -> tuple[int, set[Head], set[Head]]:
        needed = {(layer, head // ratio) for layer, head in queries}
        return len(needed ^ keys), needed - keys, keys - needed

    ratio = min(range(1, max(head for _, head in queries) + 2), key=lambda r: wrong(r)[0])
    _, lost, spare = wrong(ratio)
    found = [
        f"{some([f'l{layer:02d}h{head:02d}k' for layer, head in sorted(heads)], 5)} {what}"
        for heads, what in ((lost, "missing"), (spare, "not used by any query head"))
        if heads
    ]
    return (
        f"no number of query heads per key head fits the folders; {ratio} is closest, with "
        f"{' and '.join(found)}; add what is missing, or set the ratio with --gqa-ratio"
    )


def fetch_vectors(address: Path | str) -> tuple[Path, str]:
    """The folder with the vectors at `hub:owner/name[/folder]`, and the name of a model that is directly in it.

    Only files of the layout are fetched.
    """
    repo, folder = split_address(address)
    listing = hub.list_files(repo, kind="dataset")
    below = f"{folder}/" if folder else ""
    names = [n for n in listing.files if n.startswith(below) and is_vectors(n.removeprefix(below))]
    if not names:
        raise VectorsError(
            f"{address}: none of its {len(listing.files)} files are vectors; expected <model>/l00h00q/data.parquet and "
            "so on; if they are in a subfolder, use hub:owner/name/folder"
        )
    return hub.fetch(listing, names) / folder, (folder or repo).rpartition("/")[2]
