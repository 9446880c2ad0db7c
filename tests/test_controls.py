"""Counterfactual checkpoints: which there are, that they are what swapping config.json by hand gives, and that they
are units like any other and never checkpoints of the course."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import yaml
from small_study import make_study
from tiny import edit_config, save_checkpoint

from qkscope import scan
from qkscope.capture.probe_rotation import RotaryCalls
from qkscope.checkpoints import Source, load_config, load_model, rotation_settings, same_rotation
from qkscope.checkpoints.rope import describe_rotation
from qkscope.errors import CheckpointError, StudyError
from qkscope.nano.recipe import Phase, Recipe
from qkscope.nano.training import train, write_study
from qkscope.results import load_results
from qkscope.run import run, status
from qkscope.run.plan import controls
from qkscope.study import load_study, sources, validate

OLD, NEW = (
    {"rope_parameters": {"rope_type": "default", "rope_theta": theta}} for theta in (10000.0, 500000.0)
)
CONTROLS = [
    "checkpoint-2~rotation-of-checkpoint-3",
    "checkpoint-3~rotation-of-checkpoint-2",
]


pytestmark = pytest.mark.usefixtures("no_drawing")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three checkpoints, of which the last has another base and a longer window."""
    folder = tmp_path_factory.mktemp("study")
    path = make_study(folder)
    for number, settings in ((1, OLD), (2, OLD), (3, NEW)):
        edit_config(folder / f"checkpoint-{number}", **settings)
    return path


@pytest.fixture
def study(made, tmp_path):
    shutil.copytree(made.parent, tmp_path / "study")
    return tmp_path / "study" / "study.yaml"


def change(study: Path, **changes) -> None:
    study.write_text(yaml.safe_dump(yaml.safe_load(study.read_text()) | changes, sort_keys=False))


def found(study: Path) -> dict[str, int]:
    loaded = load_study(study)
    return {each.name: each.window for each in controls(loaded, sources(loaded))[0]}


def test_neighbours_that_rotate_differently_are_completed_over_the_shorter_window(study):
    assert found(study) == dict.fromkeys(CONTROLS, 16)


def test_none_are_made_when_turned_off_and_older_study_files_are_read(study):
    change(study, controls={"rotation": True, "window": True})
    assert found(study) == dict.fromkeys(CONTROLS, 16)
    change(study, controls={"rotation": False})
    assert found(study) == {}


def test_studies_that_rotate_alike_have_none(study):
    edit_config(study.parent / "checkpoint-3", **OLD)
    assert found(study) == {}


def test_a_base_is_the_same_as_whole_number_and_as_fraction(study):
    edit_config(study.parent / "checkpoint-3", rope_parameters={"rope_type": "default", "rope_theta": 10000})
    assert found(study) == {}


def test_settings_that_come_back_are_measured_once(study):
    folder = study.parent
    edit_config(folder / "checkpoint-2", **NEW)
    edit_config(folder / "checkpoint-3", **OLD)
    assert found(study) == {
        "checkpoint-1~rotation-of-checkpoint-2": 16,
        "checkpoint-2~rotation-of-checkpoint-1": 16,
        "checkpoint-3~rotation-of-checkpoint-2": 16,
    }


def test_models_of_different_families_have_none(study):
    data = yaml.safe_load(study.read_text())
    phases = data.pop("phases")
    data["families"] = [{"label": p["label"], "window": 16, "models": p["checkpoints"]} for p in phases]
    study.write_text(yaml.safe_dump(data))
    assert found(study) == {}


def test_a_checkpoint_that_cannot_be_read_is_passed_over(study):
    (study.parent / "checkpoint-2" / "config.json").unlink()
    assert set(found(study)) == {name.replace("checkpoint-2", "checkpoint-1") for name in CONTROLS}


def test_long_names_still_are_folders(study):
    data = yaml.safe_load(study.read_text())
    for number, phase in enumerate(data["phases"]):
        phase["checkpoints"] = [
            {**c, "name": f"{'n' * 150}-{number}-{i}"} for i, c in enumerate(phase["checkpoints"])
        ]
    study.write_text(yaml.safe_dump(data))
    assert len(found(study)) == 2
    assert all(len(name.encode()) < 200 for name in found(study))


def test_names_of_counterfactual_checkpoints_are_taken(study):
    change(study, name="x", checkpoints=[{"folder": "checkpoint-1", "name": "a~rotation-of-b"}], phases=None)
    assert any(
        "'a~rotation-of-b' is reserved for counterfactual checkpoints" in line for line in validate(study)
    )


def test_the_settings_of_another_checkpoint_make_the_model_that_its_config_would(study, tmp_path):
    import torch

    a, b = (Source(str(study.parent / f"checkpoint-{n}"), device="cpu") for n in (2, 3))
    by_hand = tmp_path / "by-hand"
    shutil.copytree(a.model, by_hand)
    edit_config(by_hand, **NEW)
    turned = load_model(replace(a, rotation=rotation_settings(load_config(b))))
    tokens = torch.arange(40)[None] % 60
    with torch.no_grad():
        ours, theirs, own = (
            m(tokens).logits for m in (turned, load_model(Source(str(by_hand))), load_model(a))
        )
    assert torch.equal(ours, theirs)
    assert not torch.allclose(ours, own, atol=1e-4)


def test_layers_without_rotation_are_settings_too(tmp_path):
    import torch
    from transformers import SmolLM3Config, SmolLM3ForCausalLM

    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1}
    sources = []
    for name, pattern in (("a", [1, 1, 1, 0]), ("b", [1, 0, 1, 1])):
        torch.manual_seed(0)
        model = SmolLM3ForCausalLM(SmolLM3Config(**shape, eos_token_id=2, no_rope_layers=pattern))
        model.save_pretrained(tmp_path / name)
        sources.append(Source(str(tmp_path / name), device="cpu"))
    settings = [rotation_settings(load_config(source)) for source in sources]
    assert not same_rotation(*settings)
    turned = load_model(replace(sources[0], rotation=settings[1]))
    assert [layer.self_attn.use_rope for layer in turned.model.layers] == [1, 0, 1, 1]


def test_lengths_count_where_the_rotation_looks_at_them(study):
    config = load_config(Source(str(study.parent / "checkpoint-2")))
    assert "max_position_embeddings" not in rotation_settings(config)
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    assert json.loads(rotation_settings(config))["max_position_embeddings"] == 128


def rope(kind: str, length: int = 128, theta: float = 10000.0, **more) -> dict:
    return {
        "rope_parameters": {"rope_type": kind, "rope_theta": theta, **more},
        "max_position_embeddings": length,
    }


ROPE_TYPES = {
    "default": rope("default", 64),
    "linear": rope("linear", factor=2.0),
    "dynamic": rope("dynamic", 32, factor=4.0),
    "yarn": rope("yarn", factor=4.0, original_max_position_embeddings=32),
    "llama3": rope(
        "llama3",
        256,
        5e5,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    ),
    "longrope": rope(
        "longrope",
        factor=4.0,
        short_factor=[1.0, 1.1, 1.2, 1.3],
        long_factor=[1.0, 2.0, 3.0, 4.0],
        original_max_position_embeddings=32,
    ),
}


def test_any_two_rope_types_are_exchanged_whole(tmp_path, one_thread):
    import torch

    places = {}
    base = save_checkpoint(tmp_path / "base")
    for kind, settings in ROPE_TYPES.items():
        places[kind] = Source(str(shutil.copytree(base, tmp_path / kind)), device="cpu")
        edit_config(tmp_path / kind, **settings)
    tokens = torch.arange(60)[None]
    logits = {kind: load_model(source)(tokens).logits for kind, source in places.items()}
    for weights, other in permutations(places, 2):
        settings = rotation_settings(load_config(places[other]))
        turned = replace(places[weights], rotation=settings)
        # The weights are the same in all folders, so a full exchange gives the other model, to the bit.
        assert torch.equal(load_model(turned)(tokens).logits, logits[other]), (weights, other)
        assert same_rotation(rotation_settings(load_config(turned)), settings)


def test_settings_are_described_in_full():
    both = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding": {"rope_theta": 1e4}}
    described = {
        "RoPE default, theta 50,000, none in layers 1 and 3": {
            "rope_parameters": {"rope_theta": 5e4, "rope_type": "default"}, "no_rope_layers": [1, 0, 1, 0],
        },
        "RoPE yarn, theta 10,000, factor 4, original max position embeddings 32, max position embeddings 128": {
            "rope_parameters": rope("yarn", factor=4.0, original_max_position_embeddings=32)["rope_parameters"],
            "max_position_embeddings": 128,
        },
        "RoPE longrope, theta 10,000, short factor [1, 1.5]": rope("longrope", short_factor=[1, 1.5]) | {
            "max_position_embeddings": None
        },
        "RoPE default (full attention), theta 1,000,000, RoPE (sliding), theta 10,000": {"rope_parameters": both},
        "RoPE, rotary emb base 10,000, rotary pct 0.25": {"rotary_emb_base": 10000, "rotary_pct": 0.25},
    }  # fmt: skip
    for text, settings in described.items():
        known = {name: value for name, value in settings.items() if value is not None}
        assert describe_rotation(known) == text


def test_yarn_midway_runs_and_its_rotation_is_measured(study, tmp_path):
    from click.testing import CliRunner

    from qkscope.cli import main

    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
    edit_config(study.parent / "checkpoint-3", rope_parameters=yarn, max_position_embeddings=64)
    looked = CliRunner().invoke(main, ["validate", str(study)])
    assert looked.exit_code == 0, looked.output
    out = tmp_path / "out"
    ran = CliRunner().invoke(main, ["run", str(study), "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    results = load_results(out)
    assert set(results.provenance["counterfactual"]) == set(CONTROLS)
    recorded = results.record.checkpoints["checkpoint-3"].rope
    assert recorded["rope_parameters"] == yarn
    assert recorded["max_position_embeddings"] == 64
    assert results.provenance["counterfactual"][CONTROLS[0]]["rope"] == recorded
    step = results.causes[results.causes["to_model"] == "checkpoint-3"]
    assert np.isfinite(step[["weights", "rotation", "window"]]).all(axis=None)
    assert (step.loc[step["number"] == "mean r_q", "rotation"].abs() > 1e-6).all()


def test_a_counterfactual_that_cannot_be_built_is_a_gap_and_no_mistake(study, tmp_path, monkeypatch):
    from click.testing import CliRunner

    from qkscope.cli import main
    from qkscope.run import plan as module

    def why_not(study, checkpoint):
        return "no such layers" if checkpoint.name == CONTROLS[1] else None

    monkeypatch.setattr(module, "_why_not", why_not)
    assert found(study) == {CONTROLS[0]: 16}
    looked = CliRunner().invoke(main, ["validate", str(study)])
    out = tmp_path / "out"
    ran = CliRunner().invoke(main, ["run", str(study), "--out", str(out)])
    for said in (looked, ran):
        assert said.exit_code == 0, said.output
        assert "not separable" in said.output
        assert "no such layers" in said.output
    results = load_results(out)
    assert any("not separable" in line for line in results.provenance["warnings"])
    # The order that could be measured: settings first.
    step = results.causes[results.causes["to_model"] == "checkpoint-3"]
    assert np.isfinite(step["rotation_first"]).all()
    assert step["rotation_other_order"].isna().all()


def test_settings_that_other_code_reads_are_no_mistake_of_the_study(study):
    source = Source(str(study.parent / "checkpoint-2"), rotation='{"rotary_pct": 0.25}')
    with pytest.raises(CheckpointError, match="rotary_pct") as refused:
        load_config(source)
    assert "controls" not in str(refused.value)


def test_units_are_measured_kept_and_resumed_but_never_in_the_course(study, tmp_path, capsys):
    out = tmp_path / "out"
    results = run(study, out)
    folders = {path.name for path in (out / "units").iterdir() if path.is_dir()}
    assert folders == {"checkpoint-1", "checkpoint-2", "checkpoint-3", *CONTROLS}
    assert results.timeline.models == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
    assert set(results.qk["model"]) == set(results.timeline.models)
    noted = results.provenance["counterfactual"]
    assert list(noted) == CONTROLS
    assert noted[CONTROLS[0]]["rope_theta"] == 500000.0
    assert noted[CONTROLS[0]]["weights_of"] == "checkpoint-2"
    said = capsys.readouterr().err
    assert "2 counterfactual checkpoints are measured" in said
    assert "12 documents, 576 of " in said
    assert status(out).count("done") == 20
    (out / "units" / CONTROLS[1] / "2" / "moments.safetensors").unlink()
    run(study, out)
    assert "[1/1] checkpoint-3~rotation-of-checkpoint-2 group 2" in capsys.readouterr().err
    edit_config(study.parent / "checkpoint-3", rope_parameters={"rope_type": "default", "rope_theta": 2e6})
    run(study, out, replace=True)
    said = capsys.readouterr().err
    assert "checkpoint-2~rotation-of-checkpoint-3, all groups: measuring again, because rotation was" in said


def test_shards_share_them(study, tmp_path):
    out = tmp_path / "out"
    for number in (1, 2, 3, 4):
        run(study, out, shard=f"{number}/4")
    assert status(out).count("done") == 20
    run(study, out)
    whole = run(study, tmp_path / "whole")
    np.testing.assert_array_equal(load_results(out).qk["r_q"], whole.qk["r_q"])


def test_validate_states_what_they_cost(study):
    from click.testing import CliRunner

    from qkscope.cli import main

    said = CliRunner().invoke(main, ["validate", str(study)]).output
    # Twelve documents, each longer than the largest window.
    assert f"3 checkpoints: 12 units, {12 * 80:,} tokens" in said
    assert f"2 counterfactual checkpoints, because RoPE settings change: 8 units, {12 * 32:,} tokens" in said
    data = yaml.safe_load(study.read_text())
    change(study, corpus={"source": data["corpus"], "documents": 10}, controls={"rotation": False})
    said = CliRunner().invoke(main, ["validate", str(study)]).output
    assert "3 checkpoints: 12 units, 800 tokens" in said
    assert "counterfactual" not in said


def test_of_a_hub_only_what_is_written_is_known():
    from qkscope.run.preflight import cost

    said = cost(load_study(Path(__file__).parent.parent / "studies" / "smollm3.yaml"))
    assert said.splitlines()[0] == "10 checkpoints: 80 units, up to 110,592,000 tokens"
    assert "2 counterfactual checkpoints wherever RoPE settings change" in said


def test_causes_are_those_of_swapping_the_base_in_config_json_by_hand(study, tmp_path):
    out = run(study, tmp_path / "out")
    table = out.causes
    assert table is not None
    gap = table["total"] - table["weights"] - table["rotation"] - table["window"]
    assert gap.abs().max() < 1e-9
    # One row for every step and number, with errors; beyond r: eta, R, and shares of the score.
    assert set(zip(table["from_model"], table["to_model"], strict=True)) == {
        ("checkpoint-1", "checkpoint-2"),
        ("checkpoint-2", "checkpoint-3"),
    }
    assert {"mean r_q", "mean |r_k|", "mean eta_k", "mean R_q", "mean share_match"} <= set(table["number"])
    assert np.isfinite(table["total_se"]).all()
    assert (table["window_tokens"] == 16).all()
    folder = study.parent
    for number, settings in ((2, NEW), (3, OLD)):
        shutil.copytree(folder / f"checkpoint-{number}", folder / f"swapped-{number}")
        edit_config(folder / f"swapped-{number}", **settings)
    # Weights of 2 and 3, each with both bases, over the shorter window: the four cells by hand, and the longer window.
    names = {"checkpoint-2": "a", "swapped-2": "ab", "swapped-3": "ba", "checkpoint-3": "b"}
    entries = [{"folder": name, "name": name} for name in names]
    change(study, name="by-hand", phases=None, checkpoints=entries, controls={"rotation": False})
    by_hand = run(study, tmp_path / "by-hand")
    short, long = ({} for _ in range(2))
    for name, role in names.items():
        for cells, heads in ((short, by_hand.matched_heads), (long, by_hand.heads)):
            cells[role] = heads.loc[heads["model"] == name, "r_q"].mean()
    row = table[(table["to_model"] == "checkpoint-3") & (table["number"] == "mean r_q")].iloc[0]
    expected = {
        "rotation_first": short["ab"] - short["a"], "weights_first": short["b"] - short["ab"],
        "weights_other_order": short["ba"] - short["a"], "rotation_other_order": short["b"] - short["ba"],
        "window": long["b"] - short["b"], "total": long["b"] - short["a"],
    }  # fmt: skip
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, abs=1e-6), name


def test_a_nano_checkpoint_swapped_by_hand_and_scanned_is_its_counterfactual(tmp_path):
    phases = (
        Phase("stage1", "Stage 1", 64, 5e4, 2, 0, (6,), 4e-3, 4e-3),
        Phase("lc-64", "LC", 64, 2e6, 2, 0, (6,), 4e-3, 4e-3),
    )
    shape = {"layers": 4, "hidden": 16, "head_dim": 8, "intermediate": 24, "held_out": 8, "validation": 4}
    recipe = Recipe(**shape, phases=phases)
    train(tmp_path, 0, recipe)
    causes = run(write_study(tmp_path, recipe), tmp_path / "results").causes
    causes = causes[causes["population"] == "RoPE"].set_index("number")
    found = {}
    for name, theta in (("stage1-step-6", 2e6), ("lc-64-step-6", 5e4)):
        own, swapped = tmp_path / "checkpoints" / name, tmp_path / f"swapped-{name}"
        shutil.copytree(own, swapped)
        edit_config(swapped, rope_parameters={"rope_type": "default", "rope_theta": theta})
        for folder in (own, swapped):
            scanned = scan(folder, text_paths=[tmp_path / "corpus"], max_length=64, dtype="float32")
            rotating = scanned.heads[scanned.heads["rope"] == 1]
            found[folder.name] = rotating[["r_q", "r_k", "slope_q", "slope_k", "bias_logits"]].mean()
    before, after = found["stage1-step-6"], found["lc-64-step-6"]
    for number in before.index:
        rotation = found["swapped-stage1-step-6"] - before + after - found["swapped-lc-64-step-6"]
        row = causes.loc[f"mean {number}"]
        # A correlation to the bit that float32 leaves it; slopes and logits have a scale of their own.
        close, visible = (
            ({"abs": 1e-6}, 1e-3) if number in ("r_q", "r_k") else ({"rel": 1e-5, "abs": 2e-6}, 1e-4)
        )
        assert row["rotation"] == pytest.approx(rotation[number] / 2, **close)
        assert row["total"] == pytest.approx(after[number] - before[number], **close)
        assert abs(row["rotation"]) > visible


def test_windows_that_cannot_be_cut_from_one_pass_are_refused_before_anything_is_measured(study, tmp_path):
    from click.testing import CliRunner

    from qkscope.cli import main

    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    for number in (1, 2, 3):
        edit_config(
            study.parent / f"checkpoint-{number}", rope_parameters=dynamic, max_position_embeddings=32
        )
    why = r"(dynamic) depends on the length of a pass beyond 32 tokens, so the windows [16, 48] cannot"
    said = CliRunner().invoke(main, ["validate", str(study)])
    assert said.exit_code == 1
    assert f"{study}:14: phases[1].checkpoints[0]: the rotation of this llama model {why}" in said.output
    assert "checkpoint-2" not in said.output
    with pytest.raises(StudyError) as refused:
        run(study, tmp_path / "out")
    assert why in str(refused.value)
    assert not list((tmp_path / "out" / "units").glob("checkpoint-3/*"))
    change(study, windows=[48], phases=None, checkpoints=[{"folder": "checkpoint-3"}])
    assert CliRunner().invoke(main, ["validate", str(study)]).exit_code == 0


def test_a_run_says_where_the_rotation_is_not_known(study, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(RotaryCalls, "_watched", lambda self, function: function)
    results = run(study, tmp_path / "out")
    names = "checkpoint-1, checkpoint-2, checkpoint-3"
    said = f"{names}: the rotation of layers 0, 1 is unknown"
    assert f"warning: {said}" in capsys.readouterr().err
    assert any(line.startswith(said) for line in results.provenance["warnings"])


def test_without_them_the_table_says_what_cannot_be_told(study, tmp_path):
    change(study, controls={"rotation": False})
    table = run(study, tmp_path / "out").causes
    assert table is not None
    step = table[table["to_model"] == "checkpoint-3"]
    assert step["weights"].isna().all()
    assert step["rotation"].isna().all()
    assert np.isfinite(step["window"]).all()
    assert np.isfinite(table.loc[table["to_model"] == "checkpoint-2", "weights"]).all()
