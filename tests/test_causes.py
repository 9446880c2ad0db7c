"""Causes of changes: effects by hand from four cells, exact sums, errors, and studies whose one cause is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from simulate import (
    CASES,
    HEADS,
    LAYERS,
    RESCALING,
    ROLES,
    TEXT,
    answers,
    answers_of_models,
    claim_of,
    rotation_swaps,
    step,
    study,
    study_of_models,
    table,
)
from simulated_models import MODELS, new_weights, pair, trained_and_rescaled

from qkscope.claims import claims
from qkscope.results.tables import CAUSES_COLUMNS, FACTORS, ROTATION, WEIGHTS, WINDOW
from qkscope.stats.attribution import interacts


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
        "interaction": at["b"] - at["ab"] - at["ba"] + at["a"], "weights_and_rotation": at["b"] - at["a"],
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
    assert gap == pytest.approx(row["interaction"], abs=1e-12)
    assert interacts(row)
    assert gap == pytest.approx(0.08, abs=0.02)
    assert row["rotation_first"] - row["rotation_other_order"] == pytest.approx(-gap, abs=1e-12)


def same_settings(seed: int, effects: dict[str, float], **more):
    """A step at which the RoPE settings stay."""
    data = step(seed, effects, roles=("a", "b", "b0"), **more)
    return data.assign_coords(settings=("cell", np.full(data.sizes["cell"], '{"theta": 1}', dtype=object)))


def test_settings_that_do_not_change_have_no_part():
    row = table(same_settings(0, {WEIGHTS: 0.1})).iloc[0]
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
    row = table(step(2, {WEIGHTS: 0.1, ROTATION: -0.2}), rotation_swaps).iloc[0]
    assert row["weights_same_axis"] == pytest.approx(row["weights_first"], abs=1e-12)
    assert row["rotation_same_axis"] == pytest.approx(-0.2 * 45 / 60, abs=0.02)
    unknown = table(step(2, {WEIGHTS: 0.1}), lambda a, b: {}).iloc[0]
    assert math.isnan(unknown["weights_same_axis"])


def test_axes_are_matched_to_heads_by_name():
    """In a study whose heads come in another order than those of the cells whose axes were compared."""
    data = step(2, {WEIGHTS: 0.1, ROTATION: -0.2})
    expected, turned = (
        table(data, rotation_swaps),
        table(data.isel(head=slice(None, None, -1)), rotation_swaps),
    )
    for column in ("weights_same_axis", "rotation_same_axis"):
        np.testing.assert_allclose(turned[column], expected[column], rtol=0, atol=1e-12)


def test_errors_of_different_texts_add():
    effects = {WEIGHTS: 0.1}
    same, other = (table(step(2, effects, texts=texts)).iloc[0] for texts in ({}, {"b": "other"}))
    assert other["weights"] == pytest.approx(same["weights"], abs=1e-12)
    assert other["weights_se"] > 2 * same["weights_se"]


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
    for seed in range(30):
        row = table(step(seed, truth)).iloc[0]
        off.append([(row[factor] - truth.get(factor, 0.0)) / row[f"{factor}_se"] for factor in FACTORS])
    inside = (np.abs(off) < 2).mean(axis=0)
    assert (inside >= 0.82).all(), inside
    assert (np.abs(np.mean(off, axis=0)) < 0.5).all()


# --- what the claim says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", list(CASES))
def test_the_claim_names_the_one_cause_of_a_simulated_study(case):
    """Ten seeds of what `make simulate` counts over a hundred."""
    found = answers(case, range(10))
    assert found["right"] >= 9, found
    assert found["wrong"] <= 1, found


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("case", list(MODELS))
def test_the_claim_names_the_one_change_between_two_models(case):
    """Two seeds of what `make simulate` counts over a hundred; an answer may be unclear, but never wrong."""
    found = answers_of_models(case, range(2))
    assert not found["wrong"], found
    assert found["right"], found


@pytest.mark.usefixtures("one_thread")
def test_no_verdict_or_cause_changes_if_the_later_model_is_also_rescaled():
    """Queries twice, keys half as large: the same attention, another published r."""
    plain, scaled = (study_of_models(pair(1, change)) for change in (new_weights, trained_and_rescaled))
    heads = [each.heads[each.heads["model"] == "b"] for each in (plain, scaled)]
    assert (heads[0]["r_q"] - heads[1]["r_q"]).abs().max() > 0.05
    assert (heads[0]["class"] != heads[1]["class"]).any()
    for name in ("r_q_balanced", "r_k_balanced", "share_positional", "share_key", "share_match"):
        np.testing.assert_allclose(heads[1][name], heads[0][name], rtol=0, atol=1e-6)
    assert heads[0]["score_class"].tolist() == heads[1]["score_class"].tolist()
    tables = [each.causes.set_index("number") for each in (plain, scaled)]
    for name in ("mean share_positional", "mean r_q_balanced", "mean share_match"):
        gap = tables[0].loc[name, ["weights", "weights_se"]] - tables[1].loc[name, ["weights", "weights_se"]]
        assert np.abs(gap.to_numpy(float)).max() < 1e-6
    said = [{claim.id: claim for claim in claims(each)} for each in (plain, scaled)]
    assert said[0]["causes"].verdict == said[1]["causes"].verdict == "training"
    assert said[0]["causes"].headline == said[1]["causes"].headline
    for name in ("position", "scores"):
        assert said[0][name].verdict == said[1][name].verdict
        assert said[0][name].headline == said[1][name].headline


def test_two_causes_are_both_within_two_errors_and_in_the_order_of_training():
    inside = []
    for seed in range(20):
        claim = claim_of(seed, {ROTATION: -0.1, WEIGHTS: 0.06})
        rows = [row for row in claim.rows if row.measure == "share_positional"]
        assert [row.effect for row in rows][:3] == ["rotation_first", "weights_first", "window"]
        assert claim.headline.index("RoPE settings") < claim.headline.index("training")
        inside += [
            abs(row.value - true) < 2 * row.se for row, true in zip(rows[:2], (-0.1, 0.06), strict=True)
        ]
    assert np.mean(inside) >= 0.82  # with seven degrees of freedom, two errors hold the truth in 91 of 100


def test_interaction_is_said_where_the_two_orders_differ_and_seldom_elsewhere():
    claim = claim_of(1, {WEIGHTS: 0.1, ROTATION: -0.1}, interaction=0.08)
    row = next(row for row in claim.rows if row.effect == "interaction")
    assert row.verdict == "higher"
    assert row.value == pytest.approx(0.08, abs=0.02)
    assert "interact" in claim.detail
    said = sum("interact" in claim_of(seed, {WEIGHTS: 0.1}).detail for seed in range(20))
    assert said <= 2


def test_what_is_not_separable_is_told_with_the_reason():
    data = step(0, {ROTATION: -0.1}, roles=("a", "b", "b0"), scores=True)
    why = "from a to b, the effects of training and RoPE settings are not separable, because it has no frequencies"
    found = study(data, provenance={"warnings": [why]})
    claim = next(each for each in claims(found) if each.id == "causes")
    assert claim.verdict == "not separable"
    assert "it has no frequencies" in claim.caveat
    assert claim.rows[0].effect == "weights_and_rotation"
    assert claim.rows[0].value == pytest.approx(-0.1, abs=0.02)


def test_text_that_differs_is_never_left_out_of_the_weights_part():
    claim = claim_of(3, {TEXT: 0.2})
    assert claim.verdict == "training and text"
    weights = [row for row in claim.rows if row.effect == "weights_first"]
    assert all("text" in row.what for row in weights)
    assert "not separable" in claim.headline


def test_rescaling_queries_against_keys_is_not_called_training():
    """Published r_q rises and |r_k| falls; balanced r and score shares stay."""
    found = {each.id: each for each in claims(study(step(4, {RESCALING: 0.1}, scores=True)))}
    assert "training" not in found["causes"].headline
    assert "coordinates" in found["causes"].headline
    assert "coordinates" not in found["long_context"].detail, "settings changed too"
    found = {each.id: each for each in claims(study(same_settings(4, {RESCALING: 0.1}, scores=True)))}
    assert found["causes"].verdict == "coordinates only"
    assert all("coordinates" in found[name].detail for name in ("position", "long_context"))
    trained = {each.id: each for each in claims(study(same_settings(4, {WEIGHTS: 0.1}, scores=True)))}
    assert not [each for each in trained.values() if "coordinates" in each.detail + each.headline]


def test_the_part_of_heads_that_kept_their_axis_is_told():
    found = study(step(2, {ROTATION: -0.2}, scores=True), rotation_swaps)
    claim = next(each for each in claims(found) if each.id == "causes")
    kept = {row.effect: row.value for row in claim.rows if row.measure == "r_q"}
    assert kept["rotation_same_axis"] == pytest.approx(0.75 * kept["rotation_first"], abs=0.01)
    assert "kept their first axis" in claim.detail


def test_rope_and_nope_heads_have_effects_of_their_own():
    claim = claim_of(6, {WEIGHTS: 0.1}, rope=np.where(LAYERS < 2, 0.0, 1.0))
    assert [row.population for row in claim.rows[:3]] == ["RoPE"] * 3
    assert {row.population for row in claim.rows} == {"RoPE", "NoPE"}
