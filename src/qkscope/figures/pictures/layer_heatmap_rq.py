"""Mean r_q on PC0 by checkpoint and depth: Blues from 0 to 1; negative means in green, dotted."""

from qkscope.figures.tools.heatmap import Heatmap

PICTURE = Heatmap("05_layer_heatmap_rq", ("emergence",), "r_q", "Blues")
