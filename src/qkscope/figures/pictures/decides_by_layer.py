"""What decides where heads look, layer by layer, at a few checkpoints."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from qkscope.anatomy_means import PARTS, measured
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools.examples import WHY_NOT
from qkscope.figures.tools.panels import Panels
from qkscope.figures.tools.representatives import representatives
from qkscope.figures.tools.sheet import Key, Paper, name_axis, scale, sheet
from qkscope.figures.tools.style import LINE, PAPER, PART_COLOURS
from qkscope.figures.view import View


class DecidesByLayer(Picture):
    """A bar a layer, first layer at the foot, its four shares from left to right."""

    name = "12_what_decides_by_layer"
    claims = ("scores", "emergence")

    def title(self, view: View) -> str:
        return "What decides where heads look, layer by layer"

    def why_not(self, view: View) -> str | None:
        return WHY_NOT if view.results.anatomy is None else None

    def draw(self, view: View, width: float | None = None) -> Drawing:
        models = representatives(view)
        data = _by_layer(view, models)
        panels = Panels.of(Paper(width), len(models), columns=3, wide=2.7, shape=1.0)
        keys = [Key(Patch(facecolor=colour), part) for part, colour in PART_COLOURS.items()]
        page = sheet(panels.paper, self.title(view), view.subtitle, panels.width, panels.body, keys)
        for i, model in enumerate(models):
            axes = panels.axes(page, i, view.heading(model))
            _bars(axes, data[data["model"] == model], panels.paper)
            first = i % panels.columns == 0
            name_axis(axes, panels.paper, x="mean share", y="layer" if first else None)
        return Drawing(page.figure, data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        return Caption(
            shows="Each bar is a layer, the first at the foot: the mean over its heads of the share of the variance of "
            "scores over keys that is where the key stands (position), what the key is whoever asks (key), what the "
            "query asks and the key is (match), and where, depending on what the query asks (query × position).",
            made="Means of the four shares over the heads of a layer.",
            table="anatomy.csv",
            window="own",
        )


def _by_layer(view: View, models: list[str]) -> pd.DataFrame:
    rows = []
    for each in measured(view.results, models):
        for layer, heads in each.heads.groupby("layer"):
            for part, column in PARTS.items():
                rows.append(
                    (each.model, view.labels[each.model], layer, part, len(heads), heads[column].mean())
                )
    return pd.DataFrame(rows, columns=["model", "label", "layer", "part", "heads", "share"])


def _bars(axes: Axes, data: pd.DataFrame, paper: Paper) -> None:
    table = data.pivot(index="layer", columns="part", values="share")[list(PARTS)]
    left = np.zeros(len(table))
    for part in PARTS:
        share = np.nan_to_num(table[part].to_numpy(np.float64))
        place = np.arange(len(table))
        axes.barh(place, share, 0.86, left, color=PART_COLOURS[part], edgecolor=PAPER, linewidth=0.4)
        left += share
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.6, len(table) - 0.4)
    scale(axes, "x", [0, 0.5, 1], ["0", "0.5", "1"], paper)
    room = int(axes.get_window_extent().height / axes.figure.dpi / (paper.points(9.5) / 72 * LINE))
    every = -(-len(table) // max(room, 1))
    shown = range(0, len(table), every)
    scale(axes, "y", shown, [str(table.index[i]) for i in shown], paper)


PICTURE = DecidesByLayer()
