"""A clock that jumps by a day, forward or back, here or on another machine: no claim is stolen, no run breaks."""

from __future__ import annotations

import itertools
import os
import threading
import time

import pytest
from faults import tables
from small_study import make_study
from test_lock import lost_node

from qkscope.errors import EngineError
from qkscope.results import lock
from qkscope.results.lock import locked
from qkscope.run import run, status
from qkscope.run.units import mark_running

DAY = 86_400.0
JUMPS = pytest.mark.parametrize("jump", [-DAY, DAY], ids=["back", "forward"])


@pytest.fixture
def clock(monkeypatch):
    """Sets this process's clock off by so many seconds, or by the next of several each time it is read."""
    now = time.time

    def off(*jumps: float) -> None:
        each = itertools.cycle(jumps)
        monkeypatch.setattr(time, "time", lambda: now() + next(each))

    return off


@JUMPS
def test_a_claim_of_this_machine_is_kept_whatever_the_clock_says(tmp_path, clock, jump):
    with locked(tmp_path, "first") as claim:
        clock(jump)
        os.utime(tmp_path / ".run.lock", (time.time(), time.time()))
        with (
            pytest.raises(EngineError, match="the study 'first' "),
            locked(tmp_path, "second"),
        ):
            pass
        claim.require()


@JUMPS
@pytest.mark.parametrize("place", [".run.lock", "shards/.1-of-2.lock"])
def test_a_node_whose_clock_jumps_keeps_its_claim(tmp_path, monkeypatch, jump, place):
    """Its next sign of life carries a time a day away: another time is a sign of life, whichever."""
    monkeypatch.setattr(lock, "LEASE_SECONDS", 3.0)
    path = tmp_path / place
    lost_node(path)
    there = time.time() + jump
    beat = threading.Timer(0.3, lambda: os.utime(path, (there, there)))
    beat.start()
    with pytest.raises(EngineError, match="process 4242 on node7"), locked(tmp_path, "second"):
        pass
    beat.join()


@JUMPS
def test_a_lost_node_is_waited_for_as_long_as_ever(tmp_path, monkeypatch, clock, jump):
    """Neither at once, because its last sign of life seems a day old, nor never, because it seems to come tomorrow."""
    monkeypatch.setattr(lock, "LEASE_SECONDS", 1.0)
    path = tmp_path / ".run.lock"
    lost_node(path)
    clock(jump)
    started = time.monotonic()
    with locked(tmp_path, "second"):
        assert time.monotonic() - started >= 1.0


def test_a_run_under_a_clock_that_jumps_to_and_fro_gives_the_same_bytes(tmp_path, no_drawing, clock):
    study = make_study(tmp_path / "study", groups=2, count=4)
    run(study, tmp_path / "whole")
    clock(0.0, DAY, -DAY, 3 * DAY)
    run(study, tmp_path / "out")
    assert tables(tmp_path / "out") == tables(tmp_path / "whole")
    run(study, tmp_path / "out")
    found = status(tmp_path / "out", verify=True)
    assert found.count("done") == 6
    assert found.damage == ()


@JUMPS
def test_a_unit_under_way_is_shown_as_running(tmp_path, clock, jump):
    folder = tmp_path / "units"
    unit = {"checkpoint": "a", "folder": "a", "group": 0, "key": {"seed": 0}, "sums": {"facts": {}}}
    mark_running(folder / "a" / "0")
    lock.store.write_json(folder / "plan.json", {"study": "small", "missing": {}, "units": [unit]})
    clock(jump)
    (found,) = status(tmp_path).units
    assert found.state == "running"
    assert found.detail.endswith("for 0 min" if jump < 0 else "for 1440 min")
