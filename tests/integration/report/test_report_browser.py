"""The report in a browser: it opens alone, shows the numbers of qk.csv, and links its views by mouse and keyboard."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, expect
from report_browser import (
    MINUS,
    ROOT,
    ROWS,
    SMALL,
    Open,
    click_on,
    count,
    cursor_to,
    linked,
    numbers_of,
    selected,
    unfold,
)
from report_data import make_results

from qkscope.report import SCRIPTS, write_report

HOSTILE = "</script><img src=x onerror=alert(1)>"


# ---- opening ----


def test_opens_from_a_file_with_the_network_off(open_page: Open, report: Path) -> None:
    page = open_page(report)
    expect(page.locator("#report h1")).to_have_text("A small study")
    expect(page.locator(".claim").first).to_be_visible()
    for view in ("signal", "classes", "portrait", "emergence"):
        expect(page.locator(f"#{view} svg").first).to_be_visible()
    expect(page.locator("#table tbody tr")).to_have_count(ROWS)
    page.locator("#numbers summary").click()
    expect(page.locator("#numbers tbody tr").first).to_be_visible()
    expect(page.locator("#head")).to_be_hidden()


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
    expect(page.locator("#report h1")).to_have_text(HOSTILE)
    page.locator("#checkpoint").select_option("0")
    page.locator("#portrait .point").first.click()
    page.locator("#signal .mark").first.hover()
    expect(page.locator("#tip")).to_contain_text(HOSTILE)
    expect(page.locator("#methods")).to_contain_text(HOSTILE)
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
    page = open_page(report, "#at=stage1-step-200&window=own")
    seen = 0
    while True:
        rows = page.evaluate("""() => [...document.querySelectorAll("#table tbody tr")].map((row) => {
          const cell = (name) => row.querySelector(`[data-column="${name}"]`).textContent;
          return ["layer", "head", "r_q", "r_k"].map(cell);
        })""")
        for layer, head, r_q, r_k in rows:
            want = heads.loc["stage1-step-200", int(layer.split()[-1]), int(head)]
            assert r_q.translate(MINUS) == f"{want.r_q:.3f} ±{want.r_q_se:.3f}"
            assert r_k.translate(MINUS) == f"{want.r_k:.3f} ±{want.r_k_se:.3f}"
            assert ("NoPE" in layer) == (want.rope == 0)
        seen += len(rows)
        if page.locator("#page-after").is_disabled():
            break
        page.locator("#page-after").click()
    assert seen == len(heads.loc["stage1-step-200"])


def test_marks_have_the_numbers_of_qk_csv(open_page: Open, report: Path, heads: pd.DataFrame) -> None:
    page = open_page(report, "#at=stage1-step-100&window=own")
    want = heads.loc["stage1-step-100", 3, 2]
    label = page.locator('#portrait .point[aria-label^="Layer 3, head 2 ·"]').get_attribute("aria-label")
    said = label.translate(MINUS)
    assert f"r_q {want.r_q:.3f} ± {want.r_q_se:.3f}, r_k {want.r_k:.3f} ± {want.r_k_se:.3f}" in said
    mean = heads.loc["stage1-step-100", 5]["r_q"].mean()
    page.evaluate("store.set({ rows: 'layers' })")
    assert f"mean r_q {mean:.3f}" in cursor_to(page, "emergence", "layer 5,", "S1-100")
    page.locator("#signal-numbers").click()
    row = page.locator("#signal-drawing tbody tr").first.inner_text().translate(MINUS)
    whole = heads.loc["stage1-step-100"]
    for rope in (1, 0):
        members = whole[whole["rope"] == rope]
        assert f"{members['r_q'].mean():.3f} ±" in row
        assert f"{members['r_k'].abs().mean():.3f} ±" in row


def test_the_window_changes_every_number(open_page: Open, report: Path, folder: Path) -> None:
    page = open_page(report)
    page.locator("#numbers summary").click()
    heads = pd.read_csv(folder / "heads.csv")
    for window in ("matched", "own"):
        page.locator(f"label[for=window-{window}]").click()
        table = heads.query(f"{window} == 1 and model == 'lc-256-to-512-step-100'")
        first = table[(table["layer"] == 0) & (table["head"] == 0)].iloc[0]
        expect(page.locator('#table tbody tr [data-column="r_q"]').first).to_contain_text(f"{first.r_q:.3f}")
        mean = table[table["rope"] == 1]["r_q"].mean()
        expect(page.locator("#signal .mark").last).to_have_attribute("aria-label", re.compile(f"{mean:.3f}"))
        cell = table[table["layer"] == 5]["r_q"].mean()
        page.evaluate("store.set({ rows: 'layers' })")
        assert numbers_of(page, "emergence")["layer 5", "LC1-100"].startswith(f"{cell:.3f}")
        page.locator("#numbers-search").fill("mean r_q RoPE")
        expect(page.locator("#numbers tbody tr").first).to_contain_text(f"{mean:.3f}")


def test_the_table_of_numbers_is_searched(open_page: Open, report: Path) -> None:
    page = open_page(report)
    unfold(page)
    page.locator("#numbers-search").fill("NoPE r_k")
    rows = page.locator("#numbers tbody tr").all_inner_texts()
    assert rows
    assert all("NoPE" in row and "r_k" in row for row in rows)
    page.locator("#numbers-search").fill("nothing like it")
    expect(page.locator("#numbers tbody tr")).to_have_count(0)


def test_the_head_page_shows_one_head_on_all_components(open_page: Open, report: Path, folder: Path) -> None:
    page = open_page(report, "#view=head&head=2.1&pc=2")
    expect(page.locator("#head-title")).to_have_text("Layer 2 · head 1")
    expect(page.locator("#report")).to_be_hidden()
    qk = pd.read_csv(folder / "qk.csv").set_index(["model", "layer", "head", "pc"]).sort_index()
    want = qk.loc["stage1-step-100", 2, 1, 2]
    label = (
        page.locator('#head .mark[aria-label^="S1-100 · PC2, r_q"]')
        .first.get_attribute("aria-label")
        .translate(MINUS)
    )
    assert f"r_q {want.r_q:.3f} ± {want.r_q_se:.3f}, null {want.r_q_null:.3f}" in label
    assert f"explained variance {100 * want.explained_variance:.1f}%" in label
    expect(page.locator("#head .neighbours .near")).to_have_count(2)
    page.locator("#head .near", has_text="head 0").click()
    expect(page.locator("#head-title")).to_have_text("Layer 2 · head 0")


# ---- the browser's history ----


def test_the_back_button_undoes_views_heads_and_selections(open_page: Open, report: Path) -> None:
    page = open_page(report)
    page.evaluate("store.set({ rows: 'layers' })")
    cursor_to(page, "emergence", "layer 0")
    page.keyboard.press("Enter")
    count(page, 4)
    page.locator("#table").scroll_into_view_if_needed()
    place = page.evaluate("window.scrollY")
    page.locator("#table tbody tr").nth(5).locator("button.link").click()
    expect(page.locator("#head-title")).to_have_text("Layer 1 · head 1")
    page.locator("#head-after").click()
    page.go_back()
    expect(page.locator("#head-title")).to_have_text("Layer 1 · head 1")
    page.go_back()
    expect(page.locator("#head")).to_be_hidden()
    expect(page.locator("#table")).to_be_in_viewport()
    assert abs(page.evaluate("window.scrollY") - place) < 5
    count(page, 4)
    page.go_back()
    count(page, 0)
    page.go_forward()
    count(page, 4)


def test_moving_through_checkpoints_is_not_history(open_page: Open, report: Path) -> None:
    page = open_page(report)
    before = page.evaluate("history.length")
    for _ in range(3):
        page.locator("#checkpoint-before").click()
    assert page.evaluate("history.length") == before
    assert "at=" in page.url


def test_the_head_page_leads_back_to_the_report(open_page: Open, report: Path) -> None:
    page = open_page(report, "#view=head&head=2.1")
    page.locator("#back").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#head")).to_be_hidden()
    expect(page.locator("#table")).to_be_focused()
    expect(page.locator("#signal svg").first).to_be_attached()


# ---- links between views, by mouse ----


def test_a_segment_selects_its_heads_everywhere(open_page: Open, report: Path, heads: pd.DataFrame) -> None:
    page = open_page(report)
    segment = page.locator("#classes .segment").last
    wanted = int(re.search(r"(\d+) heads?", segment.get_attribute("aria-label"))[1])
    segment.click()
    linked(page, wanted)
    assert segment.get_attribute("aria-pressed") == "true"
    page.locator("#clear").click()
    count(page, 0)


def test_a_flow_selects_the_heads_that_moved(open_page: Open, report: Path, heads: pd.DataFrame) -> None:
    page = open_page(report)
    label = click_on(page, '#classes .flow[aria-label*="→"]')
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
    page.locator("#portrait .unfold button").click()
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
    page = open_page(report, "#window=own")
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
    page = open_page(report, "#rows=layers")
    cursor_to(page, "emergence", "layer 6", "S1-200")
    page.keyboard.press("Enter")
    linked(page, 4)
    expect(page.locator("#checkpoint option:checked")).to_have_text("S1-200")


def test_a_column_of_the_signal_chooses_the_checkpoint(open_page: Open, report: Path) -> None:
    page = open_page(report)
    page.locator("#signal .mark").first.click()
    expect(page.locator("#checkpoint option:checked")).to_have_text("S1-100")
    expect(page.locator("#slider")).to_have_value("0")
    expect(page.locator("#table caption")).to_contain_text("S1-100")
    assert "at=stage1-step-100" in page.url


def test_claims_and_navigation_lead_to_their_views(open_page: Open, report: Path) -> None:
    page = open_page(report)
    unfold(page)
    link = page.locator(".claim .see").last
    view = link.get_attribute("data-view")
    link.click()
    expect(page.locator(f"#{view}")).to_be_focused()
    page.locator('nav a[data-view="methods"]').click()
    expect(page.locator("#methods")).to_be_in_viewport()
    expect(page.locator("#methods .facts").first).to_be_visible()
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
    expect(page.locator("#checkpoint option:checked")).to_have_text("S1-200")
    assert focused(page) == "checkpoint:stage1-step-200"
    tab_to(page, "classes")
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
    page.locator("#emergence-cursor").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert selected(page) == 1
    assert focused(page) == "emergence-cursor"
    expect(page.locator("#announcer")).to_contain_text("1 head selected")
    box = page.locator("#table tbody input").nth(10)
    box.focus()
    name = focused(page)
    page.keyboard.press(" ")
    assert focused(page) == name
    assert selected(page) == 2


def test_flows_sorting_and_the_slider_by_keyboard(open_page: Open, report: Path) -> None:
    page = open_page(report)
    page.locator("#classes .flow").first.focus()
    page.keyboard.press("Enter")
    assert selected(page) > 0
    page.locator("#slider").focus()
    page.keyboard.press("Home")
    expect(page.locator("#checkpoint option:checked")).to_have_text("S1-100")
    page.locator("#sort-r_q").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator("#table th[aria-sort=descending]")).to_contain_text("r_q")
    assert focused(page) == "sort-r_q"


def test_the_head_page_by_keyboard(open_page: Open, report: Path) -> None:
    page = open_page(report)
    page.locator("#table tbody button.link").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#head")).to_be_focused()
    page.locator("#head .climb .mark").nth(6).focus()
    page.keyboard.press("Enter")
    assert "pc=" in page.url
    near = page.locator("#head .near:not([aria-current])").first
    near.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#head .near[aria-current]")).to_be_focused()
