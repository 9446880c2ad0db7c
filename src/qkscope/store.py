"""Files: written whole or not at all, and read only if they are what was written.

Every file goes to a temporary neighbour first and is renamed onto its name once it is on the disk, so a reader
sees the old file or the new one and never a part. Moments carry a digest of their own bytes: a truncated or
flipped file is an error that names it, never a number.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkscope.errors import StoreError

if TYPE_CHECKING:
    import pandas as pd

# ".<name>.<pid>.<random>.tmp": the pid lets `sweep` tell litter from a write that is under way.
_LITTER = re.compile(r"^\..+\.(\d+)\.[A-Za-z0-9_]+\.tmp$")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it onto `path` if the block succeeds, remove it if not."""
    path = Path(path)
    with _clear_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.{os.getpid()}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            _flush(temporary)
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_bytes(path: Path, data: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: object) -> None:
    """JSON as other languages read it: NaN, which JSON does not have, is refused rather than written."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Floats in their shortest form that reads back the same; NaN as an empty field."""
    write_text(path, frame.to_csv(index=False, lineterminator="\n"))


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray[Any, Any]], meta: Mapping[str, Any]) -> None:
    """Arrays and a JSON-able description of them, with a digest over both, as one safetensors file."""
    write_bytes(path, dump_tensors(tensors, meta))


def dump_tensors(tensors: Mapping[str, np.ndarray[Any, Any]], meta: Mapping[str, Any]) -> bytes:
    """The bytes that `write_tensors` writes."""
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    text = json.dumps(meta, sort_keys=True, ensure_ascii=False)
    data: bytes = save(arrays, metadata={"meta": text, "digest": _digest(arrays, text)})
    return data


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """What `write_tensors` wrote, or a StoreError that names the file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    with _clear_errors(path):
        data = Path(path).read_bytes()
    try:
        header = _header(data, path)
        arrays = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise StoreError(f"{path}: damaged ({error}); delete it to have it computed again") from error
    if _digest(arrays, header["meta"]) != header["digest"]:
        raise StoreError(
            f"{path}: its bytes are not those that were written; delete it to have it computed again"
        )
    meta: dict[str, Any] = json.loads(header["meta"])
    return arrays, meta


def read_meta(path: Path) -> dict[str, Any]:
    """The description in a tensors file, from its header alone: cheap, and without checking the arrays."""
    with _clear_errors(path), Path(path).open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > 100_000_000:
            raise StoreError(
                f"{path}: damaged (a header of {size} bytes); delete it to have it computed again"
            )
        data = size.to_bytes(8, "little") + file.read(size)
    meta: dict[str, Any] = json.loads(_header(data, path)["meta"])
    return meta


def sweep(folder: Path) -> list[Path]:
    """Remove what killed processes of this machine left half-written below `folder`."""
    removed = []
    for path in sorted(Path(folder).rglob(".*.tmp")):
        match = _LITTER.match(path.name)
        if match and path.is_file() and not alive(int(match.group(1))):
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def _header(data: bytes, path: Path) -> dict[str, str]:
    """The metadata of a safetensors file: eight bytes of length, then that much JSON."""
    size = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + size])["__metadata__"]
        return {"meta": header["meta"], "digest": header["digest"]}
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path}: damaged (no readable header); delete it to have it computed again"
        ) from error


def _digest(arrays: Mapping[str, np.ndarray[Any, Any]], meta: str) -> str:
    digest = hashlib.blake2b(meta.encode(), digest_size=20)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}|{array.dtype}|{array.shape}|".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def alive(pid: int) -> bool:
    """Whether a process of this machine still runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    """Say which file and what to do, where the system only says what went wrong."""
    try:
        yield
    except OSError as error:
        reasons = {
            errno.ENOSPC: "the disk is full; free some space and run again: what was complete is kept",
            errno.EDQUOT: "the disk quota is used up; free some space and run again: what was complete is kept",
            errno.EACCES: "permission denied; choose another folder or change its permissions",
            errno.EPERM: "permission denied; choose another folder or change its permissions",
            errno.EROFS: "the file system is read-only; choose another folder",
            errno.ENOENT: "no such file or folder",
            errno.ENOTDIR: "a file stands where a folder is needed; remove it or choose another folder",
            errno.EEXIST: "a file stands where a folder is needed; remove it or choose another folder",
            errno.EISDIR: "a folder stands where a file is needed; remove it or choose another name",
        }
        reason = reasons.get(error.errno or 0, str(error))
        raise StoreError(f"{error.filename or path}: {reason}") from error
