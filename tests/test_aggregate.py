"""Aggregates against loops that do the same the long way."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from frames import cells_of
from simulated import measured, truth

from qkscope.results import aggregate
from qkscope.results.dataset import dataset
from qkscope.results.tables import select
from qkscope.results.taxonomy import CLASSES, Thresholds, classify, polarity
from qkscope.sums.head_index import depth, depth_bin

NAMES = ["step0", "step1000", "step2000"]


@pytest.fixture(scope="module")
def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    r_q, r_k = truth(3, len(NAMES))
    qk, loo = measured(NAMES, r_q, r_k, noise=0.05)
    shuffled = loo.sample(frac=1.0, random_state=0).reset_index(drop=True)
    return qk, shuffled


def own(heads: pd.DataFrame, loo: pd.DataFrame | None = None) -> xr.Dataset:
    """A table of heads as a dataset of a model with 12 layers."""
    return select(dataset(cells_of(heads, loo, layers=12)), "own")


def slow_se(loo: pd.DataFrame, model: str, statistic) -> float:
    """sqrt((G-1)/G * sum (a_g - mean a)^2), group by group."""
    rows = loo[loo["model"] == model]
    groups = sorted(rows["group"].unique())
    values = [statistic(rows[rows["group"] == g].sort_values(["layer", "head"])) for g in groups]
    mean = sum(values) / len(values)
    return float(np.sqrt((len(values) - 1) / len(values) * sum((v - mean) ** 2 for v in values)))


def test_position_signal_has_means_spreads_and_jackknife_errors(tables):
    heads, loo = tables
    table = aggregate.position_signal(own(heads, loo), NAMES[::-1])
    assert list(table["model"]) == NAMES[::-1]
    for row in table.to_dict("records"):
        mine = heads[heads["model"] == row["model"]]
        assert row["heads"] == len(mine)
        assert row["mean_r_q"] == pytest.approx(mine["r_q"].mean(), abs=1e-14)
        assert row["sd_r_k"] == pytest.approx(mine["r_k"].std(ddof=0), abs=1e-14)
        assert row["mean_abs_r_k"] == pytest.approx(mine["r_k"].abs().mean(), abs=1e-14)
        assert row["se_r_q"] == pytest.approx(slow_se(loo, row["model"], lambda t: t["r_q"].mean()), rel=1e-9)
        expected = slow_se(loo, row["model"], lambda t: t["r_k"].abs().mean())
        assert row["se_abs_r_k"] == pytest.approx(expected, rel=1e-9)


def test_class_shares_add_to_one_and_their_errors_count_classes_anew(tables):
    heads, loo = tables
    thresholds = Thresholds(high=0.6, low=0.4)
    table = aggregate.class_shares(own(heads, loo), NAMES, thresholds)
    assert list(table["class"]) == list(CLASSES) * len(NAMES)
    assert table.groupby("model")["share"].sum().to_numpy() == pytest.approx(np.ones(3))
    for row in table.to_dict("records"):
        expected = slow_se(
            loo,
            row["model"],
            lambda t, kind=row["class"]: (classify(t["r_q"], t["r_k"], thresholds) == kind).mean(),
        )
        assert row["se"] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_borderline_heads_would_change_class_within_one_error():
    rows = [  # r_q, r_k, se_q, se_k, borderline
        (0.71, 0.9, 0.02, 0.01, True),
        (0.75, 0.9, 0.02, 0.01, False),
        (0.69, 0.69, 0.02, 0.02, True),  # only both together reach another class
        (0.69, 0.5, 0.02, 0.02, False),  # mixed on both sides of the threshold
        (0.1, -0.29, 0.02, 0.02, True),
        (0.1, 0.01, 0.02, 0.05, False),  # |r_k| does not go below zero
    ]
    heads = pd.DataFrame(rows, columns=["r_q", "r_k", "r_q_se", "r_k_se", "expected"])
    heads = heads.assign(model="m", layer=0, head=range(len(heads)))
    assert aggregate.borderline(own(heads))[0].tolist() == heads["expected"].tolist()
    table = aggregate.class_shares(own(heads, None), ["m"]).set_index("class")["borderline"]
    assert table["position-dominated"] == 1
    assert table.sum() == 3
    without = aggregate.class_shares(own(heads.drop(columns=["r_q_se"]), None), ["m"])
    assert without["borderline"].isna().all()


def test_depth_cells_have_all_ten_bins_and_an_empty_one_is_empty(tables):
    heads, loo = tables
    heads = heads.assign(depth_bin=depth_bin(depth(heads["layer"].to_numpy(), 12)))
    heads = heads[heads["depth_bin"] != 4]
    for value, column in (("r_q", "r_q"), ("abs_r_k", "r_k")):
        table = aggregate.depth_cells(own(heads, loo), NAMES, value).set_index(["model", "depth_bin"])
        assert len(table) == 30
        assert table.loc[("step0", 4), "heads"] == 0
        assert np.isnan(table.loc[("step0", 4), "mean"])
        mine = heads[(heads["model"] == "step0") & (heads["depth_bin"] == 7)]
        values = mine[column].abs() if value == "abs_r_k" else mine[column]
        assert table.loc[("step0", 7), "mean"] == pytest.approx(values.mean(), abs=1e-14)
        inside = set(mine["layer"])
        expected = slow_se(loo, "step0", lambda t, c=column, i=inside: t[t["layer"].isin(i)][c].abs().mean())
        if value == "abs_r_k":
            assert table.loc[("step0", 7), "se"] == pytest.approx(expected, rel=1e-9)


def test_polarity_shares_count_heads(tables):
    heads, loo = tables
    shares = aggregate.polarity_shares(own(heads, loo), NAMES).set_index(["model", "polarity"])
    mine = heads[heads["model"] == "step1000"]
    for kind in ("concordant", "neutral", "discordant"):
        assert shares.loc[("step1000", kind), "heads"] == (polarity(mine["r_k"]) == kind).sum()


def test_unmeasured_heads_are_left_out_and_counted(tables):
    heads, loo = tables
    broken = heads.copy()
    gone = broken.index[(broken["model"] == "step0") & (broken["layer"] == 2)]
    broken.loc[gone, "r_k"] = np.nan
    whole = heads[(heads["model"] == "step0") & (heads["layer"] != 2)]
    signal = aggregate.position_signal(own(broken, loo), NAMES).set_index("model")
    assert signal.loc["step0", "heads"] == len(whole)
    assert signal.loc["step0", "mean_r_q"] == pytest.approx(whole["r_q"].mean(), abs=1e-14)
    shares = aggregate.class_shares(own(broken, loo), NAMES).set_index(["model", "class"])
    assert shares.loc[("step0", "unmeasured"), "heads"] == len(gone)
    assert shares.loc[("step1000", "unmeasured"), "heads"] == 0
    assert shares.loc["step0"]["share"].sum() == pytest.approx(1.0)
    cells = aggregate.depth_cells(own(broken, loo), ["step0"], "r_k").set_index("depth_bin")
    assert cells["heads"].sum() == len(whole)


def test_a_head_missing_from_one_group_does_not_move_the_errors_by_its_level(tables):
    heads, loo = tables
    first = (loo["layer"] == 0) & (loo["head"] == 0)
    full = aggregate.position_signal(own(heads, loo[~first]), NAMES)
    holes = loo.copy()
    holes.loc[first & (loo["group"] == 3), ["r_q", "r_k"]] = np.nan
    table = aggregate.position_signal(own(heads, holes), NAMES)
    assert table["se_r_q"].to_numpy() == pytest.approx(full["se_r_q"].to_numpy(), rel=1e-9)


def test_without_leave_one_out_values_errors_are_unknown_and_means_stay(tables):
    heads, loo = tables
    for one in (None, loo[loo["group"] == 0], loo[loo["model"] == "other"]):
        table = aggregate.position_signal(own(heads, one), NAMES)
        assert table["se_r_q"].isna().all()
        assert table["mean_r_q"].notna().all()
        assert aggregate.class_shares(own(heads, one), NAMES)["se"].isna().all()
        assert aggregate.depth_cells(own(heads, one), NAMES)["se"].isna().all()


def test_a_foreign_table_with_the_required_columns_only():
    heads = pd.DataFrame(
        {"model": "m", "layer": [0, 1], "head": [0, 0], "r_q": [0.2, 0.8], "r_k": [0.1, -0.9]}
    )
    assert aggregate.position_signal(own(heads, None), ["m"])["mean_r_q"].tolist() == [0.5]
    variance = aggregate.explained_variance(own(heads, None), ["m"])
    assert variance["heads"].tolist() == [0]
    assert np.isnan(variance["mean"]).all()
    null = aggregate.above_null(own(heads), ["m"])
    assert null["heads"].tolist() == [0]
    assert np.isnan(null["share_q"]).all()


def test_above_null_counts_strictly_above():
    heads = pd.DataFrame({"model": "m", "layer": 0, "head": range(4)})
    heads = heads.assign(r_q=[0.5, 0.2, 0.3, np.nan], r_k=[-0.5, 0.1, 0.1, 0.9], r_q_null=0.3, r_k_null=0.1)
    row = aggregate.above_null(own(heads), ["m"]).iloc[0]
    assert (row["heads"], row["above_q"], row["above_k"]) == (3, 1, 1)
    assert row["share_k"] == pytest.approx(1 / 3)


def test_heads_of_a_positional_class_below_their_null():
    rows = [  # r_q, r_k, null q, null k, below
        (0.8, 0.8, 0.5, 0.5, False),
        (0.8, -0.8, 0.5, 0.85, True),
        (0.8, 0.1, 0.9, 0.0, True),
        (0.8, 0.1, 0.1, 0.9, False),  # Q-positional: its keys are not called positional
        (0.1, 0.8, 0.9, 0.9, True),
        (0.1, 0.1, 0.9, 0.9, False),  # content-focused
        (0.8, 0.8, np.nan, np.nan, False),  # no null was measured
    ]
    heads = pd.DataFrame(rows, columns=["r_q", "r_k", "r_q_null", "r_k_null", "below"])
    heads = heads.assign(model="m", layer=0, head=range(len(heads)))
    assert aggregate.positional_below_null(own(heads))[0].tolist() == heads["below"].tolist()
