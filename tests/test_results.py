from __future__ import annotations

import pandas as pd
import pytest
from frames import cells_of

from qkscope import store
from qkscope.errors import QkscopeError, StoreError, TableError
from qkscope.results import load_results
from qkscope.results.dataset import NAME, write_dataset

STUDY = """\
name: mine
model: someone/model
windows: [128, 256]
phases:
  - label: Early
    window: 128
    checkpoints: [{revision: step1}, {revision: step2}]
  - label: Late
    window: 256
    checkpoints: [{revision: step3}]
provenance:
  checkpoints: {step1: {num_layers: 5}, step3: {num_layers: 5}}
  missing: {step2: no such revision}
"""


def table(models, layers=2):
    rows = [(m, layer, 0, 0, 0.9, -0.8) for m in models for layer in range(layers)]
    return pd.DataFrame(rows, columns=["model", "layer", "head", "pc", "r_q", "r_k"])


@pytest.fixture
def folder(tmp_path):
    store.write_csv(tmp_path / "qk.csv", table(["step1", "step3"]))
    store.write_text(tmp_path / "study.yaml", STUDY)
    return tmp_path


def test_a_whole_folder(folder):
    results = load_results(folder)
    assert results.timeline.models == ["step1", "step3"]
    assert results.timeline.checkpoint("step2").missing == "no such revision"
    assert results.timeline.matched_window == 128
    assert results.timeline.window_changes == [1]
    assert results.heads["depth"].tolist() == [0, 0.25] * 2
    assert results.own()["window"].values.tolist() == [128, 256]
    assert results.matched() is None
    assert results.components == 1
    assert any("earlier version" in warning for warning in results.record.warnings)


def test_a_folder_with_a_dataset_is_read_through_it(folder):
    wide = cells_of(table(["step1", "step3"]).assign(r_q=0.25), window={"step1": 128, "step3": 256})
    write_dataset(folder / NAME, wide)
    results = load_results(folder)
    assert set(results.heads["r_q"]) == {0.25}
    assert not results.record.warnings
    (folder / NAME).write_bytes(b"PAR1")
    with pytest.raises(StoreError, match=r"measures\.safetensors: damaged"):
        load_results(folder)


def test_a_bare_table_in_its_own_order(tmp_path):
    store.write_csv(tmp_path / "theirs.csv", table(["step9", "step3"]))
    results = load_results(tmp_path / "theirs.csv")
    assert results.timeline.models == ["step3", "step9"]
    assert results.study == {}
    assert results.matched() is None


def test_checkpoints_that_the_study_does_not_know(folder):
    store.write_csv(folder / "qk.csv", table(["step1", "other"]))
    with pytest.raises(TableError, match="checkpoints other"):
        load_results(folder)


def test_a_checkpoint_without_rows_is_a_gap(folder):
    store.write_csv(folder / "qk.csv", table(["step1"]))
    assert load_results(folder).timeline.checkpoint("step3").missing


@pytest.mark.parametrize("place", ["", "nowhere", "nowhere/qk.csv"])
def test_nothing_there(tmp_path, place):
    with pytest.raises(QkscopeError, match="no such file; give a results folder"):
        load_results(tmp_path / place)


def test_results_say_what_they_hold(folder):
    text = str(load_results(folder))
    assert "step2                        not measured: no such revision" in text
    (line,) = (line.split() for line in text.splitlines() if line.startswith("step1 "))
    assert line[-2:] == ["0.900", "0.800"], "mean r_q, mean |r_k|"
    assert text.endswith(f"results: {folder}")
