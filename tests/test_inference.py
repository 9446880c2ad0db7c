"""Tests of significance, changes, emergence and transitions by noise alone; the numbers of summary.json."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from simulated import measured, results, truth

from qkscope.claims import summary
from qkscope.results.taxonomy import CLASSES, classify
from qkscope.stats.levels import CONFIDENCE, holm, margin, two_sided_p
from qkscope.stats.series import Series, change, direction, emergence_of, judged
from qkscope.stats.transitions import (
    FAINT,
    Pair,
    noise_transitions,
    transition_noise,
    turn_chances,
    unchanged,
)
from qkscope.study.timeline import TimelineCheckpoint

STEPS = [f"step{1000 * i}" for i in range(8)]


@pytest.mark.parametrize("df", [1, 2, 3, 4, 7, 8, 14, 15, 31])
def test_students_t_is_exact(df):
    for t in (0.0, 0.3, 1.0, 2.4, 7.0, 30.0):
        assert two_sided_p(-t, 1.0, df) == pytest.approx(2 * stats.t.sf(t, df), abs=1e-13)
    assert margin(0.1, df) == pytest.approx(0.1 * stats.t.ppf((1 + CONFIDENCE) / 2, df), rel=1e-9)
    assert math.isnan(two_sided_p(math.nan, 1.0, df))
    assert math.isnan(two_sided_p(1.0, math.nan, df))
    assert (two_sided_p(0.0, 0.0, df), two_sided_p(0.1, 0.0, df)) == (1.0, 0.0)


def test_holm_steps_down_and_skips_what_was_not_tested():
    assert holm([0.01, 0.04, 0.03, math.nan], 0.05) == [True, False, False, False]
    assert holm([0.01, 0.02, 0.03, math.nan], 0.05) == [True, True, True, False]
    assert holm([], 0.05) == []


def a_series(values: list[float], spread: float = 0.001, groups: int = 8, name: str = "x") -> Series:
    rng = np.random.default_rng(len(values))
    return Series(name, tuple(np.r_[v, v + rng.normal(0, spread, groups)] for v in values))


def test_a_difference_is_paired_over_the_groups():
    shared = np.linspace(-0.1, 0.1, 8)
    own = np.array([1, -1, 1, -1, 1, -1, 1, -1]) * 1e-3
    series = Series("x", (np.r_[0.3, 0.3 + shared], np.r_[0.4, 0.4 + shared + own]))
    found = change(series, 0, 1)
    assert found.delta == pytest.approx(0.1)
    assert found.df == 7
    assert found.se == pytest.approx(math.sqrt(7 / 8 * 8 * 1e-6), rel=1e-9)
    unpaired = change(Series("x", (series.values[0], series.values[1][:-1])), 0, 1)
    assert unpaired.se == pytest.approx(
        math.hypot(a_se(series.values[0][1:]), a_se(series.values[1][1:-1])), rel=1e-9
    )
    assert unpaired.df == 6


def a_se(values: np.ndarray) -> float:
    count = len(values)
    return float(np.sqrt((count - 1) / count * ((values - values.mean()) ** 2).sum()))


def test_certain_but_tiny_changes_are_not_clear():
    assert not any(c.clear for c in judged([a_series([0.2, 0.21, 0.2, 0.219], spread=1e-5)]))


def test_no_error_at_all_is_no_certainty_about_a_change_of_nothing():
    still = Series("x", (np.full(9, 0.3), np.full(9, 0.3), np.full(9, 0.5)))
    found = judged([still])
    assert [c.verdict for c in found] == ["flat", "rises", "rises"]


def test_two_groups_cannot_pass_the_test():
    two = Series("x", (np.array([0.2, 0.2, 0.2001]), np.array([0.9, 0.9, 0.9001])))
    assert [c.verdict for c in judged([two])] == ["unclear"]


def test_a_share_that_no_left_out_group_moves_is_not_certain():
    """Two of 48 heads: the jackknife sees no error, but heads sit on the edge of their class."""
    values = tuple(np.full(9, heads / 48) for heads in (10, 12))
    assert not judged([Series("share", values, heads=48, unseen=(0.5 / 48**2,) * 2)])[0].clear
    many = tuple(np.full(9, heads / 48) for heads in (10, 32))
    assert judged([Series("share", many, heads=48, unseen=(0.5 / 48**2,) * 2)])[0].clear


def test_whole_heads_are_compared_as_whole_numbers():
    """(37 - 35) / 48 and (35 - 33) / 48 differ in the last bit; both are two heads."""
    for first in range(46):
        series = Series("share", (np.full(9, first / 48), np.full(9, (first + 2) / 48)), heads=48)
        assert change(series, 0, 1).large
        assert change(series, 1, 0).large

    def large(members: int, heads: int) -> bool:
        return change(Series("share", (np.zeros(9), np.full(9, members / heads)), heads), 0, 1).large

    assert not large(1, 48)
    assert not large(5, 300)
    assert large(6, 300)


def test_a_slow_turn_back_is_found_though_no_step_shows_it():
    values = [0.2, 0.3, 0.4, 0.5, 0.485, 0.47, 0.455, 0.44]
    found = judged([a_series(values)])
    falls = [(c.start, c.stop) for c in found if c.verdict == "falls"]
    assert falls == [(3, 7)]
    assert direction(found) == "rises and falls"


def test_layers_emerge_where_they_have_half_of_their_rise():
    many = {
        3: a_series([0.1, 0.5, 0.6, 0.6], name="3"),
        5: a_series([0.1, 0.12, 0.5, 0.6], name="5"),
        7: a_series([0.1, 0.1, 0.1, 0.1], name="7"),
        8: a_series([0.3, 0.1, 0.4, 0.5], name="8"),
    }
    found = emergence_of(many)
    assert (found.checkpoint, found.first) == (1, (3,))
    assert dict(found.by_checkpoint) == {1: (3,), 2: (5, 8)}
    assert found.risen == {3, 5, 8}


def test_layers_that_errors_do_not_tell_apart_emerge_together():
    """The second layer is just below half of its rise when the first is above it."""
    close = {0: a_series([0.1, 0.36, 0.6], name="0"), 1: a_series([0.1, 0.3495, 0.6], name="1")}
    assert (emergence_of(close).first, emergence_of(close).perhaps) == ((0,), (1,))
    apart = {0: a_series([0.1, 0.5, 0.6], name="0"), 1: a_series([0.1, 0.2, 0.6], name="1")}
    assert (emergence_of(apart).first, emergence_of(apart).perhaps) == ((0,), ())


def test_layers_that_lose_their_rise_again_are_known():
    many = {
        0: a_series([0.1, 0.5, 0.6, 0.15], name="0"),
        1: a_series([0.1, 0.5, 0.6, 0.5], name="1"),
    }
    found = emergence_of(many)
    assert (found.first, found.lost) == ((0, 1), (0,))


def test_where_no_layer_rises_nothing_emerges():
    still = {0: a_series([0.4, 0.4, 0.4], name="0"), 1: a_series([0.3, 0.301, 0.3], name="1")}
    assert (emergence_of(still).first, emergence_of(still).verdict) == ((), "flat")
    loud = {0: a_series([0.4, 0.42, 0.41], spread=0.05, name="0")}
    assert (emergence_of(loud).first, emergence_of(loud).verdict) == ((), "unclear")


def a_pair(r_q, r_k, se=0.02, same_axis=np.nan) -> Pair:
    r_q, r_k = np.asarray(r_q, dtype=float), np.asarray(r_k, dtype=float)
    errors = (np.full(r_q.shape, se), np.full(r_k.shape, se))
    return Pair(r_q, r_k, *errors, np.broadcast_to(np.asarray(same_axis, dtype=float), r_q.shape[1:]))


def test_noise_transitions_are_chances():
    rng = np.random.default_rng(0)
    pair = a_pair(rng.uniform(0, 1, (2, 50)), rng.uniform(-1, 1, (2, 50)))
    flows = noise_transitions(pair)
    assert flows.shape == (len(CLASSES), len(CLASSES), 50)
    assert flows.min() >= -1e-12
    assert flows.sum(axis=(0, 1)) == pytest.approx(np.ones(50))


def test_class_changes_by_noise_alone_are_foretold():
    """Heads measured twice with noise and no change: the expectation is what is seen, over many heads."""
    rng = np.random.default_rng(1)
    true_q, true_k = rng.uniform(0, 1, 40_000), rng.uniform(-1, 1, 40_000)
    pair = a_pair(
        true_q + rng.normal(0, 0.04, (2, 40_000)), true_k + rng.normal(0, 0.04, (2, 40_000)), se=0.04
    )
    names = classify(pair.r_q, pair.r_k)
    seen = float((names[0] != names[1]).mean())
    expected = float((1 - np.einsum("aah->h", noise_transitions(pair))).mean())
    assert expected == pytest.approx(seen, rel=0.05)


def test_sign_changes_by_noise_alone_are_foretold_where_the_axis_is_oriented_by_faint_queries():
    rng = np.random.default_rng(2)
    true_q, true_k = rng.uniform(0, 0.3, 40_000), rng.uniform(-0.5, 0.5, 40_000)
    q, k = true_q + rng.normal(0, 0.05, (2, 40_000)), true_k + rng.normal(0, 0.05, (2, 40_000))
    leading = np.where(np.abs(q) < FAINT, k, q)
    sign = np.where(leading < 0, -1.0, 1.0)
    pair = a_pair(q * sign, k * sign, se=0.05)
    assert turn_chances(pair).mean() == pytest.approx(pair.turned.mean(), rel=0.15)


def test_a_sign_changes_only_along_one_axis_and_from_clearly_one_to_clearly_the_other():
    r_k = [[0.8, 0.8, 0.8, 0.1, -0.8], [-0.8, -0.8, -0.2, -0.8, 0.8]]
    pair = a_pair(np.full((2, 5), 0.5), r_k, same_axis=[1, 0, 1, 1, np.nan])
    assert pair.turned.tolist() == [True, False, False, False, True]
    assert turn_chances(pair)[1] == 0.0


def test_a_head_that_really_moved_says_little_about_noise():
    pair = a_pair([[0.5], [0.9]], [[0.9], [0.9]], se=0.01)
    assert unchanged(pair.r_q, pair.se_q)[0] == pytest.approx(0.515)
    assert noise_transitions(pair)[4, 0].sum() < 1e-6


def test_transition_noise_has_a_row_per_step_and_admits_what_it_does_not_know():
    r_q, r_k = truth(0, 3)
    data = results(*measured(STEPS[:3], r_q, r_k)).own()
    table = transition_noise(data, STEPS[:3])
    assert list(table["to_model"]) == STEPS[1:3]
    assert (table["expected_by_noise"] > 1).all()
    qk, _ = measured(STEPS[:3], r_q, r_k)
    bare = transition_noise(results(qk.drop(columns=["r_q_se", "r_k_se"]), None).own(), STEPS[:3])
    assert bare["changed"].tolist() == table["changed"].tolist()
    assert bare["expected_by_noise"].isna().all()
    assert transition_noise(data, STEPS[:1]).empty


def test_summary_has_headline_numbers_and_marks_what_cannot_be_compared():
    tables = measured(STEPS[:3], *truth(0, 3))
    study = results(*tables, windows=[256, 256, 1024], matched=tables)
    gap = TimelineCheckpoint("step9000", "step9000", "Stage 1", missing="the hub does not have it")
    study = replace(
        study,
        timeline=replace(study.timeline, checkpoints=(*study.timeline.checkpoints, gap)),
        provenance={"warnings": ["three documents are short"]},
    )
    found = summary(study)
    last = found["checkpoints"][2]
    mean = tables[0].groupby("model")["r_q"].mean()["step2000"]
    assert last["own"]["published_protocol"]["mean_r_q"] == pytest.approx(mean)
    heads = tables[0].query("model == 'step2000'")
    for population, flag in (("RoPE", 1), ("NoPE", 0)):
        numbers, some = last["own"]["populations"][population], heads[heads["rope"] == flag]
        assert numbers["heads"] == len(some) == sum(each["heads"] for each in numbers["class"].values())
        assert numbers["mean_r_q"] == pytest.approx(some["r_q"].mean())
        above = (some["r_q"].abs() > some["r_q_null"]).mean()
        assert numbers["above_null_q"] == pytest.approx(above)
    assert last["matched"]["published_protocol"]["class"]["mixed"]["heads"] > 0
    assert found["checkpoints"][3]["own"] is None
    assert len(found["transitions"]) == 2
    assert found["warnings"][0] == "three documents are short"
    assert any("the hub does not have it" in text for text in found["warnings"])
    assert any("was measured over" in text and "compare them" in text for text in found["warnings"])
