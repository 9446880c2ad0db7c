"""A checkpoint folder that somebody writes to while a study runs: noticed, said, and never half of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_study import make_study
from tiny import save_checkpoint

from qkscope.checkpoints import Source, loading
from qkscope.errors import CheckpointError, StudyError
from qkscope.run import run, status
from qkscope.run.units import UnitMeasurer

pytestmark = pytest.mark.usefixtures("no_drawing")


@pytest.fixture
def study(tmp_path):
    return make_study(tmp_path / "study", groups=2, count=4)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def test_a_checkpoint_that_is_replaced_after_planning_is_reported_and_measured_by_the_next_run(
    study, out, monkeypatch
):
    measure = UnitMeasurer.measure

    def replacing(self, job, documents, on_tokens):
        unit = measure(self, job, documents, on_tokens)
        save_checkpoint(study.parent / "checkpoint-2", seed=9)
        return unit

    monkeypatch.setattr(UnitMeasurer, "measure", replacing)
    with pytest.raises(
        StudyError, match=r"checkpoint-2: its files were replaced while the study ran; run again"
    ):
        run(study, out)
    assert [u.checkpoint for u in status(out).units if u.state == "failed"] == ["checkpoint-2"]
    monkeypatch.setattr(UnitMeasurer, "measure", measure)
    run(study, out)
    assert status(out).count("done") == 6


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_reported(study, out, monkeypatch):
    load = loading.load_model

    def replaced(source):
        model = load(source)
        if source.model.endswith("checkpoint-1"):
            save_checkpoint(study.parent / "checkpoint-1", seed=9)
        return model

    monkeypatch.setattr(loading, "load_model", replaced)
    with pytest.raises(StudyError, match="checkpoint-1: its files were replaced while the study ran"):
        run(study, out)
    assert status(out).count("done") == 4


def test_a_checkpoint_that_is_only_touched_is_measured(study, out, monkeypatch):
    load = loading.load_model

    def touched(source):
        (Path(source.model) / "config.json").touch()
        return load(source)

    monkeypatch.setattr(loading, "load_model", touched)
    run(study, out)


def test_a_checkpoint_that_is_being_written_is_not_planned(study, monkeypatch):
    digest, folder = loading.digest, study.parent / "checkpoint-1"

    def writing(path, source=None):
        found = digest(path, source)
        save_checkpoint(folder, seed=9)
        return found

    monkeypatch.setattr(loading, "digest", writing)
    with pytest.raises(CheckpointError, match="being written"):
        loading.resolve(Source(str(folder)))
