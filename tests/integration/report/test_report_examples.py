"""Attention on excerpts in the report: its numbers, its bars, its keys, and tokens that are not what they seem."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from report_browser import Open, numbers_of, violations
from report_data import HOSTILE, SHOWN
from test_report_sheets import LABELS

from qkscope.report.text_view import LEAST, STEPS
from qkscope.results import load_results
from qkscope.sums.excerpts import NO_KEY, first_query

MODELS = list(LABELS)
ROW = """([checkpoint, head, text, token]) => {
  store.set({ checkpoint, head, heads: new Set([head]), excerpt: String(text), token: String(token) });
  return examples.row(head, text, token);
}"""


def index_of(head: tuple[int, int]) -> int:
    """Of a head on the page: 8 layers of 4."""
    return 4 * head[0] + head[1]


def slow_rows(folder: Path, model: str, head: int, text: int, t: int) -> tuple[np.ndarray, np.ndarray]:
    """Attention of a query to all tokens up to it, and how distance alone shares it among those from 4 on."""
    results = load_results(folder)
    found, axes = results.examples[model], results.axes[model]
    n = len(found.words[text])
    slot = t - first_query(n)
    real = np.full(t + 1, np.nan)
    for key, weight in zip(
        found.sums.key[text, head, slot], found.sums.weight[text, head, slot], strict=True
    ):
        if key != NO_KEY and weight >= LEAST:
            real[key] = weight
    other = max(0.0, 1.0 - np.nansum(real))
    real[np.isnan(real)] = other / max(1, np.isnan(real).sum())
    layer, number = found.heads[head]
    row, rotation = axes.row(layer, number), axes.rotations[layer]
    q, k = (
        path.total[at, 2:].sum(axis=0) / path.n[2:].sum()
        for path, at in ((axes.path_q, row), (axes.path_k, axes.heads.kv_row[row]))
    )
    scores = np.array(
        [
            axes.scales[layer]
            * (rotation.rotate(q[None], np.array([t])) @ rotation.rotate(k[None], np.array([j])).T)[0, 0]
            for j in range(4, t + 1)
        ]
    )
    parts = np.exp(scores - scores.max())
    return real, parts / parts.sum()


def test_rows_are_those_of_the_file(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report)
    rows = ((3, 0, 127), (0, 0, 64), (2, 1, 30), (3, 1, 59))
    for head, (checkpoint, text, t) in product(range(len(SHOWN)), rows):
        shown = page.evaluate(ROW, [checkpoint, index_of(SHOWN[head]), text, t])
        real, parts = slow_rows(full_report.parent, MODELS[checkpoint], head, text, t)
        masses = shown["masses"]
        assert [one["key"] for one in masses] == list(range(t + 1))
        # What the page keeps of a weight: 9 bits of its root.
        room = 0.51 * 2 * np.sqrt(real) / STEPS + 1e-5
        named = np.array([one["named"] for one in masses])
        got = np.array([one["real"] for one in masses])
        assert (np.abs(got - real)[named] <= room[named]).all()
        assert got.sum() == pytest.approx(1.0, abs=0.01)
        alone = np.concatenate([got[:4], got[4:].sum() * parts])
        assert np.array([one["alone"] for one in masses]) == pytest.approx(alone, abs=1e-5)


def test_bars_labels_and_table_say_the_same(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report, "#examples")
    shown = page.evaluate(ROW, [3, index_of(SHOWN[0]), 0, 120])
    tokens = page.locator("#examples .token")
    expect(tokens).to_have_count(128)
    bars = page.evaluate(
        """() => [...document.querySelectorAll("#examples .token")].map((token) =>
          ["attention", "distance-alone", "difference"].map((name) =>
            Number(token.querySelector(`rect.${name}`)?.getAttribute("height") || 0)))"""
    )
    masses = shown["masses"]
    most = max(max(one["real"], one["alone"]) for one in masses if one["key"] >= 4)
    table = numbers_of(page, "examples")
    for one in masses:
        real, alone, difference = one["real"], one["alone"], one["real"] - one["alone"]
        heights = [20 * min(1, abs(value) / most) for value in (real, alone, difference)]
        assert bars[one["key"]] == pytest.approx(heights, abs=0.26)
        row = str(one["key"])
        assert table[row, "tokens back"] == str(120 - one["key"])
        assert table[row, "token"] == f"·word{row}"
        for name, value in (("attention", real), ("distance alone", alone), ("difference", difference)):
            assert float(table[row, name].rstrip("% points")) == pytest.approx(100 * value, abs=0.051)
    assert all(bars[key] == [0, 0, 0] for key in range(121, 128))
    top = max(masses, key=lambda one: one["real"])
    label = tokens.nth(top["key"]).get_attribute("aria-label")
    assert f"· {120 - top['key']} token" in label
    assert f"attention {100 * top['real']:.1f}%" in label
    assert f"{100 * top['real']:.1f}%" in page.locator("#examples .sentence").inner_text()
    assert f"other tokens {100 * shown['other']:.1f}%" in page.locator("#examples .legend").inner_text()


def test_tokens_are_read_by_keyboard_and_the_link_keeps_them(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report, "#examples")
    tab_stops = page.locator('#examples-drawing .token[tabindex="0"]')
    expect(tab_stops).to_have_count(1)
    opened = int(page.locator("#examples .reading").get_attribute("data-key").removeprefix("token:"))
    assert 64 < opened < 128, "a query of the second half"
    tab_stops.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    key = f"token:{opened - 2}"
    assert page.evaluate("document.activeElement.dataset.key") == key
    assert "attention" in page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("Enter")
    reading = page.locator("#examples .reading")
    expect(reading).to_have_attribute("data-key", key)
    expect(reading).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("document.activeElement.dataset.key") == key
    assert f"token={opened - 2}" in page.url
    page.locator("#examples-head").select_option(str(index_of(SHOWN[2])))
    page.locator('label[for="excerpt-1"]').click()
    expect(page.locator("#examples .token")).to_have_count(len(HOSTILE) + 40)
    assert "excerpt=1" in page.url
    again = open_page(full_report, "#" + page.url.partition("#")[2])
    expect(again.locator("#examples-head")).to_have_value(str(index_of(SHOWN[2])))
    expect(again.locator("#examples .token")).to_have_count(len(HOSTILE) + 40)
    page.go_back()
    expect(page.locator("#examples .token")).to_have_count(128)
    # A token of the first half is looked at, and looks at nothing.
    expect(page.locator('[data-key="token:3"]')).to_have_attribute("role", "img")


def test_the_player_moves_through_the_checkpoints(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report, "#examples")
    before = page.locator("#examples .sentence").inner_text()
    course = page.locator("#examples-drawing .columns-layer .mark")
    expect(course).to_have_count(4)
    page.locator("#examples-slider").fill("0")
    expect(page.locator("#checkpoint option:checked")).to_have_text("S1-100")
    expect(page.locator("#slider")).to_have_value("0")
    assert page.locator("#examples .sentence").inner_text() != before
    # The same numbers over training: of the token that is looked at most in the end.
    query = page.locator("#examples .reading").get_attribute("data-key").removeprefix("token:")
    rows = page.evaluate(
        f"[0, 1, 2, 3].map((checkpoint) => examples.row(store.state.head ?? 4, 0, {query}, checkpoint))"
    )
    last = max(rows[3]["masses"], key=lambda one: one["real"])["key"]
    for checkpoint, row in enumerate(rows):
        share = row["masses"][last]["real"]
        said = f"attention {100 * share:.1f}%"
        assert said in course.nth(checkpoint).get_attribute("aria-label")
    course.nth(2).click()
    expect(page.locator("#checkpoint option:checked")).to_have_text("LC1-50")


def test_hostile_tokens_are_text(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report, "#excerpt=1&view=examples")
    texts = page.locator("#examples .token text").all_text_contents()
    assert texts[0] == "<img·src=x·on…"
    assert texts[1] == "</script>"
    assert texts[2].startswith("\\u202egnp")
    assert texts[3:7] == ["\\u0000", "↵", "⇥·", "∅"]
    assert len(texts[7]) == 14
    assert texts[8] == "r_q"
    assert page.locator("#examples-drawing img").count() == 0
    assert page.locator("#examples-drawing sub, #examples-drawing .token tspan").count() == 0
    for text in texts:
        assert not any(ord(c) < 32 or c in "\u202e\u2028" for c in text)


def test_it_fits_and_is_accessible(open_page: Open, full_report: Path) -> None:
    for width, scheme in ((1440, "dark"), (390, "light")):
        page = open_page(full_report, "#examples", width=width, color_scheme=scheme)
        assert not inside(page)
        assert violations(page) == []


def inside(page: Page) -> list[str]:
    """Tokens that stand outside the drawing."""
    return page.evaluate(
        """() => {
          const frame = document.getElementById("examples-drawing").getBoundingClientRect();
          return [...document.querySelectorAll("#examples .token .ground")]
            .map((one) => one.getBoundingClientRect())
            .filter((box) => box.left < frame.left - 1 || box.right > frame.right + 1)
            .map(String);
        }"""
    )
