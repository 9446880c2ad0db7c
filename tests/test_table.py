from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from test_moments import make_unit

from qkscope import store
from qkscope.errors import TableError
from qkscope.measures.cell import Cell, measure_cell
from qkscope.measures.registry import chosen
from qkscope.results.dataset import CellData, CellInfo, dataset
from qkscope.results.tables import QK_COLUMNS, from_qk, head_table, qk_table, read_causes, read_qk, select
from qkscope.results.taxonomy import Thresholds

MINIMAL = "model,layer,head,pc,r_q,r_k\n"


@pytest.fixture
def measured(rng):
    units = [make_unit(rng, [20], [20, 20])[0] for _ in range(3)]
    numbers = measure_cell(Cell.of(units, 20, 4, 5), chosen(()))
    return select(dataset([CellData.of(CellInfo("stage1-step-40000", 20, groups=3), numbers)]), "own")


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_qk_csv_has_the_documented_columns_and_reads_back(measured, tmp_path):
    table = qk_table(measured)
    assert ",".join(table.columns) == (
        "model,layer,head,kv_head,pc,r_q,r_k,explained_variance,n_q,n_k,r_q_se,r_k_se,r_q_null,r_k_null,rope"
    )
    assert len(table) == 3 * 4
    assert table["pc"].tolist() == [0, 1, 2, 3] * 3
    store.write_csv(tmp_path / "qk.csv", table)
    again = read_qk(tmp_path / "qk.csv")
    pd.testing.assert_frame_equal(again, table, check_dtype=False, check_exact=True)
    assert again["rope"].tolist() == [1.0] * 8 + [0.0] * 4


def test_heads_table_adds_depth_class_polarity(measured):
    heads = head_table(measured, Thresholds())
    assert {"model", "window", "layer", "head", "class", "polarity", "r_q", "r_q_se", "r_q_null"} <= set(
        heads
    )
    assert heads["depth"].tolist() == [0, 0, 0.5]
    assert heads["depth_bin"].tolist() == [0, 0, 5]
    first = qk_table(measured).query("pc == 0").reset_index(drop=True)
    for name in ("r_q", "r_k", "explained_variance", "n_q", "kv_head", "rope", "r_q_se", "r_k_null"):
        np.testing.assert_array_equal(heads[name], first[name])
    assert from_qk(qk_table(measured))["depth"].values.tolist() == [[0, 0, 1]]


def test_a_foreign_table_with_the_least_columns(tmp_path):
    path = write(tmp_path / "qk.csv", MINIMAL + "a,0,0,0,0.9,-0.8\na,1,0,0,,0.1\n")
    table = read_qk(path)
    assert list(table.columns) == list(QK_COLUMNS)
    assert table["r_q_se"].isna().all()
    heads = head_table(select(from_qk(table), "own"), Thresholds())
    assert heads["class"].tolist() == ["position-dominated", "unmeasured"]


def test_names_survive_quoting(tmp_path):
    name = 'a,"b" </script><img src=x>'
    frame = pd.DataFrame([[name, 0, 0, 0, 0.5, 0.5]], columns=MINIMAL.strip().split(","))
    store.write_csv(tmp_path / "qk.csv", frame)
    assert read_qk(tmp_path / "qk.csv")["model"][0] == name
    numeric = write(tmp_path / "n.csv", MINIMAL + "007,0,0,0,0.9,-0.8\n")
    assert read_qk(numeric)["model"][0] == "007"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a readable CSV"),
        (MINIMAL, "no rows"),
        ("model,layer,head,pc,r_q\na,0,0,0,1\n", "column missing: r_k"),
        (MINIMAL + "a,0,0,0,0.9,1.5\n", r"line 2: r_k is .*1\.5.*-1 to 1"),
        (MINIMAL + "a,0,0,0,0.9,0.5\na,0,1,0,oops,0.5\n", "line 3: r_q is 'oops', expected a number"),
        (MINIMAL + "a,0,0,0,inf,0.5\n", "line 2: r_q"),
        (MINIMAL + "a,-1,0,0,0.1,0.5\n", "line 2: layer is '-1'"),
        (MINIMAL + "a,0.5,0,0,0.1,0.5\n", "line 2: layer is '0.5'"),
        (MINIMAL + "a,,0,0,0.1,0.5\n", "line 2: layer is ''"),
        (MINIMAL + ",0,0,0,0.1,0.5\n", "line 2: model is ''"),
        (
            MINIMAL + "a,0,0,0,0.9,0.5\na,0,0,0,0.9,0.5\n",
            "line 3: duplicate .*model a, layer 0, head 0, pc 0",
        ),
        (MINIMAL + "a,0,0,1,0.9,0.5\n", "no row with pc 0"),
        ('model,layer\n"a', "not a readable CSV"),
    ],
)
def test_bad_tables_are_refused_with_their_line(tmp_path, text, message):
    path = write(tmp_path / "qk.csv", text)
    with pytest.raises(TableError, match=message) as caught:
        read_qk(path)
    assert str(path) in str(caught.value)


def test_no_such_file_and_not_text(tmp_path):
    with pytest.raises(TableError, match="no such file"):
        read_qk(tmp_path / "qk.csv")
    (tmp_path / "qk.csv").write_bytes(b"\xff\xfe\x00model")
    with pytest.raises(TableError, match="not a readable CSV"):
        read_qk(tmp_path / "qk.csv")


def test_nan_heads_stay_nan(tmp_path):
    path = write(tmp_path / "qk.csv", MINIMAL + "a,0,0,0,nan,NA\n")
    assert np.isnan(read_qk(path)["r_q"][0])


def test_a_causes_table_without_effects_that_came_later_is_read(tmp_path):
    path = tmp_path / "causes.csv"
    path.write_text("from_model,to_model,number,population,total,weights\na,b,mean r_q,all,0.1,0.1\n")
    found = read_causes(path)
    assert found["weights"].tolist() == [0.1]
    assert found["interaction"].isna().all()
    path.write_text("from_model,to_model,number,total\na,b,mean r_q,0.1\n")
    with pytest.raises(TableError, match="population"):
        read_causes(path)
