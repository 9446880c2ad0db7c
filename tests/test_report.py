"""The report's Python side: what is written into the page, how small, and how safely."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from frames import left_out_of, with_values
from hypothesis import given
from hypothesis import strategies as st
from report_data import (
    Shape,
    causes_frame,
    column,
    make_results,
    page_data,
    unpack,
    write_foreign,
    write_results,
)

from qkscope.claims import Claim, Row, See, claims
from qkscope.errors import TableError
from qkscope.figures import style
from qkscope.measures.registry import variables
from qkscope.report import SCRIPTS, json_for_html, palette, policy, render, write_report
from qkscope.report.columns import TAXONOMIES, Grid, class_codes, components, measures, regions, since
from qkscope.report.data import causes, grid_of, payload
from qkscope.report.encode import (
    MISSING,
    NO_CODE,
    SCALE,
    listed,
    pack,
    pack_column,
    pack_numbers,
    pack_thousandths,
    quantise,
)
from qkscope.report.methods import methods, plain
from qkscope.report.packed_curves import curves, distances
from qkscope.report.page import VIEWS, labels, present, window_name
from qkscope.results import load_results
from qkscope.results.aggregate import score_class_shares
from qkscope.results.roles import ROLES
from qkscope.results.taxonomy import CLASSES, Thresholds, classify
from qkscope.study.timeline import Timeline, TimelineCheckpoint

SMALL = Shape(layers=4, heads=4, group=2, components=3)
FOLDER = Path(__file__).parents[1] / "src" / "qkscope" / "report"
HOSTILE = "</script><img src=x onerror=alert(1)>"


def unpack_small(text: str) -> np.ndarray:
    q = np.frombuffer(base64.b64decode(text), dtype=np.uint8)
    return np.where(q == 255, np.nan, q / 1000)


def shown(value: float) -> str:
    """What a browser's toFixed(3) shows: exact, ties away from zero."""
    from decimal import ROUND_HALF_UP, Decimal

    text = str(Decimal(abs(value)).quantize(Decimal("0.001"), rounding=ROUND_HALF_UP))
    return f"-{text}" if value < 0 and float(text) else text


# ---- numbers ----


@given(st.floats(-1, 1))
def test_quantised_numbers_show_the_same_three_decimals(x):
    q = int(quantise([x])[0])
    want = f"{x:.3f}"
    assert shown(q / SCALE) == (want.lstrip("-") if float(want) == 0 else want)
    assert abs(q / SCALE - x) <= 1.5 / SCALE


@given(st.integers(-10_000, 10_000))
def test_four_decimals_survive_but_for_binary_ties(n):
    q = int(quantise([n / SCALE])[0])
    assert q == n or n * 16 % SCALE == 0


def test_double_rounding_is_avoided():
    assert quantise([0.12346])[0] == 1234  # 0.1235 would be shown as 0.124


def test_missing_numbers_stay_missing():
    assert quantise([np.nan, np.inf, -np.inf]).tolist() == [MISSING] * 3
    assert listed([0.5, np.nan]) == [0.5, None]
    assert pack_numbers([np.nan, np.nan]) is None


def test_small_numbers_take_a_byte_unless_one_is_large():
    assert unpack_small(pack_thousandths([0.0, 0.0126, np.nan])).tolist()[:2] == [0.0, 0.013]
    assert np.isnan(unpack_small(pack_thousandths([0.1, np.nan]))[1])
    assert pack_thousandths([0.1, 0.3]) is None
    assert pack_thousandths([np.nan]) is None


def test_packing_is_little_endian_rows_first():
    packed = base64.b64decode(pack(np.array([[1, 2], [3, 4]], dtype=np.int16)))
    assert list(packed) == [1, 0, 2, 0, 3, 0, 4, 0]


# ---- the page's data ----


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    phases = (("Early", 256, ("step100", "step200")), ("Late", 512, ("step300",)))
    folder = tmp_path_factory.mktemp("results") / "small"
    return write_results(folder, Shape(layers=4, heads=4, group=2, components=3, unmeasured=1), phases)


@pytest.fixture(scope="module")
def results(small):
    return load_results(small)


@pytest.fixture(scope="module")
def data(results):
    return payload(results)


@pytest.fixture(scope="module")
def page(results):
    return render(results)


@pytest.mark.parametrize("name", ["r_q", "r_k", "explained_variance", "r_q_se", "r_k_null"])
def test_every_row_of_the_table_is_on_the_page(results, data, name):
    first = column(data["own"], name).reshape(3, 16)
    small = name in data["more"]["thousandths"]
    later = (unpack_small if small else unpack)(data["more"][name]).reshape(3, 16, 2)
    table = results.qk.set_index(["model", "layer", "head", "pc"])[name]
    heads = list(zip(data["heads"]["layer"], data["heads"]["head"], strict=True))
    for i, model in enumerate(data["checkpoints"]["model"]):
        for j, (layer, head) in enumerate(heads):
            want = table.loc[model, layer, head].to_numpy()
            np.testing.assert_allclose(first[i, j], want[0], atol=1.5 / SCALE)
            np.testing.assert_allclose(later[i, j], want[1:], atol=5.01e-4 if small else 1.5 / SCALE)


def test_matched_window_is_its_own_columns(results, data):
    want = results.matched_heads.set_index(["model", "layer", "head"])["r_q"].loc[("step300", 2, 1)]
    assert column(data["matched"], "r_q").reshape(3, 4, 4)[2, 2, 1] == pytest.approx(want, abs=1.5 / SCALE)
    assert column(data["own"], "r_q").reshape(3, 4, 4)[2, 2, 1] != pytest.approx(want, abs=1e-3)


def test_classes_are_those_of_the_heads_table(results, data):
    codes = np.frombuffer(
        base64.b64decode(data["own"]["classes"]["published"]["codes"]), dtype=np.uint8
    ).reshape(3, 16)
    last = results.heads[results.heads["model"] == "step300"].sort_values(["layer", "head"])["class"]
    assert [TAXONOMIES["published"][code] for code in codes[2]] == last.tolist()
    assert last.iloc[0] == "unmeasured"


def test_a_head_missing_from_one_checkpoint_leaves_a_gap(tmp_path):
    data = make_results(tmp_path, ["step1", "step2"], SMALL).own()
    there = (data["checkpoint"] == "step1") | (data["layer"] < 3)
    data = data.assign({name: data[name].where(there) for name in ("depth", "r_q", "r_k")})
    grid = Grid.of(data, ["step1", "step2"], training=True)
    found = grid.arrange(data["r_q"].isel(sample=0)).reshape(2, 16)
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1, 12:]).all()
    codes = class_codes(data, grid, Thresholds()).reshape(2, 16)
    assert (codes[1, 12:] == NO_CODE).all()
    assert (codes[1, :12] != NO_CODE).all()


def test_heads_of_different_models_are_different_heads(tmp_path):
    results = make_results(tmp_path, ["a", "b"], SMALL, kind="models")
    data = payload(results)
    assert data["heads"]["owner"] == [0] * 16 + [1] * 16
    assert len(column(data["own"], "r_q")) == 32


def test_layer_means_are_over_the_measured_heads(results, data):
    cells = data["own"]["averages"]["layers"]
    assert cells["places"] == [0, 1, 2, 3]
    assert all(se is not None for se in cells["r_q"]["se"])
    for number, model in enumerate(results.timeline.models):
        rows = results.heads[(results.heads["model"] == model) & results.heads["r_q"].notna()]
        want = rows[rows["layer"] == 0]["r_k"].abs().mean()
        assert cells["abs_r_k"]["mean"][number * 4] == pytest.approx(want, abs=1.5 / SCALE)


def test_means_are_over_one_population_and_their_errors_over_documents(results, data):
    """Against pandas: the mean over the measured heads, and the jackknife of that mean over left-out groups."""
    assert data["populations"] == ["RoPE", "NoPE"]
    means = data["own"]["averages"]["means"]
    for rope, kind in ((1, "RoPE"), (0, "NoPE")):
        heads = results.heads[(results.heads["rope"] == rope) & results.heads["r_q"].notna()]
        want = heads.groupby("model", sort=False)["r_q"]
        np.testing.assert_allclose(means[kind]["r_q"]["mean"], want.mean(), atol=1.5 / SCALE)
        np.testing.assert_allclose(means[kind]["r_q"]["sd"], want.std(ddof=0), atol=1.5 / SCALE)
        key = ["model", "layer", "head"]
        left = left_out_of(results.own()).merge(heads[key], on=key)
        left = left.groupby(["model", "group"], sort=False)["r_q"].mean()
        groups = left.groupby("model", sort=False)
        errors = np.sqrt((groups.size() - 1) * groups.var(ddof=0))
        np.testing.assert_allclose(means[kind]["r_q"]["se"], errors, atol=1.5 / SCALE)


def test_a_study_without_nope_layers_has_one_population(results):
    rope = np.ones((3, results.data.sizes["head"]))
    data = payload(with_values(results, rope=rope))
    assert data["populations"] == ["all"]
    assert data["own"]["averages"]["heads"]["all"] == [16, 16, 16]


def test_the_position_share_is_what_position_explains_alone_and_with_the_query(tmp_path):
    folder = write_results(tmp_path / "r", SMALL, (("A", 256, ("step1", "step2")),), everything=True)
    own = payload(load_results(folder))["own"]
    parts = column(own, "share_position") + column(own, "share_query_position")
    np.testing.assert_allclose(column(own, "share_positional"), parts, atol=3 / SCALE)
    assert np.isfinite(column(own, "share_positional_se")).all()


def test_absent_columns_are_none(tmp_path):
    data = payload(load_results(write_foreign(tmp_path, ["step1", "step2"])))
    assert data["heads"]["kv"] is None
    assert data["heads"]["rope"] is None
    assert data["matched"] is None
    assert "r_q_se" not in data["own"]["columns"]
    assert "first principal component only" in data["omitted"]


@pytest.mark.parametrize(
    ("checkpoints", "errors", "values"), [(10, True, True), (40, False, True), (154, False, False)]
)
def test_components_are_left_out_past_a_size_and_it_is_said(tmp_path, checkpoints, errors, values):
    names = [f"step{i}" for i in range(checkpoints)]
    results = make_results(tmp_path, names[:1], Shape(layers=36, heads=16, components=10))
    grid = Grid.of(results.own(), names, training=True)
    more, omitted = components(results.own(), grid)
    assert (more is not None) is values
    assert ("r_q_se" in (more or {})) is errors
    assert (omitted is None) is errors
    assert errors or "qk.csv" in omitted


# ---- the file ----


def test_written_beside_the_table_or_where_asked(small, tmp_path):
    assert write_report(small) == small / "report.html"
    assert write_report(small, tmp_path) == tmp_path / "report.html"
    assert write_report(load_results(small), tmp_path / "deep" / "x.html") == tmp_path / "deep" / "x.html"
    assert (tmp_path / "report.html").read_bytes() == (small / "report.html").read_bytes()


def test_a_bare_table_is_enough(tmp_path):
    written = write_report(write_foreign(tmp_path, ["step1", "step2"]))
    assert written == tmp_path / "report.html"


def test_no_table_is_a_clear_error(tmp_path):
    with pytest.raises(TableError, match=r"qk\.csv"):
        write_report(tmp_path)


def test_ten_by_576_heads_stay_near_two_megabytes(tmp_path):
    names = [f"stage1-step-{40_000 * (i + 1)}" for i in range(10)]
    text = render(make_results(tmp_path, names, Shape(), loo=True, matched=True))
    assert len(text.encode()) < 2_050_000
    assert page_data(text)["omitted"] is None


def test_only_the_scripts_of_the_page_may_run(page):
    found = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])
    scripts = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert len(scripts) == 3
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in found
    assert found == policy(scripts)
    assert found.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in found.split("style-src")[0]


def test_nothing_is_loaded_from_elsewhere(page):
    text = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert not re.findall(r"""(?:src|href|action)\s*=\s*["']?(?!#|data:)[^\s"'>]+""", text)
    assert "@import" not in text
    assert "url(" not in re.search(r"<style>(.*?)</style>", text, re.S)[1]


def test_licences_of_the_libraries_are_inside(page):
    text = html.unescape(page)
    for name in ("d3", "plot"):
        assert (FOLDER / "vendor" / f"LICENSE-{name}").read_text() in text


def test_names_are_text_wherever_they_stand(tmp_path):
    results = make_results(
        tmp_path,
        [HOSTILE, HOSTILE + "2"],
        SMALL,
        title=HOSTILE,
        study={"model": HOSTILE, HOSTILE: "x"},
        provenance={
            "warnings": [HOSTILE],
            "missing": {HOSTILE + "3": HOSTILE},
            "versions": {"qkscope": HOSTILE},
        },
    )
    text = render(results)
    assert "<img" not in text
    assert text.count("</script>") == 4
    assert page_data(text)["checkpoints"]["model"] == [HOSTILE, HOSTILE + "2"]
    assert html.escape(HOSTILE) in text


def test_json_cannot_end_its_element():
    text = json_for_html({"<!--": "</script>", "&": "\u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"<!--": "</script>", "&": "\u2028"}


# ---- what stands where ----


def claim(name: str, view: str = "signal", rows: tuple[Row, ...] = ()) -> Claim:
    see = See(view, "r_q", "step300", "RoPE")
    return Claim(
        name, f"{name}?", f"{name}!", "Detail.", "", "", "level", rows, "matched", "A rule.", see, 0.0
    )


def test_every_claim_stands_once_beside_its_picture(results):
    found = [claim(view, view) for view in VIEWS if view in ("signal", "emergence", "classes", "portrait")]
    text = render(results, [claim("other"), *found, claim("position")])
    for one in [claim("other"), claim("position"), *found]:
        assert text.count(f">{one.headline}</h") == 1
        section = text.split(f'id="{one.see.view}"', 1)[1].split("</section>")[0]
        assert f'data-claim="{one.id}"' in section
    assert re.search(r'<h2 id="signal-title"[^>]*>position!</h2>', text)


def test_claims_are_on_the_page_whole_with_what_shows_them(results, page):
    text = html.unescape(re.sub("</?span.*?>", "", page))
    said = claims(results)
    assert said
    for one in said:
        assert one.headline in text
        assert one.detail in text
        assert f'id="{one.see.view}"' in text
        link = f'data-view="{one.see.view}" data-window="{one.window}" data-measure="{one.see.measure}"'
        assert f'{link} data-at="{one.see.checkpoint}"' in text


def test_a_table_without_document_groups_and_with_few_nope_heads_has_a_page(tmp_path):
    """Errors are over groups of heads there, of which the two populations have different numbers."""
    results = make_results(tmp_path, ["step1", "step2"], Shape(layers=8, heads=4, group=2, components=1))
    assert page_data(render(results))["populations"] == ["RoPE", "NoPE"]


def test_windows_have_names_that_say_what_they_are(results):
    assert window_name("matched", results.timeline) == "first 256 tokens"
    assert window_name("own", results.timeline) == "training context"


def test_views_without_data_are_left_out(data, page):
    assert not any(present(data).values())
    for view in ("causes", "scores", "explorer", "spectrum", "distance"):
        assert f'id="{view}"' not in page


def test_every_measure_is_explained_in_the_words_of_its_declaration(tmp_path):
    text = html.unescape(
        render(make_results(tmp_path, ["step1"], SMALL, extra={"plasticity": 0.5, "mu_q": 1.0}))
    )
    told = text.split("Every measure on this page")[1].split("</details>")[0]
    known = variables()
    for name in ("r_q", "plasticity"):
        assert f"<dd>{known[name].description}</dd>" in told
    assert known["mu_q"].label not in told  # a detail


def test_a_number_of_a_claim_stands_on_the_page_in_its_unit(results):
    rows = (
        Row("share of mixed heads", "mixed", "RoPE", "step300", 0.383, 0.03, unit="share"),
        Row("heads that change class", "mixed", "RoPE", "step300", 3, from_model="step100", unit="heads"),
        Row("mean r_q", "r_q", "NoPE", "step300", 0.0512, 0.004, from_model="step100"),
    )
    page = render(results, [claim("units", rows=rows)])
    for row in rows:
        assert f'<td class="num">{row.text}</td>' in page


def test_labels_are_explained_once_a_phase_where_they_are_short():
    checkpoints = [
        TimelineCheckpoint("stage1-step-40", "S1-40", "Stage 1", step=40),
        TimelineCheckpoint("stage1-step-90", "S1-90", "Stage 1", step=90),
    ]
    checkpoints += [
        TimelineCheckpoint("x", "x", "Other", step=7),
        TimelineCheckpoint("lc-step-5", "LC-5", "Long", step=5),
    ]
    assert [checkpoint.label for checkpoint in labels(Timeline("n", "t", tuple(checkpoints)))] == [
        "S1-40",
        "LC-5",
    ]


# ---- what a head is ----


def test_since_is_where_the_last_class_began_for_good():
    codes = np.array([[0, 1, 2, 3], [1, 1, 2, 3], [0, 1, 4, 3], [0, 1, 2, NO_CODE]], dtype=np.uint8)
    assert since(codes) == [2, 0, 3, None]
    assert since(codes[:1]) == [0, 0, 0, 0]


def test_since_is_that_of_the_heads_table(results, data):
    last = {"own": results.heads, "matched": results.matched_heads}
    for window, table in last.items():
        classes = table.pivot_table(index=["layer", "head"], columns="model", values="class", aggfunc="first")
        for number, (_, row) in zip(
            data[window]["classes"]["published"]["since"], classes.sort_index().iterrows(), strict=True
        ):
            course = [row[model] for model in results.timeline.models]
            assert set(course[number:]) == {course[-1]}
            assert number == 0 or course[number - 1] != course[-1]


@pytest.mark.parametrize("limit", [Thresholds(), Thresholds(0.9, 0.1)])
def test_regions_lie_in_their_classes(limit):
    found = regions(limit)
    assert {one["name"] for one in found} == set(CLASSES)
    for one in found:
        assert classify(one["r_q"], one["r_k"], limit) == one["name"]


def test_any_number_of_a_head_is_a_measure(tmp_path):
    sink = np.linspace(-40, 55, 2 * 16 * SMALL.components)
    extra = {"sink": sink, "share_key": 0.5, "share_match": 0.5, "gap": np.nan, "alpha_q": 1.0}
    results = make_results(tmp_path, ["step1", "step2"], SMALL, loo=True, extra=extra)
    found = measures(results.own())
    assert found[:3] == ["r_q", "r_k", "explained_variance"]
    assert set(found[3:]) == {"depth", "sink", "share_key", "share_match"}
    data = payload(results)
    assert [part["name"] for part in data["parts"]] == ["share_key", "share_match"]
    np.testing.assert_allclose(column(data["own"], "sink"), sink[:: SMALL.components], atol=0.0051)
    assert "sink_se" in data["own"]["columns"]


def strange(folder: Path, label: str) -> Path:
    """A results folder with a measure of a package that is not installed here."""
    write_results(folder, SMALL, (("A", 256, ("step1", "step2")),), matched=False)
    path = folder / "measures.safetensors"
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    table = json.loads(data[8 : 8 + size])
    described = json.loads(table["__metadata__"]["dataset"])
    values = np.arange(2 * 16, dtype="<f8") / 32
    start = len(data) - 8 - size
    table["cone_k"] = {"dtype": "F64", "shape": [2, 16], "data_offsets": [start, start + values.nbytes]}
    described["digests"]["cone_k"] = hashlib.sha256(values.tobytes()).hexdigest()
    described["variables"].append(
        {
            "name": "cone_k",
            "label": label,
            "units": "sr",
            "description": HOSTILE,
            "dims": [],
            "sampled": False,
        }
    )
    table["__metadata__"]["dataset"] = json.dumps(described)
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :] + values.tobytes())
    return folder


def test_a_measure_of_another_package_is_on_the_page(tmp_path):
    text = render(load_results(strange(tmp_path / "r", HOSTILE)))
    data = page_data(text)
    (found,) = [one for one in data["measures"] if one["name"] == "cone_k"]
    assert (found["label"], found["units"], found["description"]) == (HOSTILE, "sr", HOSTILE)
    np.testing.assert_allclose(column(data["own"], "cone_k"), np.arange(32) / 32, atol=1.5 / SCALE)
    assert "<img" not in text
    assert html.escape(HOSTILE) in text


def test_large_numbers_get_a_scale_of_their_own():
    packed = pack_column([1e6, -3.0, np.nan])
    assert unpack(packed["values"], packed["scale"])[0] == pytest.approx(1e6, rel=1e-4)
    assert pack_column([0.5, np.nan])["scale"] == SCALE
    assert pack_column([np.nan]) is None


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Results that hold everything."""
    phases = (("Early", 256, ("step100", "step200")), ("Late", 512, ("step300",)))
    return load_results(write_results(tmp_path_factory.mktemp("whole") / "r", SMALL, phases, everything=True))


def unpacked(curve: dict, *shape: int) -> np.ndarray:
    return unpack(curve["column"]["values"], curve["column"]["scale"]).reshape(*shape, len(curve["at"]))


def test_a_layer_that_does_not_rotate_has_no_curve_by_rotary_pair(whole):
    found = {one["name"]: one for one in curves(whole.own(), grid_of(whole), list(whole.timeline.models))}
    curve = found["signal_q"]
    assert curve["at"] == [0, 1, 2]
    values = unpacked(curve, 3, 4, 4)
    assert np.isnan(values[:, 3]).all()
    want = whole.own()["signal_q"].to_numpy().reshape(3, 4, 4, 4)[:, :3, :, 1:]
    np.testing.assert_allclose(values[:, :3], want, atol=1e-3)


def test_curves_are_those_of_the_dataset(whole):
    data = payload(whole)
    curve = data["own"]["curves"][0]
    assert curve["name"] == "distance"
    want = whole.own()["distance_score"].sel(checkpoint="step200", head="L1H3")
    assert curve["at"] == want["distance"].values.tolist()
    np.testing.assert_allclose(unpacked(curve, 3, 4, 4)[1, 1, 3], want, atol=0.51e-3)
    shown = [one["name"] for one in data["measures"]]
    assert {"eta_q", "r_k_const", "R_q", "score_sd", "sink", "overlap", "gap"} <= set(shown)
    assert not [
        name for name in shown if name.endswith(("_se", "_from4")) or name in ("same_axis", "overlap_pc")
    ]
    assert [part["label"] for part in data["parts"]] == [
        *("key position", "query-dependent position", "key content", "content match")
    ]


def test_the_mean_curve_by_distance_is_the_dataset_s_own(whole):
    """No smoothing on top of the dataset's: the chart shows the numbers of the claim."""
    data = whole.own()
    jagged = data["distance_score"] * 0 + np.resize([1.0, -1.0], data.sizes["distance"])
    found = distances(data.assign(distance_score=jagged), list(whole.timeline.models))
    for curves_of in found["curves"].values():
        assert curves_of[0]["score"] == np.resize([1.0, -1.0], data.sizes["distance"]).tolist()


def test_a_curve_by_rotary_pair_has_each_checkpoint_s_wavelengths(whole):
    models = list(whole.timeline.models)
    data = whole.own()
    longer = data["wavelength"] * xr.DataArray([1.0, 2.0, 3.0], dims="checkpoint")
    (curve,) = [
        c for c in curves(data.assign(wavelength=longer), grid_of(whole), models) if c["name"] == "signal_q"
    ]
    assert curve["waves"] == [[20.0 * n, 400.0 * n, 9000.0 * n] for n in (1, 2, 3)]
    # Layers that rotate differently share no axis of wavelengths: the pairs are numbered.
    own = data["wavelength"] * (1 + data["layer"])
    (curve,) = [
        c for c in curves(data.assign(wavelength=own), grid_of(whole), models) if c["name"] == "signal_q"
    ]
    assert "waves" not in curve


def test_causes_are_those_of_the_real_order_and_the_first_population():
    names = ["a", "b", "c"]
    table = causes_frame(names)
    found = causes(table, names, "RoPE")
    assert [(one["from"], one["to"], one["number"]) for one in found] == [
        (i, i + 1, f"mean {r}") for i in (0, 1) for r in ("r_q", "r_k")
    ]
    assert [part["name"] for part in found[2]["parts"]] == ["rotation", "weights", "window"]
    assert [part["value"] for part in found[2]["parts"]] == [-0.05, 0.08, 0.01]
    assert sum(part["value"] for part in found[2]["parts"]) == pytest.approx(found[2]["total"])
    # All of training's effect is from heads whose axis stayed; of the window's, nothing is known.
    assert [part["same"] for part in found[2]["parts"]] == [-0.05, 0.08, None]
    assert causes(table, names, "NoPE")[0]["total"] == 0.01
    assert causes(table.assign(population="all"), names, "RoPE")
    assert causes(None, names, "all") == []
    assert len(causes(table, names[:2], "RoPE")) == 2
    table.loc[0, ["rotation_first", "rotation_first_se"]] = np.nan
    assert [part["name"] for part in causes(table, names, "RoPE")[0]["parts"]] == ["weights", "window"]


@pytest.mark.parametrize(("error", "told"), [(0.004, True), (0.04, False), (np.nan, False)])
def test_causes_interact_where_the_two_orders_differ_by_more_than_their_error(error, told):
    names = ["a", "b", "c"]
    table = causes_frame(names).assign(interaction_se=error)
    same, other = (causes(table, names, "RoPE")[i]["other"] for i in (0, 2))
    assert same == []
    assert [(part["name"], pytest.approx(part["value"])) for part in other] == (
        [("weights", 0.02), ("rotation", 0.01)] if told else []
    )


def test_both_windows_have_the_same_causes(results):
    data = payload(replace(results, causes=causes_frame(list(results.timeline.models))))
    assert len(data["causes"]) == 4
    assert present(data)["causes"]


# ---- colours ----


def test_colours_stand_out_on_dark_paper():
    assert palette.contrast("#ffffff", "#000000") == pytest.approx(21)
    for colour in ("#3f3d99", "#1f77b4", "#d62728", "#000000"):
        assert palette.contrast(palette.on_dark(colour), palette.DARK_PAPER) >= 5


def test_no_colour_has_two_meanings():
    """Of what stands in charts together or means different things; a class may have the colour of what it is about."""
    kinds = [style.CAUSE_COLOURS, style.ROPE_COLOURS, style.PART_COLOURS]
    ours = [colour for kind in kinds for colour in kind.values()]
    ours += [style.R_Q, style.R_K, style.VARIANCE, style.AXIS, *style.ROLE_COLOURS]
    assert len(set(ours)) == len(ours)
    assert style.ROLE_COLOURS[[role.name for role in ROLES].index("sink")] == style.SINK
    listed = palette.properties()
    part = re.search(r"--share_position: (.*);", listed)
    positional = re.search(r"--class-scores-0: (.*);", listed)
    assert part is not None
    assert positional is not None
    assert part[1] == positional[1]


# ---- methods ----


def test_methods_say_what_is_known(results):
    found = methods(results)
    assert found["corpus"]["documents"] == "64"
    assert found["corpus"]["documents that fill 512 tokens"] == "55"
    assert found["windows"] == [("Early", 256), ("Late", 512)]
    assert found["checkpoints"][0]["vectors"] == "250,000"
    assert found["unmeasured"] == {"step100": 1, "step200": 1, "step300": 1}
    assert found["settings"]["heads"] == "all"
    assert found["level"] == "5% over 8 groups of documents"
    assert found["warnings"] == ["12 of 64 documents are shorter than 65,536 tokens."]


def test_methods_of_a_bare_table_say_what_is_not(tmp_path):
    found = methods(load_results(write_foreign(tmp_path, ["step1"])))
    assert not any(
        found[name] for name in ("settings", "corpus", "versions", "warnings", "has_errors", "has_null")
    )
    assert found["checkpoints"][0] | {"label": ""} == {
        **dict.fromkeys(("label", "window", "vectors", "architecture", "commit"), ""),
        "name": "step1",
        "phase": found["checkpoints"][0]["phase"],
    }


def test_missing_checkpoints_are_named_with_the_reason(tmp_path):
    phases = (("A", 256, ("step1", "step2", "step3")),)
    folder = write_results(tmp_path / "r", SMALL, phases, missing={"step2": "the hub has no such revision"})
    text = html.unescape(render(load_results(folder)))
    assert "1 checkpoint of the study is missing" in text
    assert "the hub has no such revision" in text
    assert page_data(text)["checkpoints"]["model"] == ["step1", "step3"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "yes"), (65536, "65,536"), ([1, "a"], "1, a"), ({"a": 1, "b": None}, "a: 1"), (0.5, "0.5")],
)
def test_settings_in_plain_words(value, text):
    assert plain(value) == text


# ---- the script's own rules ----


def test_every_script_is_in_the_page_and_in_order():
    assert sorted(f"js/{path.name}" for path in (FOLDER / "js").glob("*.js")) == sorted(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_keep_to_the_rules(name):
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert text.startswith("// @ts-check\n/* ")
    assert '\n"use strict";\n' in text
    # Text stays text, and nothing leaves the page.
    banned = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\bvar\s|console\.|"
    )
    banned += r"fetch\(|XMLHttpRequest|WebSocket|sendBeacon|import\(|https?://(?!www\.w3\.org/2000/svg)|TODO|[^=!]==[^=]"
    assert not re.findall(banned, text)
    # Types hold everywhere, and what Python decides is not said a second time.
    assert not re.findall(r"@ts-(?:ignore|nocheck|expect-error)", text)
    assert not re.findall(r"\b0\.[37]\b|-32768|\b255\b|\b10000\b", text)
    assert not [kind for kind in CLASSES if re.search(rf"\b{kind}\b(?!…)", text)]


def test_colours_of_what_is_shown_come_from_python():
    named = set(re.findall(r"#[0-9a-f]{6}", palette.properties()))
    assert len(named) > 20
    sheets = [FOLDER / "style.css", *(FOLDER / "js").glob("*.js")]
    neutral = {"#ffffff"}
    for path in sheets:
        assert not (set(re.findall(r"#[0-9a-f]{6}", path.read_text().lower())) - neutral) & named, path.name


def test_tables_of_numbers_read_back(small, page):
    means = page_data(page)["own"]["averages"]["means"]["RoPE"]["r_q"]["mean"]
    heads = pd.read_csv(small / "qk.csv").query("pc == 0 and rope == 1")
    want = heads.groupby("model")["r_q"].mean()
    assert [f"{m:.3f}" for m in means] == [f"{want[f'step{n}00']:.3f}" for n in (1, 2, 3)]


def test_a_study_without_ablations_says_how_to_measure_them(whole):
    assert "qkscope ablate" not in render(whole)
    assert "qkscope ablate r<" in render(replace(whole, ablation=None))


def test_score_classes_lead_and_are_those_of_the_heads_table(whole):
    data = payload(whole)
    assert list(data["taxonomies"]) == ["scores", "published"]
    for column_, name in (("score_class", "scores"), ("class", "published")):
        codes = np.frombuffer(base64.b64decode(data["own"]["classes"][name]["codes"]), dtype=np.uint8)
        for model, here in zip(whole.timeline.models, codes.reshape(3, 16), strict=True):
            table = whole.heads[whole.heads["model"] == model].sort_values(["layer", "head"])
            assert [TAXONOMIES[name][code] for code in here] == table[column_].tolist()


def test_errors_of_score_classes_are_those_of_left_out_documents(whole):
    data = whole.own()
    found = score_class_shares(data, whole.timeline.models, "RoPE").set_index(["model", "class"])
    here = data.sel(checkpoint="step300").isel(head=np.flatnonzero(data["rope"][0] == 1))
    shares = here["share_positional"].to_numpy()  # (1 + groups, heads)
    for kind, low, high in (("positional", 0.6, 2.0), ("mixed", 0.4, 0.6), ("content", -1.0, 0.4)):
        inside = ((shares > low) & (shares < high)).mean(axis=1)
        assert found.loc[("step300", kind), "share"] == pytest.approx(inside[0])
        left = inside[1:]
        want = np.sqrt((len(left) - 1) / len(left) * ((left - left.mean()) ** 2).sum())
        assert found.loc[("step300", kind), "se"] == pytest.approx(want)


def test_steps_go_on_where_a_phase_counts_anew():
    checkpoints = [("a", 100), ("a", 200), ("b", 50), ("b", 100)]
    timeline = Timeline(
        "n", "t", tuple(TimelineCheckpoint(f"{p}-step{n}", "x", p, step=n) for p, n in checkpoints)
    )
    assert timeline.training_steps() == [100, 200, 250, 300]
    assert timeline.training_tokens() is None
    named = [TimelineCheckpoint(name, name, "p") for name in ("step1000-tokens4B", "step2000-tokens8B")]
    assert Timeline("n", "t", tuple(named)).training_tokens() == [4_000_000_000, 8_000_000_000]
    assert Timeline("n", "t", tuple(named)).training_steps() is None
