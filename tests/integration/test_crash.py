"""A run killed or failing at any file operation, run again: the tables are, byte for byte, those of one left alone."""

from __future__ import annotations

import multiprocessing
import random
import signal
import subprocess
import sys
import time

import pytest
from faults import (
    ERRORS,
    KILL,
    SHORT,
    WRITE,
    differences,
    exits_as_it_should,
    list_operations,
    run_with_fault,
    tables,
)
from small_study import make_study, run_quietly

from qkscope.run import status

# Some operations are drawn; `make soak` strikes at every one.
KILLS = 8


@pytest.fixture(scope="module")
def processes():
    """Processes that start in milliseconds: a server has imported everything once and forks."""
    context = multiprocessing.get_context("forkserver")
    own = ["faults", "small_study", "qkscope.run", "qkscope.capture", "qkscope.claims", "qkscope.results"]
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
def whole(processes, study, tmp_path_factory):
    """The folder of an uninterrupted run, with a list of its file operations beside the results."""
    folder = tmp_path_factory.mktemp("whole")
    assert in_process(processes, list_operations, study, folder / "results", folder / "list") == 0
    return folder


@pytest.fixture(scope="module")
def left_alone(whole):
    """The tables of an uninterrupted run."""
    return tables(whole / "results")


@pytest.fixture(scope="module")
def operations(whole):
    """Its file operations, in order."""
    return (whole / "list").read_text().splitlines()


def in_process(processes, target, *args) -> int:
    process = processes.Process(target=target, args=args)
    process.start()
    process.join()
    return process.exitcode


def check_finished(processes, study, out, left_alone) -> None:
    assert in_process(processes, run_quietly, study, out) == 0
    assert differences(out, left_alone) == []


def test_killed_at_any_file_operation(processes, study, left_alone, operations, tmp_path):
    """Each in a folder of its own; afterwards one run ends in the same bytes."""
    assert len(operations) > 150
    for at in sorted(random.Random(0).sample(range(1, len(operations) + 1), KILLS)):
        strike(processes, study, tmp_path / str(at), at, KILL, left_alone)


@pytest.mark.parametrize("kind", ERRORS)
def test_a_failing_file_operation_is_an_error_of_ours_and_loses_nothing(
    processes, study, left_alone, operations, tmp_path, kind
):
    at = random.Random(kind).randrange(1, len(operations) + 1)
    strike(processes, study, tmp_path, at, kind, left_alone)


@pytest.mark.parametrize("which", [1, -1])
def test_a_write_that_silently_loses_its_end_is_noticed(
    processes, study, left_alone, operations, tmp_path, which
):
    """The first unit's or mark's, and the last: the manifest's."""
    at = [number for number, what in enumerate(operations, 1) if what == WRITE][which]
    strike(processes, study, tmp_path, at, SHORT, left_alone)


def strike(processes, study, folder, at, kind, left_alone) -> None:
    out = folder / "results"
    code = in_process(processes, run_with_fault, study, out, at, kind)
    assert exits_as_it_should(kind, code), (at, kind, code)
    check_finished(processes, study, out, left_alone)


def test_killed_again_and_again(processes, study, left_alone, operations, tmp_path):
    """In one folder, each time a little later."""
    out = tmp_path / "results"
    for at in range(len(operations) // 5, len(operations), len(operations) // 5):
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
        while not list(out.glob("units/*/*/facts.safetensors")) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert f"qkscope run {study} --out {out}" in said
    assert "Traceback" not in said
    assert 1 <= status(out).count("done") <= 6
    check_finished(processes, study, out, left_alone)
