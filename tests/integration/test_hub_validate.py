"""`validate` of a study whose checkpoints, tokenizer and texts are on the hub: what names and configurations tell."""

from __future__ import annotations

import socket

import huggingface_hub
import pytest
import tiny
import yaml
from click.testing import CliRunner
from hub_server import serve
from test_hub import point_at, write_datasets

from qkscope.cli import main
from qkscope.run.preflight import preflight

REPO = "lab/run"
REVISIONS = ["stage1-step-100", "stage1-step-2000"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    for seed, revision in enumerate((*REVISIONS, "main")):
        tiny.save_checkpoint(root / "models" / REPO / revision, seed)
    bare = tiny.save_checkpoint(root / "models/lab/bare/main")
    (bare / "model.safetensors").unlink()
    tiny.tiny_tokenizer().save_pretrained(root / "models/lab/tokenizer/main")
    write_datasets(root / "datasets")
    with serve(root) as running:
        yield running


@pytest.fixture
def check(server, tmp_path, monkeypatch):
    """Validate the study with some keys changed; the hub has an empty cache and has been asked nothing."""
    point_at(monkeypatch, server.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    server.fault()
    study = {
        "name": "far",
        "model": REPO,
        "tokenizer": "lab/tokenizer",
        "corpus": {"source": "hub:lab/long", "split": "test"},
        "windows": [16],
        "phases": [{"label": "one", "checkpoints": list(REVISIONS)}],
    }

    def validated(**changes):
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump(study | changes, sort_keys=False))
        return preflight(path)

    return validated


def test_a_right_study_is_found_right_without_a_weight_being_fetched(check, server):
    found = check()
    assert found.mistakes == ()
    assert found.warnings == ()
    assert found.cost.startswith("2 checkpoints: ")
    fetched = {path.rpartition("/")[2] for _, path, _ in server.requests() if "/resolve/" in path}
    assert fetched <= {"config.json", "generation_config.json"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model": "lab/rum"},
            "phases[0].checkpoints[0]: lab/rum: no local folder",
        ),
        (
            {"phases": [{"label": "one", "checkpoints": [REVISIONS[0], "stage1-step-2100"]}]},
            "phases[0].checkpoints[1]: lab/run@stage1-step-2100: no such revision; did you mean stage1-step-2000",
        ),
        (
            {"tokenizer": "lab/tokeniser"},
            "tokenizer: lab/tokeniser: no local folder",
        ),
        ({"tokenizer": REPO}, "tokenizer: lab/run@stage1-step-100: no tokenizer"),
        ({"heads": {"sample": 300}}, "a sample of 300 heads"),
        (
            {"corpus": {"source": "hub:lab/lang", "split": "test"}},
            "corpus: dataset lab/lang: no such dataset on the hub",
        ),
        (
            {"corpus": {"source": "hub:lab/long", "split": "tests"}},
            "corpus: hub:lab/long: no .parquet or .jsonl files of split 'tests'",
        ),
        (
            {"model": "lab/bare", "phases": [{"label": "one", "checkpoints": ["main"]}]},
            "lab/bare@main: no weights",
        ),
    ],
)
def test_each_mistake_is_said_once_at_its_place(check, changes, said):
    found = check(**changes)
    assert len(found.mistakes) == 1, found.mistakes
    assert said in found.mistakes[0]
    assert found.cost == ""


def test_all_mistakes_are_told_at_once(check):
    phases = [{"label": "one", "checkpoints": ["stage1-step-1", "stage1-step-2000"]}]
    found = check(phases=phases, tokenizer="lab/none", corpus={"source": "hub:lab/lang"})
    assert len(found.mistakes) == 3


def test_of_many_checkpoints_the_ends_of_phases_are_looked_into(check, server, monkeypatch):
    monkeypatch.setattr("qkscope.run.preflight.MOST_LOOKED", 1)
    phases = [{"label": "one", "checkpoints": [REVISIONS[0], "main", REVISIONS[1]]}]
    assert check(phases=phases).mistakes == ()
    asked = {path.split("/")[4] for _, path, _ in server.requests() if "/resolve/" in path}
    commits = {server.commit(REPO, revision) for revision in REVISIONS}
    assert asked <= commits | set(REVISIONS)
    assert len(asked) == 2


def test_offline_says_so_and_asks_nothing(check, server, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    found = check()
    assert found.mistakes == ()
    assert len(found.warnings) == 1
    assert "two checkpoints and one text source on the hub" in found.warnings[0]
    assert "HF_HUB_OFFLINE is set" in found.warnings[0]
    assert found.cost
    assert server.requests() == []


def test_a_hub_that_cannot_be_reached_is_asked_once(check, tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr(
            huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}"
        )
        monkeypatch.setattr("qkscope.checkpoints.hub.time.sleep", lambda _: pytest.fail("it waits to retry"))
        found = check()
    assert found.mistakes == ()
    assert len(found.warnings) == 1
    assert "cannot be reached" in found.warnings[0]
    done = CliRunner().invoke(main, ["validate", str(tmp_path / "study.yaml")])
    assert done.exit_code == 0
