"""Which wavelengths of the rotation carry the position signal, layer by layer, at a few checkpoints."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from qkscope.anatomy_means import carried_by
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools.examples import WHY_NOT
from qkscope.figures.tools.panels import Panels
from qkscope.figures.tools.representatives import representatives
from qkscope.figures.tools.sheet import Key, Paper, name_axis, scale, sheet
from qkscope.figures.tools.style import LINE, R_K
from qkscope.figures.view import View

COLOURS = "magma_r"


class SpectrumPicture(Picture):
    """Rows are layers, the first at the foot; columns are rotary pairs from short waves to long ones."""

    name = "16_spectrum"
    claims = ("wavelengths",)

    def title(self, view: View) -> str:
        return "Which wavelengths carry the position signal of queries"

    def why_not(self, view: View) -> str | None:
        table = view.results.spectrum
        if table is None:
            return WHY_NOT
        return None if (table["pair"] >= 0).any() else "no measured layer rotates"

    def draw(self, view: View, width: float | None = None) -> Drawing:
        models, table = representatives(view), view.results.spectrum
        data = carried_by(table, "q", by=["layer"]) if table is not None else pd.DataFrame()
        data = data[data["model"].isin(models)].reset_index(drop=True)
        data.insert(1, "label", data["model"].map(view.labels))
        panels = Panels.of(Paper(width), len(models), columns=3, wide=3.0, shape=0.8)
        line = Line2D([], [], color=R_K, linewidth=1.6)
        top = float(data["share"].max())
        keys = [Key(Patch(facecolor=colormaps[COLOURS](x)), f"{x * top:.0%} of r_q") for x in (0.0, 0.5, 1.0)]
        keys.append(Key(line, "the window: waves to its right do not turn once within it"))
        page = sheet(panels.paper, self.title(view), view.subtitle, panels.width, panels.body, keys)
        for i, model in enumerate(models):
            axes = panels.axes(page, i, view.heading(model))
            _map(axes, data[data["model"] == model], top, panels.paper)
            first = i % panels.columns == 0
            name_axis(axes, panels.paper, x="wavelength, tokens", y="layer" if first else None)
        return Drawing(page.figure, data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        return Caption(
            shows="Each cell is a layer and a rotary pair, with the wavelength at which it turns: the darker, the more "
            "of the queries' correlation with position on PC0 comes from it. The red line is the window: a wave longer "
            "than it turns less than once, so that it runs one way from beginning to end. A larger rope_theta moves "
            "wavelengths to the right. Layers that do not rotate have no wavelengths and are left out.",
            made="Each pair's part of r_q, in size, over the sum of these sizes, averaged over the heads of a layer.",
            table="spectrum.parquet",
            window="own",
        )


def _map(axes: Axes, data: pd.DataFrame, top: float, paper: Paper) -> None:
    table = data.pivot(index="layer", columns="wavelength", values="share")
    waves = table.columns.to_numpy(np.float64)
    middle = np.log2(waves)
    step = np.diff(middle).mean() if len(middle) > 1 else 1.0
    edges = np.concatenate([middle - step / 2, [middle[-1] + step / 2]])
    rows = np.arange(len(table) + 1) - 0.5
    axes.pcolormesh(
        edges, rows, table.to_numpy(), cmap=COLOURS, vmin=0, vmax=top, edgecolors="face", linewidth=0.2
    )
    axes.axvline(np.log2(float(data["window"].iloc[0])), color=R_K, linewidth=1.6)
    axes.set_xlim(edges[0], edges[-1])
    ticks = np.arange(np.ceil(edges[0]), edges[-1], max(2, round((edges[-1] - edges[0]) / 5)))
    scale(axes, "x", ticks.tolist(), [_tokens(2.0**tick) for tick in ticks], paper)
    room = int(axes.get_window_extent().height / axes.figure.dpi / (paper.points(9.5) / 72 * LINE))
    shown = range(0, len(table), -(-len(table) // max(room, 1)))
    scale(axes, "y", shown, [str(table.index[i]) for i in shown], paper)


def _tokens(value: float) -> str:
    return (
        f"{value:,.0f}"
        if value < 10_000
        else f"{value / 1000:,.0f}k"
        if value < 1e6
        else f"{value / 1e6:,.0f}M"
    )


PICTURE = SpectrumPicture()
