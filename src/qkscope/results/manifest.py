"""manifest.json: what a results folder holds, and the files that make one set, with their sizes and digests.

    holds       which study or command the folder belongs to (`owner.py`), written before anything else
    tables      what was measured; all of one set
    drawn       summary, figures and report, each with a digest of the tables that it was drawn from
    former      tables of the set before, which are removed once the new set is in place
    finished    everything was drawn from these tables
    failed      why the run that made them did not succeed; empty if it did

Files are prepared in a hidden folder, the manifest that names them is written, and then they are renamed into place.
A reader of a set that is half in place, damaged or edited finds out from the manifest, which every reader checks. A
folder without a manifest (another program's table) is read as it is. Only files that a manifest names, and that still
are what was written, are ever removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from time import sleep
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter

from qkscope import store
from qkscope.errors import StoreError

NAME = "manifest.json"
FORMAT = 2
# Had no `holds`, `former` and `failed`, and did not say what `drawn` was drawn from.
OLD_FORMAT = 1
_AGAIN = "run the study again to rewrite it"
# A set is put in place in milliseconds: a reader that finds it half in place tries again this often, this many seconds
# apart.
TRIES, PAUSE = 8, 0.1

Loaded = TypeVar("Loaded")
Require = Callable[[], None]
"""Raises if this process may no longer write to the folder."""


class Entry(NamedTuple):
    """A file as it was written: size in bytes, digest, and of a drawn file the digest of its tables."""

    size: int
    digest: Annotated[str, Field(pattern="^[0-9a-f]{40}$")]
    drawn_from: Annotated[str, Field(pattern="^[0-9a-f]*$")] = ""


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or len(name.encode()) > store.LONGEST_NAME:
        raise ValueError(f"invalid file entry {name[:40]!r}")
    return name


Entries = Mapping[Annotated[str, AfterValidator(_inside)], Entry]
"""By path below the folder."""


@dataclass(frozen=True)
class Manifest:
    """The record of a folder; `made_from` is a digest of everything that the tables were made from."""

    made_from: str = ""
    tables: Entries = field(default_factory=dict)
    drawn: Entries = field(default_factory=dict)
    finished: bool = False
    holds: Mapping[str, Any] | None = None
    former: Entries = field(default_factory=dict)
    failed: str = ""

    @property
    def tables_digest(self) -> str:
        """Of the tables' names, sizes and digests."""
        return store.short_digest({name: list(entry[:2]) for name, entry in self.tables.items()})


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a results folder; None if it has none."""
    path = folder / NAME
    if not path.exists():
        return None
    value = store.read_json(path)
    try:
        if value["format"] not in (FORMAT, OLD_FORMAT):
            raise ValueError(f"format {value['format']!r}, expected {FORMAT}")
        found = TypeAdapter(Manifest).validate_python(value)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: damaged ({store.in_short(error)})", _AGAIN) from error
    if value["format"] == OLD_FORMAT:
        drawn = {name: e._replace(drawn_from=found.tables_digest) for name, e in found.drawn.items()}
        found = replace(found, drawn=drawn)
    return found


def readable_manifest(folder: Path) -> Manifest | None:
    """The manifest of a results folder; None if it has none, or only a damaged one, which a run replaces."""
    try:
        return read_manifest(folder)
    except StoreError:
        return None


def problems(folder: Path, files: Entries) -> Iterator[str]:
    """Which of `files` are not those that were written, and in what way."""
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            yield f"{path}: missing"
        elif not _is_as_written(path, entry):
            yield f"{path}: not the file that qkscope wrote (edited, damaged, or from another run)"


def _is_as_written(path: Path, entry: Entry) -> bool:
    return path.stat().st_size == entry.size and store.file_digest(path) == entry.digest


def all_problems(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Everything that is wrong with the tables and with what was drawn from them, mixtures of two sets included."""
    yield from problems(folder, {**manifest.tables, **manifest.drawn})
    for name, entry in manifest.drawn.items():
        if entry.drawn_from != manifest.tables_digest:
            yield f"{folder / name}: drawn from other tables than the current ones"


def read_set(
    folder: Path,
    load: Callable[[], Loaded],
    names: Collection[str] | None = None,
    made_from: str | None = None,
) -> Loaded:
    """What `load` makes of the tables of a folder, or of those called `names`: all of one set, and undamaged.

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
        f"{wrong or folder / NAME}; {_AGAIN}, or delete {folder / NAME} to read the tables without checking them"
    )


def _first_problem(
    folder: Path, manifest: Manifest | None, names: Collection[str] | None, made_from: str | None
) -> str | None:
    if manifest is None:
        return None
    if made_from is not None and manifest.made_from != made_from:
        return f"{folder}: was rewritten by another run while it was being read"
    wanted = {name: entry for name, entry in manifest.tables.items() if names is None or name in names}
    return next(problems(folder, wanted), None)


def begin(folder: Path, holds: Mapping[str, Any]) -> None:
    """Record which study or command the folder belongs to. What a manifest says of finished tables stays."""
    if readable_manifest(folder) is None:
        _write(folder, Manifest(holds=holds))


@contextmanager
def replacing_set(
    folder: Path, made_from: str, holds: Mapping[str, Any] | None = None, require: Require = lambda: None
) -> Iterator[Path]:
    """Yield an empty folder for tables; put them in place of the set before if the block succeeds."""
    with store.staging(folder) as staged:
        yield staged
        tables = _described(staged)
        require()
        old = readable_manifest(folder) or Manifest()
        ours = {**old.former, **old.tables}
        if old.holds is not None:
            refuse_foreign(folder, [name for name in tables if name not in ours])
        former = {name: entry for name, entry in ours.items() if name not in tables}
        # Before any table moves, so that no reader takes a mixture for a set.
        _write(folder, Manifest(made_from, tables, old.drawn, holds=holds, former=former))
        _move(staged, folder, tables, require)
        _remove(folder, former, require)


@contextmanager
def replacing_drawn(
    folder: Path, made_from: str | None, parts: Collection[str], require: Require = lambda: None
) -> Iterator[Path]:
    """Yield an empty folder to draw in; put everything in place if the block succeeds, and record it.

    made_from   of the tables that are drawn; if others have taken their place meanwhile, nothing is put in place
    parts       files and folders that this drawing replaces: what an earlier one left there is removed
    """
    with store.staging(folder) as staged:
        yield staged
        require()
        old = read_manifest(folder)
        if made_from != (old and old.made_from):
            raise StoreError(
                f"{folder}: its tables changed while they were being drawn; draw them again, or choose another "
                "folder with --out"
            )
        new = _described(staged)
        if old is None:  # another program's table, of which no record is kept
            _move(staged, folder, new, require)
            return
        new = {name: entry._replace(drawn_from=old.tables_digest) for name, entry in new.items()}
        replaced = {name for name in old.drawn if name.partition("/")[0] in parts and name not in new}
        gone = {name: entry for name, entry in old.drawn.items() if name in replaced}
        kept = {name: entry for name, entry in old.drawn.items() if name not in replaced}
        # What is to go stays named until it is gone, and what is new is named before it is there.
        _write(folder, replace(old, drawn={**old.drawn, **new}))
        _move(staged, folder, new, require)
        _remove(folder, gone, require)
        require()
        _write(folder, replace(old, drawn={**kept, **new}))


def note_finished(folder: Path, failed: str = "", require: Require = lambda: None) -> None:
    """Record that everything is in place; `failed` says why the run has not succeeded all the same."""
    manifest = read_manifest(folder)
    if manifest is not None:
        require()
        _write(folder, replace(manifest, finished=True, failed=failed, former={}))


def note_failed(folder: Path, failed: str) -> None:
    """Record why a run ended before everything was in place."""
    manifest = readable_manifest(folder)
    if manifest is not None:
        _write(folder, replace(manifest, finished=False, failed=failed))


def is_finished(folder: Path, made_from: str) -> bool:
    """Everything was made from just this, and is still what was written."""
    manifest = readable_manifest(folder)
    if manifest is None or not manifest.finished or manifest.made_from != made_from:
        return False
    try:
        return not any(all_problems(folder, manifest))
    except StoreError:
        return False


def refuse_foreign(folder: Path, names: Collection[str]) -> None:
    """Raise if files that no manifest names are where results are to be put."""
    there = [name for name in names if (folder / name).exists()]
    if there:
        raise StoreError(
            f"{folder} contains {', '.join(there)} without a record that qkscope wrote it, so it is not overwritten; "
            "choose another folder with --out, or move it away"
        )


def _move(staged: Path, folder: Path, files: Entries, require: Require) -> None:
    for name in files:
        require()
        with store.clear_errors(folder / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (staged / name).replace(folder / name)


def _remove(folder: Path, files: Entries, require: Require) -> None:
    """Remove files that are still what was written, and folders that are empty then."""
    for name, entry in files.items():
        path = folder / name
        if path.is_file() and _is_as_written(path, entry):
            require()
            with store.clear_errors(path):
                path.unlink(missing_ok=True)
                if path.parent != folder and not any(path.parent.iterdir()):
                    path.parent.rmdir()


def _described(folder: Path) -> dict[str, Entry]:
    """All files below a folder, hidden ones left out."""
    return {
        path.relative_to(folder).as_posix(): Entry(path.stat().st_size, store.file_digest(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def _write(folder: Path, manifest: Manifest) -> None:
    store.write_json(folder / NAME, {"format": FORMAT, **asdict(manifest)})
