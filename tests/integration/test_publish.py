"""Results on the hub and back, through the real client and a hub on this machine."""

from __future__ import annotations

import huggingface_hub
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hub_server import serve
from test_hub import point_at

from qkscope import analyze
from qkscope.cli import main
from qkscope.errors import HubError, StoreError, VectorsError
from qkscope.results import load_results
from qkscope.run.publish import card, fetch_results, published_files, push, repository
from qkscope.vectors import write_vectors

QK = "model,layer,head,pc,r_q,r_k\nstep-1,0,0,0,0.5,0.25\nstep-2,0,0,0,0.75,-0.5\n"


@pytest.fixture
def server(tmp_path, monkeypatch):
    (tmp_path / "hub").mkdir()
    with serve(tmp_path / "hub") as hub:
        point_at(monkeypatch, hub.url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_local")
        yield hub


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results" / "mine"
    for name, text in {
        "qk.csv": QK,
        "summary.json": '{"title": "A *run*", "findings": [{"headline": "Queries <b>rise</b>"}]}',
        "report.html": "<p>",
        "figures/01_position_signal/figure.png": "png",
        "moments/step-1/0.safetensors": "secret",
        "tokens/a.npy": "secret",
        "checkpoints/step-1/model.safetensors": "secret",
        "corpus/a.txt": "secret",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_what_is_pushed_comes_back_and_nothing_else_was_sent(server, results, tmp_path):
    address = push(results, "hub:lab/mine")
    assert "lab/mine" in address
    there = server.root / "datasets/lab/mine/main"
    sent = {p.relative_to(there).as_posix() for p in there.rglob("*") if p.is_file()}
    assert sent == {
        "README.md",
        "qk.csv",
        "summary.json",
        "report.html",
        "figures/01_position_signal/figure.png",
    }
    back = fetch_results("hub:lab/mine", tmp_path / "elsewhere")
    assert (back / "qk.csv").read_text() == QK
    assert len(load_results(back).heads) == 2


def test_a_card_quotes_the_findings_as_plain_text(results):
    text = card(results, "lab/mine")
    assert text.startswith("---\nlicense: apache-2.0")
    assert r"# A \*run\*" in text
    assert "- Queries &lt;b&gt;rise&lt;/b&gt;" in text
    assert "figures/01_position_signal/figure.png" in text


def test_nothing_outside_the_folder_is_published(results, tmp_path):
    (tmp_path / "private.csv").write_text("secret")
    (results / "link.csv").symlink_to(tmp_path / "private.csv")
    assert "link.csv" not in published_files(results)


@pytest.mark.parametrize("place", ["lab/mine", "hub:mine", "hub:a/b/c", "hub:/x", "hub:"])
def test_a_place_on_the_hub_is_owner_and_name(place):
    with pytest.raises(HubError, match="expected hub:owner/name"):
        repository(place)


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(StoreError, match=r"no qk\.csv"):
        push(tmp_path, "hub:lab/mine")


def test_a_hub_that_refuses_says_so_in_words(server, results):
    server.fault({"match": "POST /api/repos/create", "action": "status", "status": 403})
    with pytest.raises(HubError, match="lab/mine"):
        push(results, "hub:lab/mine")


def test_commands_read_results_from_the_hub(server, results, tmp_path, monkeypatch):
    push(results, "hub:lab/mine")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["compare", "hub:lab/mine", "--with", str(results)])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "results" / "lab--mine" / "qk.csv").read_text() == QK
    done = CliRunner().invoke(main, ["report", str(results), "hub:lab/mine", "--out", "both.html"])
    assert done.exit_code == 0, done.output
    assert "have exactly the same numbers" in (tmp_path / "both.html").read_text()


def some_vectors(root):
    """Two models, two query heads and a key head each."""
    rng = np.random.default_rng(3)
    position = np.tile(np.arange(40), 6)
    for model in ("step-1", "step-2"):
        for head, kind in ((0, "q"), (1, "q"), (0, "k")):
            vector = rng.standard_normal((240, 8)) + 0.1 * position[:, None] * rng.standard_normal(8)
            write_vectors(
                root,
                model,
                0,
                head,
                kind,
                example_id=np.repeat(np.arange(6), 40),
                position=position,
                vector=vector.astype(np.float32),
                window=48,
                sliding_window=None,
            )


def test_vectors_on_the_hub_are_analysed_as_those_on_disk(server, tmp_path, monkeypatch):
    there = server.root / "datasets/lab/vectors/main"
    some_vectors(there / "deep")
    (there / "weights.bin").write_bytes(b"not these")
    (there / "deep" / "step-1" / "notes.parquet").write_bytes(b"nor these")
    done = CliRunner().invoke(main, ["analyze", "hub:lab/vectors/deep", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    expected = analyze(there / "deep")
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / "out" / "qk.csv"), expected.qk, check_dtype=False, rtol=1e-12
    )
    assert set(expected.qk["model"]) == {"step-1", "step-2"}
    asked = {path for _, path, _ in server.requests() if "resolve" in path}
    assert asked
    assert all(path.endswith("data.parquet") for path in asked)
    bare = analyze("hub:lab/vectors/deep/step-2")
    assert set(bare.qk["model"]) == {"step-2"}
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert analyze("hub:lab/vectors/deep").qk.equals(expected.qk)


def test_a_dataset_without_vectors_says_what_was_expected(server):
    (server.root / "datasets/lab/none/main").mkdir(parents=True)
    (server.root / "datasets/lab/none/main/a.parquet").write_bytes(b"")
    with pytest.raises(VectorsError, match=r"none of its 1 files are vectors; expected <model>/l00h00q"):
        analyze("hub:lab/none")
    with pytest.raises(HubError, match="no such dataset on the hub"):
        analyze("hub:lab/nowhere")
