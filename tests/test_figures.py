"""The figures, checked by their artists: heights, colours, texts, limits and places, not pixels."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from frames import cells_of, results_of, with_heads, with_values
from matplotlib.collections import PathCollection, PolyCollection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from published import PUBLISHED, published_qk, published_results

from qkscope.errors import QkscopeError, TableError
from qkscope.figures import CATALOGUE, draw, draw_all
from qkscope.figures.picture import pdf, png, svg
from qkscope.figures.style import (
    CLASS_COLOURS,
    DIVERGING_KEYS,
    SEQUENTIAL,
    drawable,
    shorten,
    spread,
    without_shared_beginning,
)
from qkscope.figures.view import look
from qkscope.results import load_results
from qkscope.results.tables import CAUSES_COLUMNS, write_tables
from qkscope.results.taxonomy import CLASSES, Thresholds
from qkscope.study.timeline import timeline_from_names
from studies import models, training, with_components

LABELS = PUBLISHED["short_labels"]
SEPARATORS = [3.5, 4.5, 5.5, 7.5]
NASTY = ["$x^2$_a", "<b>&amp;", "a|b`c`", "\\frac{1}{2}", "# *bold* _it_"]

PICTURES = {entry.name: entry for entry in CATALOGUE}
PUBLISHED_NAMES = (
    *("01_position_signal", "03_taxonomy_evolution", "04_explained_variance"),
    *("05_layer_heatmap_rq", "06_layer_heatmap_rk", "07_phase_portraits"),
)


def line(axes, label):
    (found,) = [each for each in axes.lines if each.get_label() == label]
    return found


def dashed(axes):
    return [each for each in axes.lines if each.get_linestyle() == "--"]


def separators(axes):
    upright = [each for each in dashed(axes) if len(set(each.get_xdata())) == 1]
    return sorted(each.get_xdata()[0] for each in upright)


def texts(axes):
    return [each.get_text() for each in axes.texts]


def tick_texts(axes, which="x"):
    ticks = axes.get_xticklabels() if which == "x" else axes.get_yticklabels()
    return [each.get_text() for each in ticks]


def headings(figure):
    """What stands over the panels, in the order they were drawn; the first two texts are title and subtitle."""
    return [text.get_text() for text in figure.texts[2:]]


@pytest.fixture(scope="module")
def published():
    return published_results()


@pytest.fixture(scope="module")
def published_cells():
    return published_results("cells")


# --- the published numbers -----------------------------------------------------------------------------------------


def test_position_signal_has_the_published_heights_colours_and_marks(published):
    axes, _populations = draw("01_position_signal", published).figure.axes
    q, k = line(axes, "mean $r_q$"), line(axes, "mean $r_k$")
    assert q.get_ydata() == pytest.approx(PUBLISHED["mean_r_q"], abs=1e-9)
    assert k.get_ydata() == pytest.approx(PUBLISHED["mean_r_k"], abs=1e-9)
    assert list(q.get_xdata()) == list(range(10))
    assert (to_hex(q.get_color()), q.get_marker()) == ("#1f77b4", "o")
    assert (to_hex(k.get_color()), k.get_marker()) == ("#d62728", "s")


@pytest.mark.parametrize("name", ["published", "of populations"])
def test_lines_of_rope_and_nope_heads_are_their_means(name):
    study = published_results() if name == "published" else training(4, widen=2)
    upper, lower = draw("01_position_signal", study).figure.axes
    assert upper.get_ylim() == lower.get_ylim(), "compared panels have one scale"
    # Over the first tokens of every checkpoint where windows differ.
    heads = study.heads if study.matched_heads is None else study.matched_heads
    for code, kind in ((1.0, "RoPE"), (0.0, "NoPE")):
        for column in ("r_q", "r_k"):
            part = heads[heads["rope"] == code].groupby("model", sort=False)[column].mean()
            drawn = line(lower, f"${column}$, {kind} heads")
            assert drawn.get_ydata() == pytest.approx(part.loc[study.timeline.models].to_numpy())
            assert to_hex(drawn.get_color()) == {"r_q": "#1f77b4", "r_k": "#d62728"}[column]


def without_nope(study):
    """The same study with all heads in RoPE layers."""
    return with_values(study, rope=np.ones_like(study.own()["rope"]))


@pytest.mark.parametrize("name", PUBLISHED_NAMES)
def test_a_model_without_nope_layers_has_one_population(published, name):
    both, one = draw(name, published), draw(name, without_nope(published))
    if "population" in both.data:
        assert set(both.data["population"]) == {"all", "RoPE", "NoPE"}
        assert set(one.data["population"]) == {"all"}
        assert len(one.figure.axes) == 1 < len(both.figure.axes)
        rows = both.data[both.data["population"] == "all"].reset_index(drop=True)
        pd.testing.assert_frame_equal(rows, one.data)
    words = [text.get_text() for text in one.figure.findobj(Text)]
    assert not [text for text in words if "NoPE" in text or "RoPE" in text]
    assert "NoPE" not in one.caption.shows + one.caption.care


def test_position_signal_shades_one_standard_deviation(published):
    axes, _populations = draw("01_position_signal", published).figure.axes
    bands = [each for each in axes.collections if isinstance(each, PolyCollection)]
    spread = published.heads.groupby("model")[["r_q", "r_k"]].std(ddof=0)
    for band, column, mean in zip(bands, ("r_q", "r_k"), ("mean_r_q", "mean_r_k"), strict=True):
        corners = band.get_paths()[0].vertices
        for x, name in enumerate(PUBLISHED["checkpoints"]):
            reach = corners[corners[:, 0] == x, 1]
            middle, sd = PUBLISHED[mean][x], spread.loc[name, column]
            assert (reach.min(), reach.max()) == pytest.approx((middle - sd, middle + sd))


def test_axis_has_checkpoints_in_order_phases_above_and_dashed_lines_between(published):
    axes, lower = draw("01_position_signal", published).figure.axes
    assert tick_texts(lower) == LABELS
    assert separators(axes) == separators(lower) == SEPARATORS
    phases = [text for text in axes.texts if text.get_fontweight() == "bold"]
    assert [text.get_text().replace("\n", " ") for text in phases] == [
        "Stage 1",
        "Stage 2",
        "Stage 3",
        "LC 4K→32K",
        "LC 32K→64K",
    ]
    assert [text.xy[0] for text in phases] == [1.5, 4, 5, 6.5, 8.5]


def test_taxonomy_bars_have_the_published_counts(published):
    bars, *apart = draw("03_taxonomy_evolution", published).figure.axes
    layers = {c.get_label(): c for c in bars.containers if c.get_label() in CLASSES}
    assert list(layers) == list(CLASSES)
    bottom = np.zeros(10)
    for name, layer in layers.items():
        heights = np.array([bar.get_height() for bar in layer])
        assert heights == pytest.approx(np.array(PUBLISHED["taxonomy_head_counts"][name]) / 300)
        assert [bar.get_y() for bar in layer] == pytest.approx(bottom)
        assert {to_hex(bar.get_facecolor()) for bar in layer} == {CLASS_COLOURS[name]}
        bottom += heights
    first, last = layers["position-dominated"][0], layers["position-dominated"][9]
    assert (first.get_height(), last.get_height()) == pytest.approx((103 / 300, 212 / 300))
    assert bars.get_ylim() == (0, 1)
    assert separators(bars) == SEPARATORS
    for axes, code in zip(apart, (1.0, 0.0), strict=True):
        heads = published.heads[published.heads["rope"] == code]
        for name in CLASSES:
            (layer,) = [c for c in axes.containers if c.get_label() == name]
            shares = (heads["class"] == name).groupby(heads["model"]).mean().loc[PUBLISHED["checkpoints"]]
            assert [bar.get_height() for bar in layer] == pytest.approx(shares.to_numpy())
        assert axes.get_ylim() == (0, 1)


def test_explained_variance_has_the_published_heights(published):
    axes, lower = draw("04_explained_variance", published).figure.axes
    assert axes.get_ylim() == lower.get_ylim()
    found = line(axes, "mean explained variance")
    assert found.get_ydata() == pytest.approx(PUBLISHED["mean_explained_variance"], abs=1e-9)
    assert separators(axes) == SEPARATORS
    assert any(isinstance(each, PolyCollection) for each in axes.collections)


@pytest.mark.parametrize(
    ("name", "value", "colours", "ends"),
    [
        ("05_layer_heatmap_rq", "r_q", SEQUENTIAL, (0, 1)),
        ("06_layer_heatmap_rk", "r_k", DIVERGING_KEYS, (-1, 1)),
    ],
)
def test_heat_maps_have_the_published_cells(published_cells, name, value, colours, ends):
    drawing = draw(name, published_cells)
    axes, by_layer, _bar = drawing.figure.axes
    (mesh,) = [each for each in axes.collections if isinstance(each, QuadMesh)]
    cells = np.array(PUBLISHED[f"depth_heatmap_{value}"])
    assert np.asarray(mesh.get_array()).reshape(10, 10) == pytest.approx(cells, abs=1e-9)
    assert [to_hex(mesh.get_cmap()(end)) for end in (0.0, 1.0)] == [colours[0], colours[-1]]
    assert mesh.get_clim() == ends
    printed = {t.get_position(): t.get_text() for t in axes.texts if t.get_fontweight() != "bold"}
    assert printed == {(x, y): f"{cells[y, x]:.2f}" for y in range(10) for x in range(10)}
    assert tick_texts(axes, "y") == LABELS
    assert axes.get_ylim() == (9.5, -0.5), "the first checkpoint is on top"
    lines = sorted(each.get_ydata()[0] for each in dashed(axes))
    assert lines == SEPARATORS
    held = [text.split("\n")[1] for text in tick_texts(axes)]
    assert held == ["0–3", "4–6", "7–10", "11–13", "14–17", "18–20", "21–24", "25–27", "28–31", "32–35"]
    (mesh,) = [each for each in by_layer.collections if isinstance(each, QuadMesh)]
    means = published_cells.heads.groupby(["model", "layer"])[value].mean().unstack()
    layers = np.asarray(mesh.get_array()).reshape(10, 36)
    expected = means.loc[PUBLISHED["checkpoints"]].to_numpy()
    # What prints as 0.00 is drawn as zero.
    assert layers == pytest.approx(np.where((expected > -0.005) & (expected < 0), 0.0, expected))
    marked = {
        tick for tick, text in zip(by_layer.get_xticks(), tick_texts(by_layer), strict=True) if "N" in text
    }
    assert marked == set(range(3, 36, 4))
    assert mesh.get_clim() == ends, "both panels have one scale"


def test_portraits_show_the_published_six_with_thresholds_and_limits(published):
    figure = draw("07_phase_portraits", published).figure
    panels = figure.axes
    assert headings(figure) == [
        "S1-40K",
        "S1-1.2M",
        "S1-3.4M",
        "S3-4.7M",
        "LC1-20K",
        "LC2-20K",
    ]
    for panel in panels:
        assert panel.get_xlim() == (-0.05, 1.05)
        assert panel.get_ylim() == (-1.05, 1.05)
        assert separators(panel) == [0.3, 0.7]
        level = sorted(each.get_ydata()[0] for each in dashed(panel) if len(set(each.get_ydata())) == 1)
        assert level == [-0.7, -0.3, 0.3, 0.7]
        clouds = [each for each in panel.collections if isinstance(each, PathCollection)]
        assert sum(len(each.get_offsets()) for each in clouds) == 300


def test_portraits_tell_rope_from_nope(published):
    panel = draw("07_phase_portraits", published).figure.axes[0]
    clouds = [each for each in panel.collections if isinstance(each, PathCollection)]
    diamonds = [each for each in clouds if len(each.get_paths()[0].vertices) == 5]
    rope = published.heads[published.heads["model"] == PUBLISHED["checkpoints"][0]]["rope"]
    assert sum(len(each.get_offsets()) for each in diamonds) == (rope == 0).sum() > 0
    assert sum(len(each.get_offsets()) for each in clouds) == len(rope)


# --- what the published set does not show -----------------------------------------------------------------------


def test_portraits_of_models_are_coloured_by_family():
    panels = draw("07_phase_portraits", models(["Llama", "Qwen", "Llama"])).figure.axes
    colours = []
    for panel in panels:
        clouds = [each for each in panel.collections if isinstance(each, PathCollection)]
        faces = {to_hex(c.get_facecolor()[0]) for c in clouds}
        assert len(faces) == 1
        colours.append(faces.pop())
    assert colours[0] == colours[2] != colours[1]
    one_family = draw("07_phase_portraits", models(["Llama", "Llama"]))
    assert "family" not in one_family.data
    assert "colour is the class" in one_family.caption.shows


def test_a_study_of_models_leaves_training_out_with_its_reason(tmp_path):
    made = draw_all(models(["Llama", "Qwen"]), tmp_path)
    assert [each.name[:2] for each in made.drawn] == ["03", "05", "06", "07"]
    reasons = made.left_out
    assert "several models" in reasons["01_position_signal"]
    assert "several models" in reasons["04_explained_variance"]


def test_one_model_alone_is_drawn_as_one_checkpoint_is():
    view = look(models(["Llama"]))
    drawn = [entry.name for entry in CATALOGUE if entry.why_not(view) is None]
    assert drawn == list(PUBLISHED_NAMES)
    for name in drawn:
        said = PICTURES[name].draw(view, None).caption
        assert "training" not in " ".join((said.shows, said.made, said.title))


# --- windows, gaps, uncertainty --------------------------------------------------------------------------------


def test_matched_window_is_dotted_beside_the_own_one():
    study = training(4, widen=2)
    drawing = draw("01_position_signal", study)
    axes, _populations = drawing.figure.axes
    hollow = line(axes, "mean $r_k$, first 4,096 tokens")
    matched = study.matched_heads
    expected = [matched[matched["model"] == m]["r_k"].mean() for m in study.timeline.models[2:]]
    assert list(hollow.get_xdata()) == [2, 3]
    assert hollow.get_ydata() == pytest.approx(expected)
    (dotted,) = [
        e
        for e in axes.lines
        if e.get_linestyle() == ":" and to_hex(e.get_color()) == to_hex(hollow.get_markeredgecolor())
    ]
    own = line(axes, "mean $r_k$").get_ydata()
    assert dotted.get_ydata()[1:] == pytest.approx([own[1], *expected]), (
        "it leaves the own line where the two are one"
    )
    assert np.isnan(dotted.get_ydata()[0])
    whole = drawing.data[drawing.data["population"] == "all"]
    assert whole["window"].tolist() == ["own"] * 4 + ["matched"] * 2


def test_matched_window_is_a_thin_bar_and_the_window_of_layers():
    study = training(4, widen=2)
    bars = draw("03_taxonomy_evolution", study).figure.axes[0]
    own, thin = (
        next(c for c in bars.containers if c.get_label() == label)
        for label in ("mixed", "mixed, first 4,096 tokens")
    )
    shares = study.matched_heads.groupby("model")["class"].apply(lambda c: (c == "mixed").mean())
    assert [bar.get_height() for bar in thin][2:] == pytest.approx(
        [shares[m] for m in study.timeline.models[2:]]
    )
    assert thin[2].get_width() < own[2].get_width() / 2
    _bins, layers, _bar = draw("06_layer_heatmap_rk", study).figure.axes
    (mesh,) = [each for each in layers.collections if isinstance(each, QuadMesh)]
    means = study.matched_heads.groupby(["model", "layer"])["r_k"].mean().unstack().loc[study.timeline.models]
    drawn = np.asarray(mesh.get_array()).reshape(means.shape)
    assert drawn == pytest.approx(np.where(means.to_numpy().round(2) == 0, drawn, means.to_numpy()))


def test_bars_of_uncertainty_are_standard_errors_over_documents():
    drawing = draw("01_position_signal", training(3))
    axes, _populations = drawing.figure.axes
    bars = [c for c in axes.containers if c.__class__.__name__ == "ErrorbarContainer"]
    assert len(bars) == 2
    whole = drawing.data[drawing.data["population"] == "all"]
    for container, mean, se in zip(bars, ("mean_r_q", "mean_r_k"), ("se_r_q", "se_r_k"), strict=True):
        segments = container[2][0].get_segments()
        expected = np.array([(m - s, m + s) for m, s in whole[[mean, se]].to_numpy()])
        assert np.array([s[:, 1] for s in segments]) == pytest.approx(expected)
    assert (drawing.data["se_r_q"] > 0).all()


STEPS = {  # what each part adds to mean r_q and r_k of RoPE heads; NaN: settings and training cannot be separated
    ("step-100", "step-200"): {"rotation_first": 0.0, "weights_first": None, "window": 0.0},
    ("step-200", "step-300"): {"rotation_first": -0.1, "weights_first": None, "window": -0.05},
    ("step-300", "step-400"): {"rotation_first": np.nan, "weights_first": np.nan, "window": 0.02},
}


def with_causes(study):
    """The study with a causes.csv whose parts add up to the changes of each population's means, own windows."""
    rows = []
    for population, flag in (("RoPE", 1.0), ("NoPE", 0.0)):
        heads = study.heads[study.heads["rope"] == flag]
        for number, column in (("mean r_q", "r_q"), ("mean r_k", "r_k")):
            levels = heads.groupby("model")[column].mean()
            for (before, after), parts in STEPS.items():
                total = levels[after] - levels[before]
                rest = total - sum(part for part in parts.values() if part is not None)
                row = {name: rest if part is None else part for name, part in parts.items()}
                row |= {f"{name}_se": 0.0 if part == 0 else 0.01 for name, part in parts.items()}
                row |= {"from_model": before, "to_model": after, "number": number, "population": population}
                row |= {"weights_and_rotation": total - row["window"], "weights_and_rotation_se": 0.01}
                rows.append(row | {"total": total, "total_se": 0.01})
    counts = {"window_tokens": 256, "same_text": 1, "heads": 24, "groups": 8}
    return replace(study, causes=pd.DataFrame(rows, columns=list(CAUSES_COLUMNS)).assign(**counts))


def test_bars_of_causes_lead_from_mean_to_mean_in_the_order_of_training():
    study = with_causes(training(4, widen=2))
    drawing = draw("11_causes", study)
    rope = study.heads[study.heads["rope"] == 1]
    for number, column in (("mean r_q", "r_q"), ("mean r_k", "r_k")):
        bars, levels = drawing.data[drawing.data["number"] == number], rope.groupby("model")[column].mean()
        for (before, after), step in bars.groupby(["from_model", "to_model"]):
            assert step["start"].iloc[0] == pytest.approx(levels[before])
            assert step["stop"].iloc[-1] == pytest.approx(levels[after])
            assert step["start"].to_list()[1:] == pytest.approx(step["stop"].to_list()[:-1])
        parts = bars.groupby(["from_model", "to_model"], sort=False)["part"].apply(list).to_list()
        whole, window = parts[2]
        assert parts[:2] == [["training"], ["RoPE settings", "training", "window"]]
        assert "not separable" in whole
        assert window == "window"
    assert set(drawing.data["population"]) == {"RoPE"}
    for axes, number in zip(drawing.figure.axes, ("mean r_q", "mean r_k"), strict=True):
        rows = drawing.data[drawing.data["number"] == number]
        drawn = [bar for container in axes.containers for bar in container if isinstance(bar, Rectangle)]
        assert [bar.get_y() for bar in drawn] == pytest.approx(rows["start"].to_list())
        assert [bar.get_height() for bar in drawn] == pytest.approx((rows["stop"] - rows["start"]).to_list())
        assert [bool(bar.get_hatch()) for bar in drawn] == rows["part"].str.contains(
            "not separable"
        ).to_list()
    for text in (drawing.caption.title, drawing.caption.shows):
        assert "RoPE heads" in text
        assert "training context" in text


def test_bars_are_split_into_heads_whose_axis_stayed_and_changed():
    study = with_causes(training(4, widen=2))
    study.causes["rotation_same_axis"] = 0.25 * study.causes["rotation_first"]
    drawing = draw("11_causes", study)
    for axes, number in zip(drawing.figure.axes, ("mean r_q", "mean r_k"), strict=True):
        rows = drawing.data[(drawing.data["number"] == number) & (drawing.data["part"] == "RoPE settings")]
        assert len(rows)
        drawn = [bar for container in axes.containers for bar in container if isinstance(bar, Rectangle)]
        for start, stop in zip(rows["start"], rows["stop"], strict=True):
            spans = {(round(bar.get_y(), 9), round(bar.get_y() + bar.get_height(), 9)) for bar in drawn}
            turn = start + 0.25 * (stop - start)
            assert {(round(start, 9), round(turn, 9)), (round(turn, 9), round(stop, 9))} <= spans


def test_causes_that_were_not_measured_are_not_drawn():
    study = training(4, widen=2)
    assert PICTURES["11_causes"].why_not(look(study))
    assert PICTURES["11_causes"].why_not(look(with_causes(study))) is None


def test_a_readme_quotes_its_claims_however_many_a_study_has(tmp_path, monkeypatch):
    monkeypatch.setattr("qkscope.claims.catalogue.MOST_CLAIMS", 0)
    folder = next(each for each in draw_all(training(3), tmp_path).drawn if "taxonomy" in each.name)
    assert "## What happened" in (folder / "README.md").read_text()


def test_a_readme_names_the_file_and_variables_of_its_numbers(drawn, tmp_path):
    study, made, _folder = drawn
    for each in made.drawn:
        (source,) = [line for line in (each / "README.md").read_text().splitlines() if "Data source" in line]
        assert "qk.csv" in source
        assert "measures.safetensors" in source, "the first tokens of every text are not in qk.csv"
        variables = draw(each.name, study).caption.variables
        assert variables
        assert all(f"`{name}`" in source for name in variables)


def test_checkpoints_are_spaced_by_steps_on_request():
    study = training(5, phases=["Stage 1"] * 3 + ["Stage 2"] * 2)
    steps = [0, 100, 400, 50, 150]  # the second phase counts from 0 again
    checkpoints = tuple(
        replace(checkpoint, step=step)
        for checkpoint, step in zip(study.timeline.checkpoints, steps, strict=True)
    )
    study = replace(study, timeline=replace(study.timeline, checkpoints=checkpoints))
    axes, _populations = draw("01_position_signal", study, spacing="steps").figure.axes
    x = np.asarray(line(axes, "mean $r_q$").get_xdata())
    assert (x - x[0]) / (x[-1] - x[0]) * 550 == pytest.approx([0, 100, 400, 450, 550])
    assert separators(axes) == pytest.approx([(x[2] + x[3]) / 2])
    even, _populations = draw("01_position_signal", study).figure.axes
    assert line(even, "mean $r_q$").get_xdata().tolist() == [0, 1, 2, 3, 4]
    unknown = (replace(checkpoints[0], step=None), *checkpoints[1:])
    with pytest.raises(TableError, match="step-100"):
        draw(
            "01_position_signal",
            replace(study, timeline=replace(study.timeline, checkpoints=unknown)),
            spacing="steps",
        )


def test_a_missing_checkpoint_is_a_gap_on_the_axis():
    study = training(4, missing=[2])
    axes, lower = draw("01_position_signal", study).figure.axes
    assert tick_texts(lower) == ["100", "200", "gone 2", "300", "400"]
    heights = line(axes, "mean $r_q$").get_ydata()
    assert np.isnan(heights).tolist() == [False, False, True, False, False]
    assert "not measured" in texts(axes)
    (band,) = [p for p in axes.patches if isinstance(p, Rectangle) and p.get_hatch()]
    assert (band.get_x(), band.get_width()) == (1.5, 1.0)
    rows = draw("05_layer_heatmap_rq", study).figure.axes[0]
    assert "not measured" in texts(rows)


@pytest.mark.parametrize(("name", "value"), [("05_layer_heatmap_rq", "r_q"), ("06_layer_heatmap_rk", "r_k")])
def test_negative_means_have_a_colour_of_their_own_and_empty_bins_are_hatched(name, value):
    study = training(2)
    found = study.own()[value].isel(sample=0)
    study = with_values(study, **{value: found.where(study.own()["layer"] > 1, -0.2).to_numpy()})
    study = with_heads(study, lambda layer, _head: layer != 5)
    axes, _layers, bar = draw(name, study).figure.axes
    (mesh,) = [each for each in axes.collections if isinstance(each, QuadMesh)]
    cells = study.heads.groupby(["model", "depth_bin"])[value].mean().unstack()
    cells = cells.reindex(index=study.timeline.models, columns=range(10)).to_numpy()
    colours = mesh.to_rgba(mesh.get_array()).reshape(2, 10, 4)
    printed = {t.get_position(): t.get_text() for t in axes.texts}
    signs = set()
    for (y, x), mean in np.ndenumerate(cells):
        red, _green, blue, opaque = colours[y, x]
        if np.isnan(mean):
            assert opaque == 0
            assert (x, y) not in printed
        else:
            assert opaque == 1
            above, below = (blue, red) if value == "r_q" else (red, blue)
            assert (above > below) == (mean > 0)
            assert printed[x, y].startswith("\u2212") == (mean < 0)
            signs.add(mean > 0)
    assert signs == {True, False}
    assert np.isnan(cells).any()
    assert axes.patch.get_hatch(), "what is transparent shows it"
    assert tick_texts(bar)[0] == "\u22121"


@pytest.mark.parametrize("layers", [1, 2, 7, 10])
def test_a_shallow_model_shows_its_layers(layers):
    study = training(2)
    study = results_of(study.qk[study.qk["layer"] < layers], study.timeline, layers=layers)
    drawing = draw("05_layer_heatmap_rq", study)
    axes, _bar = drawing.figure.axes
    (mesh,) = [each for each in axes.collections if isinstance(each, QuadMesh)]
    means = study.heads.groupby(["model", "layer"])["r_q"].mean().unstack().loc[study.timeline.models]
    assert np.asarray(mesh.get_array()).reshape(2, layers) == pytest.approx(means.to_numpy())
    assert [text.split("\n")[0] for text in tick_texts(axes)] == [str(layer) for layer in range(layers)]
    assert drawing.data["heads"].gt(0).all()


def test_portraits_show_the_same_heads_over_the_matched_window():
    study = training(4, widen=2)
    drawing = draw("07_phase_portraits", study)
    figure, matched = drawing.figure, drawing.data[drawing.data["window"] == "matched"]
    labels = ["100", "200", "300", "400", "300", "400"]
    windows = ["4,096"] * 2 + ["32,768"] * 2 + ["4,096"] * 2
    assert headings(figure) == [f"{label} · {n} tokens" for label, n in zip(labels, windows, strict=True)]
    clouds = [each for each in figure.axes[-1].collections if isinstance(each, PathCollection)]
    drawn = np.sort(np.concatenate([np.asarray(each.get_offsets())[:, 1] for each in clouds]))
    last = study.matched_heads["model"] == "step-400"
    expected = np.sort(study.matched_heads.loc[last, "r_k"])
    assert drawn == pytest.approx(expected)
    assert set(matched["tokens"]) == {4096}


def test_unmeasured_heads_are_counted_and_not_drawn():
    study = training(2)
    r_k = study.own()["r_k"].isel(sample=0)
    study = with_values(study, r_k=r_k.where(study.own()["number"] > 0).to_numpy())
    drawing = draw("03_taxonomy_evolution", study)
    bars = drawing.figure.axes[0]
    heights = sum(c[0].get_height() for c in bars.containers if c.get_label() in CLASSES)
    assert heights == pytest.approx(1.0)
    counted = drawing.data[(drawing.data["class"] == "unmeasured") & (drawing.data["population"] == "all")]
    assert counted["heads"].tolist() == [12, 12]
    panel = draw("07_phase_portraits", study).figure.axes[0]
    clouds = [each for each in panel.collections if isinstance(each, PathCollection)]
    assert sum(len(each.get_offsets()) for each in clouds) == 120 - 12


# --- layout ---------------------------------------------------------------------------------------------------


LONG = [f"a_rather_long_checkpoint_name-{i:02d}-of-a-run_$x_{i}$" for i in range(40)]
PHASES = {
    1: ["Only"],
    3: ["A phase with quite a long name", "B", "Long context from 4K to 32K"],
    10: ["Stage one"] * 5 + ["Stage two"] + ["Long context from 4K to 32K tokens"] * 4,
    40: ["Stage one"] * 25 + ["Stage two, short"] + ["Long context"] * 14,
}


def boxes(figure):
    """Every text drawn, with its box in pixels. Marks are hidden: only letters are looked at."""
    from matplotlib.text import Text

    figure.set_dpi(200)
    for axes in figure.axes:
        for mark in (*axes.patches, *axes.lines, *axes.collections):
            mark.set_visible(False)
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    shown = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    # A text in a tick that is not drawn has no place.
    return [(t, Text.get_window_extent(t, renderer)) for t in shown if t.figure is not None]


def overlap(a, b):
    return min(a.x1, b.x1) - max(a.x0, b.x0) > 2 and min(a.y1, b.y1) - max(a.y0, b.y0) > 4


def check_layout(study, width):
    """All texts of all pictures lie on their sheet, none on another, none smaller than 7 points."""
    view = look(study)
    for picture in CATALOGUE:
        if picture.why_not(view):
            continue
        figure = picture.draw(view, width).figure
        found = boxes(figure)
        wide, high = figure.bbox.size
        assert width is None or wide == pytest.approx(200 * width)
        for text, box in found:
            inside = box.x0 > -1 and box.y0 > -1 and box.x1 < wide + 1 and box.y1 < high + 1
            assert inside, f"{picture.name}: {text.get_text()!r} leaves the sheet"
            assert text.get_fontsize() >= 7, f"{picture.name}: {text.get_text()!r} is too small"
        found.sort(key=lambda pair: pair[1].x0)
        for i, (a, box_a) in enumerate(found):
            for b, box_b in found[i + 1 :]:
                if box_b.x0 >= box_a.x1:
                    break
                assert not overlap(box_a, box_b), f"{picture.name}: {a.get_text()!r} is on {b.get_text()!r}"


@cache
def pythia():
    """154 checkpoints, one of them alone in its phase, the last over a longer window."""
    phases = ["Stage 1"] * 100 + ["Stage 2"] * 30 + ["Stage 3"]
    phases += ["Long context 4K to 32K"] * 13 + ["Long context 32K to 64K"] * 10
    return with_components(training(154, phases=phases, widen=131), 2)


@cache
def smollm3():
    """The published ten, with components, errors and a matched window."""
    labels, ends = PUBLISHED["short_labels"], ["Stage 1"] * 4 + ["Stage 2"] + ["Stage 3"]
    phases = [*ends, *["LC 4K→32K"] * 2, *["LC 32K→64K"] * 2]
    return with_components(training(10, labels=labels, phases=phases, widen=6), 10)


@cache
def with_a_gap():
    """Eleven checkpoints, of which one could not be measured, and a longer window from the eighth on."""
    return training(11, missing=[3], widen=7)


@pytest.mark.parametrize("width", [3.3, 6.9, None])
@pytest.mark.parametrize("study", [smollm3, pythia, with_a_gap])
def test_every_picture_fits_a_papers_column(study, width):
    check_layout(study(), width)


@pytest.mark.parametrize(("count", "width"), [(1, 3.3), (1, 6.9), (3, 6.9), (3, None), (10, 3.3), (40, 6.9)])
def test_long_names_are_neither_clipped_nor_overlap(count, width):
    study = training(count, labels=LONG[:count], phases=PHASES[count], widen=count - 1 if count > 1 else None)
    check_layout(with_components(study, 2), width)


def test_a_paper_has_its_own_caption_and_a_picture_its_own_width():
    study = training(3)
    figure = draw("position_signal", study, width=3.3).figure
    assert figure.get_size_inches()[0] == pytest.approx(3.3)
    title = draw("01_position_signal", study).figure.texts[0].get_text()
    assert title == draw("01_position_signal", study).caption.title
    assert title not in [text.get_text() for text in figure.texts]
    with pytest.raises(TableError, match="too narrow"):
        draw("position_signal", study, width=1.0)
    with pytest.raises(TableError, match="no figure 'nothing'; there are 01_position_signal"):
        draw("nothing", study)
    with pytest.raises(TableError, match="08_score_variance cannot be drawn"):
        draw("score_variance", study)


NEW_PICTURE = """
from qkscope.results.aggregate import position_signal
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.axis import Panel, draw_stack
from qkscope.figures.marks import Look, correlation_scale, draw_quantity

LOOK = Look("mean $r_q$", "#1f77b4", "o")

def draw(view, width=None):
    data = view.both_windows(position_signal)

    def marks(axes, axis):
        draw_quantity(axes, axis, data, LOOK, "mean_r_q", "se_r_q")
        correlation_scale(axes, axis.paper, 0, 1)

    caption = Caption("Mine", "Mean r_q.", "by the mean.", "a line.")
    figure = draw_stack(view, caption.title, [Panel("mean $r_q$", 3, marks)], [LOOK.key], width)
    return Drawing(figure, data, caption)

PICTURE = Picture("99_mine", ("position",), draw)
"""


def test_a_new_picture_is_one_module_and_nothing_else(tmp_path, monkeypatch):
    from qkscope.figures import drawing as catalogue
    from qkscope.figures import gallery as pictures

    (tmp_path / "mine.py").write_text(NEW_PICTURE)
    monkeypatch.setattr(pictures, "__path__", [*pictures.__path__, str(tmp_path)])
    found = catalogue.find_pictures()
    assert [picture.name for picture in found] == [*(picture.name for picture in CATALOGUE), "99_mine"]
    monkeypatch.setattr(catalogue, "CATALOGUE", found)
    study = training(3)
    assert draw("mine", study, width=3.3).figure.axes
    monkeypatch.setattr(catalogue, "CATALOGUE", found[-1:])  # the others have been drawn in other tests
    made = draw_all(study, tmp_path / "figures")
    assert "Mean r\\_q." in (made.drawn[-1] / "README.md").read_text()


def test_labels_move_apart_and_stay_inside():
    assert spread([1.0, 5.0, 9.0], 1.0, 0.0, 10.0) == [1.0, 5.0, 9.0]
    found = spread([5.0, 5.1, 5.2, 9.9], 1.0, 0.5, 9.5)
    assert np.diff(found).min() >= 1.0 - 1e-12
    assert found[-1] <= 9.5


def test_long_names_keep_both_ends():
    assert shorten("checkpoint-000123456789", 11) == "check…56789"
    assert shorten("short", 11) == "short"
    assert len(shorten("x" * 100, 30)) == 30


def test_long_names_lose_what_all_begin_with():
    names = ["org/a-long-run-of-mine-seed1-step-100", "org/a-long-run-of-mine-seed2-step-100"]
    assert without_shared_beginning(names) == ["…seed1-step-100", "…seed2-step-100"]
    for whole in (["step-100", "step-200"], names[:1], ["a" * 30 + "b", "a" * 30 + "c"]):
        assert without_shared_beginning(whole) == whole
    study = training(2, labels=names)
    assert [
        text.replace("\n", "") for text in tick_texts(draw("01_position_signal", study).figure.axes[-1])
    ] == [
        "…seed1-step-100",
        "…seed2-step-100",
    ]
    assert draw("01_position_signal", study).data["label"].unique().tolist() == names


def test_letters_the_font_lacks_become_boxes_and_control_characters_go():
    assert drawable("α∑ 模型\x07\n") == "α∑ □□"


# --- files ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    study = with_components(
        training(3, names=NASTY[:3], labels=NASTY[:3], phases=[NASTY[3], NASTY[4], "x"], widen=2), 2
    )
    study = replace(study, timeline=replace(study.timeline, title=NASTY[4]))
    return study, draw_all(study, folder / "first"), folder


def test_all_figures_come_with_picture_data_and_readme(drawn):
    _study, made, folder = drawn
    assert sorted((*(each.name for each in made.drawn), *made.left_out)) == list(PICTURES)
    assert [each.name for each in made.drawn] == list(PUBLISHED_NAMES)
    for each in made.drawn:
        assert each == folder / "first" / each.name
        assert sorted(p.name for p in each.iterdir()) == [
            "README.md",
            "data.csv",
            "figure.pdf",
            "figure.png",
            "figure.svg",
        ]
        size = np.frombuffer((each / "figure.png").read_bytes()[16:24], ">u4")
        assert size[0] >= 5 * 200


def test_data_csv_is_what_is_drawn(drawn):
    study, made, _folder = drawn
    view = look(study)
    for each in made.drawn:
        stored = pd.read_csv(each / "data.csv")
        frame = PICTURES[each.name].draw(view, None).data
        assert list(stored.columns) == list(frame.columns)
        numbers = frame.select_dtypes("number").columns
        assert len(numbers)
        for column in numbers:
            expected = frame[column].to_numpy(np.float64, na_value=np.nan)
            np.testing.assert_array_equal(stored[column].to_numpy(np.float64), expected)


def test_names_with_markup_are_drawn_letter_by_letter_and_svg_stays_xml(drawn):
    study, made, _folder = drawn
    for each in made.drawn:
        ET.fromstring((each / "figure.svg").read_bytes())
    _upper, axes = draw("01_position_signal", study).figure.axes
    assert [text.replace("\n", "") for text in tick_texts(axes)] == NASTY[:3]
    view = look(study)
    for each in made.drawn:
        figure = PICTURES[each.name].draw(view, None).figure
        names = [t for t in figure.findobj(Text) if any(name[:3] in t.get_text() for name in NASTY)]
        assert names
        assert not any(text.get_parse_math() for text in names)
    readme = (made.drawn[0] / "README.md").read_text()
    assert "\\$x^2\\$\\_a" in readme
    assert "&lt;b&gt;&amp;amp;" in readme


def test_drawing_again_gives_the_same_bytes_in_threads_and_under_a_users_style(drawn):
    study, made, folder = drawn
    names = ["01_position_signal", "03_taxonomy_evolution", "06_layer_heatmap_rk", "07_phase_portraits"]
    style = {
        "axes.grid": True,
        "font.size": 20,
        "axes.facecolor": "black",
        "lines.linewidth": 9,
        "savefig.dpi": 30,
    }
    style |= {
        "font.family": ["serif"],
        "axes.spines.top": False,
        "xtick.direction": "in",
        "figure.autolayout": True,
    }

    def files(name):
        figure = draw(name, study).figure
        return png(figure), svg(figure), pdf(figure)

    with mpl.rc_context(style), ThreadPoolExecutor(4) as pool:
        again = dict(zip(names, pool.map(files, names), strict=True))
    for name, (picture, vector, page) in again.items():
        assert picture == (folder / "first" / name / "figure.png").read_bytes()
        assert vector == (folder / "first" / name / "figure.svg").read_bytes()
        assert page == (folder / "first" / name / "figure.pdf").read_bytes()
    assert made.drawn
    shown = draw("01_position_signal", study)._repr_png_()
    assert shown == again["01_position_signal"][0], "notebooks show the same picture"


def test_results_on_disk_are_drawn_in_processes_to_the_same_bytes(tmp_path, monkeypatch):
    table = tmp_path / "table"
    write_tables(table, cells_of(published_qk(), layers=36), PUBLISHED["checkpoints"], Thresholds())
    monkeypatch.setattr("qkscope.figures.drawing.CATALOGUE", CATALOGUE[:3])
    alone = draw_all(load_results(table), tmp_path / "alone")
    monkeypatch.setattr("qkscope.figures.drawing.worth", lambda pieces, seconds: pieces)
    made = draw_all(load_results(table), tmp_path / "figures")
    assert len(made.drawn) == 3
    for here, there in zip(alone.drawn, made.drawn, strict=True):
        for path in here.iterdir():
            assert path.read_bytes() == (there / path.name).read_bytes(), path
    data = pd.read_csv(made.drawn[2] / "data.csv")
    means = data[data["population"] == "all"].set_index("model")["mean"]
    assert means[PUBLISHED["checkpoints"]].to_list() == pytest.approx(PUBLISHED["mean_explained_variance"])


def test_drawing_needs_no_pyplot_and_changes_no_setting(tmp_path):
    code = (
        "import sys, matplotlib\n"
        "def settings(): return {k: matplotlib.rcParams[k] for k in matplotlib.rcParams if k != 'backend'}\n"
        "before = settings()\n"
        "sys.path.insert(0, 'tests')\n"
        "from studies import training\n"
        "from qkscope.figures import draw\n"
        "draw('position_signal', training(2))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert 'torch' not in sys.modules\n"
        "assert settings() == before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)


# --- tables made elsewhere ---------------------------------------------------------------------------------------


def test_a_foreign_table_with_the_fewest_columns_draws(tmp_path):
    table = published_qk()[["model", "layer", "head", "pc", "r_q", "r_k"]]
    table = table[(table["layer"] < 3) & table["model"].isin(PUBLISHED["checkpoints"][2:6])]
    table.to_csv(tmp_path / "qk.csv", index=False)
    folder = tmp_path / "figures"
    for name, file in (
        ("04_explained_variance", "figure.png"),
        ("14_mean_path", "README.md"),
        ("14_mine", "notes"),
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / file).write_text("of an earlier table")
    made = draw_all(tmp_path / "qk.csv")
    kept = {"04_explained_variance": "figure.png", "14_mean_path": "README.md", "14_mine": "notes"}
    assert all((folder / name / file).is_file() for name, file in kept.items()), (
        "nothing says that qkscope drew them"
    )
    assert {path.name for path in made.older} == set(kept)
    assert str(folder / "14_mean_path") in str(made)
    reasons = made.left_out
    assert "explained_variance" in reasons["04_explained_variance"]
    assert f"left out: 04_explained_variance: {reasons['04_explained_variance']}" in str(made)
    order = pd.read_csv(tmp_path / "figures" / "01_position_signal" / "data.csv")
    assert order["model"].tolist() == PUBLISHED["checkpoints"][2:6]
    assert order["label"].tolist() == LABELS[2:6]


def script():
    path = Path(__file__).parent.parent / "scripts" / "generate_report_figures.py"
    spec = importlib.util.spec_from_file_location("generate_report_figures", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_keeps_the_published_names_and_default_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "results" / "smollm3_training_progress"
    place.mkdir(parents=True)
    published_qk().to_csv(place / "qk.csv", index=False)
    module = script()
    figure = module.smollm_fig01_position_signal_over_training()
    assert line(figure.axes[0], "mean $r_q$").get_ydata() == pytest.approx(PUBLISHED["mean_r_q"])
    for name in (
        "smollm_fig03_taxonomy_evolution",
        "smollm_fig04_explained_variance_evolution",
        "smollm_fig05_layer_heatmap_rq",
        "smollm_fig06_layer_heatmap_rk",
        "smollm_fig07_rq_rk_scatter_grid",
    ):
        assert getattr(module, name)().axes


def test_the_script_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(script().main, [])
    assert ran.exit_code == 1
    assert "results/smollm3_training_progress/qk.csv: no such file" in ran.stderr


# --- bad input ---------------------------------------------------------------------------------------------------


def changed(study, name, value):
    return with_values(study, **{name: np.full_like(study.own()[name], value)})


def renamed_checkpoint(study):
    checkpoints = (
        *study.timeline.checkpoints[:1],
        replace(study.timeline.checkpoints[1], model=study.timeline.checkpoints[0].model),
    )
    return replace(study, timeline=replace(study.timeline, checkpoints=checkpoints))


BAD = {
    "no heads": (lambda s: with_heads(s, lambda *_: False), "nothing was measured"),
    "r above 1": (lambda s: changed(s, "r_q", 1.5), "r_q is 1.5"),
    "r infinite": (lambda s: changed(s, "r_k", -np.inf), "r_k is -inf"),
    "all heads NaN": (lambda s: changed(s, "r_k", np.nan), "nothing was measured"),
    "two checkpoints of one name": (renamed_checkpoint, "twice"),
    "unknown checkpoints": (
        lambda s: replace(s, timeline=timeline_from_names(["step-1", "step-2"])),
        "none of the study's",
    ),
    "one unknown checkpoint": (
        lambda s: replace(s, timeline=timeline_from_names(["step-100"])),
        "does not name: step-200",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_results_that_cannot_be_drawn_are_refused(case, tmp_path):
    spoil, message = BAD[case]
    with pytest.raises(TableError, match=message):
        draw_all(spoil(training(2)), tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_checkpoint_of_the_study_that_is_not_in_the_results_is_a_gap():
    study = training(3)
    some = replace(study, data=study.data.isel(cell=[0, 2]))
    axes, _populations = draw("01_position_signal", some).figure.axes
    assert np.isnan(line(axes, "mean $r_q$").get_ydata()).tolist() == [False, True, False]


def test_one_head_draws():
    study = training(2)
    lone = with_heads(study, lambda layer, head: (layer, head) == (0, 1))
    view = look(lone)
    for entry in CATALOGUE:
        if entry.why_not(view) is None:
            entry.draw(view, None).figure.draw_without_rendering()
    (axes,) = draw("01_position_signal", lone).figure.axes
    assert line(axes, "mean $r_q$").get_ydata() == pytest.approx(lone.heads["r_q"].to_numpy())


def test_a_checkpoint_with_no_measured_head_draws():
    study = training(3)
    nan = {name: study.own()[name].to_numpy().copy() for name in ("r_q", "r_k")}
    for values in nan.values():
        values[1] = np.nan
    study = with_values(study, **nan)
    view = look(study)
    for entry in CATALOGUE:
        if entry.why_not(view) is None:
            entry.draw(view, None).figure.draw_without_rendering()
    panels = draw("07_phase_portraits", study).figure.axes
    assert "no measured head" in texts(panels[1])


def test_named_portraits_come_in_training_order_and_unknown_ones_are_ignored():
    study = training(4)
    named = replace(study.timeline, portraits=("step-400", "nowhere", "step-100"))
    assert look(replace(study, timeline=named)).shown == ["step-100", "step-400"]


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 2), (5, 5), (40, 6)])
def test_six_portraits_or_all_there_are(count, expected):
    study = training(count)
    chosen = look(study).shown
    assert len(chosen) == expected
    assert chosen[0] == "step-100"
    assert chosen[-1] == f"step-{100 * count}"
    assert len(set(chosen)) == expected


def test_a_full_disk_is_a_clear_error(tmp_path):
    (tmp_path / "figures").write_text("a file where the folder should be")
    with pytest.raises(QkscopeError, match="where a folder is needed"):
        draw_all(training(2), tmp_path / "figures")
