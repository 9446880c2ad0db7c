"""Units of work side by side, each in a fork of this process: what has been imported once starts in a millisecond."""

from __future__ import annotations

import gc
import json
import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

Result = dict[str, Any]


@dataclass(frozen=True)
class Unit:
    """`do` runs in a fork and says in JSON what came of it; `take` hears that here, or None if the fork died."""

    name: str
    do: Callable[[], Result]
    take: Callable[[Result | None, int], str]


def side_by_side(units: Iterator[Unit], workers: int, done: Callable[[str], None]) -> None:
    """All units, so many at a time; `done` hears a line about each as it ends."""
    # What is here now is never garbage in a fork: collecting it would cost half of a small run.
    gc.collect()
    gc.freeze()
    running: dict[int, tuple[Unit, IO[bytes]]] = {}

    def end_one() -> None:
        pid, status, usage = os.wait4(-1, 0)
        unit, answer = running.pop(pid)
        with answer:
            answer.seek(0)
            result = json.loads(answer.read()) if status == 0 else None
        done(f"{unit.name}: {unit.take(result, usage.ru_maxrss * 1024)}")

    for unit in units:
        pid, answer = _begin(unit)
        running[pid] = unit, answer
        if len(running) == workers:
            end_one()
    while running:
        end_one()


def _begin(unit: Unit) -> tuple[int, IO[bytes]]:
    answer = tempfile.TemporaryFile()  # noqa: SIM115 (closed once it is read)

    def answered() -> None:
        answer.write(json.dumps(unit.do()).encode())
        answer.flush()

    return _fork(answered), answer


def exit_code(do: Callable[[], object], log: str, seconds: int) -> int:
    """How a process of its own that does this ends; 0 if it returns. One that takes too long is ended by a signal."""

    def logged() -> None:
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        signal.alarm(seconds)
        do()

    return os.waitstatus_to_exitcode(os.waitpid(_fork(logged), 0)[1])


def _fork(do: Callable[[], object]) -> int:
    """The process that does this; it ends with 0 if that returns."""
    pid = os.fork()
    if pid:
        return pid
    try:
        do()
    except BaseException:
        traceback.print_exc()
        os._exit(3)
    os._exit(0)
