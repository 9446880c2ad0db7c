"""READMEs of figures: what is drawn, what the study's claims say of it, how it was made, in harmless Markdown."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from published import published_results
from whole_study import whole

from qkscope.claims import Claim, See, all_claims, claims
from qkscope.claims.catalogue import CLAIMS
from qkscope.figures import CATALOGUE, draw_all
from qkscope.figures.picture import Caption
from qkscope.figures.readme import code, first_sentence, md, readme
from qkscope.figures.view import look
from qkscope.words import number, sentence
from studies import models, training

PICTURES = {picture.name: picture for picture in CATALOGUE}
NASTY = "<b>*x*</b>|`y`$z$_\n# q"


def text_of(name, study, said=None, **caption):
    """The README of a figure; `caption` replaces parts of its caption."""
    view, picture = look(study), PICTURES[name]
    drawing = picture.draw(view, None)
    drawing = replace(drawing, caption=replace(drawing.caption, **caption))
    return readme(picture, view, drawing, claims(study) if said is None else said)


def part(text, heading):
    return text.split(f"## {heading}\n\n")[1].split("\n\n## ")[0].strip()


def claim(name, verdict="rises", **more):
    said = {"headline": f"{name} it is.", "detail": "More so.", "meaning": "So it is.", "caveat": ""} | more
    see = See("signal", "r_q", "step-100", "all")
    return Claim(
        id=name, question="Is it so?", verdict=verdict, rows=(), window="own", rule="", see=see, surprise=0.0, **said
    )  # fmt: skip


# --- claims ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("study", [training(4, widen=2), training(3, groups=False), published_results()])
def test_every_readme_tells_claims_of_its_figure_and_no_others(study):
    said = {each.id: each for each in claims(study)}
    view = look(study)
    for picture in CATALOGUE:
        if picture.why_not(view):
            continue
        text = text_of(picture.name, study)
        told = [name for name, each in said.items() if f"**{md(sentence(each.headline))}**" in text]
        there = [name for name in picture.claims if name in said]
        assert set(told) <= set(picture.claims)
        assert there[:1] == [name for name in there[:1] if name in told], (
            "the first claim is told in any case"
        )
        for name in there[:1]:
            assert md(said[name].detail) in text or picture.draw(view, None).caption.events
            assert md(first_sentence(said[name].meaning)) in part(text, "Key takeaway")


def test_figures_name_claims_that_there_are():
    quoted = {name for picture in CATALOGUE for name in picture.claims}
    assert quoted <= {getattr(make, "id", getattr(make, "__name__", "")) for make in CLAIMS}


def test_readmes_have_a_length_that_is_read():
    study = whole()
    said, view = claims(study), look(study)
    for picture in CATALOGUE:
        if picture.name < "12" and picture.why_not(view) is None:  # the study's optional tables are not whole
            words = len(readme(picture, view, picture.draw(view, None), said).split())
            assert 200 <= words <= 450, (picture.name, words)


def test_the_first_figure_tells_its_own_levels_then_its_claims():
    study = whole()
    drawing = PICTURES["01_position_signal"].draw(look(study), None)
    data = drawing.data[(drawing.data["population"] == "RoPE")]
    text = text_of("01_position_signal", study)
    for end in (data.iloc[0], data.iloc[-1]):
        for value in ("r_q", "r_k"):
            assert number(end[f"mean_{value}"], end[f"se_{value}"]) in text
    said = {each.id: each for each in claims(study)}
    assert text.index("What happened") < text.index(md(said["queries_keys"].headline))


def test_a_readme_has_two_stories_however_long_and_three_where_there_is_room(monkeypatch):
    names = ("one", "two", "three")
    monkeypatch.setitem(
        PICTURES, "03_taxonomy_evolution", replace(PICTURES["03_taxonomy_evolution"], claims=names)
    )
    short = [claim(name) for name in names]
    text = text_of("03_taxonomy_evolution", training(3), short)
    assert all(f"**{md(sentence(each.headline))}** More so." in text for each in short)
    long = [claim(name, detail="Word " * 400 + "end.") for name in names]
    text = text_of("03_taxonomy_evolution", training(3), long)
    assert [f"**{md(sentence(each.headline))}**" in text for each in long] == [True, True, False]
    assert text.count("Word") == 400, "the second without its detail"


def test_the_takeaway_is_what_the_claims_mean_and_the_caveat_stands_below():
    names = PICTURES["07_phase_portraits"].claims
    said = [
        claim(names[0], meaning="First. With more.", caveat="Beware of it."),
        claim(names[1], meaning="Second. Not this."),
    ]
    study = training(3)
    takeaway = part(text_of("07_phase_portraits", study, said, care="Pooled."), "Key takeaway")
    assert takeaway.startswith("First. With more. Second.")
    assert "Not this" not in takeaway
    assert re.search(r"\*\*.*\*\* Beware of it\. Pooled\.$", takeaway)
    said = [claim(names[0], meaning="First.", caveat="")]
    alone = text_of("07_phase_portraits", study, said, care="", takeaway="")
    assert part(alone, "Key takeaway") == "First."
    assert "Key takeaway" not in text_of("07_phase_portraits", study, [], care="", takeaway="")


# --- the file ----------------------------------------------------------------------------------------------------


def test_readme_says_how_the_figure_was_produced():
    study = training(4, widen=2, missing=[1])
    facts = {
        name: {"num_layers": 12, "n_q_heads": 10, "n_kv_heads": 5, "rope_theta": 50000.0}
        for name in study.timeline.models
    }
    study = replace(
        study,
        study={"model": "org/some-model", "groups": 8, "heads": {"sample": 120, "seed": 0}},
        provenance={"checkpoints": facts, "corpus": {"documents": 16}},
    )
    made = part(text_of("01_position_signal", study), "How it was produced")
    numbers = [int(line.split(".")[0]) for line in made.splitlines() if line[0].isdigit()]
    assert numbers == list(range(1, len(numbers) + 1))
    for expected in (
        *(
            "`simulated/qk.csv`",
            "`measures.safetensors`",
            "120 query heads",
            "seed 0",
            "16 documents",
            "8 groups",
        ),
        *("`org/some-model`", "12 layers, 10 query heads, 5 key heads"),
        *("100, 200, 300, 400", "window 4,096 tokens", "window 32,768 tokens", "rope theta 50,000"),
        *("gone 1 (no such revision)", "`qkscope figures simulated`", "docs/methods.md"),
    ):
        assert expected in made, expected


def test_many_checkpoints_are_not_listed_one_by_one():
    made = part(text_of("01_position_signal", training(40)), "How it was produced")
    assert "40 from 100 to 4000" in made


def test_one_checkpoint_does_not_speak_of_training():
    view = look(training(1))
    for picture in CATALOGUE:
        if not picture.why_not(view):
            text = text_of(picture.name, training(1), ())
            assert "training" not in text, picture.name


def test_models_are_not_called_checkpoints():
    study = models(["Llama", "Qwen", "Qwen"])
    for name in ("03_taxonomy_evolution", "07_phase_portraits"):
        assert not re.search(r"checkpoint|training", text_of(name, study, ()))


def test_names_claims_and_captions_cannot_become_markup():
    study = training(2, names=["a", NASTY], labels=["a", NASTY], phases=["x", NASTY])
    study = replace(study, timeline=replace(study.timeline, title=NASTY))
    told = PICTURES["01_position_signal"].claims[0]
    nasty = dict.fromkeys(("headline", "detail", "meaning", "caveat"), NASTY)
    words = [name for name in Caption.__dataclass_fields__ if name not in ("window", "table", "events")]
    text = text_of(
        "01_position_signal", study, [claim(told, **nasty)], events=((NASTY, NASTY),), **dict.fromkeys(words, NASTY)
    )  # fmt: skip
    bare = re.sub(r"(`+) .*? \1", "", text)
    assert "<b>" not in bare
    assert not re.search(r"(?<!\\)\$z", bare)
    assert "\n# q" not in text


def test_markdown_is_escaped():
    assert md("a_b*c|d<e>`f`$g$") == "a\\_b\\*c\\|d&lt;e&gt;\\`f\\`\\$g\\$"
    assert md("line\nbreak") == "line break"
    assert code("a`b") == "`` a`b ``"
    assert code("plain") == "`plain`"


def test_a_figure_tells_its_claim_also_where_the_study_leads_with_others(tmp_path, monkeypatch):
    monkeypatch.setattr("qkscope.claims.catalogue.MOST_CLAIMS", 1)
    monkeypatch.setattr("qkscope.figures.drawing.CATALOGUE", [PICTURES["03_taxonomy_evolution"]])
    study = training(3)
    assert [each.id for each in claims(study)] != ["classes"]
    draw_all(study, tmp_path)
    text = (tmp_path / "03_taxonomy_evolution" / "README.md").read_text()
    classes = next(each for each in all_claims(study) if each.id == "classes")
    assert md(classes.headline) in part(text, "What happened")
    assert part(text, "Key takeaway") != part(text, "What this figure shows")
