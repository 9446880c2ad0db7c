"""The report's canvas views: what their cells say equals the tables; mouse, keyboard and both themes."""

from __future__ import annotations

import re
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import expect
from report_browser import MINUS, Open, count, cursor_to, numbers_of, unfold

from qkscope.measures.registry import variables
from qkscope.report.data import COMPUTED
from qkscope.results import load_results
from qkscope.results.roles import ROLES, named, role_names
from qkscope.sums.rotation import Rotation
from qkscope.sums.scores import distances

LABELS = {
    "stage1-step-100": "S1-100",
    "stage1-step-200": "S1-200",
    "lc-256-to-512-step-50": "LC1-50",
    "lc-256-to-512-step-100": "LC1-100",
}


@pytest.fixture(scope="module")
def table(full_report: Path) -> pd.DataFrame:
    """heads.csv over the first tokens, by model, layer and head."""
    heads = pd.read_csv(full_report.parent / "heads.csv").query("matched == 1")
    return heads.set_index(["model", "layer", "head"]).sort_index()


def onsets(table: pd.DataFrame, name: str = "share_positional") -> dict[tuple[int, int], str]:
    """The label of the first checkpoint at which a head's share is above 0.3."""
    above = table[table[name] > 0.3].reset_index()
    order = {model: i for i, model in enumerate(LABELS)}
    first = above.assign(at=above["model"].map(order)).sort_values("at").groupby(["layer", "head"]).first()
    return {key: LABELS[model] for key, model in first["model"].items()}


def test_the_raster_has_every_head_in_the_order_of_its_onset(
    open_page: Open, full_report: Path, table: pd.DataFrame
) -> None:
    page = open_page(full_report)
    found, first = numbers_of(page, "emergence"), onsets(table)
    order = list(dict.fromkeys(row for row, _ in found))
    names = {f"L{layer}H{head}": (layer, head) for layer, head in table.loc["stage1-step-100"].index}
    assert sorted(order) == sorted(names)
    rank = [*LABELS.values(), "–"]
    for rope in (1, 0):
        heads = [row for row in order if table.loc["stage1-step-100", *names[row]].rope == rope]
        told = [found[row, "above 30% from"] for row in heads]
        assert told == [first.get(names[row], "–") for row in heads]
        assert [rank.index(one) for one in told] == sorted(rank.index(one) for one in told)
    for row, key in names.items():
        want = table.loc["lc-256-to-512-step-100", *key]
        assert found[row, "LC1-100"].startswith(f"{100 * want.share_positional:.1f}%")


def test_a_cell_of_the_raster_says_its_number_and_pins_its_head(
    open_page: Open, full_report: Path, table: pd.DataFrame
) -> None:
    page = open_page(full_report)
    said = cursor_to(page, "emergence", "layer 5, head 2", "S1-200").translate(MINUS)
    want = table.loc["stage1-step-200", 5, 2]
    assert f"{100 * want.share_positional:.1f}% ± {100 * want.share_positional_se:.1f}" in said
    expect(page.locator("#announcer")).to_contain_text("layer 5, head 2")
    page.keyboard.press("Enter")
    count(page, 1)
    expect(page.locator("#emergence-sentence")).to_contain_text("L5H2")
    expect(page.locator("#emergence-cursor")).to_be_focused()
    expect(page.locator("#checkpoint option:checked")).to_have_text("S1-200")
    page.locator("#emergence-open").click()
    expect(page.locator("#head-title")).to_have_text("Layer 5 · head 2")
    page.go_back()
    expect(page.locator("#head")).to_be_hidden()
    page.keyboard.press("Escape")
    many = (table.loc["stage1-step-200"].query("rope == 1")["share_positional"] > 0.3).sum()
    expect(page.locator("#emergence-sentence")).to_contain_text(f"{many} of 24 RoPE heads")


def test_clicks_pin_and_drags_select_rows_of_the_raster(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report, "#rows=depth")
    box = page.locator("#emergence-drawing .sheet")
    box.scroll_into_view_if_needed()
    cursor_to(page, "emergence", "layer 0, head 1", "S1-200")
    spot = page.locator("#emergence-cursor").bounding_box()
    page.mouse.click(spot["x"] + spot["width"] / 2, spot["y"] + spot["height"] / 2)
    assert page.evaluate("[...store.state.heads]") == [1]
    page.mouse.move(spot["x"] + 5, spot["y"] + 5)
    expect(page.locator("#tip")).to_contain_text("layer 0, head 1")
    page.mouse.down()
    page.mouse.move(spot["x"] + 30, spot["y"] + 5 + 2.5 * spot["height"], steps=4)
    page.mouse.up()
    assert page.evaluate("[...store.state.heads]") == [1, 2, 3]
    assert page.locator("#emergence .has-selected").get_attribute("d").count("M") == 3


def test_the_raster_takes_any_measure_and_classes(
    open_page: Open, full_report: Path, table: pd.DataFrame
) -> None:
    page = open_page(full_report)
    page.locator("#emergence-measure").select_option("eta_q")
    want = table.loc["lc-256-to-512-step-100", 2, 3]
    assert numbers_of(page, "emergence")["L2H3", "LC1-100"].startswith(f"{want.eta_q:.3f}")
    page.locator("#emergence-measure").select_option("class")
    assert numbers_of(page, "emergence")["L2H3", "LC1-100"] == want["score_class"]
    assert "map=class" in page.url
    page.go_back()
    expect(page.locator("#emergence-measure")).to_have_value("eta_q")


def test_nothing_has_the_colour_of_the_paper_in_both_themes(open_page: Open, full_report: Path) -> None:
    """A share of zero is light on light paper and dark on dark paper."""
    for scheme, light in (("light", True), ("dark", False)):
        page = open_page(full_report, color_scheme=scheme)
        colours = page.evaluate("[0, 1].map((share) => d3.lab(paint.fastRamp([0, 1])(share)).l)")
        assert (colours[0] > colours[1]) is light
        assert page.evaluate("d3.lab(paint.resolved('var(--paper)')).l > 50") is light


# ---- the RoPE explorer ----

PREDICTED = """([checkpoint, head, theta, span]) => {
  store.set({ checkpoint, head, heads: new Set([head]) });
  const waves = explorer.wavesOf();
  const at = explorer.distances(span);
  return { at, own: waves.theta, ...explorer.predict(waves, theta, at) };
}"""


def slow_curve(folder: Path, model: str, layer: int, head: int, theta: float, lags: np.ndarray) -> np.ndarray:
    """scale R_(D+5) q . R_5 k with the mean query and key from token 4 on, one distance at a time."""
    axes = load_results(folder).axes[model]
    row = axes.row(layer, head)
    q, k = (
        path.total[at, 2:].sum(axis=0) / path.n[2:].sum()
        for path, at in ((axes.path_q, row), (axes.path_k, axes.heads.kv_row[row]))
    )
    turn = Rotation.plain(len(q), theta)
    found = []
    for lag in lags:
        query, key = (turn.rotate(x[None], np.array([float(t)]))[0] for x, t in ((q, lag + 5), (k, 5)))
        found.append(axes.scales[layer] * query @ key)
    return np.array(found)


def test_the_explorer_predicts_what_python_does(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report)
    for checkpoint, model, own in ((1, "stage1-step-200", 5e4), (3, "lc-256-to-512-step-100", 2e6)):
        for theta, span in ((None, 512), (1e4, 4096), (7.5e6, 256)):
            got = page.evaluate(PREDICTED, [checkpoint, 2 * 4 + 1, theta, span])
            assert got["at"] == distances(span).tolist()
            assert got["own"] == own
            want = slow_curve(full_report.parent, model, 2, 1, theta or own, distances(span))
            assert np.abs(np.array(got["total"]) - want).max() < 1e-6
            assert np.abs(np.sum(got["parts"], axis=0) - want).max() < 1e-6


def test_the_explorer_follows_its_sliders_and_its_link(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report, "#heads=2.1&head=2.1&at=stage1-step-200")
    line = "#explorer-drawing svg g[stroke='var(--share_position)'] path"
    first = page.locator(line).get_attribute("d")
    expect(page.locator("#explorer-drawing .sentence")).to_contain_text("r_q")
    page.locator("#explorer-theta").focus()
    page.keyboard.press("PageUp")
    expect(page.locator("#explorer-drawing .sentence")).not_to_contain_text("r_q ")
    assert page.locator(line).get_attribute("d") != first
    assert "theta=" in page.url
    found = numbers_of(page, "explorer")
    state = "[store.state.checkpoint, store.currentHead(), store.state.theta, 256]"
    want = page.evaluate(f"({PREDICTED})({state})")
    assert [found[f"{at:,}", "predicted"] for at in want["at"]] == [
        f"{value:.3f}".replace("-0.000", "0.000") for value in want["total"]
    ]
    again = open_page(full_report, page.url[page.url.index("#") :])
    assert again.locator(line).get_attribute("d") == page.locator(line).get_attribute("d")
    page.locator("#explorer-reset").click()
    assert page.locator(line).get_attribute("d") == first
    page.locator("#explorer-theta-2000000").click()  # a setting that the run has later
    assert "theta=2000000" in page.url
    assert "wavelength" in cursor_to(page, "explorer", "Pair 3")
    page.locator("#explorer-span-512").click()
    assert page.evaluate("store.state.span") == 512


def test_a_head_that_does_not_rotate_has_no_explorer(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report, "#heads=3.1&head=3.1")
    expect(page.locator("#explorer-drawing")).to_contain_text("does not rotate")
    page.locator("#explorer-head").select_option("9")
    expect(page.locator("#explorer-drawing svg").first).to_be_visible()


# ---- wavelengths ----


def test_the_spectrogram_has_the_means_of_the_dataset(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report)
    data = load_results(full_report.parent).matched().sel(pair=slice(0, None))
    for model, label in LABELS.items():
        here = data.sel(checkpoint=model)
        waves = here["wavelength"].to_numpy()[0]
        for wave, mean in zip(waves, np.nanmean(here["score_energy"].to_numpy(), axis=0), strict=True):
            said = cursor_to(page, "spectrum", f"· {label}", f"{wave:,.0f} tokens")
            assert f"share of score strength {100 * mean:.1f}%" in said
    page.locator("label[for=carried-signal_q]").click()
    assert "share of r_q 70.0%" in cursor_to(page, "spectrum", "· S1-200", "400 tokens")
    page.keyboard.press("Enter")
    expect(page.locator("#checkpoint option:checked")).to_have_text("S1-200")
    assert "carried=signal_q" in page.url


def test_a_thumbnail_of_the_wall_shows_its_head(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report)
    page.locator("#spectrum .every > summary").click()
    assert "layer 2, head 1" in cursor_to(page, "wall", "layer 2", "layer 2, head 1")
    page.keyboard.press("Enter")
    count(page, 1)
    head = load_results(full_report.parent).matched().sel(checkpoint="stage1-step-100", pair=0)
    at = int(np.flatnonzero((head["layer"] == 2) & (head["number"] == 1))[0])
    share = float(head["score_energy"].to_numpy()[at])
    assert f"{100 * share:.1f}%" in cursor_to(page, "spectrum", "S1-100", "20 tokens")
    wide = page.locator("#spectrum-cursor").bounding_box()["width"]
    page.locator("label[for=scale-pair]").click()
    assert page.locator("#spectrum-cursor").bounding_box()["width"] != wide
    page.evaluate("store.set({ heads: new Set([12]) })")  # of a layer that does not rotate
    expect(page.locator("#spectrum-drawing")).to_contain_text("does not rotate")


# ---- axes that climb ----


def test_axes_are_joined_as_python_pairs_them(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report, "#view=head&head=2.1")
    results = load_results(full_report.parent)
    row = results.axes["stage1-step-100"].row(2, 1)
    v = {model: axes.v[row] for model, axes in results.axes.items()}
    qk = results.qk.set_index(["model", "layer", "head", "pc"]).sort_index()
    for (before, after), checkpoint in zip(pairwise(LABELS), (1, 2, 3), strict=True):
        size = np.abs(v[before].T @ v[after])
        orders = np.array(list(permutations(range(4))))
        best = orders[
            np.argmax((size[orders, np.arange(4)] ** 2).sum(axis=1))
        ]  # earlier axis of each later one
        for pc, earlier in enumerate(best):
            mark = page.locator(f'#head .climb [data-key="climb:{checkpoint}:{pc}"]')
            said = mark.get_attribute("aria-label").translate(MINUS)
            want = qk.loc[after, 2, 1, pc]
            assert f"r_q {want.r_q:.3f}, r_k {want.r_k:.3f}" in said
            assert f"explained variance {100 * want.explained_variance:.1f}%" in said
            if size[earlier, pc] >= 0.51:
                assert f"continues PC{earlier} of the checkpoint before" in said
                told = float(said.split("overlap ")[1].split(".  ")[0].split(". ")[0])
                assert told == pytest.approx(size[earlier, pc], abs=0.006)
            elif size[earlier, pc] < 0.49:
                assert "continues no axis" in said
    joined = page.locator("#head .climb path").count()
    assert joined == page.locator('#head .climb [aria-label*="continues PC"]').count() > 0


def test_the_path_along_an_axis_is_that_of_its_mean_vectors(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report, "#view=head&head=2.1")
    axes = load_results(full_report.parent).axes["stage1-step-200"]
    row, key = axes.row(2, 1), axes.heads.kv_row[axes.row(2, 1)]
    t, rotation, want = np.arange(256), axes.rotations[2], []
    middle = (axes.mean_q[row] + axes.mean_k[key]) / 2
    for path, at in ((axes.path_q, row), (axes.path_k, key)):
        along = (path.at(rotation, t)[at] - middle) @ axes.v[row][:, 1]
        # Bins belong to the sixteenth that holds their middle, and count by their tokens.
        centre = ((path.edges[:-1] + path.edges[1:]) / 2)[np.searchsorted(path.edges, t, side="right") - 1]
        want.append([along[centre // 16 == part].mean() for part in range(16)])
    want = np.array(want) / np.abs(want).max()
    found = page.evaluate("data.axisPaths(0, 1, 2 * 4 + 1, 1)")
    assert np.abs(np.array(found) - want).max() < 0.011
    mark = page.locator('#head .climb [data-key="climb:1:1"]')
    mark.focus()
    expect(page.locator("#head .path-panel")).to_contain_text("PC1 at S1-200")
    page.keyboard.press("Enter")
    expect(page.locator("#checkpoint option:checked")).to_have_text("S1-200")
    assert page.evaluate("store.state.pc") == 1


def test_ablations_say_what_the_table_holds(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report)
    table = pd.read_csv(full_report.parent / "ablation.csv")
    found = page.locator("#ablation .mark")
    expect(found).to_have_count(len(table))
    scale = page.locator("#ablation rect.cost").evaluate_all(
        "all => all.map((bar) => Number(bar.getAttribute('width')))"
    )
    # Bars of all panels are on one scale, and numbers and errors are those of the table.
    assert np.allclose(np.array(scale) / table["delta"], scale[0] / table["delta"][0], rtol=1e-6)
    for i, row in table.iterrows():
        said = found.nth(i).get_attribute("aria-label")
        assert f"+{row.delta:.3f} ± {row.delta_se:.3f} nats per token" in said
        if np.isnan(row.random):
            assert "no other heads" in said
        else:
            random = f"random heads of the same layers ({row.draws} draws): change of loss"
            assert f"{random} +{row.random:.3f} ± {row.random_se:.3f} nats per token" in said
            assert f"difference: loss +{row.above_random:.3f} ± {row.above_random_se:.3f}" in said
    expect(page.locator("#ablation path.random")).to_have_count(int(table["random"].notna().sum()))
    found.first.focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#tip")).to_contain_text("query-dependent position")


# ---- roles and classes ----


def test_heads_by_role_are_those_of_the_results(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report)
    data = load_results(full_report.parent).matched()
    order = list(LABELS)
    data = data.sel(checkpoint=order)
    for number, role in enumerate(ROLES):
        has = named(data, role)
        row = page.locator("#roles tbody tr", has=page.locator("th", has_text=re.compile(f"^{role.name}")))
        for kind, rope in (("RoPE", 1.0), ("NoPE", 0.0)):
            counts = (has & (data["rope"] == rope).to_numpy()).sum(axis=1)
            line = row.locator("svg path").nth(0 if rope else 1)
            assert line.get_attribute("data-counts") == ",".join(map(str, counts))
            if counts[-1]:
                expect(page.locator(f"#role-{number}-{kind}-0")).to_have_text(str(counts[-1]))
    first = page.locator("#roles tbody button").first
    first.focus()
    page.keyboard.press("Enter")
    count(page, int(first.inner_text()))


def test_the_raster_shows_roles_and_spaces_columns_by_step(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report, "#map=roles&rows=depth")
    data = load_results(full_report.parent).matched().sel(checkpoint="lc-256-to-512-step-100")
    names = role_names(data.expand_dims("checkpoint"))[0]
    found = numbers_of(page, "emergence")
    for name, layer, head in zip(names, data["layer"].to_numpy(), data["number"].to_numpy(), strict=True):
        assert found[f"L{layer}H{head}", "LC1-100"] == name.replace("; ", ", ")
    page.locator("label[for=spacing-step]").click()
    assert "spacing=step" in page.url
    widths = []
    for label in LABELS.values():
        cursor_to(page, "emergence", "layer 0, head 0", label)
        widths.append(page.locator("#emergence-cursor").bounding_box()["width"])
    # Steps 100, 200, 250 and 300 of training: columns reach half-way to their neighbours.
    assert widths[1] > widths[2] * 1.2
    assert widths[1] > widths[0] * 1.2
    page.locator("label[for=spacing-order]").click()
    cursor_to(page, "emergence", "layer 0, head 0", "S1-100")
    even = page.locator("#emergence-cursor").bounding_box()["width"]
    assert 4 * even == pytest.approx(sum(widths), abs=1)


def test_classes_are_by_score_shares_first_and_published_on_request(
    open_page: Open, full_report: Path, table: pd.DataFrame
) -> None:
    page = open_page(full_report)
    here = table.loc["lc-256-to-512-step-100"]
    shown = page.locator('#table tbody [data-column="class"]')
    expect(shown).to_have_text(here["score_class"].head(12).tolist())
    expect(page.locator("#classes-note")).to_contain_text("60%")
    counts = here[here["rope"] == 1]["score_class"].value_counts()
    for kind, number in counts.items():
        expect(page.locator("#classes-sentence")).to_contain_text(f"{number} {kind}")
    page.locator("label[for=classes-taxonomy-published]").click()
    expect(shown).to_have_text(here["class"].head(12).tolist())
    expect(page.locator("#classes-note")).to_contain_text("depend on how queries and keys are scaled")
    expect(page.locator("#class option", has_text="content-focused")).to_have_count(1)
    page.go_back()
    expect(shown).to_have_text(here["score_class"].head(12).tolist())


@pytest.mark.parametrize(
    ("width", "scheme"), [(1440, "light"), (1440, "dark"), (390, "light"), (390, "dark")]
)
def test_a_tooltip_names_defines_and_gives_the_error(
    open_page: Open, full_report: Path, width: int, scheme: str
) -> None:
    page = open_page(full_report, width=width, color_scheme=scheme)
    unfold(page)
    for place, key, name in (
        ("#emergence-cursor", "ArrowRight", "share_positional"),
        ("#scores .columns-layer .mark", "ArrowRight", "share_key"),
        ("#scores .mark[data-key^='layer:']", "ArrowDown", "share_key"),
        ("#signal .columns-layer .mark", "ArrowRight", "share_positional"),
        ("#causes .mark", "ArrowDown", "r_q"),
        ("#ablation .mark", "ArrowDown", "loss"),
        ("#distance .mark", "ArrowRight", "distance_score"),
        ("#portrait .mark", "ArrowRight", "r_k"),
    ):
        page.locator(place).first.focus()
        page.keyboard.press(key)
        tip = page.locator("#tip")
        expect(tip).to_contain_text(variables()[name].label)
        expect(tip).to_contain_text(variables()[name].description)
        expect(tip).to_contain_text(re.compile(r"\d%? ± [\d.<]+"))
        if variables()[name].units not in ("", "share"):
            expect(tip).to_contain_text(variables()[name].units)
        expect(tip).to_contain_text("standard error over documents")


def test_tooltips_of_what_the_page_computes_have_units_and_definitions(
    open_page: Open, full_report: Path
) -> None:
    page = open_page(full_report)
    tip = page.locator("#tip")
    declared = {name: (label, unit, means) for name, label, unit, means in COMPUTED}
    for place, key, names in (
        ("#explorer .mark", "ArrowRight", ["predicted_score"]),
        ("#explorer-cursor", "ArrowRight", ["pair_score", "pair_strength"]),
        ("#examples .token.query", "ArrowRight", ["attention", "attention_by_distance"]),
    ):
        page.locator(place).first.focus()
        page.keyboard.press(key)
        for label, unit, means in (declared[name] for name in names):
            number = r"[\d.−]+%" if unit == "share" else rf"[\d.−]+ {unit}"
            expect(tip).to_contain_text(re.compile(rf"{label} {number}"))
            expect(tip).to_contain_text(means)


def test_a_difference_has_its_sign_and_a_share_is_in_points(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report)
    said = page.evaluate("""() => [
      text.change("share_positional", 0.0123, 0.004), text.change("share_positional", -0.0123, 0.0001),
      text.change("r_q", 0.0123, 0.0001), text.change("loss", 0.0001), text.change("loss", null, 0.1),
      text.measure("explained_variance", 0.5, 0.25), text.measure("r_k", -0.5, NaN), text.share(NaN)]""")
    assert said == [
        *["+1.2 ± 0.4 points", "−1.2 ± <0.1 points", "+0.012 ± <0.001", "0.000", "–"],
        *["50.0% ± 25.0", "−0.500", "–"],
    ]


def test_what_a_reader_may_take_wrongly_is_said(open_page: Open, full_report: Path) -> None:
    """That roles overlap, what PC0 is, and that the largest change has no cause but training."""
    page = open_page(full_report)
    data = load_results(full_report.parent).matched().sel(checkpoint=["lc-256-to-512-step-100"])
    counts = np.sum([named(data, role)[0] for role in ROLES], axis=0)
    said = f"{(counts > 1).sum()} of the {(counts > 0).sum()} heads with a role have more than one"
    expect(page.locator("#roles-note")).to_contain_text(said)
    expect(page.locator("#emergence-note")).to_contain_text("first principal axis")
    expect(page.locator("#causes-note")).to_contain_text("S1-100 → S1-200, is training alone")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_folds_views_until_they_are_asked_for(
    open_page: Open, full_report: Path, scheme: str
) -> None:
    page = open_page(full_report, width=390, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollHeight") < 8_000
    folded = page.locator(".folded")
    views = folded.evaluate_all("all => all.map((one) => one.id)")
    assert views == [
        "roles",
        "causes",
        "explorer",
        "spectrum",
        "distance",
        "examples",
        "classes",
        "portrait",
        "table",
    ]
    for view in views:
        drawing = page.locator(f"#{view}-drawing")
        expect(drawing).to_be_hidden()
        page.locator(f"#{view} .unfold button").focus()
        page.keyboard.press("Enter")
        expect(page.locator(f"#{view}")).to_be_focused()
        expect(drawing).to_be_visible()
        assert drawing.evaluate("(one) => one.scrollWidth") <= 390
    expect(folded).to_have_count(0)
    # The first chart is in sight, and the others open on demand.
    assert page.locator("#scores svg").count() > page.locator("#scores svg:visible").count() == 1
    page.locator("#scores .rest summary").click()
    assert page.locator("#scores svg").count() == page.locator("#scores svg:visible").count()
    # A link to a view and "See it" unfold it; a wide page has nothing folded.
    page = open_page(full_report, "#view=portrait", width=390, color_scheme=scheme)
    expect(page.locator("#portrait-drawing svg")).to_be_visible()
    page.locator('nav a[data-view="classes"]').click()
    expect(page.locator("#classes-drawing svg").first).to_be_visible()
    page = open_page(full_report, width=1440, color_scheme=scheme)
    expect(page.locator("#portrait-drawing svg")).to_be_visible()
    expect(page.locator(".unfold button").first).to_be_hidden()
