"""Pictures and claims of what decides, of a small study measured whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_study import make_study, run_quietly

from qkscope.anatomy_means import measured, what_decides
from qkscope.claims import claims
from qkscope.figures.catalogue import CATALOGUE
from qkscope.figures.view import look
from qkscope.measures.jackknife import jackknife
from qkscope.results import load_results

NAMES = ("what_decides", "what_decides_by_layer", "r_against_eta", "mean_path", "distance_curve", "spectrum")
IDS = {"scores", "wavelengths", "linearity", "distance"}


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
    assert not {claim.id for claim in claims(older)} & IDS


def test_claims_are_of_the_tables(results):
    said = {claim.id: claim for claim in claims(results)}
    assert set(said) >= IDS
    last = results.anatomy_matched[results.anatomy_matched["model"] == results.timeline.models[-1]]
    for row in said["scores"].rows:
        columns = (
            ["share_position", "share_query_position"] if row.measure == "share_positional" else [row.measure]
        )
        assert row.value == pytest.approx(last[columns].sum(axis=1).mean(), abs=1e-12)
        assert np.isfinite(row.se)
    for row in said["linearity"].rows:
        if row.measure.startswith("eta") and "-" not in row.measure:
            assert row.value == pytest.approx(last[row.measure].mean(), abs=1e-9)


@pytest.mark.parametrize(("lead", "verdict"), [(0.9, "majority"), (0.4, "largest")])
def test_only_more_than_half_of_r_q_is_most(results, lead, verdict):
    table = results.spectrum_matched
    pairs = int(table["pair"].max())
    signal = np.where(table["pair"] == pairs, lead, (1 - lead) / pairs)
    other = replace(results)
    vars(other)["spectrum_matched"] = table.assign(
        signal=signal
    )  # in place of what is read when first asked for
    said = next(claim for claim in claims(other) if claim.id == "wavelengths")
    assert said.verdict == verdict
    assert said.rows[0].value == pytest.approx(lead)


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
