"""Mean r_q on PC0 by checkpoint and depth."""

from __future__ import annotations

import pandas as pd

from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools.heatmap import Heat, describe_heatmap, draw_heatmap
from qkscope.figures.view import View

HEAT = Heat("r_q", "Blues")


class LayerHeatmapRQ(Picture):
    """Blues from 0 to 1; negative means in green, dotted."""

    name = "05_layer_heatmap_rq"
    claims = ("depth_r_q", "depths", "early_layers")

    def title(self, view: View) -> str:
        return f"Mean r_q on PC0 by depth{view.over_training}"

    def draw(self, view: View, width: float | None = None) -> Drawing:
        return draw_heatmap(view, HEAT, self.title(view), width)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        return describe_heatmap(view, HEAT)


PICTURE = LayerHeatmapRQ()
