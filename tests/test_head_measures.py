"""Optional measures of vectors on disk, against all pairs of the same vectors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import xarray as xr
from reference import per_kind_reference, plasticity_reference, rotation_model_reference
from tiny import tiny_model, tiny_tokenizer

from qkscope import analyze, scan
from qkscope.errors import VectorsError
from qkscope.measures.registry import groups, optional_names
from qkscope.results import load_results
from qkscope.vectors import write_vectors

WINDOW, DIM, DOCUMENTS = 64, 5, 6


@pytest.fixture
def stored(tmp_path, rng):
    """One head's queries and keys of six documents, as other programs store them."""
    t = np.tile(np.arange(WINDOW), DOCUMENTS)
    document = np.repeat(np.arange(DOCUMENTS), WINDOW)
    axis = rng.standard_normal(DIM)
    x = {}
    for kind, drift in (("q", 1.0), ("k", -0.5)):
        x[kind] = (
            rng.standard_normal((len(t), DIM)) + drift * np.outer(t / WINDOW, axis) + rng.standard_normal(DIM)
        )
        x[kind] = x[kind].astype(np.float32)
        write_vectors(
            tmp_path / "in", "m", 0, 0, kind, example_id=document, position=t, vector=x[kind], window=WINDOW
        )
    return x["q"], x["k"], t, document


def test_plasticity_of_stored_vectors_is_that_of_all_pairs(stored, tmp_path):
    q, k, t, document = stored
    analyze(tmp_path / "in", tmp_path / "out", groups=3)
    bucket = t // (WINDOW // 16)
    expected = plasticity_reference(q, t, bucket, k, bucket, document)
    row = pd.read_csv(tmp_path / "out" / "heads.csv").iloc[0]
    assert row["plasticity"] == pytest.approx(np.nanmean(expected), abs=1e-9)
    assert row["plasticity_sampling_se"] == 0
    data = load_results(tmp_path / "out").data
    np.testing.assert_allclose(data["plasticity_map"].values[0, 0], expected, rtol=0, atol=1e-9)
    first = document % 3 != 0
    left = plasticity_reference(q[first], t[first], bucket[first], k[first], bucket[first], document[first])
    # Left-out values are stored as float32 differences.
    assert data["plasticity"].values[0, 1, 0] == pytest.approx(np.nanmean(left), abs=1e-6)


def test_rotation_and_each_kind_of_stored_vectors(stored, tmp_path):
    q, k, t, _ = stored
    row = analyze(tmp_path / "in", tmp_path / "out", groups=3).heads.iloc[0]
    for name, value in rotation_model_reference(q, t, k, t, WINDOW).items():
        column = {"r_q": "drift_r_q", "r_k": "drift_r_k"}.get(name, name)
        assert row[column] == pytest.approx(value, rel=1e-9, abs=1e-9), name
    assert row["bias_logits"] == pytest.approx(row["bias_strength"] * WINDOW / np.sqrt(DIM))
    for name, value in per_kind_reference(q, t, k, t).items():
        assert row[name] == pytest.approx(value, rel=1e-8, abs=1e-9), name
    assert row["window"] == WINDOW


@pytest.mark.parametrize("asked", [(), ("per_kind",), ("plasticity", "rotation")])
def test_only_what_is_asked_for_is_measured_and_r_is_the_same(stored, tmp_path, asked):
    whole, some = (analyze(tmp_path / "in", groups=3, **options) for options in ({}, {"measures": asked}))
    pd.testing.assert_frame_equal(some.qk, whole.qk)
    optional = [groups()[name] for name in set(optional_names()) - set(asked)]
    gone = {v.name for group in optional for v in group.variables if v.per_head}
    assert not gone & set(map(str, some.data))
    assert set(map(str, whole.data)) - set(map(str, some.data)) == gone
    for name in some.data:
        xr.testing.assert_equal(some.data[name], whole.data[name])


def test_a_measure_that_is_none(stored, tmp_path):
    with pytest.raises(VectorsError, match=r"found 'spin'; expected .*per_kind"):
        analyze(tmp_path / "in", measures=["rotation", "spin"])


def test_saved_vectors_have_sixteen_buckets_the_same_positions_and_tokens(tmp_path):
    texts = ["the cat sat on the mat and a quick brown fox ran under the dog " * 5] * 3
    options = {"max_length": 64, "save_vectors": 0.5, "tokenizer": tiny_tokenizer(), "token_str": True}
    scan(tiny_model(), texts=texts, out=tmp_path, **options)
    (model,) = (tmp_path / "vectors").iterdir()
    q, k = (pq.read_table(model / f"l00h00{kind}" / "data.parquet").to_pandas() for kind in "qk")
    for table in (q, k):
        assert (table["bucket"] == table["position"] // 4).all()
        assert table["bucket"].max() == 15
        assert set(table["token_str"]) <= {"<s>", *texts[0].split()}
    assert q["position"].tolist() == k["position"].tolist()
    assert (q["token_str"][q["position"] == 0] == "<s>").all()
