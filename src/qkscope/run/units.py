"""A unit of work: one checkpoint on one group of documents. Its key, its file, its marks, and doing it.

A unit's file carries its key: everything that decides what is in it. A file whose key is not the one asked for is
stale and says in which part it differs. Beside the file stand, while it is made, `<group>.running`, and after a
failure `<group>.failed`: what `qkscope status` reads.
"""

from __future__ import annotations

import gc
import hashlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkscope import store
from qkscope.errors import MemoryShortError, QkscopeError, StoreError, printable
from qkscope.heads import HeadIndex
from qkscope.key_sample import KeySampling
from qkscope.progress import say
from qkscope.unit import Unit

if TYPE_CHECKING:
    from qkscope.checkpoints import Resolved
    from qkscope.corpus import Document

Tick = Callable[[int], None]
"""Hears how many tokens a pass has read."""

# What a unit holds depends on this code too: raise it when capture or moments change their numbers.
CAPTURE_VERSION = 6

# A running unit touches its mark this often; a mark untouched ten times as long belongs to a lost process.
HEARTBEAT_SECONDS = 30.0

_PARTS_IN_WORDS = {
    "checkpoint": "the checkpoint's files changed",
    "documents": "its documents changed (the texts, their selection or the tokenizer)",
    "heads": "the heads changed",
    "keys": "plasticity was added, or its number of keys changed",
    "capture": "this version of qkscope measures differently",
}


@dataclass(frozen=True)
class Job:
    """One unit to do: small enough to travel, complete enough to be done anywhere."""

    name: str
    """The checkpoint's name."""
    folder: str
    group: int
    source: Resolved
    """The checkpoint, and the bytes it stood for when it was planned."""
    key: Mapping[str, Any]
    heads: HeadIndex
    rings: tuple[int, ...]
    batch_tokens: int
    tokens: int
    """Tokens to read, for progress."""
    keep_keys: KeySampling | None = None

    def path(self, results: Path) -> Path:
        return unit_path(results, self.folder, self.group)

    def __str__(self) -> str:
        return f"{self.name} group {self.group}"


def unit_path(results: Path, folder: str, group: int) -> Path:
    return Path(results) / "moments" / folder / f"{group}.safetensors"


def documents_digest(documents: Sequence[Document], window: int) -> str:
    """Of exactly what a unit reads: each document's number and its first `window` tokens."""
    digest = hashlib.blake2b(digest_size=20)
    for document in documents:
        tokens = document.tokens[:window].astype("<i4")
        digest.update(f"{document.index}|{len(tokens)}|".encode())
        digest.update(tokens.tobytes())
    return digest.hexdigest()


def why_stale(found: Mapping[str, Any], asked: Mapping[str, Any]) -> str | None:
    """In which parts the key of a file differs from the one asked for; None if in none."""
    reasons = []
    for part in asked:
        if found.get(part) == asked[part]:
            continue
        plain = f"{part} was {found.get(part)}, is now {asked[part]}"
        reasons.append(_PARTS_IN_WORDS.get(part, plain))
    return "; ".join(reasons) or None


def why_missing(results: Path, job: Job) -> str | None:
    """Why a unit has to be done: "" if it never was, None if its file is whole and current."""
    path = job.path(results)
    if not path.exists():
        return ""
    try:
        stale = why_stale(key_of(path), job.key)
        if stale is None:
            read_unit(path, job.key)
    except StoreError as error:
        return printable(error.found)
    return stale


def key_of(path: Path) -> Mapping[str, Any]:
    """The key in a unit's header."""
    key = store.read_meta(path).get("key")
    if not isinstance(key, dict):
        raise store.damaged(path, "it has no key")
    return key


def read_unit(path: Path, key: Mapping[str, Any]) -> Unit:
    """The unit at `path`, if it is whole and the one that `key` asks for."""
    tensors, meta = store.read_tensors(path)
    try:
        stale = why_stale(meta["key"], key)
        unit = Unit.from_tensors(tensors, meta)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise store.damaged(path, f"not a unit: {store.in_short(error)}") from error
    if stale is not None:
        raise StoreError(
            f"{path}: does not belong to this study ({stale}), so another run wrote it; run again"
        )
    return unit


def dump_unit(unit: Unit, job: Job) -> bytes:
    """The bytes of a unit's file. Its key says which passes were asked for; `batch_tokens`, if they were smaller."""
    tensors, meta = unit.to_tensors()
    meta = {**meta, "key": dict(job.key), "checkpoint": job.name, "group": job.group}
    if job.batch_tokens != job.key["batch_tokens"]:
        meta["batch_tokens"] = job.batch_tokens
    return store.dump_tensors(tensors, meta)


def in_smaller_passes(
    job: Job, documents: Sequence[Document], on_tokens: Tick, do: Callable[[Job, Tick], bytes]
) -> bytes:
    """What `do` makes of a job; where memory runs short, of it in passes of half the tokens, down to one document.

    The sums of a unit are the same for any size of its passes, up to the rounding of their last digits.
    """
    longest = max(min(len(document.tokens), job.rings[-1]) for document in documents)
    while True:
        counted = 0

        def count(tokens: int) -> None:
            nonlocal counted
            counted += tokens
            on_tokens(tokens)

        try:
            return do(job, count)
        except MemoryShortError as error:
            if job.batch_tokens <= longest:
                raise
            say(f"warning: {job}: {error}; trying again in smaller passes")
        # Outside the handler, which holds what the pass had made.
        on_tokens(-counted)
        job = smaller(job)
        _free()


def smaller(job: Job) -> Job:
    """The same unit in passes of half the tokens."""
    tokens = min(job.batch_tokens, job.tokens)
    return replace(job, batch_tokens=max(1, tokens // 2))


def _free() -> None:
    """Give memory back that nothing holds any more."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def import_libraries() -> None:
    """All that measuring needs, beforehand, so that the time of a process's first unit is its own."""
    import qkscope.capture  # noqa: F401
    from qkscope.checkpoints.hub import need

    for library in ("torch", "transformers.modeling_utils"):
        need(library)


class UnitMeasurer:
    """Does units with one model in memory: the one before is let go before the next is loaded."""

    def __init__(self) -> None:
        self._source: Resolved | None = None
        self._model: Any = None
        self._probe: Any = None

    def unit_bytes(self, job: Job, documents: Sequence[Document], on_tokens: Tick) -> bytes:
        """The bytes of a unit's file."""
        return in_smaller_passes(
            job,
            documents,
            on_tokens,
            lambda each, count: dump_unit(self.measure(each, documents, count), each),
        )

    def measure(self, job: Job, documents: Sequence[Document], on_tokens: Tick) -> Unit:
        from qkscope.capture import measure

        self._load(job.source)
        return measure(
            self._model,
            documents,
            job.heads,
            job.rings,
            batch_tokens=job.batch_tokens,
            on_tokens=on_tokens,
            keep_keys=job.keep_keys,
            probe=self._probe,
        )

    def release(self) -> None:
        """Let the model go. A full collection takes half a second, so only if there is one."""
        if self._source is not None:
            self.end()
            _free()

    def end(self) -> None:
        self._source = self._model = self._probe = None

    def _load(self, source: Resolved) -> None:
        from qkscope.capture import Probing
        from qkscope.checkpoints import load_resolved

        if self._source != source:
            self.release()
            self._model = load_resolved(source)
            self._probe = Probing(self._model)
            self._source = source


class Mark:
    """`<group>.running`: who is at work on a unit, touched while it goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_suffix(".running")
        self._touched = time.monotonic()
        who = {"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}
        store.write_json(self._path, who)

    def beat(self) -> None:
        if time.monotonic() - self._touched > HEARTBEAT_SECONDS and self._path.exists():
            self._touched = time.monotonic()
            self._path.touch()

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


@contextmanager
def marked(path: Path) -> Iterator[Mark]:
    """Mark the unit at `path` as running, and as failed if the block raises anything but an interruption."""
    try:
        # Inside, because Ctrl-C may come at any line.
        yield Mark(path)
    except Exception as error:
        mark_failed(path, f"{in_words(error)}\n\n{traceback.format_exc()}")
        raise
    finally:
        unmark(path)
    path.with_suffix(".failed").unlink(missing_ok=True)


def unmark(path: Path) -> None:
    """Nobody is at work on the unit at `path` any more."""
    path.with_suffix(".running").unlink(missing_ok=True)


def clear_marks(done: Iterable[Path]) -> None:
    """Remove what a killed process left beside units that are done."""
    for path in done:
        for mark in (".running", ".failed"):
            path.with_suffix(mark).unlink(missing_ok=True)


def mark_failed(path: Path, text: str) -> None:
    """Leave a word about a failure, unless the disk itself is what failed."""
    try:
        store.write_text(path.with_suffix(".failed"), text)
    except StoreError:
        return


def in_words(error: BaseException) -> str:
    """An error as one line: our own say all they have to, others need their name."""
    text = " ".join(str(error).split())
    if isinstance(error, QkscopeError) and text:
        return text
    return f"{type(error).__name__}: {text}".rstrip(": ")
