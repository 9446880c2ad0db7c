"""Where texts come from: files and folders, JSONL, parquet, a dataset on the hub, Python's standard library.

Each source gives its texts one at a time and always in the same order. It does not tokenise.
"""

from __future__ import annotations

import difflib
import gzip
import hashlib
import json
import os
import platform
import re
import sys
import sysconfig
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkscope import store
from qkscope.checkpoints import hub
from qkscope.checkpoints.hub import on_hub, split_address
from qkscope.errors import CorpusError, HubError, printable
from qkscope.study import CorpusSpec
from qkscope.words import some

JSONL = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
PARQUET = (".parquet",)
# Tests are not prose, and the rest are parts that packagers of Python leave out on some machines.
NOT_EVERYWHERE = {
    "test", "idlelib", "turtledemo", "turtle", "tkinter", "lib2to3", "distutils", "ensurepip", "venv"
}  # fmt: skip
# More than any book; a model reads its first tokens.
TEXT_BYTES = 256_000_000
CONVERTED = "refs/convert/parquet"  # the branch where the hub keeps its own parquet copy of a dataset


@dataclass(frozen=True)
class Text:
    """One document before it is tokenised."""

    name: str
    text: str


@dataclass
class Notes:
    """Where texts came from exactly, and what was left out."""

    origins: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_texts(spec: CorpusSpec, notes: Notes) -> Generator[Text]:
    """All texts of a specification, source after source."""
    for source in spec.source:
        if source == "stdlib":
            yield from _standard_library(notes)
        elif on_hub(source):
            listing, files = files_on_hub(source, spec)
            notes.origins.append(f"{source}@{listing.commit} split {spec.split}")
            for file in files:  # fetched as they are reached
                yield from _file(hub.fetch(listing, [file]) / file, file, spec, notes)
        else:
            path = Path(source).expanduser()
            notes.origins.append(str(path))
            if path.is_dir():
                yield from _folder(path, spec, notes)
            elif path.is_file():
                yield from _file(path, path.name, spec, notes)
            else:
                raise CorpusError(
                    f"{path}: no such file or folder; expected text, a folder, .jsonl, .parquet, hub:owner/name or "
                    "stdlib"
                )


def _folder(folder: Path, spec: CorpusSpec, notes: Notes) -> Generator[Text]:
    """Every text file below the folder by path, except hidden ones. Files of records give their records."""
    left_out: dict[str, list[str]] = {"not UTF-8 text": [], "empty": []}
    try:
        for name in sorted(_files_below(folder)):
            if name.endswith(JSONL + PARQUET):
                yield from _file(folder / name, name, spec, notes)
            elif (text := _text_or_none(folder / name)) is None:
                left_out["not UTF-8 text"].append(name)
            elif not text.strip():
                left_out["empty"].append(name)
            else:
                yield Text(name, text)
    finally:  # also when enough documents were found
        for why, names in left_out.items():
            if names:
                notes.warnings.append(f"{folder}: left out {len(names)} files that are {why} ({some(names)})")


def _files_below(folder: Path) -> Iterator[str]:
    """Files by their path, except hidden ones. A folder that cannot be listed is an error, not fewer texts."""

    def refuse(error: OSError) -> None:
        raise CorpusError(f"{error.filename}: cannot be read ({error.strerror}); its texts would be left out")

    for root, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(root, name) for name in files if not name.startswith("."))
        yield from (path.relative_to(folder).as_posix() for path in paths if path.is_file())


def _file(path: Path, name: str, spec: CorpusSpec, notes: Notes) -> Generator[Text]:
    if name.endswith(PARQUET):
        yield from _filled(_parquet(path, name, spec), name, notes)
    elif name.endswith(JSONL):
        yield from _filled(_jsonl(path, name, spec), name, notes)
    else:
        try:
            _check_length(path.stat().st_size, str(path))
            text = _decode(path.read_bytes(), str(path))
        except OSError as error:
            raise CorpusError(f"{path}: cannot be read ({error.strerror})") from error
        if not text.strip():
            raise CorpusError(f"{path}: an empty file; expected text")
        yield Text(name, text)


def _filled(texts: Iterator[Text], name: str, notes: Notes) -> Generator[Text]:
    """Records whose text is not empty; notes how many are."""
    empty = 0
    try:
        for text in texts:
            if text.text.strip():
                yield text
            else:
                empty += 1
    finally:
        if empty:
            notes.warnings.append(f"{name}: left out {empty} records without text")


def _lines(path: Path) -> Generator[bytes]:
    opened: Any = gzip.open if path.name.endswith(".gz") else open
    try:
        with opened(path, "rb") as file:
            yield from iter(lambda: file.readline(TEXT_BYTES + 1), b"")
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{path}: cannot be read ({store.in_short(error)})") from error


def _jsonl(path: Path, name: str, spec: CorpusSpec) -> Generator[Text]:
    for number, line in enumerate(_lines(path), start=1):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        _check_length(len(line), where)
        try:
            record = json.loads(_decode(line, where))
        except (ValueError, RecursionError) as error:
            what = store.in_short(error)
            raise CorpusError(f"{where}: not JSON ({what}); expected one object per line") from error
        if not isinstance(record, dict):
            what = f"a {type(record).__name__}; expected an object with {spec.text_column!r}"
            raise CorpusError(f"{where}: {what}")
        text = record[_column(spec.text_column, list(record), where)]
        if not isinstance(text, str | None):
            raise CorpusError(f"{where}: {spec.text_column!r} is a {type(text).__name__}; expected text")
        label = record[_column(spec.id_column, list(record), where)] if spec.id_column else f"{name}:{number}"
        # JSON can spell half of a character, which is no text.
        if text and not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            raise CorpusError(
                f"{where}: half of a surrogate pair, which is not a character; save the text again as UTF-8"
            )
        yield Text(printable(str(label)), text or "")


def _parquet(path: Path, name: str, spec: CorpusSpec) -> Generator[Text]:
    """Rows in order, a few at a time: a document may be megabytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            wanted = [c for c in (spec.text_column, spec.id_column) if c]
            columns = [_column(column, schema.names, str(path)) for column in wanted]
            kind = str(schema.field(spec.text_column).type)
            if "string" not in kind:
                raise CorpusError(f"{path}: column {spec.text_column!r} holds {kind}; expected strings")
            number = 0
            for batch in file.iter_batches(batch_size=16, columns=columns, use_threads=False):
                _check_length(batch.nbytes, f"{path}: rows {number} to {number + batch.num_rows - 1}")
                texts = batch.column(spec.text_column)
                labels = batch.column(spec.id_column) if spec.id_column else None
                for i in range(batch.num_rows):
                    label = labels[i].as_py() if labels is not None else None
                    where = f"{name}:{number}"
                    yield Text(where if label is None else printable(str(label)), texts[i].as_py() or "")
                    number += 1
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        what = store.in_short(error)
        raise CorpusError(f"{path}: not a readable parquet file ({what}); expected UTF-8 texts") from error


def _check_length(size: int, where: str) -> None:
    """A few bytes of a compressed file can contain gigabytes of text."""
    if size > TEXT_BYTES:
        raise CorpusError(f"{where}: one text of more than {TEXT_BYTES:,} bytes; split it into shorter texts")


def files_on_hub(source: str, spec: CorpusSpec) -> tuple[hub.Listing, list[str]]:
    """What the dataset `hub:owner/name` holds (`hub:owner/name/folder`: one configuration), and the split's files."""
    repo, folder = split_address(source)
    listing = hub.list_files(repo, spec.revision, "dataset")
    files = _split_files(listing.files, spec.split, folder)
    if not files and spec.revision is None and not _records(listing.files, folder):
        with suppress(HubError):
            listing = hub.list_files(repo, CONVERTED, "dataset")
            files = _split_files(listing.files, spec.split, folder)
    if not files:
        found = some(_records(listing.files, folder)) or "no .parquet or .jsonl file"
        raise CorpusError(f"{source}: no .parquet or .jsonl files of split {spec.split!r}; found {found}")
    folders = sorted({file.rpartition("/")[0] for file in files})
    if len(folders) > 1:
        raise CorpusError(
            f"{source}: split {spec.split!r} is in several folders; choose one, such as {source}/{folders[0]}"
        )
    return listing, files


def _records(files: Sequence[str], folder: str) -> list[str]:
    """The files of records below a folder: parquet if there is any, else JSONL."""
    below = sorted(f for f in files if f.startswith(f"{folder}/" if folder else ""))
    return [f for f in below if f.endswith(PARQUET)] or [f for f in below if f.endswith(JSONL)]


def _split_files(files: Sequence[str], split: str, folder: str) -> list[str]:
    """Files with the split in their path (`data/test-00000-of-00002.parquet`, `test/0.parquet`, `test.jsonl`).

    Files that name no split at all are all of `train`, as everywhere on the hub.
    """
    records = _records(files, folder)

    def named(splits: str) -> list[str]:
        return [file for file in records if re.search(rf"(^|[/_.-])({splits})([/_.-]|$)", file)]

    any_split = "train|test|valid|validation|dev|eval"
    return named(re.escape(split)) or (records if split == "train" and not named(any_split) else [])


def _standard_library(notes: Notes) -> Generator[Text]:
    """Python's own sources, in an order that is the same on every machine and mixes small and large modules."""
    root = Path(sysconfig.get_path("stdlib"))
    paths: dict[str, Path] = {}
    for module in sys.stdlib_module_names - NOT_EVERYWHERE:
        if not module.startswith("_sysconfigdata"):
            for path in (root / f"{module}.py", *(root / module).rglob("*.py")):
                paths[path.relative_to(root).as_posix()] = path
    names = [n for n, p in paths.items() if p.is_file() and not {"test", "tests"} & set(n.split("/")[:-1])]
    if not names:
        raise CorpusError(f"stdlib: this Python has no source files in {root}; give text files instead")
    notes.origins.append(f"stdlib: Python {platform.python_version()}, {len(names)} modules")
    for name in sorted(names, key=lambda name: hashlib.blake2b(name.encode()).digest()):
        text = _text_or_none(paths[name])
        if text and text.strip():
            yield Text(f"stdlib/{name}", text)


def _column(wanted: str, there: Sequence[str], where: str) -> str:
    if wanted in there:
        return wanted
    close = difflib.get_close_matches(wanted, there, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise CorpusError(f"{where}: no column {wanted!r}{hint}; there are {', '.join(there) or 'none'}")


def _text_or_none(path: Path) -> str | None:
    """A file's text; None if it is not UTF-8 text. Large binaries are recognised by their beginning."""
    try:
        with path.open("rb") as file:
            start = file.read(8192)
            if b"\0" in start:
                return None
            _check_length(os.fstat(file.fileno()).st_size, str(path))
            return (start + file.read(TEXT_BYTES)).decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read ({error.strerror})") from error


def _decode(data: bytes, where: str) -> str:
    if (offset := data.find(b"\0")) >= 0:
        raise CorpusError(f"{where}: binary, not text (byte 0x00 at offset {offset})")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise CorpusError(
            f"{where}: not UTF-8 (byte 0x{byte:02x} at offset {error.start}); convert it, for example with "
            "iconv -t UTF-8"
        ) from error
