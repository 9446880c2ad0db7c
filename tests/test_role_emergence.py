"""Roles over training and rank correlations with behaviour, on simulated studies with a known truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr
from simulated import anatomy, measured, results, truth

from qkscope.claims import claims
from qkscope.results import Results
from qkscope.results.roles import ROLES, standings
from qkscope.stats.behaviour import rank_correlations, role_emergence
from qkscope.stats.evidence import own_evidence

NAMES = ("step-0", "step-10", "step-20", "step-40", "step-80")
HEADS, NOISE = 120, 0.01
SINK = ROLES[0]


def study(values: dict[str, np.ndarray], seed: int = 0) -> Results:
    """Heads with these true scores (checkpoints, heads); nothing else changes."""
    qk, loo = measured(NAMES, *truth(seed, len(NAMES)), seed=seed)
    rope = qk[qk["model"] == NAMES[0]]["rope"].to_numpy()
    more, more_loo = anatomy(NAMES, values, rope, seed=seed, noise=NOISE)
    keys = ["model", "layer", "head"]
    qk = qk.merge(more[[*keys, *values]], on=keys)
    loo = loo.merge(more_loo[[*keys, "group", *values]], on=[*keys, "group"])
    return results(qk, loo, windows=[256] * len(NAMES))


def scores(**roles: np.ndarray) -> dict[str, np.ndarray]:
    """True scores of every role: far below its threshold unless given."""
    low = np.zeros((len(NAMES), HEADS))
    return {role.variable: roles.get(role.name.replace("-", "_"), low) for role in ROLES}


def sinks_from(step: int, heads: list[int]) -> np.ndarray:
    found = np.zeros((len(NAMES), HEADS))
    found[step:, heads] = SINK.threshold + 0.3
    return found


def test_a_role_is_acquired_in_the_interval_in_which_it_was_planted() -> None:
    found = role_emergence(own_evidence(study(scores(sink=sinks_from(2, [0, 1, 41])))), SINK, "RoPE")
    assert [(each.layer, each.head, each.after, each.by) for each in found.acquired] == [
        (0, 0, 1, 2), (0, 1, 1, 2), (4, 1, 1, 2),
    ]  # fmt: skip
    assert found.counts == (0, 0, 3, 3, 3)
    assert found.lost == ()


def test_a_role_that_is_lost_again_was_not_acquired() -> None:
    planted = sinks_from(1, [5])
    planted[4, 5] = 0.0
    found = role_emergence(own_evidence(study(scores(sink=planted))), SINK, "RoPE")
    assert found.acquired == ()
    assert found.lost == ((0, 5),)


def test_a_checkpoint_that_errors_leave_open_neither_begins_nor_ends_a_role() -> None:
    planted = sinks_from(1, [7])
    planted[2, 7] = SINK.threshold
    found = role_emergence(own_evidence(study(scores(sink=planted))), SINK, "RoPE")
    assert [(each.after, each.by) for each in found.acquired] == [(0, 1)]


def test_populations_are_apart() -> None:
    """Layers 3, 7 and 11 have no rotary embedding."""
    both = own_evidence(study(scores(sink=sinks_from(1, [0, 30, 31]))))
    assert role_emergence(both, SINK, "RoPE").counts[-1] == 1
    assert role_emergence(both, SINK, "NoPE").counts[-1] == 2


def test_intervals_hold_the_truth_in_most_studies() -> None:
    """Scores that rise through the threshold: the interval holds the crossing in at least 95 of 100 cases."""
    rng, right, named = np.random.default_rng(0), 0, 0
    for seed in range(8):
        rise = np.sort(rng.uniform(0.2, 0.4, (len(NAMES), 40)), axis=0)
        planted = np.zeros((len(NAMES), HEADS))
        planted[:, :40] = rise
        found = role_emergence(own_evidence(study(scores(sink=planted), seed)), SINK, "RoPE")
        for each in found.acquired:
            course = rise[:, each.layer * 10 + each.head] > SINK.threshold
            crossing = int(np.argmax(course)) if course.any() else len(NAMES)
            named += 1
            right += crossing <= each.by and (each.after is None or crossing > each.after)
    assert named > 100
    assert right >= 0.95 * named


def test_standings_follow_the_interval_of_each_head() -> None:
    planted = np.zeros((len(NAMES), HEADS))
    planted[:, 0], planted[:, 1] = 0.9, SINK.threshold
    found = standings(own_evidence(study(scores(sink=planted))).data, SINK)
    assert (found[:, 0] == 1).all()
    assert (found[:, 2:] == -1).all()
    assert (found[:, 1] == 0).sum() >= 3


def behaving(seed: int = 0, inverse: bool = False) -> Results:
    """Attention follows position's share; balanced r and published r know nothing of it."""
    rng = np.random.default_rng(seed + 1000)
    share = np.tile(rng.uniform(0, 1, HEADS), (len(NAMES), 1))
    values = scores() | {
        "share_position": share,
        "attn_by_position": 0.2 + 0.6 * share,
        "role_local": np.tile(rng.uniform(0, 1, HEADS), (len(NAMES), 1)),
        "sink_score": np.tile(rng.uniform(0, 1, HEADS), (len(NAMES), 1)),
        "r_q_balanced": np.tile(rng.uniform(-1, 1, HEADS), (len(NAMES), 1)),
        "r_k_balanced": np.zeros((len(NAMES), HEADS)),
    }
    if inverse:
        published = np.abs(truth(seed, len(NAMES))[0])
        values["attn_by_position"] = 0.9 - 0.6 * published
    return study(values, seed)


def test_rank_correlations_equal_scipy() -> None:
    found = behaving()
    evidence = own_evidence(found)
    heads = found.heads[(found.heads["model"] == NAMES[-1]) & (found.heads["rope"] == 1)]
    for each in rank_correlations(evidence, "RoPE", len(NAMES) - 1):
        x, y = (heads[name.removeprefix("abs_")] for name in (each.geometry, each.behaviour))
        x = x.abs() if each.geometry.startswith("abs_") else x
        assert each.value == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)
        assert each.heads == len(heads)
        assert np.isfinite(each.se)


def test_the_claim_names_the_measure_that_predicts() -> None:
    by_id = {claim.id: claim for claim in claims(behaving())}
    claim = by_id["behaviour"]
    assert claim.verdict == "higher"
    assert claim.rows[0].measure == "share_position~attn_by_position"
    assert claim.rows[0].value > 0.95


def test_a_measure_that_predicts_the_opposite_is_not_worse() -> None:
    """|r_q| ranks heads in reverse; position's share knows nothing."""
    claim = {claim.id: claim for claim in claims(behaving(inverse=True))}["behaviour"]
    assert claim.verdict == "unclear"
    assert claim.rows[1].value < -0.9


def test_no_role_is_claimed_where_there_is_none() -> None:
    claim = {claim.id: claim for claim in claims(study(scores()))}["roles"]
    assert claim.verdict == "level"
    assert all(row.value == 0 for row in claim.rows)


def test_the_claim_counts_heads_and_names_the_interval() -> None:
    claim = {c.id: c for c in claims(study(scores(sink=sinks_from(2, [0, 1, 41]))))}["roles"]
    assert claim.verdict == "rises"
    assert claim.rows[0].value == 3
    assert "between step-10 and step-20" in claim.headline
