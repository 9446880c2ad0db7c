"""`validate`: every mistake that needs no model, each once, and what the study costs."""

from __future__ import annotations

import json
import re

import pytest
import tiny
import yaml
from click.testing import CliRunner
from small_study import make_study, write_texts

from qkscope.cli import main
from qkscope.run.preflight import preflight


@pytest.fixture
def study(tmp_path):
    return make_study(tmp_path, groups=2)


def changed(study, **changes):
    study.write_text(yaml.safe_dump(yaml.safe_load(study.read_text()) | changes, sort_keys=False))
    return preflight(study)


def test_a_right_study_is_told_its_cost(study):
    done = CliRunner().invoke(main, ["validate", str(study)])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].endswith("no mistakes found")
    assert re.fullmatch(r"3 checkpoints: 6 units, [\d,]+ tokens", lines[1])
    assert re.search(r"about \d+ MB .*under a minute", lines[-1])


def test_tokens_of_the_cost_are_those_of_the_texts(study):
    words = [len(path.read_text().split()) + 1 for path in (study.parent / "texts").glob("*.txt")]
    tokens = sum(2 * min(16, n) + min(48, n) for n in words)
    assert f"{tokens:,} tokens" in preflight(study).cost


def test_weights_and_configuration_that_are_not_there(study):
    (study.parent / "checkpoint-1" / "model.safetensors").unlink()
    (study.parent / "checkpoint-2" / "config.json").unlink()
    found = preflight(study)
    assert len(found.mistakes) == 2
    assert re.search(r"study.yaml:\d+: phases\[0\].checkpoints\[0\]: .*weights", found.mistakes[0])
    assert "config.json" in found.mistakes[1]
    assert found.cost == ""


def test_no_tokenizer_is_said_once_for_each_place(study):
    study.write_text(study.read_text().replace("tokenizer: tokenizer\n", ""))
    found = preflight(study)
    assert len(found.mistakes) == 3
    assert all("no tokenizer" in mistake for mistake in found.mistakes)


def test_a_tokenizer_that_is_no_folder(study):
    found = changed(study, tokenizer="tokk")
    assert len(found.mistakes) == 1
    assert "study.yaml:" in found.mistakes[0]
    assert "tokenizer: tokenizer 'tokk': no such" in found.mistakes[0]


def test_a_folder_of_checkpoints_that_is_not_there_is_said_once(study):
    found = changed(study, phases=[{"label": "a", "window": 48, "checkpoints": "gone"}])
    assert len(found.mistakes) == 1
    assert "gone: no such folder" in found.mistakes[0]


def test_a_device_that_torch_does_not_know(study):
    found = changed(study, device="gpu")
    assert len(found.mistakes) == 1
    assert re.search(
        r"study.yaml:\d+: device: expected cpu, cuda, cuda:1 or mps, found 'gpu'", found.mistakes[0]
    )
    assert not changed(study, device="cpu").mistakes


def test_a_sample_larger_than_the_heads_is_said_once(study):
    found = changed(study, heads={"sample": 300})
    assert len(found.mistakes) == 1
    assert "a sample of 300 heads" in found.mistakes[0]


def test_a_window_beyond_every_document(study):
    found = changed(study, windows=[16, 48, 100])
    assert len(found.mistakes) == 1
    assert re.search(
        r"windows\[2\]: no document fills the window of 100 tokens: the longest", found.mistakes[0]
    )


def test_a_window_beyond_the_model_s_positions_is_a_warning(study):
    tiny.edit_config(study.parent / "checkpoint-3", max_position_embeddings=32)
    found = preflight(study)
    assert found.mistakes == ()
    assert any("32 positions" in warning for warning in found.warnings)


def test_texts_that_are_not_there_are_said_once(study):
    found = changed(study, corpus="nowhere")
    assert len(found.mistakes) == 1
    assert "no file or folder at" in found.mistakes[0]


@pytest.mark.parametrize("keep", [0, 5, 500, -4])
def test_weights_that_were_cut_off_are_found_without_reading_them(study, keep):
    weights = study.parent / "checkpoint-2" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    (mistake,) = preflight(study).mistakes
    assert str(weights) in mistake


def test_a_shard_that_was_cut_off_is_named(study):
    folder = tiny.save_checkpoint(study.parent / "sharded", shard="40KB")
    shard = sorted(folder.glob("model-*.safetensors"))[-1]
    shard.write_bytes(shard.read_bytes()[:-1])
    found = changed(study, phases=None, checkpoints=[{"folder": "sharded"}], windows=[16])
    (mistake,) = found.mistakes
    assert str(shard) in mistake


def test_groups_without_documents_are_not_counted_as_units(study):
    found = changed(study, groups=8, corpus={"source": "texts", "documents": 3})
    assert "9 units in 3 groups" in found.cost
    assert any("3 documents for 8 groups" in warning for warning in found.warnings)


def test_long_texts_of_which_little_is_used_bring_up_chunk(study, tmp_path):
    texts = study.parent / "texts"
    for path in texts.iterdir():
        path.unlink()
    write_texts(texts, count=3, words=20_000)
    scanned = ["scan", str(study.parent / "checkpoint-1"), "--tokenizer", str(study.parent / "tokenizer")]
    scanned += ["--text", str(texts), "--max-length", "48", "--out", str(tmp_path / "out")]
    for command, setting in ((["validate", str(study)], "chunk: true"), (scanned, "--chunk")):
        done = CliRunner().invoke(main, command)
        said = " ".join(done.output.split())
        assert done.exit_code == 0, said
        assert "144 of 60,000 tokens" in said
        assert setting in said
    before = json.loads((tmp_path / "out" / "scan.json").read_text())
    assert CliRunner().invoke(main, [*scanned, "--chunk", "--replace"]).exit_code == 0
    after = json.loads((tmp_path / "out" / "scan.json").read_text())
    assert (before["documents"], after["documents"]) == (3, 32)
    assert before["corpus"] != after["corpus"]
    cut = changed(study, corpus={"source": "texts", "chunk": True})
    assert not any("chunk" in warning for warning in cut.warnings)
    asked = changed(study, corpus={"source": "texts", "documents": 3})
    assert not any("chunk" in warning for warning in asked.warnings)
