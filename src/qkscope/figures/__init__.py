"""The figures of a study, each with its data and a README that says what happened."""

from qkscope.figures.drawing import CATALOGUE, FigureSet, draw, draw_all
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.plane import scatter

__all__ = [
    "CATALOGUE",
    "Caption",
    "Drawing",
    "FigureSet",
    "Picture",
    "draw",
    "draw_all",
    "scatter",
]
