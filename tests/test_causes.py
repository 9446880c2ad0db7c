"""Causes of changes: effects by hand from four cells, exact sums, errors, and studies whose one cause is known."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest

from qkscope.results.dataset import CellData, CellInfo, dataset
from qkscope.results.tables import CAUSES_COLUMNS, FACTORS, ROTATION, WEIGHTS, WINDOW
from qkscope.results.taxonomy import Thresholds
from qkscope.stats.attribution import causes

GROUPS, HEADS, SHORT, LONG = 8, 60, 256, 512
LAYERS = np.arange(HEADS) // 10
# By role: weights of, settings of, window.
ROLES = {
    "a": ("a", "a", SHORT), "ab": ("a", "b", SHORT), "ba": ("b", "a", SHORT), "b": ("b", "b", SHORT),
    "b0": ("b", "b", LONG),
}  # fmt: skip


def errors(rng: np.random.Generator, size: float = 0.03, shared: float = 0.3) -> dict[str, np.ndarray]:
    """Each group's errors (G, H): a part common to all heads and a part of each head's own."""
    scale = size * math.sqrt(GROUPS)
    return {
        name: rng.normal(0, scale * shared, (GROUPS, 1)) + rng.normal(0, scale, (GROUPS, HEADS))
        for name in ("r_q", "r_k")
    }


def cell(role: str, r_q: np.ndarray, r_k: np.ndarray, noise: Mapping[str, np.ndarray], **more) -> CellData:
    """What a measurement gives: (1 + G, H), the groups' mean and the mean without each, of values off by `noise`."""
    weights, settings, window = ROLES[role]
    arrays = {
        "rope": more.get("rope", np.ones(HEADS)),
        "kv_head": np.zeros(HEADS),
        "depth": LAYERS / LAYERS.max(),
    }
    for name, true in (("r_q", r_q), ("r_k", r_k)):
        groups = np.clip(true + noise[name], -1, 1)
        left = (groups.sum(axis=0) - groups) / (GROUPS - 1)
        arrays[name] = np.concatenate([groups.mean(axis=0, keepdims=True), left])
        arrays[f"pc_{name}"] = arrays[name][0][:, None]
        spread = ((left - left.mean(axis=0)) ** 2).sum(axis=0)
        arrays[f"pc_{name}_se"] = np.sqrt((GROUPS - 1) / GROUPS * spread)[:, None]
    real = weights == settings
    info = CellInfo(
        checkpoint=weights if real else f"{weights}~{settings}",
        window=window,
        own=real and window == {"a": SHORT, "b": LONG}[weights],
        groups=GROUPS,
        weights_of=weights,
        rotation_of=settings,
        settings=f'{{"theta": {ord(settings)}}}',
        texts=more.get("texts", {}).get(weights, "same"),
    )
    return CellData(info, [(int(layer), i % 10) for i, layer in enumerate(LAYERS)], arrays)


def step(seed: int, effects: Mapping[str, float], roles=tuple(ROLES), interaction: float = 0.0, **more):
    """Cells between two checkpoints whose heads' r_q and r_k change by `effects`, one for each factor.

    The documents are the same in all cells, so most of their error is too; each cell adds some of its own.
    """
    rng = np.random.default_rng(seed)
    r_q, r_k = rng.uniform(0.2, 0.6, HEADS), rng.uniform(-0.1, 0.6, HEADS)
    documents = errors(rng)
    cells = []
    for role, (weights, settings, window) in ROLES.items():
        own = errors(rng, 0.01)
        noise = {name: documents[name] + own[name] for name in own}
        on = {WEIGHTS: weights == "b", ROTATION: settings == "b", WINDOW: window == LONG}
        shift = sum(effects.get(factor, 0.0) for factor, there in on.items() if there)
        shift += interaction * (on[WEIGHTS] and on[ROTATION])
        if role in roles:
            cells.append(cell(role, r_q + shift, r_k + shift, noise, **more))
    return dataset(cells)


def nothing_swaps(before: CellInfo, after: CellInfo) -> np.ndarray:
    return np.ones(HEADS)


def table(data, same_axis=nothing_swaps, order=("a", "b")) -> pd.DataFrame:
    return causes(data, order, Thresholds(), same_axis)


def mean(data, name: str, role: str) -> np.ndarray:
    """(1 + G,) of a cell, straight from its values."""
    weights, settings, window = ROLES[role]
    here = (data["weights_of"] == weights) & (data["rotation_of"] == settings) & (data["window"] == window)
    return data[name].to_numpy()[here.to_numpy()][0].mean(axis=1)


def test_effects_are_differences_of_the_cells_in_both_orders():
    data = step(3, {WEIGHTS: 0.05, ROTATION: -0.1, WINDOW: 0.03}, interaction=0.04)
    found = table(data)
    assert list(found.columns) == list(CAUSES_COLUMNS)
    row = found[found["number"] == "mean r_q"].iloc[0]
    at = {role: mean(data, "r_q", role) for role in ROLES}
    expected = {
        "total": at["b0"] - at["a"], "window": at["b0"] - at["b"],
        "rotation_first": at["ab"] - at["a"], "weights_first": at["b"] - at["ab"],
        "weights_other_order": at["ba"] - at["a"], "rotation_other_order": at["b"] - at["ba"],
    }  # fmt: skip
    for name in FACTORS[:2]:
        expected[name] = (expected[f"{name}_first"] + expected[f"{name}_other_order"]) / 2
    for name, values in expected.items():
        left = values[1:]
        assert row[name] == pytest.approx(values[0], abs=1e-12), name
        assert row[f"{name}_se"] == pytest.approx(
            math.sqrt(7 / 8 * ((left - left.mean()) ** 2).sum()), rel=1e-9
        )


def test_parts_sum_to_the_change_in_every_row():
    found = table(step(4, {WEIGHTS: 0.1, ROTATION: -0.2, WINDOW: 0.1}))
    assert "share of position-dominated heads" in set(found["number"])
    for parts in (FACTORS, ("weights_first", "rotation_first", "window")):
        assert (found["total"] - found[list(parts)].sum(axis=1)).abs().max() < 1e-12
    shares = found[found["number"].str.startswith("share of")]
    assert (shares["rotation_se"] > 0).all()


def test_causes_that_interact_have_different_effects_in_the_two_orders():
    row = table(step(5, {WEIGHTS: 0.05, ROTATION: -0.1}, interaction=0.08)).iloc[0]
    gap = row["weights_first"] - row["weights_other_order"]
    assert gap == pytest.approx(0.08, abs=0.02)
    assert row["rotation_first"] - row["rotation_other_order"] == pytest.approx(-gap, abs=1e-12)


def test_settings_that_do_not_change_have_no_part():
    data = step(0, {WEIGHTS: 0.1}, roles=("a", "b", "b0"))
    same = data.assign_coords(settings=("cell", np.full(data.sizes["cell"], '{"theta": 1}', dtype=object)))
    row = table(same).iloc[0]
    assert (row["rotation"], row["rotation_se"]) == (0, 0)
    assert row["weights"] == row["weights_first"] == pytest.approx(0.1, abs=0.02)


def test_without_counterfactuals_weights_and_settings_are_not_separable():
    row = table(step(0, {ROTATION: -0.2, WINDOW: 0.1}, roles=("a", "b", "b0"))).iloc[0]
    assert np.isnan(row[["weights", "rotation", "weights_first", "rotation_first"]].to_numpy(float)).all()
    assert row["window"] == pytest.approx(0.1, abs=0.02)
    assert row["total"] == pytest.approx(-0.1, abs=0.02)


def test_one_counterfactual_gives_the_order_that_it_allows():
    row = table(step(0, {ROTATION: -0.2}, roles=("a", "ab", "b", "b0"))).iloc[0]
    assert row["rotation"] == row["rotation_first"] == pytest.approx(-0.2, abs=0.02)
    assert math.isnan(row["rotation_other_order"])


def test_rope_and_nope_heads_are_never_pooled():
    data = step(6, {WEIGHTS: 0.1}, rope=np.where(LAYERS < 2, 0.0, 1.0))
    found = table(data)
    assert set(found["population"]) == {"RoPE", "NoPE"}
    counts = found[found["number"] == "mean r_q"].set_index("population")["heads"]
    assert (counts["RoPE"], counts["NoPE"]) == (40, 20)
    assert set(table(step(6, {}))["population"]) == {"all"}


def test_unmeasured_heads_are_left_out_of_every_cell():
    data = step(1, {WEIGHTS: 0.1})
    data["r_q"].values[1, :, 5] = np.nan
    row = table(data).iloc[0]
    kept = np.arange(HEADS) != 5
    ends = [data["r_q"].to_numpy()[i, 0, kept].mean() for i in (0, -1)]
    assert row["heads"] == HEADS - 1
    assert row["total"] == pytest.approx(ends[1] - ends[0], abs=1e-12)


def test_effects_are_split_by_heads_that_kept_their_axis_along_the_edge():
    """Fifteen heads change their axis when the settings change, none when the weights do."""

    def same(before: CellInfo, after: CellInfo) -> np.ndarray:
        rotated = before.settings != after.settings
        return np.r_[np.zeros(15), np.ones(45)] if rotated else np.ones(HEADS)

    row = table(step(2, {WEIGHTS: 0.1, ROTATION: -0.2}), same).iloc[0]
    assert row["weights_same_axis"] == pytest.approx(row["weights_first"], abs=1e-12)
    assert row["rotation_same_axis"] == pytest.approx(-0.2 * 45 / 60, abs=0.02)
    unknown = table(step(2, {WEIGHTS: 0.1}), lambda a, b: np.full(HEADS, np.nan)).iloc[0]
    assert math.isnan(unknown["weights_same_axis"])


def test_errors_of_different_texts_add():
    effects = {WEIGHTS: 0.1}
    same, other = (table(step(2, effects, texts=texts)).iloc[0] for texts in ({}, {"b": "other"}))
    assert other["weights"] == pytest.approx(same["weights"], abs=1e-12)
    assert other["weights_se"] > 3 * same["weights_se"]


def test_a_window_that_shrinks_is_an_effect_of_the_window_too():
    """The later checkpoint has the shorter window: the two are compared over that one."""
    data = step(7, {WEIGHTS: 0.1, WINDOW: 0.2})
    names = {"a": "b", "b": "a", "a~b": "b~a", "b~a": "a~b"}
    renamed = {
        name: ("cell", np.array([names[str(x)] for x in data[name].to_numpy()], dtype=object))
        for name in ("checkpoint", "weights_of", "rotation_of")
    }
    row = table(data.assign_coords(renamed)).iloc[0]
    assert row["window"] == pytest.approx(-0.2, abs=0.02)
    assert row["total"] == pytest.approx(-0.3, abs=0.02)


@pytest.mark.parametrize(
    "truth",
    [{}, {WEIGHTS: 0.1}, {ROTATION: -0.1}, {WINDOW: 0.1}, {ROTATION: -0.1, WEIGHTS: 0.06}],
    ids=["nothing", "training", "rotation", "window", "two causes"],
)
def test_parts_of_simulated_studies_are_the_truth_within_their_errors(truth):
    """With seven degrees of freedom, two errors hold the truth in 91 of 100."""
    off = []
    for seed in range(60):
        row = table(step(seed, truth)).iloc[0]
        off.append([(row[factor] - truth.get(factor, 0.0)) / row[f"{factor}_se"] for factor in FACTORS])
    inside = (np.abs(off) < 2).mean(axis=0)
    assert (inside >= 0.82).all(), inside
    assert (np.abs(np.mean(off, axis=0)) < 0.5).all()
