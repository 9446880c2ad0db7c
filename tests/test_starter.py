"""`qkscope init`: a study file that runs as it is, and a word for all that is left out."""

from __future__ import annotations

import json

import pytest
import tiny
import yaml
from click.testing import CliRunner
from small_study import write_texts

from qkscope.checkpoints.files import left_out
from qkscope.cli import main
from qkscope.errors import CheckpointError, QkscopeError, StudyError
from qkscope.results import load_results
from qkscope.run import run
from qkscope.study import left_out_of, load_study, validate
from qkscope.study.init import init
from qkscope.study.timeline import timeline_of


@pytest.fixture
def run_folder(tmp_path):
    """A Trainer's folder: three checkpoints, and five that are none for different reasons."""
    folder = tmp_path / "last: night #1"
    for step in (50, 100, 1000):
        tiny.save_checkpoint(folder / f"checkpoint-{step}", seed=step, tokenizer=True)
    for name, inside in {
        "checkpoint-1100": [],
        "checkpoint-1200": ["adapter_config.json", "adapter_model.safetensors"],
        "checkpoint-1300": ["pytorch_model_fsdp_0/x.distcp"],
        "checkpoint-1400": ["global_step1400/x", "zero_to_fp32.py"],
        "checkpoint-1500": ["notes.txt"],
        "runs": ["events"],
    }.items():
        (folder / name).mkdir()
        for each in inside:
            (folder / name / each).parent.mkdir(exist_ok=True)
            (folder / name / each).write_text("{}")
    tiny.save_checkpoint(folder / "checkpoint-1600" / "hf_model", seed=1, tokenizer=True)
    return folder


def test_the_file_written_is_valid_as_it_is(run_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, made = init(str(run_folder))
    assert validate(path) == []
    study = yaml.safe_load(path.read_text())
    assert study["checkpoints"] == str(run_folder)
    config = json.loads((run_folder / "checkpoint-1000" / "config.json").read_text())
    assert study["windows"] == [min(config["max_position_embeddings"], 4096)]
    assert "checkpoint-50 to checkpoint-1000" in path.read_text()
    assert any("windows" in line for line in made.check)


def test_each_folder_left_out_is_named_with_its_reason(run_folder):
    found = left_out(run_folder)
    named = {
        "checkpoint-1100": "empty",
        "checkpoint-1200": "LoRA",
        "checkpoint-1300": "FSDP",
        "checkpoint-1400": "DeepSpeed",
        "checkpoint-1500": "notes.txt",
        "checkpoint-1600": "hf_model",
    }
    assert found.keys() == named.keys()
    assert all(word in found[name] for name, word in named.items()), found
    assert any("checkpoint-1200" in line for line in init(str(run_folder), run_folder / "s.yaml")[1].check)


def test_phases_and_windows_come_from_the_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("stage1-step-10", "stage1-step-20", "lc-4k-to-32k-step-5", "lc-32k-to-64k-step-5"):
        tiny.save_checkpoint(tmp_path / "series" / name, seed=0, tokenizer=True)
    path, _ = init("series")
    study = yaml.safe_load(path.read_text())
    assert study["windows"] == [4096, 32768, 65536]
    assert [phase["window"] for phase in study["phases"]] == [4096, 32768, 65536]
    assert validate(path) == []


def test_a_file_that_is_there_is_not_overwritten(run_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, _ = init(str(run_folder))
    before = path.read_bytes()
    with pytest.raises(StudyError, match="already exists"):
        init(str(run_folder))
    assert path.read_bytes() == before


def test_a_folder_without_checkpoints_says_what_it_found(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(CheckpointError, match=r"no checkpoints.*notes\.txt"):
        init(str(tmp_path), tmp_path / "s.yaml")


def test_the_command_says_what_to_check_and_what_comes_next(run_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["init", str(run_folder), "--out", "mine.yaml"])
    assert done.exit_code == 0, done.output
    assert "written: mine.yaml" in done.output
    assert "corpus: stdlib is Python code" in done.output
    assert "qkscope validate mine.yaml && qkscope run mine.yaml" in done.output


def test_a_mistyped_folder_is_no_model_of_the_hub_and_the_near_one_is_offered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    tiny.save_checkpoint(tmp_path / "runs" / "tiny" / "checkpoint-5", tokenizer=True)
    for command in (["init", "runs/tinny"], ["scan", "runs/tinny"], ["ls", "runs/tinny"]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 1
        assert "runs/tinny: no such" in done.output
        assert "did you mean runs/tiny?" in done.output
    assert not list(tmp_path.glob("*.yaml"))


def test_a_folder_of_checkpoints_is_not_scanned_but_explained(run_folder):
    done = CliRunner().invoke(main, ["scan", str(run_folder)])
    assert done.exit_code == 1
    assert "3 checkpoints (checkpoint-50 to checkpoint-1000)" in done.output
    assert f"qkscope scan {run_folder / 'checkpoint-1000'}" in done.output
    assert f"qkscope init {run_folder}" in done.output


@pytest.fixture
def two_runs(tmp_path, monkeypatch):
    """A base run and its continuation over a longer context, whose steps restart."""
    monkeypatch.chdir(tmp_path)
    for name, steps, positions in (("base", (200, 400), 32), ("long", (40, 80, 400), 64)):
        for step in steps:
            folder = tmp_path / "runs" / name / f"checkpoint-{step}"
            tiny.save_checkpoint(folder, seed=step, tokenizer=True, max_position_embeddings=positions)
    (tmp_path / "runs" / "long" / "checkpoint-500").mkdir()
    write_texts(tmp_path / "texts", words=80)
    return tmp_path


def test_two_folders_are_two_phases_of_one_run(two_runs, no_drawing):
    done = CliRunner().invoke(main, ["init", "runs/base", "runs/long"])
    assert done.exit_code == 0, done.output
    assert "checkpoint-500: the folder is empty" in done.output
    path = two_runs / "base-long.yaml"
    assert validate(path) == []
    assert list(left_out_of(path)) == ["runs/long/checkpoint-500"]
    path.write_text(path.read_text().replace("corpus: stdlib", "corpus: texts") + "groups: 2\n")
    results = run(path)
    names = [f"base/checkpoint-{step}" for step in (200, 400)]
    names += [f"long/checkpoint-{step}" for step in (40, 80, 400)]
    labels = ["base-200", "base-400", "long-40 (440)", "long-80 (480)", "long-400 (800)"]
    # The same from the study, from its results, and from the names in the table alone.
    table = load_results(results.folder / "qk.csv")
    for timeline in (timeline_of(load_study(path)), results.timeline, table.timeline):
        assert [checkpoint.model for checkpoint in timeline.checkpoints] == names
        assert [checkpoint.label for checkpoint in timeline.checkpoints] == labels
        assert timeline.phases == [("base", 0, 1), ("long", 2, 4)]
    assert [checkpoint.window for checkpoint in results.timeline.checkpoints] == [32, 32, 64, 64, 64]


def test_steps_that_go_on_need_no_phase_in_their_labels(two_runs):
    (two_runs / "more").mkdir()
    (two_runs / "runs" / "long" / "checkpoint-80").rename(two_runs / "more" / "checkpoint-480")
    path, _ = init(["runs/base", "more"])
    checkpoints = timeline_of(load_study(path)).checkpoints
    assert [checkpoint.label for checkpoint in checkpoints] == ["200", "400", "480"]


def test_folders_of_the_same_name_are_told_apart_by_their_parents(two_runs):
    for name in ("base", "long"):
        (two_runs / name).mkdir()
        (two_runs / "runs" / name).rename(two_runs / name / "checkpoints")
    path, made = init(["base/checkpoints", "long/checkpoints"], two_runs / "elsewhere" / "study.yaml")
    assert [phase["label"] for phase in yaml.safe_load(made.text)["phases"]] == [
        "base/checkpoints",
        "long/checkpoints",
    ]
    assert validate(path) == []


@pytest.mark.parametrize("places", [["runs/base", "runs/lnog"], ["runs/base", "runs/base"]])
def test_folders_that_are_not_there_or_twice_are_refused(two_runs, places):
    done = CliRunner().invoke(main, ["init", *places])
    assert done.exit_code == 1
    assert "(did you mean long?)" in done.output or "given twice" in done.output
    assert not list(two_runs.glob("*.yaml"))


def test_a_phase_whose_folder_is_missing_is_named_with_its_line(two_runs):
    path, _ = init(["runs/base", "runs/long"])
    path.write_text(path.read_text().replace("runs/long", "runs/lnog"))
    assert any("phases[1].checkpoints" in line and "runs/lnog" in line for line in validate(path))


def test_a_plain_name_that_is_no_folder_may_have_been_one(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "last-night").mkdir()
    with pytest.raises(QkscopeError, match=r"no local folder last-nigth either; did you mean last-night\?"):
        init("last-nigth")
