"""Where a head's mean query and mean key go with position, in the plane of its first two axes."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm
from matplotlib.lines import Line2D

from qkscope.axes_file import CheckpointAxes
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools.examples import WHY_NOT, Example, examples
from qkscope.figures.tools.panels import Panels
from qkscope.figures.tools.sheet import Key, Paper, name_axis, sheet
from qkscope.figures.tools.style import FAINT, INK, R_K, R_Q
from qkscope.figures.view import View
from qkscope.rotation import Rotation

COLOURS = "viridis"
MOST = 512  # positions drawn


class MeanPath(Picture):
    """Lines from yellow-green (first tokens dark) to the end of the window; queries solid, keys dotted."""

    name = "14_mean_path"
    claims = ("position",)

    def title(self, view: View) -> str:
        where = f" at {view.heading(view.order[-1])}" if view.training else ""
        return f"Where mean queries and keys go with position{where}"

    def why_not(self, view: View) -> str | None:
        if not examples(view) or view.results.axes is None or view.order[-1] not in view.results.axes:
            return WHY_NOT
        if view.results.axes[view.order[-1]].v.shape[2] < 2:
            return "a plane needs two components, and one was kept"
        return None

    def draw(self, view: View, width: float | None = None) -> Drawing:
        shown, model = examples(view), view.order[-1]
        axes_of = (view.results.axes or {})[model]
        data = pd.concat([_path(axes_of, example) for example in shown], ignore_index=True)
        data.insert(0, "model", model)
        panels = Panels.of(Paper(width), len(shown), columns=3, wide=3.2, shape=1.0)
        page = sheet(panels.paper, self.title(view), view.subtitle, panels.width, panels.body, _keys(data))
        norm = LogNorm(1, max(2, int(data["position"].max())))
        for i, example in enumerate(shown):
            axes = panels.axes(page, i, example.heading)
            for kind, dashes, start in (("q", "-", R_Q), ("k", (0, (1.2, 1.0)), R_K)):
                part = example.of(data)
                _line(axes, part[part["kind"] == kind], norm, dashes, start)
            axes.autoscale_view()
            axes.margins(0.06)
            axes.grid(True, color=FAINT, linewidth=0.6)
            name_axis(axes, panels.paper, x="along PC0", y="along PC1" if i % panels.columns == 0 else None)
        return Drawing(page.figure, data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        last = view.labels[view.order[-1]]
        return Caption(
            shows=f"The mean query (solid) and the mean key (dotted) along the window of {last}, projected on the "
            "first two axes of the head, from dark (first tokens) to yellow (the window's end); a dot marks the first. "
            "The heads are those in which position, the key and the match decide most. Rings and arcs are what "
            "rotating one constant vector makes; what departs from them is a mean vector that changes with position "
            "before it is rotated.",
            made="m(t) = R_t mu: the mean of the vectors before rotation in each bin of position, rotated by the "
            "model's own rotation. The first four tokens are left out.",
            components="first two principal components",
            table="axes.safetensors",
            window="own",
        )


def _path(found: CheckpointAxes, example: Example) -> pd.DataFrame:
    row = found.row(example.layer, example.head)
    rotation = found.rotations[example.layer] or Rotation.none(found.v.shape[1])
    frames = []
    for kind, path, at in (("q", found.path_q, row), ("k", found.path_k, int(found.heads.kv_row[row]))):
        last = int(path.edges[-1])
        t = np.unique(
            np.concatenate([np.arange(4, min(68, last)), np.linspace(4, last - 1, MOST).astype(int)])
        )
        t = t[(t >= 4) & (t < last)]
        one = path.select(np.array([at]))
        place = one.at(rotation, t)[0] @ found.v[row, :, :2]
        frames.append(
            pd.DataFrame(
                {"layer": example.layer, "head": example.head, "kind": kind, "position": t}
                | {"pc0": place[:, 0], "pc1": place[:, 1]}
            )
        )
    return pd.concat(frames, ignore_index=True).dropna()


def _line(axes: Axes, part: pd.DataFrame, norm: LogNorm, dashes: object, start: str) -> None:
    points = part[["pc0", "pc1"]].to_numpy(np.float64)
    pieces = np.stack([points[:-1], points[1:]], axis=1)
    lines = LineCollection(
        list(pieces), cmap=COLOURS, norm=norm, linewidths=1.3, linestyles=[dashes], zorder=3
    )
    lines.set_array(part["position"].to_numpy(np.float64)[:-1])
    axes.add_collection(lines)
    axes.plot(*points[0], marker="o", color=start, markersize=6, zorder=4)


def _keys(data: pd.DataFrame) -> list[Key]:
    last = int(data["position"].max())
    places = [4, int(np.sqrt(4 * last)), last]
    norm, colours = LogNorm(1, max(2, last)), colormaps[COLOURS]
    marks = [Key(Line2D([], [], color=colours(norm(t)), linewidth=3), f"position {t:,}") for t in places]
    kinds = (("mean query", "-", R_Q), ("mean key", (0, (1.2, 1.0)), R_K))
    return marks + [
        Key(
            Line2D([], [], color=INK, linestyle=dashes, marker="o", markerfacecolor=c, markeredgecolor=c),
            text,
        )
        for text, dashes, c in kinds
    ]


PICTURE = MeanPath()
