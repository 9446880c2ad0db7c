"""The doctor: a planted defect for every finding, and none for sound checkpoints."""

from __future__ import annotations

import json
import shutil

import huggingface_hub
import pytest
import tiny
import torch
import yaml
from click.testing import CliRunner
from hub_server import serve
from safetensors.torch import load_file, save_file
from small_study import make_study, undrawn

from qkscope.checkpoints.doctor import inspect_model
from qkscope.cli import main
from qkscope.report.methods import methods
from qkscope.results import load_results
from qkscope.run import run
from qkscope.run.preflight import preflight


@pytest.fixture
def study(tmp_path):
    return make_study(tmp_path, groups=2, count=4)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    undrawn(monkeypatch)


def found(study, **changes):
    """Findings of `validate`, by kind."""
    if changes:
        study.write_text(yaml.safe_dump(yaml.safe_load(study.read_text()) | changes, sort_keys=False))
    return {finding.kind: finding for finding in preflight(study).findings}


def after_run(study):
    """Findings that a run records, by kind; each is also among the report's warnings."""
    results = run(study, study.parent / "out")
    findings = results.record.findings
    assert [f in methods(load_results(study.parent / "out"))["warnings"] for f in map(str, findings)] == [
        True
    ] * len(findings)
    return {finding.kind: finding for finding in findings}


def edit_weights(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_sound_checkpoints_have_no_finding(study):
    assert found(study) == {}
    assert inspect_model(str(study.parent)) == []
    assert after_run(study) == {}


def test_copied_weights_are_found_without_their_names(study):
    folder = study.parent
    shutil.copy(folder / "checkpoint-1/model.safetensors", folder / "checkpoint-3/model.safetensors")
    finding = found(study)["identical"]
    assert finding.checkpoints == ("checkpoint-1", "checkpoint-3")
    assert [f.checkpoints for f in inspect_model(str(folder))] == [finding.checkpoints]
    said = json.loads(CliRunner().invoke(main, ["validate", str(study), "--json"]).stdout)
    assert said["findings"][0]["checkpoints"] == ["checkpoint-1", "checkpoint-3"]
    assert said["mistakes"] == []


def test_weights_that_differ_in_one_byte_between_the_sampled_blocks_are_not_identical(study, monkeypatch):
    from qkscope.checkpoints import files

    monkeypatch.setattr(files, "SAMPLED_BYTES", 16)
    folder = study.parent
    data = bytearray((folder / "checkpoint-1/model.safetensors").read_bytes())
    data[len(data) // 2 + 1000] ^= 1
    (folder / "checkpoint-3/model.safetensors").write_bytes(data)
    assert found(study) == {}


def test_the_same_weights_in_other_files_have_the_same_numbers_and_other_tokens_are_told(study):
    folder = study.parent
    shutil.rmtree(folder / "checkpoint-2")
    tiny.save_checkpoint(folder / "checkpoint-2", seed=1, shard="20KB")
    for number in (1, 2, 3):
        tiny.tiny_tokenizer().save_pretrained(folder / f"checkpoint-{number}")
    changed = json.loads((folder / "checkpoint-3/tokenizer.json").read_text())
    vocab = changed["model"]["vocab"]
    vocab["cat"], vocab["dog"] = vocab["dog"], vocab["cat"]
    (folder / "checkpoint-3/tokenizer.json").write_text(json.dumps(changed))
    study.write_text(study.read_text().replace("tokenizer: tokenizer\n", ""))
    before = found(study)
    assert before["tokenizer"].checkpoints == ("checkpoint-3",)
    assert "identical" not in before
    after = after_run(study)
    assert after["tokenizer"].checkpoints == ("checkpoint-3",)
    assert after["identical"].checkpoints == ("checkpoint-1", "checkpoint-2")


def test_phases_and_steps_that_go_back(study):
    state = study.parent / "checkpoint-2" / "trainer_state.json"
    state.write_text('{"global_step": 2}')
    assert found(study) == {}
    state.write_text('{"global_step": 500}')
    assert found(study)["order"].checkpoints == ("checkpoint-2",)
    names = {"stage2-step-1": 1, "stage1-step-9": 3}
    entries = [{"folder": f"checkpoint-{number}", "name": name} for name, number in names.items()]
    assert found(study, phases=None, checkpoints=entries, windows=[16])["order"].checkpoints == tuple(names)


SLOWED = """\
from transformers import LlamaForCausalLM

class Slowed(LlamaForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        self.model.rotary_emb.register_forward_pre_hook(
            lambda module, args, kwargs: ((args[0],), {"position_ids": kwargs["position_ids"] * 0.5}),
            with_kwargs=True,
        )
"""


def test_heads_and_rotations_that_are_wrong_in_the_model_alone(study):
    one, two, three = (study.parent / f"checkpoint-{number}" for number in (1, 2, 3))
    for folder, seed in ((two, 2), (three, 3)):
        shutil.rmtree(folder)
        tiny.save_checkpoint(folder, seed=seed, attention_bias=True)

    def not_finite(tensors):
        tensors["model.layers.1.self_attn.q_proj.weight"][24:] = float("nan")

    def constant(tensors):
        # Zero weights and a bias: after rotation these queries vary with position all the same.
        tensors["model.layers.0.self_attn.q_proj.weight"][8:16] = 0
        tensors["model.layers.0.self_attn.q_proj.bias"][8:16] = 1
        tensors["model.layers.1.self_attn.k_proj.weight"][:8] = 0

    def two_ranks_with_one_seed(tensors):
        for name, rows in (("q", 16), ("k", 8)):
            weight = tensors[f"model.layers.1.self_attn.{name}_proj.weight"]
            weight[rows:] = weight[:rows].clone()

    def certain_of_wrong_tokens(tensors):
        tensors["lm_head.weight"] *= 200
        constant(tensors)

    edit_weights(one, not_finite)
    edit_weights(two, certain_of_wrong_tokens)
    edit_weights(three, two_ranks_with_one_seed)
    (three / "slowed.py").write_text(SLOWED)
    tiny.edit_config(three, auto_map={"AutoModelForCausalLM": "slowed.Slowed"})
    study.write_text(study.read_text() + "trust_remote_code: true\nloss: true\n")
    assert found(study) == {}
    after = after_run(study)
    assert {kind: finding.checkpoints for kind, finding in after.items()} == {
        "nan": ("checkpoint-1",),
        "constant": ("checkpoint-2",),
        "equal_heads": ("checkpoint-3",),
        "rope": ("checkpoint-3",),
        "loss": ("checkpoint-2",),
    }
    assert "L1H3" in after["nan"].seen
    assert "layer 0 query head 1, layer 1 key head 0 give" in after["constant"].seen
    for heads in ("query heads 0, 2", "query heads 1, 3", "key heads 0, 1"):
        assert f"layer 1 {heads}" in after["equal_heads"].seen
    assert "layer 0" not in after["equal_heads"].seen
    assert "layers 0, 1" in after["rope"].seen


def test_entries_of_config_json_that_the_model_is_not_built_with(study):
    tiny.edit_config(study.parent / "checkpoint-2", rope_theta=500000.0)
    finding = found(study)["rope"]
    assert finding.checkpoints == ("checkpoint-2",)
    assert "500,000" in finding.seen
    assert "10,000" in finding.seen
    tiny.edit_config(study.parent / "checkpoint-2", rope_theta=10000.0, no_rope_layers=[1, 0])
    assert "no_rope_layers" in found(study)["rope"].seen


def test_no_finding_for_settings_that_the_model_follows(study):
    original = {"factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
    for number, more in enumerate(
        (
            {"rope_type": "linear"},
            {"rope_type": "yarn"},
            {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        ),
        start=1,
    ):
        tiny.edit_config(study.parent / f"checkpoint-{number}", rope_parameters=original | more)
    study.write_text(study.read_text() + "controls: {rotation: false}\n")
    assert after_run(study) == {}


def test_a_tokenizer_with_more_tokens_than_embeddings(study):
    for number in (1, 2, 3):
        shutil.rmtree(study.parent / f"checkpoint-{number}")
        tiny.save_checkpoint(study.parent / f"checkpoint-{number}", seed=number, vocab_size=12)
    assert found(study)["tokenizer"].severity == "error"


def test_a_tokenizer_far_smaller_than_the_vocabulary(study):
    shutil.rmtree(study.parent / "checkpoint-1")
    tiny.save_checkpoint(study.parent / "checkpoint-1", seed=1, vocab_size=2000)
    assert found(study)["tokenizer"].severity == "warning"


@pytest.fixture
def pythia(tmp_path, monkeypatch):
    """154 branches of which 76 are main's last checkpoint, as in EleutherAI/pythia issue 205."""
    steps = [0, *(2**n for n in range(10)), *range(1000, 144000, 1000)]
    wrong = set(steps[11:86])
    root = tmp_path / "hub"
    home = root / "models/EleutherAI/pythia-2.8b"
    config = json.dumps({"model_type": "gpt_neox"})
    for name, content in [("main", 143000), *((f"step{n}", 143000 if n in wrong else n) for n in steps)]:
        (home / name).mkdir(parents=True)
        (home / name / "config.json").write_text(config)
        save_file({"w": torch.tensor([content])}, home / name / "model.safetensors")
    with serve(root) as running:
        constants = huggingface_hub.constants
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield running


def test_branches_of_a_hub_model_that_are_all_its_last_checkpoint(pythia):
    said = CliRunner().invoke(main, ["ls", "EleutherAI/pythia-2.8b", "--json"])
    assert said.exit_code == 0, said.output
    listed = json.loads(said.stdout)
    assert len([each for each in listed["checkpoints"] if each["step"] is not None]) == 154
    (finding,) = listed["findings"]
    # 75 wrong branches, and the last one, whose weights are rightly those of main.
    assert len(finding["checkpoints"]) == 76
    assert {"step1000", "step143000"} <= set(finding["checkpoints"])
    assert "step512" not in finding["checkpoints"]
    assert "main" in finding["seen"]
    plain = CliRunner().invoke(main, ["ls", "EleutherAI/pythia-2.8b"])
    assert "identical weights" in plain.stderr
    assert len(yaml.safe_load(plain.stdout)["phases"][0]["checkpoints"]) == 154
    assert not any("resolve" in path for _, path, _ in pythia.requests())
