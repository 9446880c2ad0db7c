"""From vectors on disk to qk.csv: the numbers, and every way in which files can be wrong."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from reference import combined_pca_reference, separated
from synthetic import make_head

from qkscope.cli import main
from qkscope.errors import VectorsError
from qkscope.results.tables import read_qk
from qkscope.scanning.analyze import analyze
from qkscope.vectors import ModelFolder, infer_ratio, read_moments, write_vectors

DIM = 8


def save(root, model, layer, head, kind, rng, *, n=200, dim=DIM, follow=0.8, fixed=True, groups=1):
    """One head's file; returns its vectors and positions."""
    x, t = make_head(rng, n, dim, follow=follow, dtype=np.float32)
    folder = root / model / f"l{layer:02d}h{head:02d}{kind}"
    folder.mkdir(parents=True)
    vector = (
        pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), dim)
        if fixed
        else pa.array(x.tolist(), pa.list_(pa.float32()))
    )
    table = pa.table(
        {
            "bucket": pa.array(np.zeros(n, "i4")),
            "example_id": pa.array(rng.integers(0, 16, n).astype("i4")),
            "position": pa.array(t.astype("i4")),
            "vector": vector,
            "sliding_window": pa.nulls(n),
            "token_str": pa.array(["x"] * n),
        }
    )
    pq.write_table(table, folder / "data.parquet", compression="zstd", row_group_size=-(-n // groups))
    return x, t


@pytest.fixture
def root(tmp_path, rng):
    """Two models of two layers, four query heads on two key heads; returns the folder and all vectors."""
    vectors = {}
    for model in ("stage1-step-40000", "modèle с пробелом"):
        for layer in range(2):
            for head in range(4):
                vectors[model, layer, head, "q"] = save(
                    tmp_path / "vectors", model, layer, head, "q", rng, fixed=head % 2 == 0, groups=1 + head
                )
            for head in range(2):
                vectors[model, layer, head, "k"] = save(
                    tmp_path / "vectors", model, layer, head, "k", rng, n=150, follow=-0.5
                )
    return tmp_path / "vectors", vectors


def test_the_table_is_the_references(root):
    folder, vectors = root
    result = analyze(folder)
    assert result.problems == []
    assert len(result.qk) == 2 * 8 * DIM
    for (model, layer, head), rows in result.qk.groupby(["model", "layer", "head"]):
        q, k = vectors[model, layer, head, "q"], vectors[model, layer, head // 2, "k"]
        r_q, r_k, explained, _ = combined_pca_reference(*q, *k)
        check = separated(explained)
        np.testing.assert_allclose(rows["r_q"].to_numpy()[check], r_q[check], atol=5e-6)
        np.testing.assert_allclose(rows["r_k"].to_numpy()[check], r_k[check], atol=5e-6)
        np.testing.assert_allclose(rows["explained_variance"], explained, atol=5e-6)
        assert (rows["kv_head"] == head // 2).all()
        assert (rows["n_q"] == 200).all()
        assert (rows["n_k"] == 150).all()
    assert result.qk[["r_q_null", "r_k_null"]].notna().all().all()
    # An axis that some leave-one-out sample does not have comes without an error.
    assert result.qk[["r_q_se", "r_k_se"]].notna().mean().min() > 0.8


def test_the_command_writes_the_three_tables(root, tmp_path):
    out = tmp_path / "new" / "out"
    done = CliRunner().invoke(main, ["analyze", str(root[0]), "--out", str(out)])
    assert done.exit_code == 0, done.output
    tables = ["heads.csv", "measures.safetensors", "qk.csv", "transitions.csv"]
    assert sorted(p.name for p in out.iterdir() if p.suffix in (".csv", ".safetensors")) == tables
    assert "8 heads, mean r_q" in done.output
    heads = pd.read_csv(out / "heads.csv")
    assert len(heads) == 16
    assert set(heads["class"]) <= {
        "position-dominated",
        "Q-positional",
        "K-positional",
        "content-focused",
        "mixed",
    }
    before = (out / "qk.csv").read_bytes()
    CliRunner().invoke(main, ["analyze", str(root[0]), "--out", str(out)])
    assert (out / "qk.csv").read_bytes() == before
    assert len(read_qk(out / "qk.csv")) == 16 * DIM


def test_one_model_alone_and_three_digits(tmp_path, rng):
    for kind in "qk":
        save(tmp_path, "big", 100, 128, kind, rng)
    result = analyze(tmp_path / "big", gqa_ratio=1)
    assert result.qk["layer"].unique().tolist() == [100]
    assert result.qk["head"].unique().tolist() == [128]
    assert result.qk["model"].unique().tolist() == ["big"]


def folders(tmp_path, queries, keys):
    for kind, heads in (("q", queries), ("k", keys)):
        for layer, head in heads:
            (tmp_path / f"l{layer:02d}h{head:02d}{kind}").mkdir(parents=True)
    return ModelFolder.read(tmp_path)


def test_the_ratio_is_inferred_where_one_fits(tmp_path):
    every = [(layer, head) for layer in range(3) for head in range(16)]
    whole = folders(tmp_path / "a", every, [(layer, head) for layer in range(3) for head in range(4)])
    assert infer_ratio(whole) == 4
    sampled = [(0, 4), (0, 7), (1, 3), (1, 8), (2, 15)]
    assert infer_ratio(folders(tmp_path / "b", sampled, {(layer, head // 4) for layer, head in sampled})) == 4
    assert infer_ratio(folders(tmp_path / "c", every, every)) == 1


def test_several_ratios_fit(tmp_path):
    with pytest.raises(VectorsError, match=r"3, 4 and 5 query heads per key head.*--gqa-ratio"):
        infer_ratio(folders(tmp_path, [(0, 5), (0, 0)], [(0, 1), (0, 0)]))


def test_no_ratio_fits(tmp_path):
    every = [(layer, head) for layer in range(2) for head in range(8)]
    keys = [(0, 0), (0, 1), (1, 0)]
    with pytest.raises(VectorsError, match=r"4 .* l01h01k missing"):
        infer_ratio(folders(tmp_path, every, keys))
    with pytest.raises(VectorsError, match="no key heads"):
        infer_ratio(folders(tmp_path / "none", every, []))


def damage(path, how):
    """Break one head's file in one way."""
    table = pq.read_table(path)
    n = table.num_rows
    replace = {
        "no vector": lambda: table.drop_columns(["vector"]),
        "no position": lambda: table.drop_columns(["position"]),
        "position as text": lambda: table.set_column(2, "position", pa.array(["1"] * n)),
        "vector of text": lambda: table.set_column(3, "vector", pa.array([["a"]] * n)),
        "vector of ints": lambda: table.set_column(3, "vector", pa.array([[1, 2]] * n)),
        "unequal": lambda: table.set_column(
            3, "vector", pa.array([[1.0] * (1 + i % 2) for i in range(n)], pa.list_(pa.float32()))
        ),
        "null vector": lambda: table.set_column(
            3, "vector", pa.array([None] + [[1.0] * DIM] * (n - 1), pa.list_(pa.float32()))
        ),
        "null position": lambda: table.set_column(2, "position", pa.array([None, *range(n - 1)], pa.int32())),
        "empty vectors": lambda: table.set_column(3, "vector", pa.array([[]] * n, pa.list_(pa.float32()))),
        "other length": lambda: table.set_column(
            3, "vector", pa.array([[float(i), 2.0] for i in range(n)], pa.list_(pa.float32()))
        ),
        "no rows": lambda: table.slice(0, 0),
    }
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-200])
    elif how == "empty file":
        path.write_bytes(b"")
    elif how == "not parquet":
        path.write_text("model,layer\n")
    elif how == "missing":
        path.unlink()
    else:
        pq.write_table(replace[how](), path)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("truncated", "truncated or not a parquet file"),
        ("empty file", "truncated or not a parquet file"),
        ("not parquet", "truncated or not a parquet file"),
        ("missing", "no such file"),
        ("no rows", "no rows"),
        ("no vector", "column missing: vector"),
        ("no position", "column missing: position"),
        ("position as text", "column position is string"),
        ("vector of text", "column vector is list"),
        ("vector of ints", "column vector is list"),
        ("unequal", "vectors of 1 and of 2"),
        ("null vector", "null"),
        ("null position", "1 rows without position"),
        ("empty vectors", "empty vectors"),
        ("other length", "2 dimensions, but .* 8"),
    ],
)
def test_a_broken_file_is_named_and_nothing_is_lost(root, tmp_path, how, message):
    folder, _ = root
    out = tmp_path / "out"
    assert CliRunner().invoke(main, ["analyze", str(folder), "--out", str(out)]).exit_code == 0
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    broken = folder / "modèle с пробелом" / "l01h02q" / "data.parquet"
    damage(broken, how)
    done = CliRunner().invoke(main, ["analyze", str(folder), "--out", str(out), "--replace"])
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    assert str(broken) in done.output
    with pytest.raises(VectorsError, match=message):
        analyze(folder)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def edited(path, **columns):
    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, values)
    pq.write_table(table, path)


@pytest.mark.parametrize("what", ["nan", "inf", "equal positions", "one row"])
def test_heads_without_a_correlation_are_unmeasured_and_named(root, tmp_path, what):
    """The rest is written; the command still ends with an error, so that nobody overlooks it."""
    folder, vectors = root
    path = folder / "stage1-step-40000" / "l00h03q" / "data.parquet"
    if what in ("nan", "inf"):
        x = vectors["stage1-step-40000", 0, 3, "q"][0].copy()
        x[[3, 5], 2] = float(what)
        edited(path, vector=pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), DIM))
    elif what == "equal positions":
        edited(path, position=pa.array(np.full(200, 77, "i4")))
    else:
        pq.write_table(pq.read_table(path).slice(0, 1), path)
    out = tmp_path / "out"
    done = CliRunner().invoke(main, ["analyze", str(folder), "--out", str(out), "--replace"])
    assert done.exit_code == 1
    assert "head 3 of layer 0 of stage1-step-40000 is unmeasured" in done.output
    expected = {"equal positions": "all equal", "one row": "1 row; at least 2"}
    assert expected.get(what, "2 of 200 vectors are NaN or infinite") in done.output
    heads = pd.read_csv(out / "heads.csv").set_index(["model", "layer", "head"])
    assert heads.loc[("stage1-step-40000", 0, 3), "class"] == "unmeasured"
    assert (heads["class"] == "unmeasured").sum() == 1


def test_a_missing_key_file_for_a_query_head(root):
    folder, _ = root
    shutil.rmtree(folder / "stage1-step-40000" / "l01h01k")
    with pytest.raises(VectorsError, match=r"l01h01k missing"):
        analyze(folder)
    with pytest.raises(VectorsError, match=r"query head l01h02q needs key head l01h01k at 2 .*1 more"):
        analyze(folder, gqa_ratio=2)


def test_folders_with_none_of_it(tmp_path):
    with pytest.raises(VectorsError, match="no such folder"):
        analyze(tmp_path / "nowhere")
    (tmp_path / "empty" / "model").mkdir(parents=True)
    with pytest.raises(VectorsError, match="no vectors found"):
        analyze(tmp_path / "empty")
    folders(tmp_path / "keys" / "m", [], [(0, 0)])
    with pytest.raises(VectorsError, match="no query heads"):
        analyze(tmp_path / "keys")
    folders(tmp_path / "twice" / "m", [(0, 0)], [(0, 0)])
    (tmp_path / "twice" / "m" / "l000h00q").mkdir()
    with pytest.raises(VectorsError, match="the same head"):
        analyze(tmp_path / "twice")


def test_an_output_folder_that_cannot_be_written(root, tmp_path):
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(main, ["analyze", str(root[0]), "--out", str(tmp_path / "file" / "out")])
    assert done.exit_code == 1
    assert "where a folder is needed" in done.output


def test_groups_go_by_example(root):
    folder, _ = root
    path = folder / "stage1-step-40000" / "l00h00q" / "data.parquet"
    parts = read_moments(path, 8)
    examples = pq.read_table(path)["example_id"].to_numpy()
    assert [int(m.n[0]) for m in parts] == np.bincount(examples % 8, minlength=8).tolist()


def test_vectors_we_write_read_back(tmp_path, rng):
    x = rng.standard_normal((50, DIM)).astype(np.float32)
    position = np.arange(50) * 100
    for kind in "qk":
        path = write_vectors(
            tmp_path,
            "m",
            3,
            12,
            kind,
            example_id=np.arange(50) % 7,
            position=position,
            vector=x,
            window=8192,
            sliding_window=None,
            token_str=[f"t{i}" for i in range(50)],
        )
    assert path == tmp_path / "m" / "l03h12k" / "data.parquet"
    table = pq.read_table(path)
    kinds = {
        name: str(table.schema.field(name).type)
        for name in ("bucket", "example_id", "position", "sliding_window")
    }
    assert kinds == dict.fromkeys(kinds, "int32")
    assert table["bucket"].to_pylist() == (position // 512).tolist()
    assert table["token_str"].to_pylist()[7] == "t7"
    assert np.array_equal(np.stack(table["vector"].to_numpy(zero_copy_only=False)), x)
    assert np.array_equal(table["position"].to_numpy(), position)
    result = analyze(tmp_path, gqa_ratio=1)
    assert result.heads["r_q"].equals(result.heads["r_k"])
