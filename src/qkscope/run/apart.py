"""Units in a process of its own, which can be ended whatever it is doing: for studies that set `timeout`.

A pass that hangs in a library hears no exception and no signal that Python handles, so it cannot be given up in the
process that runs the study. The process here gets units and documents through a pipe and sends bytes back; files and
marks stay with the run. It ends with the run: once nobody reads the pipe, there is nothing left for it to do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any

from qkscope.errors import EngineError, MemoryShortError, QkscopeError
from qkscope.run.units import Job, SumFiles, Tick, UnitMeasurer, import_libraries, in_smaller_passes, in_words

if TYPE_CHECKING:
    from qkscope.corpus import Document

# How often the run looks up from waiting, to show that it lives.
LOOK_SECONDS = 1.0
# Importing torch from a cold network disk takes longest.
START_SECONDS = 300.0


class MeasurerApart:
    """Does units as `UnitMeasurer` does, each within so many seconds: loading its model counts, starting does not."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection[Any, Any] | None = None

    def unit_bytes(self, job: Job, documents: Sequence[Document], on_tokens: Tick) -> SumFiles:
        return in_smaller_passes(
            job, documents, on_tokens, lambda each, count: self._do(each, documents, count)
        )

    def end(self) -> None:
        if self._process is None or self._pipe is None:
            return
        self._process.kill()
        self._process.wait()
        self._pipe.close()
        self._process = self._pipe = None

    def _do(self, job: Job, documents: Sequence[Document], on_tokens: Tick) -> SumFiles:
        try:
            pipe = self._pipe or self._begin()
            deadline = time.monotonic() + self._seconds
            pipe.send((job, documents))
            while (left := deadline - time.monotonic()) > 0:
                if not pipe.poll(min(left, LOOK_SECONDS)):
                    on_tokens(0)
                    continue
                what, said = pipe.recv()
                if what == "bytes":
                    return dict(said)
                if what == "error":
                    raise EngineError(said)
                on_tokens(said)
        except (EOFError, ConnectionError) as error:
            raise self._died(job) from error
        self.end()
        raise EngineError(too_long(job, self._seconds))

    def _begin(self) -> Connection[Any, Any]:
        self._pipe, theirs = Pipe()
        end = theirs.fileno()
        # A new interpreter and not a fork: what this one holds on a GPU does not survive forking.
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from qkscope.run.apart import serve; serve({end}, {_threads()})"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            pass_fds=[end],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run, which ends this in its own way
        )
        theirs.close()
        if not self._pipe.poll(START_SECONDS):
            self.end()
            raise EngineError(f"the measuring subprocess did not start within {START_SECONDS:.0f} s")
        self._pipe.recv()
        return self._pipe

    def _died(self, job: Job) -> QkscopeError:
        code = self._process.wait() if self._process else 0
        self.end()
        if code == -signal.SIGKILL:
            return MemoryShortError("its process was killed, probably because the machine ran out of memory")
        return EngineError(
            f"the process measuring group {job.group} ended with exit code {code}, possibly a crash in a library"
        )


def too_long(job: Job, seconds: float) -> str:
    return f"group {job.group} took longer than the study's timeout of {seconds:g} s and was stopped"


def serve(end: int, threads: int) -> None:
    """Do what comes through the pipe with this file number, until nobody holds its other end."""
    import_libraries()
    if threads:
        sys.modules["torch"].set_num_threads(threads)
    measurer = UnitMeasurer()
    with Connection(end) as pipe, suppress(EOFError, ConnectionError):
        pipe.send(("ready", None))
        while True:
            job, documents = pipe.recv()
            try:
                data = measurer.unit_bytes(job, documents, lambda tokens: pipe.send(("tokens", tokens)))
            except Exception as error:
                pipe.send(("error", in_words(error)))
            else:
                pipe.send(("bytes", data))


def _threads() -> int:
    """So many as here, where torch was told: sums of other numbers of threads are rounded otherwise."""
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None else 0
