"""A unit of work: one checkpoint on one group of documents. Its keys, its files, its marks, and measuring it.

Each sum of a unit is a file, `units/<checkpoint>/<group>/<sum>.safetensors`, that carries its key: everything that
determines its content. A file with another key is stale. Only sums that are missing or stale are measured. Beside the
folder are `<group>.running` while the unit is measured and `<group>.failed` after a failure, for `qkscope status`.
"""

from __future__ import annotations

import gc
import hashlib
import os
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qkscope import store
from qkscope.capture import Probing, measure
from qkscope.checkpoints import Resolved, load_resolved
from qkscope.checkpoints.hub import need
from qkscope.corpus import Document
from qkscope.errors import EngineError, MemoryShortError, QkscopeError, StoreError, printable
from qkscope.measures import registry
from qkscope.progress import say
from qkscope.sums import FactSum, Sum
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.unit import Unit

Tick = Callable[[int], None]
"""Called with the number of tokens that a pass has read."""

SumFiles = dict[str, bytes]
"""The bytes of a unit's files by the names of their sums."""

SumKey = Mapping[str, Any]
"""Everything that determines the content of a sum's file, or a part of it."""

# Part of every key: raise it when capture or the layout of files changes. Each sum has a version of its own besides.
CAPTURE_VERSION = 7

# The folder of all units in a results folder.
UNITS = "units"

# A running unit touches its mark this often; a mark untouched ten times as long belongs to a lost process.
HEARTBEAT_SECONDS = 30.0

_WHY_PART_CHANGED = {
    "checkpoint": "the checkpoint's files changed",
    "documents": "its documents changed (the texts, their selection or the tokenizer)",
    "heads": "the heads changed",
    "capture": "this version of qkscope measures differently",
}


@dataclass(frozen=True)
class Job:
    """One unit to measure: small enough to send to a worker, complete enough to be measured anywhere."""

    name: str
    """The checkpoint's name."""
    folder: str
    group: int
    source: Resolved
    """The checkpoint, and the bytes it stood for when it was planned."""
    key: SumKey
    """The part of the key that all sums of the unit share."""
    sums: Mapping[str, SumKey]
    """Which sums, by name, and what each adds to the key: its version and its parameters."""
    heads: HeadIndex
    rings: tuple[int, ...]
    batch_tokens: int
    tokens: int
    """Tokens to read, for progress."""

    def path(self, results: Path) -> Path:
        """The folder of its files; its marks are beside it."""
        return unit_path(results, self.folder, self.group)

    def files(self, results: Path) -> list[Path]:
        return [sum_path(self.path(results), name) for name in self.sums]

    @property
    def keys(self) -> dict[str, SumKey]:
        """The whole key of each sum."""
        return sum_keys(self.key, self.sums)

    def __str__(self) -> str:
        return f"{self.name} group {self.group}"


def unit_path(results: Path, folder: str, group: int) -> Path:
    return Path(results) / UNITS / folder / str(group)


def sum_path(unit: Path, name: str) -> Path:
    return unit / f"{name}.safetensors"


def sum_keys(common: SumKey, sums: Mapping[str, SumKey]) -> dict[str, SumKey]:
    return {name: {**common, "sum": name, **own} for name, own in sums.items()}


def sum_settings(kind: type[Sum], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What a sum adds to the key of its unit."""
    return {"version": kind.version, "parameters": dict(parameters)}


def documents_digest(documents: Sequence[Document], window: int) -> str:
    """Of exactly what a unit reads: each document's number and its first `window` tokens."""
    digest = hashlib.blake2b(digest_size=20)
    for document in documents:
        tokens = document.tokens[:window].astype("<i4")
        digest.update(f"{document.index}|{len(tokens)}|".encode() + tokens.tobytes())
    return digest.hexdigest()


def why_stale(found: SumKey, wanted: SumKey) -> str | None:
    """In which parts the key of a file differs from the expected one; None if it does not."""
    reasons = []
    for part in wanted:
        if found.get(part) == wanted[part]:
            continue
        plain = f"{part} was {found.get(part)}, is now {wanted[part]}"
        if part in ("version", "parameters"):
            plain = f"{part} of {wanted['sum']}: {plain}"
        reasons.append(_WHY_PART_CHANGED.get(part, plain))
    return "; ".join(reasons) or None


def missing_sums(unit: Path, keys: Mapping[str, SumKey], verify: bool = True) -> dict[str, str]:
    """Of the sums with these keys, those that have to be measured and why: "" if there is no file.

    With `verify`, all bytes of the files are checked, otherwise only their headers.
    """
    found: dict[str, str] = {}
    facts: FactSum | None = None
    # Facts first: the others are checked against them.
    for name in sorted(keys, key=lambda name: name != FactSum.name):
        path = sum_path(unit, name)
        stale: str | None = ""
        try:
            if path.exists():
                stale = why_stale(key_of(path), keys[name])
            if stale is None and verify:
                read = read_sum(path, keys[name], facts)
                facts = read if isinstance(read, FactSum) else facts
        except StoreError as error:
            stale = printable(error.found)
        if stale is not None:
            found[name] = stale
    return found


def why_measured_again(missing: Mapping[str, str], wanted: Collection[str]) -> str:
    """Why a unit is measured again; empty if none of its sums was measured before."""
    absent = sorted(name for name, why in missing.items() if not why)
    reasons = list(dict.fromkeys(why for why in missing.values() if why))
    if absent and len(absent) < len(wanted):
        reasons.append(f"{', '.join(absent)} {'was' if len(absent) == 1 else 'were'} not measured")
    return "; ".join(reasons)


def key_of(path: Path) -> SumKey:
    """The key in the header of a sum's file."""
    key = store.read_meta(path).get("key")
    if not isinstance(key, dict):
        raise store.damaged(path, "it has no key")
    return key


def read_sum(path: Path, key: SumKey, facts: FactSum | None) -> Sum | None:
    """The sum at `path`, if it is whole and the one that `key` asks for.

    Without the facts of its unit, only the bytes of another sum can be checked: None.
    """
    arrays, meta = store.read_tensors(path)
    try:
        stale = why_stale(meta["key"], key)
        kind = registry.sums()[key["sum"]]
        read: Sum | None = None
        if stale is None and kind is FactSum:
            read = FactSum.from_arrays(arrays, meta)
        elif stale is None and facts is not None:
            read = kind.from_arrays(arrays, meta, facts)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise store.damaged(path, f"not a unit's sum: {store.in_short(error)}") from error
    if stale is not None:
        raise StoreError(
            f"{path}: does not belong to this study ({stale}), so another run wrote it; run again"
        )
    return read


def read_unit(unit: Path, keys: Mapping[str, SumKey]) -> Unit:
    """The unit in the folder `unit`, if the sums with these keys are all there and whole."""
    facts = read_sum(sum_path(unit, FactSum.name), keys[FactSum.name], None)
    if not isinstance(facts, FactSum):
        raise store.damaged(sum_path(unit, FactSum.name), "not the facts of a unit")
    others = [read_sum(sum_path(unit, name), keys[name], facts) for name in keys if name != FactSum.name]
    return Unit.of(facts, *(each for each in others if each is not None))


def dump_unit(unit: Unit, job: Job) -> SumFiles:
    """The bytes of the files of a job's sums.

    Their keys have the `batch_tokens` of the study; if passes had to be smaller, the files say how large they were.
    """
    about: dict[str, Any] = {"checkpoint": job.name, "group": job.group}
    if job.batch_tokens != job.key["batch_tokens"]:
        about["batch_tokens"] = job.batch_tokens
    found = {}
    for name, key in job.keys.items():
        arrays, meta = unit.sums[name].to_arrays()
        found[name] = store.dump_tensors(arrays, {**meta, "key": dict(key), **about})
    return found


def write_sums(unit: Path, files: SumFiles) -> None:
    """Write files of a unit, each whole or not at all; facts last, so that a unit with facts has its other sums."""
    for name in sorted(files, key=lambda name: name == FactSum.name):
        store.write_bytes(sum_path(unit, name), files[name])


def smaller(job: Job) -> Job:
    """The same unit in passes of half the tokens."""
    tokens = min(job.batch_tokens, job.tokens)
    return replace(job, batch_tokens=max(1, tokens // 2))


def _free() -> None:
    """Free unused memory."""
    gc.collect()
    if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
        torch.cuda.empty_cache()


def import_libraries() -> None:
    """Import what measuring needs, so that this is not counted as time of the first unit."""
    for library in ("torch", "transformers.modeling_utils"):
        need(library)


class UnitMeasurer:
    """Measures units with one model in memory: a model is released before the next is loaded."""

    def __init__(self) -> None:
        self._source: Resolved | None = None
        self._model: Any = None
        self._probe: Any = None

    def unit_bytes(self, job: Job, documents: Sequence[Document], on_tokens: Tick) -> SumFiles:
        """The bytes of the files of the job's sums.

        If memory runs short, it is measured again in passes of half the tokens, down to one document. The sums of a
        unit are the same for any size of its passes, up to the rounding of their last digits.
        """
        longest = max(min(len(document.tokens), job.rings[-1]) for document in documents)
        while True:
            counted = 0

            def count(tokens: int) -> None:
                nonlocal counted
                counted += tokens
                on_tokens(tokens)

            try:
                return self._in_passes_of(job, documents, count)
            except MemoryShortError as error:
                if job.batch_tokens <= longest:
                    raise
                say(f"warning: {job}: {error}; trying again in smaller passes")
            # Outside the handler, which holds what the pass had made.
            on_tokens(-counted)
            job = smaller(job)
            _free()

    def _in_passes_of(self, job: Job, documents: Sequence[Document], on_tokens: Tick) -> SumFiles:
        return dump_unit(self.measure(job, documents, on_tokens), job)

    def measure(self, job: Job, documents: Sequence[Document], on_tokens: Tick) -> Unit:
        self._load(job.source)
        return measure(
            self._model,
            documents,
            job.heads,
            job.rings,
            batch_tokens=job.batch_tokens,
            on_tokens=on_tokens,
            sums=_known_sums(job),
            probe=self._probe,
        )

    def end(self) -> None:
        """Release the model."""
        self._source = self._model = self._probe = None

    def _load(self, source: Resolved) -> None:
        if self._source != source:
            if self._source is not None:  # collecting takes half a second
                self.end()
                _free()
            self._model = load_resolved(source)
            self._probe = Probing(self._model)
            self._source = source


def _known_sums(job: Job) -> dict[type[Sum], Mapping[str, Any]]:
    """The classes of a job's sums, with their parameters; an error if they are other ones here."""
    known = registry.sums()
    for name, wanted in job.sums.items():
        if name not in known or known[name].version != wanted["version"]:
            found = f"has version {known[name].version}" if name in known else "is not known"
            raise EngineError(
                f"the sum {name} {found} on {socket.gethostname()}, but the study needs version {wanted['version']}: "
                "install the same packages on every node"
            )
    return {known[name]: wanted["parameters"] for name, wanted in job.sums.items()}


def mark_running(path: Path) -> None:
    """Write `<group>.running`: this process measures the unit at `path`. The mark of an earlier failure is removed."""
    who = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
    store.write_json(path.with_suffix(".running"), who)
    path.with_suffix(".failed").unlink(missing_ok=True)


def touch_mark(path: Path) -> None:
    """Show that the unit at `path` is still being measured."""
    mark = path.with_suffix(".running")
    with suppress(FileNotFoundError):
        if abs(time.time() - mark.stat().st_mtime) > HEARTBEAT_SECONDS:
            os.utime(mark)


def unmark(path: Path) -> None:
    """Remove the mark of a unit that is no longer measured."""
    path.with_suffix(".running").unlink(missing_ok=True)


def clear_marks(done: Iterable[Path]) -> None:
    """Remove what a killed process left beside units that are done."""
    for path in done:
        for mark in (".running", ".failed"):
            path.with_suffix(mark).unlink(missing_ok=True)


def mark_failed(path: Path, text: str) -> None:
    """Record a failure, unless the disk itself failed."""
    with suppress(StoreError):
        store.write_text(path.with_suffix(".failed"), text)


def error_line(error: BaseException) -> str:
    """An error as one line, with its type unless it is one of ours."""
    text = " ".join(str(error).split())
    if isinstance(error, QkscopeError) and text:
        return text
    return f"{type(error).__name__}: {text}".rstrip(": ")
