"""All texts of a study say the same: claims, READMEs of figures, summary.json and the page, number by number."""

from __future__ import annotations

import html
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest
from whole_study import whole

from qkscope.claims import claims, summary
from qkscope.figures import CATALOGUE
from qkscope.figures.readme import md, readme
from qkscope.figures.view import look
from qkscope.report import render
from qkscope.results import Results, load_results
from qkscope.words import sentence
from studies import training, with_components

UP, DOWN = {"rises", "higher"}, {"falls", "lower"}


class Told(NamedTuple):
    """One number as one text tells it; `start` and `end` are labels, `window` is own or matched."""

    what: str
    start: str
    end: str
    window: str
    value: str
    verdict: str


def label(study: Results, model: str | None) -> str:
    return "" if model is None else study.timeline.checkpoint(model).label


def in_claims(study: Results) -> list[Told]:
    return [
        Told(r.what, label(study, r.from_model), label(study, r.model), r.window, r.text, r.verdict)
        for claim in claims(study)
        for r in claim.rows
    ]


def in_summary(study: Results) -> list[Told]:
    found = []
    for one in json.loads(json.dumps(summary(study)))["findings"]:
        for r in one["numbers"]:
            ends = label(study, r["from_model"]), label(study, r["model"])
            found.append(Told(r["what"], *ends, r["window"], r["text"], r["verdict"]))
    return found


def readmes(study: Results) -> dict[str, str]:
    view = look(study)
    return {
        picture.name: readme(picture, view, picture.draw(view, None), claims(study))
        for picture in CATALOGUE
        if not picture.why_not(view)
    }


def in_page(page: str, two_windows: bool) -> list[Told]:
    found = []
    for line in re.findall(r'<tr><th scope="row">.*?</tr>', page):
        cells = [html.unescape(re.sub("<.*?>", "", cell)) for cell in re.findall(r"<t[hd].*?</t[hd]>", line)]
        if len(cells) == (6 if two_windows else 5):
            what, value, _, where, *window, verdict = cells
            start, _, end = where.rpartition(" → ")
            name = "own" if window in ([], ["training context"]) else "matched"
            found.append(Told(what, start, end, name, value, verdict))
    return found


@pytest.fixture(scope="module", params=["old results", "one window", "whole"])
def study(request) -> Results:
    if request.param == "one window":
        return with_components(training(3), 2)
    if request.param == "whole":
        return whole()
    return load_results(Path(__file__).parent / "old_results")


@pytest.fixture(scope="module")
def written(study) -> dict[str, str]:
    """READMEs by picture; the simulated study that has everything has too few columns to be drawn."""
    return {} if "share_key" in study.data else readmes(study)


def test_every_number_has_one_value_and_one_verdict_in_all_texts(study):
    texts = {
        "claims": in_claims(study),
        "summary": in_summary(study),
        "page": in_page(render(study), study.matched() is not None),
    }
    told: dict[tuple, dict[str, set]] = defaultdict(lambda: defaultdict(set))
    for source, rows in texts.items():
        for row in rows:
            told[row[:4]][source].add((row.value, row.verdict))
    for key, sources in told.items():
        assert "claims" in sources, (key, sources)
        said = set().union(*sources.values())
        assert len({value for value, _ in said}) == 1, (key, dict(sources))
        assert len({verdict for _, verdict in said}) == 1, (key, dict(sources))
    assert len(texts["claims"]) == len(texts["summary"]) == len(texts["page"]) > 20


def test_no_verdict_has_the_other_sign(study):
    for row in in_claims(study):
        if row.verdict in UP | DOWN and row.start:
            assert row.value.startswith("+" if row.verdict in UP else "−"), row


def test_texts_quote_headlines_as_they_are(study, written):
    """No text rewords a claim: README, page and summary have its headline letter by letter."""
    page = html.unescape(re.sub("</?span.*?>", "", render(study)))
    told = [each["headline"] for each in summary(study)["findings"]]
    by_id = {claim.id: claim for claim in claims(study)}
    assert told == [claim.headline for claim in claims(study)]
    assert all(headline in page for headline in told)
    for picture in CATALOGUE:
        if picture.name in written:
            for claim in [by_id[each] for each in picture.claims if each in by_id][:1]:
                assert md(sentence(claim.headline)) in written[picture.name]
