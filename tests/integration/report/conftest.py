"""A real Chromium for the report's tests: pages opened from a file with the network off, and watched.

An error on the console, an uncaught exception, a dialog or a request that leaves the file fails the test that saw
it. Fixtures live as long as a module: an open browser keeps an event loop running that other tests must not find.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from report_browser import PHASES, SMALL, Open
from report_data import Shape, write_foreign, write_results

from qkscope.report import write_report


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
def full_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of results that hold everything: scores, curves and causes, over both windows."""
    folder = tmp_path_factory.mktemp("full") / "full"
    return write_report(write_results(folder, SMALL, PHASES, title="Everything", everything=True))


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
