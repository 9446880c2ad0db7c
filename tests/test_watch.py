"""Checkpoints measured as a training run writes them, and reports of runs that are not finished."""

from __future__ import annotations

import io
import shutil
import sys
import threading
import time

import pytest
import yaml
from click.testing import CliRunner
from small_study import make_study, undrawn, write_texts
from tiny import edit_config, save_checkpoint, tiny_tokenizer

from qkscope import load_results
from qkscope.cli import ALARMED, main
from qkscope.errors import EngineError, StoreError, StudyError
from qkscope.results import manifest
from qkscope.results.lock import locked
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
    with locked(out, "another"), pytest.raises(EngineError, match="another"):
        watch(study, out, until=2, poll=0.05)


def test_checkpoints_deleted_after_they_were_measured_keep_their_numbers(study, no_drawing):
    """As with save_total_limit=1: there is one checkpoint at a time, also when the watch is started again."""
    folder, out = study.parent / "run", study.parent / "out"
    save_checkpoint(folder / "checkpoint-1", seed=1)
    first = []

    def train():
        while not (out / "study.yaml").exists():
            time.sleep(0.05)
        time.sleep(0.3)
        first.append(load_results(out).heads)
        save_checkpoint(folder / "checkpoint-2", seed=2)
        shutil.rmtree(folder / "checkpoint-1")

    trainer = threading.Thread(target=train)
    trainer.start()
    found = watch(study, out, until=2, poll=0.05)
    trainer.join()
    assert list(found.numbers) == ["checkpoint-1", "checkpoint-2"]
    assert not found.problems
    shutil.rmtree(folder / "checkpoint-2")
    save_checkpoint(folder / "checkpoint-10", seed=3)
    units = {path: path.stat().st_mtime_ns for path in (out / "units").rglob("*.safetensors")}
    watch(study, out, until=10, poll=0.05)
    assert {path: path.stat().st_mtime_ns for path in units} == units
    results = load_results(out)
    assert results.timeline.models == ["checkpoint-1", "checkpoint-2", "checkpoint-10"]
    assert results.heads[results.heads["model"] == "checkpoint-1"]["r_q"].tolist() == first[0]["r_q"].tolist()
    tables = {path: path.read_bytes() for path in out.glob("*.csv")}
    watch(study, out, until=10, poll=0.05)  # nothing is left to do
    assert {path: path.read_bytes() for path in tables} == tables


def test_other_weights_under_the_name_of_measured_ones_are_refused(study, no_drawing):
    folder, out = study.parent / "run", study.parent / "out"
    save_checkpoint(folder / "checkpoint-1", seed=1)
    watch(study, out, until=1, poll=0.05)
    tables = {path: path.read_bytes() for path in out.glob("*.csv")}
    save_checkpoint(folder / "checkpoint-1", seed=2)
    with pytest.raises(StoreError, match="checkpoint-1"):
        watch(study, out, until=2, poll=0.05)
    assert {path: path.read_bytes() for path in tables} == tables


def test_a_checkpoint_that_cannot_be_measured_is_skipped_and_in_the_exit_status(study, no_drawing):
    folder, out = study.parent / "run", study.parent / "out"
    for seed in (1, 2):
        save_checkpoint(folder / f"checkpoint-{seed}", seed=seed)
    edit_config(folder / "checkpoint-1", intermediate_size=40)  # its weights have another shape
    command = ["-q", "watch", str(study), "--out", str(out), "--poll", "0.05", "--until"]
    done = CliRunner().invoke(main, [*command, "2"])
    assert done.exit_code == 1, done.output
    assert "warning: checkpoint-1: skipped" in done.stderr
    assert load_results(out).timeline.models == ["checkpoint-2"]
    save_checkpoint(folder / "checkpoint-1", seed=1)  # saved again, whole
    save_checkpoint(folder / "checkpoint-3", seed=3)
    done = CliRunner().invoke(main, [*command, "3"])
    assert done.exit_code == 0, done.output
    assert load_results(out).timeline.models == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]


def test_a_last_checkpoint_that_cannot_be_measured_ends_the_watch(study, no_drawing):
    place = save_checkpoint(study.parent / "run" / "checkpoint-1", seed=1)
    edit_config(place, intermediate_size=40)
    found = watch(study, study.parent / "out", until=1, poll=0.05)
    assert list(found.problems) == ["checkpoint-1"]
    assert found.numbers == {}


def test_a_bare_folder_is_watched(tmp_path, no_drawing, monkeypatch):
    """With Python's own sources as texts, of which a few do."""
    monkeypatch.setattr("qkscope.study.init._window", lambda config: (16, "short"))
    save_checkpoint(tmp_path / "my-run" / "checkpoint-7", seed=1, tokenizer=True)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["-q", "watch", "my-run", "--until", "7", "--poll", "0.05"])
    assert done.exit_code == 0, done.output
    assert "checkpoint-7" in done.stdout
    assert load_results(tmp_path / "results" / "my-run").timeline.models == ["checkpoint-7"]
    assert (tmp_path / "results" / "my-run" / "watch.yaml").is_file()


def test_a_bare_folder_without_a_tokenizer_is_not_watched(tmp_path):
    save_checkpoint(tmp_path / "my-run" / "checkpoint-7", seed=1)
    with pytest.raises(StudyError, match=r"watch\.yaml.*tokenizer"):
        watch(tmp_path / "my-run", tmp_path / "out", until=7, poll=0.05)


def test_on_a_terminal_a_table_is_kept_current(study, no_drawing, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    place = save_checkpoint(study.parent / "run" / "checkpoint-1", seed=1)
    (save_checkpoint(study.parent / "run" / "checkpoint-2", seed=2) / "config.json").unlink()
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "200")
    found = watch(study, study.parent / "out", until=1, poll=0.05)
    before, _, after = screen.getvalue().partition("measured")
    assert place.name in before
    assert "may still be written" in before
    assert f"{found.numbers['checkpoint-1']['loss']:.3f}" in before + after
    assert "config.json is missing" in before + after


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
        missing = [checkpoint.model for checkpoint in results.timeline.checkpoints if checkpoint.missing]
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
