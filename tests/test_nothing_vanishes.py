"""What is left out, unmeasured or in the way is said, and nothing is overwritten by something else."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tiny
from click.testing import CliRunner
from small_study import make_study

import qkscope
from qkscope.capture.probe_rotation import UnknownRotationError
from qkscope.checkpoints import Source, load_model, load_tokenizer
from qkscope.cli import main
from qkscope.errors import CheckpointError, StoreError, StudyError
from qkscope.report.page import write_report
from qkscope.run import run, status

TEXTS = ["the cat sat on the mat and the dog ran under the fox"] * 4


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make_study(tmp_path, groups=2)


def whole_folder(study):
    """The study over a folder of checkpoints, of which one is an adapter."""
    (study.parent / "checkpoint-9").mkdir()
    (study.parent / "checkpoint-9" / "adapter_config.json").write_text("{}")
    path = study.parent / "folder.yaml"
    path.write_text(
        "name: folder\nwindows: [16]\ncorpus: texts\ngroups: 2\ntokenizer: tokenizer\ncheckpoints: .\ncomponents: 2\n"
    )
    return path


def test_run_and_validate_name_what_a_folder_leaves_out(study, no_drawing, capsys):
    path = whole_folder(study)
    done = CliRunner().invoke(main, ["validate", str(path)])
    assert done.exit_code == 0
    assert "left out: checkpoint-9: an adapter (LoRA)" in done.output
    run(path)
    assert "left out: checkpoint-9: an adapter (LoRA) without its model; merge it" in capsys.readouterr().err


def test_a_compiled_state_is_read_without_its_prefix(tmp_path):
    from safetensors.torch import load_file, save_file

    plain = tiny.save_checkpoint(tmp_path / "plain", seed=3)
    compiled = tiny.save_checkpoint(tmp_path / "compiled", seed=4)
    state = {f"_orig_mod.{name}": value for name, value in load_file(plain / "model.safetensors").items()}
    save_file(state, compiled / "model.safetensors", metadata={"format": "pt"})
    expected, found = (load_model(Source(str(path))).state_dict() for path in (plain, compiled))
    assert all(found[name].equal(value) for name, value in expected.items())


def spoil(study, rows, value=float("nan"), weight="layers.1.self_attn.q_proj"):
    from safetensors.torch import load_file, save_file

    path = study.parent / "checkpoint-2" / "model.safetensors"
    weights = load_file(path)
    weights[f"model.{weight}.weight"][:rows] = value
    save_file(weights, path, metadata={"format": "pt"})


def test_a_few_unmeasured_heads_are_a_warning_on_the_terminal_and_in_status(study, no_drawing, capsys):
    spoil(study, 8)
    run(study)
    assert "warning: checkpoint-2: 1 of 8 heads" in capsys.readouterr().err
    assert status("results/small").unmeasured == {"checkpoint-2": 1}
    done = CliRunner().invoke(main, ["status", "results/small"])
    assert "1 head has NaN or infinite values" in " ".join(done.output.split())


def test_a_head_with_nan_does_not_make_the_rotation_of_its_layer_unknown(study, no_drawing, capsys):
    """One entry of a projection: the other heads of the layer keep their rotation, and no setting is accused."""
    spoil(study, 1)
    run(study)
    err = capsys.readouterr().err
    assert "1 of 8 heads are unmeasured" in err
    assert "rotation of layer" not in err
    assert "other frequencies" not in err
    results = qkscope.load_results("results/small")
    assert np.isfinite(results.head(1, 3).set_index("model").loc["checkpoint-2", "r_q_const"])
    write_report(results)  # without a warning about the head that has no paths


def test_an_unknown_rotation_is_not_called_another_one(study, no_drawing, monkeypatch, capsys):
    def unknown(*_):
        raise UnknownRotationError("no reason")

    monkeypatch.setattr("qkscope.capture.probe_rotation._check_captured", unknown)
    run(study)
    err = capsys.readouterr().err
    assert "is unknown (no reason)" in err
    assert "other frequencies" not in err


def test_many_unmeasured_heads_fail_the_run_after_all_is_written(study, no_drawing):
    spoil(study, 32)
    for _ in range(2):  # also where nothing is left to do
        with pytest.raises(StudyError, match=r"(?s)checkpoint-2: 4 of 8 heads.*layer 1.*dtype: float32"):
            run(study)
    assert qkscope.load_results("results/small").heads["r_q"].isna().sum() == 4


def test_keys_of_zeros_are_no_result_either(study, no_drawing):
    for layer in (0, 1):
        spoil(study, 16, 0.0, f"layers.{layer}.self_attn.k_proj")
    with pytest.raises(StudyError, match=r"(?s)checkpoint-2: 8 of 8 heads.*do not vary") as refused:
        run(study)
    assert "float32" not in str(refused.value)


@pytest.mark.parametrize(("value", "weight"), [(float("nan"), "q_proj"), (0.0, "k_proj")])
def test_a_scan_without_usable_numbers_fails_after_its_tables_are_written(study, tmp_path, value, weight):
    spoil(study, 32, value, f"layers.1.self_attn.{weight}")
    folder, out = study.parent / "checkpoint-2", tmp_path / "out"
    options = ["--tokenizer", str(study.parent / "tokenizer"), "--text", str(study.parent / "texts")]
    done = CliRunner().invoke(main, ["scan", str(folder), "--out", str(out), "--max-length", "48", *options])
    assert done.exit_code == 1
    assert "4 of 8 heads" in done.output
    assert "layer 1" in done.output
    assert ("--dtype float32" in done.output) == (value != 0.0)
    assert (out / "heads.csv").is_file()


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("rope_parameters", {"rope_type": "default", "rope_theta": 0}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": -1.0}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": float("inf")}),
        ("rope_parameters", {"rope_type": "linear", "rope_theta": 1e4, "factor": 0}),
        ("rms_norm_eps", float("nan")),
    ],
)
def test_impossible_settings_are_refused_when_a_checkpoint_is_looked_at(
    study, no_drawing, tmp_path, entry, value
):
    from tiny import edit_config

    edit_config(study.parent / "checkpoint-2", **{entry: value})
    out = str(tmp_path / "out")
    name = entry if entry != "rope_parameters" else "factor" if "factor" in value else "rope_theta"
    for command in (
        ["validate", str(study)],
        ["run", str(study), "--out", out],
        ["scan", str(study.parent / "checkpoint-2"), "--out", f"{out}-scan"],
    ):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 1, done.output
        assert name in done.output
        assert "config.json" in done.output


def test_a_bare_table_does_not_overwrite_the_study_s_report(study, monkeypatch):
    def draw(results, out=None):
        (out / "01_position_signal").mkdir(parents=True)
        (out / "01_position_signal" / "figure.png").write_text("the study's")

    with monkeypatch.context() as patch:
        patch.setattr("qkscope.figures.draw_all", draw)
        patch.setattr("qkscope.report.write_report", lambda results, out=None: out.write_text("the study's"))
        run(study)
    folder = study.parent / "results" / "small"
    before = (folder / "report.html").read_bytes()
    figures = {path: path.is_file() and path.read_bytes() for path in (folder / "figures").rglob("*")}
    assert figures
    for command in ("report", "figures"):
        done = CliRunner().invoke(main, [command, str(folder / "qk.csv")])
        assert done.exit_code == 0, done.output
    assert (folder / "report.html").read_bytes() == before
    assert (folder / "table_report.html").is_file()
    after = {path: path.is_file() and path.read_bytes() for path in (folder / "figures").rglob("*")}
    assert after == figures
    assert any((folder / "table_figures").iterdir())


def test_another_study_s_folder_is_refused(study, no_drawing, tmp_path):
    run(study, tmp_path / "out")
    other = study.parent / "other.yaml"
    other.write_text(study.read_text().replace("name: small", "name: other"))
    with pytest.raises(StoreError, match=r"(?s)'small'.*--out"):
        run(other, tmp_path / "out")
    with pytest.raises(StoreError, match="'small'"):
        qkscope.scan(str(study.parent / "checkpoint-1"), tokenizer="tokenizer", out=tmp_path / "out")


def test_scans_of_two_models_of_one_name_stay_apart(study, tmp_path, monkeypatch):
    options = {"tokenizer": str(study.parent / "tokenizer"), "texts": TEXTS, "max_length": 8, "components": 2}
    for seed, name in enumerate(("a", "b")):
        tiny.save_checkpoint(tmp_path / name / "model", seed=seed)
    qkscope.scan(str(tmp_path / "a" / "model"), out="results/model", **options)
    qkscope.scan("a/model", out="results/model", **options)
    with pytest.raises(StoreError, match="the checkpoint's files changed: model"):
        qkscope.scan(str(tmp_path / "b" / "model"), out="results/model", **options)
    facts = json.loads((tmp_path / "results" / "model" / "scan.json").read_text())
    assert facts["origin"] == str(tmp_path / "a" / "model")


def test_a_tokenizer_that_is_no_folder_does_not_ask_the_hub(study, monkeypatch):
    monkeypatch.setattr("qkscope.checkpoints.hub.list_files", lambda *_: pytest.fail("asked the hub"))
    with pytest.raises(CheckpointError, match="tokenizer 'tokk': no such"):
        load_tokenizer(Source(str(study.parent / "checkpoint-1"), tokenizer="tokk"))
