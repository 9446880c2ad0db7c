"""What the report's browser tests share: the small study they open, and what they ask of a page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect
from report_data import Shape

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "build" / "screenshots"
MINUS = str.maketrans("−", "-")
SMALL = Shape(layers=8, heads=4, group=2, components=4)
PHASES = (
    ("Stage 1", 256, ("stage1-step-100", "stage1-step-200")),
    ("Long context", 512, ("lc-256-to-512-step-50", "lc-256-to-512-step-100")),
)

ROWS = 12  # of a page of the heads table

Open = Callable[..., Page]
AXE = (ROOT / "tests" / "vendor" / "axe.min.js").read_text(encoding="utf-8")


def count(page: Page, number: int) -> None:
    """The toolbar says that so many heads are selected."""
    text = "no selection" if number == 0 else f"{number} head{'' if number == 1 else 's'} selected"
    expect(page.locator("#selected-count")).to_have_text(text)


def selected(page: Page) -> int:
    return int(
        re.findall(r"\d+", page.locator("#selected-count").inner_text().replace("no selection", "0"))[0]
    )


def linked(page: Page, number: int) -> None:
    """All views show the same selection: toolbar, portrait, table, emergence, classes and the hash."""
    count(page, number)
    expect(page.locator("#portrait .point.selected")).to_have_count(number)
    page.locator("#only").check()
    expect(page.locator("#table tbody tr.selected")).to_have_count(min(number, ROWS))
    page.locator("#only").uncheck()
    expect(page.locator("#emergence .has-selected")).to_have_attribute("d", re.compile(r"^M"))
    expect(page.locator("#classes .picked-strip").first).to_be_attached()
    assert "heads=" in page.url


def cursor_to(page: Page, view: str, row: str, column: str = "") -> str:
    """Move a sheet's cursor, by keyboard, to the first cell whose label names the row and begins with the column."""
    cursor = page.locator(f"#{view}-cursor")
    cursor.focus()

    def press(key: str) -> bool:
        before = cursor.bounding_box(), cursor.get_attribute("style")
        page.keyboard.press(key)
        return (cursor.bounding_box(), cursor.get_attribute("style")) != before

    page.keyboard.press("Home")
    while press("PageUp"):
        pass
    while row not in cursor.get_attribute("aria-label"):
        assert press("ArrowDown"), f"no row of {view} is called {row}"
    while not cursor.get_attribute("aria-label").startswith(column):
        assert press("ArrowRight"), f"no column of {view} is called {column}"
    return cursor.get_attribute("aria-label")


def numbers_of(page: Page, view: str) -> dict[tuple[str, str], str]:
    """The table below a chart: (row, column) -> cell."""
    if not page.locator(f"#{view}-drawing details[open]").count():
        page.locator(f"#{view}-numbers").click()
    page.locator(f"#{view}-drawing tbody tr").first.wait_for(state="attached")
    rows = page.locator(f"#{view}-drawing table").evaluate(
        "(table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return {
        (row[0], name): cell.translate(MINUS)
        for row in rows[1:]
        for name, cell in zip(rows[0][1:], row[1:], strict=True)
    }


def unfold(page: Page) -> None:
    """Open everything that is folded."""
    page.evaluate("""() => {
      for (const button of document.querySelectorAll(".unfold button")) button.click();
      for (const one of document.querySelectorAll("details")) one.open = true;
    }""")


def violations(page: Page) -> list[str]:
    """What axe finds serious or critical on a page."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    bad = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
    return [f"{v['id']}: {v['nodes'][0]['html'][:200]} ({len(v['nodes'])})" for v in bad]


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
