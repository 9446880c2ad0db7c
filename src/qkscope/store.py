"""Files: written whole or not at all, and read only if they are what was written.

Every file goes to a temporary neighbour first and is renamed onto its name once it is on the disk, so a reader
sees the old file or the new one and never a part. Moments carry a digest of their own bytes: a truncated or
flipped file is an error that names it, never a number. What is read is bounded before it is held in memory.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from pydantic import ValidationError

from qkscope.errors import StoreError

if TYPE_CHECKING:
    import pandas as pd

# ".<name>.<machine>-<pid>.<random>.tmp" lets `sweep` tell leftovers from a write in progress, here or elsewhere.
_LEFTOVER = re.compile(r"^\..*\.([0-9a-f]{8})-(\d+)\.[A-Za-z0-9_]+\.tmp$")
# Far beyond any plan, manifest or unit header that a study makes.
JSON_BYTES = 256_000_000
# Far beyond any CSV table: the qk.csv of 1,000 checkpoints with 1,024 heads and 10 components has 2 GB.
CSV_BYTES = 2**33
# What reading a file of the right format with impossible contents may raise.
MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
# In bytes; file systems have no longer ones.
LONGEST_NAME = 255
# Types of arrays that files hold, by numpy's names: the format's.
_KINDS = {
    **{"<f8": "F64", "<f4": "F32", "<f2": "F16", "<i8": "I64", "<i4": "I32", "<i2": "I16"},
    **{"|u1": "U8", "|b1": "BOOL"},
}


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it onto `path` if the block succeeds, remove it if not."""
    path = Path(path)
    with clear_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.{_owner()}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            os.umask(mask := os.umask(0o022))  # there is no other way to read it
            temporary.chmod(0o666 & ~mask)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_bytes(path: Path, data: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(data)
        # Some network disks lose data silently.
        if (there := temporary.stat().st_size) != len(data):
            raise StoreError(
                f"{path}: only {there:,} of {len(data):,} bytes were written; check whether the disk is full"
            )


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def for_json(value: Any) -> Any:
    """Numbers as JSON has them: NaN and infinity are None, numpy scalars are Python's."""
    if isinstance(value, dict):
        return {key: for_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(each) for each in value]
    if isinstance(value, np.generic):
        return for_json(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: object) -> None:
    """JSON as other languages read it: NaN, which JSON does not have, is refused rather than written."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Floats in their shortest form that reads back the same; NaN as an empty field.

    A text that a spreadsheet would run as a formula gets an apostrophe, as spreadsheets write it themselves.
    """

    def no_formula(cell: object) -> object:
        return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@")) else cell

    texts = {name: frame[name].map(no_formula) for name in frame.columns if frame[name].dtype.kind in "OU"}
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        frame.assign(**texts).to_csv(file, index=False, lineterminator="\n")


def write_parquet(path: Path, frame: pd.DataFrame) -> None:
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False, compression="zstd")
    write_bytes(path, buffer.getvalue())


def read_csv(path: Path, **settings: Any) -> pd.DataFrame:
    """`pandas.read_csv` of a file that fits in memory; otherwise a ValueError, as for other unreadable tables."""
    import pandas as pd

    if (size := Path(path).stat().st_size) > CSV_BYTES:
        raise ValueError(f"{size:,} bytes, expected at most {CSV_BYTES:,}")
    try:
        return pd.read_csv(path, **settings)
    except MemoryError as error:
        raise ValueError(in_short(error)) from error


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray[Any, Any]], meta: Mapping[str, Any]) -> None:
    """Arrays and a JSON-able description of them, with a digest over both, as one safetensors file."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        for piece in _pieces(tensors, meta):
            file.write(piece)


def dump_tensors(tensors: Mapping[str, np.ndarray[Any, Any]], meta: Mapping[str, Any]) -> bytes:
    """The bytes that `write_tensors` writes: the same for the same arrays, in every process."""
    return b"".join(_pieces(tensors, meta))


def _pieces(
    tensors: Mapping[str, np.ndarray[Any, Any]], meta: Mapping[str, Any]
) -> Iterator[bytes | memoryview]:
    """The bytes of a file, piece by piece. Every array is read twice, one at a time, since it may come from a disk."""
    text = json.dumps(meta, sort_keys=True, ensure_ascii=False)
    sizes: dict[str, tuple[int, int]] = {}
    described: dict[str, Any] = {}
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        sizes[name] = array.itemsize, array.nbytes
        described[name] = {"dtype": _KINDS[array.dtype.str], "shape": array.shape}
        _add(digest, name, array)
    described["__metadata__"] = {"meta": text, "digest": digest.hexdigest()}
    # The library would copy all bytes twice, and order its metadata differently from process to process.
    order, at = sorted(sizes, key=lambda name: (-sizes[name][0], name)), 0
    for name in order:
        described[name]["data_offsets"] = (at, at + sizes[name][1])
        at += sizes[name][1]
    yield tensors_header(described)
    for name in order:
        yield _bytes(np.ascontiguousarray(tensors[name]))


def tensors_header(described: Mapping[str, Any]) -> bytes:
    """The beginning of a safetensors file: the length of the header, and the header as JSON, padded to 8 bytes."""
    header = json.dumps(described, sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def read_tensors(
    path: Path, most: int | None = None
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """What `write_tensors` wrote, or a StoreError that names the file.

    The header is checked against the file's size before anything else is read; `most` is the largest number of bytes
    that the arrays may have.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        with clear_errors(path), Path(path).open("rb") as file:
            header = _read_header(path, file)
            if most is not None and header.data_bytes > most:
                raise damaged(path, f"{header.data_bytes:,} bytes of arrays, expected at most {most:,}")
            file.seek(0)
            arrays = load(file.read())
        digest = hashlib.sha256(header.text.encode())
        for name in sorted(arrays):
            _add(digest, name, arrays[name])
    except MemoryError as error:
        raise StoreError(f"{path}: does not fit in memory", "free memory, or use a larger machine") from error
    except (SafetensorError, *MALFORMED) as error:
        raise damaged(path, in_short(error)) from error
    if digest.hexdigest() != header.digest:
        raise damaged(path, "checksum mismatch")
    return arrays, header.meta


def read_meta(path: Path) -> dict[str, Any]:
    """The description in a tensors file, from its header and size alone: cheap, without reading the arrays."""
    with clear_errors(path), Path(path).open("rb") as file:
        return _read_header(path, file).meta


def read_digest(path: Path) -> str:
    """The digest in a tensors file, likewise."""
    with clear_errors(path), Path(path).open("rb") as file:
        return _read_header(path, file).digest


def read_json(path: Path) -> Any:
    """A JSON file as other languages would read it, or a StoreError that names it."""
    with clear_errors(path), Path(path).open("rb") as file:
        data = file.read(JSON_BYTES + 1)
    try:
        if len(data) > JSON_BYTES:
            raise ValueError(f"more than {JSON_BYTES:,} bytes")
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path}: damaged ({in_short(error)})") from error


def sweep(folder: Path) -> list[Path]:
    """Remove what killed processes of this machine left half-written below `folder`."""
    removed = []
    for path in sorted(Path(folder).rglob(".*.tmp")):
        match = _LEFTOVER.match(path.name)
        if match and match[1] == _machine() and not alive(int(match[2])):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            removed.append(path)
    return removed


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A hidden folder below `folder` to prepare files in; it is gone afterwards."""
    with clear_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=f".set.{_owner()}.", suffix=".tmp", dir=folder))
    try:
        yield staged
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def file_digest(path: Path) -> str:
    with clear_errors(path), Path(path).open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=20)).hexdigest()


def short_digest(value: object) -> str:
    """40 hex digits of anything that JSON can hold."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def damaged(path: Path, why: str) -> StoreError:
    return StoreError(f"{path}: damaged ({why})", "delete it to compute it again")


def in_short(error: BaseException) -> str:
    """A library's error about a file it cannot read, on one line of at most 200 characters."""
    text = " ".join(str(error).split())
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        text = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    elif isinstance(error, KeyError):  # which says no more than the key
        text = f"missing {text}"
    elif isinstance(error, RecursionError):
        text = "nested too deeply"
    elif isinstance(error, MemoryError):
        text = "does not fit in memory"
    return (text if len(text) <= 200 else text[:197] + "...") or type(error).__name__


class _Header(NamedTuple):
    text: str
    meta: dict[str, Any]
    digest: str
    data_bytes: int


def _read_header(path: Path, file: BinaryIO) -> _Header:
    """The header at the beginning of an open tensors file, if it agrees with the file's size."""
    size = int.from_bytes(file.read(8), "little")
    data = file.read(size) if size <= JSON_BYTES else b""
    whole = os.fstat(file.fileno()).st_size
    try:
        described = json.loads(data)
        about = described.pop("__metadata__")
        meta = json.loads(about["meta"])
        if not isinstance(meta, dict) or not isinstance(about["digest"], str):
            raise TypeError("not a description of arrays")
        end = max((int(entry["data_offsets"][1]) for entry in described.values()), default=0)
    except MALFORMED as error:
        raise damaged(path, f"no readable header: {in_short(error)}") from error
    if whole != 8 + size + end:
        raise damaged(path, f"{whole} bytes instead of {8 + size + end}")
    return _Header(about["meta"], meta, about["digest"], end)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _add(digest: hashlib._Hash, name: str, array: np.ndarray[Any, Any]) -> None:
    """Add an array to the digest of a file, which begins with its description; arrays come in the order of names."""
    digest.update(f"{name}|{array.dtype}|{array.shape}|".encode())
    digest.update(_bytes(np.ascontiguousarray(array)))


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _machine() -> str:
    return hashlib.blake2b(socket.gethostname().encode(), digest_size=4).hexdigest()


def _owner() -> str:
    return f"{_machine()}-{os.getpid()}"


def alive(pid: int) -> bool:
    """Whether a process of this machine still runs."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """Add to the system's error which file it concerns and what to do."""
    try:
        yield
    except OSError as error:
        reasons = {
            errno.ENOSPC: "the disk is full; free some space and run again: finished work is kept",
            errno.EDQUOT: "the disk quota is used up; free some space and run again: finished work is kept",
            errno.EACCES: "permission denied; choose another folder or change its permissions",
            errno.EPERM: "permission denied; choose another folder or change its permissions",
            errno.EROFS: "the file system is read-only; choose another folder",
            errno.ENOENT: "no such file or folder",
            errno.ENOTDIR: "a file exists where a folder is needed; remove it or choose another folder",
            errno.EEXIST: "a file exists where a folder is needed; remove it or choose another folder",
            errno.ELOOP: "symbolic links form a loop",
            errno.ENAMETOOLONG: "the name is too long for this file system; choose a shorter one",
            errno.EISDIR: "a folder exists where a file is needed; remove it or choose another name",
        }
        reason = reasons.get(error.errno or 0, str(error))
        # Users know the file by its final name, not by its temporary one.
        named = error.filename if error.filename and not str(error.filename).endswith(".tmp") else path
        raise StoreError(f"{named}: {reason}") from error
