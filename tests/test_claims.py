"""Claims against their own data: every number and verdict recomputed by other code, and studies of known truth."""

from __future__ import annotations

import io
import json
import math
import re
from collections import defaultdict
from dataclasses import replace
from itertools import combinations
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import simulate
import xarray as xr
from frames import left_out_of, with_values
from published import published_results
from scipy import stats
from simulated import measured, results, truth
from whole_study import gone, whole

from qkscope.claims import VERDICTS, Claim, Row, all_claims, claims, summary
from qkscope.claims.claim import View
from qkscope.claims.context import Context
from qkscope.claims.trends import long_context
from qkscope.results import Results
from qkscope.results.taxonomy import CLASSES, classify
from qkscope.stats import levels
from qkscope.stats.evidence import own_evidence
from qkscope.stats.series import turns
from qkscope.words import MINUS
from qkscope.words import measured as printed
from studies import models, training, with_components

STEPS = [f"step{1000 * i}" for i in range(8)]
IDS = {
    *(
        "position",
        "emergence",
        "scores",
        "wavelengths",
        "classes",
        "queries_keys",
        "long_context",
        "linearity",
    ),
    *("distance", "plasticity", "causes"),
}
VIEWS = set(get_args(View))


def learning(seed: int = 5, checkpoints: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Content-focused heads become position-dominated, then some turn round; r_q falls at the end."""
    r_q, r_k = truth(seed, checkpoints)
    r_q, r_k = r_q * 0.2, np.abs(r_k) * 0.2
    r_q[1:, :70], r_k[1:, :70] = 0.85, 0.85
    r_k[3:, :40] *= -1
    r_q[1:, 70:] += 0.3
    r_q[-1] -= 0.15
    return r_q, r_k


def widening() -> Results:
    """The last three checkpoints over a longer window, in which r_q is higher and r_k is not."""
    r_q, r_k = learning()
    matched = measured(STEPS, r_q, r_k, noise=0.01)
    wide_q, wide_k = r_q.copy(), r_k.copy()
    wide_q[5:] = np.minimum(wide_q[5:] + 0.2, 0.97)
    own = measured(STEPS, wide_q, wide_k, noise=0.01)
    return results(*own, windows=[256] * 5 + [1024] * 3, matched=matched)


def lost() -> Results:
    """A layer is not measured at one checkpoint, and a head loses its axis in one left-out sample."""
    study = whole()
    data = study.matched().load()
    r = {name: data[name].to_numpy().copy() for name in ("r_q", "r_k")}
    layer, number = data["layer"].to_numpy(), data["number"].to_numpy()
    for values in r.values():
        values[1, :, layer == 0] = np.nan
        values[2, 4, (layer == 1) & (number == 2)] = np.nan
    return with_values(study, "matched", **r)


def not_matched(study: Results) -> Results:
    return replace(study, data=study.data.isel(cell=~study.data["matched"].to_numpy()))


def a_study(kind: str) -> Results:
    learned = measured(STEPS, *learning(), noise=0.02)
    return {
        "whole": whole,
        "one population": lambda: whole(populations=False),
        "lost heads": lost,
        "learning": lambda: results(*learned),
        "falling": lambda: results(*measured(STEPS, *(each[::-1].copy() for each in learning()), noise=0.02)),
        "noise": lambda: results(*measured(STEPS, *truth(3, 8), noise=0.05, shared=0.6)),
        "two groups": lambda: results(*measured(STEPS, *learning(), noise=0.02, groups=2)),
        "bare table": lambda: results(learned[0], None),
        "few heads": lambda: results(*measured(STEPS, *(each[:, :8] for each in learning()), noise=0.02)),
        "widening": widening,
        "not matched": lambda: not_matched(widening()),
        "two checkpoints": lambda: results(*measured(STEPS[:2], *learning(checkpoints=2), noise=0.02)),
        "one checkpoint": lambda: with_components(training(1), 3),
        "models": lambda: models(["Llama", "Qwen", "Qwen"]),
        "causes": lambda: simulate.study(
            simulate.step(
                5, {"weights": 0.1, "rotation": -0.06, "window": 0.04}, interaction=0.05, scores=True
            )
        ),
        "published": published_results,
        "published cells": lambda: published_results("cells"),
    }[kind]()


KINDS = (
    *("whole", "one population", "lost heads", "learning", "falling", "noise", "two groups", "bare table"),
    *("few heads", "widening", "not matched", "two checkpoints", "one checkpoint", "models", "published"),
    *("published cells", "causes"),
)


@pytest.fixture(scope="module", params=KINDS)
def study(request) -> Results:
    return a_study(request.param)


def by_id(study: Results) -> dict[str, Claim]:
    return {claim.id: claim for claim in claims(study)}


def every_claim(study: Results) -> dict[str, Claim]:
    """The claims that a study allows, also those beyond the number that is kept."""
    return {claim.id: claim for claim in all_claims(study)}


# --- what every claim is ------------------------------------------------------------------------------------------


def test_claims_are_few_ranked_and_complete(study):
    found = claims(study)
    assert all_claims(study) is all_claims(study), "they are found once"
    assert 1 <= len(found) <= 10
    assert len({claim.id for claim in found}) == len(found)
    assert [claim.surprise for claim in found] == sorted((claim.surprise for claim in found), reverse=True)
    for claim in found:
        assert claim.id in IDS
        assert claim.verdict in VERDICTS
        assert claim.see.view in VIEWS
        assert claim.see.checkpoint in study.timeline.models
        assert all((claim.question, claim.headline, claim.detail, claim.meaning, claim.rule))
        assert "nan" not in f"{claim.headline} {claim.detail} {claim.meaning} {claim.caveat} {claim.rule}"
        assert all(row.verdict in VERDICTS for row in claim.rows)
    text = json.loads(json.dumps(summary(study), allow_nan=False))
    assert [each["id"] for each in text["findings"]] == [claim.id for claim in found]
    assert text["findings"][0]["numbers"][0]["value"] == pytest.approx(found[0].rows[0].value)


def test_everything_measured_gives_every_claim():
    for made in (whole(), whole(populations=False)):
        found = every_claim(made)
        assert set(found) == IDS
        least = min(found.values(), key=lambda claim: claim.surprise)
        assert set(by_id(made)) == IDS - {least.id}, "ten are kept"
    assert set(every_claim(gone(whole(), 1))) >= {"position", "emergence", "classes", "long_context"}


def test_a_bare_table_gives_claims_from_r_alone():
    found = by_id(published_results())
    assert set(found) == {"position", "classes", "queries_keys", "long_context"}
    assert {row.measure for claim in found.values() for row in claim.rows} <= {
        *("r_q", "abs_r_k", "r_q-abs_r_k"),
        *CLASSES,
    }


def test_populations_are_never_pooled(study):
    ropes = set(study.heads["rope"].dropna())
    for claim in claims(study):
        assert {row.population for row in claim.rows} <= ({"RoPE", "NoPE"} if len(ropes) == 2 else {"all"})
        if len(ropes) < 2:
            assert not re.search(
                "(RoPE|NoPE) (heads|layers)", f"{claim.headline} {claim.detail} {claim.meaning}"
            )


# --- numbers, recomputed from the tables --------------------------------------------------------------------------


def as_written(table: pd.DataFrame) -> pd.DataFrame:
    """A table as a reader of its CSV file has it."""
    return pd.read_csv(io.StringIO(table.to_csv(index=False)))


Tables = dict[str, pd.DataFrame]


def tables_of(study: Results) -> Tables:
    """By window, heads with every measure, one row a checkpoint and head, as they are written."""
    found = {"own": study.heads, "matched": study.matched_heads}
    return {window: as_written(heads) for window, heads in found.items() if heads is not None}


def heads_of(tables: Tables, row: Row) -> pd.DataFrame:
    """The heads that a row is about, at every checkpoint; for a change, those that every checkpoint has."""
    heads = tables[row.window]
    if row.population != "all":
        heads = heads[heads["rope"] == (1 if row.population == "RoPE" else 0)]
    if row.measure in R_MEASURES:
        heads = heads[np.isfinite(heads["r_q"] + heads["r_k"])]
    if row.from_model is not None and row.measure not in CLASSES:
        everywhere = heads.groupby(["layer", "head"])["model"].transform("size") == heads["model"].nunique()
        heads = heads[everywhere]
    return heads


R_MEASURES = {"r_q", "abs_r_k", "abs_r_q", *CLASSES}
COLUMNS = {
    "share_positional": lambda t: t["share_position"] + t["share_query_position"],
    "abs_r_k": lambda t: t["r_k"].abs(),
    "abs_r_q": lambda t: t["r_q"].abs(),
}


def recomputed(study: Results, tables: Tables, row: Row, model: str) -> float:
    """The number of a row at one checkpoint."""
    if row.measure == "signal_q":
        return wave_share(study, row, model)
    if row.measure == "score":
        return score(study, row, model)
    first, _, second = row.measure.partition("-")
    if second and row.measure not in CLASSES:  # a difference between two measures
        one, other = (replace(row, measure=name) for name in (first, second))
        return recomputed(study, tables, one, model) - recomputed(study, tables, other, model)
    heads = heads_of(tables, row)
    heads = heads[heads["model"] == model]
    if row.at is not None:
        heads = heads[heads["layer"] == row.at]
    if row.measure in CLASSES:
        return float((classify(heads["r_q"], heads["r_k"]) == row.measure).sum())
    if row.measure.startswith("score_class "):
        share = heads["share_position"] + heads["share_query_position"]
        kinds = np.where(share > 0.6, "positional", np.where(share < 0.4, "content", "mixed"))
        return float((kinds == row.measure.split()[1]).sum())
    values = COLUMNS[row.measure](heads) if row.measure in COLUMNS else heads[row.measure]
    return float(np.nanmean(values))


def window_of(study: Results, row: Row, model: str) -> xr.Dataset:
    data = study.matched() if row.window == "matched" else study.own()
    return data.sel(checkpoint=model).load()


def wave_share(study: Results, row: Row, model: str) -> float:
    data = window_of(study, row, model)
    shares, weights = [], []
    waves = data["wavelength"].to_numpy()[:, 1:]
    for head, size in enumerate(data["signal_q"].to_numpy()[:, 1:]):
        if np.isfinite(size).all():
            shares.append(np.abs(size[waves[head] == row.at])[0] / np.abs(size).sum())
            weights.append(abs(size.sum()))
    return float(np.average(shares, weights=weights))


def score(study: Results, row: Row, model: str) -> float:
    data = window_of(study, row, model)
    wanted = {"RoPE": 1.0, "NoPE": 0.0}.get(row.population)
    here = np.isfinite(data["rope"]) if wanted is None else data["rope"] == wanted
    return float(np.mean(data["distance_score"].sel(distance=int(row.at)).to_numpy()[here.to_numpy()]))


def effect(study: Results, row: Row) -> float:
    """A cause's effect: means over the heads of the cells of each role, added up."""
    data, infos = study.data.load(), study.data.coords
    window = {name: int(study.own().sel(checkpoint=name)["window"]) for name in (row.from_model, row.model)}
    common = min(window.values())

    def at(weights: str, settings: str, tokens: int) -> float:
        same = (infos["weights_of"] == weights) & (infos["rotation_of"] == settings)
        same = same & (infos["window"] == tokens)
        cell = data.isel(cell=int(np.flatnonzero(same.to_numpy())[0]))
        here = (
            cell["depth"].notnull() if row.population == "all" else cell["rope"] == (row.population == "RoPE")
        )
        return float(cell[row.measure].isel(sample=0).to_numpy()[here.to_numpy()].mean())

    a, b = row.from_model, row.model
    exchanged = len(set(infos["settings"].to_numpy().tolist())) > 1
    cells = {
        "window": lambda: at(b, b, window[b]) - at(b, b, common) + at(a, a, common) - at(a, a, window[a]),
        "rotation_first": lambda: at(a, b, common) - at(a, a, common),
        "weights_first": lambda: at(b, b, common) - at(a, b if exchanged else a, common),
        "interaction": lambda: at(b, b, common) - at(a, b, common) - at(b, a, common) + at(a, a, common),
    }
    # No head of these studies changes its axis.
    return cells[row.effect.replace("_same_axis", "_first")]()


def test_every_level_and_change_is_recomputed(study):
    tables = tables_of(study)
    for claim in claims(study):
        for row in claim.rows:
            if row.effect:
                value = effect(study, row)
                assert row.value == pytest.approx(value, abs=1e-9), (claim.id, row)
                continue
            value = recomputed(study, tables, row, row.model)
            if row.from_model is not None:
                value -= recomputed(study, tables, row, row.from_model)
            assert row.value == pytest.approx(value, abs=1e-9), (claim.id, row)


def numbers_in(text: str) -> list[str]:
    return re.findall(rf"(?<![\w.])[+{MINUS}]?\d[\d,]*(?:\.\d+)?%?", text)


def test_the_headline_prints_its_first_rows_over_the_claims_window(study):
    for claim in claims(study):
        row = claim.rows[0]
        assert row.window == claim.window
        assert row.population == claim.see.population
        text = printed(row.value, math.nan, row.unit, signed=False).split(" ")[0]
        if row.unit == "logits":
            text = f"{abs(row.value):.1f}"
        if row.effect:
            size = f"{100 * abs(row.value):.0f}" if row.unit == "share" else f"{abs(row.value):.2f}"
            text = size if row.verdict != "flat" else "2" if row.unit == "share" else "0.02"
        assert text in numbers_in(claim.headline), (claim.headline, text)


def test_headline_picture_and_rows_are_of_one_measure(study):
    for claim in claims(study):
        if claim.see.view in ("signal", "emergence", "scores"):
            assert claim.see.measure == claim.rows[0].measure


def test_errors_of_levels_are_over_documents():
    study = whole()
    row = by_id(study)["position"].rows[0]
    data = study.matched().sel(checkpoint=row.model)
    means = data["share_positional"].to_numpy()[1:, data["rope"].to_numpy() == 1].mean(axis=1)
    groups = len(means)
    assert row.se == pytest.approx(
        np.sqrt((groups - 1) / groups * ((means - means.mean()) ** 2).sum()), rel=1e-9
    )


def test_the_matched_window_leads_where_there_is_one():
    for claim in claims(whole()):
        assert claim.window == "matched"
    assert {claim.window for claim in claims(a_study("learning"))} == {"own"}


# --- verdicts agree with their numbers ----------------------------------------------------------------------------


def test_no_two_claims_contradict(study):
    """Every number has one value and one verdict, whichever claim has it."""
    seen: dict[tuple, set] = defaultdict(set)
    for claim in claims(study):
        for row in claim.rows:
            key = (row.measure, row.population, row.from_model, row.model, row.window, row.at, row.effect)
            seen[key].add((round(row.value, 12), row.verdict))
            if row.verdict in ("rises", "higher"):
                assert row.value > 0
            if row.verdict in ("falls", "lower"):
                assert row.value < 0
            if row.verdict == "flat":
                assert abs(row.value) < levels.SMALLEST
    assert {key: told for key, told in seen.items() if len(told) > 1} == {}


def test_a_direction_is_that_of_its_change(study):
    for name in ("position", "plasticity", "long_context"):
        claim = by_id(study).get(name)
        if claim is None or claim.verdict not in ("rises", "falls", "flat"):
            continue
        first = claim.rows[0]
        changes = [
            row
            for row in claim.rows
            if row.from_model
            and (row.measure, row.population, row.window) == (first.measure, first.population, claim.window)
        ]
        assert [row.verdict for row in changes] == [claim.verdict]


def left_out(study: Results, window: str, measure: str, population: str) -> list[np.ndarray]:
    """By checkpoint, a mean or class share and the same without each group of documents, straight from the tables."""
    heads = study.heads if window == "own" else study.matched_heads
    loo = left_out_of(study.own() if window == "own" else study.matched())
    flag = {"RoPE": 1, "NoPE": 0}[population]

    def number(t: pd.DataFrame) -> float:
        t = t[t["rope"] == flag]
        if measure in CLASSES:
            return float(np.mean(classify(t["r_q"], t["r_k"]) == measure))
        return float((COLUMNS[measure](t) if measure in COLUMNS else t[measure]).mean())

    found = []
    for model in study.timeline.models:
        rope = heads[heads["model"] == model][["layer", "head", "rope"]]
        parts = loo[loo["model"] == model].merge(rope, on=["layer", "head"])
        whole = number(heads[heads["model"] == model])
        found.append(np.array([whole, *(number(part) for _, part in parts.groupby("group"))]))
    return found


def paired(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """A difference and its paired jackknife error."""
    gone = (after - before)[1:]
    return float(after[0] - before[0]), float(np.sqrt((len(gone) - 1) * np.mean((gone - gone.mean()) ** 2)))


@pytest.mark.parametrize("kind", ["learning", "falling", "noise", "widening"])
def test_every_verdict_of_a_change_is_recomputed(kind):
    """The whole family of tests anew: every step, whole and swing of every series, by Holm's method."""
    study = a_study(kind)
    models = study.timeline.models
    for window in ("own", "matched") if study.matched() is not None else ("own",):
        tests = []
        for population in ("RoPE", "NoPE"):
            for measure in ("r_q", "abs_r_k", *CLASSES):
                values = left_out(study, window, measure, population)
                tests += family(measure, population, values, study, window)
        order = sorted(tests, key=lambda t: t["p"])
        passing = True
        for rank, test in enumerate(order):
            passing = passing and test["p"] <= levels.STUDY_LEVEL / (len(order) - rank)
            test["clear"] = passing and test["large"]
        wanted = {t["key"]: t for t in tests}
        checked = 0
        for row in (row for claim in claims(study) for row in claim.rows):
            key = (row.measure, row.population, row.from_model, row.model)
            if row.window != window or key not in wanted or row.effect:
                continue
            test = wanted[key]
            expected = ("rises" if test["delta"] > 0 else "falls") if test["clear"] else test["else"]
            assert row.verdict == expected, (row, test)
            assert row.se == pytest.approx(test["se"], rel=1e-6) or row.measure in CLASSES
            checked += 1
        assert checked >= 2, models


def family(
    measure: str, population: str, values: list[np.ndarray], study: Results, window: str
) -> list[dict]:
    """All tests of one series: plain scipy, plain loops."""
    models = study.timeline.models
    last, share = len(values) - 1, measure in CLASSES
    first = study.heads[study.heads["model"] == models[0]]
    heads = int((first["rope"] == {"RoPE": 1, "NoPE": 0}[population]).sum())
    extra = [unseen(measure, population, study, window, model) if share else 0.0 for model in models]
    errors = {
        (i, j): np.hypot(paired(values[i], values[j])[1], np.sqrt(extra[i] + extra[j]))
        for i, j in combinations(range(last + 1), 2)
    }
    usual = np.mean([errors[i, i + 1] ** 2 for i in range(last)])
    every = [*((i, i + 1, 1) for i in range(last)), (0, last, 1)]
    at = [v[0] for v in values]
    for sign in (-1, 1):
        i, j = max(combinations(range(last + 1), 2), key=lambda p: sign * (at[p[1]] - at[p[0]]))
        if 1 < j - i < last and sign * (at[j] - at[i]) > 0:
            every.append((i, j, len(errors)))
    found = []
    for i, j, looks in every:
        se, df = np.sqrt(max(errors[i, j] ** 2, (errors[i, j] ** 2 + usual) / 2)), 2 * (len(values[0]) - 2)
        delta = at[j] - at[i]
        p = min(1.0, looks * (2 * stats.t.sf(abs(delta) / se, df) if se > 0 else float(delta == 0)))
        smallest = max(2, np.ceil(0.02 * heads - 1e-9)) / heads if share else 0.02
        large = abs(delta) > smallest - (0.5 / heads if share else 0.0) if share else abs(delta) >= smallest
        ruled_out = not large and abs(delta) + stats.t.ppf(0.975, df) * se < smallest
        key = (measure, population, models[i], models[j])
        outcome = {"key": key, "delta": delta, "p": p, "large": large, "se": errors[i, j]}
        found.append(outcome | {"else": "flat" if ruled_out else "unclear"})
    return found


def unseen(kind: str, population: str, study: Results, window: str, model: str) -> float:
    """Variance of a share from heads near their thresholds: chance times counter-chance, at least half a head."""
    table = study.heads if window == "own" else study.matched_heads
    t = table[(table["model"] == model) & (table["rope"] == {"RoPE": 1, "NoPE": 0}[population])]

    def above(x: pd.Series, se: pd.Series, limit: float) -> np.ndarray:
        return stats.norm.sf(limit, x, se)

    q_high, q_low = above(t["r_q"], t["r_q_se"], 0.7), 1 - above(t["r_q"], t["r_q_se"], 0.3)
    k = t["r_k"], t["r_k_se"]
    k_high, k_low = above(*k, 0.7) + 1 - above(*k, -0.7), above(*k, -0.3) - above(*k, 0.3)
    chances = dict(
        zip(CLASSES, (q_high * k_high, q_high * k_low, q_low * k_high, q_low * k_low), strict=False)
    )
    chances["mixed"] = 1 - sum(chances.values())
    p = chances[kind]
    return max(0.5, float(np.sum(p * (1 - p)))) / len(t) ** 2


# --- studies of known truth ---------------------------------------------------------------------------------------


def test_a_whole_study_is_told_as_it_is():
    found = every_claim(whole())
    position = found["position"]
    assert position.verdict == "rises"
    assert [row.value for row in position.rows[:3]] == pytest.approx([0.6, 0.05, 0.05], abs=0.02)
    assert [row.population for row in position.rows[:3]] == ["RoPE", "RoPE", "NoPE"]
    assert position.surprise == max(claim.surprise for claim in found.values())
    first, then = found["emergence"].rows[:2]
    assert first.at == then.at
    assert first.at in (4, 5)
    assert (first.model, then.model) == ("stage1-step-0", "stage1-step-50")
    assert "layers 4 and 5" in found["emergence"].headline
    assert found["scores"].verdict == "majority"
    assert found["scores"].see.measure == "share_positional"
    assert found["wavelengths"].verdict == "majority"
    assert found["wavelengths"].rows[0].at == 400
    assert found["queries_keys"].verdict == "higher"
    assert found["distance"].verdict == "higher"
    assert found["plasticity"].verdict == "flat"
    assert found["linearity"].verdict == "higher"
    assert found["linearity"].see.measure == "eta_k"
    counts = {(row.population, row.measure): row.value for row in found["classes"].rows if not row.from_model}
    assert counts["RoPE", "mixed"] == 90
    assert counts["NoPE", "content-focused"] == 30


def test_the_long_context_step_is_told_over_both_windows():
    claim = long_context(Context(whole()))
    assert claim.verdict in ("flat", "unclear")
    assert claim.see.measure == "share_positional"
    change = {(row.measure, row.window): row for row in claim.rows if row.from_model}
    assert change["abs_r_k", "matched"].value == pytest.approx(-0.15, abs=0.02)
    assert change["abs_r_k", "own"].value == pytest.approx(0.15, abs=0.02)
    assert change["abs_r_k", "own"].verdict == "rises"
    assert change["share_positional", "matched"].verdict in ("flat", "unclear")


def test_the_long_context_onset_is_known_by_names_or_windows():
    names = ["stage1-step-1000", "stage1-step-2000", "lc-4k-to-32k-step-100", "lc-4k-to-32k-step-200"]
    r_q, r_k = truth(7, 4)
    r_k = np.abs(r_k)
    r_k[2:] -= 0.1
    r_q[2:] -= 0.1
    named = by_id(results(*measured(names, r_q, r_k, noise=0.01)))["long_context"]
    assert (named.rows[0].model, named.rows[1].model) == (names[1], names[2])
    assert "long_context" not in by_id(results(*measured(STEPS[:4], r_q, r_k, noise=0.01)))
    tables = measured(STEPS[:4], r_q, r_k, noise=0.01)
    widened = by_id(results(*tables, windows=[256, 256, 1024, 1024], matched=tables))["long_context"]
    assert widened.verdict == "falls"
    assert widened.window == "matched"


def test_windows_that_differ_without_a_common_one_are_not_compared():
    found = by_id(a_study("not matched"))
    for name in ("position", "long_context"):
        assert found[name].verdict == "unclear"
        assert found[name].caveat
        assert not [row for row in found[name].rows if row.from_model and row.verdict != "unclear"]
    assert "emergence" not in found


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [((45, 45, 30), "tie"), ((80, 30, 10), "majority"), ((50, 30, 40), "largest"), ((46, 45, 29), "unclear")],
)
def test_a_tie_is_called_a_tie(counts, verdict):
    r_q, r_k = (np.tile(np.repeat(levels, counts), (2, 1)) for levels in ((0.9, 0.5, 0.1), (0.9, 0.5, 0.1)))
    qk, loo = measured(STEPS[:2], r_q, r_k, noise=0.005)
    claim = by_id(results(qk.assign(rope=1.0), loo))["classes"]
    assert claim.verdict == verdict
    assert claim.rows[0].value == counts[0]
    assert claim.rows[0].measure == "position-dominated"


def test_queries_are_compared_with_the_size_of_r_k():
    """Half of the heads run against the queries: mean r_k is nothing, and keys are far ahead."""
    r_q, r_k = np.full((2, 120), 0.5), np.full((2, 120), 0.8)
    r_k[:, ::2] *= -1
    claim = by_id(results(*measured(STEPS[:2], r_q, r_k, noise=0.01)))["queries_keys"]
    assert claim.verdict == "lower"
    equal = by_id(results(*measured(STEPS[:2], r_q, np.full((2, 120), 0.5), noise=0.003)))["queries_keys"]
    assert equal.verdict == "equal"


@pytest.mark.parametrize(
    ("shares", "verdict", "top"),
    [
        ((0.2, 0.13, 0.335, 0.335), "tie", None),
        ((0.4, 0.2, 0.2, 0.2), "majority", "share_positional"),
        ((0.2, 0.1, 0.42, 0.28), "largest", "share_key"),
    ],
)
def test_the_largest_part_of_the_scores_is_named_and_a_tie_is_a_tie(shares, verdict, top):
    study = whole()
    parts = dict(
        zip(("share_position", "share_query_position", "share_key", "share_match"), shares, strict=True)
    )
    parts["share_positional"] = shares[0] + shares[1]
    for which in ("own", "matched"):
        study = with_values(study, which, **{name: np.full((4, 120), value) for name, value in parts.items()})
    claim = every_claim(study)["scores"]
    assert claim.verdict == verdict
    assert top in (None, claim.see.measure)


def test_training_that_grows_falls_or_rests_is_told_apart():
    r_q, r_k = truth(1, 6)
    base = r_q * 0.3
    for course, verdict in (
        ([0.0, 0.1, 0.2, 0.3, 0.4, 0.4], "rises"),
        ([0.4, 0.4, 0.3, 0.2, 0.1, 0.0], "falls"),
        ([0.0, 0.2, 0.4, 0.4, 0.3, 0.2], "rises and falls"),
        ([0.0, 0.0, 0.0, 0.0, 0.0, 0.0], "flat"),
    ):
        made = results(*measured(STEPS[:6], base + np.array(course)[:, None], r_k, noise=0.005))
        assert by_id(made)["position"].verdict == verdict


def test_a_certain_but_small_change_is_flat_and_not_denied():
    r_q, r_k = truth(1, 3)
    r_q = r_q * 0.3 + np.array([0.0, -0.007, -0.0149])[:, None]
    claim = by_id(results(*measured(STEPS[:3], r_q, r_k, noise=0.003, shared=0.0)))["position"]
    assert claim.verdict == "flat"
    change = next(row for row in claim.rows if row.from_model)
    assert change.value == pytest.approx(-0.0149, abs=0.003)
    assert "0.02" in claim.headline


def turning(course: list[float]) -> Claim:
    """The first claim of a study whose mean r_q takes this course."""
    r_q, r_k = truth(1, len(course))
    made = results(*measured(STEPS[: len(course)], r_q * 0.3 + np.array(course)[:, None], r_k, noise=0.002))
    return by_id(made)["position"]


def test_a_series_that_turns_twice_is_told_in_order():
    claim = turning([0.3, 0.1, 0.4, 0.3, 0.2])
    models = [row.model for row in claim.rows[:4]]
    assert models == [STEPS[4], STEPS[0], STEPS[1], STEPS[2]]
    told = [printed(row.value, math.nan, row.unit, signed=False) for row in claim.rows[1:4]]
    places = [claim.headline.index(text) for text in told]
    assert places == sorted(places)


def test_many_turns_that_come_back_are_no_change():
    """The last value is the first one within its error: neither up nor down."""
    claim = turning([0.3, 0.1, 0.4, 0.2, 0.4, 0.301])
    assert claim.verdict == "rises and falls"
    assert [row.model for row in claim.rows[:2]] == [STEPS[5], STEPS[0]]
    assert not re.search(r"\b(up|down)\b", claim.headline)


def test_a_rise_that_is_lost_again_is_not_told_as_one_that_stays():
    r_q, r_k = truth(1, 4)

    def emergence(course: list[float]) -> Claim:
        made = results(*measured(STEPS[:4], r_q * 0.3 + np.array(course)[:, None], r_k, noise=0.002))
        return by_id(made)["emergence"]

    stays, lost = emergence([0.0, 0.1, 0.4, 0.4]), emergence([0.0, 0.1, 0.4, 0.05])
    assert stays.verdict == lost.verdict == "rises"
    assert lost.headline.count(STEPS[3]) == 1 + stays.headline.count(STEPS[3])
    assert "below half" in lost.headline
    assert "below half" not in stays.headline + stays.detail


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.1, 0.2], []),
        ([0.0, 0.2, 0.1], [1]),
        ([0.929, 0.815, 0.936, 0.903, 0.849], [1, 2]),
        ([0.5, 0.51, 0.505, 0.7], []),
        ([0.1, 0.1, 0.0, 0.3, 0.29, 0.1], [2, 3]),
        ([0.5], []),
        ([0.2, 0.65, 0.6, 0.615, 0.67, 0.4], [1, 2, 4]),
        ([0.04, 0.03, 0.09, 0.03], [2]),
    ],
)
def test_turns_are_highs_and_lows_between_the_ends(values, expected):
    assert turns(values, [0.001] * len(values)) == expected
    assert turns([-v for v in values], [math.nan] * len(values)) == expected
    assert turns(values, [0.5] * len(values)) == []


def test_an_uncertain_high_is_not_hidden_by_a_lower_one_before_it():
    assert turns([0.2, 0.66, 0.63, 0.674, 0.52], [0.01, 0.004, 0.004, 0.03, 0.005]) == [3]


def test_queries_and_keys_are_compared_over_the_training_context_too():
    """Queries lead over the first tokens, keys over the longer window and at the first checkpoints."""
    q, k = np.full((4, 120), 0.55), np.full((4, 120), 0.5)
    q[:2], k[:2] = 0.3, 0.4
    near = measured(STEPS[:4], q, k, noise=0.003)
    q, k = q.copy(), k.copy()
    q[2:], k[2:] = 0.62, 0.68
    study = results(*measured(STEPS[:4], q, k, noise=0.003), windows=[256, 256, 1024, 1024], matched=near)
    claim = by_id(study)["queries_keys"]
    gap = {row.window: row for row in claim.rows if row.measure == "r_q-abs_r_k"}
    assert claim.verdict == gap["matched"].verdict == "higher"
    assert gap["own"].verdict == "lower"
    assert gap["own"].value == pytest.approx(-0.06, abs=0.005)
    assert "1,024 tokens" in claim.headline
    assert all(label in claim.detail for label in STEPS[:2])


def test_a_difference_within_the_errors_has_no_opposite():
    """Its sign is noise: clear differences over other windows and at other checkpoints are told as they are."""
    q, k = np.full((4, 120), 0.503), np.full((4, 120), 0.5)
    q[:2] = 0.4
    near = measured(STEPS[:4], q, k, noise=0.02, shared=1.0)
    q, k = q.copy(), k.copy()
    q[2:], k[2:] = 0.3, 0.68
    study = results(*measured(STEPS[:4], q, k, noise=0.003), windows=[256, 256, 1024, 1024], matched=near)
    claim = by_id(study)["queries_keys"]
    assert claim.verdict == "unclear"
    assert "1,024 tokens" in claim.headline
    assert not re.search("other way|opposite", claim.headline + claim.detail)
    assert f"Keys follow position more closely than queries at {STEPS[0]} and {STEPS[1]}." in claim.detail


def test_a_class_that_rises_and_falls_is_told_with_its_peak():
    r = np.full((6, 120), 0.1)
    r[1:, :30], r[2:4, :80], r[4:, 30:80] = 0.9, 0.9, 0.5
    qk, loo = measured(STEPS[:6], r, r, noise=0.005)
    claim = by_id(results(qk.assign(rope=1.0), loo))["classes"]
    peak = [row for row in claim.rows if row.measure == "position-dominated" and row.model != STEPS[5]]
    assert [row.value for row in peak if row.from_model is None] == [80]
    assert {"80", "30"} <= set(numbers_in(claim.headline))


def test_classes_are_counted_over_the_training_context_too():
    study = whole()
    own = [row for row in by_id(study)["classes"].rows if row.window == "own"]
    assert {row.measure for row in own} == set(CLASSES)
    assert sum(row.value for row in own) == 90


def test_heads_that_a_line_misses_are_counted_and_named():
    study = whole()
    data = study.matched()
    here = ((data["layer"] == 4) & (data["number"] == 2)).to_numpy()
    eta = {f"eta_{x}": np.abs(data[f"r_{x}"].to_numpy()) + 0.01 for x in "qk"}
    for values in eta.values():
        values[..., here] = 0.99
    made = with_values(study, "matched", **eta)
    detail = by_id(made)["linearity"].detail
    assert "1 of 90" in detail
    assert "layer 4 head 2" in detail
    # Another head exceeds |r| as far, but by noise of its groups of documents.
    other = ((data["layer"] == 5) & (data["number"] == 1)).to_numpy()
    rng = np.random.default_rng(0)
    for values in eta.values():
        values[..., other] += 0.15
        values[:, 1:, other] += rng.normal(0.0, 0.15, values[:, 1:, other].shape)
    again = by_id(with_values(study, "matched", **eta))["linearity"].detail
    assert "layer 4 head 2" in again
    assert "layer 5 head 1" not in again


def test_heads_that_score_highest_far_away_are_named():
    study = whole()
    data = study.matched()
    here = np.flatnonzero(((data["layer"] == 4) & (data["number"] == 2)).to_numpy())
    last = np.flatnonzero(np.isfinite(data["distance_score"].to_numpy()[-1, 0]))[-1]
    scores = np.where(np.isfinite(data["distance_score"]), -data["distance"].to_numpy().astype(float), np.nan)
    scores[-1, here, last] = 9.0
    made = with_values(study, "matched", distance_score=scores)
    said = by_id(made)["distance"].meaning
    assert "layer 4 head 2" in said
    assert "89 of 90" in said


def test_labels_of_several_phases_carry_their_phase():
    study = training(4, labels=["200", "400", "40", "80"], phases=["Base", "Base", "Long", "Long"])
    claim = by_id(study)["position"]
    assert "Base step 200" in claim.headline
    assert "Long step 80" in claim.headline
    alone = by_id(training(2))["position"]
    assert "Stage 1" not in alone.headline


def test_models_are_compared_as_models():
    r_q, r_k = truth(0, 3)
    r_q[1] += 0.1
    found = by_id(results(*measured(["a/one", "b/two", "c/three"], r_q, r_k, noise=0.01), kind="models"))
    assert set(found) == {"position"}
    assert found["position"].verdict == "higher"
    assert found["position"].rows[0].model == "b/two"


def test_the_ends_of_many_models_are_judged_as_chosen_among_all_pairs():
    """Of ten models there are 45 pairs, and the highest and the lowest differ by chance."""
    r_q, r_k = truth(0, 10, heads=20)
    r_q = r_q * 0.5
    r_q[1] += 0.32
    names = [f"m/{i}" for i in range(10)]
    many = results(*measured(names, r_q, r_k, noise=0.05, shared=1.0), kind="models")
    assert by_id(many)["position"].verdict == "unclear"


def test_without_document_groups_heads_are_left_out_and_the_claim_says_so():
    claim = by_id(a_study("bare table"))["position"]
    assert claim.verdict in ("rises", "rises and falls")
    assert own_evidence(a_study("bare table")).basis == "heads"
    assert claim.caveat != by_id(a_study("learning"))["position"].caveat


def test_few_heads_without_groups_and_two_groups_leave_everything_open():
    qk, _ = measured(STEPS[:3], *(each[:3, :12] for each in learning()), noise=0.01)
    two = results(*measured(STEPS[:3], *(each[:3] for each in learning()), noise=0.01, groups=2))
    for made in (results(qk, None), two):
        found = by_id(made)
        assert found["position"].verdict == "unclear"
        clear = {"rises", "falls", "higher", "lower"}
        assert not [row for claim in found.values() for row in claim.rows if row.verdict in clear]


def test_heads_measured_only_sometimes_are_counted():
    claim = by_id(lost())["queries_keys"]
    assert "10 heads" in claim.caveat
    own = study_of(lost().matched())
    assert any("10 of 120 heads" in text for text in summary(own)["warnings"])


def study_of(data: xr.Dataset) -> Results:
    """The matched window of a study as if it were the training contexts."""
    cells = data.swap_dims(checkpoint="cell").reset_coords("checkpoint").set_coords("checkpoint")
    cells = cells.drop_vars("cell", errors="ignore")
    flags = {
        "own": ("cell", np.full(cells.sizes["cell"], True)),
        "matched": ("cell", np.full(cells.sizes["cell"], False)),
    }
    return replace(whole(), data=cells.assign_coords(flags))


def test_checkpoints_without_a_head_in_common_are_not_compared():
    qk, loo = measured(STEPS[:2], *truth(0, 2), noise=0.01)
    early, late = ((t["model"] == STEPS[0]) == (t["layer"] < 6) for t in (qk, loo))
    found = by_id(results(qk[early], loo[late]))
    assert found["position"].verdict == "unclear"
    assert not [row for claim in found.values() for row in claim.rows if row.from_model]


def test_layers_that_lose_their_rotation_are_not_followed():
    """NoPE begins at the second checkpoint: only RoPE heads are there throughout."""
    qk, loo = measured(STEPS[:3], *(each[:3] for each in learning()), noise=0.01)
    qk.loc[qk["model"] == STEPS[0], "rope"] = 1.0
    found = by_id(results(qk, loo))
    assert found["position"].verdict == "rises"
    assert {row.population for claim in found.values() for row in claim.rows} == {"RoPE"}


@pytest.mark.parametrize("missing", ["loo", "errors", "null", "rope", "variance"])
def test_tables_without_some_columns_are_read_as_far_as_they_go(missing):
    qk, loo = measured(STEPS[:4], *(each[:4] for each in learning()), noise=0.01)
    dropped = {
        "errors": ["r_q_se", "r_k_se"],
        "null": ["r_q_null", "r_k_null"],
        "rope": ["rope"],
        "variance": ["explained_variance"],
    }.get(missing, [])
    qk[dropped] = np.nan
    study = results(qk, None if missing in ("loo", "errors") else loo)
    found = by_id(study)
    json.dumps(summary(study), allow_nan=False)
    assert found["position"].verdict == "rises"
    assert {row.population for row in found["position"].rows} == (
        {"all"} if missing == "rope" else {"RoPE", "NoPE"}
    )


def test_rules_are_made_of_the_constants(monkeypatch):
    for name, value, rule in (
        ("STUDY_LEVEL", 0.07, levels.rule_of_change),
        ("SMALLEST", 0.03, levels.rule_of_change),
        ("CONTRAST_LEVEL", 0.04, levels.rule_of_contrast),
        ("STUDY_LEVEL", 0.09, levels.rule_of_emergence),
    ):
        before = rule()
        monkeypatch.setattr(levels, name, value)
        assert rule() != before
