"""Every claim on the page: its headline, the mark beside it and a recomputation from the tables agree."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from playwright.sync_api import Page, expect
from report_browser import MINUS, Open, cursor_to, unfold
from whole_study import whole

from qkscope.claims import Claim, Row, claims
from qkscope.report import write_report
from qkscope.results import Results


@pytest.fixture(scope="module")
def study() -> Results:
    return whole()


@pytest.fixture(scope="module")
def whole_report(study: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(study, tmp_path_factory.mktemp("claims") / "report.html")


# ---- the numbers again, from the tables ----


def heads_of(study: Results, row: Row) -> pd.DataFrame:
    """The heads a row is about, with every measure over its window."""
    heads = study.matched_heads if row.window == "matched" else study.heads
    rope = {"RoPE": [1.0], "NoPE": [0.0], "all": [0.0, 1.0]}[row.population]
    return heads[(heads["model"] == row.model) & heads["rope"].isin(rope)]


def data_of(study: Results, row: Row) -> xr.Dataset:
    """The checkpoint a row is about, over its window: the heads of its population."""
    data = (study.matched() if row.window == "matched" else study.own()).sel(checkpoint=row.model)
    rope = {"RoPE": [1.0], "NoPE": [0.0], "all": [0.0, 1.0]}[row.population]
    return data.isel(head=np.flatnonzero(np.isin(data["rope"], rope)))


def share_of_wave(study: Results, row: Row) -> float:
    """|part of r_q| of one wavelength over the sum of all, averaged over heads weighted with |r_q|."""
    data = data_of(study, row).sel(pair=slice(0, None))
    parts, waves = data["signal_q"].to_numpy(), data["wavelength"].to_numpy()[0]
    size, weight = np.abs(parts), np.abs(parts.sum(axis=1))
    shares = size / size.sum(axis=1, keepdims=True)
    return float(np.average(shares[:, np.argmin(np.abs(waves - row.at))], weights=weight))


def score_at(study: Results, row: Row) -> float:
    """The mean position bias at a distance."""
    return float(np.mean(data_of(study, row)["distance_score"].sel(distance=int(row.at)).to_numpy()))


def again(study: Results, row: Row) -> float:
    """The number of a row, from the tables."""
    if row.measure == "signal_q":
        return share_of_wave(study, row)
    if row.measure == "score":
        return score_at(study, row)
    heads = heads_of(study, row)
    if row.unit == "heads":
        r_q, r_k = heads["r_q"].to_numpy(), np.abs(heads["r_k"].to_numpy())
        kinds = {
            "position-dominated": (r_q > 0.7) & (r_k > 0.7),
            "Q-positional": (r_q > 0.7) & (r_k < 0.3),
            "K-positional": (r_q < 0.3) & (r_k > 0.7),
            "content-focused": (r_q < 0.3) & (r_k < 0.3),
        }
        kinds["mixed"] = ~np.any(list(kinds.values()), axis=0)
        return float(kinds[row.measure].sum())
    if row.at is not None:
        heads = heads[heads["layer"] == row.at]
    if row.measure == "share_positional":
        return float((heads["share_position"] + heads["share_query_position"]).mean())
    absolute = row.measure.startswith("abs_")
    values = heads[row.measure.removeprefix("abs_")].to_numpy()
    return float(np.mean(np.abs(values) if absolute else values))


# ---- the same numbers, read from the page ----


def printed(text: str) -> list[tuple[float, float]]:
    """Numbers of a text as (value, half a unit of its last digit); percent as a share."""
    found = re.findall(r"(?<![\w.-])(-?\d[\d,]*(?:\.\d+)?)(%?)", text.translate(MINUS))
    numbers = []
    for digits, percent in found:
        digits = digits.replace(",", "")
        half = 0.5 * 10.0 ** -len(digits.partition(".")[2])
        scale = 100.0 if percent else 1.0
        numbers.append((float(digits) / scale, half / scale + 1e-9))
    return numbers


def says(text: str, value: float) -> bool:
    return any(abs(number - value) <= half for number, half in printed(text))


def label(page: Page, key: str) -> str:
    return page.locator(f'[data-key="{key}"]').get_attribute("aria-label").translate(MINUS)


def checkpoint_of(page: Page, model: str) -> int:
    return page.evaluate(
        "(model) => data.checkpoints.findIndex((checkpoint) => checkpoint.model === model)", model
    )


HEIGHT = """([selector, edge]) => {
  const mark = document.querySelector(selector);
  const svg = mark.closest("svg");
  const moved = mark.getAttribute("transform")?.match(/,([-.0-9]+)/)?.[1];
  return svg.scale("y").invert(Number(mark.getAttribute(edge) ?? moved));
}"""


def height(page: Page, selector: str, edge: str = "cy") -> float:
    """The value at which a mark stands on the vertical axis of its chart."""
    return page.evaluate(HEIGHT, [selector, edge])


def in_signal(page: Page, row: Row) -> tuple[str, float]:
    name = page.evaluate("(measure) => data.measureLabel(measure)", row.measure.replace("abs_r_q", "r_q"))
    text = label(page, f"checkpoint:{row.model}")
    measure = re.escape(name)
    said = re.search(rf"{row.population}(?: {measure})?: mean (?:{measure} )?([-\d.]+%?)", text)[1]
    column = row.measure.replace("abs_r_q", "r_q")
    dot = f".dots-{row.population}-{column} > :nth-child({checkpoint_of(page, row.model) + 1})"
    return said, height(page, f"#signal-drawing {dot}")


def in_emergence(page: Page, row: Row) -> tuple[str, float | None]:
    checkpoint = page.evaluate(
        "(model) => data.checkpoints.find((checkpoint) => checkpoint.model === model).label", row.model
    )
    label = cursor_to(page, "emergence", f"layer {row.at:.0f},", checkpoint)
    return re.search(r"mean [^\d]*([-\d.]+%?)", label.translate(MINUS))[1], None


def in_scores(page: Page, row: Row) -> tuple[str, float | None]:
    text = label(page, f"scores:{row.population}:{row.model}")
    name = page.evaluate("(measure) => data.measureLabel(measure)", row.measure)
    return re.search(rf", {name} ([-\d.]+%)", text)[1], None


def in_spectrum(page: Page, row: Row) -> tuple[str, float | None]:
    checkpoint = page.evaluate(
        "(model) => data.checkpoints.find((checkpoint) => checkpoint.model === model).label", row.model
    )
    wave = page.evaluate("(at) => text.tokens(at)", row.at)
    label = cursor_to(page, "spectrum", f"· {checkpoint}", f"{wave} tokens")
    return re.search(r"share of r_q ([\d.]+%)", label)[1], None


def in_distance(page: Page, row: Row) -> tuple[str, float]:
    key = f"distance:{row.population}:0:{row.at:.0f}"
    return re.search(r"by distance ([-\d.]+)", label(page, key))[1], height(page, f'[data-key="{key}"]')


def in_classes(page: Page, row: Row) -> tuple[str, float]:
    code = page.evaluate("(name) => data.classes.indexOf(name)", row.measure)
    key = f"segment:{row.population}:{checkpoint_of(page, row.model)}:{code}"
    text = label(page, key)
    segments = page.locator(f'[data-key^="segment:{row.population}:{checkpoint_of(page, row.model)}:"]')
    tall = [float(segments.nth(i).get_attribute("height")) + 1 for i in range(segments.count())]
    own = float(page.locator(f'[data-key="{key}"]').get_attribute("height")) + 1
    heads = page.evaluate(
        "(name) => data.heads.filter((head) => head.population === name).length", row.population
    )
    return re.search(r"(\d+) heads", text)[1], own / sum(tall) * heads


MARKS: dict[str, Callable[[Page, Row], tuple[str, float | None]]] = {
    "signal": in_signal,
    "emergence": in_emergence,
    "scores": in_scores,
    "spectrum": in_spectrum,
    "distance": in_distance,
    "classes": in_classes,
}


def headline_rows(claim: Claim) -> list[Row]:
    """The rows whose numbers the headline has: the first ones, two at least where there are two."""
    return [row for row in claim.rows[:2] if row.from_model is None]


def check_effects(study: Results, claim: Claim, headline: str) -> None:
    """Effects of one step are those of causes.csv; the headline has the clear ones in points."""
    first, table = claim.rows[0], study.causes
    step = table[(table["to_model"] == first.model) & (table["population"] == first.population)]
    step = step[step["number"] == claim.see.measure].iloc[0]
    rows = [r for r in claim.rows if (r.measure, r.population) == (first.measure, first.population)]
    assert len(rows) > 1
    for row in rows:
        assert row.value == pytest.approx(step[row.effect], abs=1e-9), row.what
        if row.verdict in ("rises", "falls") and row.unit == "share":
            assert f"{abs(row.value) * 100:.0f} point" in headline, (row.what, headline)


def test_every_number_of_a_headline_is_that_of_the_mark_beside_it_and_of_the_tables(
    open_page: Open, whole_report: Path, study: Results
) -> None:
    page = open_page(whole_report, width=1440)
    unfold(page)
    found = claims(study)
    on_page = page.locator(".claim[data-claim]").evaluate_all("all => all.map((one) => one.dataset.claim)")
    assert sorted(on_page) == sorted(claim.id for claim in found)
    assert len(on_page) <= 10
    for claim in found:
        block = page.locator(f'.claim[data-claim="{claim.id}"]')
        headline = block.locator(".headline").inner_text()
        # The claim stands in the same section as the picture that it points at.
        expect(page.locator(f"#{claim.see.view}").locator(block)).to_have_count(1)
        block.locator(".see").click()
        expect(page.locator(f"#{claim.see.view}")).to_be_focused()
        assert page.evaluate("store.state.window") == claim.window, claim.id
        assert page.evaluate("data.checkpoints[store.state.checkpoint].model") == claim.see.checkpoint, (
            claim.id
        )
        if claim.rows[0].effect:
            check_effects(study, claim, headline)
            continue
        rows = headline_rows(claim)
        assert says(headline, again(study, rows[0])), (claim.id, headline)
        for row in rows:
            value = again(study, row)
            assert row.value == pytest.approx(value, abs=1e-9), (claim.id, row.what)
            if not says(headline, value):
                continue
            said, place = MARKS[claim.see.view](page, row)
            assert says(said, value), (claim.id, row.what, said, value)
            if place is not None:
                assert place == pytest.approx(value, abs=2e-3 * max(1, abs(value))), (claim.id, row.what)


def test_see_it_undoes_what_hides_the_number(open_page: Open, whole_report: Path, study: Results) -> None:
    """From any state of the page, the link shows the claim's window, checkpoint, measure and all heads."""
    page = open_page(whole_report, "#window=own&at=stage1-step-0&measure=plasticity&rope=NoPE", width=1440)
    unfold(page)
    for claim in claims(study):
        page.locator(f'.claim[data-claim="{claim.id}"] .see').click()
        assert page.evaluate("store.state.window") == claim.window
        menu = {"signal": "measure", "emergence": "map"}.get(claim.see.view)
        if menu:
            assert page.evaluate(f"store.state.{menu}") == claim.see.measure
        assert page.evaluate("store.shown()") is None
        if claim.id == "behaviour":
            drawn = page.evaluate("[store.state.across, store.state.up]")
            assert drawn == claim.rows[0].measure.split("~")
            expect(page.locator('.claim[data-claim="behaviour"] .other')).to_be_hidden()


def test_one_window_holds_for_headline_chart_and_table(open_page: Open, whole_report: Path) -> None:
    page = open_page(whole_report)
    for name, said in (("own", "training context"), ("matched", "first 256 tokens")):
        page.locator(f"label[for=window-{name}]").click()
        for place in ("#signal-drawing svg", "#table caption", "#numbers caption", "#portrait-note"):
            expect(page.locator(place).first).to_contain_text(said)
        for claim in page.locator(".claim").all():
            if claim.locator(".see").get_attribute("data-window") != name:
                expect(claim.locator(".other")).to_contain_text(said)
            else:
                expect(claim.locator(".other")).not_to_contain_text(said)


def test_a_claim_beside_another_checkpoint_or_measure_is_flagged_until_it_is_seen(
    open_page: Open, whole_report: Path, study: Results
) -> None:
    page = open_page(whole_report, "#at=stage1-step-0&measure=plasticity", width=1440)
    unfold(page)
    first = study.timeline.checkpoints[0].label
    layers = page.locator("#emergence-measure").input_value()
    for claim in claims(study):
        block = page.locator(f'.claim[data-claim="{claim.id}"]')
        page.evaluate("store.set({ checkpoint: 0, measure: 'plasticity', window: 'matched' })")
        if claim.see.view in ("distance", "roles", "portrait"):
            expect(block.locator(".other")).to_contain_text(first)
        if claim.id == "behaviour":
            page.evaluate("store.set({ across: 'r_q', up: 'r_k' })")
            expect(block.locator(".other")).to_contain_text("r_k by r_q")
        if claim.see.view == "signal" and claim.see.measure != "plasticity":
            expect(block.locator(".other")).to_contain_text(page.evaluate("data.measureLabel('plasticity')"))
        block.locator(".see").click()
        expect(block.locator(".other")).to_be_hidden()
        if claim.see.view == "signal":  # the map by layer keeps its own measure
            expect(page.locator("#emergence-measure")).to_have_value(layers)


def test_a_folded_claim_stays_on_one_line(open_page: Open, whole_report: Path) -> None:
    """ "More" and its marker have room beside the claim's window, whatever else is said there."""
    for width in (1440, 420):
        page = open_page(whole_report, "#window=own&at=stage1-step-0", width=width)
        for aside in page.locator(".aside > summary").all():
            aside.click()
        for summary in page.locator(".claim .more > summary").all():
            box = summary.bounding_box()
            assert box["height"] < 32, (width, summary.inner_text())


def test_a_study_of_one_population_has_one_line(open_page: Open, tmp_path: Path) -> None:
    page = open_page(write_report(whole(populations=False), tmp_path / "one.html"))
    assert page.evaluate("data.populations") == ["all"]
    expect(page.locator("#classes-drawing svg")).to_have_count(1)
    expect(page.locator("#signal-drawing")).not_to_contain_text("NoPE")
    expect(page.locator("#report")).not_to_contain_text("NoPE heads")
