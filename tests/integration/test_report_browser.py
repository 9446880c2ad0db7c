"""The report in a real Chromium, opened from a file with the network off.

Every page is watched: an error on the console, an uncaught exception, a dialog or a request that leaves the file
fails the test that saw it. Pictures for people are written to build/screenshots.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from report_data import Shape, make_results, write_foreign, write_results

from qkscope.report import SCRIPTS, write_report

ROOT = Path(__file__).parents[2]
AXE = (ROOT / "tests" / "vendor" / "axe.min.js").read_text(encoding="utf-8")
PICTURES = ROOT / "build" / "screenshots"
HOSTILE = "</script><img src=x onerror=alert(1)>"
MINUS = str.maketrans("−", "-")
SMALL = Shape(layers=8, heads=4, group=2, components=4)
PHASES = (
    ("Stage 1", 256, ("stage1-step-100", "stage1-step-200")),
    ("Long context", 512, ("lc-256-to-512-step-50", "lc-256-to-512-step-100")),
)

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    flags = ["--no-sandbox", "--disable-background-networking", "--disable-gpu", "--disable-dev-shm-usage"]
    with sync_playwright() as tools:
        chromium = tools.chromium.launch(executable_path=found, args=flags)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open a report, offline and watched; what the page must not do fails the test at its end."""
    contexts, faults = [], []

    def opener(
        path: Path, fragment: str = "", *, width: int = 1280, wait: bool = True, **options: object
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            offline=True,
            reduced_motion=options.pop("reduced_motion", "reduce"),
            **options,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda m: faults.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: (faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "request",
            lambda r: faults.append(r.url) if not r.url.startswith(("file:", "blob:", "data:")) else None,
        )
        page.goto(path.as_uri() + fragment)
        if wait:
            page.wait_for_selector("html[data-ready]")
        return page

    yield opener
    for context in contexts:
        context.close()
    assert not faults


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_results(tmp_path_factory.mktemp("report") / "small", SMALL, PHASES, title="A small study")


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    return write_report(folder)


@pytest.fixture(scope="module")
def heads(folder: Path) -> pd.DataFrame:
    """PC0 of qk.csv, by model, layer and head."""
    return pd.read_csv(folder / "qk.csv").query("pc == 0").set_index(["model", "layer", "head"]).sort_index()


@pytest.fixture(scope="module")
def odd_reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Results that lack something, each by its name."""
    base = tmp_path_factory.mktemp("odd")
    bare = Shape(layers=8, heads=4, group=2, components=2, errors=False, null=False, rope=False, kv=False)
    families = (("Llama", 256, ("meta/llama-a", "meta/llama-b")), ("Qwen", 256, ("qwen/qwen-x",)))
    first = (PHASES[0][0], 256, PHASES[0][2][:1])
    folders = {
        "one": write_results(base / "one", SMALL, (first,)),
        "two": write_results(base / "two", Shape(layers=8, heads=4, group=2, unmeasured=2), PHASES[:1]),
        "models": write_results(base / "models", SMALL, families, families=True),
        "bare": write_results(base / "bare", bare, PHASES, matched=False, loo=False),
        "foreign": write_foreign(base / "foreign", ["a thing", "another thing"]),
    }
    return {name: write_report(path, base / f"{name}.html") for name, path in folders.items()}


def count(page: Page, number: int) -> None:
    """The toolbar says that so many heads are selected."""
    text = "no selection" if number == 0 else f"{number} head{'' if number == 1 else 's'} selected"
    expect(page.locator("#selected-count")).to_have_text(text)


def selected(page: Page) -> int:
    return int(
        re.findall(r"\d+", page.locator("#selected-count").inner_text().replace("no selection", "0"))[0]
    )


def linked(page: Page, number: int) -> None:
    """All views show the same selection: toolbar, portrait, table, depth map and the hash."""
    count(page, number)
    expect(page.locator("#portrait .point.selected")).to_have_count(number)
    page.locator("#only").check()
    expect(page.locator("#table tbody tr.selected")).to_have_count(min(number, 50))
    page.locator("#only").uncheck()
    expect(page.locator("#depth .has-selected")).to_have_attribute("d", re.compile(r"^M"))
    expect(page.locator("#taxonomy .picked-strip").first).to_be_attached()
    assert "heads=" in page.url


def click_on(page: Page, selector: str, **options: object) -> str:
    """Click, with the mouse, the first such mark that has a spot of its own in sight; return its label."""
    page.locator(selector).first.wait_for(state="attached")
    spot = page.evaluate(
        """(selector) => {
          for (const mark of document.querySelectorAll(selector)) {
            mark.scrollIntoView({ block: "center" });
            const box = mark.getBoundingClientRect();
            for (let i = 1; i < 144; i += 1) {
              const [x, y] = [box.left + (box.width * (i % 12)) / 12, box.top + (box.height * (i / 12)) / 12];
              if (document.elementFromPoint(x, y) === mark) return { x, y, label: mark.getAttribute("aria-label") };
            }
          }
          return null;
        }""",
        selector,
    )
    assert spot, f"no {selector} can be clicked"
    page.mouse.move(spot["x"], spot["y"])
    page.mouse.click(spot["x"], spot["y"], **options)
    return spot["label"]


# ---- opening ----


def test_opens_from_a_file_with_the_network_off(open_page: Open, report: Path) -> None:
    page = open_page(report)
    expect(page.locator("h1")).to_have_text("A small study")
    expect(page.locator(".finding").first).to_be_visible()
    for view in ("signal", "taxonomy", "portrait", "depth", "head"):
        expect(page.locator(f"#{view} svg").first).to_be_visible()
    expect(page.locator("#table tbody tr")).to_have_count(32)


def test_the_policy_lets_nothing_out(browser: Browser, report: Path) -> None:
    """The page itself tries to break its rules, as injected code would."""
    page = browser.new_page()
    page.goto(report.as_uri())
    tried = page.evaluate("""async () => {
      const refused = [];
      document.addEventListener("securitypolicyviolation", (event) => refused.push(event.effectiveDirective));
      await fetch("https://example.com/").catch(() => {});
      const image = new Image();
      image.src = "https://example.com/x.png";
      const script = document.createElement("script");
      script.textContent = "window.broken = true";
      document.body.append(script);
      await new Promise((resolve) => setTimeout(resolve, 300));
      return { refused, broken: Boolean(window.broken) };
    }""")
    page.close()
    assert set(tried["refused"]) >= {"connect-src", "img-src", "script-src-elem"}
    assert not tried["broken"]


def test_hostile_names_are_text_and_do_nothing(open_page: Open, tmp_path: Path) -> None:
    results = make_results(tmp_path, [HOSTILE, HOSTILE + "2"], SMALL, title=HOSTILE, study={"model": HOSTILE})
    page = open_page(write_report(results, tmp_path / "hostile.html"))
    expect(page.locator("h1")).to_have_text(HOSTILE)
    page.locator("#stop").select_option("0")
    page.locator("#portrait .point").first.click()
    page.locator("#signal .mark").first.hover()
    expect(page.locator("#tip")).to_contain_text(HOSTILE)
    expect(page.locator("#methods tbody")).to_contain_text(HOSTILE)
    page.evaluate(
        "location.hash = '#at=' + encodeURIComponent('<img src=x onerror=alert(1)>') + '&search=<b>'"
    )
    assert page.locator("img").count() == 0


def test_scripts_parse_in_strict_mode(browser: Browser) -> None:
    page = browser.new_page()
    check = "(text) => { try { new Function(text); return null; } catch (e) { return String(e); } }"
    for name in SCRIPTS:
        source = (ROOT / "src" / "qkscope" / "report" / name).read_text(encoding="utf-8")
        assert page.evaluate(check, source) is None, name
    assert page.evaluate(check, '"use strict"; with (a) {}') is not None
    page.close()


# ---- numbers on screen ----


def test_the_table_shows_the_numbers_of_qk_csv(open_page: Open, report: Path, heads: pd.DataFrame) -> None:
    page = open_page(report, "#at=stage1-step-200")
    rows = page.evaluate("""() => [...document.querySelectorAll("#table tbody tr")].map((row) => {
      const cell = (name) => row.querySelector(`[data-column="${name}"]`).textContent;
      return ["layer", "head", "kv", "rope", "r_q", "r_k", "explained_variance"].map(cell);
    })""")
    assert len(rows) == 32
    for layer, head, kv, rope, r_q, r_k, variance in rows:
        want = heads.loc["stage1-step-200", int(layer), int(head)]
        assert r_q.translate(MINUS) == f"{want.r_q:.3f} ±{want.r_q_se:.3f}"
        assert r_k.translate(MINUS) == f"{want.r_k:.3f} ±{want.r_k_se:.3f}"
        assert variance == f"{want.explained_variance:.3f}"
        assert (int(kv), rope) == (want.kv_head, "RoPE" if want.rope else "NoPE")


def test_marks_speak_the_numbers_of_qk_csv(open_page: Open, report: Path, heads: pd.DataFrame) -> None:
    page = open_page(report, "#at=stage1-step-100")
    want = heads.loc["stage1-step-100", 3, 2]
    label = page.locator('#portrait .point[aria-label^="Layer 3, head 2,"]').get_attribute("aria-label")
    said = label.translate(MINUS)
    assert f"r_q {want.r_q:.3f} ± {want.r_q_se:.3f}, r_k {want.r_k:.3f} ± {want.r_k_se:.3f}" in said
    page.locator("label[for=rows-layers]").click()
    mean = heads.loc["stage1-step-100", 5]["r_q"].mean()
    cell = page.locator('#depth .mark[aria-label^="S1-100 · layer 5,"]')
    assert f"mean r_q {mean:.3f}" in cell.get_attribute("aria-label")
    page.locator("#signal-numbers").click()
    row = page.locator("#signal tbody tr").first.inner_text().translate(MINUS)
    whole = heads.loc["stage1-step-100"]
    assert f"{whole['r_q'].mean():.3f} ±" in row
    assert f"{whole['r_k'].mean():.3f} ±" in row


def test_matched_window_changes_every_number(open_page: Open, report: Path, folder: Path) -> None:
    page = open_page(report)
    page.locator("label[for=window-matched]").click()
    matched = pd.read_csv(folder / "qk_matched.csv").query("pc == 0 and model == 'lc-256-to-512-step-100'")
    first = matched[(matched["layer"] == 0) & (matched["head"] == 0)].iloc[0]
    expect(page.locator('#table tbody tr [data-column="r_q"]').first).to_contain_text(f"{first.r_q:.3f}")
    expect(page.locator("#signal .mark").last).to_have_attribute(
        "aria-label", re.compile(f"{matched.r_q.mean():.3f}")
    )


def test_the_head_page_shows_one_head_on_all_components(open_page: Open, report: Path, folder: Path) -> None:
    page = open_page(report, "#head=2.1&pc=2")
    expect(page.locator("#head-title")).to_have_text("Layer 2 · head 1")
    qk = pd.read_csv(folder / "qk.csv").set_index(["model", "layer", "head", "pc"]).sort_index()
    want = qk.loc["stage1-step-100", 2, 1, 2]
    label = (
        page.locator('#head .mark[aria-label^="S1-100 · PC2, r_q"]')
        .first.get_attribute("aria-label")
        .translate(MINUS)
    )
    assert f"r_q {want.r_q:.3f} ± {want.r_q_se:.3f}, null {want.r_q_null:.3f}" in label
    assert f"explained variance {want.explained_variance:.3f}" in label
    expect(page.locator("#head .neighbours .near")).to_have_count(2)
    page.locator("#head .near", has_text="head 0").click()
    expect(page.locator("#head-title")).to_have_text("Layer 2 · head 0")


# ---- links between views, by mouse ----


def test_a_segment_selects_its_heads_everywhere(open_page: Open, report: Path, heads: pd.DataFrame) -> None:
    page = open_page(report)
    segment = page.locator("#taxonomy .segment").last
    wanted = int(re.search(r"(\d+) heads?", segment.get_attribute("aria-label"))[1])
    segment.click()
    linked(page, wanted)
    assert segment.get_attribute("aria-pressed") == "true"
    page.locator("#clear").click()
    count(page, 0)


def test_a_flow_selects_the_heads_that_moved(open_page: Open, report: Path, heads: pd.DataFrame) -> None:
    page = open_page(report)
    label = click_on(page, '#taxonomy .flow[aria-label*="→"]')
    linked(page, int(re.search(r"(\d+) heads?", label)[1]))


def test_points_select_and_shift_adds(open_page: Open, report: Path) -> None:
    page = open_page(report)
    click_on(page, "#portrait .point")
    linked(page, 1)
    page.keyboard.down("Shift")
    click_on(page, "#portrait .point:not(.selected)")
    page.keyboard.up("Shift")
    linked(page, 2)
    expect(page.locator("#portrait .paths .way.been")).to_have_count(2)
    expect(page.locator("#portrait .bars path")).to_have_count(2)
    page.locator("#adding").click()
    click_on(page, "#portrait .point:not(.selected)")
    linked(page, 3)


def test_beside_a_point_the_nearest_is_meant(open_page: Open, report: Path) -> None:
    page = open_page(report, width=390, has_touch=True)
    spot = page.evaluate("""() => {
      const point = document.querySelector("#portrait .point");
      point.scrollIntoView({ block: "center" });
      const box = point.getBoundingClientRect();
      for (const [dx, dy] of [[9, 0], [-9, 0], [0, 9], [0, -9]]) {
        const [x, y] = [box.left + box.width / 2 + dx, box.top + box.height / 2 + dy];
        if (!document.elementFromPoint(x, y).closest(".mark")) return { x, y };
      }
      return null;
    }""")
    page.touchscreen.tap(spot["x"], spot["y"])
    count(page, 1)


def test_a_box_selects_the_heads_inside(open_page: Open, report: Path, heads: pd.DataFrame) -> None:
    page = open_page(report)
    ground = page.locator("#portrait .ground")
    ground.scroll_into_view_if_needed()
    box = ground.bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + 3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 3, steps=4)
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    last = heads.loc["lc-256-to-512-step-100"]
    linked(page, int((last["r_k"] > 0).sum()))


def test_a_cell_selects_its_heads_and_its_checkpoint(open_page: Open, report: Path) -> None:
    page = open_page(report)
    page.locator("label[for=rows-layers]").click()
    page.locator('#depth .mark[aria-label^="S1-200 · layer 6,"]').click()
    linked(page, 4)
    expect(page.locator("#stop option:checked")).to_have_text("S1-200")
    expect(page.locator("#head-title")).to_contain_text("Layer 6")


def test_a_column_of_the_signal_chooses_the_checkpoint(open_page: Open, report: Path) -> None:
    page = open_page(report)
    page.locator("#signal .mark").first.click()
    expect(page.locator("#stop option:checked")).to_have_text("S1-100")
    expect(page.locator("#slider")).to_have_value("0")
    expect(page.locator("#table caption")).to_contain_text("S1-100")
    assert "at=stage1-step-100" in page.url


def test_findings_and_navigation_lead_to_their_views(open_page: Open, report: Path) -> None:
    page = open_page(report)
    link = page.locator(".finding .go").first
    view = link.get_attribute("data-view")
    link.click()
    expect(page.locator(f"#{view}")).to_be_focused()
    page.locator('nav a[data-view="methods"]').click()
    expect(page.locator("#methods")).to_be_in_viewport()
    assert "view=methods" in page.url
    link.focus()
    page.keyboard.press("Enter")
    expect(page.locator(f"#{view}")).to_be_focused()


def test_the_table_opens_a_head(open_page: Open, report: Path) -> None:
    page = open_page(report)
    page.locator("#table tbody tr").nth(5).locator("button.link").click()
    expect(page.locator("#head-title")).to_have_text("Layer 1 · head 1")
    expect(page.locator("#head")).to_be_focused()


# ---- the same by keyboard ----


def tab_to(page: Page, inside: str) -> None:
    """Press Tab until the focus is on a mark of the view."""
    for _ in range(150):
        page.keyboard.press("Tab")
        if page.evaluate("(id) => Boolean(document.activeElement.closest(`#${id}-drawing .mark`))", inside):
            return
    pytest.fail(f"Tab never reached a mark of {inside}")


def focused(page: Page) -> str:
    return page.evaluate("document.activeElement.dataset.key || document.activeElement.id")


def test_every_chart_is_one_tab_stop_and_arrows_move(open_page: Open, report: Path) -> None:
    page = open_page(report)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    tab_to(page, "signal")
    first = focused(page)
    page.keyboard.press("ArrowRight")
    assert focused(page) != first
    expect(page.locator("#tip")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator("#stop option:checked")).to_have_text("S1-200")
    assert focused(page) == "stop:stage1-step-200"
    tab_to(page, "taxonomy")
    page.keyboard.press("End")
    page.keyboard.press(" ")
    assert selected(page) > 0
    assert focused(page).startswith("segment:")


def test_points_cells_and_rows_by_keyboard(open_page: Open, report: Path) -> None:
    page = open_page(report)
    tab_to(page, "portrait")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    linked_head = focused(page)
    count(page, 1)
    assert linked_head.startswith("head:")
    page.keyboard.press("Escape")
    count(page, 0)
    page.locator("#depth .mark[tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert selected(page) == 4
    assert focused(page).startswith("cell:")
    expect(page.locator("#announcer")).to_contain_text("4 heads selected")
    box = page.locator("#table tbody input").nth(20)
    box.focus()
    name = focused(page)
    page.keyboard.press(" ")
    assert focused(page) == name
    assert selected(page) == 5


def test_flows_and_components_by_keyboard(open_page: Open, report: Path) -> None:
    page = open_page(report)
    page.locator("#taxonomy .flow").first.focus()
    page.keyboard.press("Enter")
    assert selected(page) > 0
    page.locator("#head .triple .mark").nth(6).focus()
    page.keyboard.press("Enter")
    assert "pc=2" in page.url
    near = page.locator("#head .near:not([aria-current])").first
    near.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#head .near[aria-current]")).to_be_focused()
    page.locator("#slider").focus()
    page.keyboard.press("Home")
    expect(page.locator("#stop option:checked")).to_have_text("S1-100")
    page.locator("#sort-r_q").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator("#table th[aria-sort=descending]")).to_contain_text("r_q")
    assert focused(page) == "sort-r_q"


# ---- state, filters, CSV ----

STATE = """() => ({ hash: location.hash, stop: qk.state.stop, heads: [...qk.state.heads].sort((a, b) => a - b),
  head: qk.state.head, pc: qk.state.pc, window: qk.state.window, filter: qk.state.filter, sort: qk.state.sort })"""


def test_the_hash_restores_everything(open_page: Open, report: Path) -> None:
    page = open_page(report)
    page.locator("#stop").select_option("1")
    page.locator("label[for=window-matched]").click()
    page.locator("label[for=measure-abs_r_k]").click()
    page.locator("label[for=cell-r_k]").click()
    page.locator("label[for=pc-1]").click()
    page.locator("#taxonomy .segment").first.click()
    page.locator("#polarity").select_option("concordant")
    page.locator("#layer-from").fill("1")
    page.locator("#layer-from").press("Enter")
    page.locator("#search").fill("L")
    page.locator("#sort-r_k").click()
    page.evaluate("0")
    before, url = page.evaluate(STATE), page.url
    again = open_page(report, url[url.index("#") :])
    assert again.evaluate(STATE) == before
    expect(again.locator("#selected-count")).to_have_text(page.locator("#selected-count").inner_text())
    expect(again.locator("#measure-abs_r_k")).to_be_checked()
    expect(again.locator("#search")).to_have_value("L")
    again.evaluate("location.hash = '#at=stage1-step-100&heads=0.0-2'")
    count(again, 3)
    expect(again.locator("#search")).to_have_value("")


def test_filters_hold_in_every_view(open_page: Open, report: Path, heads: pd.DataFrame) -> None:
    page = open_page(report)
    last = heads.loc["lc-256-to-512-step-100"].reset_index()
    page.locator("#rope").select_option("nope")
    wanted = int((last["rope"] == 0).sum())
    expect(page.locator("#table tbody tr")).to_have_count(wanted)
    expect(page.locator("#portrait .point")).to_have_count(wanted)
    expect(page.locator("#filter-chip")).to_contain_text(f"{wanted} heads")
    expect(page.locator("#signal-note")).to_contain_text("The filter holds")
    mean = last[last["rope"] == 0]["r_q"].mean()
    expect(page.locator("#signal .mark").last).to_have_attribute(
        "aria-label", re.compile(f"mean r_q {mean:.2f}")
    )
    page.locator("#layer-to").fill("3")
    page.locator("#layer-to").press("Enter")
    expect(page.locator("#table tbody tr")).to_have_count(4)
    page.locator("#filter-chip").click()
    expect(page.locator("#table tbody tr")).to_have_count(32)
    page.locator("#search").fill("3.2")
    expect(page.locator("#table tbody tr")).to_have_count(1)
    page.locator("#search").fill("nothing like it")
    expect(page.locator(".pager")).to_contain_text("No head passes")
    page.locator("#clear-filter").click()
    page.locator("label[for=class-4]").click()
    mixed = page.locator('#table tbody [data-column="class"]').all_inner_texts()
    assert set(mixed) == {"mixed"}


def test_the_selection_downloads_as_csv(
    open_page: Open, report: Path, heads: pd.DataFrame, tmp_path: Path
) -> None:
    page = open_page(report, "#heads=2.0-3,5.1")
    with page.expect_download() as found:
        page.locator("#save").click()
    found.value.save_as(tmp_path / "one.csv")
    table = pd.read_csv(tmp_path / "one.csv")
    assert found.value.suggested_filename == "synthetic_selection.csv"
    assert list(zip(table["layer"], table["head"], strict=True)) == [(2, 0), (2, 1), (2, 2), (2, 3), (5, 1)]
    want = heads.loc["lc-256-to-512-step-100", 5, 1]
    assert table.iloc[-1]["r_k"] == pytest.approx(want.r_k, abs=1.5e-4)
    with page.expect_download() as found:
        page.locator("#save-all").click()
    found.value.save_as(tmp_path / "all.csv")
    assert len(pd.read_csv(tmp_path / "all.csv")) == 4 * 5


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
        "window.seen = []; qk.onChange((keys) => { if (keys.has('stop')) seen.push(qk.state.stop); })"
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
      Object.assign(qk.state, { stop: 0 });
      qk.portrait.draw(new Set(["stop"]));
      const at = point.getAttribute("transform");
      const later = () => [before !== at, at === point.getAttribute("transform")];
      return new Promise((resolve) => setTimeout(() => resolve(later()), 300));
    }""")
    assert moved == [True, True]


# ---- what is not there is said ----

ABSENT = {
    "one": {
        "signal": "One checkpoint was measured",
        "taxonomy": "No flows: one checkpoint",
        "portrait": "no path to draw",
        "depth": "one column",
        "head": "no course over training",
    },
    "two": {"taxonomy": "", "portrait": "2 heads unmeasured here"},
    "models": {
        "signal": "different models",
        "taxonomy": "No flows: these are different models",
        "portrait": "no path from one to the next",
        "head": "A head of one model",
    },
    "bare": {
        "signal": "No matched window was measured",
        "portrait": "no standard errors",
        "head": "no shift null",
        "table": "No kv_head column",
        "methods": "hold no matched window",
    },
    "foreign": {
        "signal": "no error bars",
        "head": "first principal component only",
        "table": "No rope column",
        "methods": "do not say which documents were read",
    },
}


@pytest.mark.parametrize("name", ABSENT)
def test_views_adapt_or_say_why_not(open_page: Open, odd_reports: dict[str, Path], name: str) -> None:
    page = open_page(odd_reports[name])
    for view, said in ABSENT[name].items():
        expect(page.locator(f"#{view}")).to_contain_text(said)
    page.locator("#taxonomy .segment").first.click()
    assert selected(page) > 0
    page.locator("#depth .mark").first.dispatch_event("click")
    page.locator("#table tbody input").first.click()
    expect(page.locator("#head-title")).to_contain_text("Layer")
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


def test_heads_of_a_model_are_kept_in_the_hash(open_page: Open, odd_reports: dict[str, Path]) -> None:
    page = open_page(odd_reports["models"])
    click_on(page, "#taxonomy .segment")
    number, url = selected(page), page.url
    assert "%7E" in url or "~" in url
    count(open_page(odd_reports["models"], url[url.index("#") :]), number)


def test_two_checkpoints_have_flows_and_paths(open_page: Open, odd_reports: dict[str, Path]) -> None:
    page = open_page(odd_reports["two"])
    assert page.locator("#taxonomy .flow").count() > 0
    page.locator("#portrait .point").first.dispatch_event("click")
    expect(page.locator("#portrait .paths .way")).to_have_count(2)


def test_missing_windows_cannot_be_chosen(open_page: Open, odd_reports: dict[str, Path]) -> None:
    page = open_page(odd_reports["bare"], "#window=matched")
    expect(page.locator("#window-matched")).to_be_disabled()
    expect(page.locator("#window-own")).to_be_checked()


# ---- size ----


def test_a_study_of_154_by_1024_opens_and_works(open_page: Open, tmp_path: Path) -> None:
    names = [f"step{1000 * i}" for i in range(154)]
    results = make_results(tmp_path, names, Shape(layers=32, heads=32, group=1, components=1))
    page = open_page(write_report(results, tmp_path / "large.html"))
    expect(page.locator("#portrait .point")).to_have_count(1024)
    expect(page.locator("#taxonomy-note")).to_contain_text("of 154 checkpoints are drawn")
    page.locator("#taxonomy .segment").first.click()
    assert selected(page) > 0
    page.locator("#page-after").click()
    expect(page.locator(".pager")).to_contain_text("51–100 of 1,024 heads")
    page.locator("#stop").select_option("70")
    expect(page.locator("#table caption")).to_contain_text("step70000")
    page.locator("label[for=rows-layers]").click()
    expect(page.locator("#depth .mark")).to_have_count(154 * 32)


# ---- for everybody ----


def violations(page: Page) -> list[str]:
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    bad = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
    return [f"{v['id']}: {v['nodes'][0]['html'][:200]} ({len(v['nodes'])})" for v in bad]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_axe_finds_no_serious_violation(open_page: Open, report: Path, width: int, scheme: str) -> None:
    page = open_page(
        report, "#heads=2.0-3&classes=mixed,position-dominated", width=width, color_scheme=scheme
    )
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
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


def test_no_width_scrolls_sideways_and_pictures_are_kept(open_page: Open, report: Path) -> None:
    for width, scheme in ((390, "light"), (1280, "light"), (1920, "dark")):
        page = open_page(report, "#heads=2.0-3&at=stage1-step-200", width=width, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=PICTURES / f"report-{width}-{scheme}.png", full_page=True)
        for view in ("signal", "taxonomy", "portrait", "depth", "head"):
            page.locator(f"#{view}").screenshot(path=PICTURES / f"{view}-{width}.png")
        page.context.close()


def test_it_prints_without_its_controls(open_page: Open, report: Path) -> None:
    page = open_page(report, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    expect(page.locator("#toolbar")).to_be_hidden()
    expect(page.locator("#signal svg").first).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
