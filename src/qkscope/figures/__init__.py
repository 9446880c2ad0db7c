"""The figures of a study, each with its data and a README that says in measured numbers what it shows."""

from qkscope.figures.catalogue import CATALOGUE, Drawn, Entry, LeftOut, Made, draw_all
from qkscope.figures.view import Drawing

__all__ = ["CATALOGUE", "Drawing", "Drawn", "Entry", "LeftOut", "Made", "draw_all"]
