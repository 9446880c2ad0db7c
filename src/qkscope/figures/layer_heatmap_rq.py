"""Mean r_q on PC0 by checkpoint and depth."""

from __future__ import annotations

from qkscope.figures.heatmap import Heat, draw_heatmap
from qkscope.figures.view import Drawing, View, look
from qkscope.results import Results

NAME = "05_layer_heatmap_rq"
HEAT = Heat("r_q", "Blues")


def draw(results: Results) -> Drawing:
    """Blues from 0 to 1."""
    view = look(results)
    return draw_heatmap(view, HEAT, title(view))


def title(view: View) -> str:
    return "Mean r_q on PC0 by depth" + (" over training" if view.training else "")
