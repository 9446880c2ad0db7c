"""A report of two runs in a browser: both are drawn, the switch shows one or the other, and everybody can read it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from playwright.sync_api import Page, expect
from report_browser import MINUS, PHASES, PICTURES, Open, numbers_of, unfold, violations
from report_data import Shape, make_results, write_results

from qkscope.report import write_report

SHAPE = Shape(layers=4, heads=4, group=2, components=2)
HOSTILE = "</script><img src=x onerror=alert(1)>"
LAST = "lc-256-to-512-step-100"


def run(folder: Path, seed: int) -> Path:
    """Results that hold everything; those of another seed differ in r_q."""
    noise = np.random.default_rng(seed)

    def moved(qk: pd.DataFrame) -> pd.DataFrame:
        shift = seed * noise.normal(-0.05, 0.08, len(qk)) * (qk["pc"] == 0)
        return qk.assign(r_q=(qk["r_q"] + shift).clip(0, 0.99))

    title = f"A small study, seed {seed}"
    write_results(folder, SHAPE, PHASES, title=title, everything=True, change=moved)
    study = yaml.safe_load((folder / "study.yaml").read_text())
    (folder / "study.yaml").write_text(yaml.safe_dump(study | {"name": folder.name}))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    base = tmp_path_factory.mktemp("pair")
    return [run(base / f"seed-{seed}", seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def pair(runs: list[Path]) -> Path:
    return write_report(runs[0], beside=runs[1])


def means(folder: Path, rope: int, window: str = "own") -> pd.Series:
    rows = pd.read_csv(folder / "heads.csv").query(f"{window} == 1 and rope == @rope")
    return rows.groupby("model")["r_q"].mean()


def show(page: Page, choice: str) -> None:
    page.locator(f"label[for=run-{choice}]").click()


def test_both_runs_are_drawn_and_the_switch_shows_one(open_page: Open, pair: Path, runs: list[Path]) -> None:
    page = open_page(pair, "#window=own&measure=r_q&map=r_q")
    ours, theirs = (means(folder, 1)[LAST] for folder in runs)
    mark = page.locator(f'#signal [data-key="checkpoint:{LAST}"]')
    said = mark.get_attribute("aria-label").translate(MINUS)
    assert f"RoPE A: mean r_q {ours:.3f} ±" in said
    assert f"RoPE B: mean r_q {theirs:.3f} ±" in said
    assert f"NoPE B: mean r_q {means(runs[1], 0)[LAST]:.3f} ±" in said
    dashed = "#signal path[stroke-dasharray='6 4'], #signal g[stroke-dasharray='6 4'] path"
    expect(page.locator(dashed)).to_have_count(4)
    for choice, value, other in (("A", ours, theirs), ("B", theirs, ours)):
        show(page, choice)
        expect(page.locator(dashed)).to_have_count(0)
        said = mark.get_attribute("aria-label")
        assert f"RoPE: mean r_q {value:.3f} ±" in said
        assert f"{other:.3f}" not in said
        assert f"run={choice}" in page.url
        assert page.evaluate("location.hash").count("run=") == 1
    show(page, "both")
    expect(page.locator(dashed)).to_have_count(4)
    page.locator("label[for=window-matched]").click()
    matched = means(runs[1], 1, "matched")[LAST]
    assert f"RoPE B: mean r_q {matched:.3f} ±" in mark.get_attribute("aria-label")


def test_every_view_shows_how_the_runs_differ(open_page: Open, pair: Path, runs: list[Path]) -> None:
    page = open_page(pair, "#window=own&measure=r_q&map=r_q")
    tables = [
        pd.read_csv(folder / "qk.csv").query("pc == 0").set_index(["model", "layer", "head"]).sort_index()
        for folder in runs
    ]
    ours, theirs = (table.loc[LAST, 2, 1] for table in tables)
    expect(page.locator("#portrait g.move")).to_have_count(16)
    point = page.locator('#portrait .point[aria-label^="Layer 2, head 1 ·"]')
    said = point.get_attribute("aria-label").translate(MINUS)
    assert f"A: r_q {ours.r_q:.3f} ± {ours.r_q_se:.3f}, B: r_q {theirs.r_q:.3f} ±" in said
    change = tables[0].loc[LAST, 3]["r_q"].mean() - tables[1].loc[LAST, 3]["r_q"].mean()
    page.evaluate("store.set({ rows: 'layers' })")
    assert numbers_of(page, "emergence")["layer 3 (NoPE)", "LC1-100"].startswith(f"{change:+.3f}")
    expect(page.locator("#classes .tick")).to_have_count(2 * 4)
    assert page.locator("#classes .segment[aria-label^='A: LC1-100']").count() >= 1
    assert page.locator("#classes .segment[aria-label^='B: LC1-100']").count() >= 1
    page.locator("#sort-r_q_change").click()
    page.locator("#sort-r_q_change").click()
    first = page.locator('#table tbody tr [data-column="r_q_change"]').first.inner_text().translate(MINUS)
    widest = (tables[0].loc[LAST]["r_q"] - tables[1].loc[LAST]["r_q"]).abs().max()
    assert abs(float(first)) == pytest.approx(widest, abs=1.1e-3)
    expect(page.locator("#causes circle")).to_have_count(6)
    show(page, "B")
    expect(page.locator("#portrait g.move")).to_have_count(0)
    expect(page.locator("#causes circle")).to_have_count(3)
    expect(page.locator('#table tbody tr [data-column="r_q"]').first).to_be_visible()


def test_the_head_page_shows_a_head_of_both_runs(open_page: Open, pair: Path, runs: list[Path]) -> None:
    page = open_page(pair, "#window=own&view=head&head=2.1")
    ours, theirs = (
        pd.read_csv(folder / "qk.csv")
        .query("pc == 0 and model == @LAST and layer == 2 and head == 1")
        .iloc[0]
        for folder in runs
    )
    expect(page.locator("#head .strip")).to_have_count(2)
    label = page.locator('#head .mark[data-key^="correlation:"]').last.get_attribute("aria-label")
    assert f"A: r_q {ours.r_q:.3f}" in label
    assert f"B: r_q {theirs.r_q:.3f}" in label
    show(page, "B")
    expect(page.locator("#head .strip")).to_have_count(1)


def test_the_views_of_one_head_and_of_layers_show_both_runs(open_page: Open, pair: Path) -> None:
    page = open_page(pair, "#heads=2.1&head=2.1")
    lines = page.locator("#explorer-drawing svg g[stroke='var(--share_position)']")
    expect(lines).to_have_count(2)
    expect(page.locator("#explorer-drawing svg g[stroke-dasharray='6 4']")).to_have_count(1)
    for run in (0, 1):
        # The curve of each run is what its own mean vectors predict.
        ends = page.evaluate(
            """(run) => {
              const svg = document.querySelector("#explorer-drawing svg");
              const path = svg.querySelectorAll("g[stroke='var(--share_position)'] path")[1 - run];
              const waves = explorer.wavesOf(store.currentHead(), run);
              const { total } = explorer.predict(waves, null, [1]);
              return [path.getPointAtLength(0).y, svg.scale("y").apply(total[0])];
            }""",
            run,
        )
        assert ends[0] == pytest.approx(ends[1], abs=0.01)
    for run in "AB":
        expect(page.locator(f'#scores [data-key="layer:2{run}"]')).to_have_count(1)
    page.evaluate("location.hash = '#view=head&head=2.1'")
    expect(page.locator("#head .climb")).to_have_count(2)
    expect(page.locator('#head [data-key^="sharesA:"]')).to_have_count(4)
    expect(page.locator('#head [data-key^="sharesB:"]')).to_have_count(4)
    page.locator('#head [data-key="climb:B1:1"]').focus()
    expect(page.locator("#head .path-panel")).to_contain_text("B: Mean path along PC1")
    show(page, "A")
    expect(page.locator("#head .climb")).to_have_count(1)


def test_a_flow_selects_heads_of_another_kind_in_the_second_run(open_page: Open, pair: Path) -> None:
    page = open_page(pair, "#taxonomy=published")
    flow = page.locator("#classes .flow:not(.stay)").first
    said = flow.get_attribute("aria-label")
    assert " in A, " in said
    flow.dispatch_event("click")
    expect(page.locator("#portrait .move.picked")).to_have_count(int(said.split(": ")[1].split()[0]))


def test_hostile_names_of_runs_are_text(open_page: Open, tmp_path: Path) -> None:
    names = ["step1", "step2"]
    two = [make_results(tmp_path / each, names, SHAPE, title=HOSTILE) for each in ("a", "b")]
    two = [replace(each, timeline=replace(each.timeline, name=f"{HOSTILE}{i}")) for i, each in enumerate(two)]
    page = open_page(write_report(two[0], tmp_path / "hostile.html", beside=two[1]))
    expect(page.locator("#report h1")).to_have_text(f"{HOSTILE}0 and {HOSTILE}1")
    expect(page.locator("#signal .legend")).to_contain_text("A </script>")
    assert page.locator("img").count() == 0


def test_both_runs_download_as_csv(open_page: Open, pair: Path, tmp_path: Path) -> None:
    page = open_page(pair)
    with page.expect_download() as wait:
        page.locator("#save").click()
    wait.value.save_as(tmp_path / "both.csv")
    table = pd.read_csv(tmp_path / "both.csv")
    assert len(table) == 2 * 4 * 16
    assert list(table["run"].unique()) == ["seed-0", "seed-1"]


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
)
def test_axe_finds_no_serious_violation(open_page: Open, pair: Path, width: int, scheme: str) -> None:
    page = open_page(pair, "#heads=2.0-3", width=width, color_scheme=scheme)
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page) == []
    page.screenshot(path=PICTURES / f"pair-{width}-{scheme}.png", full_page=True)
