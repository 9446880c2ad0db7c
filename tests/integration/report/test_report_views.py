"""The report in a browser: state and filters, what is absent, large studies, and everybody who reads it.

Pictures for people are written to build/screenshots.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread
from playwright.sync_api import expect
from report_browser import (
    MINUS,
    PICTURES,
    Open,
    click_on,
    count,
    cursor_to,
    numbers_of,
    selected,
    unfold,
    violations,
)
from report_data import Shape, make_results, page_data, unpack

from qkscope.report import json_for_html, write_report
from qkscope.report.encode import MISSING, SCALE, pack
from qkscope.results import load_results
from qkscope.results.taxonomy import classify

# ---- state, filters, CSV ----

STATE = """() => ({ hash: location.hash, checkpoint: store.state.checkpoint, head: store.state.head,
  heads: [...store.state.heads].sort((a, b) => a - b), pc: store.state.pc, window: store.state.window,
  filter: store.state.filter, sort: store.state.sort, axes: [store.state.across, store.state.up, store.state.tint] })"""


def test_the_hash_restores_everything(open_page: Open, report: Path) -> None:
    page = open_page(report)
    page.locator("#checkpoint").select_option("1")
    assert page.evaluate("location.hash") == "#at=stage1-step-200"
    page.locator("label[for=window-own]").click()
    page.locator("#measure").select_option("abs_r_k")
    page.locator("#emergence-measure").select_option("r_q")
    page.locator("#across").select_option("explained_variance")
    page.locator("#tint").select_option("r_q")
    page.locator("#classes .segment").first.click()
    page.locator("#rope").select_option("RoPE")
    page.locator("#search").fill("L")
    page.locator("#sort-r_k").click()
    before, url = page.evaluate(STATE), page.url
    again = open_page(report, url[url.index("#") :])
    assert again.evaluate(STATE) == before
    expect(again.locator("#selected-count")).to_have_text(page.locator("#selected-count").inner_text())
    expect(again.locator("#measure")).to_have_value("abs_r_k")
    expect(again.locator("#emergence-measure")).to_have_value("r_q")
    expect(again.locator("#search")).to_have_value("L")
    again.evaluate("location.hash = '#at=stage1-step-100&heads=0.0-2'")
    count(again, 3)
    expect(again.locator("#search")).to_have_value("")


def test_heads_with_another_pc0_are_hollow_and_listed(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report)
    explained = page.locator("#portrait .legend .key", has_text="○")
    expect(explained).to_have_count(1)
    hollow = page.locator("#portrait .point.open")
    expect(hollow).to_have_count(8)
    expect(hollow.first).to_have_attribute("aria-label", re.compile("head 2 .*became PC0"))
    page.locator("#checkpoint").select_option("0")
    expect(page.locator("#portrait .point.open")).to_have_count(0)
    expect(explained).to_have_count(0)
    for head, another in (("1.2", True), ("1.1", False)):
        page = open_page(full_report, f"#view=head&head={head}")
        steps = page.locator("#head .history li").all_inner_texts()
        assert all(("PC0" in step) is another for step in steps)
        assert len(steps) == page.evaluate("data.checkpoints.length - 1") if another else True


def test_filters_hold_in_every_view(open_page: Open, report: Path, heads: pd.DataFrame) -> None:
    page = open_page(report, "#window=own")
    last = heads.loc["lc-256-to-512-step-100"].reset_index()
    page.locator("#rope").select_option("NoPE")
    wanted = int((last["rope"] == 0).sum())
    expect(page.locator("#table tbody tr")).to_have_count(wanted)
    expect(page.locator("#portrait .point")).to_have_count(wanted)
    expect(page.locator("#filter-chip")).to_contain_text(f"{wanted} heads")
    page.locator("#filter-chip").click()
    expect(page.locator("#portrait .point")).to_have_count(32)
    page.locator("#search").fill("L3")
    expect(page.locator("#table tbody tr")).to_have_count(4)
    mean = last[last["layer"] == 3]["r_q"].mean()
    expect(page.locator("#signal .mark").last).to_have_attribute(
        "aria-label", re.compile(f"mean r_q {mean:.2f}")
    )
    page.locator("#search").fill("3.2")
    expect(page.locator("#table tbody tr")).to_have_count(1)
    page.locator("#search").fill("nothing like it")
    expect(page.locator("#table tbody tr")).to_have_count(0)
    page.locator("#filter-chip").click()
    page.locator("#class").select_option("mixed")
    kinds = page.locator('#table tbody [data-column="class"]')
    expect(kinds.filter(has_not_text="mixed")).to_have_count(0)
    expect(kinds.first).to_have_text("mixed")


def test_the_selection_downloads_as_csv(
    open_page: Open, report: Path, heads: pd.DataFrame, tmp_path: Path
) -> None:
    page = open_page(report, "#heads=2.0-3,5.1&window=own")
    with page.expect_download() as found:
        page.locator("#save").click()
    found.value.save_as(tmp_path / "heads.csv")
    table = pd.read_csv(tmp_path / "heads.csv")
    assert found.value.suggested_filename == "synthetic_selection.csv"
    assert len(table) == 4 * 5
    last = table[table["model"] == "lc-256-to-512-step-100"]
    assert list(zip(last["layer"], last["head"], strict=True)) == [(2, 0), (2, 1), (2, 2), (2, 3), (5, 1)]
    want = heads.loc["lc-256-to-512-step-100", 5, 1]
    assert last.iloc[-1]["r_k"] == pytest.approx(want.r_k, abs=1.5e-4)


def test_sorting_puts_numbers_in_order(open_page: Open, report: Path) -> None:
    page = open_page(report, "#sort=-r_k")
    texts = page.locator('#table tbody [data-column="r_k"]').all_inner_texts()
    values = [float(text.translate(MINUS).split()[0]) for text in texts]
    assert values == sorted(values, reverse=True)


def test_playing_moves_through_the_checkpoints(open_page: Open, report: Path) -> None:
    page = open_page(report, reduced_motion="no-preference")
    where = "document.querySelector('#portrait .point').transform.baseVal.consolidate().matrix.e"
    before = page.evaluate(where)
    page.evaluate(
        "window.seen = []; store.onChange((keys) => { if (keys.has('checkpoint')) seen.push(store.state.checkpoint); })"
    )
    page.locator("#play").click()
    expect(page.locator("#play")).to_contain_text("Pause")
    expect(page.locator("#play")).to_contain_text("Play", timeout=20_000)
    assert page.evaluate("seen") == [0, 1, 2, 3]
    page.wait_for_function(f"(old) => Math.abs({where} - old) < 0.01", arg=before)


def test_reduced_motion_moves_at_once(open_page: Open, report: Path) -> None:
    page = open_page(report)
    moved = page.evaluate("""() => {
      const point = document.querySelector("#portrait .point");
      const before = point.getAttribute("transform");
      Object.assign(store.state, { checkpoint: 0 });
      portrait.draw(new Set(["checkpoint"]));
      const at = point.getAttribute("transform");
      const later = () => [before !== at, at === point.getAttribute("transform")];
      return new Promise((resolve) => setTimeout(() => resolve(later()), 300));
    }""")
    assert moved == [True, True]


# ---- what is not there is said ----

ABSENT = {
    "one": {"signal": "One checkpoint was measured", "classes": "No flows"},
    "two": {"portrait": "2 heads unmeasured here"},
    "models": {
        "signal": "different models",
        "classes": "No flows",
        "portrait": "no path from one to the next",
    },
    "bare": {"signal": "no error bars", "methods": "no window that all checkpoints share"},
    "foreign": {
        "signal": "no error bars",
        "table": "No rope column",
        "methods": "do not say which documents were read",
    },
}


@pytest.mark.parametrize("name", ABSENT)
def test_views_adapt_or_say_why_not(open_page: Open, odd_reports: dict[str, Path], name: str) -> None:
    page = open_page(odd_reports[name])
    page.locator('nav a[data-view="methods"]').click()
    for view, said in ABSENT[name].items():
        expect(page.locator(f"#{view}")).to_contain_text(said)
    page.locator("#classes .segment").first.click()
    assert selected(page) > 0
    page.locator("#emergence-cursor").focus()
    page.keyboard.press("Enter")
    page.locator("#table tbody input").first.click()
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)
    page.locator("#table tbody button.link").first.click()
    expect(page.locator("#head-title")).to_contain_text("Layer")
    page.screenshot(path=PICTURES / f"{name}-head.png", full_page=True)


def test_heads_of_a_model_are_kept_in_the_hash(open_page: Open, odd_reports: dict[str, Path]) -> None:
    page = open_page(odd_reports["models"])
    click_on(page, "#classes .segment")
    number, url = selected(page), page.url
    assert "%7E" in url or "~" in url
    count(open_page(odd_reports["models"], url[url.index("#") :]), number)


def test_two_checkpoints_have_flows_and_paths(open_page: Open, odd_reports: dict[str, Path]) -> None:
    page = open_page(odd_reports["two"])
    assert page.locator("#classes .flow").count() > 0
    page.locator("#portrait .point").first.dispatch_event("click")
    expect(page.locator("#portrait .paths .way")).to_have_count(2)


def test_one_window_is_no_choice(open_page: Open, odd_reports: dict[str, Path]) -> None:
    page = open_page(odd_reports["bare"], "#window=matched")
    expect(page.locator("#window-choice")).to_be_empty()
    assert page.evaluate("store.state.window") == "own"


# ---- the opening, the portrait's axes, what can be taken away ----


def test_the_picture_and_its_sentence_are_seen_first(open_page: Open, report: Path) -> None:
    page = open_page(report)
    expect(page.locator("#signal-title")).to_be_in_viewport(ratio=1)
    assert page.locator("#signal-drawing svg").bounding_box()["y"] < 420
    order = page.evaluate("[...document.querySelectorAll('main section')].map(({ id }) => id)")
    assert order[:2] == ["signal", "emergence"]
    assert order[-2:] == ["methods", "head"]


def test_claims_are_short_until_opened(open_page: Open, report: Path) -> None:
    page = open_page(report)
    claim = page.locator(".claim", has=page.locator("table")).first
    expect(claim.locator(".headline")).to_be_visible()
    expect(claim.locator("table")).to_be_hidden()
    claim.locator("summary").click()
    expect(claim.locator("table")).to_be_visible()
    expect(claim.locator(".rule")).to_be_visible()


def test_heads_stand_where_any_two_measures_put_them(
    open_page: Open, report: Path, heads: pd.DataFrame
) -> None:
    page = open_page(report, "#across=explained_variance&up=abs_r_k&tint=r_q&window=own")
    last = heads.loc["lc-256-to-512-step-100"].reset_index()
    places = page.evaluate("""() => [...document.querySelectorAll("#portrait .point")].map((point) => {
      const { e, f } = point.transform.baseVal.consolidate().matrix;
      return [point.dataset.key, e, f, point.style.getPropertyValue("--kind")];
    })""")
    assert len(places) == len(last)
    order = sorted(range(len(last)), key=lambda i: int(places[i][0].split(":")[1]))
    across = pd.Series([places[i][1] for i in order])
    up = pd.Series([places[i][2] for i in order])
    assert across.corr(last["explained_variance"]) == pytest.approx(1, abs=1e-4)
    assert up.corr(last["r_k"].abs()) == pytest.approx(-1, abs=1e-4)
    assert len({place[3] for place in places}) > 20
    expect(page.locator("#portrait .regions text")).to_have_count(0)
    page.locator("#across").select_option("r_q")
    page.locator("#up").select_option("r_k")
    expect(page.locator("#portrait .regions text")).not_to_have_count(0)
    page.locator("#tint").select_option("rope")
    expect(page.locator("#portrait .legend")).to_contain_text("RoPE")


def test_the_head_page_says_since_when_a_head_has_its_class(
    open_page: Open, report: Path, heads: pd.DataFrame
) -> None:
    names = ["stage1-step-100", "stage1-step-200", "lc-256-to-512-step-50", "lc-256-to-512-step-100"]
    page = open_page(report, "#window=own&view=head&head=0.0")
    for layer, head in heads.loc[names[0]].index[::5]:
        page.evaluate(f"location.hash = '#window=own&view=head&head={layer}.{head}'")
        expect(page.locator("#head-title")).to_have_text(f"Layer {layer} · head {head}")
        r = [heads.loc[name, layer, head] for name in names]
        kinds = classify([one.r_q for one in r], [one.r_k for one in r]).tolist()
        first = next(i for i in range(4) if set(kinds[i:]) == {kinds[-1]})
        since = page.locator("#head .facts div", has_text="final class since").locator("dd")
        expect(since).to_have_text(["S1-100", "S1-200", "LC1-50", "LC1-100"][first])


@pytest.mark.parametrize("view", ["signal", "classes", "portrait", "emergence", "head"])
def test_every_view_is_saved_as_svg_and_png(open_page: Open, report: Path, view: str, tmp_path: Path) -> None:
    page = open_page(report, f"#heads=2.0-3&view={view}", accept_downloads=True)
    with page.expect_download() as found:
        page.locator(f"#save-{view}-svg").click()
    found.value.save_as(tmp_path / "x.svg")
    assert found.value.suggested_filename == f"synthetic_{view}.svg"
    text = (tmp_path / "x.svg").read_text()
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    assert "var(--" not in text
    assert "class=" not in text
    assert page.locator(f"#{view}-title").inner_text() in text
    with page.expect_download() as found:
        page.locator(f"#save-{view}-png").click()
    found.value.save_as(tmp_path / "x.png")
    picture = imread(tmp_path / "x.png")
    assert picture.shape[1] == 2 * int(root.get("width"))
    assert len({tuple(pixel) for pixel in picture[::7, ::7].reshape(-1, picture.shape[2]).tolist()}) > 10


def test_the_link_is_copied_with_its_state(open_page: Open, report: Path) -> None:
    page = open_page(report, "#heads=2.0-3", permissions=["clipboard-read", "clipboard-write"])
    page.locator("#checkpoint").select_option("1")
    page.locator("#copy-link").click()
    expect(page.locator("#copy-link")).to_have_text("Copied ✓")
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    assert "at=stage1-step-200" in page.url


def test_every_layer_has_a_row_and_nope_layers_are_marked(
    open_page: Open, report: Path, tmp_path: Path
) -> None:
    page = open_page(report, "#rows=layers")
    found = numbers_of(page, "emergence")
    assert len(found) == 8 * 4
    assert {row for row, _ in found if "NoPE" in row} == {"layer 3 (NoPE)", "layer 7 (NoPE)"}
    deep = make_results(tmp_path, ["step1", "step2"], Shape(layers=40, heads=2, group=1, components=1))
    page = open_page(write_report(deep, tmp_path / "deep.html"), "#rows=layers")
    assert len(numbers_of(page, "emergence")) == 2 * 40


def test_causes_are_drawn_where_they_are_known(open_page: Open, full_report: Path, report: Path) -> None:
    page = open_page(full_report)
    expect(page.locator("#causes svg .mark")).to_have_count(3)
    mark = page.locator("#causes svg .mark").last
    said = mark.get_attribute("aria-label").translate(MINUS)
    assert "LC1-50 → LC1-100, change of mean r_q 0.000 ± 0.004, RoPE settings -0.100 ± 0.004" in said
    # The causes of a change do not depend on the window that is shown.
    page.locator("label[for=window-own]").click()
    assert mark.get_attribute("aria-label").translate(MINUS) == said
    # Only where the two orders differ by more than their error is the other one told.
    expect(page.locator("#causes-note")).to_contain_text("S1-200 → LC1-50")
    expect(page.locator("#causes-note")).to_contain_text("training +0.020 ± 0.004, RoPE settings +0.010")
    expect(page.locator("#causes-note")).not_to_contain_text("LC1-50 → LC1-100")
    page.locator("#causes-numbers").click()
    first = page.locator("#causes-drawing table tr").nth(1).locator("td").all_inner_texts()
    # Total, RoPE settings, training, window: what did not change has no number.
    assert [cell[:6] for cell in first] == ["+0.080", "–", "+0.080", "–"]
    page.locator("#number").select_option("mean r_k")
    assert "number=mean" in page.url
    page.locator("#causes svg .mark").first.dispatch_event("click")
    expect(page.locator("#checkpoint option:checked")).to_have_text("S1-200")
    assert violations(page) == []
    expect(open_page(report).locator("#causes")).to_have_count(0)


def test_panels_count_the_heads_that_they_show(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report)
    page.locator("#search").fill("L1")
    shown = page.evaluate("store.shown().size")
    assert 0 < shown < page.evaluate("data.heads.length")
    panels = page.locator("#classes-drawing .small").all_inner_texts()
    assert [int(re.search(r"(\d+) head", name)[1]) for name in panels] == [shown, 0]
    legend = " ".join(page.locator("#signal .legend .key").all_inner_texts())
    assert [int(n) for n in re.findall(r"(\d+) (?:RoPE|NoPE) head", legend)] == [shown, 0]


def test_a_head_without_an_error_says_so(open_page: Open, folder: Path, tmp_path: Path) -> None:
    results = load_results(folder)
    lost = (results.data["layer"] == 0) & (results.data["number"] == 1)
    errors = {name: results.data[name].where(~lost) for name in ("pc_r_q_se", "pc_r_k_se")}
    other = replace(results, data=results.data.assign(errors))
    page = open_page(write_report(other, tmp_path / "lost.html"), "#window=own")
    cells = page.locator("#table tbody tr[data-head='1'] .lost")
    expect(cells).to_have_count(2)
    assert cells.first.get_attribute("title")
    expect(page.locator("#table tbody .lost")).to_have_count(2)
    expect(page.locator("#table-note")).to_contain_text("± –")


def test_every_chart_has_its_numbers(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report, "#rows=layers")
    page.locator("#emergence-numbers").click()
    rows = page.locator("#emergence-drawing tbody tr")
    expect(rows).to_have_count(8)
    mean = page.evaluate("store.over().averages.layers[store.state.map].mean[0]")
    assert float(rows.first.locator("td").first.inner_text().split("%")[0]) == pytest.approx(
        100 * mean, abs=0.06
    )
    page.locator("#classes-numbers").click()
    counts = page.locator("#classes-drawing tbody tr").first.locator("td").all_inner_texts()
    rotating = page.evaluate("data.heads.filter((d) => d.population === data.populations[0]).length")
    assert sum(map(int, counts)) == rotating
    page.locator("#distance-numbers").click()
    places = page.evaluate("store.over().distances.at.length")
    expect(page.locator("#distance-drawing tbody tr")).to_have_count(places)


def test_noise_around_zero_stays_flat_and_the_distance_axis_ends_with_a_tick(
    open_page: Open, full_report: Path, tmp_path: Path
) -> None:
    raw = page_data(full_report.read_text(encoding="utf-8"))
    for window in (raw["own"], raw["matched"]):
        for curves in window["distances"]["curves"].values():
            for curve in curves:
                curve["score"] = [0.005 * (-1) ** i for i in range(len(curve["score"]))]
    page = open_page(with_data(full_report, tmp_path, own=raw["own"], matched=raw["matched"]))
    least, most = page.evaluate("document.querySelector('#distance-drawing svg').scale('y').domain")
    assert least <= -0.5
    assert most >= 0.5
    ticks = page.locator("#distance-drawing svg g[aria-hidden] text").all_text_contents()
    assert str(raw["matched"]["distances"]["at"][-1]) in ticks


@pytest.mark.parametrize("fragment", ["", "#window=own&search=L1&measure=r_q", "#view=head"])
def test_nothing_is_wider_than_a_phone(open_page: Open, full_report: Path, fragment: str) -> None:
    page = open_page(full_report, fragment, width=420)
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 420


def with_data(report: Path, folder: Path, **changed: object) -> Path:
    """The same page with other data."""
    head, tail = report.read_text(encoding="utf-8").split('id="data">', 1)
    raw, rest = tail.split("</script>", 1)
    path = folder / "changed.html"
    data = json_for_html(json.loads(raw) | changed)
    path.write_text(f'{head}id="data">{data}</script>{rest}', encoding="utf-8")
    return path


def test_causes_say_which_changes_are_not_known(open_page: Open, full_report: Path, tmp_path: Path) -> None:
    page = open_page(full_report)
    expect(page.locator("#causes-note")).not_to_contain_text("Not measured")
    causes = page_data(full_report.read_text(encoding="utf-8"))["causes"]
    known = [cause for cause in causes if cause["to"] != 2]
    page = open_page(with_data(full_report, tmp_path, causes=known))
    expect(page.locator("#causes-note")).to_contain_text("S1-200 → LC1-50")


def test_bars_of_causes_begin_where_the_last_ended_and_split_by_axis(
    open_page: Open, full_report: Path, tmp_path: Path
) -> None:
    causes = page_data(full_report.read_text(encoding="utf-8"))["causes"]
    (split,) = [one for one in causes if one["to"] == 2 and one["number"] == "mean r_q"]
    rotation, weights, _ = split["parts"]
    rotation["same"] = 0.2 * rotation["value"]
    page = open_page(with_data(full_report, tmp_path, causes=[split]))
    bars = page.evaluate("""() => {
      const x = document.querySelector("#causes-drawing svg").scale("x");
      return [...document.querySelectorAll("#causes-drawing svg rect")].map((bar) => {
        const [from, wide] = ["x", "width"].map((name) => Number(bar.getAttribute(name)));
        return [x.invert(from), x.invert(from + wide), bar.getAttribute("fill-opacity")].map(Number);
      });
    }""")
    a, b = rotation["value"], rotation["value"] + weights["value"]
    ends = [(0.2 * a, 0), (a, 0.2 * a), (a, b), (b, split["total"])]
    assert [bar[:2] for bar in bars] == [pytest.approx(sorted(end), abs=1e-6) for end in ends]
    assert [bar[2] < 1 for bar in bars] == [False, True, False, False]
    said = page.locator("#causes svg .mark").get_attribute("aria-label").translate(MINUS)
    assert f"{0.8 * a:.3f} of it from heads in which another axis became PC0" in said


def test_the_opening_has_the_loss_and_follows_the_selection(
    open_page: Open, full_report: Path, tmp_path: Path
) -> None:
    data = page_data(full_report.read_text(encoding="utf-8"))
    loss = {"loss": {"mean": [3.2, 2.9, 2.6, 2.5], "se": [0.01] * 4}}
    page = open_page(with_data(full_report, tmp_path, own=data["own"] | loss, matched=data["matched"] | loss))
    expect(page.locator("#signal-drawing svg")).to_have_count(2)
    mark = page.locator('#signal .mark[data-key="checkpoint:stage1-step-200"]')
    assert "loss 2.900 ± 0.010 nats per token" in mark.get_attribute("aria-label")
    means = data["matched"]["averages"]["means"]["RoPE"]["share_positional"]["mean"]
    sentence = page.locator("#signal-sentence")
    expect(sentence).to_contain_text(f"{100 * means[-1]:.1f}%")
    mark.click()
    expect(sentence).to_contain_text(f"{100 * means[1]:.1f}%")
    page.evaluate("store.set({ heads: new Set([9]) })")
    share = page.evaluate("data.value(store.table(), 'share_positional', 1, 9)")
    expect(sentence).to_contain_text(f"{100 * share:.1f}% in the selected head")
    page = open_page(full_report)
    expect(page.locator("#signal-drawing svg")).to_have_count(1)


def test_indices_are_set_low_and_copied_as_they_are_written(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report, "#measure=r_q")
    sentence = page.locator("#signal-sentence")
    expect(sentence.locator("sub").first).to_be_visible()
    assert "mean r_q is" in sentence.inner_text()
    expect(
        page.locator("#signal-drawing svg text", has_text="mean r_q").locator("tspan[dy]").first
    ).to_be_attached()
    expect(page.locator("#measure option sub")).to_have_count(0)
    # Wherever a person reads it, with everything open: in tables, notes and legends too.
    unfold(page)
    left = page.evaluate("""() => {
      const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
      const found = [];
      while (walker.nextNode()) {
        const { data, parentElement } = walker.currentNode;
        if (/\\br_[qk]\\b/.test(data) && !parentElement.closest("option, code, title")) found.push(data);
      }
      return found;
    }""")
    assert left == []
    page.locator("#sort-r_k").hover()
    expect(page.locator("#tip sub").first).to_be_visible()


def test_phases_have_a_name_where_there_is_little_room(open_page: Open, report: Path, tmp_path: Path) -> None:
    phases = [["Stage 1", 0, 1], ["The long-context part of the training", 2, 3]]
    page = open_page(with_data(report, tmp_path, phases=phases), width=390)
    expect(page.locator("#signal-drawing svg text", has_text=re.compile(r"^LC1$"))).to_have_count(1)
    expect(page.locator("#signal-drawing svg")).not_to_contain_text("…")


def test_a_measure_of_another_package_is_in_the_menus(open_page: Open, report: Path, tmp_path: Path) -> None:
    data = page_data(report.read_text(encoding="utf-8"))
    hostile = "<img src=x onerror=alert(1)> cone"
    found = {"name": "cone_k", "label": hostile, "units": "sr", "description": hostile, "inTable": False}
    windows = {
        name: data[name] | {"columns": data[name]["columns"] | {"cone_k": data[name]["columns"]["r_q"]}}
        for name in ("own", "matched")
    }
    page = open_page(with_data(report, tmp_path, measures=[*data["measures"], found], **windows))
    for menu in ("across", "up", "tint"):
        option = page.locator(f"#{menu} option[value=cone_k]")
        expect(option).to_have_text(f"{hostile}, sr")
        assert option.get_attribute("title") == hostile
        page.locator(f"#{menu}").select_option("cone_k")
    expect(page.locator("#portrait svg").first).to_contain_text("cone")
    page.evaluate("location.hash = '#view=head&head=2.1'")
    expect(page.locator("#head")).to_contain_text(hostile)
    assert page.locator("img").count() == 0


def test_a_head_shows_its_shares_and_curves(open_page: Open, full_report: Path, tmp_path: Path) -> None:
    page = open_page(full_report, "#up=eta_q&tint=sink")
    expect(page.locator("#portrait .ramp-key")).to_be_visible()
    page.evaluate("location.hash = '#view=head&head=2.1'")
    expect(page.locator("#head")).to_contain_text("Mean score by distance")
    share = page.locator('#head .mark[data-key^="shares:"]').first.get_attribute("aria-label")
    parts = [float(number) for number in re.findall(r"(?:key|content|query)\S* \w+ ([\d.]+)%", share)]
    assert len(parts) == 4
    assert sum(parts) == pytest.approx(100, abs=0.21)
    with page.expect_download() as found:
        page.locator("#save-head-svg").click()
    found.value.save_as(tmp_path / "head.svg")
    assert "Mean score by distance" in (tmp_path / "head.svg").read_text()


def test_a_head_without_a_curve_shows_no_empty_one(
    open_page: Open, full_report: Path, tmp_path: Path
) -> None:
    matched = page_data(full_report.read_text(encoding="utf-8"))["matched"]
    known = matched["curves"][0]
    size = len(unpack(known["column"]["values"]))
    none = {"values": pack(np.full(size, MISSING, dtype=np.int16)), "scale": SCALE}
    both = [known, known | {"name": "none", "title": "Of no head", "column": none}]
    changed = with_data(full_report, tmp_path, matched=matched | {"curves": both})
    page = open_page(changed, "#view=head&head=2.1")
    expect(page.locator("#head")).to_contain_text("Mean score by distance")
    expect(page.locator("#head")).not_to_contain_text("Of no head")


# ---- size ----


def test_a_study_of_154_by_1024_opens_and_works(open_page: Open, tmp_path: Path) -> None:
    names = [f"step{1000 * i}" for i in range(154)]
    results = make_results(tmp_path, names, Shape(layers=32, heads=32, group=1, components=1))
    page = open_page(write_report(results, tmp_path / "large.html"))
    expect(page.locator("#portrait .point")).to_have_count(1024)
    expect(page.locator("#classes-note")).to_contain_text("of 154 checkpoints are drawn")
    page.locator("#classes .segment").first.click()
    assert selected(page) > 0
    page.locator("#page-after").click()
    expect(page.locator("#table .pager")).to_contain_text("13–24 of 1,024 heads")
    page.locator("#checkpoint").select_option("70")
    expect(page.locator("#table caption")).to_contain_text("step70000")
    # The raster paints what has scrolled into view, and the cursor stays in it.
    scroll = page.locator("#emergence-drawing .sheet-scroll")
    page.wait_for_function(  # views are drawn one after the other
        "() => { const one = document.querySelector('#emergence-drawing .sheet-scroll');"
        " return one.scrollHeight > 5 * one.clientHeight; }"
    )
    cursor_to(page, "emergence", "layer")
    for _ in range(40):
        page.keyboard.press("PageDown")
    assert scroll.evaluate("(one) => one.scrollTop") > 1000
    page.keyboard.press("Enter")
    assert selected(page) == 1
    box = page.locator("#emergence-cursor").bounding_box()
    frame = scroll.bounding_box()
    assert frame["y"] <= box["y"] <= frame["y"] + frame["height"]
    painted = "(one) => one.getContext('2d').getImageData(400, one.height - 60, 1, 1).data[3]"
    assert scroll.locator("canvas").evaluate(painted) == 255


# ---- for everybody ----


@pytest.mark.parametrize(
    ("width", "scheme"), [(1440, "light"), (1440, "dark"), (390, "light"), (390, "dark")]
)
def test_axe_finds_no_serious_violation(open_page: Open, full_report: Path, width: int, scheme: str) -> None:
    for view in ("#heads=2.0-3&classes=mixed", "#view=head&head=2.1"):
        page = open_page(full_report, view, width=width, color_scheme=scheme)
        unfold(page)
        assert violations(page) == []


@pytest.mark.parametrize("name", ["models", "foreign"])
def test_axe_passes_odd_reports_too(open_page: Open, odd_reports: dict[str, Path], name: str) -> None:
    assert violations(open_page(odd_reports[name])) == []


def test_the_colours_can_be_chosen(open_page: Open, report: Path) -> None:
    page = open_page(report, color_scheme="light")
    paper = "getComputedStyle(document.querySelector('.view')).backgroundColor"
    light = page.evaluate(paper)
    for said in ("light", "dark"):
        page.locator("#theme").click()
        expect(page.locator("#theme")).to_contain_text(said)
    assert page.evaluate(paper) != light


def test_no_width_scrolls_sideways_and_pictures_are_kept(open_page: Open, full_report: Path) -> None:
    for width, scheme in ((390, "light"), (1280, "light"), (1920, "dark")):
        page = open_page(full_report, "#heads=2.0-3&at=stage1-step-200", width=width, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=PICTURES / f"report-{width}-{scheme}.png", full_page=True)
        page.locator('nav a[data-view="head"]').click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.context.close()


def test_it_prints_without_its_controls(open_page: Open, report: Path) -> None:
    page = open_page(report, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    expect(page.locator("#toolbar")).to_be_hidden()
    expect(page.locator("#signal svg").first).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
