"""Figure 08: what determines where heads look, layer by layer, at representative checkpoints."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from qkscope.anatomy_means import PARTS, measured
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools.sheet import Key, Panels, Paper, inches, name_axis, scale, sheet
from qkscope.figures.tools.style import LINE, PAPER, PART_COLOURS
from qkscope.figures.view import MATCHED, OWN, View
from qkscope.measures.jackknife import jackknife

WHY_NOT = "the results have no anatomy: measure the study again to have it"
NAMES = {
    "position": "key position",
    "query × position": "query-dependent position",
    "key": "key content",
    "match": "match of query and key content",
}


def why_not(view: View) -> str | None:
    return WHY_NOT if view.results.anatomy is None else None


def draw(view: View, width: float | None = None) -> Drawing:
    """A bar per layer, first layer at the bottom, its four shares from left to right."""
    data = _by_layer(view)
    panels = Panels.of(Paper(width), len(view.shown), 1 if width and width < 5 else 3, 2.7, 1.0)
    caption = _caption(view)
    keys = [Key(Patch(facecolor=PART_COLOURS[part]), name) for part, name in NAMES.items()]
    page = sheet(panels.paper, caption.title, view.subtitle(matched=True), panels.width, panels.body, keys)
    for i, model in enumerate(view.shown):
        axes = panels.axes(page, i, view.labels[model])
        _bars(axes, data[data["model"] == model], panels.paper, view.nope_layers)
        first, _ = panels.outer(i)
        layer = "layer (N: NoPE)" if view.populations else "layer"
        name_axis(axes, panels.paper, x="mean share of score variance", y=layer if first else None)
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
        table="anatomy_matched.csv" if view.rematched else "anatomy.csv",
        window="matched",
    )


def _by_layer(view: View) -> pd.DataFrame:
    """A row per checkpoint, layer and part: the mean share with its error over documents."""
    again = set(view.rematched) if view.results.anatomy_matched is not None else set()
    own = measured(view.results, [m for m in view.shown if m not in again])
    matched = measured(view.results, [m for m in view.shown if m in again], matched=True)
    rows = []
    for each in sorted((*own, *matched), key=lambda found: view.place[found.model]):
        window = MATCHED if each.model in again else OWN
        for layer in sorted(each.heads["layer"].unique()):
            here = (each.heads["layer"] == layer).to_numpy()
            for part in NAMES:
                means = each.mean(PARTS[part], here)
                start = (each.model, view.labels[each.model], window, int(layer), part)
                rows.append((*start, int(here.sum()), means[0], float(jackknife(means[1:]))))
    return pd.DataFrame(rows, columns=["model", "label", "window", "layer", "part", "heads", "share", "se"])


def _bars(axes: Axes, data: pd.DataFrame, paper: Paper, nope: set[int]) -> None:
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


PICTURE = Picture("08_score_variance", ("scores", "emergence"), draw, why_not)
