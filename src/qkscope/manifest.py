"""manifest.json: which files make one set, with their sizes and digests.

The tables of a run belong together. They are prepared apart, the manifest that names them is written, and then they are
put in place: whoever reads a set that is only half there, damaged or edited finds out from the manifest, which every
reader checks. A folder without one (another program's table) is read as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from time import sleep
from typing import Any, TypeVar

from qkscope import store
from qkscope.errors import StoreError

NAME = "manifest.json"
FORMAT = 1
_AGAIN = "run the study again to have it rewritten"
# A set is put in place in milliseconds: a reader that meets it in between looks again so often, so many seconds apart.
TRIES, PAUSE = 8, 0.1

Sizes = Mapping[str, tuple[int, str]]
Loaded = TypeVar("Loaded")


@dataclass(frozen=True)
class Manifest:
    """`tables` were made from what `made_from` is the digest of; `drawn` from the tables. Name -> (size, digest)."""

    made_from: str
    tables: Sizes
    drawn: Sizes = field(default_factory=dict)
    finished: bool = False


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a results folder; None if it has none."""
    path = folder / NAME
    if not path.exists():
        return None
    value = store.read_json(path)
    try:
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']!r} instead of {FORMAT}")
        return Manifest(
            str(value["made_from"]),
            _sizes(value["tables"]),
            _sizes(value["drawn"]),
            value["finished"] is True,
        )
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: damaged ({store.in_short(error)}); {_AGAIN}") from error


def _sizes(value: Any) -> Sizes:
    found = {}
    for name, (size, digest) in value.items():
        path = PurePosixPath(name)
        outside = path.is_absolute() or ".." in path.parts or len(name.encode()) > store.LONGEST_NAME
        if outside or not re.fullmatch(r"[0-9a-f]{40}", digest):
            raise ValueError(f"no such file can be in a set: {name[:40]!r}")
        found[name] = int(size), digest
    return found


def problems(folder: Path, files: Sizes) -> Iterator[str]:
    """Which of `files` are not those that were written, and in what."""
    for name, (size, digest) in files.items():
        path = folder / name
        if not path.is_file():
            yield f"{path}: missing from its set"
        elif path.stat().st_size != size or store.file_digest(path) != digest:
            yield f"{path}: not the file that was written (edited, damaged, or of another run)"


def read_set(
    folder: Path,
    load: Callable[[], Loaded],
    names: Collection[str] | None = None,
    made_from: str | None = None,
) -> Loaded:
    """What `load` makes of the tables of a folder, or of those called `names`: all of one set, and unharmed.

    With `made_from`, of that set. Otherwise a StoreError names the first that is not.
    """
    for left in reversed(range(TRIES)):
        before = read_manifest(folder)
        wrong = _first_problem(folder, before, names, made_from)
        if wrong is None:
            loaded = load()
            after = read_manifest(folder)
            if (before and before.tables) == (after and after.tables):
                return loaded
        if left:
            sleep(PAUSE)
    raise StoreError(
        f"{wrong or folder / NAME}; {_AGAIN}, or delete {folder / NAME} to read the tables unchecked, as they are"
    )


def _first_problem(
    folder: Path, manifest: Manifest | None, names: Collection[str] | None, made_from: str | None
) -> str | None:
    if manifest is None:
        return None
    if made_from is not None and manifest.made_from != made_from:
        return f"{folder}: was rewritten by another run while it was read"
    wanted = {name: entry for name, entry in manifest.tables.items() if names is None or name in names}
    return next(problems(folder, wanted), None)


@contextmanager
def replacing_set(folder: Path, made_from: str) -> Iterator[Path]:
    """Yield an empty folder for the tables of a run; put them in place of the set before if the block succeeds."""
    with store.staging(folder) as staged:
        yield staged
        new = Manifest(made_from, _described(staged, staged.iterdir()))
        old = _tables_there(folder)
        # First of all, so that from here to the end no reader takes a mixture for a set.
        _write(folder, new)
        for name in new.tables:
            with store.clear_errors(folder / name):
                (staged / name).replace(folder / name)
        for name in old - set(new.tables):
            (folder / name).unlink(missing_ok=True)


def note_finished(folder: Path, drawn: Iterable[Path]) -> None:
    """Say what was drawn from the tables, and that all is done."""
    manifest = read_manifest(folder)
    if manifest is not None:
        _write(folder, replace(manifest, drawn=_described(folder, drawn), finished=True))


def is_finished(folder: Path, made_from: str) -> bool:
    """Everything was made from just this, and is still what was written."""
    try:
        manifest = read_manifest(folder)
        if manifest is None or not manifest.finished or manifest.made_from != made_from:
            return False
        return not any(problems(folder, {**manifest.tables, **manifest.drawn}))
    except StoreError:
        return False


def _tables_there(folder: Path) -> set[str]:
    """Tables of the set before, and those of versions that wrote no manifest."""
    try:
        manifest = read_manifest(folder)
    except StoreError:
        manifest = None
    return {*(manifest.tables if manifest else ()), *(path.name for path in folder.glob("qk_*.csv"))}


def _described(folder: Path, files: Iterable[Path]) -> Sizes:
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_size, store.file_digest(path))
        for path in sorted(files)
        if path.is_file()
    }


def _write(folder: Path, manifest: Manifest) -> None:
    parts = {"made_from": manifest.made_from, "finished": manifest.finished}
    store.write_json(
        folder / NAME,
        {"format": FORMAT, **parts, "tables": dict(manifest.tables), "drawn": dict(manifest.drawn)},
    )
