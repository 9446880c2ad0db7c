from __future__ import annotations

import os
import time

import pytest

from qkscope.errors import EngineError
from qkscope.workers import cores, in_processes


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
