"""One model, quickly: from Python and from the command line."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from click.testing import CliRunner
from families import build, tokens
from reference import combined_pca_reference
from rich.console import Console
from tiny import WORDS, save_checkpoint, tiny_model, tiny_tokenizer

from qkscope.cli import main
from qkscope.errors import CaptureError, CheckpointError, CorpusError, QkscopeError, StudyError, TableError
from qkscope.results import load_results
from qkscope.results.tables import QK_COLUMNS, read_qk
from qkscope.results.taxonomy import CLASSES
from qkscope.scanning.scan import ScanResult, scan

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("models") / "tiny-llama", tokenizer=True)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    rng = np.random.default_rng(0)
    for i, length in enumerate((50, 90, 20, 70)):
        (folder / f"{i}.txt").write_text(" ".join(rng.choice(WORDS, length)))
    return folder


def ids(*lengths: int) -> list[list[int]]:
    return [tokens(1, n, seed=n)[0].tolist() for n in lengths]


def shown(result: ScanResult) -> str:
    stream = StringIO()
    Console(file=stream, width=160).print(result)
    return stream.getvalue()


def test_three_lines_give_a_dataframe() -> None:
    import qkscope

    model = build("smollm3")
    result = qkscope.scan(model, texts=ids(40, 64, 30, 50), max_length=64)
    shares = [f"share_{part}" for part in ("position", "key", "match", "query_position")]
    assert {"layer", "head", "class", "r_q", "r_q_se", "r_q_null", "slope_k", *shares} <= set(result.heads)
    assert list(result.qk.columns) == list(QK_COLUMNS)
    assert (len(result.heads), len(result.qk)) == (16, 160)
    assert result.heads.groupby("layer")["rope"].first().tolist() == [1, 1, 1, 0]
    assert (result.documents, result.tokens, result.filled) == (4, 184, 1)
    # No error where leaving documents out gives another axis.
    assert (result.heads["r_q_se"].notna() == (result.heads["axis_lost"] == 0)).all()
    pd.testing.assert_frame_equal(result.qk, scan(model, texts=ids(40, 64, 30, 50), max_length=64).qk)


def test_numbers_are_those_of_stored_vectors() -> None:
    model = build("qwen3")
    documents = ids(60, 33, 48)
    result = scan(model, texts=documents, max_length=50)
    kept: dict[int, list[Any]] = {}
    from qkscope.capture import capture

    with (
        torch.no_grad(),
        capture(model, lambda i, q, k: kept.setdefault(i, []).append((q[0], k[0]))) as backbone,
    ):
        for each in documents:
            backbone(input_ids=torch.tensor([each[:50]]), use_cache=False)
    t = np.concatenate([np.arange(min(len(each), 50)) for each in documents])
    for row in result.heads.itertuples():
        q = np.concatenate([pair[0][row.head] for pair in kept[row.layer]])
        k = np.concatenate([pair[1][row.kv_head] for pair in kept[row.layer]])
        r_q, r_k, explained, _ = combined_pca_reference(q, t, k, t)
        assert (row.r_q, row.r_k) == pytest.approx((r_q[0], r_k[0]), abs=1e-5)
        assert row.explained_variance == pytest.approx(explained[0], abs=1e-5)


def test_what_decides_is_in_the_result_in_print_and_in_a_file(tmp_path: Path) -> None:
    result = scan(build("smollm3"), texts=ids(40, 40, 40, 40), max_length=40, groups=4, out=tmp_path)
    shares = result.heads[[f"share_{p}" for p in ("position", "key", "match", "query_position")]]
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-9)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "heads.csv"), result.heads, check_dtype=False)
    text = shown(result)
    assert "What determines" in text
    assert "query x position" in text
    assert result.decides()["heads"].tolist()[:3] == ["all", "RoPE", "NoPE"]
    assert "position" in repr(result)


def test_measures_that_are_asked_for_are_in_the_result_and_in_files(tmp_path: Path) -> None:
    model, documents = build("smollm3"), ids(64, 64, 64, 64)
    options: dict[str, Any] = {"texts": documents, "max_length": 64, "groups": 4, "out": tmp_path}
    result = scan(model, measures=["rotation", "per_kind", "plasticity"], **options)
    assert result.heads["slope_k"].to_numpy() == pytest.approx(64 * result.heads["alpha_k"].to_numpy())
    assert result.heads["plasticity"].between(0, 1).all()
    assert result.data["plasticity_map"].dims == ("cell", "head", "query_bucket", "key_bucket")
    assert "plasticity" in pd.read_csv(tmp_path / "heads.csv")
    # A later scan without a measure leaves nothing of it, and the rest as it was.
    again = scan(model, **options, replace=True)
    stored = load_results(tmp_path)
    assert not [name for name in map(str, stored.data) if "plasticity" in name]
    assert "plasticity" not in pd.read_csv(tmp_path / "heads.csv")
    assert again.heads["slope_k"].equals(result.heads["slope_k"])


def test_a_saved_scan_is_loaded_as_results_of_one_checkpoint(tmp_path: Path) -> None:
    result = scan(build("smollm3"), texts=ids(40, 40, 40), max_length=40, out=tmp_path)
    stored = load_results(tmp_path)
    xr.testing.assert_allclose(stored.data.load(), result.data)
    assert stored.timeline.models == [result.model]
    assert stored.timeline.measured[0].window == 40
    assert stored.matched() is None
    pd.testing.assert_frame_equal(stored.heads, result.heads)
    row = result.head(3, 1)
    assert len(row) == 1
    assert row["r_q"][0] == result.heads.set_index(["layer", "head"])["r_q"][3, 1]
    with pytest.raises(TableError, match="layer 9, head 0"):
        result.head(9, 0)


def test_texts_with_a_tokenizer() -> None:
    result = scan(
        tiny_model(), tokenizer=tiny_tokenizer(), texts=["the cat sat " * 10, "a dog ran"], max_length=16
    )
    # <s> comes first by default: 31 tokens cut to 16, and 4.
    assert (result.tokens, result.filled, len(result.heads)) == (20, 1, 8)


def test_a_folder_with_text_files(checkpoint: Path, texts: Path, tmp_path: Path) -> None:
    result = scan(checkpoint, text_paths=[texts], max_length=64, out=tmp_path / "out")
    assert (result.model, result.documents, result.tokens) == ("tiny-llama", 4, 51 + 64 + 21 + 64)
    pd.testing.assert_frame_equal(read_qk(tmp_path / "out" / "qk.csv"), result.qk, check_dtype=False)
    heads = pd.read_csv(tmp_path / "out" / "heads.csv")
    assert heads["class"].tolist() == result.heads["class"].tolist()
    facts = json.loads((tmp_path / "out" / "scan.json").read_text())
    assert (facts["family"], facts["window"], facts["filled"], facts["warnings"]) == ("llama", 64, 2, [])


def test_the_python_library_is_read_by_default(checkpoint: Path) -> None:
    result = scan(str(checkpoint), max_length=32, documents=3)
    assert (result.documents, result.tokens) == (3, 96)


def test_on_the_command_line(checkpoint: Path, texts: Path, tmp_path: Path) -> None:
    options = [
        "--text",
        str(texts / "0.txt"),
        "--text",
        str(texts / "1.txt"),
        "--max-length",
        "64",
        "--heads",
        "5",
    ]
    answer = CliRunner().invoke(
        main,
        [
            "scan",
            str(checkpoint),
            *options,
            "--out",
            str(tmp_path),
            "--save-vectors",
            "--measures",
            "per_kind,plasticity",
        ],
    )
    assert answer.exit_code == 0, answer.output
    assert "tiny-llama (llama): 5 of 8 heads, 2 documents, 115 of " in answer.output
    assert all(name in answer.output for name in CLASSES)
    assert (tmp_path / "qk.csv").exists()
    heads = pd.read_csv(tmp_path / "heads.csv")
    assert {"linear_q", "plasticity"} <= set(heads)
    assert "slope_k" not in heads
    assert len(list((tmp_path / "vectors" / "tiny-llama").glob("*q/data.parquet"))) == 5


def test_what_is_printed_is_short_and_complete() -> None:
    result = scan(build("smollm3"), texts=ids(64, 64, 64), max_length=64)
    summary = result.summary()
    assert summary["layers"].tolist() == ["all", "RoPE", "NoPE"]
    assert summary["heads"].tolist() == [16, 12, 4]
    assert summary[list(CLASSES)].sum(axis=1).tolist() == pytest.approx([1, 1, 1])
    assert summary["r_q"][0] == pytest.approx(result.heads["r_q"].mean())
    extremes = result.extremes()
    assert extremes["which"].tolist() == ["most"] * 5 + ["least"] * 5
    strength = (extremes["r_q"] + extremes["r_k"].abs()) / 2
    assert strength.is_monotonic_decreasing
    assert strength[0] == pytest.approx(((result.heads["r_q"] + result.heads["r_k"].abs()) / 2).max())
    assert len(shown(result).splitlines()) < 40
    assert "NoPE" in shown(result)
    assert "3 documents, 192 tokens; 3 documents fill the window of 64" in repr(result)
    assert result._repr_html_().count("<table") == 3


def test_few_heads_are_not_listed_twice() -> None:
    result = scan(build("llama"), texts=ids(30), heads=[(1, 2), (0, 3)], max_length=30)
    assert result.heads[["layer", "head"]].to_numpy().tolist() == [[0, 3], [1, 2]]
    assert len(result.extremes()) == 2


def test_one_document_has_no_standard_error() -> None:
    result = scan(build("llama"), texts=ids(30), max_length=30)
    assert result.heads["r_q_se"].isna().all()
    assert "–" in shown(result)


def test_a_window_beyond_the_models_maximum_is_warned_about_and_recorded(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    result = scan(build("llama"), texts=ids(200), max_length=200, out=tmp_path)
    assert "window of 200 tokens is longer than the 128 positions" in caplog.text
    assert json.loads((tmp_path / "scan.json").read_text())["warnings"] == result.warnings
    assert "is longer than" in shown(result)
    assert "is longer than" in repr(result)


def test_the_default_window_ends_where_the_model_s_positions_do() -> None:
    result = scan(build("llama"), texts=ids(200))
    assert result.window == 128
    assert result.tokens == 128
    assert result.warnings == []


def test_texts_shorter_than_the_window_are_counted_and_warned_about() -> None:
    result = scan(build("llama"), texts=ids(20, 30), max_length=64)
    assert (result.filled, result.tokens) == (0, 50)
    assert result.warnings == ["no document fills the window of 64 tokens; the longest of 2 has 30"]


def test_a_model_that_returns_nan() -> None:
    model = build("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[:16] = float("nan")
    result = scan(model, texts=ids(30, 30), max_length=30)
    layers = result.heads.loc[result.heads["class"] == "unmeasured", "layer"]
    # The broken key head feeds two query heads of its layer, and everything above.
    assert layers.tolist() == [1, 1, *[2] * 4, *[3] * 4]
    assert "10 of 16 heads are unmeasured (layer 1 heads 0, 1, layer 2 all heads" in result.warnings[0]
    assert result.problem is not None
    assert result.summary()["unmeasured"][0] == 10 / 16
    assert "unmeasured" in shown(result)


def test_a_model_that_is_nan_throughout() -> None:
    model = build("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight.fill_(float("nan"))
    result = scan(model, texts=ids(30), max_length=30)
    assert (result.heads["class"] == "unmeasured").all()
    assert "16 of 16 heads" in shown(result)


def test_sliding_window_layers_on_request() -> None:
    model = build("gemma2")
    assert set(scan(model, texts=ids(20), max_length=20).heads["layer"]) == {1, 3}
    assert set(scan(model, texts=ids(20), max_length=20, include_sliding=True).heads["layer"]) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"texts": []}, CorpusError, "no documents"),
        ({"texts": "one text"}, CorpusError, "a single text"),
        ({"texts": [[]]}, CorpusError, "empty"),
        ({"texts": ["words"]}, CorpusError, "tokenizer"),
        ({}, CaptureError, "need a tokenizer"),
        ({"texts": ids(9), "heads": "some"}, CaptureError, "heads is 'some'"),
        ({"texts": ids(9), "heads": 17}, StudyError, "sample of 17 heads"),
        ({"texts": ids(9), "heads": [(0, 9)]}, CaptureError, "head 9"),
        (
            {"texts": ids(9), "measures": ["rotatoin"]},
            CaptureError,
            "found 'rotatoin'; expected a list",
        ),
        ({"texts": ids(9), "measures": "rotation"}, CaptureError, "found 'rotation'; expected a list"),
        ({"texts": ids(9), "save_vectors": 0.1}, CaptureError, "give `out`"),
        ({"texts": [[5, 500]]}, CaptureError, "token 500"),
    ],
)
def test_mistakes_from_python(options: dict[str, Any], error: type[QkscopeError], message: str) -> None:
    with pytest.raises(error, match=message):
        scan(build("llama"), **options)


def test_a_tokenizer_that_is_missing_can_be_given(texts: Path, tmp_path: Path, checkpoint: Path) -> None:
    bare = save_checkpoint(tmp_path / "bare")
    with pytest.raises(CheckpointError, match=r"no tokenizer.*--tokenizer"):
        scan(bare, text_paths=[texts], max_length=16)
    assert scan(bare, text_paths=[texts], max_length=16, tokenizer=str(checkpoint)).tokens == 64
    assert scan(bare, text_paths=[texts], max_length=16, tokenizer=tiny_tokenizer()).tokens == 64
    assert scan(tiny_model(), texts=["the cat"], tokenizer=str(checkpoint), max_length=16).tokens == 3


@pytest.mark.parametrize("name", ["nothing/here/at/all", "./missing.gguf"])
def test_no_such_model(name: str) -> None:
    answer = CliRunner().invoke(main, ["scan", name])
    assert answer.exit_code == 1
    assert "no such file or folder" in answer.output
    assert "Traceback" not in answer.output


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty|no text|nothing"), (b"\x00\x01\x02" * 50, "binary|text"), (b"caf\xe9 " * 20, "UTF-8")],
)
def test_texts_that_cannot_be_read(checkpoint: Path, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "odd.txt").write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        scan(checkpoint, text_paths=[tmp_path / "odd.txt"], max_length=16)


def test_too_little_memory_is_said_before_the_weights_are_loaded(
    checkpoint: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkscope.scanning.subject.available_bytes", lambda: 1000)
    monkeypatch.setattr("qkscope.scanning.subject.load_model", lambda source: pytest.fail("loaded"))
    with pytest.raises(CaptureError, match=r"loading tiny-llama and measuring 8 heads .* needs about"):
        scan(checkpoint, text_paths=[texts], max_length=16, device="cpu")
