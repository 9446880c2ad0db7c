"""Processors: how many there are, and pieces of work spread over processes of their own.

A worker is a fresh Python that imports what the work needs and nothing of the caller's script, so that no script needs
a guard against being run twice. Each has its share of the processors. Results come in the order of the pieces,
whoever did them; an error of a piece is raised here, and an interruption ends all workers at once.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from typing import IO, Any, TypeVar

from qkscope.errors import EngineError

Piece = TypeVar("Piece")
Result = TypeVar("Result")

# Work of fewer seconds is done sooner than processes have started and imported what they need.
PAYS_FROM = 15.0


class _Share:
    """The part of the machine's processors that this process may use: one of so many."""

    of = 1


def cores() -> int:
    """Processors this process may use."""
    every = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, every // _Share.of)


def worth(pieces: int, seconds: float) -> int:
    """How many processes are worth starting for so many pieces of work, of so many seconds each."""
    return min(pieces, cores()) if pieces * seconds >= PAYS_FROM else 1


def one_thread_each() -> AbstractContextManager[object]:
    """Keep LAPACK from starting threads of its own: on small matrices, one matrix a core is faster."""
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits


def in_processes(work: Callable[[Piece], Result], pieces: Sequence[Piece], count: int) -> Iterator[Result]:
    """`work` of every piece in order, done by `count` processes. It must be importable by its name."""
    with _workers(count) as workers, ThreadPoolExecutor(count) as pool:
        free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for worker in workers:
            free.put(worker)

        def one(piece: Piece) -> Result:
            worker = free.get()
            try:
                return _ask(worker, work, piece)
            finally:
                free.put(worker)

        try:
            yield from pool.map(one, pieces)
        except BaseException:
            # Before the pool waits for its threads, which wait for answers.
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.kill()
            raise


@contextmanager
def _workers(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    start = [sys.executable, "-c", f"from {__name__} import serve; serve({count})"]
    paths = os.pathsep.join(path for path in sys.path if path)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            started.append(
                subprocess.Popen(
                    start,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": paths},
                )
            )
        yield started
    finally:
        for worker in started:
            worker.kill()
            worker.communicate()


def _ask(worker: subprocess.Popen[bytes], work: Callable[[Piece], Result], piece: Piece) -> Result:
    if worker.stdin is None or worker.stdout is None:
        raise EngineError("a worker process was started without pipes")
    try:
        pickle.dump((work, piece), worker.stdin)
        worker.stdin.flush()
        result, error = pickle.load(worker.stdout)
    except (OSError, EOFError, pickle.UnpicklingError) as lost:
        raise EngineError(
            f"a worker process ended early (status {worker.poll()}), possibly out of memory; "
            "finished work is kept: run again"
        ) from lost
    if error is not None:
        raise error
    found: Result = result
    return found


def serve(share_of: int) -> None:
    """Be a worker: do the pieces that come on standard input until it ends. Standard output carries the results."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides
    _Share.of = share_of
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is not an answer
    while (asked := _next(sys.stdin.buffer)) is not None:
        work, piece = asked
        try:
            answer = pickle.dumps((work(piece), None), protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            answer = pickle.dumps((None, _as_sent(error)))
        answers.write(answer)
        answers.flush()


def _next(asked: IO[bytes]) -> Any:
    try:
        return pickle.load(asked)
    except EOFError:
        return None


def _as_sent(error: Exception) -> Exception:
    """The error itself where it survives the way, else its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return EngineError(f"{type(error).__name__}: {error}")
    return error
