"""Sums -> the numbers of each head. `registry` tells how to add a measure."""

from qkscope.measures.cell import Cell, CellNumbers, measure, measure_cell
from qkscope.measures.pca import Axes
from qkscope.measures.samples import jackknife

__all__ = ["Axes", "Cell", "CellNumbers", "jackknife", "measure", "measure_cell"]
