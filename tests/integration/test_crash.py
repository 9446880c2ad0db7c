"""A run killed at any moment, run again: the tables are, byte for byte, those of a run that was left alone."""

from __future__ import annotations

import multiprocessing
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_study import make_study, run_quietly, run_until_write

from qkscope.run import status

TABLES = ("qk.csv", "qk_matched.csv", "qk_48.csv", "heads.csv", "transitions.csv", "loo.parquet")


@pytest.fixture(scope="module")
def processes():
    """Processes that start in milliseconds: a server has imported everything once and forks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            *("small_study", "qkscope.run", "qkscope.capture", "qkscope.findings", "qkscope.results"),
            *(
                "qkscope.figures",
                "qkscope.report",
                "transformers.models.llama.modeling_llama",
                "pyarrow.parquet",
            ),
        ]
    )
    return context


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return make_study(tmp_path_factory.mktemp("study"), groups=8, count=24)


@pytest.fixture(scope="module")
def left_alone(processes, study, tmp_path_factory):
    """The tables of an uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "results"
    finish(processes, study, out)
    return tables(out)


def finish(processes, study: Path, out: Path) -> None:
    process = processes.Process(target=run_quietly, args=(study, out))
    process.start()
    process.join()
    assert process.exitcode == 0


def tables(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in TABLES}


def done(out: Path) -> int:
    return len(list(out.glob("moments/*/*.safetensors")))


def test_killed_at_random_moments(processes, study, left_alone, tmp_path):
    """A few units in and some milliseconds later, again and again, and also while the tables are made."""
    draw = random.Random(0)
    out = tmp_path / "results"
    killed, seen = 0, []
    for _ in range(14):
        units = done(out) + draw.randint(0, 3)
        process = processes.Process(target=run_quietly, args=(study, out))
        process.start()
        while done(out) < min(units, 24) and process.is_alive():
            time.sleep(0.002)
        process.join(draw.uniform(0, 0.05 if units < 24 else 0.6))
        process.kill()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        seen.append(done(out))
    assert killed >= 6, seen
    assert len(set(seen)) >= 4, seen
    finish(processes, study, out)
    assert tables(out) == left_alone
    assert list(out.rglob("*.tmp")) == []
    assert list(out.rglob("*.running")) == []


def test_killed_in_the_middle_of_writing_a_file(processes, study, left_alone, tmp_path):
    """Each run gets a little further before it dies with half a file written: every kind of file is met."""
    out = tmp_path / "results"
    codes = []
    for count in (2, 5, 9, 14, 16, 18, 3, 4, 5, 6, 7, 8, 9, 10):
        process = processes.Process(target=run_until_write, args=(study, out, count))
        process.start()
        process.join()
        codes.append(process.exitcode)
        if process.exitcode == 0:
            break
        for path in out.glob("moments/*/*.safetensors"):
            assert path.stat().st_size > 1000
    assert set(codes[:-1]) == {-signal.SIGKILL}
    finish(processes, study, out)
    assert tables(out) == left_alone
    assert list(out.rglob("*.tmp")) == []


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_unit_after_a_kill(processes, study, left_alone, tmp_path, damage):
    out = tmp_path / "results"
    process = processes.Process(target=run_until_write, args=(study, out, 25))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    path = next(iter(sorted(out.glob("moments/*/*.safetensors"))))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data[: len(data) // 3] if damage == "truncated" else data)
    finish(processes, study, out)
    assert tables(out) == left_alone


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(processes, study, left_alone, tmp_path):
    out = tmp_path / "results"
    command = [
        sys.executable,
        "-c",
        "from qkscope.cli import main; main()",
        "run",
        str(study),
        "--out",
        str(out),
    ]
    # A parent in the background may have told its children to ignore interrupts.
    listen = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **listen) as process:
        deadline = time.monotonic() + 120
        while done(out) < 1 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert f"To go on: qkscope run {study} --out {out}" in said
    assert "Traceback" not in said
    assert list(out.rglob("*.running")) == []
    assert 1 <= status(out).count("done") <= 24
    finish(processes, study, out)
    assert tables(out)["qk.csv"] == left_alone["qk.csv"]
