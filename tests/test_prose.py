"""What the READMEs say: computed from the data, the opposite for opposite data, and noise called noise."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from published import PUBLISHED, published_results
from simulated import measured, results

from qkscope.aggregate import position_signal
from qkscope.figures import CATALOGUE
from qkscope.figures.course import (
    DOCUMENTS,
    HEADS,
    NOTHING,
    class_share,
    follow,
    mean_of,
    polarity_share,
    spread_of,
)
from qkscope.figures.prose import code, difference, figure, listing, md, story
from qkscope.figures.readme import readme
from qkscope.figures.taxonomy_evolution import gains
from qkscope.figures.view import look
from qkscope.findings import Claim, claims
from qkscope.inference.series import Change
from qkscope.table import QK_COLUMNS, heads_table
from qkscope.taxonomy import CLASSES
from studies import models, training, with_components

ENTRIES = {entry.name: entry for entry in CATALOGUE}
HEADS_COUNT = 120


def words(name, study):
    entry = ENTRIES[name]
    return entry.describe(look(study), entry.draw(study).data)


def said(name, study):
    found = words(name, study)
    return " ".join((found.shows, *found.says, found.takeaway, found.certainty))


def constant(values, *, noise=0.004, seed=0, groups=True, **more):
    """A study whose mean r_q takes these values, and r_k half of them, with heads spread around."""
    spread = np.linspace(-0.04, 0.04, HEADS_COUNT)
    r_q = np.array(values)[:, None] + spread
    names = [f"step-{i + 1}" for i in range(len(values))]
    qk, loo = measured(names, r_q, 0.5 * r_q, noise=noise, seed=seed)
    return results(qk, loo if groups else None, **more)


# --- direction, size, place --------------------------------------------------------------------------------------


def test_rising_and_falling_data_give_opposite_sentences():
    rising, falling = (
        story(look(constant(v)), "mean r_q", mean_of("r_q")).text for v in ([0.2, 0.5, 0.8], [0.8, 0.5, 0.2])
    )
    assert "Mean r_q rises from 0.2" in rising
    assert "It rises at every step." in rising
    assert "Mean r_q falls from 0.8" in falling
    assert "It falls at every step." in falling
    assert "falls" not in rising
    assert "rises" not in falling


def test_every_readme_of_falling_data_speaks_of_falling():
    up, down = (said("01_position_signal", training(4, falling=falling)) for falling in (False, True))
    assert "Mean r_q rises" in up
    assert "Mean r_q falls" in down
    up, down = (said("05_layer_heatmap_rq", training(4, falling=falling)) for falling in (False, True))
    assert "rises clearly in 10 and falls clearly in 0 of 10 bins" in up
    assert "rises clearly in 0 and falls clearly in 10 of 10 bins" in down
    up, down = (said("03_taxonomy_evolution", training(4, falling=falling)) for falling in (False, True))
    assert "The share of position-dominated heads rises" in up
    assert "The share of position-dominated heads falls" in down


def test_largest_step_its_place_and_its_part_of_the_whole():
    text = story(look(constant([0.2, 0.3, 0.7, 0.8])), "mean r_q", mean_of("r_q")).text
    found = re.search(
        r"The largest step is \+(0\.\d+) \(± 0\.\d+\), from step-2 to step-3, (\d+)% of the whole", text
    )
    assert float(found[1]) == pytest.approx(0.4, abs=0.01)
    assert 65 <= int(found[2]) <= 68


def test_a_turn_is_named_with_its_place():
    up_and_down = story(look(constant([0.2, 0.8, 0.5])), "mean r_q", mean_of("r_q")).text
    assert "It is not monotonic: from step-2 to step-3 it falls" in up_and_down
    down_and_up = story(look(constant([0.8, 0.2, 0.5])), "mean r_q", mean_of("r_q")).text
    assert "It is not monotonic: from step-2 to step-3 it rises" in down_and_up
    there_and_back = story(look(constant([0.5, 0.8, 0.5])), "mean r_q", mean_of("r_q")).text
    assert "does not clearly change from first to last" in there_and_back
    assert "it moves in between" in there_and_back


def test_a_reversal_within_noise_is_not_a_turn():
    text = story(look(constant([0.2, 0.5, 0.495, 0.8], noise=0.03)), "mean r_q", mean_of("r_q")).text
    assert "not monotonic" not in text
    assert "rises" in text


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_called_noise(seed):
    study = constant([0.5] * 6, noise=0.05, seed=seed)
    told = story(look(study), "mean r_q", mean_of("r_q"))
    assert "no clear change beyond noise" in told.text
    assert "No single step is clear of noise" in told.text
    assert not re.search(r"\b(rises|falls|monotonic)\b", told.text)


def test_noise_in_heads_of_a_foreign_table_is_called_noise():
    rng = np.random.default_rng(1)
    names = [f"step-{i}" for i in range(1, 6)]
    tables = [
        pd.DataFrame(
            {"model": name, "layer": np.repeat(range(12), 10), "head": np.tile(range(10), 12), "pc": 0}
            | {"r_q": rng.uniform(0, 1, 120), "r_k": rng.uniform(-1, 1, 120)}
        )
        for name in names
    ]
    qk = pd.concat(tables, ignore_index=True).reindex(columns=QK_COLUMNS)
    told = story(look(results(qk, None)), "mean r_q", mean_of("r_q"))
    assert told.own.basis == HEADS
    assert "no clear change beyond noise" in told.text


# --- certainty ---------------------------------------------------------------------------------------------------


def test_without_document_groups_the_yardstick_is_named():
    text = said("01_position_signal", training(3, groups=False))
    assert "No uncertainty over documents is available" in text
    assert "groups of heads" in text
    assert "Mean r_q rises" in text


def test_without_any_yardstick_nothing_is_called_clear():
    study = training(3, groups=False)
    qk = study.qk[(study.qk["layer"] == 1) & (study.qk["head"] < 4)]
    few = replace(study, qk=qk, heads=heads_table(qk), loo=None)
    told = story(look(few), "mean r_q", mean_of("r_q"))
    assert told.own.basis == NOTHING
    assert "No uncertainty is available, so this may be noise" in told.text
    assert not re.search(r"Mean r_q (rises|falls)", told.text)


def test_standard_errors_are_those_of_the_aggregates():
    study = training(3)
    table = position_signal(study.heads, study.loo, study.timeline.models)
    course = follow(look(study), "mean r_q", mean_of("r_q"))
    assert course.basis == DOCUMENTS
    assert course.values == pytest.approx(table["mean_r_q"].to_numpy())
    assert [course.series.se(i) for i in range(3)] == pytest.approx(table["se_r_q"].to_list())


def test_shares_and_spreads_are_those_of_the_heads():
    study = training(2)
    view = look(study)
    heads = study.heads[study.heads["model"] == "step-200"]
    for kind in CLASSES:
        found = follow(view, kind, class_share(view, kind), percent=True)
        assert found.values[-1] == pytest.approx((heads["class"] == kind).mean())
    found = follow(view, "discordant", polarity_share(view, "discordant"), percent=True)
    assert found.values[-1] == pytest.approx((heads["r_k"] < -0.3).mean())
    assert follow(view, "sd", spread_of("r_k")).values[-1] == pytest.approx(heads["r_k"].std(ddof=0))


# --- windows -----------------------------------------------------------------------------------------------------


def with_window(own_k, matched_k):
    """Two checkpoints, the second over a longer window: mean r_k over own and over matched windows."""
    names, spread = ["step-1", "step-2"], np.linspace(-0.04, 0.04, HEADS_COUNT)
    q = np.full((2, HEADS_COUNT), 0.6)
    own = measured(names, q, np.array(own_k)[:, None] + spread, noise=0.004)
    matched = measured(names, q, np.array(matched_k)[:, None] + spread, noise=0.004, seed=1)
    return results(*own, windows=[4096, 32768], matched=matched)


@pytest.mark.parametrize(
    ("own", "matched", "sentence"),
    [
        ([0.5, 0.3], [0.5, 0.5], "nothing of it remains beyond noise"),
        ([0.5, 0.3], [0.5, 0.35], "it falls too"),
        ([0.5, 0.3], [0.5, 0.7], "it goes the other way"),
        ([0.5, 0.5], [0.5, 0.7], "it rises, which the change of window hides"),
        ([0.5, 0.5], [0.5, 0.5], "there is no change beyond noise either"),
    ],
)
def test_matched_window_is_told_where_it_differs(own, matched, sentence):
    told = story(look(with_window(own, matched)), "mean r_k", mean_of("r_k"))
    assert f"Over the first 4K tokens of every checkpoint {sentence}" in told.text
    assert sentence in told.short


def test_a_step_across_a_change_of_window_says_so():
    study = training(4, widen=2)
    text = story(look(study), "mean |r_k|", mean_of("abs_r_k")).text
    quiet = story(look(training(4)), "mean |r_k|", mean_of("abs_r_k")).text
    assert "Over the first 4K tokens" in text
    assert "Over the first" not in quiet
    alone = replace(study, matched=None, loo_matched=None)
    text = story(look(alone), "mean |r_k|", mean_of("abs_r_k"))
    assert text.windows == ""


# --- numbers in the prose are those drawn ------------------------------------------------------------------------


def numbers(text):
    return {float(n) for n in re.findall(r"(?<![\w.])\d\.\d{3}(?![\d%])", text)}


def test_numbers_of_the_means_are_in_data_csv():
    study = training(4, widen=3)
    entry = ENTRIES["01_position_signal"]
    data = entry.draw(study).data
    text = entry.describe(look(study), data).says[0]
    levels = {float(n) for n in re.findall(r"(\d\.\d{3}) at ", text)}
    assert levels == {round(data["mean_r_q"].iloc[0], 3), round(data["mean_r_q"].iloc[3], 3)}


def test_published_numbers_are_told():
    study = published_results()
    text = said("01_position_signal", study)
    assert "Mean r_q rises from 0.673 at S1-40K to 0.870 at LC2-20K: +0.197" in text
    assert "The largest step is +0.140" in text
    assert "from S1-40K to S1-1.2M, 71% of the whole change" in text
    text = said("03_taxonomy_evolution", study)
    assert "At S1-40K, of 300 heads: 103 position-dominated (34.3%), 1 Q-positional (0.3%)" in text
    assert "At LC2-20K, of 300 heads: 212 position-dominated (70.7%)" in text
    assert "S1-40K: 103 position-dominated (34.3%)" in said("07_phase_portraits", study)


def test_strongest_depths_are_told_from_the_cells():
    study = published_results("cells")
    text = said("06_layer_heatmap_rk", study)
    cells = PUBLISHED["depth_heatmap_r_k"]
    assert f"At S1-40K r_k is strongest at depth 0.2–0.3 ({cells[0][2]:.3f})" in text
    assert f"weakest at depth 0.4–0.5 ({cells[0][4]:.3f})" in text


def test_class_counts_and_gains_are_head_by_head():
    study = training(2)
    heads = study.heads.copy()
    # 30 heads go from mixed to position-dominated, 10 the other way.
    heads["class"] = "mixed"
    last, first = heads["model"] == "step-200", heads["model"] == "step-100"
    rank = heads.groupby("model").cumcount()
    heads.loc[last & (rank < 30), "class"] = "position-dominated"
    heads.loc[first & (rank >= 110), "class"] = "position-dominated"
    view = look(replace(study, heads=heads))
    assert gains(view) == "Head by head, from 100 to 200, net: position-dominated gains 20 from mixed."
    back = replace(study, heads=heads, timeline=replace(study.timeline, stops=study.timeline.stops[::-1]))
    assert gains(look(back)) == "Head by head, from 200 to 100, net: mixed gains 20 from position-dominated."


def test_transitions_name_the_busiest_step():
    study = training(3)
    entry = ENTRIES["08_transitions"]
    data = entry.draw(study).data
    moved = data[data["from_class"] != data["to_class"]].groupby("from_model")["heads"].sum()
    text = entry.describe(look(study), data).says[0]
    most = moved.idxmax()
    label = {"step-100": "100 to 200", "step-200": "200 to 300"}[most]
    assert f"at the step from {label}, {moved.max()} of 120 heads" in text


def test_opposite_signs_that_cancel_are_told():
    study = training(2)
    assert "heads of opposite sign cancel in the mean" in said("02_polarity", study)
    qk = study.qk.assign(r_k=study.qk["r_k"].abs())
    one_sign = replace(study, qk=qk, heads=heads_table(qk), loo=None)
    assert "hardly any heads cancel in the mean" in said("02_polarity", one_sign)


# --- one checkpoint, several models ------------------------------------------------------------------------------


def test_one_checkpoint_does_not_speak_of_training():
    study = with_components(training(1), 2)
    view = look(study)
    for entry in CATALOGUE:
        if entry.why_not(view):
            continue
        drawing = entry.draw(study)
        text = readme(view, entry.title(view), entry.describe(view, drawing.data), entry.function, [])
        assert not re.search(r"training|rises|falls|step from|over time", text), entry.name
        heading = " ".join(each.get_text() for each in drawing.figure.texts)
        assert "training" not in heading


def test_models_are_compared_without_a_course():
    text = said("03_taxonomy_evolution", models(["Llama", "Qwen", "Qwen"]))
    assert "is highest in org/model-2" in text
    assert not re.search(r"rises|falls|training", text)


# --- the file ----------------------------------------------------------------------------------------------------


def test_readme_has_what_it_shows_how_it_was_made_and_the_takeaway():
    study = training(4, widen=2, missing=[1])
    facts = {
        name: {"num_layers": 12, "n_q_heads": 10, "n_kv_heads": 5, "rope_theta": 50000.0}
        for name in study.timeline.models
    }
    study = replace(
        study,
        study={"model": "org/some-model", "groups": 8, "heads": {"sample": 120, "seed": 0}},
        provenance={"checkpoints": facts, "corpus": {"documents": 16, "filled": {"4096": 16, "32768": 3}}},
    )
    view = look(study)
    entry = ENTRIES["01_position_signal"]
    quoted = [each for each in claims(study) if each.id == "r_q"]
    text = readme(view, entry.title(view), words(entry.name, study), entry.function, quoted)
    parts = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert parts == ["What this figure shows", "How it was produced", "Key takeaway"]
    for expected in (
        "`simulated/qk.csv`, first principal component (`pc == 0`); 120 query heads per checkpoint, sampled",
        "Over the first 4K tokens: `simulated/qk_matched.csv`",
        "`org/some-model`: 12 layers, 10 query heads, 5 key heads.",
        "300 (`step-300`) and 400 (`step-400`); window 4K tokens, window 32K tokens, rope theta 50000",
        "not measured: gone 1 (no such revision)",
        "16 documents (16 fill 4K, 3 fill 32K tokens), dealt into 8 groups",
        "`qkscope figures simulated`",
        "qkscope.figures.position_signal.draw",
        "How does mean r\\_q change over training",
    ):
        assert expected in text.replace("100 (`step-100`), 200 (`step-200`), ", ""), expected


def test_findings_are_quoted_with_their_verdicts():
    view = look(training(2))
    found = Claim("x", "Is it so?", "cannot tell", "Nobody knows_", "", (), "own", "", "signal")
    text = readme(view, "T", words("01_position_signal", training(2)), "f", [found])
    assert "- *Is it so?* **cannot tell.** Nobody knows\\_." in text


def test_markdown_is_escaped():
    assert md("a_b*c|d<e>`f`$g$") == "a\\_b\\*c\\|d\\<e\\>\\`f\\`\\$g\\$"
    assert md("line\nbreak") == "line break"
    assert code("a`b") == "`` a`b ``"
    assert code("plain") == "`plain`"


def test_numbers_as_printed():
    assert figure(0.6734) == "0.673"
    assert figure(-0.0001) == "0.000"
    assert figure(0.3433, True) == "34.3%"
    assert figure(float("nan")) == "unknown"
    assert difference(Change("x", 0, 1, -0.082, 0.004, 7)) == "-0.082 (± 0.004)"
    assert difference(Change("x", 0, 1, 0.1234, float("nan"), 0), percent=True) == "+12.3 points"
    assert difference(Change("x", 0, 1, 0.00001, 0.004, 7)) == "0.000 (± 0.004)"
    assert listing(["a", "b", "c"]) == "a, b and c"
