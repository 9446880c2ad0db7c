"""The callback in a real Trainer: training does not change, reporters get numbers, errors end the callback alone."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_model
from transformers import Trainer, TrainingArguments

from qkscope import load_results
from qkscope.errors import StudyError
from qkscope.integrations.transformers import MOST_KEYS, QKScopeCallback

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("default::UserWarning", "default::ResourceWarning"),
]
IDS = np.random.default_rng(0).integers(3, 60, (4, 32))
DATA = [
    {"input_ids": row, "labels": row}
    for row in torch.randint(3, 60, (64, 16), generator=torch.manual_seed(0))
]
SMALL = {"window": 32, "documents": 4, "groups": 2, "loss": False}


def train(folder: Path, callback: QKScopeCallback | None, resume: bool = False, **changes):
    """The weights and losses of a short training run."""
    settings = {
        "output_dir": str(folder), "max_steps": 50, "per_device_train_batch_size": 2, "logging_steps": 1, "seed": 0,
        "learning_rate": 1e-2, "report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True,
    }  # fmt: skip
    model = tiny_model(0, attention_dropout=0.1, num_hidden_layers=1)
    callbacks = [callback] if callback else []
    trainer = Trainer(
        model, TrainingArguments(**(settings | changes)), train_dataset=DATA, callbacks=callbacks
    )
    trainer.train(resume_from_checkpoint=resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {name: x.clone() for name, x in model.state_dict().items()}, losses, trainer


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gradient_checkpointing": True},
        {"torch_compile": True, "torch_compile_backend": "aot_eager"},
    ],
    ids=["plain", "gradient checkpointing", "compiled"],
)
def test_weights_and_losses_are_those_of_a_run_without_it(tmp_path, monkeypatch, changes):
    monkeypatch.setattr("qkscope.monitor.Monitor.report", lambda *args, **kwargs: None)
    callback = QKScopeCallback(IDS, every=20, out=tmp_path / "live", **SMALL)
    weights, losses, _ = train(tmp_path / "with", callback, **changes)
    torch._dynamo.reset()
    plain, expected, _ = train(tmp_path / "without", None, **changes)
    torch._dynamo.reset()
    assert callback.monitor.steps == [0, 20, 40, 50]
    assert len(losses) == 50
    assert losses == expected
    for name, value in plain.items():
        assert torch.equal(weights[name], value), name


def test_saved_steps_have_the_digest_of_their_checkpoint_and_a_resumed_run_goes_on(tmp_path, monkeypatch):
    from qkscope.checkpoints import Source, digest, resolve

    def callback():
        return QKScopeCallback(IDS, every="saves", out=tmp_path / "live", report_minutes=60, **SMALL)

    first = callback()
    train(tmp_path / "run", first, max_steps=4, save_strategy="steps", save_steps=2)
    assert first.monitor.steps == [0, 2, 4]
    live = tmp_path / "live" / "checkpoints" / "checkpoint-2"
    assert resolve(Source(str(live))).commit == digest(tmp_path / "run" / "checkpoint-2")
    second = callback()
    train(tmp_path / "run", second, resume=True, max_steps=6, save_strategy="steps", save_steps=2)
    assert not second._retired
    assert second.monitor.steps == [0, 2, 4, 6]
    names = load_results(tmp_path / "live").data["checkpoint"].to_numpy().tolist()
    assert names == [f"checkpoint-{step}" for step in (0, 2, 4, 6)]


def test_tensorboard_gets_numbers_a_map_and_a_table(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setattr("qkscope.monitor.Monitor.report", lambda *args, **kwargs: None)
    callback = QKScopeCallback(IDS, every=1, out=tmp_path / "live", alarms={}, **SMALL)
    *_, trainer = train(tmp_path / "run", callback, max_steps=2, report_to=["tensorboard"])
    assert not callback._retired
    found = EventAccumulator(str(tmp_path / "run" / "runs" / "qkscope"))
    found.Reload()
    tags = found.Tags()
    assert {"qkscope/share_positional", "qkscope/seconds", "qkscope/overhead"} <= {*tags["scalars"]}
    assert len(tags["scalars"]) <= MOST_KEYS
    assert [event.step for event in found.Scalars("qkscope/share_positional")] == [0, 1, 2]
    assert tags["images"] == ["qkscope/share_positional_map"]
    assert "qkscope/heads/text_summary" in tags["tensors"]
    logged = [entry for entry in trainer.state.log_history if "qkscope/share_positional" in entry]
    assert logged[1]["qkscope/share_positional"] == pytest.approx(
        found.Scalars("qkscope/share_positional")[1].value, rel=1e-6
    )


def test_wandb_gets_numbers_a_map_and_a_table(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setattr("qkscope.monitor.Monitor.report", lambda *args, **kwargs: None)
    callback = QKScopeCallback(IDS, every=1, out=tmp_path / "live", **SMALL)
    try:
        train(tmp_path / "run", callback, max_steps=1, report_to=["wandb"])
        summary = dict(wandb.run.summary)
    finally:
        wandb.finish()
    assert not callback._retired
    assert summary["train/global_step"] == 1
    assert 0 <= summary["qkscope/share_match"] <= 1
    assert summary["qkscope/heads"]["_type"] == "table-file"
    assert summary["qkscope/heads"]["nrows"] == 4
    assert summary["qkscope/share_positional_map"]["_type"] == "image-file"
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


# trackio asks for an older pillow than is pinned: it is installed in a folder of its own (scripts/setup.sh trackio).
TRACKIO = """
import json, sys
from pathlib import Path
import trackio
from trackio.sqlite_storage import SQLiteStorage
from test_callback import IDS, SMALL, QKScopeCallback, train
from qkscope.monitor import Monitor
Monitor.report = lambda *args, **kwargs: None
folder = Path(sys.argv[1])
callback = QKScopeCallback(IDS, every=1, out=folder / "live", alarms={"share_drop": 1e-9}, **SMALL)
import qkscope.stats.alarms
qkscope.stats.alarms.ERRORS = 0.0
train(folder / "run", callback, max_steps=1, report_to=["trackio"], project="qk", trackio_static_space_id=False)
assert not callback._retired
run = trackio.Api().runs("qk")[0]
logged = {name for entry in SQLiteStorage.get_logs("qk", run.name) for name in entry}
print(json.dumps({"metrics": sorted(logged), "alerts": [alert["text"] for alert in run.alerts()]}))
"""


def test_trackio_gets_numbers_a_map_a_table_and_alerts(tmp_path):
    place = Path(__file__).parent.parent / ".cache" / "trackio"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path, str(place)])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-c", TRACKIO, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"qkscope/share_positional", "qkscope/share_positional_map", "qkscope/heads"} <= {
        *found["metrics"]
    }
    assert any("share_" in text for text in found["alerts"])


def test_an_error_ends_the_callback_and_not_the_training(tmp_path, caplog):
    def broken(*args):
        raise RuntimeError("out of paper")

    callback = QKScopeCallback(IDS, every=1, out=tmp_path / "live", **SMALL)
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING, "qkscope"):
        patch.setattr("qkscope.monitor.weights_digest", broken)
        _, losses, _ = train(tmp_path / "run", callback, max_steps=3)
    assert len(losses) == 3
    assert [record.message for record in caplog.records if "out of paper" in record.message] == [
        "qkscope stopped measuring, training goes on: RuntimeError: out of paper"
    ]


def test_steps_are_a_number_or_a_word():
    with pytest.raises(StudyError, match="every"):
        QKScopeCallback(IDS, every="often")
    with pytest.raises(StudyError, match="every"):
        QKScopeCallback(IDS, every=0)
    due = [step for step in range(40) if QKScopeCallback(IDS)._is_due(step)]
    assert due == [1, 2, 4, 8, 16, 32]
