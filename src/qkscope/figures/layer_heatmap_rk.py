"""Mean r_k on PC0 by checkpoint and depth."""

from __future__ import annotations

import pandas as pd

from qkscope.figures.heatmap import Heat, draw_heatmap
from qkscope.figures.heatmap_prose import describe_cells
from qkscope.figures.prose import Words
from qkscope.figures.view import Drawing, View, look
from qkscope.results import Results

NAME = "06_layer_heatmap_rk"
HEAT = Heat("r_k", "Reds")


def draw(results: Results) -> Drawing:
    """Reds from 0 to 1; negative means in green, dotted."""
    view = look(results)
    return draw_heatmap(view, HEAT, title(view))


def title(view: View) -> str:
    return "Mean r_k on PC0 by depth" + (" over training" if view.training else "")


def describe(view: View, data: pd.DataFrame) -> Words:
    """In words: the strongest depths, and where it changed."""
    return describe_cells(view, data, HEAT)
