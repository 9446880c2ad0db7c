from __future__ import annotations

import os
import time

import pytest

from qkscope.errors import EngineError
from qkscope.workers import WorkerDiedError, WorkerProcess, cores, in_processes


def test_results_come_in_the_order_of_the_pieces_and_what_is_printed_is_none_of_them(capfd):
    said = "[__import__('time').sleep({0}), print('heard'), {0}][2]"
    assert list(in_processes(eval, [said.format(s) for s in (0.3, 0.0, 0.1)], 2)) == [0.3, 0.0, 0.1]
    assert capfd.readouterr().err.count("heard") == 3


def test_each_has_its_share_of_the_processors():
    asked = "__import__('qkscope.workers').workers.cores()"
    assert list(in_processes(eval, [asked], 2)) == [max(1, cores() // 2)]


def test_an_error_of_a_piece_is_raised_here():
    found = in_processes(int, ["1", "x", "3"], 2)
    assert next(found) == 1
    with pytest.raises(ValueError, match="'x'"):
        list(found)
    # An error of the work, though of a kind that a broken pipe raises too.
    with pytest.raises(ConnectionRefusedError):
        list(in_processes(eval, ["[].append((_ for _ in ()).throw(ConnectionRefusedError()))"], 1))
    with pytest.raises(Exception, match="pickle"):
        list(in_processes(eval, ["lambda: 0"], 1))


def test_a_worker_that_dies_is_an_error_in_words():
    with pytest.raises(EngineError, match="ended early"):
        list(in_processes(os._exit, [3], 1))


def test_an_interruption_ends_all_workers_at_once():
    pieces = ["__import__('os').getpid()", *["__import__('time').sleep(600)"] * 4]
    found = in_processes(eval, pieces, 2)
    pid, started = next(found), time.monotonic()
    found.close()
    assert time.monotonic() - started < 300
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.fixture
def worker():
    worker = WorkerProcess()
    yield worker
    worker.kill()


def test_work_that_takes_too_long_ends_with_its_process(worker):
    assert worker.call(int, "7", seconds=300) == 7
    heard = []
    with pytest.raises(TimeoutError):
        worker.call(time.sleep, 600, seconds=2, on_report=heard.append)
    assert heard
    assert set(heard) == {None}
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)


def test_work_reports_and_its_death_has_an_exit_code(worker):
    heard = []
    worker.call(eval, "__import__('qkscope.workers').workers.report(5)", on_report=heard.append)
    assert [value for value in heard if value is not None] == [5]
    with pytest.raises(WorkerDiedError) as died:
        worker.call(eval, "__import__('os').kill(__import__('os').getpid(), 9)")
    assert died.value.code == -9
