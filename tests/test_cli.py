"""The command line for scripts: quiet, JSON, exit statuses, defaults from the environment."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from small_study import make_study

from qkscope.cli import main
from qkscope.progress import quieten


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("qkscope.figures.draw_all", lambda *args, **kwargs: [])
    monkeypatch.setattr("qkscope.report.write_report", lambda *args, **kwargs: None)
    yield make_study(tmp_path, groups=2)
    quieten(False)


def call(*arguments, **options):
    return CliRunner().invoke(main, [str(each) for each in arguments], **options)


def test_quiet_leaves_out_all_but_results_and_warnings(study):
    (study.parent / "checkpoint-2" / "model.safetensors").write_bytes(b"")
    done = call("-q", "run", study)
    assert done.exit_code == 1
    assert "putting" not in done.stderr
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
