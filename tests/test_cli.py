"""The command line for scripts: quiet, JSON, exit statuses, defaults from the environment."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from small_study import make_study

from qkscope.cli import main


@pytest.fixture
def study(tmp_path, monkeypatch, no_drawing):
    monkeypatch.chdir(tmp_path)
    return make_study(tmp_path, groups=2)


def call(*arguments, **options):
    return CliRunner().invoke(main, [str(each) for each in arguments], **options)


def test_quiet_leaves_out_all_but_results_and_warnings(study):
    (study.parent / "checkpoint-2" / "model.safetensors").write_bytes(b"")
    done = call("-q", "run", study)
    assert done.exit_code == 1
    assert "merging" not in done.stderr
    assert "documents" not in done.stderr.split("qkscope:")[0]
    assert "checkpoint-2" in done.stderr
    loud = call("run", study)
    assert "units" in loud.stderr


def test_machines_read_validate_and_status(study):
    found = json.loads(call("validate", study, "--json").stdout)
    assert found["mistakes"] == []
    assert found["cost"].startswith("3 checkpoints: 6 units")
    call("-q", "run", study)
    state = json.loads(call("status", "results/small", "--json").stdout)
    assert [unit["state"] for unit in state["units"]] == ["done"] * 6
    study.write_text("name: a\nwindws: [4]\n")
    wrong = call("validate", study, "--json")
    assert wrong.exit_code == 1
    assert any("did you mean windows?" in mistake for mistake in json.loads(wrong.stdout)["mistakes"])


def test_an_environment_variable_sets_an_option(study, tmp_path):
    done = call("run", study, env={"QKSCOPE_RUN_OUT": str(tmp_path / "elsewhere")})
    assert done.exit_code == 0, done.output
    assert (tmp_path / "elsewhere" / "qk.csv").is_file()


STUBBORN = """
import time
import qkscope.run
from qkscope.cli import main

def run(*args, **options):
    word = "go"
    while True:
        try:
            print(word, flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            word = "swallowed"

qkscope.run.run = run
main(["run", "study.yaml"])
"""


def test_a_second_interrupt_is_never_swallowed():
    """Libraries may swallow the first, in a finalizer or a callback."""
    # A parent in the background may have told its children to ignore interrupts.
    listen = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", STUBBORN], **pipes, **listen) as process:
        for said in ("go\n", "swallowed\n"):
            assert process.stdout.readline() == said
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.startswith("qkscope: interrupted twice; finished work is kept")


def test_the_host_keeps_its_own_handler(study):
    before = signal.getsignal(signal.SIGINT)
    call("status", study.parent)
    assert signal.getsignal(signal.SIGINT) is before
