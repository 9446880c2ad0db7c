"""Gives a reader mutated bytes and keeps what it does: an object, an error of ours, or a finding."""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.mutator import mutate
from fuzz.readers import Reader
from qkscope.errors import QkscopeError

HANG_SECONDS = 10


@dataclass
class Tried:
    """What came of some executions of one reader. `foreign` keeps one input for each place that raised."""

    reader: str
    executions: int = 0
    read: int = 0
    refused: int = 0
    slowest: float = 0.0
    foreign: dict[str, bytes] = field(default_factory=dict)

    def add(self, other: Tried) -> None:
        self.executions += other.executions
        self.read += other.read
        self.refused += other.refused
        self.slowest = max(self.slowest, other.slowest)
        self.foreign |= other.foreign

    def __str__(self) -> str:
        return (
            f"{self.executions:>9,} tried, {self.read:>9,} read, {self.refused:>9,} refused, "
            f"{len(self.foreign)} foreign, slowest {self.slowest:.2f} s"
        )


class HangError(Exception):
    """An input that took longer than HANG_SECONDS."""


def fuzz(reader: Reader, executions: int, seed: int) -> Tried:
    """Run `reader` on that many mutations of its seeds, in a folder of its own."""
    draw, tried = random.Random(f"{reader.name} {seed}"), Tried(reader.name)
    seeds = reader.seeds()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=_memory()))
    try:
        for _ in range(executions):
            attempt(reader, folder, mutate(draw, seeds), tried)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return tried


def attempt(reader: Reader, folder: Path, data: bytes, tried: Tried) -> None:
    path = folder / reader.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    started = time.monotonic()
    tried.executions += 1
    try:
        with _limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(path)
        tried.read += 1
    except QkscopeError:
        tried.refused += 1
    except Exception as error:  # this is what is looked for
        where = traceback.extract_tb(error.__traceback__)
        own = [f"{Path(f.filename).name}:{f.lineno}" for f in where if "qkscope" in f.filename]
        tried.foreign.setdefault(
            f"{type(error).__name__} at {own[-1] if own else '?'}: {str(error)[:100]}", data
        )
    tried.slowest = max(tried.slowest, time.monotonic() - started)


@contextmanager
def _limited():
    def hang(signum, frame):
        raise HangError(f"longer than {HANG_SECONDS} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(HANG_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _memory() -> str | None:
    """Files that live for a millisecond need no disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
