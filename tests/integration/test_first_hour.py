"""A new user's path: a training run of one's own to a report, in six commands and the edits that `init` asks for."""

from __future__ import annotations

import json

import tiny
from click.testing import CliRunner
from small_study import one_thread, write_texts

from qkscope.cli import main


def trainer_run(folder):
    """A folder as a Trainer leaves it: checkpoints with all that lies beside the weights, and one cut short."""
    for step in (500, 1000, 1500):
        place = tiny.save_checkpoint(folder / f"checkpoint-{step}", seed=step, tokenizer=True)
        (place / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
            (place / name).write_bytes(b"\x80")
    (folder / "checkpoint-2000").mkdir()
    (folder / "runs").mkdir()


def call(*arguments):
    done = CliRunner().invoke(main, list(arguments))
    assert done.exit_code == 0, done.output
    return done


def test_from_a_training_run_to_its_report_in_six_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one_thread()
    trainer_run(tmp_path / "last-night")
    write_texts(tmp_path / "held-out", count=16, words=140)

    said = call("init", "last-night").output
    assert "left out: checkpoint-2000: the folder is empty" in said
    assert "corpus: stdlib is Python code; give text of the kind the model was trained on" in said
    assert "windows: [128]" in said
    study = tmp_path / "last-night.yaml"
    study.write_text(study.read_text().replace("corpus: stdlib", "corpus: held-out"))

    said = call("validate", "last-night.yaml").output
    assert "last-night.yaml: no mistakes found" in said
    assert "3 checkpoints: 24 units, 6,144 tokens" in said

    done = call("-q", "run", "last-night.yaml")
    assert "left out: checkpoint-2000" in done.stderr
    assert "checkpoint-1500" in done.stdout
    assert "results/last-night/report.html" in done.stdout

    assert "24 done" in " ".join(call("status", "results/last-night", "--verify").output.split())
    assert "01_position_signal" in call("figures", "results/last-night").output
    report = tmp_path / call("report", "results/last-night").output.strip()
    assert "checkpoint-1500" in report.read_text()
