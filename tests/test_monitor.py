"""A model measured while it trains: nothing of the training changes, and the folder is an ordinary study."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from tiny import tiny_model

import qkscope
from qkscope.capture.live import undisturbed
from qkscope.errors import CorpusError, EngineError, StoreError, StudyError
from qkscope.run import run
from qkscope.study import load_study

pytestmark = pytest.mark.usefixtures("one_thread")
IDS = np.random.default_rng(0).integers(3, 60, (9, 40))
SMALL = {"window": 32, "documents": 8, "groups": 4, "report_minutes": 1000}


def trained(seed: int, steps: int, out: Path | None = None, folder: Path | None = None):
    """A model after some steps; measured and saved before, in the middle and after, if there is a folder for it."""
    model = tiny_model(seed, attention_dropout=0.1).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    monitor = qkscope.Monitor(model, IDS, out=out, **SMALL) if out else None
    for step in range(steps + 1):
        if monitor and step % (steps // 2) == 0:
            place = folder / f"checkpoint-{step}"
            model.save_pretrained(place)
            monitor.measure(step, saved=place)
        loss = model(input_ids=torch.randint(3, 60, (2, 24)), labels=torch.randint(3, 60, (2, 24))).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, monitor


@pytest.fixture(scope="module")
def live(tmp_path_factory, one_thread):
    """A results folder written during training, and the folder of the saved checkpoints."""
    folder = tmp_path_factory.mktemp("live")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qkscope.monitor.GROUPS", 4)
        _, monitor = trained(0, 4, folder / "live", folder / "saved")
        monitor.close()
    return folder


def test_units_are_those_of_a_run_on_the_saved_checkpoints(live, no_drawing):
    study = yaml.safe_load((live / "live" / "live.yaml").read_text())
    study |= {"name": "saved", "checkpoints": str(live / "saved")}
    (live / "saved.yaml").write_text(yaml.safe_dump(study))
    run(live / "saved.yaml", live / "run")
    files = sorted(path.relative_to(live / "run") for path in (live / "run" / "units").rglob("*.safetensors"))
    assert len({path.parts[1] for path in files}) == 3
    for path in files:
        assert (live / "run" / path).read_bytes() == (live / "live" / path).read_bytes(), path
    ours, theirs = (qkscope.load_results(live / name) for name in ("live", "run"))
    np.testing.assert_array_equal(ours.data["share_positional"], theirs.data["share_positional"])


def test_the_folder_is_an_ordinary_study(live, no_drawing):
    results = qkscope.load_results(live / "live")
    assert results.data["checkpoint"].to_numpy().tolist() == ["checkpoint-0", "checkpoint-2", "checkpoint-4"]
    assert (live / "live" / "report.html").is_file()
    again = run(live / "live" / "study.yaml", live / "live", figures=False)
    assert again.made_from == results.made_from
    assert load_study(live / "live" / "live.yaml").groups == 4


def test_another_run_needs_the_weights_only_for_what_is_missing(live, tmp_path, no_drawing):
    study = yaml.safe_load((live / "live" / "live.yaml").read_text())
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(study | {"groups": 2, "name": "other"}))
    run(tmp_path / "other.yaml", tmp_path / "other", figures=False)  # from the saved checkpoints
    for path in (live / "saved").rglob("model.safetensors"):
        path.rename(path.with_suffix(".away"))
    try:
        with pytest.raises(StudyError, match="while it trained"):
            run(tmp_path / "other.yaml", tmp_path / "third", figures=False)
        run(live / "live" / "study.yaml", live / "live", figures=False)
    finally:
        for path in (live / "saved").rglob("model.away"):
            path.rename(path.with_suffix(".safetensors"))


def test_random_numbers_modes_and_buffers_are_left_alone(tmp_path):
    model = tiny_model(
        0,
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
        max_position_embeddings=16,
    )
    model.model.layers[1].eval()
    rotary = model.model.rotary_emb
    before = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    length, modes = rotary.max_seq_len_cached, [module.training for module in model.modules()]
    states = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].copy()
    with undisturbed(model):
        assert not any(module.training for module in model.modules())
        model(input_ids=torch.randint(0, 60, (1, 64)))
        assert rotary.max_seq_len_cached != length
        torch.rand(3), random.random(), np.random.rand()
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert (np.random.get_state()[1] == states[2]).all()
    assert [module.training for module in model.modules()] == modes
    assert rotary.max_seq_len_cached == length
    for name, buffer in model.named_buffers():
        assert buffer is before[name][0]
        assert torch.equal(buffer, before[name][1])


def test_autocast_around_a_measure_changes_no_number(tmp_path):
    model = tiny_model(3)
    plain = qkscope.Monitor(model, IDS, out=tmp_path / "a", **SMALL).measure(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        other = qkscope.Monitor(model, IDS, out=tmp_path / "b", **SMALL).measure(0)
    del plain["seconds"], other["seconds"]
    assert plain == other


KILLED = """
import os, signal, sys
from test_monitor import IDS, SMALL, tiny_model
import qkscope
from qkscope import store
count, write = 0, store.write_bytes
def dying(path, data):
    global count
    count += 1
    if count == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, data)
monitor = qkscope.Monitor(tiny_model(0), IDS, out=sys.argv[1], **SMALL)
store.write_bytes = dying
monitor.measure(0)
"""


@pytest.mark.parametrize("moment", [3, 11])
def test_killed_in_a_measure_the_next_start_goes_on(live, tmp_path, moment):
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-c", KILLED, str(tmp_path / "live"), str(moment)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.returncode == -signal.SIGKILL
    monitor = qkscope.Monitor(tiny_model(0), IDS, out=tmp_path / "live", **SMALL)
    assert monitor.steps == []
    found = monitor.measure(0)
    whole = qkscope.Monitor(tiny_model(0), IDS, out=tmp_path / "whole", **SMALL).measure(0)
    assert found | {"seconds": 0} == whole | {"seconds": 0}


def test_a_resumed_run_measures_later_steps_again(tmp_path):
    model = tiny_model(0)
    monitor = qkscope.Monitor(model, IDS, out=tmp_path / "live", **SMALL)
    for step in (0, 5, 10):
        with torch.no_grad():
            model.model.embed_tokens.weight.mul_(1.0 + step / 100)
        before = monitor.measure(step)
    with pytest.raises(EngineError, match="another process"):
        qkscope.Monitor(model, IDS, out=tmp_path / "live", **SMALL)
    monitor._lock.release()
    other = tiny_model(7)
    resumed = qkscope.Monitor(other, IDS, out=tmp_path / "live", **SMALL)
    resumed.resume(5)
    assert resumed.steps == [0, 5]
    after = resumed.measure(10)
    assert resumed.steps == [0, 5, 10]
    assert after["share_match"] != before["share_match"]
    resumed._lock.release()
    with pytest.raises(StoreError, match="other documents"):
        qkscope.Monitor(other, IDS + 1, out=tmp_path / "live", **SMALL)


def test_another_run_from_step_0_is_refused_and_the_same_one_is_not(tmp_path):
    first = qkscope.Monitor(tiny_model(0), IDS, out=tmp_path / "live", **SMALL)
    numbers = {step: first.measure(step) for step in (0, 5)}
    first._lock.release()
    other = qkscope.Monitor(tiny_model(7), IDS, out=tmp_path / "live", **SMALL)
    with pytest.raises(StoreError, match="another training run"):
        other.measure(0)
    assert other.steps == [0, 5]
    other._lock.release()
    again = qkscope.Monitor(tiny_model(0), IDS, out=tmp_path / "live", **SMALL)
    again.resume(0)
    assert again.measure(0)["share_match"] == numbers[0]["share_match"]
    assert again.steps == [0]


def test_alarms_of_a_step_are_found(tmp_path):
    model = tiny_model(0)
    monitor = qkscope.Monitor(model, IDS, out=tmp_path / "live", alarms={"share_drop": 0.01}, **SMALL)
    monitor.measure(0)
    assert monitor.alarms == []
    with torch.no_grad():
        model.lm_head.weight.mul_(50)
    monitor.measure(1)
    assert [alarm.number for alarm in monitor.alarms] == ["loss"]
    assert monitor.alarms[0].checkpoint == "checkpoint-1"


@pytest.mark.parametrize(
    ("texts", "options", "error"),
    [
        ([[1, 2, 3]], {}, CorpusError),
        (["a text"], {}, CorpusError),
        (IDS, {"groups": 1}, CorpusError),
        (IDS, {"window": 32, "measures": ["nonsense"]}, StudyError),
        (IDS, {"window": 32, "alarms": {"max_logits": 3}}, StudyError),
    ],
)
def test_mistakes_are_errors_before_anything_is_measured(tmp_path, texts, options, error):
    with pytest.raises(error):
        qkscope.Monitor(tiny_model(0), texts, out=tmp_path / "live", **options)
