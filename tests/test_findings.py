"""Tests of significance, changes, transitions and what the claims say of studies one can see through."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from simulated import measured, results, truth

from qkscope.causes_table import CAUSES_COLUMNS
from qkscope.findings import VERDICTS, Claim, Row, claims, summary
from qkscope.findings.claim import ROW_VERDICTS
from qkscope.inference.course import direction, jumps, plateaus
from qkscope.inference.series import Series, change, judged
from qkscope.inference.significance import holm, normal_cdf, t_quantile, two_sided_p
from qkscope.inference.transitions import (
    FAINT,
    Pair,
    beyond_noise,
    noise_transitions,
    perhaps_beyond_noise,
    transition_noise,
    transitions_into,
    turn_chances,
    unchanged,
)
from qkscope.taxonomy import CLASSES, classify
from qkscope.timeline import Stop

VIEWS = {"causes", "signal", "taxonomy", "portrait", "depth", "head", "table", "methods"}
STEPS = [f"step{1000 * i}" for i in range(8)]


def by_id(study) -> dict[str, Claim]:
    return {claim.id: claim for claim in claims(study)}


@pytest.mark.parametrize("df", [1, 2, 3, 4, 7, 8, 14, 15, 31])
def test_students_t_is_exact(df):
    for t in (0.0, 0.3, 1.0, 2.4, 7.0, 30.0):
        assert two_sided_p(-t, df) == pytest.approx(2 * stats.t.sf(t, df), abs=1e-13)
    for p in (0.0005, 0.3, 0.5, 0.9, 0.975, 0.99999):
        assert t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-9, abs=1e-12)
    assert math.isnan(two_sided_p(math.nan, df))


def test_normal_cdf_of_any_shape():
    z = np.linspace(-9, 9, 50).reshape(5, 10)
    assert normal_cdf(z) == pytest.approx(stats.norm.cdf(z), abs=1e-14)


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
    assert unpaired.se == pytest.approx(math.hypot(series.se(0), a_se(series.values[1][1:-1])), rel=1e-9)
    assert unpaired.df == 6


def a_se(values: np.ndarray) -> float:
    count = len(values)
    return float(np.sqrt((count - 1) / count * ((values - values.mean()) ** 2).sum()))


def stops(steps: list[int | None]) -> list[Stop]:
    return [Stop(f"m{i}", f"m{i}", "Stage 1", step=step) for i, step in enumerate(steps)]


def jumps_of(values: list[float], steps: list[int | None]) -> list[tuple[int, bool]]:
    changes = [c for c in judged([a_series(values)]) if c.kind == "step"]
    return [(jump.change.stop, jump.placed) for jump in jumps(changes, stops(steps))]


def test_a_jump_stands_out_and_a_steady_climb_has_none():
    assert jumps_of([0.2, 0.2, 0.21, 0.4, 0.4], [None] * 5) == [(3, True)]
    climbing = [0.1, 0.2, 0.3, 0.4, 0.5]
    assert all(c.clear for c in judged([a_series(climbing)]))
    assert jumps_of(climbing, [None] * 5) == []


def test_a_jump_is_judged_per_training_step_and_placed_only_in_a_short_interval():
    rising = [0.2, 0.4, 0.45, 0.5, 0.55]
    assert jumps_of(rising, [0, 100, 200, 300, 400]) == [(1, True)]
    # the same rise per training step throughout: one long interval is no jump
    assert jumps_of(rising, [0, 400, 500, 600, 700]) == []
    # it stands out in both ways, but lies anywhere within 1.16 million steps
    assert jumps_of([0.2, 0.9, 0.92, 0.94, 0.96], [40_000, 1_200_000, 1_400_000, 1_600_000, 1_800_000]) == [
        (1, False)
    ]


def test_certain_but_tiny_changes_are_not_clear():
    assert not any(c.clear for c in judged([a_series([0.2, 0.21, 0.2, 0.219], spread=1e-5)]))


def test_no_error_at_all_is_no_certainty_about_a_change_of_nothing():
    still = Series("x", (np.full(9, 0.3), np.full(9, 0.3), np.full(9, 0.5)))
    found = judged([still])
    assert [c.verdict for c in found] == ["no change", "rises", "rises"]


def test_two_groups_cannot_pass_the_test():
    two = Series("x", (np.array([0.2, 0.2, 0.2001]), np.array([0.9, 0.9, 0.9001])))
    assert [c.verdict for c in judged([two])] == ["cannot tell"]


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
        assert series.large(series.at(1) - series.at(0))
        assert series.large(series.at(0) - series.at(1))
    assert not Series("share", (), heads=48).large(1 / 48)
    assert not Series("share", (), heads=300).large(5 / 300)
    assert Series("share", (), heads=300).large(6 / 300)


def test_a_slow_turn_back_is_found_though_no_step_shows_it():
    values = [0.2, 0.3, 0.4, 0.5, 0.485, 0.47, 0.455, 0.44]
    found = judged([a_series(values)])
    falls = [(c.start, c.stop) for c in found if c.verdict == "falls"]
    assert falls == [(3, 7)]
    assert direction(found) == "rises and falls"


def test_plateaus_are_the_longest_runs_within_a_width():
    values = [0.1, 0.3, 0.305, 0.31, 0.6, 0.601, 0.602, 0.7]
    assert plateaus(a_series(values, spread=1e-4)) == [(1, 3), (4, 6)]
    assert plateaus(a_series(values, spread=0.05)) == []
    assert plateaus(a_series([0.1, 0.1])) == []


def a_pair(r_q, r_k, se=0.02, same_axis=np.nan) -> Pair:
    r_q, r_k = np.asarray(r_q, dtype=float), np.asarray(r_k, dtype=float)
    errors = (np.full(r_q.shape, se), np.full(r_k.shape, se))
    return Pair(
        "a", "b", r_q, r_k, *errors, np.broadcast_to(np.asarray(same_axis, dtype=float), r_q.shape[1:])
    )


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
    assert pair.reversed.tolist() == [True, True, False, False, True]
    assert turn_chances(pair)[1] == 0.0


def test_claims_say_how_many_changes_are_another_axis_becoming_the_first():
    r_q, r_k = np.full((2, 60), 0.5), np.full((2, 60), 0.8)
    r_k[1, :20] = -0.8
    r_q[1, 20:36] = 0.9
    study = results(*measured(["step1", "step2"], r_q, r_k, noise=0.01))
    stayed = np.r_[np.ones(8), np.zeros(12), np.ones(12), np.zeros(28)]
    second = study.heads["model"] == "step2"
    heads = study.heads.assign(same_axis=np.nan)
    heads.loc[second, "same_axis"] = stayed
    found = by_id(replace(study, heads=heads))
    assert found["sign_changes"].headline.startswith("8 of 60 heads change the sign of r_k")
    assert (
        "r_k has the other sign 12 times because another axis became the first"
        in found["sign_changes"].detail
    )
    assert "12 of 16 changes of class are on the same axis" in found["transitions"].detail
    assert "same axis" not in by_id(study)["transitions"].detail


def test_heads_without_an_error_are_left_out_and_counted():
    r_q, r_k = np.full((2, 60), 0.2), np.full((2, 60), 0.2)
    r_q[1, :12], r_k[1, :12] = 0.9, 0.9
    study = results(*measured(["step1", "step2"], r_q, r_k, noise=0.01))
    lost = (study.heads["model"] == "step2") & (study.heads.groupby("model").cumcount() < 3)
    heads = study.heads.copy()
    heads.loc[lost, ["r_q_se", "r_k_se"]] = np.nan
    heads["same_axis"] = np.where(heads.groupby("model").cumcount() < 5, 0.0, 1.0)
    found = by_id(replace(study, heads=heads))
    assert found["sign_changes"].verdict == "no"
    assert found["transitions"].verdict == "yes"
    assert found["transitions"].headline.startswith("12 of 60 heads")
    assert found["feeds"].headline.startswith(
        "9 of 9 entries into the position-dominated class are of content-"
    )
    assert "Of those from content-focused, 2 enter because another axis" in found["feeds"].detail
    for name in ("sign_changes", "transitions", "feeds"):
        assert found[name].doubt.startswith("At one step three heads have no standard error")
    assert not by_id(study)["transitions"].doubt
    # So many could hide some that turn; and where most are not known, nothing is.
    for count, verdict, said in ((7, "cannot tell", "No head"), (30, "cannot tell", "0 of 60 heads")):
        heads.loc[heads.groupby("model").cumcount() < count, ["r_q_se", "r_k_se"]] = np.nan
        claim = by_id(replace(study, heads=heads))["sign_changes"]
        assert claim.verdict == verdict
        assert claim.headline.startswith(said)


def test_what_came_to_the_untrained_model_is_said_against_it():
    names = ["step0", "step1000", "step2000"]
    r_q = np.linspace([0.02] * 60, [0.6] * 60, 3)
    study = results(*measured(names, r_q, r_q, noise=0.005))
    parts = pd.DataFrame({"from_model": names[:2], "to_model": names[1:], "number": "mean r_q"})
    parts = parts.assign(total=0.29, weights=[0.29, 0.4], rotation=[0.0, -0.11], window=0.0)
    parts = parts.reindex(columns=list(CAUSES_COLUMNS)).fillna({"groups": 8, "same_text": 1.0})
    said = by_id(study)["signal"]
    assert "Untrained, at step0, 0 do in their queries and 0 in their keys" in said.detail
    assert said.detail.endswith("mean r_q has since changed by +0.579 ± 0.002.")
    assert said.doubt == ""
    told = by_id(replace(study, causes=parts))["signal"].detail
    assert told.endswith("+0.579 ± 0.002: training +0.69, rotation −0.11.")
    level = results(*measured(names, np.full((3, 60), 0.4), np.full((3, 60), 0.4), noise=0.005))
    assert by_id(level)["signal"].doubt.startswith("No fewer do so untrained")
    later = tuple(replace(stop, step=stop.step + 1000) for stop in study.timeline.stops)
    begun = replace(study, timeline=replace(study.timeline, stops=later))
    assert "Untrained" not in by_id(begun)["signal"].detail


def test_a_head_that_really_moved_says_little_about_noise():
    pair = a_pair([[0.5], [0.9]], [[0.9], [0.9]], se=0.01)
    assert unchanged(pair.r_q, pair.se_q)[0] == pytest.approx(0.515)
    assert noise_transitions(pair)[4, 0].sum() < 1e-6


def test_transition_noise_has_a_row_per_step_and_admits_what_it_does_not_know():
    r_q, r_k = truth(0, 3)
    heads = results(*measured(STEPS[:3], r_q, r_k)).heads
    table = transition_noise(heads, STEPS[:3])
    assert list(table["to_model"]) == STEPS[1:3]
    assert (table["expected_by_noise"] > 1).all()
    bare = transition_noise(heads.drop(columns=["r_q_se", "r_k_se"]), STEPS[:3])
    assert bare["changed"].tolist() == table["changed"].tolist()
    assert bare["expected_by_noise"].isna().all()
    assert transition_noise(heads, STEPS[:1]).empty


def test_flows_name_the_class_that_feeds():
    before_q, before_k = np.full(100, 0.85), np.full(100, 0.1)
    after_k = np.where(np.arange(100) < 40, 0.85, 0.1)
    flows = transitions_into([a_pair([before_q, before_q], [before_k, after_k])], "position-dominated")
    feeding = flows[flows["feeds"]]
    assert feeding["class"].tolist() == ["Q-positional"]
    assert feeding["entered"].tolist() == [40]


def growing() -> pd.DataFrame:
    """r_q rises at first, rests; content-focused heads become position-dominated at the second checkpoint."""
    r_q, r_k = truth(5, len(STEPS))
    r_q, r_k = r_q * 0.2, np.abs(r_k) * 0.2
    r_q[1:, :90], r_k[1:, :90] = 0.85, 0.85
    r_q[1:, 90:] += 0.4
    return r_q, r_k


def row(claim: Claim, what: str, to: str, since: str | None = None, window: str = "own") -> Row:
    return next(
        r
        for r in claim.rows
        if (r.what, r.to_model, r.window) == (what, to, window) and since in (None, r.from_model)
    )


def test_a_study_that_learns_is_told_so():
    found = by_id(results(*measured(STEPS, *growing(), noise=0.01)))
    assert found["r_q"].verdict == "rises"
    assert found["r_q"].headline.endswith("mean r_q 0.10 → 0.77")
    assert "from 0.104 ± 0.001 (step0) to 0.768 ± 0.002 (step7000)" in found["r_q"].detail
    assert found["content_vanishes"].verdict == "yes"
    assert "from step1000 on" in found["content_vanishes"].headline
    assert found["feeds"].verdict == "yes"
    assert (
        found["feeds"].headline
        == "90 of 90 entries into the position-dominated class are of content-focused heads"
    )
    assert found["jumps"].verdict == "yes"
    assert "between step0 and step1000" in found["jumps"].headline
    assert row(found["jumps"], "mean r_q", "step1000").verdict == "rises"
    assert found["plateaus"].verdict == "yes"
    assert "from step1000 to step7000" in found["plateaus"].headline
    assert found["sign_changes"].verdict == "no"
    assert found["signal"].verdict == "yes"
    assert found["classes"].verdict == "yes"
    assert found["majority"].verdict == "yes"
    assert found["depth_r_q"].verdict == "rises"


def test_a_fall_is_told():
    r_q, r_k = growing()
    r_q[4:] -= 0.2
    found = by_id(results(*measured(STEPS, r_q, r_k, noise=0.01)))
    assert found["r_q"].verdict == "rises and falls"
    assert "falls between step3000 and step4000 (−0.20" in found["r_q"].detail
    down = by_id(results(*measured(STEPS, r_q[::-1].copy(), r_k[::-1].copy(), noise=0.01)))
    assert down["depth_r_q"].verdict == "falls"


def test_layers_and_rotation_are_compared_within_the_last_checkpoint():
    r_q, r_k = (np.full((2, 120), 0.5) for _ in range(2))
    layer = np.arange(120) // 10
    r_q[:, layer <= 3] = r_k[:, layer <= 3] = 0.8
    r_q[:, layer % 4 == 3] = 0.2
    found = by_id(results(*measured(STEPS[:2], r_q, r_k, noise=0.02)))
    assert found["early_layers"].verdict == "yes"
    assert "mong layers with RoPE" in found["early_layers"].detail
    assert found["rope"].verdict == "in part"  # queries differ, keys do not
    flipped = by_id(results(*measured(STEPS[:2], r_q[:, ::-1], r_k[:, ::-1], noise=0.02)))
    assert flipped["early_layers"].verdict == "no"


def test_long_context_is_known_by_the_names_or_by_the_window():
    names = ["stage1-step-1000", "stage1-step-2000", "lc-4k-to-32k-step-100", "lc-4k-to-32k-step-200"]
    r_q, r_k = truth(7, 4)
    r_k = np.abs(r_k)
    r_k[2:] -= 0.1
    found = by_id(results(*measured(names, r_q, r_k, noise=0.01)))
    assert found["long_context"].verdict == "falls"
    assert "mean r_k falls" in found["long_context"].headline
    assert "long_context" not in by_id(results(*measured(STEPS[:4], r_q, r_k, noise=0.01)))
    tables = measured(STEPS[:4], r_q, r_k, noise=0.01)
    widened = by_id(results(*tables, windows=[256, 256, 1024, 1024], matched=tables))
    assert widened["long_context"].verdict == "falls"
    assert widened["window"].verdict == "yes"
    assert "over the same tokens, about as much" in widened["window"].detail


def test_windows_that_differ_without_a_common_one_leave_the_question_open():
    r_q, r_k = truth(7, 3)
    r_q[2] += 0.2
    found = by_id(results(*measured(STEPS[:3], r_q, r_k, noise=0.01), windows=[256, 256, 1024]))
    assert found["window"].verdict == "cannot tell"
    assert found["r_q"].verdict == "cannot tell"
    assert "no common one was measured" in found["r_q"].doubt
    assert "rises" not in found["r_q"].headline
    assert row(found["r_q"], "mean r_q", "step2000", "step0").verdict == "rises"


def test_own_and_matched_window_both_answer_where_windows_grow():
    r_q, r_k = truth(7, 3)
    tables = measured(STEPS[:3], r_q, r_k, noise=0.01)
    r_q[2] += 0.2
    wide = measured(STEPS[:3], r_q, r_k, noise=0.01)
    found = by_id(results(*wide, windows=[256, 256, 1024], matched=tables))["window"]
    assert found.verdict == "no"
    assert row(found, "mean r_q", "step2000", "step1000").value == pytest.approx(0.2, abs=0.02)
    assert row(found, "mean r_q", "step2000", "step1000", "matched").verdict != "rises"
    alone = row(found, "mean r_q, own window minus first 256 tokens", "step2000")
    assert alone.value == pytest.approx(0.2)
    bare = results(wide[0], None, windows=[256, 256, 1024], matched=(tables[0], None))
    silent = by_id(bare)["window"]
    assert "groups of heads, not of documents" in silent.doubt
    assert "nan" not in silent.answer


def test_every_claim_has_a_verdict_a_view_and_survives_json():
    study = results(*measured(STEPS, *growing(), noise=0.01))
    found = claims(study)
    assert found is claims(study)
    assert len({claim.id for claim in found}) == len(found)
    for claim in found:
        assert claim.verdict in VERDICTS
        assert claim.view in VIEWS
        assert claim.rule.endswith(".")
        assert all(r.verdict in ROW_VERDICTS for r in claim.rows)
    text = json.dumps(summary(study), allow_nan=False)
    first = json.loads(text)["findings"][0]
    assert first["answer"] == found[0].answer
    assert first["numbers"][0]["what"] == found[0].rows[0].what
    assert {
        "id",
        "question",
        "answer",
        "numbers",
        "uncertainty",
        "verdict",
        "headline",
        "detail",
        "window",
        "view",
    } <= set(first)


@pytest.mark.parametrize("missing", ["loo", "errors", "null", "rope", "variance"])
def test_tables_without_some_columns_are_read_as_far_as_they_go(missing):
    qk, loo = measured(STEPS[:4], *(each[:4] for each in growing()), noise=0.01)
    dropped = {
        "errors": ["r_q_se", "r_k_se"],
        "null": ["r_q_null", "r_k_null"],
        "rope": ["rope"],
        "variance": ["explained_variance"],
    }.get(missing, [])
    qk[dropped] = np.nan
    if missing == "variance":
        loo[dropped] = np.nan
    study = results(qk, None if missing in ("loo", "errors") else loo)
    found = by_id(study)
    json.dumps(summary(study), allow_nan=False)
    assert not any("nan" in claim.answer for claim in found.values())
    if missing in ("loo", "errors"):
        # the same judge for figures and findings: heads instead of documents, and it says so
        assert found["r_q"].verdict == "rises"
        assert "groups of heads, not of documents" in found["r_q"].doubt
        assert "no groups of documents" in found["r_q"].rule
    if missing == "errors":
        assert (
            found["feeds"].verdict
            == found["transitions"].verdict
            == found["sign_changes"].verdict
            == "cannot tell"
        )
    if missing == "null":
        assert found["signal"].verdict == "cannot tell"
    if missing == "rope":
        assert found["rope"].verdict == "cannot tell"
    if missing == "variance":
        assert "variance" not in found


def test_few_heads_without_groups_and_two_groups_leave_everything_open():
    qk, _ = measured(STEPS[:3], *(each[:3, :12] for each in growing()), noise=0.01)
    bare = by_id(results(qk, None))
    assert bare["r_q"].verdict == "cannot tell"
    assert "Without errors" in bare["r_q"].doubt
    two = by_id(results(*measured(STEPS[:3], *(each[:3] for each in growing()), noise=0.01, groups=2)))
    assert two["r_q"].verdict == "cannot tell"
    assert "Two groups of documents cannot pass the test" in two["r_q"].doubt
    assert not any("rises" in r.verdict for claim in two.values() for r in claim.rows)


def test_rotation_is_not_asked_where_every_layer_rotates():
    qk, loo = measured(STEPS[:2], *truth(0, 2))
    assert "rope" not in by_id(results(qk.assign(rope=1.0), loo))


def test_one_checkpoint_has_no_course():
    found = by_id(results(*measured(STEPS[:1], *truth(0, 1))))
    assert set(found) == {"signal", "course", "queries_or_keys", "majority", "depths", "early_layers", "rope"}
    assert found["course"].verdict == "cannot tell"


def test_models_are_compared_as_models():
    r_q, r_k = truth(0, 3)
    r_q[1] += 0.1
    found = by_id(results(*measured(["a/one", "b/two", "c/three"], r_q, r_k, noise=0.01), kind="models"))
    assert set(found) == {"signal", "models", "queries_or_keys", "majority", "depths", "early_layers", "rope"}
    assert found["models"].verdict == "yes"
    assert "highest in b/two" in found["models"].answer


def test_heads_measured_only_sometimes_are_left_out_and_counted():
    qk, loo = measured(STEPS[:3], *truth(0, 3), noise=0.01)
    qk.loc[(qk["model"] == STEPS[1]) & (qk["layer"] == 0), ["r_q", "r_k"]] = np.nan
    found = by_id(results(qk, loo))
    assert "10 heads not measured throughout are left out" in found["r_q"].rule
    assert any("10 of 120 heads" in text for text in summary(results(qk, loo))["warnings"])


def test_a_signal_no_larger_than_its_null_is_no_signal():
    qk, loo = measured(STEPS[:2], *truth(0, 2))
    found = by_id(results(qk.assign(r_q_null=0.95, r_k_null=0.95), loo))
    assert found["signal"].verdict == "no"
    assert "classed as positional by size of r alone" in found["signal"].doubt


def test_summary_has_headline_numbers_and_marks_what_cannot_be_compared():
    tables = measured(STEPS[:3], *truth(0, 3))
    study = results(*tables, windows=[256, 256, 1024], matched=tables)
    gap = Stop("step9000", "step9000", "Stage 1", missing="the hub does not have it")
    study = replace(
        study,
        timeline=replace(study.timeline, stops=(*study.timeline.stops, gap)),
        provenance={"warnings": ["three documents are short"]},
    )
    found = summary(study)
    last = found["checkpoints"][2]
    assert last["own"]["mean_r_q"] == pytest.approx(tables[0].groupby("model")["r_q"].mean()["step2000"])
    assert last["matched"]["class"]["mixed"]["heads"] > 0
    assert found["checkpoints"][3]["own"] is None
    assert len(found["transitions"]) == 2
    assert found["warnings"][0] == "three documents are short"
    assert any("the hub does not have it" in text for text in found["warnings"])
    assert any("compare them over the matched window" in text for text in found["warnings"])


def test_sign_changes_between_noise_and_clear_are_left_open():
    """Twelve of 48 heads where four are expected: too many to be called noise, too few to be sure."""
    chances = np.full(48, 4.0 / 48)
    assert not beyond_noise(12, chances, 48)
    assert perhaps_beyond_noise(12, chances, 48)
    assert not perhaps_beyond_noise(9, chances, 48)
    assert beyond_noise(18, chances, 48)
