"""What decides where heads look, over the checkpoints: of all heads, and of the heads of each class."""

from __future__ import annotations

from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from qkscope.anatomy_means import PARTS, measured, what_decides
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools.axis import CheckpointAxis
from qkscope.figures.tools.bars import Kinds, draw_shares, share_keys
from qkscope.figures.tools.examples import WHY_NOT
from qkscope.figures.tools.sheet import Key
from qkscope.figures.tools.stack import Panel, draw_stack
from qkscope.figures.tools.style import PART_COLOURS
from qkscope.figures.view import View
from qkscope.taxonomy import CLASSES
from qkscope.words import count

KINDS = Kinds("part", tuple(PARTS), PART_COLOURS)


class WhatDecides(Picture):
    """Stacked: mean shares of position, key, match and query x position in the variance of scores over keys."""

    name = "11_what_decides"
    claims = ("scores",)

    def title(self, view: View) -> str:
        return f"What decides where heads look{view.over_training}"

    def why_not(self, view: View) -> str | None:
        return WHY_NOT if view.results.anatomy is None else view.why_no_course

    def draw(self, view: View, width: float | None = None) -> Drawing:
        results, again = view.results, None
        own = what_decides(measured(results, view.order), CLASSES)
        if view.rematched and results.anatomy_matched is not None:
            again = what_decides(measured(results, view.rematched, matched=True), CLASSES)
        data = view.windows(own, again)
        shown = [kind for kind in ("all", *CLASSES) if (data["of"] == kind).any()]
        panels = [_panel(data[data["of"] == kind], kind) for kind in shown]
        keys = [Key(Patch(facecolor=PART_COLOURS[part]), WORDS[part]) for part in PARTS]
        keys += share_keys(view, data[data["of"] == "all"], KINDS)
        return Drawing(draw_stack(view, self.title(view), panels, (), keys, width), data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        return Caption(
            shows="Of the variance of a query's scores over its keys, the mean share that is where the key stands "
            "(position), what the key is whoever asks (key), what the query asks and the key is (match), and where, "
            "depending on what the query asks (query × position). Above all heads, below the heads of each class."
            + (f" Thin bars are the same over the {view.matched_text}." if view.rematched else ""),
            made=f"For each {view.noun}, the mean of the four shares over heads; the shares of a head sum to one. The "
            "first four tokens are left out as keys.",
            table="anatomy.csv",
        )


WORDS = {
    "position": "where the key stands",
    "key": "what the key is, whoever asks",
    "match": "what the query asks and the key is",
    "query × position": "where, depending on what the query asks",
}


def _panel(data: pd.DataFrame, kind: str) -> Panel:
    most = int(data["heads"].max())
    if kind == "all":
        return Panel("mean share, all heads", 2.4, partial(_bars, data))
    return Panel("mean share", 1.5, partial(_bars, data), f"{kind}, at most {count(most, 'head')}")


def _bars(data: pd.DataFrame, axes: Axes, axis: CheckpointAxis) -> None:
    draw_shares(axes, axis, data, KINDS)


PICTURE = WhatDecides()
