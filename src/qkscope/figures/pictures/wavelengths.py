"""Figure 09: which wavelengths of the rotary embedding carry the position signal, layer by layer."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D

from qkscope.anatomy_means import carried_by
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.pictures.score_variance import WHY_NOT, layer_scale
from qkscope.figures.tools.axis import short_count
from qkscope.figures.tools.sheet import Key, Panels, Paper, name_axis, scale, sheet
from qkscope.figures.tools.style import lettering
from qkscope.figures.view import View
from qkscope.words import bare, tokens

COLOURS, NORM, WINDOW = "Greys", Normalize(0, 1), "#d55e00"
MEAN = "mean"  # the row of all heads


def why_not(view: View) -> str | None:
    table = _table(view)
    if table is None:
        return WHY_NOT
    return None if (table["pair"] >= 0).any() else "no measured layer rotates"


def draw(view: View, width: float | None = None) -> Drawing:
    """Rows are layers, the first at the bottom; columns are rotary pairs from short wavelengths to long ones."""
    table = _table(view)
    assert table is not None
    data = pd.concat([carried_by(table, "q", by=["layer"]), carried_by(table, "q")], ignore_index=True)
    data["layer"] = data["layer"].astype("Int64")
    data = data[data["model"].isin(view.shown)].reset_index(drop=True)
    data.insert(1, "label", data["model"].map(view.labels))
    shown = [model for model in view.shown if model in set(data["model"])]
    panels = Panels.of(Paper(width), len(shown), 1 if width and width < 5 else 3, 3.0, 0.8)
    caption = _caption(view)
    keys = [Key(Line2D([], [], color=WINDOW, linewidth=1.6), "length of the window")]
    bar = 0.62 * panels.paper.factor
    page = sheet(
        panels.paper, caption.title, view.subtitle(matched=True), panels.width, panels.body + bar, keys
    )
    layers = sorted(int(layer) for layer in view.results.heads["layer"].unique())
    ends = float(data["wavelength"].min()), float(data["wavelength"].max())
    named = "layer (N: NoPE)" if view.populations else "layer"
    for i, model in enumerate(shown):
        axes = panels.axes(page, i, _heading(view, data, model))
        _map(axes, data[data["model"] == model], layers, ends, panels.paper)
        first, _ = panels.outer(i)
        name_axis(axes, panels.paper, x="wavelength, tokens", y=named if first else None)
    length, size = min(3.6, panels.width / 2), panels.paper.points(8.5)
    axes = page.axes((panels.width - length) / 2, panels.body, length, 0.12)
    drawn = page.figure.colorbar(ScalarMappable(NORM, COLOURS), cax=axes, orientation="horizontal")
    ticks = [0.0, 0.5, 1.0]
    drawn.set_ticks(ticks)
    axes.set_xticks(ticks, [f"{tick:.0%}" for tick in ticks], **lettering(size))
    axes.tick_params(length=2)
    axes.set_xlabel("share of $r_q$", **lettering(size, math=True), labelpad=2)
    return Drawing(page.figure, data, caption)


def _table(view: View) -> pd.DataFrame | None:
    """Over the same tokens, where windows differ."""
    results = view.results
    matched = results.spectrum_matched if view.rematched else None
    return results.spectrum if matched is None else matched


def _heading(view: View, data: pd.DataFrame, model: str) -> str:
    """The checkpoint, its window where windows differ, and mean r_q of the heads that rotate."""
    window = int(data.loc[data["model"] == model, "window"].iloc[0])
    heads = view.heads_over_same_tokens(model)
    r_q = bare(float(heads.loc[~heads["layer"].isin(view.nope_layers), "r_q"].mean()))
    return f"{view.labels[model]}{f' · {tokens(window)}' if data['window'].nunique() > 1 else ''} · r_q {r_q}"


def _caption(view: View) -> Caption:
    return Caption(
        title=f"Which wavelengths carry the position signal of queries{view.over_matched}",
        shows="Each cell is a layer and a rotary pair, placed by its wavelength: the darker, the larger the share of "
        "the queries' correlation with position on PC0 that comes from this pair. The row on top is the mean over all "
        f"{'RoPE ' if view.populations else ''}heads, and headings give their mean r_q: where it is small, there is "
        "little to share. The orange line is the window. A wave at least twice as long as the window can rise or fall "
        "steadily over it. A larger rope_theta moves wavelengths to the right."
        + (
            " Layers marked N have no rotary embedding (NoPE) and so no wavelengths."
            if view.populations
            else ""
        ),
        made="each pair's part of r_q, in absolute value, over the sum of these values; mean over the heads of a layer "
        "weighted by |r_q|. In data.csv, rows without a layer are the mean over all heads.",
        drawn="heat maps, one per checkpoint, with one colour scale and the same axes.",
        table="spectrum_matched.parquet" if view.rematched else "spectrum.parquet",
        window="matched",
    )


def _map(axes: Axes, data: pd.DataFrame, layers: list[int], ends: tuple[float, float], paper: Paper) -> None:
    by_layer = data.dropna(subset=["layer"]).pivot(index="layer", columns="wavelength", values="share")
    overall = data[data["layer"].isna()].set_index("wavelength")["share"].reindex(by_layer.columns)
    # An empty row between the layers and the mean over all heads.
    table = pd.concat([by_layer.reindex([*layers, -1]), overall.to_frame(MEAN).T])
    middle = np.log10(table.columns.to_numpy(np.float64))
    step = np.diff(middle).mean() if len(middle) > 1 else 0.3
    edges = np.concatenate([middle - step / 2, [middle[-1] + step / 2]])
    rows = np.arange(len(table) + 1) - 0.5
    grid = np.ma.masked_invalid(table.to_numpy(np.float64))
    axes.pcolormesh(edges, rows, grid, cmap=COLOURS, norm=NORM, edgecolors="face", linewidth=0.2)
    axes.axvline(np.log10(float(data["window"].iloc[0])), color=WINDOW, linewidth=1.6)
    axes.set_xlim(np.log10(ends[0]) - 0.15, np.log10(ends[1]) + 0.15)
    axes.set_ylim(-0.5, len(table) - 0.5)
    decades = range(int(np.ceil(np.log10(ends[0]))), int(np.log10(ends[1])) + 1)
    every = 1 if len(decades) <= (7 if paper.width is None else 4) else 2
    shown = list(decades)[::every]
    scale(axes, "x", shown, [short_count(10.0**tick) for tick in shown], paper)
    layer_scale(axes, layers, set(layers) - set(data["layer"].dropna()), paper)
    ticks = [*axes.get_yticks(), len(table) - 1]
    texts = [*(text.get_text() for text in axes.get_yticklabels()), MEAN]
    scale(axes, "y", ticks, texts, paper)


PICTURE = Picture("09_wavelengths", ("wavelengths",), draw, why_not)
