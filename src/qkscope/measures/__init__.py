"""Moments -> the numbers of a head."""

from qkscope.measures.jackknife import jackknife
from qkscope.measures.pca import Axes, measure

__all__ = ["Axes", "jackknife", "measure"]
