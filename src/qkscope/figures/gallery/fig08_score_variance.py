"""Figure 08: what determines where heads look, layer by layer, at representative checkpoints."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools.sheet import Key, Panels, Paper, draw_panels, inches, scale
from qkscope.figures.tools.style import LINE, PAPER, PART_COLOURS
from qkscope.figures.view import View
from qkscope.results.aggregate import means
from qkscope.results.dataset import NAME

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


def missing(view: View, name: str) -> str | None:
    """Why a variable that every run measures cannot be drawn, if so."""
    if name in view.results.data:
        return None
    return f"the results have no {name}: measure the study again to have it"


def draw(view: View, width: float | None = None) -> Drawing:
    """A bar per layer, first layer at the bottom, its four shares from left to right."""
    data = _by_layer(view)
    panels = Panels.of(Paper(width), len(view.shown), wide=2.7, shape=1.0)
    caption = _caption(view)
    keys = [Key(Patch(facecolor=PART_COLOURS[part]), name) for part, name in NAMES.items()]
    drawn = [
        (view.labels[model], partial(_bars, data[data["model"] == model], panels.paper, view.nope_layers))
        for model in view.shown
    ]
    names = "mean share of score variance", "layer (N: NoPE)" if view.populations else "layer"
    page = draw_panels(panels, caption.title, view.subtitle(matched=True), keys, drawn, *names)
    return Drawing(page.figure, data, caption)


def _caption(view: View) -> Caption:
    return Caption(
        title=f"What determines where heads look, by layer{view.over_matched}",
        shows="Each bar is a layer, the first at the bottom. Its four colours are the mean shares of the variance of a "
        "query's scores over its keys that are explained by the key's position, by position in a way that depends on "
        "the query, by the key's content independent of the query, and by the match of query and key content."
        + (" Layers marked N have no rotary embedding (NoPE)." if view.populations else ""),
        made="the four shares of a head add up to 1; drawn is their mean over the heads of a layer"
        + (f", over the {view.matched_text} of every text." if view.rematched else ".")
        + " The first four tokens are left out as keys.",
        drawn="stacked horizontal bars, one panel per checkpoint, all on the same scale.",
        table=NAME,
        variables=tuple(PARTS.values()),
        window="matched",
    )


def _by_layer(view: View) -> pd.DataFrame:
    """A row per checkpoint, layer and part: the mean share with its error over documents."""
    layers = np.unique(view.same_tokens["layer"].to_numpy()).tolist()
    names = tuple(PARTS.values())
    found = view.over_same_tokens(partial(means, names=names, by="layer", places=layers, of="depth"))
    found = found[found["model"].isin(view.shown) & (found["heads"] > 0)]
    columns = {"share": "mean", "se": "se"}
    parts = [
        found.assign(part=part, **{name: found[f"{what}_{PARTS[part]}"] for name, what in columns.items()})
        for part in PARTS
    ]
    table = pd.concat(parts).sort_index(kind="stable")
    return table[["model", "label", "window", "layer", "part", "heads", "share", "se"]].reset_index(drop=True)


def _bars(data: pd.DataFrame, paper: Paper, nope: set[int], axes: Axes) -> None:
    table = data.pivot(index="layer", columns="part", values="share")[list(NAMES)]
    left = np.zeros(len(table))
    for part in NAMES:
        share = np.nan_to_num(table[part].to_numpy(np.float64))
        place = np.arange(len(table))
        axes.barh(place, share, 0.86, left, color=PART_COLOURS[part], edgecolor=PAPER, linewidth=0.4)
        left += share
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.6, len(table) - 0.4)
    scale(axes, "x", [0, 0.5, 1], ["0", "0.5", "1"], paper)
    layer_scale(axes, [int(layer) for layer in table.index], nope, paper)


def layer_scale(axes: Axes, layers: list[int], nope: set[int], paper: Paper) -> None:
    """Layers on the vertical axis, as many named as fit, NoPE layers with an N."""
    room = max(int(inches(axes)[1] / (paper.points(9.5) / 72 * LINE)), 1)
    every = -(-len(layers) // room)
    shown = range(0, len(layers), every)
    texts = [f"{'N ' if layers[i] in nope else ''}{layers[i]}" for i in shown]
    scale(axes, "y", shown, texts, paper)


PICTURE = Picture(
    "08_score_variance", ("scores", "emergence"), draw, lambda view: missing(view, "share_position")
)
