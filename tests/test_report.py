"""The report's Python side: what is written into the page, how small, and how safely."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_data import Shape, make_results, write_foreign, write_results

from qkscope.errors import TableError
from qkscope.findings import Claim
from qkscope.report import SCRIPTS, headline, json_for_html, policy, render, told, write_report
from qkscope.report.data import NAMED_CLASSES, Grid, components, payload
from qkscope.report.encode import MISSING, SCALE, listed, pack, pack_numbers, pack_thousandths, quantise
from qkscope.report.methods import methods, plain
from qkscope.results import load_results

SMALL = Shape(layers=4, heads=4, group=2, components=3)
FOLDER = Path(__file__).parents[1] / "src" / "qkscope" / "report"
HOSTILE = "</script><img src=x onerror=alert(1)>"


def unpack(text: str) -> np.ndarray:
    """The reader's side of `pack_numbers`, as js/data.js does it."""
    q = np.frombuffer(base64.b64decode(text), dtype="<i2")
    return np.where(q == MISSING, np.nan, q / SCALE)


def unpack_small(text: str) -> np.ndarray:
    q = np.frombuffer(base64.b64decode(text), dtype=np.uint8)
    return np.where(q == 255, np.nan, q / 1000)


def page_data(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found[1])


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
    first = unpack(data["own"][name]).reshape(3, 16)
    small = name in data["more"]["thousandths"]
    later = (unpack_small if small else unpack)(data["more"][name]).reshape(3, 16, 2)
    table = results.qk.set_index(["model", "layer", "head", "pc"])[name]
    heads = list(zip(data["heads"]["layer"], data["heads"]["head"], strict=True))
    for i, model in enumerate(data["stops"]["model"]):
        for j, (layer, head) in enumerate(heads):
            want = table.loc[model, layer, head].to_numpy()
            np.testing.assert_allclose(first[i, j], want[0], atol=1.5 / SCALE)
            np.testing.assert_allclose(later[i, j], want[1:], atol=5.01e-4 if small else 1.5 / SCALE)


def test_matched_window_is_its_own_columns(results, data):
    want = results.matched.set_index(["model", "layer", "head"])["r_q"].loc[("step300", 2, 1)]
    assert unpack(data["matched"]["r_q"]).reshape(3, 4, 4)[2, 2, 1] == pytest.approx(want, abs=1.5 / SCALE)
    assert unpack(data["own"]["r_q"]).reshape(3, 4, 4)[2, 2, 1] != pytest.approx(want, abs=1e-3)


def test_classes_are_those_of_the_heads_table(results, data):
    codes = np.frombuffer(base64.b64decode(data["own"]["class"]), dtype=np.uint8).reshape(3, 16)
    last = results.heads[results.heads["model"] == "step300"].sort_values(["layer", "head"])["class"]
    assert [NAMED_CLASSES[code] for code in codes[2]] == last.tolist()
    assert last.iloc[0] == "unmeasured"


def test_a_head_missing_from_one_checkpoint_leaves_a_gap(tmp_path):
    results = make_results(tmp_path, ["step1", "step2"], SMALL)
    heads = results.heads[~((results.heads["model"] == "step2") & (results.heads["layer"] == 3))]
    grid = Grid.of(heads, ["step1", "step2"], training=True)
    placed = grid.place(heads)
    column = placed.column("r_q").reshape(2, 16)
    assert np.isfinite(column[0]).all()
    assert np.isnan(column[1, 12:]).all()
    assert (placed.codes("class", NAMED_CLASSES).reshape(2, 16)[1, 12:] == 255).all()


def test_heads_of_different_models_are_different_heads(tmp_path):
    results = make_results(tmp_path, ["a", "b"], SMALL, kind="models")
    data = payload(results)
    assert data["heads"]["owner"] == [0] * 16 + [1] * 16
    assert len(unpack(data["own"]["r_q"])) == 32


def test_layer_means_are_over_the_measured_heads(results, data):
    cells = data["aggregates"]["own"]["layers"]
    assert cells["layers"] == [0, 1, 2, 3]
    for number, model in enumerate(results.timeline.models):
        rows = results.heads[(results.heads["model"] == model) & results.heads["r_q"].notna()]
        want = rows[rows["layer"] == 0]["r_k"].abs().mean()
        assert cells["abs_r_k"]["mean"][number * 4] == pytest.approx(want, abs=1.5 / SCALE)


def test_absent_columns_are_none(tmp_path):
    data = payload(load_results(write_foreign(tmp_path, ["step1", "step2"])))
    assert data["heads"]["kv"] is None
    assert data["heads"]["rope"] is None
    assert data["matched"] is None
    assert data["own"]["r_q_se"] is None
    assert "first principal component only" in data["omitted"]


@pytest.mark.parametrize(
    ("checkpoints", "errors", "values"), [(10, True, True), (40, False, True), (154, False, False)]
)
def test_components_are_left_out_past_a_size_and_it_is_said(tmp_path, checkpoints, errors, values):
    names = [f"step{i}" for i in range(checkpoints)]
    results = make_results(tmp_path, names[:1], Shape(layers=36, heads=16, components=10))
    grid = Grid.of(results.heads, names, training=True)
    more, omitted = components(results, grid)
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


def test_ten_by_576_heads_stay_under_two_megabytes(tmp_path):
    names = [f"stage1-step-{40_000 * (i + 1)}" for i in range(10)]
    results = make_results(tmp_path, names, Shape(), loo=True)
    doubled = type(results)(**{**vars(results), "matched": results.heads, "loo_matched": results.loo})
    text = render(doubled)
    assert len(text.encode()) < 2_000_000
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
    assert page_data(text)["stops"]["model"] == [HOSTILE, HOSTILE + "2"]
    assert html.escape(HOSTILE) in text


def test_json_cannot_end_its_element():
    text = json_for_html({"<!--": "</script>", "&": "\u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"<!--": "</script>", "&": "\u2028"}


# ---- headline and methods ----


def a_claim(name: str, verdict: str) -> Claim:
    return Claim(name, "Is it so?", verdict, "It is", "More of it.", (), "own", "", "signal")


def test_headline_is_what_can_be_told_the_rest_follows():
    found = [a_claim("0", "cannot tell"), *[a_claim(str(i), "yes") for i in range(1, 11)]]
    split = headline(found)
    assert [claim.id for claim in split["first"]] == [str(i) for i in range(1, 9)]
    assert [claim.id for claim in split["more"]] == ["0", "9", "10"]
    unknown = [a_claim("0", "cannot tell")]
    assert headline(unknown) == {"first": unknown, "more": []}


def test_a_card_says_the_headline_and_unfolds_the_detail():
    assert told(a_claim("0", "yes")) == ("It is", "More of it.")


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
    assert page_data(text)["stops"]["model"] == ["step1", "step3"]


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
    assert text.startswith("/* ")
    assert '\n"use strict";\n' in text
    assert text.endswith("})();\n")
    assert len(text.splitlines()) < 400
    assert max(map(len, text.splitlines())) <= 120
    # Text stays text, and nothing leaves the page.
    banned = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\bvar\s|console\.|"
    )
    banned += r"fetch\(|XMLHttpRequest|WebSocket|sendBeacon|import\(|https?://(?!www\.w3\.org/2000/svg)|TODO|[^=!]==[^=]"
    assert not re.findall(banned, text)


def test_tables_of_numbers_read_back(small, page):
    means = page_data(page)["aggregates"]["own"]["signal"]["mean_r_q"]
    heads = pd.read_csv(small / "qk.csv").query("pc == 0")
    want = heads.groupby("model")["r_q"].mean()
    assert [f"{m:.3f}" for m in means] == [f"{want[f'step{n}00']:.3f}" for n in (1, 2, 3)]
