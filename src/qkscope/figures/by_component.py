"""Position correlation and explained variance by principal component, PC0 to the last one measured."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from qkscope.aggregate import by_component
from qkscope.figures.explained_variance import variance_scale
from qkscope.figures.lines import correlation_scale
from qkscope.figures.phase_portraits import family_colours, representatives
from qkscope.figures.prose import Words, figure, joined, md
from qkscope.figures.style import LEFT, Key, name_axis, scale, sheet, shorten
from qkscope.figures.view import Drawing, View, look
from qkscope.results import Results

NAME = "10_by_component"
PANELS = (
    ("mean_r_q", "mean r_q"),
    ("mean_abs_r_k", "mean |r_k|"),
    ("mean_explained_variance", "mean explained variance"),
)
MARKERS = "osD^vPX*<>hp"


def why_not(view: View) -> str | None:
    """Why there is nothing to draw, if so."""
    if view.results.components < 2:
        return "the table has PC0 only"
    return None


def draw(results: Results) -> Drawing:
    """One line per representative checkpoint, early light to late dark; or per model, coloured by family."""
    view = look(results)
    models = representatives(view)
    table = by_component(results.qk, models)
    data = view.own(table[["model", "pc", "heads", *(column for column, _ in PANELS)]])
    panels = [(column, name) for column, name in PANELS if data[column].notna().any()]
    looks = _looks(view, models)
    wide, high, gap = 3.1, 3.3, 0.78
    width = LEFT + len(panels) * wide + (len(panels) - 1) * gap + 0.3
    keys = [Key(_line(*looks[model]), shorten(view.labels[model], 34)) for model in models]
    page = sheet(title(view), view.subtitle, width, high + 0.75, keys)
    for i, (column, name) in enumerate(panels):
        axes = page.axes(LEFT + i * (wide + gap), 0.12, wide, high)
        for model in models:
            rows = data[data["model"] == model]
            colour, marker = looks[model]
            axes.plot(
                rows["pc"], rows[column], color=colour, marker=marker, markersize=5, linewidth=1.8, linestyle="-",
                markeredgewidth=0, label=view.labels[model], zorder=3,
            )  # fmt: skip
        _scales(axes, data, column)
        name_axis(axes, x="principal component", y=name)
    return Drawing(page.figure, data)


def _scales(axes: Axes, data: pd.DataFrame, column: str) -> None:
    last = int(data["pc"].max())
    axes.set_xlim(-0.4, last + 0.4)
    every = 1 if last <= 12 else -(-last // 10)
    ticks = range(0, last + 1, every)
    scale(axes, "x", ticks, [str(tick) for tick in ticks])
    low, high = float(np.nanmin(data[column])), float(np.nanmax(data[column]))
    if column == "mean_explained_variance":
        variance_scale(axes, high)
    else:
        correlation_scale(axes, min(low, 0.0), high)


def _looks(view: View, models: list[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each line."""
    if not view.of_models:
        ramp = np.linspace(0.82, 0.08, len(models)) if len(models) > 1 else [0.25]
        colours = [to_hex(colormaps["viridis"](share)) for share in ramp]
        return {
            m: (c, MARKERS[i % len(MARKERS)]) for i, (m, c) in enumerate(zip(models, colours, strict=True))
        }
    families = family_colours(view)
    phase = {stop.model: stop.phase for stop in view.stops}
    found: dict[str, tuple[str, str]] = {}
    for model in models:
        rank = sum(phase[other] == phase[model] for other in found)
        found[model] = (families[phase[model]], MARKERS[rank % len(MARKERS)])
    return found


def _line(colour: str, marker: str) -> Line2D:
    return Line2D(
        [], [], color=colour, marker=marker, markersize=5.5, linewidth=1.8, linestyle="-", markeredgewidth=0
    )


def title(view: View) -> str:
    return "Position and variance by principal component" + (" over training" if view.training else "")


def describe(view: View, data: pd.DataFrame) -> Words:
    """In words: on which component position sits, and how fast it fades."""
    models = list(dict.fromkeys(data["model"]))
    told = models if view.of_models else list(dict.fromkeys((models[0], models[-1])))
    says = [_one(view, data[data["model"] == model]) for model in told]
    kind = (
        "one line a model, coloured by family"
        if view.of_models
        else "one line a checkpoint, light to dark in order"
    )
    return Words(
        shows=f"Mean r_q, mean |r_k| and mean explained variance of each principal component; {kind}.",
        says=tuple(says),
        made="For each component, the mean over the heads in which both correlations are measured, over own windows.",
        takeaway=joined(says[-1]) if not view.of_models else joined(*says[:3]),
        components="all principal components",
        certainty="Standard errors are made for PC0 only; differences between components are given without.",
    )


def _one(view: View, rows: pd.DataFrame) -> str:
    """Where r_q and |r_k| are largest, and what PC0 and all components together explain."""
    rows = rows.set_index("pc")
    parts = []
    for column, name in PANELS[:2]:
        top, last = int(rows[column].idxmax()), int(rows.index.max())
        parts.append(
            f"{name} is largest on PC{top} ({figure(rows.loc[top, column])}; "
            f"PC{last} has {figure(rows.loc[last, column])})"
        )
    text = f"{md(view.labels[rows['model'].iloc[0]])}: {' and '.join(parts)}."
    variance = rows["mean_explained_variance"]
    if variance.notna().all():
        together = f"all {len(rows)} components {figure(variance.sum(), True)}"
        text += f" PC0 explains {figure(variance.loc[0], True)} of the variance, {together}."
    return text
