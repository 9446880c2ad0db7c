"""Claims against their own data: recomputed by independent code, never contradicting, short enough to read."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from published import published_results
from scipy import stats
from simulated import measured, results, truth

from qkscope.findings import CANNOT_TELL, VERDICTS, Claim, claims
from qkscope.inference import levels
from qkscope.inference.evidence import own_evidence
from qkscope.results import Results
from qkscope.taxonomy import CLASSES, POLARITIES, classify
from studies import models, training, with_components

STEPS = [f"step{1000 * i}" for i in range(8)]
MOVES = ("rises", "falls", "rises and falls")


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


def a_study(kind: str) -> Results:
    learned = measured(STEPS, *learning(), noise=0.02)
    return {
        "learning": lambda: results(*learned),
        "falling": lambda: results(*measured(STEPS, *(each[::-1].copy() for each in learning()), noise=0.02)),
        "noise": lambda: results(*measured(STEPS, *truth(3, 8), noise=0.05, shared=0.6)),
        "two groups": lambda: results(*measured(STEPS, *learning(), noise=0.02, groups=2)),
        "bare table": lambda: results(learned[0], None),
        "few heads": lambda: results(*measured(STEPS, *(each[:, :8] for each in learning()), noise=0.02)),
        "widening": widening,
        "not matched": lambda: replace(widening(), matched=None, loo_matched=None),
        "two checkpoints": lambda: results(*measured(STEPS[:2], *learning(checkpoints=2), noise=0.02)),
        "one checkpoint": lambda: with_components(training(1), 3),
        "components": lambda: with_components(training(4, widen=2), 4),
        "models": lambda: models(["Llama", "Qwen", "Qwen"]),
        "published": published_results,
        "published cells": lambda: published_results("cells"),
    }[kind]()


KINDS = (
    *("learning", "falling", "noise", "two groups", "bare table", "few heads", "widening", "not matched"),
    *("two checkpoints", "one checkpoint", "components", "models", "published", "published cells"),
)


@pytest.fixture(scope="module", params=KINDS)
def study(request) -> Results:
    return a_study(request.param)


# --- short enough to read ---------------------------------------------------------------------------------------


def numbers_in(text: str, study: Results) -> list[str]:
    """The numbers of a text; names of checkpoints, axes and depths are names."""
    for stop in sorted(study.timeline.stops, key=lambda s: -len(s.label)):
        for name in (f"step {stop.label}", stop.label, stop.model):
            text = text.replace(name, "NAME")
    text = re.sub(r"PC\d+|depth \d\.\d–\d\.\d", "NAME", text)
    return re.findall(r"[+−]?\d[\d,.]*\d|\d", text)


def test_headlines_are_short_and_details_are_two_sentences(study):
    for claim in claims(study):
        assert len(claim.headline.split()) <= 20, claim.headline
        assert len(numbers_in(claim.headline, study)) <= 2, claim.headline
        assert not claim.headline.endswith(".")
        assert len(re.findall(r"[.?](?= [A-Z]|$)", claim.detail)) <= 2, claim.detail


def test_texts_are_written_by_one_hand(study):
    for claim in claims(study):
        for text in (claim.question, claim.headline, claim.detail, claim.doubt, claim.rule):
            assert "nan" not in text, text
            assert "  " not in text, text
            assert not re.search(r"± 0\.?0*(?!\.?\d)", text), text  # no error of nothing
            assert not re.search(r"(?<![\w–])-\d", text), text  # one minus sign
            assert not re.search(r"\d+K tokens", text), text  # one way to say a window
            assert not re.search(
                r"\bholds\b|does not hold", text.replace("axis holds", "").replace("PC0 holds", "")
            ), text
        assert claim.verdict in VERDICTS
        assert claim.detail == "" or claim.detail.endswith(".")


def test_nothing_is_blamed_on_the_model_or_on_training(study):
    for claim in claims(study):
        text = f"{claim.headline} {claim.detail}"
        assert not re.search(
            r"the model\b|because of|due to|comes? from (the )?(model|training)|caused", text
        ), text


def test_details_are_no_walls_of_numbers(study):
    for claim in claims(study):
        assert len(numbers_in(claim.detail, study)) <= 14, claim.detail


# --- sentences that were once wrong ---------------------------------------------------------------------------------


def one(study: Results, name: str) -> Claim:
    return next(claim for claim in claims(study) if claim.id == name)


def test_a_rise_that_dips_within_noise_is_not_said_never_to_fall():
    r_q, r_k = truth(1, 5)
    r_q = r_q * 0.3 + np.array([0.0, -0.02, 0.1, 0.25, 0.3])[:, None]
    claim = one(results(*measured(STEPS[:5], r_q, r_k, noise=0.05, shared=0.6)), "r_q")
    assert claim.verdict == "rises"
    assert "ever" not in claim.answer.replace("every", "")


def test_most_is_more_than_half():
    r_q, r_k = truth(1, 2)
    r_q[:], r_k[:] = 0.5, 0.5
    r_q[:, :48], r_k[:, :48] = 0.1, 0.1
    r_q[:, 48:80], r_k[:, 48:80] = 0.9, 0.9
    claim = one(results(*measured(STEPS[:2], r_q, r_k, noise=0.01)), "majority")
    assert claim.verdict == "no"
    assert claim.headline == "The largest class is content-focused: 48 of 120 at step1000"
    r_q[:, 80:] = r_k[:, 80:] = 0.1
    assert one(results(*measured(STEPS[:2], r_q, r_k, noise=0.01)), "majority").headline.startswith(
        "Most heads are"
    )


def test_queries_are_compared_with_the_size_of_r_k():
    """Half of the heads run against the queries: mean r_k is nothing, and keys are far ahead."""
    r_q, r_k = np.full((2, 120), 0.5), np.full((2, 120), 0.8)
    r_k[:, ::2] *= -1
    claim = one(results(*measured(STEPS[:2], r_q, r_k, noise=0.01)), "queries_or_keys")
    assert claim.verdict == "no"
    assert claim.headline.startswith("Keys follow position more closely")
    assert claim.headline.endswith(", mean |r_k| 0.80")


def test_the_lowest_depths_are_said_to_be_where_no_layer_rotates():
    r_q, r_k = np.full((2, 120), 0.6), np.full((2, 120), 0.6)
    layer = np.arange(120) // 10
    r_q[:, layer % 4 == 3] = 0.05
    r_q[1] += 0.1
    qk, loo = measured(STEPS[:2], r_q, r_k, noise=0.01)
    layers = results(qk, loo).heads.groupby("depth_bin")["rope"].max()
    still = [f"{b / 10:.1f}–{(b + 1) / 10:.1f}" for b in layers.index[layers == 0]]
    detail = one(results(qk, loo), "depth_r_q").detail
    assert any(f"lowest at {depth}" in detail for depth in still)
    assert "exactly those whose layers have no RoPE" in detail or "where no layer has RoPE" in detail
    everywhere = one(results(qk.assign(rope=1.0), loo), "depth_r_q").detail
    assert "RoPE" not in everywhere


def test_own_windows_and_the_same_tokens_are_worded_beside_each_other():
    claim = one(a_study("widening"), "r_q")
    assert claim.window == "matched"
    assert "Over the first 256 tokens of every checkpoint, mean r_q goes from" in claim.detail
    assert "Over own windows, 256 to 1,024 tokens, it ends at" in claim.detail
    assert "not the model" not in claim.answer


def test_rules_are_made_of_the_constants(monkeypatch):
    for name, value, rule in (
        ("STUDY_LEVEL", 0.07, levels.rule_of_change),
        ("SMALLEST", 0.03, levels.rule_of_change),
        ("CONTRAST_LEVEL", 0.04, levels.rule_of_contrast),
        ("STANDS_OUT", 3.5, levels.rule_of_jump),
        ("VANISHED", 0.08, levels.rule_of_vanishing),
        ("DEVIATIONS", 6.0, levels.rule_of_noise),
        ("REMAINS", 0.4, levels.rule_of_windows),
    ):
        before = rule()
        monkeypatch.setattr(levels, name, value)
        assert rule() != before


def test_a_claim_says_the_rule_it_was_judged_by():
    claim = one(a_study("learning"), "r_q")
    assert "leaving out each of 8 groups of documents" in claim.rule
    assert levels.rule_of_change() in claim.rule
    assert "2%" in claim.rule


def test_without_document_groups_one_judge_speaks_and_says_what_it_is():
    """The same verdict in the claim and in its rows, with the error of leaving heads out."""
    claim = one(a_study("bare table"), "r_q")
    assert claim.rows[0].verdict == "rises"
    assert claim.verdict in ("rises", "rises and falls")
    assert "groups of heads" in claim.rule
    assert "not of documents" in claim.doubt
    assert own_evidence(a_study("bare table")).basis == "heads"


def test_a_question_is_one_function():
    from qkscope.findings.catalogue import QUESTIONS, Answer, question

    @question("asked_here", "Is it so?", view="signal", place=99, of="any", rule="By looking.", tested=False)
    def asked_here(s) -> Answer:
        return Answer("yes", f"It is so at {s.best.label(-1)}")

    try:
        assert one(a_study("two checkpoints"), "asked_here").headline == "It is so at step1000"
    finally:
        del QUESTIONS["asked_here"]


# --- verdicts agree with their numbers -----------------------------------------------------------------------------


def test_no_two_claims_contradict(study):
    """Every (what, from, to, window) has one number and one verdict, whichever claim tells it."""
    seen: dict[tuple, set] = defaultdict(set)
    for claim in claims(study):
        for row in claim.rows:
            key = (row.what, row.from_model, row.to_model, row.window)
            seen[key].add((round(row.value, 12), row.verdict or None))
            if row.verdict == "rises":
                assert row.value > 0
            if row.verdict == "falls":
                assert row.value < 0
            if row.verdict == "no change":
                assert abs(row.value) < 0.05
    for key, told in seen.items():
        values = {value for value, _ in told}
        verdicts = {verdict for _, verdict in told} - {None}
        assert len(values) == 1, (key, told)
        assert len(verdicts) <= 1, (key, told)


def test_a_verdict_is_that_of_its_rows(study):
    """A direction needs a row that moves that way over the verdict's window, and none that moves the other way."""
    for claim in claims(study):
        if claim.verdict not in MOVES or claim.id.startswith("depth"):
            continue
        main = claim.rows[0].what
        here = {r.verdict for r in claim.rows if r.what == main and r.window == claim.window}
        if claim.verdict == "rises and falls":
            assert claim.rows[0].window == claim.window
        else:
            assert claim.verdict in here, claim
            assert {"rises": "falls", "falls": "rises"}[claim.verdict] not in here, claim


# --- recomputed from the tables by other code -----------------------------------------------------------------------


def left_out(study: Results, window: str, number_of) -> dict[str, np.ndarray]:
    """By checkpoint, a number of its heads and the same without each group of documents, straight from the tables."""
    heads, loo = (study.heads, study.loo) if window == "own" else (study.matched, study.loo_matched)
    found = {}
    for model in study.timeline.models:
        whole = number_of(heads[heads["model"] == model])
        parts = loo[loo["model"] == model].merge(study.heads[["model", "layer", "head", "depth_bin", "rope"]])
        found[model] = np.array([whole, *(number_of(part) for _, part in parts.groupby("group"))])
    return found


def class_share(kind: str):
    return lambda t: float(np.mean(classify(t["r_q"], t["r_k"]) == kind))


def polarity_share(kind: str):
    limits = {"concordant": (0.3, 2), "neutral": (-0.3, 0.3), "discordant": (-2, -0.3)}[kind]
    inside = "both" if kind == "neutral" else "neither"
    return lambda t: float(t["r_k"].between(*limits, inclusive=inside).mean())


def lead(column: str):
    def number_of(t: pd.DataFrame) -> float:
        values = t["r_k"].abs() if column == "abs_r_k" else t[column]
        return float(values[t["rope"] == 1].mean() - values[t["rope"] == 0].mean())

    return number_of


NUMBERS = {
    "mean r_q": lambda t: float(t["r_q"].mean()),
    "mean r_k": lambda t: float(t["r_k"].mean()),
    "mean |r_k|": lambda t: float(t["r_k"].abs().mean()),
    "mean explained variance": lambda t: float(t["explained_variance"].mean()),
    "spread of r_q across heads": lambda t: float(t["r_q"].std(ddof=0)),
    "spread of r_k across heads": lambda t: float(t["r_k"].std(ddof=0)),
    "lead of RoPE layers in mean r_q": lead("r_q"),
    "lead of RoPE layers in mean |r_k|": lead("abs_r_k"),
    **{f"share of {kind} heads": class_share(kind) for kind in CLASSES},
    **{f"share of {kind} heads": polarity_share(kind) for kind in POLARITIES},
    **{
        f"mean {name} at depth {b / 10:.1f}–{(b + 1) / 10:.1f}":
            lambda t, c=name, b=b: float(t.loc[t["depth_bin"] == b, c].mean())
        for name in ("r_q", "r_k")
        for b in range(10)
    },
}  # fmt: skip


def paired(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """A difference and its paired jackknife error."""
    gone = (after - before)[1:]
    return float(after[0] - before[0]), float(np.sqrt((len(gone) - 1) * np.mean((gone - gone.mean()) ** 2)))


@pytest.mark.parametrize("kind", ["learning", "falling", "noise", "widening", "components"])
def test_every_change_is_recomputed(kind):
    study = a_study(kind)
    tables: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    checked = 0
    for claim in claims(study):
        for row in claim.rows:
            if row.what not in NUMBERS or row.from_model is None:
                continue
            key = (row.what, row.window)
            tables.setdefault(key, left_out(study, row.window, NUMBERS[row.what]))
            delta, se = paired(tables[key][row.from_model], tables[key][row.to_model])
            assert row.value == pytest.approx(delta, abs=1e-9), row
            # a reader sees the plain paired error, as the causes of the same change have it; a share's has its whole
            # heads on top
            assert row.se >= se - 1e-12, row
            if not row.what.startswith("share"):
                assert row.se == pytest.approx(se, rel=1e-6), row
            checked += 1
    assert checked > 30


@pytest.mark.parametrize("kind", ["learning", "falling", "noise", "widening"])
def test_every_verdict_of_a_change_is_recomputed(kind):
    """The whole family of tests anew: every step, whole and swing of every series, by Holm's method."""
    study = a_study(kind)
    for window in ("own", "matched") if study.matched is not None else ("own",):
        names = [n for n in NUMBERS if "depth" not in n]
        tests = [
            t
            for n in names
            for t in family(n, list(left_out(study, window, NUMBERS[n]).values()), study, window)
        ]
        order = sorted(tests, key=lambda t: t["p"])
        passing = True
        for rank, test in enumerate(order):
            passing = passing and test["p"] <= levels.STUDY_LEVEL / (len(order) - rank)
            test["clear"] = passing and test["large"]
        wanted = {(t["what"], t["from"], t["to"]): t for t in tests}
        told = {
            (r.what, r.from_model, r.to_model): r.verdict
            for c in claims(study) for r in c.rows
            if r.window == window and (r.what, r.from_model, r.to_model) in wanted
        }  # fmt: skip
        assert len(told) > 10
        for key, verdict in told.items():
            test = wanted[key]
            expected = ("rises" if test["delta"] > 0 else "falls") if test["clear"] else test["else"]
            assert verdict == expected, (key, test)


def family(name: str, values: list[np.ndarray], study: Results, window: str) -> list[dict]:
    """All tests of one series: plain scipy, plain loops."""
    last, heads = len(values) - 1, len(study.heads) // len(study.timeline.models)
    share = name.startswith("share")
    extra = [unseen(name, study, window, model) if share else 0.0 for model in study.timeline.models]
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
        models = study.timeline.models
        found.append(
            {"what": name, "from": models[i], "to": models[j], "delta": delta, "p": p, "large": large}
            | {"else": "no change" if ruled_out else CANNOT_TELL}
        )
    return found


def unseen(name: str, study: Results, window: str, model: str) -> float:
    """Variance of a share from heads near their thresholds: chance times counter-chance, at least half a head."""
    table = study.heads if window == "own" else study.matched
    t = table[table["model"] == model]
    rng = stats.norm
    above = lambda x, se, limit: rng.sf(limit, x, se)  # noqa: E731
    q_high, q_low = above(t["r_q"], t["r_q_se"], 0.7), 1 - above(t["r_q"], t["r_q_se"], 0.3)
    k = t["r_k"], t["r_k_se"]
    k_high, k_low = above(*k, 0.7) + 1 - above(*k, -0.7), above(*k, -0.3) - above(*k, 0.3)
    chances = {
        "position-dominated": q_high * k_high, "Q-positional": q_high * k_low, "K-positional": q_low * k_high,
        "content-focused": q_low * k_low, "neutral": k_low,
        "concordant": above(*k, 0.3), "discordant": 1 - above(*k, -0.3),
    }  # fmt: skip
    chances["mixed"] = 1 - sum(chances[kind] for kind in CLASSES[:4])
    p = chances[name.removeprefix("share of ").removesuffix(" heads")]
    return max(0.5, float(np.sum(p * (1 - p)))) / len(t) ** 2
