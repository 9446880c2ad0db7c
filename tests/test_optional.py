"""Measures that a study asks for: from a run to its tables, and what the tables hold to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_study import make_study, run_undrawn
from tiny import tiny_model

import qkscope
from qkscope.capture import measure
from qkscope.claims import claims
from qkscope.corpus import documents_from
from qkscope.errors import StudyError
from qkscope.figures.drawing import CATALOGUE
from qkscope.figures.view import look
from qkscope.measures.registry import groups, optional_names
from qkscope.report.data import payload
from qkscope.results import load_results
from qkscope.run.units import key_of
from qkscope.study import load_study
from qkscope.sums import KeySum, Recorder
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.keys import KeySampling

PICTURES = ("drift", "plasticity")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("optional")
    study = make_study(folder)
    # Sixteen buckets of two and of three tokens: the shortest in which keys make pairs.
    text = study.read_text().replace("16", "32")
    study.write_text(text + "measures: [rotation, per_kind, plasticity]\nplasticity: {keys: 3}\n")
    run_undrawn(study, folder / "results")
    return folder / "results"


def test_a_study_may_name_every_optional_measure_and_no_other(small, tmp_path):
    study = tmp_path / "study.yaml"
    text = (
        "name: x\nwindows: [16]\ncorpus: {{source: stdlib}}\ncheckpoints: [{{model: a/b}}]\nmeasures: [{}]\n"
    )
    study.write_text(text.format(", ".join(optional_names())))
    assert load_study(study, optional_names()).measures == list(optional_names())
    study.write_text(text.format("rotatoin"))
    with pytest.raises(StudyError, match="did you mean rotation"):
        load_study(study, optional_names())
    assert load_study(study).measures == [
        "rotatoin"
    ]  # as of results made with a package that is not installed


def test_by_default_nothing_is_measured_that_costs_more_than_a_pass(tmp_path):
    assert load_study(make_study(tmp_path)).measures == ["rotation", "per_kind"]


def test_a_run_has_every_measure_over_both_windows(small):
    results = load_results(small)
    for heads in (results.heads, results.matched_heads):
        assert len(heads) == 3 * 8
        np.testing.assert_allclose(heads["slope_k"], heads["alpha_k"] * heads["window"])
        np.testing.assert_allclose(
            heads["bias_logits"], heads["bias_strength"] * heads["window"] / np.sqrt(8)
        )
        for name in ("rotation", "per_kind"):
            columns = [v.name for v in groups()[name].variables if not v.dims]
            assert heads[[*columns, *(f"{column}_se" for column in columns)]].notna().all(axis=None), name
    assert set(results.heads["window"]) == {32, 48}
    assert set(results.matched_heads["window"]) == {32}


def test_plasticity_is_the_plain_mean_of_its_map(small):
    own = load_results(small).own()
    cells = own["plasticity_map"]
    assert cells.where(cells["query_bucket"] <= cells["key_bucket"]).isnull().all()
    mean = cells.mean(["query_bucket", "key_bucket"]).to_numpy()
    assert np.isfinite(mean).any()
    np.testing.assert_allclose(mean, own["plasticity"].isel(sample=0).to_numpy(), rtol=1e-12)


@pytest.mark.parametrize("width", [None, 3.3, 6.9])
@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_drawn_from_a_run(small, name, width):
    picture = next(p for p in CATALOGUE if p.name.partition("_")[2] == name)
    view = look(load_results(small))
    assert picture.why_not(view) is None
    drawing = picture.draw(view, width)
    assert len(drawing.data)
    if width is not None:
        assert drawing.figure.get_size_inches()[0] == pytest.approx(width)
    assert set(drawing.data["window"]) == {"own", "matched"}, "over the matched window where there is one"


def test_lines_are_means_over_heads(small):
    results = load_results(small)
    models = results.timeline.models
    for name, column in (("drift", "bias_logits"), ("plasticity", "plasticity")):
        data = qkscope.figure(name, results).data.set_index(["population", "model"])
        table = results.matched_heads
        for population in set(data.index.get_level_values(0)):
            rows = (
                table if population == "all" else table[table["rope"] == {"RoPE": 1, "NoPE": 0}[population]]
            )
            means = rows.groupby("model")[column].mean().loc[models]
            assert data.loc[population].loc[models, f"mean_{column}"].to_numpy() == pytest.approx(
                means.to_numpy()
            )


@pytest.mark.parametrize("name", PICTURES)
def test_without_its_table_a_picture_says_what_to_do(small, name):
    picture = next(p for p in CATALOGUE if p.name.partition("_")[2] == name)
    results = load_results(small)
    bare = replace(results, data=results.data.drop_vars(["bias_logits", "plasticity"]))
    assert "to the study's measures" in picture.why_not(look(bare))
    assert "plasticity" not in {claim.id for claim in claims(bare)}


def test_the_claim_about_plasticity_is_of_its_table(small):
    results = load_results(small)
    said = next(claim for claim in claims(results) if claim.id == "plasticity")
    means = results.matched_heads.groupby("model")["plasticity"].mean()
    assert said.window == "matched"
    assert [row.value for row in said.rows[:2]] == pytest.approx(
        [means["checkpoint-3"], means["checkpoint-1"]]
    )


def test_a_heads_page_has_the_most_telling_numbers(small):
    results = load_results(small)
    page = payload(results)
    named = {each["name"]: each["label"] for each in page["measures"]}
    assert {"bias_logits", "linear_q", "plasticity"} <= set(named)
    assert named["plasticity"] == "plasticity"
    assert "pc0_overlap_se" in page["matched"]["columns"]
    assert not {"alpha_q", "d_prime", "plasticity_first"} & set(named)  # details
    assert not [part for part in page["parts"] if "drift" in part["name"]]


def test_a_study_that_asks_no_more_goes_on_from_the_same_units(small, tmp_path):
    """Kept keys do not make a unit another one; missing ones do."""
    path = next((small / "units").rglob("keys.safetensors"))
    assert key_of(path)["parameters"] == {"keys": 3, "documents": 4, "seed": 0}


def test_capture_keeps_the_keys_of_every_head_at_the_positions_that_were_drawn():
    model, how = tiny_model(), KeySampling(2, 2)
    rng = np.random.default_rng(0)
    texts = documents_from([rng.integers(3, 60, 20 + 5 * i).tolist() for i in range(4)], None, 32)
    heads = HeadIndex.of([(layer, head) for layer in (0, 1) for head in range(4)], 2)
    seen = {}

    class Watch(Recorder):
        def begin(self, batch):
            self.batch = batch

        def layer(self, layer, q, k, facts):
            for row, document in enumerate(self.batch.documents):
                seen[layer, document.index] = k[row].float().numpy().copy()

    unit = measure(model, texts, heads, (16, 32), save=Watch(), sums={KeySum: {"keys": 2, "documents": 2}})
    assert [sample.window for sample in unit.keys] == [16, 32]
    for sample in unit.keys:
        for at, i in enumerate(how.choose([d.index for d in texts])):
            where = how.positions(i, len(texts[i].tokens), sample.window)
            for row, (layer, key) in enumerate(heads.keys):
                expected = seen[int(layer), i][key][np.maximum(where, 0)]
                expected[where < 0] = np.nan
                np.testing.assert_array_equal(sample.vectors[at, :, :, row], expected)
