"""Simulated studies whose truth is known: is it the model that changed, or the measurement?

Tables are simulated where only the judgement is at stake; where the standard errors and the null themselves are,
vectors go through the real moments and axes.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from frames import left_out_of
from simulated import ar1, measured, results, truth, units

from qkscope.claims import Claim, claims
from qkscope.measures import measure
from qkscope.measures.cell import Cell, measure_cell
from qkscope.measures.registry import groups
from qkscope.results.dataset import CellData, CellInfo, dataset
from qkscope.results.tables import qk_table, select
from qkscope.stats.evidence import own_evidence
from qkscope.stats.transitions import transition_noise
from qkscope.sums.unit import Unit

STEPS = [f"step{1000 * i}" for i in range(10)]


def by_id(study) -> dict[str, Claim]:
    return {claim.id: claim for claim in claims(study)}


def trending(rng: np.random.Generator, slope: np.ndarray, tokens: int, phi: float = 0.9):
    """Vectors of heads that follow position with `slope` per 2048 tokens, in autocorrelated noise."""

    def vectors(document: int, kind: str) -> np.ndarray:
        x = ar1(rng, (len(slope), 3, tokens), phi).transpose(0, 2, 1) * np.array([2.0, 1.0, 0.5])
        x[:, :, 0] += slope[:, None] * np.arange(tokens) / 2048
        return x

    return vectors


def tables(names: list[str], parts: list[Unit], windows: list[int]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """qk (PC0) and leave-one-out tables of the same units, one window per name."""
    cells = []
    for name, window in zip(names, windows, strict=True):
        numbers = measure_cell(Cell.of(parts, window, 1), [groups()["pca"], groups()["facts"]])
        cells.append(CellData.of(CellInfo(name, window, groups=numbers.groups), numbers))
    data = select(dataset(cells), "own")
    return qk_table(data), left_out_of(data)


def test_a_longer_window_alone_is_said_to_be_the_window_and_not_the_model():
    """One model, measured over 256 and over 2048 tokens, as if it were two checkpoints."""
    rng = np.random.default_rng(0)
    parts = units(40, trending(rng, rng.uniform(1.0, 12.0, 40), 2048), windows=[256, 2048])
    names = ["step0", "step1000"]
    own, matched = tables(names, parts, [256, 2048]), tables(names, parts, [256, 256])
    found = by_id(results(*own, windows=[256, 2048], matched=matched))
    for name in ("position", "long_context"):
        assert found[name].verdict == "flat"
        verdicts = {
            (row.window, row.verdict) for row in found[name].rows if row.from_model and row.measure == "r_q"
        }
        assert {("matched", "flat"), ("own", "rises")} <= verdicts | {("own", "rises")}
        assert not [row for row in found[name].rows if row.window == "matched" and row.verdict == "rises"]


def test_a_model_that_changes_while_the_window_grows_is_not_excused():
    rng = np.random.default_rng(1)
    slope = rng.uniform(1.0, 12.0, 40)
    first = units(40, trending(rng, slope, 2048), windows=[256, 2048])
    second = units(40, trending(rng, slope + 30.0, 2048), windows=[256, 2048])
    own = [tables(["step0"], first, [256]), tables(["step1000"], second, [2048])]
    same = [tables(["step0"], first, [256]), tables(["step1000"], second, [256])]
    joined = [tuple(pd.concat(each) for each in zip(*pair, strict=True)) for pair in (own, same)]
    found = by_id(results(*joined[0], windows=[256, 2048], matched=joined[1]))
    assert found["position"].verdict == "rises"
    assert found["long_context"].verdict == "rises"


def test_heads_that_turn_round_do_not_count_as_a_loss_of_signal():
    """Half of the heads change the sign of r_k while |r_k| grows: mean r_k falls to nothing."""
    r_q, r_k = truth(1, 6)
    r_k = np.abs(r_k)
    r_k[3:] = np.minimum(r_k[3:] + 0.1, 0.97)
    r_k[3:, ::2] *= -1
    study = results(*measured(STEPS[:6], r_q, r_k))
    assert own_evidence(study).direction("abs_r_k", "RoPE") == "rises"
    table = transition_noise(study.own(), STEPS[:6]).set_index("to_model")
    clear = (np.abs(r_k[[2, 3], ::2]) > 0.3).all(axis=0).sum()
    assert abs(table["sign_changes"]["step3000"] - clear) <= 5
    assert table["sign_changes_expected"]["step3000"] < 5


CHANGES = {"rises", "falls", "rises and falls"}


@pytest.mark.slow
def test_noise_alone_is_no_change_of_any_kind():
    """100 studies of ten checkpoints between which nothing happens, as loud as a small corpus makes them."""
    alarms = []
    for seed in range(100):
        noise, shared = (0.01, 0.02, 0.04, 0.06)[seed % 4], (0.0, 0.3, 0.6)[seed % 3]
        study = results(*measured(STEPS, *truth(seed, 10), seed=seed, noise=noise, shared=shared))
        found = claims(study)
        verdicts = {claim.id for claim in found if claim.verdict in CHANGES}
        verdicts |= {row.measure for claim in found for row in claim.rows if row.verdict in CHANGES}
        alarms.append(verdicts)
    assert sum(bool(each) for each in alarms) <= 5, alarms


@pytest.mark.slow
def test_equal_queries_and_keys_are_rarely_told_apart():
    """100 checkpoints whose queries and keys follow position alike: a difference is a false alarm."""
    wrong = 0
    for seed in range(100):
        r_q, _ = truth(seed, 1)
        study = results(*measured(STEPS[:1], r_q, r_q.copy(), seed=seed, noise=0.04, shared=0.6))
        wrong += by_id(study)["queries_keys"].verdict in ("higher", "lower")
    assert wrong <= 5


@pytest.mark.slow
def test_a_rise_of_a_tenth_is_found_where_it_is():
    """100 studies in which r_q of every head rises by 0.1 once, at a checkpoint of its own."""
    missed, elsewhere = 0, 0
    for seed in range(100):
        r_q, r_k = truth(seed, 10)
        place = 1 + seed % 9
        r_q[place:] += 0.1
        evidence = own_evidence(results(*measured(STEPS, r_q, r_k, seed=seed, noise=0.03, shared=0.2)))
        steps = [evidence.step("r_q", "RoPE", checkpoint) for checkpoint in range(1, 10)]
        missed += steps[place - 1].verdict != "rises"
        elsewhere += any(step.clear for step in steps if step.stop != place)
    assert missed <= 5
    assert elsewhere <= 5


@pytest.mark.slow
def test_layers_that_emerge_later_are_not_named_first():
    """60 studies in which layers 1 and 2 get their signal one checkpoint before the other RoPE layers."""
    wrong = 0
    for seed in range(60):
        r_q, r_k = (each[:5] * 0.3 for each in truth(seed, 10))
        layer = np.arange(r_q.shape[1]) // 10
        r_q[2:, (layer == 1) | (layer == 2)] += 0.3
        r_q[3:, ~np.isin(layer, (1, 2))] += 0.3
        study = results(*measured(STEPS[:5], r_q, r_k, seed=seed, noise=0.04, shared=0.5))
        claim = by_id(study)["emergence"]
        wrong += (claim.rows[1].model, claim.rows[1].at in (1, 2)) != (STEPS[2], True)
        wrong += "layers 1 and 2" not in claim.headline
    assert wrong <= 3


def test_class_changes_by_noise_alone_are_foretold_from_the_errors():
    changed, expected = 0.0, 0.0
    for seed in range(10):
        data = results(*measured(STEPS[:4], *truth(seed, 4), seed=seed, noise=0.03)).own()
        table = transition_noise(data, STEPS[:4])
        changed, expected = changed + table["changed"].sum(), expected + table["expected_by_noise"].sum()
    assert expected == pytest.approx(changed, rel=0.15)


def test_jackknife_errors_match_the_spread_over_replications():
    """200 independent replications of one head, in autocorrelated documents, run as 200 heads."""
    rng = np.random.default_rng(3)
    parts = units(200, trending(rng, np.full(200, 40.0), 256), windows=[256], documents=3)
    axes = measure(parts, 256, 1)
    for r, se in ((axes.r_q, axes.r_q_se), (axes.r_k, axes.r_k_se)):
        spread = float(r[:, 0].std(ddof=1))
        assert 0.5 < float(r[:, 0].mean()) < 0.9
        assert float(se[:, 0].mean()) == pytest.approx(spread, rel=0.2)


def test_the_null_is_exceeded_as_often_as_chance_has_it():
    """Heads that ignore position, in autocorrelated documents: 5% are above their null."""
    rng = np.random.default_rng(4)
    above = []
    for _ in range(6):
        parts = units(250, trending(rng, np.zeros(250), 512), windows=[512], documents=1)
        axes = measure(parts, 512, 1)
        above += [np.abs(axes.r_q) > axes.r_q_null, np.abs(axes.r_k) > axes.r_k_null]
    assert 0.03 <= float(np.mean(above)) <= 0.07
