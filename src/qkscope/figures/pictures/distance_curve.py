"""The mean score by the distance between query and key, of a few heads, over the checkpoints."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools.examples import WHY_NOT, examples
from qkscope.figures.tools.panels import Panels
from qkscope.figures.tools.representatives import representatives
from qkscope.figures.tools.sheet import Key, Paper, name_axis, scale, sheet
from qkscope.figures.tools.style import FAINT, MUTED
from qkscope.figures.view import View
from qkscope.lags import NEAR, PER_OCTAVE

MEASURED = "#c2410c"


class DistanceCurve(Picture):
    """A line a checkpoint, from pale to dark in the order of training, with a band of its error."""

    name = "15_distance_curve"
    claims = ("distance", "scores")

    def title(self, view: View) -> str:
        return f"The mean score by distance{view.over_training}"

    def why_not(self, view: View) -> str | None:
        table = view.results.distance
        if table is None or not examples(view):
            return WHY_NOT
        return None if table["score"].notna().any() else "the model's rotation is not known"

    def draw(self, view: View, width: float | None = None) -> Drawing:
        shown, models = examples(view), representatives(view)
        table = view.results.distance
        data = pd.concat([example.of(table) for example in shown]) if table is not None else pd.DataFrame()
        data = _smoothed(data[data["model"].isin(models)])
        looks = dict(zip(models, _shades(len(models)), strict=True))
        keys = [Key(Line2D([], [], color=looks[model], linewidth=2), view.labels[model]) for model in models]
        if data["measured"].notna().any():
            line = Line2D([], [], color=MEASURED, linewidth=1.0, linestyle=(0, (3, 2)))
            keys.append(Key(line, f"{view.labels[models[-1]]}, measured"))
        if (data["distance"] > NEAR).any():
            dot = Line2D([], [], color=MUTED, linestyle="none", marker=".", markersize=5)
            keys.append(Key(dot, f"dots: single distances beyond {NEAR}"))
        panels = Panels.of(Paper(width), len(shown), columns=3, wide=3.2, shape=0.85)
        page = sheet(panels.paper, self.title(view), view.subtitle, panels.width, panels.body, keys)
        for i, example in enumerate(shown):
            axes = panels.axes(page, i, example.heading)
            for model, colour in looks.items():
                part = example.of(data)
                _curve(axes, part[part["model"] == model], colour)
            _measured(axes, example.of(data), models[-1])
            _far(axes, int(data["distance"].max()), panels.paper)
            axes.grid(True, axis="y", color=FAINT, linewidth=0.7)
            name_axis(
                axes, panels.paper, x="tokens back", y=None if i % panels.columns else "mean score, logits"
            )
        return Drawing(page.figure, data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        return Caption(
            shows="The mean score between a query and the key so many tokens before it, in logits, at several "
            f"{view.noun}s from pale to dark. The heads are those in which position, the key and the match decide most "
            f"at the last. Beyond {NEAR} tokens the line is the mean over half an octave, dots are single distances, "
            "between which fast rotations go up and down. Only differences along a line matter: the softmax does not "
            "see its height. Dashed: the last as measured on a few queries of every group. Where it leaves the line, "
            "beyond the noise of so few, queries and keys at that distance are related by what they hold, which mean "
            "vectors leave out. Bands are ±1 standard error over documents.",
            made="Predicted from the paths: the mean over all pairs at a distance of scale m_q(i).m_k(j), keys from "
            "position 4 on. Measured: the mean score of 16 queries a ring in two documents of each group.",
            table="distance.parquet",
            window="own",
        )


def _shades(count: int) -> list[str]:
    return [str(to_hex(colormaps["YlGnBu"](x))) for x in np.linspace(0.35, 1.0, count)]


def _smoothed(data: pd.DataFrame) -> pd.DataFrame:
    """`mean_score` and `mean_measured`: each distance up to NEAR for itself, then the mean over half an octave."""
    frames = []
    for _, part in data.groupby(["model", "layer", "head"], sort=False):
        part = part.sort_values("distance")
        means = {
            f"mean_{name}": part[name]
            .rolling(PER_OCTAVE // 2 + 1, center=True, min_periods=1)
            .mean()
            .where(part["distance"] > NEAR, part[name])
            for name in ("score", "measured")
        }
        frames.append(part.assign(**means))
    return pd.concat(frames, ignore_index=True)


def _curve(axes: Axes, part: pd.DataFrame, colour: str) -> None:
    x, y, se = (part[name].to_numpy(np.float64) for name in ("distance", "mean_score", "score_se"))
    axes.fill_between(x, y - np.nan_to_num(se), y + np.nan_to_num(se), color=colour, alpha=0.18, linewidth=0)
    axes.plot(x, y, color=colour, linewidth=1.5)
    far = part[part["distance"] > NEAR]
    axes.plot(
        far["distance"], far["score"], color=colour, linestyle="none", marker=".", markersize=2.2, alpha=0.7
    )


def _measured(axes: Axes, part: pd.DataFrame, model: str) -> None:
    """What was measured of the last checkpoint, over what the paths predict of it."""
    shown = part[part["model"] == model]
    axes.plot(shown["distance"], shown["mean_measured"], color=MEASURED, linewidth=1.0, linestyle=(0, (3, 2)))


def _far(axes: Axes, longest: int, paper: Paper) -> None:
    """Distances on a scale of octaves, every second or third of them named."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.9, longest * 1.1)
    octaves = range(0, int(np.log2(longest)) + 1, 2 if longest < 4096 else 3)
    scale(axes, "x", [2**o for o in octaves], [f"{2**o:,}" for o in octaves], paper)
    axes.xaxis.set_minor_locator(NullLocator())


PICTURE = DistanceCurve()
