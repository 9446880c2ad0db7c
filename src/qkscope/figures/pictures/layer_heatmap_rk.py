"""Mean r_k on PC0 by checkpoint and depth: Reds from 0 to 1; negative means in green, dotted."""

from qkscope.figures.tools.heatmap import Heatmap

PICTURE = Heatmap("06_layer_heatmap_rk", ("emergence",), "r_k", "Reds")
