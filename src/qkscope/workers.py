"""Processors, and work in other processes of this machine.

A worker process is a fresh Python that imports the functions it runs and nothing of the caller's script, so
no script needs an `if __name__ == "__main__"` guard. It ends when its caller does.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from typing import Any, TypeVar

from qkscope.errors import EngineError

Piece = TypeVar("Piece")
Result = TypeVar("Result")

# Starting processes and importing libraries takes about this many seconds: shorter work is done without them.
PAYS_FROM = 15.0
# Seconds between signs of life that a waiting caller gets from a busy worker.
LOOK_SECONDS = 1.0


class _CpuShare:
    """This process may use one part in `of` of the machine's processors."""

    of = 1


def cores() -> int:
    """Number of processors this process may use."""
    every = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, every // _CpuShare.of)


def worth(pieces: int, seconds: float) -> int:
    """How many processes to start for `pieces` pieces of work that take `seconds` each."""
    return min(pieces, cores()) if pieces * seconds >= PAYS_FROM else 1


def one_thread_each() -> AbstractContextManager[object]:
    """Limit BLAS and LAPACK to one thread: with small matrices, one matrix per core is faster."""
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits


def numpy_on_one_thread() -> AbstractContextManager[object]:
    """Limit numpy's BLAS to one thread while torch works: its threads keep spinning after a product."""
    from threadpoolctl import ThreadpoolController

    limits: AbstractContextManager[object] = (
        ThreadpoolController().select(internal_api="openblas").limit(limits=1)
    )
    return limits


class WorkerDiedError(EngineError):
    """A worker process ended while it was working; `code` is its exit code, negative for a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(
            f"a worker process ended early (exit code {code}), possibly out of memory; "
            "finished work is kept: run again"
        )
        self.code = code


class WorkerProcess:
    """A process that runs functions, one at a time. It may use one part in `share_of` of the processors."""

    def __init__(self, share_of: int = 1) -> None:
        self._pipe, theirs = Pipe()
        end = theirs.fileno()
        # A new interpreter and not a fork, which cannot use a GPU that this process uses.
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve({end}, {share_of})"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            pass_fds=[end],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the caller, which kills its workers
        )
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(
        self,
        work: Callable[[Piece], Result],
        piece: Piece,
        seconds: float | None = None,
        on_report: Callable[[Any], None] | None = None,
    ) -> Result:
        """`work(piece)`, run by the worker; an exception that it raises is raised here.

        on_report  gets what the work passes to `report`, and None every second of waiting
        seconds    after this time the worker is killed and TimeoutError raised
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        kind: str = "report"
        value: Any = None
        try:
            self._pipe.send((work, piece))
            while kind == "report":
                if deadline is not None and time.monotonic() > deadline:
                    self.kill()
                    raise TimeoutError
                kind, value = self._pipe.recv() if self._pipe.poll(LOOK_SECONDS) else ("report", None)
                if kind == "report" and on_report is not None:
                    on_report(value)
        except (EOFError, ConnectionError) as error:
            raise WorkerDiedError(self._process.wait()) from error
        # Outside: the work itself may have raised one of the errors caught above.
        if kind == "error":
            raise value
        result: Result = value
        return result

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def in_processes(work: Callable[[Piece], Result], pieces: Sequence[Piece], count: int) -> Iterator[Result]:
    """`work` of every piece, in order, done by `count` processes. `work` must be importable by its name.

    An exception in a piece is raised here. If the caller stops early, all workers are killed at once.
    """
    with ExitStack() as workers, ThreadPoolExecutor(count) as pool:
        free: SimpleQueue[WorkerProcess] = SimpleQueue()
        for _ in range(count):
            worker = WorkerProcess(share_of=count)
            workers.callback(worker.kill)
            free.put(worker)

        def one(piece: Piece) -> Result:
            worker = free.get()
            try:
                return worker.call(work, piece)
            finally:
                free.put(worker)

        try:
            yield from pool.map(one, pieces)
        except BaseException:
            # Before the pool waits for its threads, which wait for results.
            pool.shutdown(wait=False, cancel_futures=True)
            workers.close()
            raise


class _Caller:
    """In a worker process: the pipe to its caller."""

    pipe: Connection[Any, Any] | None = None


def report(value: Any) -> None:
    """From work in a worker process: give the caller's `on_report` a value."""
    if _Caller.pipe is not None:
        _Caller.pipe.send(("report", value))


def serve(end: int, share_of: int) -> None:
    """Be a worker process: run what comes through the pipe with file number `end` until the caller closes it."""
    _CpuShare.of = share_of
    os.dup2(2, 1)  # the caller's standard output is for its own results
    with Connection(end) as pipe, suppress(EOFError, ConnectionError):
        _Caller.pipe = pipe
        while True:
            work, piece = pipe.recv()
            try:
                answer = pickle.dumps(("result", work(piece)), protocol=pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                answer = pickle.dumps(("error", _sendable(error)))
            pipe.send_bytes(answer)


def _sendable(error: Exception) -> Exception:
    """The error itself if it can be pickled, else an error with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return EngineError(f"{type(error).__name__}: {error}")
    return error
