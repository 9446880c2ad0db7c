"""The nano study: what its training writes, that it is deterministic, and that it resumes exactly."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, SmolLM3ForCausalLM

from qkscope.checkpoints.revisions import order_revisions
from qkscope.errors import CorpusError, StoreError
from qkscope.nano import training as nano
from qkscope.nano.recipe import (
    Phase,
    Piece,
    Recipe,
    State,
    Text,
    read_state,
    read_text,
    study_text,
    write_state,
)
from qkscope.progress import Bar
from qkscope.run.preflight import preflight
from qkscope.study import load_study, sources
from qkscope.sums.head_index import depth, depth_bin

SMALL = Recipe(
    layers=4,
    hidden=16,
    head_dim=8,
    intermediate=24,
    held_out=8,
    validation=4,
    phases=(
        Phase("stage1", "Stage 1", 32, 5e4, 2, 0, (0, 2, 5), 4e-3, 4e-3, warmup=2),
        Phase("stage2", "Stage 2", 32, 5e4, 2, 5, (7,), 4e-3, 1e-3),
        Phase("lc-32-to-64", "LC 32→64", 64, 2e6, 1, 0, (2, 4), 1e-3, 1e-4),
    ),
)
NAMES = [
    "stage1-step-0",
    "stage1-step-2",
    "stage1-step-5",
    "stage2-step-7",
    "lc-32-to-64-step-2",
    "lc-32-to-64-step-4",
]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def trained(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("nano")
    nano.train(out, 0, SMALL)
    return out


def weights(out: Path) -> dict[str, bytes]:
    return {name: (out / "checkpoints" / name / "model.safetensors").read_bytes() for name in NAMES}


def test_writes_ordinary_checkpoint_folders(trained: Path) -> None:
    assert sorted(p.name for p in (trained / "checkpoints").iterdir()) == sorted(NAMES)
    assert [r.name for r in order_revisions(sorted(NAMES))] == NAMES
    for name, window, theta in (("stage1-step-0", 32, 5e4), ("lc-32-to-64-step-4", 64, 2e6)):
        folder = trained / "checkpoints" / name
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert isinstance(model, SmolLM3ForCausalLM)
        assert model.dtype == torch.float32
        assert model.config.no_rope_layers == [1, 1, 1, 0]
        assert model.config.num_attention_heads == 4 * model.config.num_key_value_heads
        assert model.config.max_position_embeddings == window
        assert model.config.rope_parameters["rope_theta"] == theta


def test_tokenizer_gives_each_byte_its_own_number(trained: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(trained / "checkpoints" / NAMES[0])
    text = "".join(map(chr, range(1, 300))) + " def f(x):\n\t  return '→'\r\n"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.eos_token_id == 256
    assert tokenizer("<|endoftext|>")["input_ids"] == [256]


def test_held_out_files_are_no_training_text(trained: Path) -> None:
    text = read_text(SMALL, 0)
    stream = text.stream.astype(np.uint16)
    files = bytes(np.where(stream == 256, 0, stream).astype(np.uint8)).split(b"\0")
    assert len(text.held_out) == 8
    assert not set(text.held_out.values()) & set(files)
    assert len(set(files)) > 50
    written = sorted(p.read_bytes() for p in (trained / "corpus").iterdir())
    assert written == sorted(text.held_out.values())
    assert all(len(data) >= 64 for data in written)


def test_log_tells_steps_tokens_and_losses(trained: Path) -> None:
    log = json.loads((trained / "training.json").read_text())
    assert [each["name"] for each in log["checkpoints"]] == NAMES
    assert [each["tokens"] for each in log["checkpoints"]] == [0, 128, 320, 448, 576, 704]
    assert [(each["phase"], each["step"]) for each in log["curve"]] == [
        *(("Stage 1", step) for step in range(1, 6)),
        *(("Stage 2", step) for step in (6, 7)),
        *(("LC 32→64", step) for step in range(1, 5)),
    ]
    untrained, last = log["checkpoints"][0], log["checkpoints"][-1]
    assert untrained["bits_per_byte"] == pytest.approx(np.log2(257), abs=0.3)
    assert last["bits_per_byte"] < untrained["bits_per_byte"]


def test_held_out_loss_is_that_of_the_saved_model(trained: Path) -> None:
    log = json.loads((trained / "training.json").read_text())["checkpoints"]
    files = list(read_text(SMALL, 0).held_out.values())[:4]
    for index, window in ((2, 32), (5, 64)):
        model = AutoModelForCausalLM.from_pretrained(trained / "checkpoints" / NAMES[index])
        losses = []
        for data in files:
            for start in range(0, 64, window):
                tokens = torch.tensor([list(data[start : start + window])])
                with torch.no_grad():
                    chances = model(tokens).logits.log_softmax(-1)[0, :-1]
                losses += [-chances[i, t].item() for i, t in enumerate(tokens[0, 1:])]
        assert log[index]["bits_per_byte"] == pytest.approx(np.mean(losses) / np.log(2), abs=1e-3)


def test_second_training_gives_the_same_weights(trained: Path, tmp_path: Path) -> None:
    torch.manual_seed(123)  # the state of the process has no say
    nano.train(tmp_path, 0, SMALL)
    assert weights(tmp_path) == weights(trained)
    assert not torch.are_deterministic_algorithms_enabled()


def test_seed_changes_weights_and_split(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    nano.train(tmp_path, 1, SMALL, replace=True)
    assert not set(weights(tmp_path).values()) & set(weights(trained).values())
    names = {p.name for p in (tmp_path / "corpus").iterdir()}
    assert names != {p.name for p in (trained / "corpus").iterdir()}
    assert len(names) == 8


def test_checkpoints_differ_from_each_other(trained: Path) -> None:
    assert len(set(weights(trained).values())) == len(NAMES)


def train_and_die(out: Path, at: str, where: str) -> None:
    """Train in a forked process that is killed before a checkpoint is saved, or when it has been trained."""
    save, run_piece = nano._save, nano._run_piece

    def die(piece: Piece, here: str) -> None:
        if piece.name == at and where == here:
            os.kill(os.getpid(), signal.SIGKILL)

    def fatal_save(out: Path, recipe: Recipe, piece: Piece, state: State, key: str) -> None:
        die(piece, "save")
        save(out, recipe, piece, state, key)

    def fatal_piece(recipe: Recipe, seed: int, text: Text, piece: Piece, state: State, bar: Bar) -> None:
        run_piece(recipe, seed, text, piece, state, bar)
        die(piece, "piece")

    nano._save, nano._run_piece = fatal_save, fatal_piece
    try:
        nano.train(out, 0, SMALL)
    finally:
        os._exit(1)


@pytest.mark.parametrize(("at", "where"), [("stage2-step-7", "piece"), ("lc-32-to-64-step-2", "save")])
def test_killed_training_goes_on_to_the_same_weights(
    trained: Path, tmp_path: Path, at: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    child = os.fork()
    if child == 0:
        train_and_die(tmp_path, at, where)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert not (tmp_path / "checkpoints" / at).exists()
    nano.train(tmp_path, 0, SMALL)
    assert weights(tmp_path) == weights(trained)
    said = capsys.readouterr().err
    assert "stage1-step-5" not in said
    assert "lc-32-to-64-step-4" in said
    logs = [json.loads((out / "training.json").read_text()) for out in (tmp_path, trained)]
    assert logs[0]["curve"] == logs[1]["curve"]
    assert not (tmp_path / nano.STATE).exists()


def test_finished_training_is_not_done_again(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nano, "_run_piece", lambda *_: pytest.fail("trained again"))
    before = time.time()
    again = nano.train(trained, 0, SMALL)
    assert [each["name"] for each in again] == NAMES
    assert capsys.readouterr().err == ""
    assert all(p.stat().st_mtime < before for p in trained.rglob("*"))


@pytest.mark.parametrize("damage", ["truncated", "removed", "flipped"])
def test_damaged_checkpoint_is_made_again(trained: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "checkpoints" / "stage1-step-5" / "model.safetensors"
    data = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(data[:-9] if damage == "truncated" else data[:-1] + bytes([data[-1] ^ 1]))
    nano.train(tmp_path, 0, SMALL)
    assert weights(tmp_path) == weights(trained)


def test_damaged_state_is_no_state(tmp_path: Path) -> None:
    state = State({"weight": np.ones(3, np.float32)}, done=2)
    path = tmp_path / "state"
    write_state(path, state, "key")
    found = read_state(path, "key")
    assert found is not None
    assert found.done == 2
    assert read_state(path, "another key") is None
    path.write_bytes(path.read_bytes()[:-1])
    assert read_state(path, "key") is None


def test_output_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("in the way")
    with pytest.raises(StoreError, match=r"file"):
        nano.train(place, 0, SMALL)


def test_checkpoint_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(StoreError, match=r"stage1-step-0: the checkpoint cannot be written.*run again"):
        nano.train(tmp_path, 0, SMALL)


def test_interrupt_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(nano, "_run_piece", stop)
    with pytest.raises(KeyboardInterrupt, match="same command again"):
        nano.train(tmp_path, 0, SMALL)


def test_too_few_sources_is_a_clear_error() -> None:
    with pytest.raises(CorpusError, match="source files of at least 64 bytes"):
        read_text(replace(SMALL, held_out=100_000), 0)


def test_shipped_study_is_the_recipes() -> None:
    path = Path(__file__).parent.parent / "studies" / "nano.yaml"
    assert path.read_text() == study_text(Recipe(), "../results/nano/")
    study = load_study(path)
    recipe = Recipe()
    found = sources(study)
    assert [each.name for each in found] == [piece.name for piece in recipe.pieces]
    assert [each.window for each in found] == [piece.phase.window for piece in recipe.pieces]
    assert len(found) == 11


def test_recipe_fills_all_depth_bins_with_enough_heads() -> None:
    recipe = Recipe()
    assert recipe.layers >= 12
    assert recipe.layers * recipe.q_heads >= 48
    assert recipe.q_heads == 4 * recipe.kv_heads
    layers = np.arange(recipe.layers)
    assert set(depth_bin(depth(layers, recipe.layers))) == set(range(10))


def test_learning_rate_warms_up_and_decays() -> None:
    phase = Phase("stage1", "Stage 1", 32, 5e4, 2, 10, (20, 30), 1.0, 0.5, warmup=4)
    assert [phase.rate(step) for step in (10, 11, 13)] == pytest.approx([0.25, 0.4875, 0.925])
    assert phase.rate(20) == pytest.approx(0.75)


def test_demo_measures_what_it_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkscope.figures.draw_all", lambda *_: [])  # other runs draw them
    shown = nano.demo(tmp_path, 0, SMALL)
    assert shown.report == tmp_path / "report.html"
    assert shown.report.is_file()
    assert list(shown.results.heads["model"].unique()) == NAMES
    assert str(shown).splitlines()[-1] == f"report: {shown.report}"
    assert load_study(tmp_path / "nano.yaml").windows == [32, 64]
    # The doctor has nothing to say, before and after measuring.
    assert not preflight(tmp_path / "nano.yaml").findings
    assert not shown.results.record.findings
