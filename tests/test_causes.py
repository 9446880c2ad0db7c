"""Causes of changes: Shapley's values by hand, exact sums, errors, and studies whose one cause is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from simulated import measured, results

from qkscope.causes_table import CAUSES_COLUMNS, FACTORS, ROTATION, WEIGHTS, WINDOW
from qkscope.errors import TableError
from qkscope.figures import draw
from qkscope.inference.causes import Cell, Step, attribute, shapley
from qkscope.results import Results

GROUPS, HEADS = 8, 60
EVERY = [frozenset(some) for n in range(4) for some in combinations(FACTORS, n)]
NONE = frozenset[str]()


def cell(*factors: str) -> Cell:
    return frozenset(factors)


def heads(r_q: np.ndarray, r_k: np.ndarray, noise: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a measurement gives: (1 + G, H), the groups' mean and the mean without each, of values off by `noise`."""
    found = {}
    for name, true in (("r_q", r_q), ("r_k", r_k)):
        groups = np.clip(true + noise[name], -1, 1)
        found[name] = np.concatenate(
            [groups.mean(axis=0, keepdims=True), (groups.sum(axis=0) - groups) / (GROUPS - 1)]
        )
    return found


def errors(rng: np.random.Generator, size: float = 0.03, shared: float = 0.3) -> dict[str, np.ndarray]:
    """Each group's errors (G, H): a part common to all heads and a part of each head's own."""
    scale = size * math.sqrt(GROUPS)
    return {
        name: rng.normal(0, scale * shared, (GROUPS, 1)) + rng.normal(0, scale, (GROUPS, HEADS))
        for name in ("r_q", "r_k")
    }


def simulated(seed: int, effects: Mapping[str, float], *, changed: tuple[str, ...] = FACTORS, **more) -> Step:
    """A step between two checkpoints whose heads' r_q and r_k change by `effects`, one for each factor.

    The documents are the same in all cells, so most of their error is too; each cell adds some of its own.
    """
    rng = np.random.default_rng(seed)
    r_q, r_k = rng.uniform(0.2, 0.7, HEADS), rng.uniform(-0.1, 0.7, HEADS)
    documents = errors(rng)
    cells = {}
    for some in EVERY:
        if some <= set(changed):
            own = errors(rng, 0.01)
            noise = {name: documents[name] + own[name] for name in own}
            shift = sum(effects.get(factor, 0.0) for factor in some)
            cells[some] = heads(r_q + shift, r_k + shift, noise)
    return Step("a", "b", changed, cells, **more)


def test_shapley_by_hand_over_all_orders():
    rng = np.random.default_rng(0)
    value = {some: rng.normal() for some in EVERY}
    weights = shapley(EVERY, [cell(factor) for factor in FACTORS])
    for factor in FACTORS:
        added = []
        for order in permutations(FACTORS):
            before = frozenset(order[: order.index(factor)])
            added.append(value[before | {factor}] - value[before])
        found = sum(w * value[some] for some, w in weights[cell(factor)].items())
        assert found == pytest.approx(np.mean(added), abs=1e-12)


def test_only_orders_whose_cells_were_measured_count():
    """The earlier weights were not measured over the longer window: it comes last in every order."""
    measured = [some for some in EVERY if WINDOW not in some or some == frozenset(FACTORS)]
    weights = shapley(measured, [cell(factor) for factor in FACTORS])
    assert weights[cell(WINDOW)] == {frozenset(FACTORS): 1.0, cell(WEIGHTS, ROTATION): -1.0}
    assert weights[cell(ROTATION)] == {
        cell(ROTATION): 0.5, NONE: -0.5, cell(WEIGHTS, ROTATION): 0.5, cell(WEIGHTS): -0.5,
    }  # fmt: skip
    assert shapley([NONE, frozenset(FACTORS)], [cell(factor) for factor in FACTORS]) is None


def test_parts_sum_to_the_change_and_errors_are_of_paired_differences():
    step = simulated(3, {WEIGHTS: 0.05, ROTATION: -0.1, WINDOW: 0.03})
    table = attribute([step]).set_index("number")
    assert list(attribute([step]).columns) == list(CAUSES_COLUMNS)
    gap = table["total"] - table[list(FACTORS)].sum(axis=1)
    assert gap.abs().max() < 1e-12
    row = table.loc["mean r_q"]
    ends = [step.cells[some]["r_q"].mean(axis=1) for some in (NONE, frozenset(FACTORS))]
    assert row["total"] == pytest.approx(ends[1][0] - ends[0][0], abs=1e-12)
    paired = ends[1][1:] - ends[0][1:]
    assert row["total_se"] == pytest.approx(math.sqrt(7 / 8 * ((paired - paired.mean()) ** 2).sum()))
    # r_q's shifts do not interact (but for what is clipped at 1), so each factor's part is its effect.
    assert row["rotation"] == pytest.approx(-0.1, abs=3 * row["rotation_se"])
    assert "share of position-dominated heads" in table.index
    assert (table.filter(like="share of", axis=0)["rotation_se"] > 0).all()


def test_a_factor_that_does_not_change_has_no_part():
    row = attribute([simulated(0, {WEIGHTS: 0.1}, changed=(WEIGHTS,))]).iloc[0]
    assert (row["rotation"], row["window"], row["rotation_se"], row["window_se"]) == (0, 0, 0, 0)
    assert row["weights"] == row["total"]


def test_without_counterfactuals_weights_and_rotation_cannot_be_told_apart():
    whole = simulated(0, {ROTATION: -0.2, WINDOW: 0.1})
    kept = (NONE, cell(WEIGHTS, ROTATION), frozenset(FACTORS))
    table = attribute([Step("a", "b", FACTORS, {some: whole.cells[some] for some in kept})])
    row = table.iloc[0]
    assert math.isnan(row["weights"])
    assert math.isnan(row["rotation"])
    assert row["window"] == pytest.approx(0.1, abs=0.02)
    assert row["total"] == pytest.approx(-0.1, abs=0.02)


def test_unmeasured_heads_are_left_out_of_every_cell():
    step = simulated(1, {WEIGHTS: 0.1})
    step.cells[cell(ROTATION)]["r_q"][:, 5] = np.nan
    row = attribute([step]).iloc[0]
    kept = np.arange(HEADS) != 5
    ends = [step.cells[some]["r_q"][0, kept].mean() for some in (NONE, frozenset(FACTORS))]
    assert row["heads"] == HEADS - 1
    assert row["total"] == pytest.approx(ends[1] - ends[0], abs=1e-12)


def test_heads_whose_axis_is_another_are_told_from_those_whose_axis_stayed():
    step = simulated(2, {WEIGHTS: 0.1}, same_axis=np.r_[np.zeros(15), np.ones(45)])
    table = attribute([step])
    assert (table["weights"] - table["same_axis"] - table["another_axis"]).abs().max() < 1e-12
    assert table["another_axis"][0] == pytest.approx(0.1 * 15 / 60, abs=0.01)


@pytest.mark.parametrize(
    "truth",
    [{}, {WEIGHTS: 0.1}, {ROTATION: -0.1}, {WINDOW: 0.1}, {ROTATION: -0.1, WEIGHTS: 0.06}],
    ids=["nothing", "training", "rotation", "window", "two causes"],
)
def test_parts_of_simulated_studies_are_the_truth_within_their_errors(truth):
    """With seven degrees of freedom, two errors hold the truth in 91 of 100."""
    off = []
    for seed in range(100):
        row = attribute([simulated(seed, truth)], numbers=("mean r_q",)).iloc[0]
        off.append([(row[factor] - truth.get(factor, 0.0)) / row[f"{factor}_se"] for factor in FACTORS])
    inside = (np.abs(off) < 2).sum(axis=0)
    assert (inside >= 84).all(), inside
    assert (np.abs(np.mean(off, axis=0)) < 0.4).all()


def study(*steps: Step, **more) -> Results:
    """A study of checkpoints a, b, c, ... whose steps are these."""
    names = [steps[0].before, *(step.after for step in steps)]
    r = np.full((len(names), 20), 0.5)
    found = results(*measured(names, r, r), windows=[256] * (len(names) - 1) + [512])
    return replace(found, causes=attribute(steps), **more)


def test_the_waterfall_goes_from_level_to_level():
    first = replace(simulated(5, {WEIGHTS: 0.1}, changed=(WEIGHTS,)), before="z", after="a")
    whole = simulated(0, {ROTATION: -0.1, WEIGHTS: 0.05})
    found = study(first, whole)
    levels = {"z": 0.3, "a": 0.3 + found.causes["total"][0]}
    heads_ = found.heads.assign(r_q=found.heads["model"].map(levels).fillna(0.0))
    data = draw("causes", replace(found, heads=heads_)).data
    bars = data[(data["number"] == "mean r_q")]
    assert bars["part"].tolist() == ["weights", "weights", "rotation", "window"]
    assert bars["start"].iloc[0] == pytest.approx(0.3)
    np.testing.assert_allclose(bars["stop"].iloc[:-1], bars["start"].iloc[1:])
    blind = replace(
        whole,
        cells={
            c: v for c, v in whole.cells.items() if c in (NONE, cell(WEIGHTS, ROTATION), frozenset(FACTORS))
        },
    )
    assert set(draw("causes", study(blind)).data["part"]) == {"undivided"}
    with pytest.raises(TableError, match="causes were not measured"):
        draw("causes", replace(found, causes=None))
