"""Comparisons with the published numbers and with other runs."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from click.testing import CliRunner
from frames import with_heads, with_values, without_left_out
from published import published_qk, published_results
from rich.console import Console
from simulated import measured, results, truth

from qkscope.cli import main
from qkscope.comparison import Comparison, compare, published
from qkscope.comparison.outcome import Quantity, rows_of
from qkscope.comparison.runs import READ_OFF
from qkscope.errors import TableError
from qkscope.results.tables import from_qk
from qkscope.results.taxonomy import Thresholds
from qkscope.store import write_csv

NAMES = ["step0", "step1000", "step2000"]


def a_study(seed: int = 0, names=NAMES, **options):
    return results(*measured(names, *truth(0, len(names)), seed=seed, noise=0.02), **options)


def test_the_published_numbers_say_where_they_come_from_and_add_up():
    data = published()
    assert data["source"]
    columns = zip(*data["taxonomy_head_counts"].values(), strict=True)
    assert [sum(column) for column in columns] == [300] * 10
    for key in ("mean_r_q", "mean_r_k", "mean_explained_variance", "depth_heatmap_r_q", "depth_heatmap_r_k"):
        assert len(data[key]) == 10


def test_the_published_plasticity_is_compared_where_it_was_measured():
    ours, data = published_results("means"), published()["rotation_and_plasticity"]
    assert len(data["plasticity"]) == len(data["plasticity_drop"]) == len(published()["checkpoints"])
    place = [published()["checkpoints"].index(model) for model in ours.data["checkpoint"].values]
    same, off = (np.array(data[name])[place] for name in ("plasticity", "plasticity_drop"))
    like = xr.ones_like(ours.data["r_q"])
    measured_too = ours.data.assign(
        plasticity=like * same[:, None, None], plasticity_drop=like * (off[:, None, None] + 0.1)
    )
    found = compare(replace(ours, data=measured_too), "published")
    judged = found.table().set_index(["quantity", "checkpoint"])["agrees"]
    assert judged["mean plasticity"].all()
    assert not judged["mean plasticity, first less last"].any()
    assert "16.7 per window" in found.to_text()
    assert "Windows differ" in found.to_text()
    assert "plasticity" not in compare(ours, "published").to_text()


def test_heads_with_the_published_means_agree_with_them():
    found = compare(published_results("means"), "published")
    rows = found.table()
    named = rows[~rows["quantity"].str.contains("depth")]
    assert len(named) == 10 * (3 + 5)
    assert named["agrees"].all()
    assert len(rows) == 280
    assert not found.only_ours
    assert not found.only_theirs


def test_heads_with_the_published_cells_agree_with_them():
    rows = compare(published_results("cells"), "published").table()
    assert rows[rows["quantity"].str.contains("depth")]["agrees"].all()


def test_a_number_off_by_more_than_reading_allows_differs():
    ours = published_results("means")
    moved = ours.data["explained_variance"].to_numpy().copy()
    moved[ours.data["checkpoint"].values == "lc-32k-to-64k-step-20000"] += 2 * READ_OFF + 0.001
    found = compare(with_values(ours, explained_variance=moved), "published")
    rows = found.table()
    wrong = rows[(rows["quantity"] == "mean explained variance") & ~rows["agrees"].astype(bool)]
    assert wrong["checkpoint"].tolist() == ["lc-32k-to-64k-step-20000"]
    assert wrong["difference"].tolist() == pytest.approx([0.005], abs=1e-9)
    assert not found.agree
    assert "differs" in found.to_text()


def test_all_heads_are_compared_on_the_published_sample_and_others_are_refused():
    ours = published_results("means")
    qk = published_qk()
    extra = qk[qk["layer"] == 5].assign(head=lambda t: t["head"] + 100)
    more = replace(ours, data=from_qk(pd.concat([qk, extra], ignore_index=True)))
    assert compare(more, "published").table().equals(compare(ours, "published").table())
    fewer = with_heads(ours, lambda layer, head: layer > 5)
    with pytest.raises(TableError, match=r"300 heads.*heads: \{sample: 300, seed: 0\}"):
        compare(fewer, "published")


def test_checkpoints_of_one_side_only_are_listed(tmp_path):
    qk = published_qk()
    some = qk[qk["model"].str.startswith("stage1")]
    write_csv(tmp_path / "qk.csv", some)
    found = compare(tmp_path, "published")
    assert found.only_theirs[0] == "stage2-step-4200000"
    assert len(found.only_theirs) == 6
    assert "Only in published: stage2-step-4200000" in found.to_text()
    assert set(found.table()["checkpoint"]) == set(some["model"])


def test_nothing_in_common_is_an_error_that_names_both():
    with pytest.raises(TableError, match=r"no checkpoint in common.*step0.*stage1-step-40000"):
        compare(a_study(), "published")


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(TableError, match="no such file"):
        compare(tmp_path / "nothing", "published")


def test_a_study_agrees_with_itself_even_without_errors():
    study = a_study()
    assert compare(study, study).agree
    bare = without_left_out(study)
    found = compare(bare, bare)
    assert found.agree
    assert all(row.agrees for row in found.rows)


def test_two_runs_of_the_same_model_mostly_agree_and_a_shift_does_not():
    ours, again = a_study(seed=1), a_study(seed=2)
    rows = compare(ours, again).table()
    assert rows["agrees"].mean() > 0.8
    moved = with_values(again, r_q=again.own()["r_q"].to_numpy() + 0.1)
    rows = compare(ours, moved).table()
    assert not rows[rows["quantity"] == "mean r_q"]["agrees"].any()
    difference = rows[rows["quantity"] == "mean r_q"]["difference"].to_numpy()
    assert difference == pytest.approx(np.full(3, -0.1), abs=0.03)


def test_neither_side_knowing_its_error_is_not_agreement():
    bare = [without_left_out(a_study(seed=seed)) for seed in (1, 2)]
    found = compare(*bare)
    row = next(row for row in found.rows if row.quantity == "mean r_q")
    assert row.agrees is None
    assert math.isnan(row.se)
    assert found.outcome == "cannot tell"
    assert "unclear" in found.sentence()
    assert "cannot be judged" in found.verdict()


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        # One head of 16, which no left-out group of documents moves: an error of 0 is none.
        ((7 / 16, 0.0), (8 / 16, 0.0), None),
        ((7 / 16, math.nan), (8 / 16, math.nan), None),
        ((7 / 16, math.nan), (8 / 16, 0.0), None),
        ((8 / 16, math.nan), (8 / 16, math.nan), True),
        # 2.2 errors are not agreement, though the one head more or less forbids to call it a difference.
        ((0.38, math.nan), (0.6, 0.1), None),
        ((0.38, 0.0), (0.6, 0.1), None),
        ((0.38, math.nan), (0.5, 0.1), True),
        ((0.1, math.nan), (0.6, 0.1), False),
        ((0.1, 0.1), (0.6, 0.1), False),
        ((0.4, 0.1), (0.6, 0.1), True),
    ],
)
def test_shares_of_few_heads_are_not_surer_than_one_head(ours, theirs, verdict):
    key = (Quantity("mixed heads", "share"), "step0")
    (row,) = rows_of({key: ours}, {key: theirs}, heads=16)
    assert row.agrees is verdict


def test_means_are_judged_by_the_errors_that_are_known():
    key = (Quantity("mean r_q", "mean"), "step0")
    judged = {
        (se, other): rows_of({key: (0.38, se)}, {key: (0.6, other)}, heads=16)[0].agrees
        for se, other in ((math.nan, 0.1), (0.1, math.nan), (0.1, 0.1), (0.0, 0.0), (math.nan, math.nan))
    }
    assert list(judged.values()) == [False, False, True, None, None]


def test_depth_cells_are_not_in_the_table_whatever_they_are_called():
    keys = [(Quantity("a cell", "r_q by depth"), "step0"), (Quantity("r_q by depth of all", "mean"), "step0")]
    rows = rows_of(dict.fromkeys(keys, (0.1, 0.01)), dict.fromkeys(keys, (0.6, 0.01)), heads=16)
    assert [cells[0] for cells in Comparison("a", "b", tuple(rows), (), (), ()).cells()] == [
        "r_q by depth of all"
    ]


def test_a_printed_error_has_the_digits_that_its_verdict_needs():
    """0.375 against 0.5625 with an error of 0.12 agrees; printed as 0.6 with 0.1 it would look like a difference."""
    key = (Quantity("mean r_q", "mean"), "step0")
    rows = rows_of({key: (0.375, math.nan)}, {key: (0.5625, 0.12)}, heads=16)
    (cells,) = Comparison("a", "b", rows, (), (), ()).cells()
    assert cells[2:] == ("0.375", "0.56 ± 0.12", "\u22120.19 ± 0.12", "agrees")


def test_equal_means_of_other_heads_are_not_the_same_numbers():
    ours = a_study()
    first = np.flatnonzero(ours.own()["layer"] == 0)
    swapped = {name: ours.own()[name].to_numpy().copy() for name in ("r_q", "r_k")}
    for values in swapped.values():
        values[0][:, first] = values[0][:, first[::-1]]
    found = compare(ours, with_values(ours, **swapped))
    assert (found.table()["difference"].abs() < 1e-12).all()
    assert "exactly the same numbers" not in found.sentence()
    assert f"of {len(ours.heads)} " in found.sentence()
    same = compare(ours, ours)
    assert "exactly the same numbers" in same.sentence()
    printed = io.StringIO()
    Console(file=printed, width=200).print(same)
    assert "quantity" not in printed.getvalue(), "a table without rows"


def test_different_texts_are_said():
    def on(*digests: str):
        record = {name: {"corpus": digest} for name, digest in zip(NAMES, digests, strict=True)}
        return replace(a_study(), provenance={"checkpoints": record})

    def noted(ours, theirs) -> bool:
        return any("texts alone" in note for note in compare(ours, theirs).notes)

    assert noted(on("a", "a", "a"), on("b", "b", "b"))
    assert not noted(on("a", "a", "a"), on("a", "a", "a"))
    assert not noted(a_study(), on("a", "a", "a"))


def test_a_smaller_set_of_heads_is_compared_on_what_both_have():
    ours = a_study()
    part = with_heads(ours, lambda layer, head: head < 5)
    found = compare(ours, part)
    assert found.agree
    assert any("the 60 heads" in note for note in found.notes)
    left = with_heads(ours, lambda layer, head: head < 6)
    right = with_heads(ours, lambda layer, head: head > 3)
    with pytest.raises(TableError, match="different heads: 72 and 72, of which 24"):
        compare(left, right)


def test_different_windows_and_thresholds_are_noted_and_matched_windows_compared():
    tables = measured(NAMES, *truth(0, 3), noise=0.02)
    ours = results(*tables, windows=[256, 256, 1024], matched=tables)
    theirs = replace(
        results(*tables, windows=[256, 256, 2048], matched=tables), thresholds=Thresholds(0.6, 0.3)
    )
    found = compare(ours, theirs)
    assert any(
        note.startswith("step2000 was measured over 1,024 tokens in one run and 2,048 tokens")
        for note in found.notes
    )
    assert any("class thresholds" in note for note in found.notes)
    assert any(row.quantity == "first 256: mean r_q" for row in found.rows)


def test_the_table_prints_names_as_they_are():
    names = ["[bold]step0", "step1000", "step2000"]
    out = io.StringIO()
    found = compare(a_study(names=names), a_study(seed=1, names=names))
    Console(file=out, width=140, color_system=None).print(found)
    assert "[bold]step0" in out.getvalue()
    assert "numbers agree within two standard errors" in out.getvalue()
    assert "r_k by depth" in out.getvalue()


def renamed(study, names, **changes):
    """The study with other names of its checkpoints; `changes` are attributes of every checkpoint, by place."""
    new = dict(zip(study.timeline.models, names, strict=True))
    checkpoints = tuple(
        replace(
            checkpoint, model=new[checkpoint.model], **{key: values[i] for key, values in changes.items()}
        )
        for i, checkpoint in enumerate(study.timeline.checkpoints)
    )
    models = np.array([new[model] for model in study.data["checkpoint"].values], dtype=object)
    data = study.data.assign_coords(checkpoint=("cell", models))
    return replace(study, timeline=replace(study.timeline, name="other", checkpoints=checkpoints), data=data)


@pytest.mark.parametrize(
    ("changes", "how", "pairs"),
    [
        ({"step": [1, 2, 9]}, "matched by step", {"step1000": "b", "step2000": "a"}),
        ({"step": [None] * 3, "label": ["x", "step0", "y"]}, "matched by label", {"step0": "b"}),
        ({"step": [7, 8, 9], "label": list("xyz")}, "order in training", None),
    ],
)
def test_checkpoints_named_differently_are_matched(changes, how, pairs):
    ours, theirs = a_study(), a_study(seed=5)
    names = ["a", "b", "c"] if how == "matched by label" else ["b", "a", "c"]
    found = compare(ours, renamed(theirs, names, **changes))
    assert any(how in note for note in found.notes)
    place = {name: i for i, name in enumerate(names)}
    pairs = pairs or dict(zip(NAMES, names, strict=True))
    assert {row.checkpoint for row in found.rows} == set(pairs)
    assert set(found.only_theirs) == set(names) - set(pairs.values())
    means = theirs.heads.groupby("model")["r_q"].mean()
    for row in found.rows:
        if row.quantity == "mean r_q":
            assert row.theirs == pytest.approx(means[NAMES[place[pairs[row.checkpoint]]]], abs=1e-12)


def test_runs_without_anything_in_common_are_refused():
    other = a_study(names=["a", "b"])
    other = replace(
        other,
        timeline=replace(
            other.timeline,
            checkpoints=tuple(replace(s, step=None, label=s.model) for s in other.timeline.checkpoints),
        ),
    )
    with pytest.raises(TableError, match="no checkpoint in common"):
        compare(a_study(), other)


def test_each_number_is_there_once_and_equal_ones_are_folded_away():
    tables = measured(NAMES, *truth(0, 3), noise=0.02)
    study = results(*tables, windows=[256, 256, 1024], matched=tables)
    found = compare(study, study)
    keys = [(row.quantity, row.checkpoint) for row in found.rows]
    assert len(keys) == len(set(keys))
    assert {row.checkpoint for row in found.rows if row.quantity.startswith("first 256")} == {"step2000"}
    text = found.to_text()
    assert "numbers are exactly equal" in text
    assert "mean r_q" not in text
    assert "Errors are over documents" in text


def test_heads_of_both_runs_stand_beside_each_other():
    ours, theirs = a_study(), a_study(seed=3)
    heads = compare(ours, theirs).heads
    assert len(heads) == len(ours.heads)
    expected = ours.heads["r_k"].to_numpy() - theirs.heads["r_k"].to_numpy()
    assert heads["r_k_difference"].to_numpy() == pytest.approx(expected, abs=1e-12)
    errors = np.hypot(ours.heads["r_k_se"], theirs.heads["r_k_se"])
    assert heads["r_k_difference_se"].to_numpy() == pytest.approx(errors.to_numpy(), abs=1e-12)


def test_json_and_csv_for_machines(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        write_csv(tmp_path / name / "qk.csv", a_study(seed=seed).qk)
    table = tmp_path / "out.csv"
    places = [str(tmp_path / "a"), "--with", str(tmp_path / "b")]
    done = CliRunner().invoke(main, ["compare", *places, "--json", "--csv", str(table)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["rows"][0]["se"] is None  # a bare table has no groups
    assert len(pd.read_csv(table)) == len(found["rows"])
    assert len(pd.read_csv(tmp_path / "out_heads.csv")) == len(a_study().heads)
