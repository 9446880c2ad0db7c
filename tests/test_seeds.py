"""Several runs a side: means of arms with errors over seeds, against a slow reference and a known truth."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from reference import welch_reference
from simulated import measured, results, truth

from qkscope.cli import main
from qkscope.comparison import compare
from qkscope.comparison.runs import IN_SUM
from qkscope.errors import TableError
from qkscope.stats.contrast import arm_difference, clear_differences
from qkscope.store import write_csv

NAMES = ["step0", "step1000", "step2000"]


def seed_of(arm: str, seed: int, shift: float = 0.0, spread: float = 0.03):
    """A run of a training: its heads' true r_q moved by the arm's shift and by what the seed does to all of them."""
    rng = np.random.default_rng([seed, sum(map(ord, arm))])
    r_q, r_k = truth(0, len(NAMES))
    moved = np.clip(0.7 * r_q + shift + rng.normal(0, spread), 0, 0.95), r_k + rng.normal(0, spread)
    qk, _ = measured(NAMES, *moved, seed=seed + 1000, noise=0.01)
    study = results(qk, None)
    return replace(
        study, folder=Path(f"{arm}-{seed}"), timeline=replace(study.timeline, name=f"{arm}-{seed}")
    )


def arm(name: str, seeds: range, shift: float = 0.0):
    return [seed_of(name, seed, shift) for seed in seeds]


@pytest.mark.parametrize(("first", "second"), [(2, 2), (3, 5), (8, 3)])
def test_differences_of_arms_are_welchs(first, second):
    rng = np.random.default_rng(first)
    ours, theirs = rng.normal(0.4, 0.02, first), rng.normal(0.5, 0.1, second)
    found = arm_difference(ours, theirs)
    shown = (found.ours, found.theirs, found.our_se, found.their_se, found.se, found.df, found.p)
    assert shown == pytest.approx(welch_reference(ours, theirs), rel=1e-12)
    assert found.difference == pytest.approx(ours.mean() - theirs.mean(), rel=1e-12)
    assert found.agrees == (found.p >= 0.05)


def test_runs_that_do_not_differ_tell_no_error():
    same = arm_difference(np.full(3, 0.3), np.full(3, 0.3))
    assert same.agrees is True
    apart = arm_difference(np.full(3, 0.1 + 0.2), np.full(3, 0.4))
    assert math.isnan(apart.p)
    assert apart.agrees is None
    assert clear_differences([apart]) == [False]


def test_small_differences_are_not_worth_a_word_however_sure():
    noise = np.array([-1e-5, 0, 1e-5])
    assert clear_differences([arm_difference(0.3 + noise, 0.315 + noise)]) == [False]
    assert clear_differences([arm_difference(0.3 + noise, 0.325 + noise)]) == [True]


def test_every_number_is_the_mean_of_its_runs():
    ours, theirs = arm("base", range(3)), arm("wide", range(2), 0.1)
    found = compare(ours, theirs)
    assert (found.ours, found.theirs, found.seeds) == ("base", "wide", (3, 2))
    assert found.heads is None
    for model in (*NAMES, IN_SUM):
        row = next(r for r in found.rows if (r.quantity, r.checkpoint) == ("mean r_k", model))
        sides = [
            [
                run.heads[run.heads["model"].isin(NAMES if model == IN_SUM else [model])]["r_k"].mean()
                for run in side
            ]
            for side in (ours, theirs)
        ]
        expected = welch_reference(*sides)
        assert (row.ours, row.theirs, row.se, row.their_se) == pytest.approx(expected[:4], rel=1e-9)
        assert row.agrees == (expected[-1] >= 0.05)


def test_the_sentence_says_that_errors_are_over_seeds():
    found = compare(arm("base", range(3)), arm("wide", range(3), 0.3))
    assert found.clear
    assert found.sentence().startswith("Mean r_q differs")
    assert "over three seeds" in found.sentence()
    assert [row.checkpoint for row in found.rows[:4]] == [*NAMES, IN_SUM]
    assert "Errors are over seeds" in found.to_text()
    assert "documents" not in found.to_text()
    assert "Welch's t-test at 5% over 3 and 3 seeds" in found.verdict()


@pytest.mark.parametrize(("first", "second"), [(2, 2), (3, 3), (3, 6)])
def test_false_alarms_are_as_rare_as_said(first, second):
    """Nine numbers of runs of one training: in at most one of twenty comparisons does any of them differ."""
    rng = np.random.default_rng(7)
    trials, alarms = 1000, 0
    for _ in range(trials):
        # Numbers of a run go up and down together in part, and vary more on one side.
        sides = [
            0.4 + scale * (rng.normal(0, 0.05, (runs, 1)) + rng.normal(0, 0.05, (runs, 9)))
            for runs, scale in ((first, 1.0), (second, 2.0))
        ]
        alarms += any(
            clear_differences([arm_difference(a, b) for a, b in zip(*(s.T for s in sides), strict=True)])
        )
    assert alarms <= 0.05 * trials + 3 * math.sqrt(0.05 * 0.95 * trials)


def test_right_things_are_said_about_known_truths():
    """Three seeds against three: of one training no number differs, of one with r_q higher by 0.25 that one does."""
    wrong, found = 0, 0
    for trial in range(8):
        seeds = range(3 * trial, 3 * trial + 3)
        ours = arm("a", seeds)
        wrong += bool(compare(ours, arm("b", seeds)).clear)
        judged = compare(ours, arm("c", seeds, 0.25)).clear
        found += any(row.quantity == "mean r_q" and row.difference < 0 for row in judged)
    assert wrong <= 1
    assert found >= 7


def test_seeds_are_matched_by_what_they_share():
    ours, theirs = arm("base", range(2)), arm("wide", range(2))
    short = replace(
        theirs[1],
        data=theirs[1].data.isel(cell=theirs[1].data["checkpoint"].values != "step2000"),
        timeline=replace(theirs[1].timeline, checkpoints=theirs[1].timeline.checkpoints[:2]),
    )
    found = compare(ours, [theirs[0], short])
    assert {row.checkpoint for row in found.rows} == {"step0", "step1000", IN_SUM}
    assert "Not in every run: step2000." in found.notes


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (range(1), range(2), "two runs on each side"),
        (range(2), range(1), "1 runs|at least two"),
    ],
)
def test_too_few_runs_are_refused(ours, theirs, said):
    with pytest.raises(TableError, match=said):
        compare(arm("a", ours), arm("b", theirs))


def test_a_run_given_twice_is_refused():
    ours = arm("a", range(2))
    with pytest.raises(TableError, match="given twice"):
        compare(ours, [ours[0], *arm("b", range(1))])


def test_several_runs_are_no_match_for_published_numbers():
    with pytest.raises(TableError, match="one run"):
        compare(arm("a", range(2)), "published")


def test_seeds_on_the_command_line(tmp_path):
    for run in (*arm("a", range(2)), *arm("b", range(2), 0.3)):
        write_csv(tmp_path / run.folder / "qk.csv", run.qk)
    places = [str(tmp_path / name) for name in ("a-0", "a-1")]
    others = [part for name in ("b-0", "b-1") for part in ("--with", str(tmp_path / name))]
    done = CliRunner().invoke(main, ["compare", *places, *others, "--json", "--csv", str(tmp_path / "x.csv")])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["seeds"] == [2, 2]
    assert (found["ours"], found["theirs"]) == ("a", "b")
    assert (tmp_path / "x.csv").is_file()
    assert not (tmp_path / "x_heads.csv").exists()
