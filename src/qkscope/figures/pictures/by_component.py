"""Position correlation and explained variance by principal component, PC0 to the last one measured."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from qkscope.aggregate import by_component
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools import lines
from qkscope.figures.tools.lines import Look
from qkscope.figures.tools.representatives import family_colours, representatives
from qkscope.figures.tools.sheet import Key, Paper, name_axis, scale, sheet
from qkscope.figures.tools.style import PAPER, pale, shorten
from qkscope.figures.view import MATCHED, OWN, View

PANELS = (
    ("mean_r_q", "mean r_q", "most_se_r_q"),
    ("mean_abs_r_k", "mean |r_k|", "most_se_abs_r_k"),
    ("mean_explained_variance", "explained variance", ""),
)
MARKERS = "osD^vPX*<>hp"


class ByComponent(Picture):
    """One line per representative checkpoint, early light to late dark; or per model, coloured by family."""

    name = "10_by_component"
    claims = ("position",)

    def title(self, view: View) -> str:
        return f"Position and variance by principal component{view.over_training}"

    def why_not(self, view: View) -> str | None:
        return "the table has PC0 only" if view.results.components < 2 else None

    def draw(self, view: View, width: float | None = None) -> Drawing:
        models = representatives(view)
        data = _means(view, models)
        panels = [panel for panel in PANELS if data[panel[0]].notna().any()]
        looks = _looks(view, models)
        paper = Paper(width)
        wide, high, across, down = _sizes(paper, len(panels))
        body = high + (0 if paper.narrow else 0.75 * paper.factor) + down * (len(panels) - 1) + 0.12
        body += 0.5 * paper.factor if paper.narrow else 0
        page = sheet(
            paper, self.title(view), view.subtitle, paper.left + wide + across * (len(panels) - 1) + paper.right,
            body, _keys(view, data, looks),
        )  # fmt: skip
        for i, (column, name, se) in enumerate(panels):
            axes = page.axes(paper.left + i * across, 0.12 + i * down, wide, high)
            for look in looks:
                rows = data[data["model"] == look.name]
                _line(axes, rows[rows["window"] == MATCHED], column, se, look, pale(look.colour), wide)
                _line(axes, rows[rows["window"] == OWN], column, se, look, look.colour, wide)
            _scales(axes, data, column, se, paper)
            last = not down or i == len(panels) - 1
            axes.tick_params(labelbottom=last)
            name_axis(axes, paper, x="principal component" if last else None, y=name)
        return Drawing(page.figure, data)

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        kind = "model, coloured by family" if view.of_models else "checkpoint, light to dark in order"
        bars = " Bars are at most one standard error over documents each way."
        return Caption(
            shows=f"Mean r_q, mean |r_k| and mean explained variance of each principal component; one line a {kind}."
            + (bars if _has_errors(data) else "")
            + view.matched_sentence,
            made="For each component, the mean over the heads in which both correlations are measured. The error of "
            "a mean over heads is at most the mean of the heads' errors, which is what is drawn.",
            components="all principal components",
        )


def _means(view: View, models: list[str]) -> pd.DataFrame:
    """A row per checkpoint, window and component."""
    results = view.results
    columns = ["model", "pc", "heads", *(name for name, _, _ in PANELS), *(se for _, _, se in PANELS if se)]
    again, matched = [model for model in models if model in view.rematched], None
    if again and results.qk_matched is not None:
        matched = by_component(results.qk_matched, again)[columns]
    return view.windows(by_component(results.qk, models)[columns], matched)


def _sizes(paper: Paper, count: int) -> tuple[float, float, float, float]:
    """Width and height of a panel, and from one to the next across and down: side by side, or in a column stacked."""
    if paper.width is None:
        return 3.1, 3.3, 3.88, 0.0
    room = paper.width - paper.left - paper.right
    if paper.narrow:
        return room, 1.25, 0.0, 1.37
    between = 0.62
    wide = (room - (count - 1) * between) / count
    return wide, 2.0, wide + between, 0.0


def _line(axes: Axes, rows: pd.DataFrame, column: str, se: str, look: Look, colour: str, wide: float) -> None:
    if rows.empty:
        return
    x, y = rows["pc"].to_numpy(np.float64), rows[column].to_numpy(np.float64)
    own = colour == look.colour
    if se:
        lines.draw_errors(axes, x, y, rows[se].to_numpy(np.float64), colour, 0.15, 0.8)
    axes.plot(
        x, y, color=colour, marker=look.marker, markersize=min(5.0, 1.6 * wide), linewidth=1.7 if own else 1.2,
        linestyle="-" if own else ":", markerfacecolor=colour if own else PAPER, markeredgecolor=colour,
        markeredgewidth=0.0 if own else 0.8, label=look.name if own else f"{look.name}, matched",
        zorder=3 if own else 2.8,
    )  # fmt: skip


def _scales(axes: Axes, data: pd.DataFrame, column: str, se: str, paper: Paper) -> None:
    last = int(data["pc"].max())
    axes.set_xlim(-0.4, last + 0.4)
    every = 1 if last <= 12 else -(-last // 10)
    ticks = range(0, last + 1, every)
    scale(axes, "x", ticks, [str(tick) for tick in ticks], paper)
    low, high = lines.read_limits(data.assign(none=0.0), [(column, se or "none")])
    if column == "mean_explained_variance":
        lines.share_scale(axes, paper, high)
    else:
        lines.correlation_scale(axes, paper, min(low, 0.0), high)


def _looks(view: View, models: list[str]) -> list[Look]:
    """The line of each checkpoint, named by it."""
    if not view.of_models:
        ramp = np.linspace(0.82, 0.08, len(models)) if len(models) > 1 else [0.25]
        colours = [to_hex(colormaps["viridis"](share)) for share in ramp]
        pairs = enumerate(zip(models, colours, strict=True))
        return [Look(model, colour, MARKERS[i % len(MARKERS)]) for i, (model, colour) in pairs]
    families = family_colours(view)
    phase = {stop.model: stop.phase for stop in view.stops}
    found: list[Look] = []
    for model in models:
        rank = sum(phase[other.name] == phase[model] for other in found)
        found.append(Look(model, families[phase[model]], MARKERS[rank % len(MARKERS)]))
    return found


def _keys(view: View, data: pd.DataFrame, looks: list[Look]) -> list[Key]:
    keys = [Key(look.sample(), shorten(view.labels[look.name], 34)) for look in looks]
    if (data["window"] == MATCHED).any():
        keys.append(Key(Look("", "#444444", "o").matched_sample(), f"dotted: {view.matched_text} only"))
    if _has_errors(data):
        keys.append(lines.error_key("at most ±1 standard error over documents"))
    return keys


def _has_errors(data: pd.DataFrame) -> bool:
    return bool(data[["most_se_r_q", "most_se_abs_r_k"]].notna().any(axis=None))


PICTURE = ByComponent()
