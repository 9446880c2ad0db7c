"""Checkpoints measured as a training run writes them, and reports of runs that are not finished."""

from __future__ import annotations

import threading
import time

import pytest
import yaml
from click.testing import CliRunner
from small_study import make_study, undrawn, write_texts
from tiny import save_checkpoint, tiny_tokenizer

from qkscope import load_results
from qkscope.cli import ALARMED, main
from qkscope.errors import EngineError, StudyError
from qkscope.results import manifest
from qkscope.results.lock import claimed
from qkscope.run import pipeline, run
from qkscope.run.watch import watch

pytestmark = pytest.mark.usefixtures("one_thread")
STUDY = {
    "name": "watched", "windows": [24], "corpus": "texts", "groups": 2, "components": 2, "device": "cpu", "loss": True,
    "tokenizer": "tokenizer", "checkpoints": "run", "measures": [], "controls": {"rotation": False},
}  # fmt: skip


@pytest.fixture
def study(tmp_path):
    """A study of a folder `run` that a training run has yet to write to."""
    write_texts(tmp_path / "texts", count=4, words=30)
    tiny_tokenizer().save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "run").mkdir()
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY))
    return path


def test_a_checkpoint_that_is_being_written_is_waited_for(study, no_drawing):
    """The training run appears after a while, and its second checkpoint is cut off for some time."""
    folder, seen = study.parent / "run", []

    def train():
        time.sleep(0.5)
        save_checkpoint(folder / "checkpoint-1", seed=1)
        place = save_checkpoint(study.parent / "aside", seed=2)
        weights = (place / "model.safetensors").read_bytes()
        (place / "model.safetensors").write_bytes(weights[: len(weights) // 2])
        place.rename(folder / "checkpoint-2")
        out = study.parent / "out"
        while not (out / "measures.safetensors").exists():
            time.sleep(0.05)
        time.sleep(0.5)
        seen.append(load_results(out).data["checkpoint"].to_numpy().tolist())
        (folder / "checkpoint-2" / "model.safetensors").write_bytes(weights)

    writer = threading.Thread(target=train)
    writer.start()
    found = watch(study, study.parent / "out", until=2, poll=0.1)
    writer.join()
    assert seen == [["checkpoint-1"]]
    assert list(found.numbers) == ["checkpoint-1", "checkpoint-2"]
    assert found.numbers["checkpoint-1"]["loss"] > 0
    results = load_results(study.parent / "out")
    assert results.data["checkpoint"].to_numpy().tolist() == ["checkpoint-1", "checkpoint-2"]


def test_a_watch_goes_on_where_it_was_and_is_one_of_its_kind(study, no_drawing, capsys):
    folder, out = study.parent / "run", study.parent / "out"
    save_checkpoint(folder / "checkpoint-1", seed=1)
    watch(study, out, until=1, poll=0.05)
    units = {path: path.stat().st_mtime_ns for path in (out / "units").rglob("*.safetensors")}
    save_checkpoint(folder / "checkpoint-2", seed=2)
    watch(study, out, until=2, poll=0.05)
    assert {path: path.stat().st_mtime_ns for path in units} == units
    with claimed(out, "another"), pytest.raises(EngineError, match="another"):
        watch(study, out, until=2, poll=0.05)


def test_alarms_are_in_the_exit_status(study, monkeypatch):
    undrawn(monkeypatch)
    study.write_text(yaml.safe_dump(STUDY | {"alarms": {"share_drop": 1e-6}}))
    for seed in (1, 2):
        save_checkpoint(study.parent / "run" / f"checkpoint-{seed}", seed=seed)
    command = [
        "-q",
        "watch",
        str(study),
        "--out",
        str(study.parent / "out"),
        "--until",
        "2",
        "--poll",
        "0.05",
    ]
    monkeypatch.setattr("qkscope.stats.alarms.ERRORS", 0.0)
    done = CliRunner().invoke(main, command)
    assert done.exit_code == ALARMED, done.output
    alarms = load_results(study.parent / "out").provenance["alarms"]
    assert alarms
    assert all("checkpoint-2" in alarm for alarm in alarms)


def test_a_mistake_in_the_study_is_not_waited_for(study):
    study.write_text(yaml.safe_dump(STUDY | {"windows": ["long"]}))
    with pytest.raises(StudyError, match="windows"):
        watch(study, study.parent / "out", poll=0.05)


def test_a_run_reports_finished_checkpoints_while_it_measures(tmp_path, monkeypatch):
    undrawn(monkeypatch)
    monkeypatch.setattr(pipeline, "REFRESH_SECONDS", 0.0)
    seen = []
    write = pipeline._summarize_and_draw

    def noted(results, folder, figures):
        warnings = " ".join(results.provenance["warnings"])
        missing = [stop.model for stop in results.timeline.stops if stop.missing]
        seen.append(
            ("partial" in warnings, missing, figures, manifest.read_manifest(results.folder).finished)
        )
        write(results, folder, figures)

    monkeypatch.setattr(pipeline, "_summarize_and_draw", noted)
    run(make_study(tmp_path), tmp_path / "out")
    first, second, last = seen
    assert first == (True, ["checkpoint-2", "checkpoint-3"], False, False)
    assert second == (True, ["checkpoint-3"], False, False)
    assert last == (False, [], True, False)
    assert manifest.read_manifest(tmp_path / "out").finished
