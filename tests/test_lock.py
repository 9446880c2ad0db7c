"""One run at a time in a results folder: who is refused, who takes over, and what is said."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from small_study import make_study

from qkscope.errors import EngineError, StoreError
from qkscope.results import lock
from qkscope.results.lock import locked
from qkscope.run import run
from qkscope.run.engines import LocalEngine

HOLD = (
    "import sys, time; from pathlib import Path; from qkscope.results.lock import locked\n"
    "with locked(Path(sys.argv[1]), 'first', sys.argv[2] or None):\n"
    "    print('go', flush=True); time.sleep(60)"
)


@pytest.fixture
def holder():
    """Start a process that claims a folder, or a shard of it."""
    started = []

    def hold(folder, shard=""):
        child = subprocess.Popen([sys.executable, "-c", HOLD, str(folder), shard], stdout=subprocess.PIPE)
        started.append(child)
        assert child.stdout.readline() == b"go\n"
        return child

    yield hold
    for child in started:
        child.kill()
        child.communicate()


def lost_node(path) -> None:
    """A claim as a process on another machine leaves it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    marker = f"filelock/2\npid=4242\nhost=node7\nmode=lease\ntoken=abc\nduration={lock.LEASE_SECONDS!r}\n"
    path.write_text(marker)


def test_a_second_run_is_told_who_holds_the_folder_and_how_to_go_on(tmp_path, holder):
    child = holder(tmp_path)
    with pytest.raises(EngineError) as raised, locked(tmp_path, "second"):
        pass
    said = str(raised.value)
    assert f"process {child.pid} on" in said
    assert "the study 'first' " in said
    assert f"since {time.strftime('%Y-%m-%d')}" in said
    assert "--out" in said
    assert "qkscope status" in said
    assert "delete" in said


def test_a_killed_run_frees_its_folder_at_once(tmp_path, holder):
    child = holder(tmp_path)
    child.send_signal(signal.SIGKILL)
    child.wait()
    started = time.monotonic()
    with locked(tmp_path, "second"):
        pass
    assert time.monotonic() - started < 5
    assert list(tmp_path.iterdir()) == []


def test_shards_of_one_study_work_side_by_side_and_exclude_a_whole_run(tmp_path, holder):
    holder(tmp_path, "1/3")
    with locked(tmp_path, "first", "2/3"):
        pass
    with (
        pytest.raises(EngineError, match=r"shard 1/3 of the study 'first'"),
        locked(tmp_path, "first", "1/3"),
    ):
        pass
    with pytest.raises(EngineError, match=r"shard 1/3 of the study 'first'"), locked(tmp_path, "first"):
        pass


def test_a_whole_run_excludes_shards(tmp_path, holder):
    holder(tmp_path)
    with pytest.raises(EngineError, match="the study 'first' "), locked(tmp_path, "first", "1/3"):
        pass


def test_a_lost_node_is_watched_and_then_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "LEASE_SECONDS", 1.5)
    lost_node(tmp_path / ".run.lock")
    lost_node(tmp_path / "shards" / ".1-of-2.lock")
    started = time.monotonic()
    with locked(tmp_path, "second"):
        assert time.monotonic() - started > 2.5


@pytest.mark.parametrize("place", [".run.lock", "shards/.1-of-2.lock"])
def test_a_node_that_shows_life_keeps_its_claim(tmp_path, monkeypatch, place):
    monkeypatch.setattr(lock, "LEASE_SECONDS", 3.0)
    path = tmp_path / place
    lost_node(path)
    beat = threading.Timer(0.5, lambda: os.utime(path))
    beat.start()
    with pytest.raises(EngineError, match="process 4242 on node7"), locked(tmp_path, "second"):
        pass
    beat.join()


def test_a_claim_that_was_lost_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "LEASE_SECONDS", 0.3)
    with locked(tmp_path, "first") as claim:
        claim.require()
        (tmp_path / ".run.lock").unlink()
        time.sleep(0.8)
        with pytest.raises(EngineError, match="lost its lock"):
            claim.require()


@pytest.mark.parametrize("name", ["facts", "moments"])
def test_units_of_another_study_are_never_put_together(tmp_path, monkeypatch, name):
    """A sum of another study's unit takes the place of one after it was measured: the tables are not made."""
    study = make_study(tmp_path, groups=2, count=4)
    measure = LocalEngine.run

    def swapped(self, jobs, documents, results, *more):
        failures = measure(self, jobs, documents, results, *more)
        shutil.copy(jobs[2].path(results) / f"{name}.safetensors", jobs[0].path(results))
        return failures

    monkeypatch.setattr(LocalEngine, "run", swapped)
    with pytest.raises(StoreError, match=rf"checkpoint-1/0/{name}\.safetensors: does not belong"):
        run(study, tmp_path / "out")
    assert not (tmp_path / "out" / "qk.csv").exists()
    assert not (tmp_path / "out" / ".run.lock").exists()
