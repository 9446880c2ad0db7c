"""Plasticity by where the query and where the keys stand, at a few checkpoints."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.patches import Patch

from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools.asked import why_not
from qkscope.figures.tools.panels import Panels
from qkscope.figures.tools.representatives import representatives
from qkscope.figures.tools.sheet import Key, Paper, name_axis, scale, sheet
from qkscope.figures.view import View

COLOURS = colormaps["viridis"]


class PlasticityMap(Picture):
    """A square per checkpoint: query buckets upwards, key buckets to the right; brighter is more open."""

    name = "20_plasticity_map"
    claims = ("plasticity",)

    def title(self, view: View) -> str:
        return "Plasticity by where query and keys stand"

    def why_not(self, view: View) -> str | None:
        if view.results.optional.get("plasticity_map") is None:
            return "the results have no plasticity_map.parquet: add plasticity to the study's measures and run it again"
        return why_not(view, "plasticity")

    def draw(self, view: View, width: float | None = None) -> Drawing:
        models = representatives(view)
        data = _cells(view, models)
        panels = Panels.of(Paper(width), len(models), columns=3, wide=2.6, shape=1.0)
        low, high = float(data["mean"].min()), float(data["mean"].max())
        ends = [
            (low, f"{low:.2f}, most decided"),
            ((low + high) / 2, f"{(low + high) / 2:.2f}"),
            (high, f"{high:.2f}, most open"),
        ]
        span = high - low or 1.0
        keys = [Key(Patch(facecolor=COLOURS((value - low) / span)), text) for value, text in ends]
        page = sheet(panels.paper, self.title(view), view.subtitle, panels.width, panels.body, keys)
        for i, model in enumerate(models):
            axes = panels.axes(page, i, view.heading(model))
            part = data[data["model"] == model]
            size = int(part["query_bucket"].max()) + 1 if len(part) else 1
            image = np.full((size, size), np.nan)
            image[part["query_bucket"], part["key_bucket"]] = part["mean"]
            axes.imshow(image, origin="lower", cmap=COLOURS, vmin=low, vmax=low + span, aspect="auto")
            ticks = [0, size // 2, size - 1]
            for which in ("x", "y"):
                scale(axes, which, ticks, [str(tick) for tick in ticks], panels.paper)
            of = f"{size}ths of the window"
            name_axis(axes, panels.paper, x=f"keys, {of}", y=None if i % panels.columns else f"query, {of}")
        return Drawing(page.figure, data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        return Caption(
            shows="Plasticity is how open it is which of two keys a query prefers: 1 where both are as likely, 0 where "
            "one always wins. Each cell is the mean over heads for queries in one sixteenth of the window that choose "
            "between two keys of an earlier sixteenth: brighter is more open, darker more decided by where the query "
            "stands.",
            made="Means over heads of the cells of query bucket and key bucket, sixteen buckets a window.",
            table="plasticity_map.parquet",
            window="own",
        )


def _cells(view: View, models: list[str]) -> pd.DataFrame:
    table = view.results.optional["plasticity_map"]
    rows = table[table["model"].isin(models)]
    cells = rows.groupby(["model", "query_bucket", "key_bucket"], sort=False)["value"].agg(["mean", "size"])
    found = cells.reset_index().rename(columns={"size": "heads"})
    found.insert(1, "label", found["model"].map(view.labels))
    return found


PICTURE = PlasticityMap()
