"""Figure 06: mean r_k on PC0 by checkpoint and depth, in Reds from 0 to 1."""

from qkscope.figures.pictures.layer_heatmap_rq import heatmap

PICTURE = heatmap("06_layer_heatmap_rk", "r_k", "Reds")
