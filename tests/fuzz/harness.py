"""Gives a reader mutated bytes and keeps what it does: an object, an error of ours, or a finding."""

from __future__ import annotations

import random
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


class HangError(Exception):
    """An input that took longer than HANG_SECONDS."""


def fuzz(reader: Reader, executions: int, seed: int) -> Tried:
    """Run `reader` on that many mutations of its seeds, in a folder of its own."""
    draw, tried = random.Random(f"{reader.name} {seed}"), Tried(reader.name)
    seeds = reader.seeds()
    place = tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory_folder(), ignore_cleanup_errors=True)
    with place as folder, guarded(reader, Path(folder)) as path:
        for _ in range(executions):
            attempt(reader, path, mutate(draw, seeds), tried)
    return tried


@contextmanager
def guarded(reader: Reader, folder: Path):
    """The path for a reader's file below `folder`; inside, hangs end and libraries' warnings are not shown."""

    def hang(signum, frame):
        raise HangError(f"longer than {HANG_SECONDS} s")

    path = folder / reader.file
    path.parent.mkdir(parents=True, exist_ok=True)
    before = signal.signal(signal.SIGALRM, hang)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield path
    finally:
        signal.signal(signal.SIGALRM, before)


def attempt(reader: Reader, path: Path, data: bytes, tried: Tried) -> None:
    tried.executions += 1
    seconds, outcome = _read(reader, path, data)
    if seconds > HANG_SECONDS:
        # A process that was stopped, or a machine that was busy, is no hang: an input that hangs does so again.
        seconds, outcome = _read(reader, path, data)
    tried.slowest = max(tried.slowest, seconds)
    if outcome is None:
        tried.read += 1
    elif isinstance(outcome, QkscopeError):
        tried.refused += 1
    else:
        where = traceback.extract_tb(outcome.__traceback__)
        own = [f"{Path(f.filename).name}:{f.lineno}" for f in where if "qkscope" in f.filename]
        tried.foreign.setdefault(
            f"{type(outcome).__name__} at {own[-1] if own else '?'}: {str(outcome)[:100]}", data
        )


def _read(reader: Reader, path: Path, data: bytes) -> tuple[float, Exception | None]:
    """How long a reader took, and what it raised."""
    path.write_bytes(data)
    started = time.monotonic()
    signal.alarm(HANG_SECONDS)
    try:
        reader.read(path)
    except Exception as error:  # this is what is looked for
        return time.monotonic() - started, error
    finally:
        signal.alarm(0)
    return time.monotonic() - started, None


def memory_folder() -> str | None:
    """For files that need no disk: they live for a millisecond. None where there is no such folder."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
