"""What a notebook asks of results: one head, changes, other thresholds, several runs, tables for a paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from frames import with_heads
from simulated import measured, results, truth

import qkscope
from qkscope.errors import TableError
from studies import training

NAMES = ["step0", "step1000", "step2000"]


@pytest.fixture(scope="module")
def study():
    return training(4, widen=2)


def test_a_head_comes_with_every_measure_and_its_error(study):
    like = study.data["r_q"]
    full = replace(study, data=study.data.assign(share_key=like * 0 + 0.25, alpha_q=like * 0 + 1.5))
    course = full.head(2, 3)
    assert course["model"].tolist() == study.timeline.models
    assert course["step"].tolist() == [0, 1, 2, 3]
    assert {"r_q", "r_q_se", "share_key", "share_key_se", "alpha_q", "alpha_q_se", "class"} <= set(course)
    rows = study.heads[(study.heads["layer"] == 2) & (study.heads["head"] == 3)]
    assert course["r_q"].tolist() == rows["r_q"].tolist()
    assert course["alpha_q"].tolist() == [1.5] * 4


def test_a_head_over_the_matched_window(study):
    own, matched = study.head(1, 1), study.head(1, 1, matched=True)
    assert own["r_k"].iloc[-1] != matched["r_k"].iloc[-1]
    with pytest.raises(TableError, match="matched window"):
        training(2).head(1, 1, matched=True)


def test_a_head_that_was_not_measured_is_said_with_those_that_were(study):
    with pytest.raises(TableError, match=r"layer 99, head 0 was not measured; .*layers 0 to"):
        study.head(99, 0)


def test_changes_have_paired_errors():
    r_q, r_k = truth(0, 3)
    qk, loo = measured(NAMES, r_q, r_k, seed=3, noise=0.02)
    table = results(qk, loo).changed("step0", "step2000", n=5)
    assert len(table) == 5
    largest = table["r_q_change"].abs().tolist()
    assert largest == sorted(largest, reverse=True)
    heads = results(qk, loo).heads.set_index(["model", "layer", "head"])["r_q"]
    every = (heads["step2000"] - heads["step0"]).abs()
    assert largest[0] == pytest.approx(every.max(), abs=1e-12)
    row = table.iloc[2]
    one = loo[(loo["layer"] == row["layer"]) & (loo["head"] == row["head"])]
    sides = [one[one["model"] == m].sort_values("group")["r_k"].to_numpy() for m in ("step0", "step2000")]
    values = sides[1] - sides[0]
    expected = np.sqrt((len(values) - 1) / len(values) * ((values - values.mean()) ** 2).sum())
    assert row["r_k_change_se"] == pytest.approx(expected, rel=1e-12)


def test_changes_without_groups_in_common_have_no_error():
    r_q, r_k = truth(0, 3)
    qk, loo = measured(NAMES, r_q, r_k, seed=3)
    other = loo[(loo["model"] != "step2000") | (loo["group"] > 0)]
    for left in (None, other):
        table = results(qk, left).changed("step0", "step2000", by="r_k")
        assert table["r_q_change_se"].isna().all()
    changes = table["r_k_change"].abs().tolist()
    assert changes == sorted(changes, reverse=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("step0", "step9"), "'step9' was not measured; .*step-100"), (("a", "b"), "'a' was not")],
)
def test_changes_between_unknown_checkpoints_are_refused(study, arguments, words):
    arguments = tuple(a.replace("step0", "step-100") for a in arguments)
    with pytest.raises(TableError, match=words):
        study.changed(*arguments)
    with pytest.raises(TableError, match="one of r_q, r_k"):
        study.changed("step-100", "step-200", by="class")


def test_other_thresholds_change_classes_and_nothing_else(study):
    wide = study.rethreshold(0.5, 0.4)
    assert wide.thresholds == qkscope.Thresholds(0.5, 0.4)
    expected = qkscope.classify(study.heads["r_q"], study.heads["r_k"], wide.thresholds)
    assert wide.heads["class"].tolist() == expected.tolist()
    assert (wide.heads["class"] != study.heads["class"]).any()
    assert wide.heads["r_q"].equals(study.heads["r_q"])
    pd.testing.assert_frame_equal(study.rethreshold().heads, study.heads)
    with pytest.raises(TableError, match="0 <= low <= high"):
        study.rethreshold(0.2, 0.6)


def test_one_figure_as_wide_as_a_column(study):
    drawing = qkscope.figure("position_signal", study, width=3.3)
    assert drawing.figure.get_figwidth() == pytest.approx(3.3)
    assert drawing._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(TableError, match="no figure 'signal'"):
        qkscope.figure("signal", study)


def test_runs_together_keep_their_checkpoints_apart():
    runs = [training(3), training(2)]
    names = ["alpha", "beta"]
    runs = [
        replace(r, timeline=replace(r.timeline, name=n, title=n, matched_window=None))
        for r, n in zip(runs, names, strict=True)
    ]
    both = qkscope.concat(runs)
    assert [checkpoint.phase for checkpoint in both.timeline.checkpoints] == ["alpha"] * 3 + ["beta"] * 2
    assert both.timeline.models[0] == "alpha/step-100"
    assert len(both.heads) == len(runs[0].heads) + len(runs[1].heads)
    r_q = [results.heads["r_q"].tolist() for results in (both, *runs)]
    assert r_q[0] == r_q[1] + r_q[2]
    assert both.heads["r_q_se"].tolist() == [se for run in runs for se in run.heads["r_q_se"]]
    assert set(qkscope.figure("taxonomy_evolution", both).data["model"]) == set(both.timeline.models)
    assert set(both.data["weights_of"].values) == set(both.timeline.models)
    assert both.matched() is None


def test_runs_of_other_heads_and_measures_are_padded(study):
    few = with_heads(study, lambda layer, head: layer < 2)
    few = replace(few, timeline=replace(few.timeline, name="few"))
    few = replace(few, data=few.data.assign(share_key=few.data["r_q"] * 0 + 0.5).isel(sample=[0, 1, 2]))
    both = qkscope.concat([few, study])
    assert len(both.heads) == len(few.heads) + len(study.heads)
    assert both.data["layer"].values.tolist() == study.data["layer"].values.tolist()
    keys = both.heads.groupby("model", sort=False)["share_key"].mean()
    assert np.isfinite(keys.iloc[0])
    assert np.isnan(keys.iloc[-1])


@pytest.mark.parametrize("same", [True, False])
def test_runs_with_the_same_matched_window_keep_it(study, same):
    other = replace(study.timeline, name="other", matched_window=study.timeline.matched_window if same else 7)
    both = qkscope.concat([study, replace(study, timeline=other)])
    assert (both.matched() is not None) == same
    assert (both.timeline.matched_window is not None) == same
    if same:
        assert len(both.matched_heads) == 2 * len(study.matched_heads)


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (lambda r: [], "no runs"),
        (lambda r: [r, r], "two runs are named 'simulated'"),
    ],
)
def test_runs_that_cannot_be_told_apart_are_refused(study, runs, words):
    with pytest.raises(TableError, match=words):
        qkscope.concat(runs(study))
