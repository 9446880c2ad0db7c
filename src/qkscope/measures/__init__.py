"""Moments -> the numbers of a head."""

from qkscope.measures.beyond import Beyond, measure_beyond
from qkscope.measures.jackknife import jackknife
from qkscope.measures.pca import Axes, measure

__all__ = ["Axes", "Beyond", "jackknife", "measure", "measure_beyond"]
