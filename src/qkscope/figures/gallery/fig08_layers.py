"""Figures 08 and 09, layer by layer at representative checkpoints: what determines where heads look, and which
wavelengths of the rotary embedding carry the position signal."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from qkscope.figures.axis import short_count
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.sheet import Paper, draw_cells, draw_panels, inches, scale, stroke, swatch
from qkscope.figures.style import INK, LINE, PAPER, PART_COLOURS, colour_scale, every_nth
from qkscope.figures.view import ALL, View
from qkscope.results.aggregate import carried_by, means
from qkscope.results.dataset import NAME
from qkscope.words import bare, tokens

PARTS = {
    "position": "share_position",
    "query × position": "share_query_position",
    "key": "share_key",
    "match": "share_match",
}
NAMES = {
    "position": "key position",
    "query × position": "query-dependent position",
    "key": "key content",
    "match": "match of query and key content",
}
MEAN = "mean"  # the row of all heads


def draw_scores(view: View, width: float | None = None) -> Drawing:
    """A bar per layer, first layer at the bottom, its four shares from left to right; on top a bar per population."""
    data, paper = _mean_shares(view), Paper(width)
    caption = _scores_caption(view)
    keys = [swatch(name, PART_COLOURS[PARTS[part]]) for part, name in NAMES.items()]
    drawn = [
        (view.drawn_labels[model], partial(_bars, data[data["model"] == model], paper, view.nope_layers))
        for model in view.shown
    ]
    page = draw_panels(
        paper, caption.title, view.subtitle(matched=True), keys, drawn, "mean share of score variance",
        "layer (N: NoPE)" if view.populations else "layer", wide=2.9, shape=1.0, between=0.3, shared="xy",
        columns=2 if paper.narrow else None,
    )  # fmt: skip
    return Drawing(page.figure, data, caption)


def _scores_caption(view: View) -> Caption:
    return Caption(
        title="What determines where heads look, by layer",
        shows="Each bar is a layer, the first at the bottom. Its four colours are the mean shares of the variance of a "
        "query's scores over its keys that are explained by the key's position, by position in a way that depends on "
        "the query, by the key's content independent of the query, and by the match of query and key content. The "
        + ("bars on top are the means over all RoPE and all NoPE heads." if view.populations
           else "bar on top is the mean over all heads.")
        + (" Layers marked N have no rotary embedding (NoPE)." if view.populations else ""),
        made="the four shares of a head add up to 1; drawn is their mean over the heads of a layer, and over those of "
        f"all layers{view.of_matched}. The first four tokens are left out as keys.",
        drawn="stacked horizontal bars, one panel per checkpoint, all on the same scale.",
        table=NAME,
        variables=tuple(PARTS.values()),
        window="matched",
    )  # fmt: skip


def _mean_shares(view: View) -> pd.DataFrame:
    """A row per checkpoint, layer (none: all heads of a population) and part: the mean share with its error."""
    layers = np.unique(view.same_tokens["layer"].to_numpy()).tolist()
    names = tuple(PARTS.values())
    by_layer = view.over_same_tokens(partial(means, names=names, by="layer", at=layers, of="depth"))
    whole = view.each_population(partial(means, names=names, of="depth"))
    found = pd.concat([by_layer, whole], ignore_index=True).astype({"layer": "Int64"})
    found = found[found["model"].isin(view.shown) & (found["heads"] > 0)]
    parts = [
        found.assign(part=part, share=found[f"mean_{name}"], se=found[f"se_{name}"])
        for part, name in PARTS.items()
    ]
    table = pd.concat(parts).sort_index(kind="stable")
    columns = ["model", "label", "window", "layer", "population", "part", "heads", "share", "se"]
    return table[columns].reset_index(drop=True)


def _bars(data: pd.DataFrame, paper: Paper, nope: set[int], axes: Axes) -> None:
    layers = data["layer"].dropna().unique().tolist()
    names = data["population"].dropna().unique().tolist()[::-1]
    tall, tops = _layer_scale(axes, layers, nope, paper, [MEAN if name == ALL else name for name in names])
    left, place = np.zeros(len(layers) + len(names)), np.array([*range(len(layers)), *tops])
    height = 0.86 * np.array([1.0] * len(layers) + [tall] * len(names))
    for part in NAMES:
        rows = data[data["part"] == part]
        by_name = rows.set_index("population")["share"]
        share = np.nan_to_num([*rows.dropna(subset="layer")["share"], *(by_name[name] for name in names)])
        axes.barh(place, share, height, left, color=PART_COLOURS[PARTS[part]], edgecolor=PAPER, linewidth=0.4)
        left += share
    axes.set_xlim(0, 1)
    scale(axes, "x", (0, 0.5, 1), paper)


def _no_wavelengths(view: View) -> str | None:
    if reason := view.lacks("signal_q"):
        return reason
    return "no measured layer rotates" if _shares(view).empty else None


def draw_wavelengths(view: View, width: float | None = None) -> Drawing:
    """Rows are layers, the first at the bottom; columns are rotary pairs from short wavelengths to long ones."""
    data = _shares(view)
    shown = [model for model in view.shown if model in set(data["model"])]
    paper = Paper(width)
    caption = _wavelengths_caption(view)
    keys = [stroke("length of the window", INK, linewidth=1.6)]
    layers = np.unique(view.same_tokens["layer"].to_numpy()).tolist()
    ends = float(data["wavelength"].min()), float(data["wavelength"].max())
    drawn = [
        (
            view.drawn_labels[model] if paper.narrow else _heading(view, rows, model),
            partial(_map, rows, layers, ends, paper),
        )
        for model, rows in ((model, data[data["model"] == model]) for model in shown)
    ]
    page = draw_panels(
        paper, caption.title, view.subtitle(matched=True), keys, drawn, "wavelength, tokens",
        "layer (N: NoPE)" if view.populations else "layer",
        columns=2 if paper.narrow else None, wide=3.2, shape=0.8, foot=paper.bar, between=0.3, shared="xy",
    )  # fmt: skip
    page.colour_bar("share of $r_q$", colour_scale(signed=False), percent=True)
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
    return f"{view.drawn_labels[model]}{window} · r_q {bare(mean)}"


def _wavelengths_caption(view: View) -> Caption:
    return Caption(
        title="Which wavelengths carry the position signal of queries",
        shows="Each cell is a layer and a rotary pair, placed by its wavelength: the darker, the larger the share of "
        "the queries' correlation with position on PC0 that comes from this pair. The row on top is the mean over all "
        f"{'RoPE ' if view.populations else ''}heads, and headings give their mean r_q: where it is small, there is "
        "little to share. The black line is the window. A wave at least twice as long as the window can rise or fall "
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


def _map(
    data: pd.DataFrame,
    layers: list[int],
    ends: tuple[float, float],
    paper: Paper,
    axes: Axes,
) -> None:
    by_layer = data.dropna(subset=["layer"]).pivot(index="layer", columns="wavelength", values="share")
    overall = data[data["layer"].isna()].set_index("wavelength")["share"].reindex(by_layer.columns)
    tall, (top,) = _layer_scale(axes, layers, set(layers) - set(by_layer.index), paper, [MEAN])
    # An empty row between the layers and the mean over all heads.
    table = pd.concat([by_layer.reindex([*layers, -1]), overall.to_frame(MEAN).T])
    middle = np.log10(table.columns.to_numpy(np.float64))
    step = np.diff(middle).mean() if len(middle) > 1 else 0.3
    edges = np.concatenate([middle - step / 2, [middle[-1] + step / 2]])
    rows = np.array([*np.arange(len(layers) + 1) - 0.5, top - tall / 2, top + tall / 2])
    draw_cells(axes, edges, rows, table.to_numpy(np.float64), colour_scale(signed=False))
    window = np.log10(float(data["window"].iloc[0]))
    for colour, line in ((PAPER, 2.6), (INK, 1.4)):  # black with a white rim
        axes.axvline(window, color=colour, linewidth=line * paper.factor)
    axes.set_xlim(np.log10(ends[0]) - 0.15, np.log10(ends[1]) + 0.15)
    decades = range(int(np.ceil(np.log10(ends[0]))), int(np.log10(ends[1])) + 1)
    shown = decades[:: 1 if len(decades) <= (7 if paper.width is None else 4) else 2]
    scale(axes, "x", shown, paper, [short_count(10.0**tick) for tick in shown])


def _layer_scale(
    axes: Axes, layers: list[int], nope: set[int], paper: Paper, above: list[str]
) -> tuple[float, list[float]]:
    """Layers on the vertical axis one apart, as many named as fit, NoPE layers with an N; `above` them other rows.

    Returns the height of those, enough for their names, and where they stand.
    """
    high, line, count = inches(axes)[1], paper.points(9.5) / 72 * LINE, len(layers)
    tall = max(1.0, line * count / max(high - line * (len(above) + 0.5), line))
    tops = [count - 0.5 + tall * (i + 1) for i in range(len(above))]
    bottom, top = -0.5, tops[-1] + tall / 2
    shown = range(0, count, every_nth(paper.points(9.5), high / (top - bottom)))
    texts = [f"{'N ' if layers[i] in nope else ''}{layers[i]}" for i in shown]
    scale(axes, "y", [*shown, *tops], paper, [*texts, *above])
    axes.set_ylim(bottom, top)
    return tall, tops


SCORES = Picture(
    "08_score_variance", ("scores", "emergence"), draw_scores, lambda view: view.lacks("share_position")
)
WAVELENGTHS = Picture("09_wavelengths", ("wavelengths",), draw_wavelengths, _no_wavelengths)
