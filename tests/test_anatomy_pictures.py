"""Figures and claims about attention scores, of a small study measured whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from small_study import make_study, run_undrawn

from qkscope.claims import claims
from qkscope.figures.drawing import CATALOGUE, draw
from qkscope.figures.gallery.fig08_layers import PARTS
from qkscope.figures.view import look
from qkscope.measures.samples import jackknife
from qkscope.results import load_results
from qkscope.results.aggregate import carried_by, means
from qkscope.results.dataset import CellData, CellInfo, dataset
from qkscope.results.tables import from_qk, select

NAMES = ("score_variance", "wavelengths", "distance_curve")
IDS = {"scores", "wavelengths", "linearity", "distance"}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("anatomy")
    run_undrawn(make_study(folder), folder / "out")
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


def drawn(name, results):
    return draw(name, results).data


def test_shares_by_layer_are_means_over_heads(results):
    data = drawn("score_variance", results)
    table = results.matched_heads.set_index("model")
    for (model, layer, part), rows in data.groupby(["model", "layer", "part"]):
        heads = table.loc[model]
        assert rows["share"].item() == pytest.approx(heads[heads["layer"] == layer][PARTS[part]].mean())
    assert data.groupby(["model", "layer"])["share"].sum().to_numpy() == pytest.approx(1)


def test_shares_of_all_layers_are_those_that_the_claim_names(results):
    """The number in the headline of figure 08 is in its picture."""
    data, last = drawn("score_variance", results), results.timeline.models[-1]
    whole = data[data["layer"].isna() & (data["model"] == last)]
    table = results.matched_heads.set_index("model").loc[last]
    for name, rows in whole.groupby("population"):
        heads = table if name == "all" else table[table["rope"] == float(name == "RoPE")]
        shares = rows.set_index("part")["share"]
        assert shares.to_dict() == pytest.approx(
            {part: heads[column].mean() for part, column in PARTS.items()}
        )
    assert set(whole["population"]) == set(look(results).populations or ("all",))


def test_wavelengths_are_shares_of_the_parts_of_r_q(results):
    data = drawn("wavelengths", results)
    matched = results.matched().sel(pair=slice(0, None))
    for model in results.timeline.models:
        here = matched.sel(checkpoint=model)
        signal = pd.DataFrame(here["signal_q"].to_numpy(), columns=here["wavelength"].to_numpy()[0])
        for layer in (*np.unique(here["layer"]), pd.NA):
            expected = weighted_shares(
                signal if pd.isna(layer) else signal[here["layer"].to_numpy() == layer]
            )
            rows = data[
                (data["model"] == model)
                & (data["layer"].eq(layer) if layer is not pd.NA else data["layer"].isna())
            ]
            assert rows.set_index("wavelength")["share"].loc[expected.index].to_numpy() == pytest.approx(
                expected.to_numpy()
            )


def weighted_shares(signal):
    """Heads as rows, wavelengths as columns: each head's shares, weighted by its |r_q|."""
    shares = signal.abs().div(signal.abs().sum(axis=1), axis=0)
    weight = signal.sum(axis=1).abs()
    return shares.mul(weight, axis=0).sum() / weight.sum()


def test_a_head_without_r_q_does_not_count_among_wavelengths():
    arrays = {"signal_q": np.array([[0, 0.6, 0.2], [0, -0.01, 0.01]])}
    arrays["wavelength"] = np.tile([np.inf, 100.0, 1000.0], (2, 1))
    data = select(dataset([CellData(CellInfo("m", 256), [(0, 0), (0, 1)], arrays)]), "own")
    found = carried_by(data, "q").set_index("wavelength")["share"]
    assert found.to_dict() == pytest.approx({100.0: 0.75, 1000.0: 0.25})


def test_shares_of_a_mean_r_q_within_noise_are_not_claimed(results):
    data = results.data.load()
    other = replace(results, data=data.assign(signal_q=data["signal_q"] * 1e-6))
    assert "wavelengths" not in {claim.id for claim in claims(other)}


def test_figures_over_one_window_name_it_under_their_title(results):
    view = look(results)
    assert view.rematched
    window = str(results.timeline.matched_window)
    assert window in view.subtitle(matched=True)
    longer = {str(checkpoint.window) for checkpoint in view.checkpoints} - {window}
    assert not [size for size in longer if size in view.subtitle(matched=True)]


def test_the_parts_of_position_stand_side_by_side(results):
    data = drawn("score_variance", results)
    first = data[(data["model"] == data["model"].iloc[0]) & (data["layer"] == data["layer"].iloc[0])]
    assert first["part"].tolist()[:2] == ["position", "query × position"]


def test_distance_curves_are_means_over_heads_about_the_mean_key(results):
    """The claim's number, one token back, is a point of the figure."""
    data = drawn("distance_curve", results)
    last = results.timeline.models[-1]
    said = next(claim for claim in claims(results) if claim.id == "distance")
    name = next(heads for heads in data["heads"] if heads.startswith("mean of"))
    curve = data[(data["heads"] == name) & (data["model"] == last)].set_index("distance")["score"]
    assert said.rows[0].value == pytest.approx(curve.loc[1])
    scores = results.matched()["distance_score"].sel(checkpoint=last, distance=curve.index.to_list())
    assert curve.to_numpy() == pytest.approx(scores.to_numpy().mean(axis=0))


@pytest.mark.parametrize("name", NAMES)
def test_older_results_say_why_there_is_no_picture(results, name, tmp_path):
    older = replace(results, data=from_qk(results.qk), folder=tmp_path)
    picture = next(p for p in CATALOGUE if p.name.partition("_")[2] == name)
    assert "measure the study again" in picture.why_not(look(older))
    assert not {claim.id for claim in claims(older)} & IDS


def test_claims_are_of_the_tables(results):
    said = {claim.id: claim for claim in claims(results)}
    assert set(said) >= IDS - {"wavelengths"}  # r_q of a model of random weights is within noise
    last = results.matched_heads[results.matched_heads["model"] == results.timeline.models[-1]]
    for row in said["scores"].rows:
        if row.unit == "heads":
            here = results.matched_heads[results.matched_heads["model"] == row.model]
            kind = row.measure.removeprefix("score_class ")
            assert row.value == (here["score_class"] == kind).sum()
            continue
        columns = (
            ["share_position", "share_query_position"] if row.measure == "share_positional" else [row.measure]
        )
        assert row.value == pytest.approx(last[columns].sum(axis=1).mean(), abs=1e-12)
        assert np.isfinite(row.se)
    for row in said["linearity"].rows:
        if row.window == "matched" and row.measure.startswith("eta") and "-" not in row.measure:
            assert row.value == pytest.approx(last[row.measure].mean(), abs=1e-9)


@pytest.mark.parametrize(("lead", "verdict"), [(0.9, "majority"), (0.4, "largest")])
def test_only_more_than_half_of_r_q_is_most(results, lead, verdict):
    data = results.data.load()
    pairs = int(data["pair"].max())
    signal = (
        data["signal_q"].where(data["pair"] == pairs, (1 - lead) / pairs).where(data["pair"] < pairs, lead)
    )
    other = replace(results, data=data.assign(signal_q=signal))
    said = next(claim for claim in claims(other) if claim.id == "wavelengths")
    assert said.verdict == verdict
    assert said.rows[0].value == pytest.approx(lead)


def test_errors_of_means_are_over_documents(results):
    model = results.timeline.models[0]
    left = results.own()["share_key"].sel(checkpoint=model).to_numpy()[1:].mean(axis=1)
    (row,) = means(results.own(), [model], ["share_key"]).to_dict("records")
    assert row["se_share_key"] == pytest.approx(float(jackknife(left)), rel=1e-9)


def test_transitions_count_heads_that_kept_their_axis(results):
    table = pd.read_csv(results.folder / "transitions.csv")
    assert (table["same_axis"] <= table["heads"]).all()
    kept = results.heads.groupby("model", sort=False)["same_axis"].sum().iloc[1:].sum()
    assert table["same_axis"].sum() == kept
    assert set(results.axes) == set(results.timeline.models)
