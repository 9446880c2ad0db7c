"""Figure 09: which wavelengths of the rotary embedding carry the position signal, layer by layer."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.lines import Line2D

from qkscope.figures.gallery.fig08_score_variance import layer_scale, missing
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools import style
from qkscope.figures.tools.axis import short_count
from qkscope.figures.tools.sheet import Key, Panels, Paper, draw_panels, scale
from qkscope.figures.view import View
from qkscope.results.aggregate import means
from qkscope.results.curves import carried_by
from qkscope.results.dataset import NAME
from qkscope.words import bare, tokens

COLOURS = LinearSegmentedColormap.from_list("share", style.SEQUENTIAL)
NORM, WINDOW = Normalize(0, 1), "#d55e00"
MEAN = "mean"  # the row of all heads


def why_not(view: View) -> str | None:
    if reason := missing(view, "signal_q"):
        return reason
    return "no measured layer rotates" if _shares(view).empty else None


def draw(view: View, width: float | None = None) -> Drawing:
    """Rows are layers, the first at the bottom; columns are rotary pairs from short wavelengths to long ones."""
    data = _shares(view)
    shown = [model for model in view.shown if model in set(data["model"])]
    panels = Panels.of(Paper(width), len(shown), wide=3.0, shape=0.8)
    caption = _caption(view)
    keys = [Key(Line2D([], [], color=WINDOW, linewidth=1.6), "length of the window")]
    layers = np.unique(view.same_tokens["layer"].to_numpy()).tolist()
    ends = float(data["wavelength"].min()), float(data["wavelength"].max())
    drawn = [
        (_heading(view, rows, model), partial(_map, rows, layers, ends, panels.paper))
        for model, rows in ((model, data[data["model"] == model]) for model in shown)
    ]
    names = "wavelength, tokens", "layer (N: NoPE)" if view.populations else "layer"
    foot = 0.62 * panels.paper.factor
    page = draw_panels(panels, caption.title, view.subtitle(matched=True), keys, drawn, *names, foot)
    length, size = min(3.6, panels.width / 2), panels.paper.points(8.5)
    axes = page.axes((panels.width - length) / 2, panels.body, length, 0.12)
    bar = page.figure.colorbar(ScalarMappable(NORM, COLOURS), cax=axes, orientation="horizontal")
    ticks = [0.0, 0.5, 1.0]
    bar.set_ticks(ticks)
    axes.set_xticks(ticks, [f"{tick:.0%}" for tick in ticks], **style.lettering(size))
    axes.tick_params(length=2)
    axes.set_xlabel("share of $r_q$", **style.lettering(size, math=True), labelpad=2)
    return Drawing(page.figure, data, caption)


def _shares(view: View) -> pd.DataFrame:
    """A row per checkpoint shown, layer (none: all heads) and wavelength, over the same tokens."""
    data = view.same_tokens.sel(checkpoint=view.shown)
    found = pd.concat([carried_by(data, "q", by="layer"), carried_by(data, "q")], ignore_index=True)
    found["layer"] = found["layer"].astype("Int64")
    found.insert(1, "label", found["model"].map(view.labels))
    return found


def _heading(view: View, rows: pd.DataFrame, model: str) -> str:
    """The checkpoint, its window where windows differ, and mean r_q of the heads that rotate."""
    differ = len(np.unique(view.same_tokens["window"].to_numpy())) > 1
    window = f" · {tokens(int(rows['window'].iloc[0]))}" if differ else ""
    mean = means(view.same_tokens, [model], ("r_q",), population=view.main)["mean_r_q"].item()
    return f"{view.labels[model]}{window} · r_q {bare(mean)}"


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
        table=NAME,
        variables=("signal_q", "wavelength"),
        window="matched",
    )


def _map(data: pd.DataFrame, layers: list[int], ends: tuple[float, float], paper: Paper, axes: Axes) -> None:
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
