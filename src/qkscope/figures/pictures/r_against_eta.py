"""A straight line through position against any function of it: |r| beside eta, head by head."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from qkscope.anatomy_means import measured
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools.examples import WHY_NOT
from qkscope.figures.tools.panels import Panels
from qkscope.figures.tools.sheet import Key, Paper, name_axis, scale, sheet
from qkscope.figures.tools.style import CLASS_COLOURS, DASHES, MUTED
from qkscope.figures.view import View
from qkscope.taxonomy import CLASSES


class RAgainstEta(Picture):
    """A point a head, coloured by class; on the dashed line a straight line is all there is."""

    name = "13_r_against_eta"
    claims = ("linearity",)

    def title(self, view: View) -> str:
        return "What r misses: any function of position against a straight line"

    def why_not(self, view: View) -> str | None:
        if view.results.anatomy is None:
            return WHY_NOT
        known = view.results.anatomy["eta_k"].notna().any()
        return None if known else "eta needs two groups of documents or more"

    def draw(self, view: View, width: float | None = None) -> Drawing:
        data = _points(view)
        shown = [kind for kind in CLASSES if (data["class"] == kind).any()]
        panels = Panels.of(Paper(width), 2, columns=2, wide=3.6, shape=1.0)
        keys = [Key(_mark(CLASS_COLOURS[kind]), kind) for kind in shown]
        keys.append(Key(Line2D([], [], color=MUTED, linestyle=DASHES), "a straight line tells all"))
        page = sheet(panels.paper, self.title(view), view.subtitle, panels.width, panels.body, keys)
        label = view.heading(view.order[-1])
        for i, (name, who) in enumerate((("q", "queries"), ("k", "keys"))):
            axes = panels.axes(page, i, f"{who}, {label}")
            _scatter(axes, data, name, panels.paper)
            name_axis(axes, panels.paper, x=f"|r_{name}| on PC0", y=f"eta_{name} on PC0")
        return Drawing(page.figure, data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        return Caption(
            shows="One point a head at the last checkpoint: across, the size of Pearson's correlation with position; "
            "up, eta, the correlation with the best function of position whatever its shape. Points far above the "
            "dashed line follow position in a way that r does not see, such as periodically.",
            made="No aggregation. eta comes from products over different groups of documents, so that chance does not "
            "add to it; a point below the line is noise.",
            table="anatomy.csv",
            window="own",
        )


def _points(view: View) -> pd.DataFrame:
    heads = measured(view.results, view.order[-1:])[0].heads
    columns = ["model", "layer", "head", "class", "r_q", "eta_q", "r_k", "eta_k"]
    return heads[columns].dropna().reset_index(drop=True)


def _scatter(axes: Axes, data: pd.DataFrame, name: str, paper: Paper) -> None:
    axes.plot([0, 1], [0, 1], color=MUTED, linestyle=DASHES, linewidth=1.0, zorder=1)
    axes.scatter(
        data[f"r_{name}"].abs(), data[f"eta_{name}"], s=26 * paper.factor,
        c=[CLASS_COLOURS[kind] for kind in data["class"]], alpha=0.8, linewidths=0, zorder=3,
    )  # fmt: skip
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    ticks = [0, 0.25, 0.5, 0.75, 1]
    for side in ("x", "y"):
        scale(axes, side, ticks, [f"{tick:g}" for tick in ticks], paper, grid=True)


def _mark(colour: str) -> Line2D:
    return Line2D([], [], linestyle="none", marker="o", markersize=6, color=colour)


PICTURE = RAgainstEta()
