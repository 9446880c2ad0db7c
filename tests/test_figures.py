"""The pictures, checked by their artists: heights, colours, texts, limits and places, not pixels."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection, PolyCollection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.patches import PathPatch, Rectangle
from published import PUBLISHED, published_qk, published_results
from simulated import results as simulated_results

from qkscope.errors import QkscopeError, TableError
from qkscope.figures import CATALOGUE, draw, draw_all
from qkscope.figures.readme import md
from qkscope.figures.save import pdf, png, svg
from qkscope.figures.tools.representatives import representatives
from qkscope.figures.tools.style import CLASS_COLOURS, drawable, shorten, spread
from qkscope.figures.view import look
from qkscope.table import heads_table
from qkscope.taxonomy import CLASSES
from qkscope.timeline import timeline_from_names
from studies import models, training, with_components

LABELS = PUBLISHED["short_labels"]
SEPARATORS = [3.5, 4.5, 5.5, 7.5]
NASTY = ["$x^2$_a", "<b>&amp;", "a|b`c`", "\\frac{1}{2}", "# *bold* _it_"]

PICTURES = {entry.name: entry for entry in CATALOGUE}
# Why tables of r alone do not suffice for some pictures, whatever is studied.
BEYOND_R = dict.fromkeys(
    [
        "11_what_decides",
        "12_what_decides_by_layer",
        "13_r_against_eta",
        "14_mean_path",
        "15_distance_curve",
        "16_spectrum",
    ],
    "the results have no anatomy: measure the study again to have it",
) | {
    name: f"the results have no {file}: add {measure} to the study's measures and run it again"
    for name, file, measure in (
        ("18_drift", "rotation.csv", "rotation"),
        ("19_plasticity", "plasticity.csv", "plasticity"),
        ("20_plasticity_map", "plasticity_map.parquet", "plasticity"),
        ("21_per_kind", "per_kind.csv", "per_kind"),
    )
}
NO_CAUSES = {"17_causes": "causes were not measured: `qkscope run` does"}


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


@pytest.fixture(scope="module")
def published():
    return published_results()


@pytest.fixture(scope="module")
def published_cells():
    return published_results("cells")


# --- the published numbers -----------------------------------------------------------------------------------------


def test_position_signal_has_the_published_heights_colours_and_marks(published):
    figure = draw("01_position_signal", published).figure
    axes, _table = figure.axes
    q, k = line(axes, "mean r_q (queries)"), line(axes, "mean r_k (keys)")
    assert q.get_ydata() == pytest.approx(PUBLISHED["mean_r_q"], abs=1e-9)
    assert k.get_ydata() == pytest.approx(PUBLISHED["mean_r_k"], abs=1e-9)
    assert list(q.get_xdata()) == list(range(10))
    assert (to_hex(q.get_color()), q.get_marker()) == ("#1f77b4", "o")
    assert (to_hex(k.get_color()), k.get_marker()) == ("#d62728", "s")


def test_values_stand_in_the_table_below(published):
    _axes, table = draw("01_position_signal", published).figure.axes
    rows = [f"{value:.2f}" for name in ("mean_r_q", "mean_r_k") for value in PUBLISHED[name]]
    assert [text for text in texts(table) if text[0].isdigit()] == rows
    drawing = draw("01_position_signal", training(4, widen=2))
    matched = drawing.data[drawing.data["window"] == "matched"]
    last = texts(drawing.figure.axes[1])[-3:]
    assert last == ["mean r_k, first 4,096 tokens", *(f"{value:.2f}" for value in matched["mean_r_k"])]


def test_position_signal_shades_one_standard_deviation(published):
    axes, _table = draw("01_position_signal", published).figure.axes
    bands = [each for each in axes.collections if isinstance(each, PolyCollection)]
    spread = published.heads.groupby("model")[["r_q", "r_k"]].std(ddof=0)
    for band, column, mean in zip(bands, ("r_q", "r_k"), ("mean_r_q", "mean_r_k"), strict=True):
        corners = band.get_paths()[0].vertices
        for x, name in enumerate(PUBLISHED["checkpoints"]):
            reach = corners[corners[:, 0] == x, 1]
            middle, sd = PUBLISHED[mean][x], spread.loc[name, column]
            assert (reach.min(), reach.max()) == pytest.approx((middle - sd, middle + sd))


def test_axis_has_checkpoints_in_order_phases_above_and_dashed_lines_between(published):
    axes, _table = draw("01_position_signal", published).figure.axes
    assert tick_texts(axes) == LABELS
    assert separators(axes) == SEPARATORS
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
    bars, table = draw("03_taxonomy_evolution", published).figure.axes
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
    numbers = [int(text) for text in texts(table) if text.isdigit()]
    assert numbers == [n for name in CLASSES for n in PUBLISHED["taxonomy_head_counts"][name]]


def test_explained_variance_has_the_published_heights(published):
    axes, _table = draw("04_explained_variance", published).figure.axes
    found = line(axes, "mean explained variance")
    assert found.get_ydata() == pytest.approx(PUBLISHED["mean_explained_variance"], abs=1e-9)
    assert separators(axes) == SEPARATORS
    assert any(isinstance(each, PolyCollection) for each in axes.collections)


@pytest.mark.parametrize(
    ("name", "value", "colours"),
    [("05_layer_heatmap_rq", "r_q", "Blues"), ("06_layer_heatmap_rk", "r_k", "Reds")],
)
def test_heat_maps_have_the_published_cells(published_cells, name, value, colours):
    axes, _bar = draw(name, published_cells).figure.axes
    (mesh,) = [each for each in axes.collections if isinstance(each, QuadMesh)]
    cells = np.array(PUBLISHED[f"depth_heatmap_{value}"])
    assert np.asarray(mesh.get_array()).reshape(10, 10) == pytest.approx(cells, abs=1e-9)
    assert mesh.get_cmap().name == colours
    assert mesh.get_clim() == (0, 1)
    printed = {t.get_position(): t.get_text() for t in axes.texts if t.get_fontweight() != "bold"}
    assert printed == {(x, y): f"{cells[y, x]:.2f}" for y in range(10) for x in range(10)}
    assert tick_texts(axes, "y") == LABELS
    assert axes.get_ylim() == (9.5, -0.5), "the first checkpoint is on top"
    lines = sorted(each.get_ydata()[0] for each in dashed(axes))
    assert lines == SEPARATORS


def test_portraits_show_the_published_six_with_thresholds_limits_and_shares(published):
    figure = draw("07_phase_portraits", published).figure
    panels = figure.axes
    assert [panel.get_title(loc="left") for panel in panels] == [
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
    shares = texts(panels[0])
    assert "11%" in shares, "content-focused at the first checkpoint"
    assert "54% mixed" in shares
    heads = published.heads
    first = heads[(heads["model"] == PUBLISHED["checkpoints"][0]) & (heads["class"] == "position-dominated")]
    for side in (first["r_k"] > 0, first["r_k"] < 0):
        assert f"{100 * side.sum() / 300:.0f}%" in shares


def test_portraits_tell_rope_from_nope(published):
    panel = draw("07_phase_portraits", published).figure.axes[0]
    clouds = [each for each in panel.collections if isinstance(each, PathCollection)]
    assert all(len(each.get_facecolor()) > 0 for each in clouds), "nothing is known of axes"
    diamonds = [each for each in clouds if len(each.get_paths()[0].vertices) == 5]
    rope = published.heads[published.heads["model"] == PUBLISHED["checkpoints"][0]]["rope"]
    assert sum(len(each.get_offsets()) for each in diamonds) == (rope == 0).sum() > 0
    assert sum(len(each.get_offsets()) for each in clouds) == len(rope)


def with_axes(study):
    """The same study, in which every third head has another first axis than at the checkpoint before."""

    def known(heads):
        kept = np.where(heads["head"] % 3 == 0, 0.0, 1.0)
        return heads.assign(same_axis=np.where(heads["model"] == study.timeline.models[0], np.nan, kept))

    return replace(study, heads=known(study.heads), matched=known(study.matched))


def test_portraits_draw_heads_hollow_whose_axis_is_another():
    study = with_axes(training(3, widen=2))
    drawing = draw("07_phase_portraits", study)
    assert drawing.data["same_axis"].tolist()[:3] == pytest.approx([np.nan] * 3, nan_ok=True)
    first, *later = drawing.figure.axes[:3]
    for panel, model in zip((first, *later), study.timeline.models, strict=True):
        clouds = [each for each in panel.collections if isinstance(each, PathCollection)]
        hollow = sum(len(each.get_offsets()) for each in clouds if len(each.get_facecolor()) == 0)
        points = drawing.data[(drawing.data["model"] == model) & (drawing.data["window"] == "own")]
        assert hollow == (points["same_axis"] == 0).sum()
        assert (hollow > 0) == (panel is not first)
    said = PICTURES["07_phase_portraits"].caption(look(study), drawing.data).shows
    assert "Hollow: heads whose first axis is another" in said
    bare = training(3)
    assert (
        "Hollow"
        not in PICTURES["07_phase_portraits"].caption(look(bare), draw("07_phase_portraits", bare).data).shows
    )


def test_flows_are_hatched_where_another_axis_became_the_first():
    study = with_axes(training(3, widen=2))
    drawing = draw("08_transitions", study)
    for axes, window in zip(drawing.figure.axes, ("own", "matched"), strict=False):
        data = drawing.data[drawing.data["window"] == window]
        parts = [each for each in axes.patches if isinstance(each, PathPatch) and each.get_hatch()]
        heights = sorted(np.ptp(each.get_path().vertices[[0, -2], 1]) for each in parts)
        other = data["heads"] - data["same_axis"]
        assert heights == pytest.approx(sorted(other[other > 0]))
        heads = study.heads[study.heads["model"] == study.timeline.models[1]]
        assert other.sum() == 2 * (heads["head"] % 3 == 0).sum()
    said = PICTURES["08_transitions"].caption(look(study), drawing.data).shows
    assert "Hatched: heads whose first axis is another" in said
    bare = draw("08_transitions", training(3))
    assert bare.data["same_axis"].isna().all()
    assert "Hatched" not in PICTURES["08_transitions"].caption(look(training(3)), bare.data).shows


# --- what the published set does not show -----------------------------------------------------------------------


def test_transitions_draw_a_ribbon_for_every_flow(published):
    drawing = draw("08_transitions", published)
    axes, *_table = drawing.figure.axes
    ribbons = [each for each in axes.patches if isinstance(each, PathPatch)]
    heights = sorted(np.ptp(each.get_path().vertices[[0, -2], 1]) for each in ribbons)
    assert heights == pytest.approx(sorted(drawing.data["heads"]))
    first = drawing.data[drawing.data["from_model"] == PUBLISHED["checkpoints"][0]]
    before = first.groupby("from_class")["heads"].sum()
    assert before["position-dominated"] == 103
    moved = first.loc[first["from_class"] != first["to_class"], "heads"].sum()
    assert f"{moved} moved" in texts(axes)


def test_polarity_shows_the_mean_of_sizes_beside_the_mean():
    study = training(3)
    drawing = draw("02_polarity", study)
    above, below, table = drawing.figure.axes
    heads = study.heads
    for name, model in zip(("100", "200", "300"), study.timeline.models, strict=True):
        part = heads[heads["model"] == model]["r_k"]
        at = ["100", "200", "300"].index(name)
        assert line(above, "mean r_k").get_ydata()[at] == pytest.approx(part.mean())
        assert line(above, "mean |r_k|").get_ydata()[at] == pytest.approx(part.abs().mean())
        counts = [(part > 0.3).sum(), (part.abs() <= 0.3).sum(), (part < -0.3).sum()]
        layers = [c for c in below.containers if c.get_label() in ("concordant", "neutral", "discordant")]
        assert [layer[at].get_height() for layer in layers] == pytest.approx([n / len(part) for n in counts])
        assert all(str(n) in texts(table) for n in counts)


def test_rope_and_nope_layers_have_their_own_lines():
    study = training(3)
    upper, lower, _table = draw("09_rope_vs_nope", study).figure.axes
    means = study.heads.assign(r_k=study.heads["r_k"].abs()).groupby(["rope", "model"], sort=False)
    for axes, column in ((upper, "r_q"), (lower, "r_k")):
        for label, code in (("layers with RoPE", 1.0), ("layers without (NoPE)", 0.0)):
            assert line(axes, label).get_ydata() == pytest.approx(means[column].mean()[code].to_numpy())


def test_components_are_drawn_for_every_model_in_its_familys_colour():
    study = models(["Llama", "Llama", "Qwen"])
    panels = draw("10_by_component", study).figure.axes
    named = [[each for each in axes.lines if each.get_label() in study.timeline.models] for axes in panels]
    assert [len(each) for each in named] == [3, 3, 3]
    lines = named[0]
    colours = [to_hex(each.get_color()) for each in lines]
    assert colours[0] == colours[1] != colours[2]
    first = study.qk[study.qk["model"] == "org/model-0"].groupby("pc")["r_q"].mean()
    assert lines[0].get_ydata() == pytest.approx(first.to_numpy())
    assert lines[0].get_marker() != lines[1].get_marker()


def test_portraits_of_models_are_coloured_by_family():
    panels = draw("07_phase_portraits", models(["Llama", "Qwen", "Llama"])).figure.axes
    colours = []
    for panel in panels:
        clouds = [each for each in panel.collections if isinstance(each, PathCollection)]
        faces = {to_hex(c.get_facecolor()[0]) for c in clouds}
        assert len(faces) == 1
        colours.append(faces.pop())
    assert colours[0] == colours[2] != colours[1]


def test_a_study_of_models_leaves_training_out_with_its_reason(tmp_path):
    made = draw_all(models(["Llama", "Qwen"]), tmp_path)
    assert [each.name[:2] for each in made.drawn] == ["03", "05", "06", "07", "10"]
    untrained = dict.fromkeys(
        ["01_position_signal", "02_polarity", "04_explained_variance", "09_rope_vs_nope", "17_causes"],
        "it follows training, and this is a study of several models",
    )
    apart = {"08_transitions": "heads of different models cannot move into one another"}
    assert {each.name: each.reason for each in made.left_out} == untrained | apart | BEYOND_R
    for readme in tmp_path.glob("*/README.md"):
        assert "training" not in readme.read_text()


def test_one_model_alone_is_drawn_as_one_checkpoint_is(tmp_path):
    study = models(["Llama"])
    view = look(study)
    left = {entry.name: entry.why_not(view) for entry in CATALOGUE if entry.why_not(view)}
    alone = "it needs two checkpoints, and there is one"
    assert left == {"08_transitions": alone, "17_causes": alone} | BEYOND_R
    for entry in CATALOGUE:
        if entry.name not in left:
            said = entry.caption(view, entry.draw(view).data)
            assert "training" not in " ".join((said.shows, said.made, entry.title(view)))


# --- windows, gaps, uncertainty --------------------------------------------------------------------------------


def test_matched_window_is_dotted_beside_the_own_one():
    study = training(4, widen=2)
    drawing = draw("01_position_signal", study)
    axes, *_table = drawing.figure.axes
    hollow = line(axes, "mean r_k (keys), first 4,096 tokens")
    expected = [study.matched[study.matched["model"] == m]["r_k"].mean() for m in study.timeline.models[2:]]
    assert list(hollow.get_xdata()) == [2, 3]
    assert hollow.get_ydata() == pytest.approx(expected)
    (dotted,) = [
        e
        for e in axes.lines
        if e.get_linestyle() == ":" and to_hex(e.get_color()) == to_hex(hollow.get_markeredgecolor())
    ]
    own = line(axes, "mean r_k (keys)").get_ydata()
    assert dotted.get_ydata()[1:] == pytest.approx([own[1], *expected]), (
        "it leaves the own line where the two are one"
    )
    assert np.isnan(dotted.get_ydata()[0])
    assert drawing.data["window"].tolist() == ["own"] * 4 + ["matched"] * 2


def test_matched_window_is_a_thin_bar_and_a_second_block():
    study = training(4, widen=2)
    bars = draw("03_taxonomy_evolution", study).figure.axes[0]
    own, thin = (
        next(c for c in bars.containers if c.get_label() == label)
        for label in ("mixed", "mixed, first 4,096 tokens")
    )
    shares = study.matched.groupby("model")["class"].apply(lambda c: (c == "mixed").mean())
    assert [bar.get_height() for bar in thin][2:] == pytest.approx(
        [shares[m] for m in study.timeline.models[2:]]
    )
    assert thin[2].get_width() < own[2].get_width() / 2
    first, second, _bar = draw("06_layer_heatmap_rk", study).figure.axes
    assert len(tick_texts(first, "y")) == 4
    assert tick_texts(second, "y") == ["300", "400"]


def test_bars_of_uncertainty_are_standard_errors_over_documents():
    drawing = draw("01_position_signal", training(3))
    axes, *_table = drawing.figure.axes
    bars = [c for c in axes.containers if c.__class__.__name__ == "ErrorbarContainer"]
    assert len(bars) == 2
    for container, mean, se in zip(bars, ("mean_r_q", "mean_r_k"), ("se_r_q", "se_r_k"), strict=True):
        segments = container[2][0].get_segments()
        expected = np.array([(m - s, m + s) for m, s in drawing.data[[mean, se]].to_numpy()])
        assert np.array([s[:, 1] for s in segments]) == pytest.approx(expected)
    assert (drawing.data["se_r_q"] > 0).all()


def test_a_missing_checkpoint_is_a_gap_on_the_axis():
    study = training(4, missing=[2])
    axes, _table = draw("01_position_signal", study).figure.axes
    assert tick_texts(axes) == ["100", "200", "gone 2", "300", "400"]
    heights = line(axes, "mean r_q (queries)").get_ydata()
    assert np.isnan(heights).tolist() == [False, False, True, False, False]
    assert "not measured" in texts(axes)
    (band,) = [p for p in axes.patches if isinstance(p, Rectangle) and p.get_hatch()]
    assert (band.get_x(), band.get_width()) == (1.5, 1.0)
    rows = draw("05_layer_heatmap_rq", study).figure.axes[0]
    assert "not measured" in texts(rows)


def test_negative_means_do_not_look_like_zero_and_empty_bins_are_empty():
    study = training(2)
    layers = study.heads["layer"] <= 1
    qk = study.qk.assign(r_k=study.qk["r_k"].mask(layers, -0.02))
    qk = qk[qk["layer"] != 5]
    study = replace(study, qk=qk, heads=heads_table(qk, dict.fromkeys(study.timeline.models, 12)), loo=None)
    axes = draw("06_layer_heatmap_rk", study).figure.axes[0]
    covers = {(p.get_x() + 0.5, p.get_y() + 0.5): p for p in axes.patches if p.get_hatch()}
    cells = study.heads.groupby(["model", "depth_bin"])["r_k"].mean()
    models_ = study.timeline.models
    negative = {(b, y) for y, m in enumerate(models_) for b in range(10) if cells.get((m, b), 0) < 0}
    empty = {(b, y) for y, m in enumerate(models_) for b in range(10) if (m, b) not in cells.index}
    assert set(covers) == negative | empty
    assert negative
    assert empty
    printed = {t.get_position(): t.get_text() for t in axes.texts}
    for place in negative:
        assert printed[place].startswith("\u2212")
        red, green, blue = (int(to_hex(covers[place].get_facecolor())[i : i + 2], 16) for i in (1, 3, 5))
        assert red < green - 10, "plainly not a red, and not white"
        assert blue < 250
    assert {printed[place] for place in empty} == {"–"}


@pytest.mark.parametrize("layers", [1, 2, 7, 10])
def test_a_shallow_model_shows_its_layers(layers):
    study = training(2)
    qk = study.qk[study.qk["layer"] < layers]
    heads = heads_table(qk, dict.fromkeys(study.timeline.models, layers))
    drawing = draw("05_layer_heatmap_rq", replace(study, qk=qk, heads=heads))
    axes = drawing.figure.axes[0]
    (mesh,) = [each for each in axes.collections if isinstance(each, QuadMesh)]
    means = heads.groupby(["model", "layer"])["r_q"].mean().unstack().loc[study.timeline.models]
    assert np.asarray(mesh.get_array()).reshape(2, layers) == pytest.approx(means.to_numpy())
    assert [text.split("\n")[0] for text in tick_texts(axes)] == [str(layer) for layer in range(layers)]
    assert "–" not in texts(axes)
    assert drawing.data["heads"].gt(0).all()


def test_portraits_show_the_same_heads_over_the_matched_window():
    study = training(4, widen=2)
    drawing = draw("07_phase_portraits", study)
    figure, matched = drawing.figure, drawing.data[drawing.data["window"] == "matched"]
    assert [panel.get_title(loc="left") for panel in figure.axes] == [
        "100",
        "200",
        "300",
        "400",
        "300",
        "400",
    ]
    assert "the same over the first 4,096 tokens" in [text.get_text() for text in figure.texts]
    clouds = [each for each in figure.axes[-1].collections if isinstance(each, PathCollection)]
    drawn = np.sort(np.concatenate([np.asarray(each.get_offsets())[:, 1] for each in clouds]))
    expected = np.sort(study.matched.loc[study.matched["model"] == "step-400", "r_k"])
    assert drawn == pytest.approx(expected)
    assert set(matched["tokens"]) == {4096}


def test_components_have_errors_and_the_matched_window():
    study = with_components(training(4, widen=2), 3)
    matched = study.qk_matched
    more = [matched.assign(pc=pc, r_k=matched["r_k"] / 2**pc) for pc in range(3)]
    study = replace(study, qk_matched=pd.concat(more, ignore_index=True))
    drawing = draw("10_by_component", study)
    _q, k, _variance = drawing.figure.axes
    for model, style in (("step-400", "-"), ("step-400, matched", ":")):
        table = study.qk if style == "-" else study.qk_matched
        rows = table[table["model"] == "step-400"]
        drawn = line(k, model)
        assert drawn.get_linestyle() == style
        assert drawn.get_ydata() == pytest.approx(rows["r_k"].abs().groupby(rows["pc"]).mean().to_numpy())
    own = drawing.data[drawing.data["window"] == "own"]
    errors = study.qk.groupby(["model", "pc"], sort=False)["r_k_se"].mean()
    assert own.set_index(["model", "pc"])["most_se_abs_r_k"].sort_index().to_numpy() == pytest.approx(
        errors.sort_index().to_numpy()
    )
    bars = [c for c in k.containers if c.__class__.__name__ == "ErrorbarContainer"]
    assert len(bars) == 6


def test_unmeasured_heads_are_counted_and_not_drawn():
    study = training(2)
    qk = study.qk.copy()
    qk.loc[qk["head"] == 0, "r_k"] = np.nan
    study = replace(study, qk=qk, heads=heads_table(qk))
    bars, table = draw("03_taxonomy_evolution", study).figure.axes
    heights = sum(c[0].get_height() for c in bars.containers if c.get_label() in CLASSES)
    assert heights == pytest.approx(1.0)
    assert "unmeasured" in texts(table)
    assert texts(table)[-2:] == ["12", "12"]
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


def pythia():
    """154 checkpoints, one of them alone in its phase, the last over a longer window."""
    phases = ["Stage 1"] * 100 + ["Stage 2"] * 30 + ["Stage 3"]
    phases += ["Long context 4K to 32K"] * 13 + ["Long context 32K to 64K"] * 10
    return with_components(training(154, phases=phases, widen=131), 2)


def smollm3():
    """The published ten, with components, errors and a matched window."""
    labels, ends = PUBLISHED["short_labels"], ["Stage 1"] * 4 + ["Stage 2"] + ["Stage 3"]
    phases = [*ends, *["LC 4K→32K"] * 2, *["LC 32K→64K"] * 2]
    return with_components(training(10, labels=labels, phases=phases, widen=6), 10)


@pytest.mark.parametrize("width", [3.3, 6.9, None])
@pytest.mark.parametrize("study", [smollm3, pythia, lambda: training(11, missing=[3], widen=7)])
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
    assert figure.texts == []
    assert draw("01_position_signal", study).figure.texts[0].get_text().startswith("Position correlation")
    with pytest.raises(TableError, match="too narrow"):
        draw("position_signal", study, width=1.0)
    with pytest.raises(TableError, match="no picture 'nothing'; there are 01_position_signal"):
        draw("nothing", study)
    with pytest.raises(TableError, match="10_by_component cannot be drawn: the table has PC0 only"):
        draw("by_component", study)


NEW_PICTURE = """
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools.lines import Look, correlation_scale, draw_quantity, value_rows
from qkscope.figures.tools.stack import Panel, draw_stack
from qkscope.aggregate import position_signal

LOOK = Look("mean r_q", "#1f77b4", "o")

class Mine(Picture):
    name = "99_mine"
    claims = ("position",)

    def title(self, view):
        return "Mine"

    def draw(self, view, width=None):
        data = view.both_windows(position_signal)

        def marks(axes, axis):
            draw_quantity(axes, axis, data, LOOK, "mean_r_q", "se_r_q")
            correlation_scale(axes, axis.paper, 0, 1)

        rows = value_rows(view, data, {LOOK: "mean_r_q"})
        return Drawing(draw_stack(view, "Mine", [Panel("mean r_q", 3, marks)], rows, width=width), data)

    def caption(self, view, data):
        return Caption("Mean r_q.", "By the mean.")

PICTURE = Mine()
"""


def test_a_new_picture_is_one_module_and_nothing_else(tmp_path, monkeypatch):
    from qkscope.figures import catalogue, pictures

    (tmp_path / "mine.py").write_text(NEW_PICTURE)
    monkeypatch.setattr(pictures, "__path__", [*pictures.__path__, str(tmp_path)])
    found = catalogue.find_pictures()
    assert [picture.name for picture in found] == [*(picture.name for picture in CATALOGUE), "99_mine"]
    monkeypatch.setattr(catalogue, "CATALOGUE", found)
    study = training(3)
    assert draw("mine", study, width=3.3).figure.axes
    made = draw_all(study, tmp_path / "figures")
    assert md("Mean r_q.") in (made.drawn[-1].folder / "README.md").read_text()


def test_labels_move_apart_and_stay_inside():
    assert spread([1.0, 5.0, 9.0], 1.0, 0.0, 10.0) == [1.0, 5.0, 9.0]
    found = spread([5.0, 5.1, 5.2, 9.9], 1.0, 0.5, 9.5)
    assert np.diff(found).min() >= 1.0 - 1e-12
    assert found[-1] <= 9.5


def test_long_names_keep_both_ends():
    assert shorten("checkpoint-000123456789", 11) == "check…56789"
    assert shorten("short", 11) == "short"
    assert len(shorten("x" * 100, 30)) == 30


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
    assert sorted(each.name for each in (*made.drawn, *made.left_out)) == list(PICTURES)
    assert {each.name: each.reason for each in made.left_out} == BEYOND_R | NO_CAUSES
    for each in made.drawn:
        assert each.folder == folder / "first" / each.name
        assert sorted(p.name for p in each.folder.iterdir()) == [
            "README.md",
            "data.csv",
            "figure.pdf",
            "figure.png",
            "figure.svg",
        ]
        size = np.frombuffer((each.folder / "figure.png").read_bytes()[16:24], ">u4")
        assert size[0] >= 5 * 200


def test_data_csv_is_what_is_drawn(drawn):
    study, made, _folder = drawn
    for each in made.drawn:
        stored = pd.read_csv(each.folder / "data.csv")
        frame = draw(each.name, study).data
        assert list(stored.columns) == list(frame.columns)
        numbers = frame.select_dtypes("number").columns
        for column in numbers:
            expected = frame[column].to_numpy(np.float64, na_value=np.nan)
            np.testing.assert_array_equal(stored[column].to_numpy(np.float64), expected)


def test_names_with_markup_are_drawn_letter_by_letter_and_svg_stays_xml(drawn):
    study, made, _folder = drawn
    for each in made.drawn:
        ET.fromstring((each.folder / "figure.svg").read_bytes())
    axes, _table = draw("01_position_signal", study).figure.axes
    assert [text.replace("\n", "") for text in tick_texts(axes)] == NASTY[:3]
    assert not any(text.get_parse_math() for text in axes.get_xticklabels())
    readme = (made.drawn[0].folder / "README.md").read_text()
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


def test_drawing_in_processes_gives_the_same_bytes(drawn, tmp_path, monkeypatch):
    study, _made, folder = drawn
    monkeypatch.setattr("qkscope.figures.catalogue.CATALOGUE", CATALOGUE[:3])
    monkeypatch.setattr("qkscope.figures.catalogue.worth", lambda pieces, seconds: pieces)
    made = draw_all(study, tmp_path)
    assert len(made.drawn) == 3
    for each in made.drawn:
        for path in each.folder.iterdir():
            assert path.read_bytes() == (folder / "first" / each.name / path.name).read_bytes(), path


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
    old = tmp_path / "figures" / "10_by_component"
    old.mkdir(parents=True)
    (old / "figure.png").write_text("of an earlier table")
    made = draw_all(tmp_path / "qk.csv")
    assert (old / "figure.png").is_file(), "nothing says that qkscope drew it"
    assert made.older == (old,)
    assert str(old) in str(made)
    reasons = {each.name: each.reason for each in made.left_out}
    assert reasons == {
        **(BEYOND_R | NO_CAUSES),
        "04_explained_variance": "the table has no explained_variance",
        "09_rope_vs_nope": "the table does not say which layers use RoPE",
        "10_by_component": "the table has PC0 only",
    }
    assert all(line in str(made) for line in ("left out: 10_by_component: the table has PC0 only",))
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
    assert line(figure.axes[0], "mean r_q (queries)").get_ydata() == pytest.approx(PUBLISHED["mean_r_q"])
    for name in (
        "smollm_fig03_taxonomy_evolution",
        "smollm_fig04_explained_variance_evolution",
        "smollm_fig05_layer_heatmap_rq",
        "smollm_fig06_layer_heatmap_rk",
        "smollm_fig07_rq_rk_scatter_grid",
    ):
        assert getattr(module, name)().axes


def test_the_script_says_what_is_missing(tmp_path):
    path = Path(__file__).parent.parent / "scripts" / "generate_report_figures.py"
    ran = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "results/smollm3_training_progress/qk.csv: no such file" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_published_data_names_its_source():
    text = json.dumps(PUBLISHED)
    assert "SmolLM3-3B" in PUBLISHED["source"]
    assert len(text) > 1000


# --- bad input ---------------------------------------------------------------------------------------------------


def changed(study, **columns):
    heads = study.heads.assign(**columns)
    return replace(study, heads=heads)


def twice(study):
    return replace(study, heads=pd.concat([study.heads, study.heads.iloc[:1]], ignore_index=True))


def renamed_stop(study):
    stops = (*study.timeline.stops[:1], replace(study.timeline.stops[1], model=study.timeline.stops[0].model))
    return replace(study, timeline=replace(study.timeline, stops=stops))


BAD = {
    "empty table": (lambda s: replace(s, heads=s.heads.iloc[:0]), "no rows"),
    "r above 1": (lambda s: changed(s, r_q=1.5), "r_q is 1.5"),
    "r infinite": (lambda s: changed(s, r_k=-np.inf), "r_k is -inf"),
    "all heads NaN": (lambda s: changed(s, r_k=np.nan), "nothing was measured"),
    "duplicate rows": (twice, "is there twice"),
    "two stops of one name": (renamed_stop, "twice"),
    "unknown checkpoints": (
        lambda s: replace(s, timeline=timeline_from_names(["step-1", "step-2"])),
        "none of the study's",
    ),
    "one unknown checkpoint": (
        lambda s: replace(s, timeline=timeline_from_names(["step-100"])),
        "does not name: step-200",
    ),
    "no class": (lambda s: replace(s, heads=s.heads.drop(columns="class")), "no column class"),
}


@pytest.mark.parametrize("case", BAD)
def test_tables_that_cannot_be_drawn_truthfully_are_refused(case, tmp_path):
    spoil, message = BAD[case]
    with pytest.raises(TableError, match=message):
        draw_all(spoil(training(2)), tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_checkpoint_of_the_study_that_is_not_in_the_table_is_a_gap():
    study = training(3)
    heads = study.heads[study.heads["model"] != "step-200"]
    axes, _table = draw("01_position_signal", replace(study, heads=heads)).figure.axes
    assert np.isnan(line(axes, "mean r_q (queries)").get_ydata()).tolist() == [False, True, False]


def test_one_head_draws():
    study = training(2)
    some = study.qk[(study.qk["layer"] == 0) & (study.qk["head"] == 1)]
    lone = replace(simulated_results(some, None), timeline=study.timeline)
    view = look(lone)
    for entry in CATALOGUE:
        if entry.why_not(view) is None:
            entry.draw(view).figure.draw_without_rendering()
    axes, _table = draw("01_position_signal", lone).figure.axes
    assert line(axes, "mean r_q (queries)").get_ydata() == pytest.approx(some["r_q"].to_numpy())


def test_a_checkpoint_with_no_measured_head_draws():
    study = training(3)
    qk = study.qk.copy()
    qk.loc[qk["model"] == "step-200", ["r_q", "r_k"]] = np.nan
    study = replace(study, qk=qk, heads=heads_table(qk), loo=None)
    view = look(study)
    for entry in CATALOGUE:
        if entry.why_not(view) is None:
            drawing = entry.draw(view)
            drawing.figure.draw_without_rendering()
            assert entry.caption(view, drawing.data).shows
    panels = draw("07_phase_portraits", study).figure.axes
    assert "no measured head" in texts(panels[1])


def test_named_portraits_come_in_training_order_and_unknown_ones_are_ignored():
    study = training(4)
    named = replace(study.timeline, portraits=("step-400", "nowhere", "step-100"))
    assert representatives(look(replace(study, timeline=named))) == ["step-100", "step-400"]


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 2), (5, 5), (40, 6)])
def test_six_portraits_or_all_there_are(count, expected):
    study = training(count)
    chosen = representatives(look(study))
    assert len(chosen) == expected
    assert chosen[0] == "step-100"
    assert chosen[-1] == f"step-{100 * count}"
    assert len(set(chosen)) == expected


def test_a_full_disk_is_a_clear_error(tmp_path):
    (tmp_path / "figures").write_text("a file where the folder should be")
    with pytest.raises(QkscopeError, match="a file stands where a folder is needed"):
        draw_all(training(2), tmp_path / "figures")
