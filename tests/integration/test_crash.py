"""A run killed or failing at any file operation, run again: the tables are, byte for byte, those of one left alone."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults import ERRORS, KILL, count_operations, run_with_fault
from small_study import make_study, run_quietly

from qkscope.run import status

# `make soak` asks for every operation; by default some are drawn.
KILLS = int(os.environ.get("QKSCOPE_KILLS", "12"))
FAILURES = int(os.environ.get("QKSCOPE_FAILURES", "1"))


@pytest.fixture(scope="module")
def processes():
    """Processes that start in milliseconds: a server has imported everything once and forks."""
    context = multiprocessing.get_context("forkserver")
    own = ["faults", "small_study", "qkscope.run", "qkscope.capture", "qkscope.findings", "qkscope.results"]
    drawn = [
        "qkscope.figures",
        "qkscope.report",
        "transformers.models.llama.modeling_llama",
        "pyarrow.parquet",
    ]
    context.set_forkserver_preload(own + drawn)
    return context


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return make_study(tmp_path_factory.mktemp("study"), groups=2, count=4)


@pytest.fixture(scope="module")
def left_alone(processes, study, tmp_path_factory):
    """The tables of an uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "results"
    assert in_process(processes, run_quietly, study, out) == 0
    return tables(out)


@pytest.fixture(scope="module")
def operations(processes, study, tmp_path_factory):
    """How many file operations a run has."""
    folder = tmp_path_factory.mktemp("counted")
    assert in_process(processes, count_operations, study, folder / "results", folder / "count") == 0
    return int((folder / "count").read_text())


def in_process(processes, target, *args) -> int:
    process = processes.Process(target=target, args=args)
    process.start()
    process.join()
    return process.exitcode


def tables(out: Path) -> dict[str, bytes]:
    names = [*out.glob("*.csv"), *out.glob("*.parquet"), *out.glob("*.safetensors"), out / "study.yaml"]
    return {path.name: path.read_bytes() for path in names}


def check_finished(processes, study, out, left_alone) -> None:
    assert in_process(processes, run_quietly, study, out) == 0
    assert tables(out) == left_alone
    found = status(out, verify=True)
    assert found.count("done") == len(found.units) == 6
    assert found.damage == ()
    for litter in ("*.tmp", "*.running", "*.failed", "*.lock", "*.who"):
        assert list(out.rglob(litter)) == []


def test_killed_at_any_file_operation(processes, study, left_alone, operations, tmp_path):
    """Each in a folder of its own; afterwards one run ends in the same bytes."""
    every = range(1, operations + 1)
    assert operations > 150
    for at in every if operations <= KILLS else sorted(random.Random(0).sample(every, KILLS)):
        out = tmp_path / str(at)
        assert in_process(processes, run_with_fault, study, out, at, KILL) == -signal.SIGKILL, at
        check_finished(processes, study, out, left_alone)


@pytest.mark.parametrize("kind", ERRORS)
def test_a_failing_file_operation_is_an_error_of_ours_and_loses_nothing(
    processes, study, left_alone, operations, tmp_path, kind
):
    every = range(1, operations + 1)
    for at in every if operations <= FAILURES else random.Random(kind).sample(every, FAILURES):
        out = tmp_path / str(at)
        assert in_process(processes, run_with_fault, study, out, at, kind) in (0, 1), (at, kind)
        check_finished(processes, study, out, left_alone)


def test_killed_again_and_again(processes, study, left_alone, operations, tmp_path):
    """In one folder, each time a little later."""
    out = tmp_path / "results"
    for at in range(operations // 5, operations, operations // 5):
        in_process(processes, run_with_fault, study, out, at, KILL)
    check_finished(processes, study, out, left_alone)


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(processes, study, left_alone, tmp_path):
    out = tmp_path / "results"
    command = [
        *(sys.executable, "-c", "from qkscope.cli import main; main()"),
        *("run", str(study), "--out", str(out)),
    ]
    # A parent in the background may have told its children to ignore interrupts.
    listen = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **listen) as process:
        deadline = time.monotonic() + 120
        while not list(out.glob("moments/*/*.safetensors")) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert f"To go on: qkscope run {study} --out {out}" in said
    assert "Traceback" not in said
    assert 1 <= status(out).count("done") <= 6
    check_finished(processes, study, out, left_alone)
