"""What the READMEs say: a caption of what is drawn, and the study's claims as they are, in harmless Markdown."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from published import published_results
from whole_study import whole

from qkscope.claims import Claim, Row, See, claims
from qkscope.figures import CATALOGUE
from qkscope.figures.picture import Caption
from qkscope.figures.readme import code, md, readme
from qkscope.figures.view import look
from qkscope.words import sentence
from studies import models, training, with_components

PICTURES = {picture.name: picture for picture in CATALOGUE}
NASTY = "<b>*x*</b>|`y`$z$_\n# q"


def text_of(name, study, said=None):
    view, picture = look(study), PICTURES[name]
    return readme(picture, view, picture.draw(view).data, claims(study) if said is None else said)


def takeaway(text):
    return text.split("## Key takeaway\n\n")[1].strip()


def claim(name, verdict="rises", **more):
    said = {"headline": f"{name} it is.", "detail": "More so.", "rule": "The rule.", "caveat": ""} | more
    see = See("signal", "r_q", "step-100", "all")
    return Claim(
        id=name, question="Is it so?", meaning="So it is.", verdict=verdict, rows=said.pop("rows", ()), window="own",
        see=see, surprise=0.0, **said,
    )  # fmt: skip


# --- claims ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("study", [training(4, widen=2), training(3, groups=False), published_results()])
def test_every_readme_quotes_the_claims_of_its_picture_and_no_others(study):
    said = {each.id: each for each in claims(study)}
    view = look(study)
    for picture in CATALOGUE:
        if picture.why_not(view):
            continue
        text = text_of(picture.name, study)
        for name, each in said.items():
            heading = f"**{md(sentence(each.headline))}** *{md(each.question)}*"
            assert (heading in text) == (name in picture.claims), (picture.name, name)
            if name in picture.claims:
                assert md(each.detail) in text
                assert md(each.caveat) in text
                assert all(md(part) in text for part in re.split(r"(?<=[.]) (?=[A-Z±])", each.rule))


def test_every_claim_stands_under_some_picture():
    quoted = {name for picture in CATALOGUE for name in picture.claims}
    assert {each.id for each in claims(whole())} <= quoted


def test_the_takeaway_is_the_first_claim_that_says_something_with_its_doubt():
    told = PICTURES["01_position_signal"].claims
    said = [
        claim(told[1], "rises", headline="It rises.", caveat="Or does it?"),
        claim(told[0], "unclear", headline="Nobody knows."),
        claim(told[2], "falls", headline="It falls."),
    ]
    text = text_of("01_position_signal", training(3), said)
    assert takeaway(text) == "It rises. Or does it?"
    assert takeaway(text_of("01_position_signal", training(3), said[1:2])) == "Nobody knows."
    assert takeaway(text_of("01_position_signal", training(3), ())).startswith(md("Mean r_q (blue circles)"))


def test_numbers_of_a_claim_stand_in_a_table():
    told = PICTURES["01_position_signal"].claims[0]
    rows = (
        Row("mean r_q", "r_q", "all", "step-100", 0.4321, se=0.013),
        Row("mean r_q", "r_q", "all", "step-300", -0.2, 0.004, "step-100", "matched", verdict="falls"),
    )
    text = text_of("01_position_signal", training(4, widen=2), [claim(told, rows=rows)])
    assert "| mean r\\_q |  | 100 | 0.43 ± 0.01 | own | level |" in text
    assert "| mean r\\_q | 100 | 300 | −0.200 ± 0.004 | first 4,096 tokens | falls |" in text


def test_a_long_table_keeps_what_was_judged_and_says_what_it_leaves_out():
    told = PICTURES["01_position_signal"].claims[0]
    rows = [Row("number", "r_q", "all", "step-100", 0.1 * i) for i in range(8)]
    rows[7] = replace(rows[7], what="change", verdict="rises")
    text = text_of("01_position_signal", training(3), [claim(told, rows=tuple(rows))])
    assert text.count("| number |") == 5
    assert "| change |" in text
    assert "The table shows 6 of 8 numbers." in text


def test_a_picture_names_the_table_it_draws_and_says_where_its_window_is_another():
    study = training(4, widen=2)
    view = look(study)
    over = "The picture is over each checkpoint's own window"
    for table, window, expected in (
        ("qk.csv", "both", "`simulated/qk.csv`, first principal component (`pc == 0`); 120"),
        ("anatomy.csv", "own", "`simulated/anatomy.csv`; 120 query heads per checkpoint.\n"),
        ("plasticity.csv", "both", "Over the first 4,096 tokens: `simulated/plasticity_matched.csv`"),
        (
            "causes_matched.csv",
            "matched",
            "`simulated/causes_matched.csv`; 120 query heads per checkpoint.\n",
        ),
    ):
        drawn = SimpleNamespace(
            name="01_one", claims=("position",), title=lambda view: "One",
            caption=lambda view, data, t=table, w=window: Caption("It shows.", "So.", table=t, window=w),
        )  # fmt: skip
        text = readme(drawn, view, study.heads, claims(study))
        assert expected in text
        assert (over in text) == (window == "own")
        told = [replace(each, window="own") for each in claims(study)]
        assert over not in readme(drawn, view, study.heads, told)


def test_a_rule_is_said_once():
    told = PICTURES["01_position_signal"].claims
    text = text_of("01_position_signal", training(3), [claim(told[0]), claim(told[1])])
    assert text.count("The rule.") == 1


# --- captions ----------------------------------------------------------------------------------------------------


def test_captions_speak_of_the_matched_window_only_where_there_is_one():
    for name in PICTURES:
        wide, even = (with_components(training(4, widen=widen), 2) for widen in (2, None))
        if name == "10_by_component":
            wide = replace(wide, qk_matched=wide.qk)
        if PICTURES[name].why_not(look(wide)):
            assert name > "10"  # the study has no anatomy and no causes
            continue
        assert "first 4,096 tokens" in text_of(name, wide, ())
        assert "first 4,096 tokens" not in text_of(name, even, ())


def test_one_checkpoint_does_not_speak_of_training():
    study = with_components(training(1), 2)
    view = look(study)
    for picture in CATALOGUE:
        if picture.why_not(view):
            continue
        text = text_of(picture.name, study, ())
        assert not re.search(r"training|rises|falls|over time", text), picture.name
        heading = " ".join(each.get_text() for each in picture.draw(view).figure.texts)
        assert "training" not in heading


def test_models_are_not_called_checkpoints():
    study = models(["Llama", "Qwen", "Qwen"])
    for name in ("03_taxonomy_evolution", "07_phase_portraits", "10_by_component"):
        assert not re.search(r"checkpoint|training", text_of(name, study, ()))


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
    text = text_of("01_position_signal", study)
    parts = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert parts == ["What this figure shows", "How it was produced", "Key takeaway"]
    for expected in (
        "`simulated/qk.csv`, first principal component (`pc == 0`); 120 query heads per checkpoint, sampled",
        "Over the first 4,096 tokens: `simulated/qk_matched.csv`",
        "`org/some-model`: 12 layers, 10 query heads, 5 key heads.",
        "300 (`step-300`) and 400 (`step-400`); window 4,096 tokens, window 32,768 tokens, rope theta 50,000",
        "not measured: gone 1 (no such revision)",
        "16 documents (16 fill 4,096 tokens, 3 fill 32,768 tokens), dealt into 8 groups",
        "`qkscope figures simulated`",
        "`qkscope.figures.draw('position_signal', 'simulated', width=3.3)`",
        "[figure.pdf](figure.pdf)",
    ):
        assert expected in text.replace("100 (`step-100`), 200 (`step-200`), ", ""), expected


def test_names_and_claims_cannot_become_markup():
    study = training(2, names=["a", NASTY], labels=["a", NASTY], phases=["x", NASTY])
    study = replace(study, timeline=replace(study.timeline, title=NASTY))
    told = PICTURES["01_position_signal"].claims[0]
    rows = (Row(NASTY, "r_q", "all", NASTY, 0.5),)
    text = text_of(
        "01_position_signal", study, [claim(told, headline=NASTY, detail=NASTY, rows=rows, caveat=NASTY)]
    )
    bare = re.sub(r"(`+) .*? \1", "", text)
    assert "<b>" not in bare
    assert not re.search(r"(?<!\\)\$z", bare)
    assert "\n# q" not in text
    (cells,) = [line for line in text.splitlines() if line.startswith("| &lt;b")]
    assert len(re.findall(r"(?<!\\)\|", cells)) == 7


def test_markdown_is_escaped():
    assert md("a_b*c|d<e>`f`$g$") == "a\\_b\\*c\\|d&lt;e&gt;\\`f\\`\\$g\\$"
    assert md("line\nbreak") == "line break"
    assert code("a`b") == "`` a`b ``"
    assert code("plain") == "`plain`"
