"""Sums -> the numbers of each head. `registry` tells how to add a measure."""

from qkscope.measures.cell import Cell, CellNumbers, measure_cell
from qkscope.measures.jackknife import jackknife
from qkscope.measures.pca import Axes, measure

__all__ = ["Axes", "Cell", "CellNumbers", "jackknife", "measure", "measure_cell"]
