"""Mean r_k on PC0 by checkpoint and depth."""

from __future__ import annotations

import pandas as pd

from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools.heatmap import Heat, describe_heatmap, draw_heatmap
from qkscope.figures.view import View

HEAT = Heat("r_k", "Reds")


class LayerHeatmapRK(Picture):
    """Reds from 0 to 1; negative means in green, dotted."""

    name = "06_layer_heatmap_rk"
    claims = ("depth_r_k", "early_layers")

    def title(self, view: View) -> str:
        return f"Mean r_k on PC0 by depth{view.over_training}"

    def draw(self, view: View, width: float | None = None) -> Drawing:
        return draw_heatmap(view, HEAT, self.title(view), width)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        return describe_heatmap(view, HEAT)


PICTURE = LayerHeatmapRK()
