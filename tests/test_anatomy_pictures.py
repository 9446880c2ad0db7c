"""Pictures and claims of what decides, of a small study measured whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_study import make_study, run_quietly

from qkscope.anatomy_means import PARTS, measured, what_decides
from qkscope.figures.catalogue import CATALOGUE
from qkscope.figures.view import look
from qkscope.findings import VERDICTS, claims
from qkscope.measures.jackknife import jackknife
from qkscope.results import load_results
from qkscope.words import count, number

NAMES = ("what_decides", "what_decides_by_layer", "r_against_eta", "mean_path", "distance_curve", "spectrum")
IDS = ("what_decides", "rotating_constant", "keys_know_more", "frequencies")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    import qkscope.figures
    import qkscope.report

    own = qkscope.figures.draw_all, qkscope.report.write_report
    folder = tmp_path_factory.mktemp("anatomy")
    try:
        run_quietly(make_study(folder), folder / "out")
    finally:
        qkscope.figures.draw_all, qkscope.report.write_report = own
    return load_results(folder / "out")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [None, 3.3, 6.9])
def test_pictures_are_drawn_from_a_run(results, name, width):
    picture = next(p for p in CATALOGUE if p.name.partition("_")[2] == name)
    view = look(results)
    assert picture.why_not(view) is None
    drawing = picture.draw(view, width)
    assert len(drawing.data)
    assert not drawing.data.isna().all(axis=None)
    if width is not None:
        assert drawing.figure.get_size_inches()[0] == pytest.approx(width)
    caption = picture.caption(view, drawing.data)
    assert caption.shows.endswith(".")
    assert caption.made.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_older_results_say_why_there_is_no_picture(results, name, tmp_path):
    older = replace(results, anatomy=None, anatomy_matched=None, folder=tmp_path)
    picture = next(p for p in CATALOGUE if p.name.partition("_")[2] == name)
    assert "measure the study again" in picture.why_not(look(older))
    assert not {claim.id for claim in claims(older)} & {*IDS, "what_decides_classes"}


def test_claims_quote_the_tables(results):
    said = {claim.id: claim for claim in claims(results)}
    assert set(IDS) <= set(said)
    for name in IDS:
        claim = said[name]
        assert claim.verdict in VERDICTS
        assert len(claim.headline.split()) <= 20
    last = results.anatomy_matched[results.anatomy_matched["model"] == results.timeline.models[-1]]
    for row, column in zip(said["what_decides"].rows, PARTS.values(), strict=True):
        assert row.value == pytest.approx(last[column].mean(), abs=1e-12)
        assert np.isfinite(row.se)
    eta = next(row for row in said["keys_know_more"].rows if row.what == "mean eta_k²")
    assert eta.value == pytest.approx((last["eta_k"] ** 2).mean(), abs=1e-9)
    assert [row.verdict != "" for row in said["keys_know_more"].rows] == [True, False]  # eta's, against r's
    own = measured(results, results.timeline.models[-1:])[0].heads
    eta, r = own["eta_k"] ** 2, own["r_k"] ** 2
    apart = count(int((eta - r > 0.1).sum()), "head")
    told = (
        f"Over its own window they are {number(eta.mean())} and {number(r.mean())}, and differ so in {apart}."
    )
    assert said["keys_know_more"].detail.endswith(told)


@pytest.mark.parametrize(
    ("shares", "headline"),
    [
        ((0.31, 0.305, 0.3, 0.085), "Position, the key and the match decide about equally, 30% to 31% each"),
        ((0.4, 0.395, 0.1, 0.105), "Position and the key decide about equally, 40% to 40% each"),
        ((0.5, 0.2, 0.2, 0.1), "Where the key stands decides most, 50%, before the key"),
    ],
)
def test_every_part_that_cannot_be_told_from_the_largest_is_named(results, shares, headline):
    parts = dict(zip(PARTS.values(), shares, strict=True))
    anatomy = results.anatomy_matched.assign(**parts)
    other = replace(
        results, anatomy_matched=anatomy, loo_anatomy_matched=results.loo_anatomy_matched.assign(**parts)
    )
    said = next(claim for claim in claims(other) if claim.id == "what_decides")
    assert said.headline == headline
    assert said.verdict == ("yes" if "most" in headline else "cannot tell")


@pytest.mark.parametrize(("lead", "words"), [(0.9, "Most of r_q"), (0.4, "The largest part of r_q")])
def test_only_more_than_half_is_called_most(results, lead, words):
    table = results.spectrum
    pairs = int(table["pair"].max())
    signal = np.where(table["pair"] == pairs, lead, (1 - lead) / pairs)
    other = replace(results)
    vars(other)["spectrum"] = table.assign(signal=signal)  # in place of what is read when first asked for
    said = next(claim for claim in claims(other) if claim.id == "frequencies")
    assert said.headline.startswith(words)
    assert f"makes {lead:.0%} of r_q" in said.detail
    assert max(row.value for row in said.rows) == pytest.approx(lead)


def test_errors_of_means_are_over_documents(results):
    model = results.timeline.models[0]
    each = measured(results, [model])[0]
    left = results.loo_anatomy[results.loo_anatomy["model"] == model].groupby("group")["share_key"].mean()
    table = what_decides([each])
    row = table[table["part"] == "key"].iloc[0]
    assert row["se"] == pytest.approx(float(jackknife(left.to_numpy())), rel=1e-9)
    assert table["share"].sum() == pytest.approx(1, abs=1e-9)


def test_transitions_count_heads_that_kept_their_axis(results):
    import pandas as pd

    table = pd.read_csv(results.folder / "transitions.csv")
    assert (table["same_axis"] <= table["heads"]).all()
    kept = results.anatomy.groupby("model", sort=False)["same_axis"].sum().iloc[1:].sum()
    assert table["same_axis"].sum() == kept
    assert set(results.axes) == set(results.timeline.models)
