"""r_q against r_k on PC0, a point per head, at representative checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from qkscope.figures.course import spread_of
from qkscope.figures.prose import Words, certainty, figure, joined, listing, md, story
from qkscope.figures.style import (
    CLASS_COLOURS,
    FAMILY_COLOURS,
    INK,
    LEFT,
    MUTED,
    PAPER,
    Key,
    extent,
    halo,
    lettering,
    name_axis,
    plain,
    scale,
    sheet,
    shorten,
    tokens,
    write,
)
from qkscope.figures.view import Drawing, View, look
from qkscope.results import Results
from qkscope.taxonomy import CLASSES, UNMEASURED, Thresholds

NAME = "07_phase_portraits"
X_LIMITS, Y_LIMITS = (-0.05, 1.05), (-1.05, 1.05)
SIX, MOST_MODELS = 6, 12
GAP, HEAD = 0.22, 0.36  # inches: between panels, and over each for its name


def draw(results: Results) -> Drawing:
    """Coloured by class, or by family in a study of models; RoPE heads filled circles, NoPE heads open diamonds."""
    view = look(results)
    models = representatives(view)
    data = _points(view, models)
    colours = _colours(view, data)
    wide, high, columns = _grid(len(models))
    rows = -(-len(models) // columns)
    width = LEFT + columns * wide + (columns - 1) * GAP + 0.3
    body = rows * (high + HEAD) + 0.5
    page = sheet(title(view), view.subtitle, width, body, _keys(view, data, colours))
    for i, model in enumerate(models):
        row, column = divmod(i, columns)
        left, top = LEFT + column * (wide + GAP), row * (high + HEAD) + HEAD
        axes = page.axes(left, top, wide, high)
        panel(axes, data[data["model"] == model], colours, results.thresholds)
        _write_title(axes, view, model, wide)
        bottom = i + columns >= len(models)
        axes.tick_params(labelleft=column == 0, labelbottom=bottom)
        name_axis(axes, x="r_q" if bottom else None, y="r_k" if column == 0 else None)
    return Drawing(page.figure, data)


def _grid(count: int) -> tuple[float, float, int]:
    """Width and height of a panel in inches, and how many stand in a row."""
    if count <= 2:
        return (5.4, 4.6, 1) if count == 1 else (4.2, 4.2, 2)
    return 3.0, 3.4, 4 if count > 6 and count % 4 in (0, 3) else 3


def title(view: View) -> str:
    where = "by model" if view.of_models else "over training" if view.training else "head by head"
    return f"Phase portraits: r_q against r_k on PC0, {where}"


def representatives(view: View) -> list[str]:
    """The checkpoints shown: those the study names; else first, early, ends of phases, last, in all six."""
    named = [model for model in view.results.timeline.portraits if model in view.order]
    if named:
        return sorted(named, key=view.order.index)
    order = view.order
    if view.of_models:
        places = np.unique(np.linspace(0, len(order) - 1, min(MOST_MODELS, len(order))).round().astype(int))
        return [order[i] for i in places]
    phases = {stop.model: stop.phase for stop in view.stops}
    ends = [i for i, model in enumerate(order[:-1]) if phases[model] != phases[order[i + 1]]]
    return [order[i] for i in _six(sorted({0, min(1, len(order) - 1), *ends, len(order) - 1}), len(order))]


def _six(chosen: Sequence[int], count: int) -> list[int]:
    """Six places: the most crowded inner ones dropped, or the widest gaps halved."""
    kept = list(chosen)
    while len(kept) > SIX:
        crowd = [kept[i + 1] - kept[i - 1] for i in range(2, len(kept) - 1)]
        del kept[2 + int(np.argmin(crowd))]
    while len(kept) < min(SIX, count):
        gaps = np.diff(kept)
        widest = int(np.argmax(gaps))
        kept.insert(widest + 1, kept[widest] + int(gaps[widest]) // 2)
    return kept


def _points(view: View, models: Sequence[str]) -> pd.DataFrame:
    heads = view.results.heads
    heads = heads[heads["model"].isin(models)]
    place = {model: i for i, model in enumerate(models)}
    heads = heads.iloc[np.argsort(heads["model"].map(place).to_numpy(), kind="stable")]
    points = view.own(
        heads[["model", "layer", "head", "r_q", "r_k", "class", *(["rope"] if "rope" in heads else [])]]
    )
    if view.of_models:
        points["family"] = points["model"].map({stop.model: stop.phase for stop in view.stops})
    return points.reset_index(drop=True)


def _colours(view: View, data: pd.DataFrame) -> dict[str, str]:
    """By what points are coloured: class, or family in a study of models."""
    if not view.of_models:
        return {name: CLASS_COLOURS[name] for name in CLASSES}
    return family_colours(view)


def family_colours(view: View) -> dict[str, str]:
    """A colour per family, in the order of the study."""
    families = list(dict.fromkeys(stop.phase for stop in view.stops))
    return {family: FAMILY_COLOURS[i % len(FAMILY_COLOURS)] for i, family in enumerate(families)}


def panel(axes: Axes, points: pd.DataFrame, colours: dict[str, str], limits: Thresholds) -> None:
    """One portrait: thresholds, points, the share of heads in each region."""
    axes.set_xlim(*X_LIMITS)
    axes.set_ylim(*Y_LIMITS)
    line: dict[str, Any] = {"color": "#9a9a9a", "linestyle": (0, (4, 3)), "linewidth": 0.9, "zorder": 1}
    for limit in (limits.low, limits.high):
        axes.axvline(limit, **line)
        for sign in (1, -1):
            axes.axhline(sign * limit, **line)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color("#b5b5b5")
    column = "family" if "family" in points else "class"
    rope = points["rope"] if "rope" in points else pd.Series(np.nan, points.index)
    for name, colour in colours.items():
        for nope in (False, True):
            some = points[(points[column] == name) & ((rope == 0) == nope) & (points["class"] != UNMEASURED)]
            if len(some):
                _scatter(axes, some, colour, nope, float(np.clip(9000 / len(points), 13, 28)))
    ticks = (0.0, limits.low, limits.high, 1.0)
    both = (*(-tick for tick in reversed(ticks[1:])), *ticks)
    scale(axes, "x", ticks, [f"{tick:g}" for tick in ticks])
    scale(axes, "y", both, [f"{tick:g}".replace("-", "\u2212") for tick in both])
    _write_regions(axes, points, limits)


def _scatter(axes: Axes, points: pd.DataFrame, colour: str, nope: bool, size: float) -> None:
    mark: dict[str, Any] = {
        "facecolors": colour,
        "edgecolors": PAPER,
        "marker": "o",
        "s": size * 1.1,
        "linewidths": 0.25,
    }
    if nope:
        mark = {"facecolors": "none", "edgecolors": colour, "marker": "D", "s": size, "linewidths": 0.9}
    axes.scatter(points["r_q"], points["r_k"], alpha=0.75, zorder=3, clip_on=False, **mark)


def _write_regions(axes: Axes, points: pd.DataFrame, limits: Thresholds) -> None:
    """The share of measured heads in each region, at the region's outer edge; classes split by the sign of r_k."""
    measured = points[points["class"] != UNMEASURED]
    if measured.empty:
        place = {"ha": "center", "va": "center", "transform": axes.transAxes}
        write(axes, 0.5, 0.5, "no measured head", 9.5, MUTED, **place)
        return
    sign = measured["r_k"] >= 0
    middle = (limits.low + limits.high) / 2
    regions = [
        ("position-dominated", sign, 1.03, 1.02, "right", "top"),
        ("position-dominated", ~sign, 1.03, -1.02, "right", "bottom"),
        ("Q-positional", None, 1.03, 0.02 - limits.low, "right", "bottom"),
        ("K-positional", sign, -0.03, 1.02, "left", "top"),
        ("K-positional", ~sign, -0.03, -1.02, "left", "bottom"),
        ("content-focused", None, -0.03, 0.02 - limits.low, "left", "bottom"),
        ("mixed", None, middle, -1.02, "center", "bottom"),
    ]
    for name, side, x, y, ha, va in regions:
        inside = (measured["class"] == name) & (True if side is None else side)
        share = float(inside.mean())
        text = percent(share) + (" mixed" if name == "mixed" else "")
        colour = CLASS_COLOURS[name] if inside.any() else "#ababab"
        colour = "#5f5f5f" if name == "mixed" else colour
        write(axes, x, y, text, 9.5, colour, weight="bold", ha=ha, va=va, zorder=6, path_effects=halo(3))


def percent(share: float) -> str:
    """Whole percents; a few heads are never 0%."""
    return "<1%" if 0 < share < 0.005 else f"{100 * share:.0f}%"


def _write_title(axes: Axes, view: View, model: str, width: float) -> None:
    stop = view.stops[view.place[model]]
    name = shorten(view.labels[model], 30)
    axes.set_title(name, loc="left", pad=5, **lettering(11, INK, "bold"))
    rest = " · ".join(
        filter(None, (plain(stop.phase), f"{tokens(stop.window)} window" if stop.window else ""))
    )
    room = width - extent(name, 11, "bold")[0] - 0.12
    if extent(rest, 8.5)[0] > room:
        rest = f"{tokens(stop.window)} window" if stop.window else ""
    if extent(rest, 8.5)[0] <= room:
        axes.set_title(rest, loc="right", pad=5, **lettering(8.5, MUTED))


def _keys(view: View, data: pd.DataFrame, colours: dict[str, str]) -> list[Key]:
    def dot(colour: str, marker: str = "o", face: str | None = None) -> Line2D:
        return Line2D(
            [],
            [],
            linestyle="none",
            marker=marker,
            markersize=7,
            color=colour,
            markerfacecolor=face or colour,
        )

    keys = [Key(dot(colour), name) for name, colour in colours.items()]
    if "rope" in data and data["rope"].notna().any():
        keys.append(Key(dot(MUTED), "head of a RoPE layer"))
        if (data["rope"] == 0).any():
            keys.append(Key(dot(MUTED, "D", PAPER), "head of a NoPE layer"))
    return keys


def describe(view: View, data: pd.DataFrame) -> Words:
    """In words: the shares of the regions in each portrait, and whether the cloud grew tighter."""
    spreads = [
        story(view, f"the spread of {name} across heads (standard deviation)", spread_of(value))
        for value, name in (("r_q", "r_q"), ("r_k", "r_k"))
    ]
    told = [each for each in spreads if each]
    models = list(dict.fromkeys(data["model"]))
    against = _against(view, data, models[-1])
    return Words(
        shows=f"One point a head: r_q across, r_k up, on PC0, at {len(models)} {view.noun}"
        f"{'s' if len(models) > 1 else ''}. Dashed lines are the thresholds of the taxonomy; percentages are the share "
        "of heads in each region, split by the sign of r_k. "
        + ("Colour is the family." if view.of_models else "Colour is the class.")
        + (
            " Filled circles: heads of RoPE layers; open diamonds: NoPE."
            if data.get("rope", pd.Series()).notna().any()
            else ""
        ),
        says=(*(_shares(view, data, model) for model in models), against, *(each.text for each in told)),
        made="No aggregation: every measured head of the table is one point, over its checkpoint's own window."
        + (" The checkpoints are those the study names." if view.results.timeline.portraits else ""),
        takeaway=joined(_ends(view, data, models), *(each.short for each in told)),
        certainty=certainty(told[0].own if told else None, not view.of_models),
    )


def _shares(view: View, data: pd.DataFrame, model: str) -> str:
    rows = data[(data["model"] == model) & (data["class"] != UNMEASURED)]
    if rows.empty:
        return f"{md(view.labels[model])}: no measured head."
    counts = rows["class"].value_counts()
    parts = [
        f"{int(counts[name])} {name} ({figure(counts[name] / len(rows), True)})"
        for name in CLASSES
        if name in counts
    ]
    return f"{md(view.labels[model])}: {listing(parts)} of {len(rows)} heads."


def _against(view: View, data: pd.DataFrame, model: str) -> str:
    rows = data[(data["model"] == model) & (data["class"] == "position-dominated")]
    if rows.empty:
        return ""
    down = int((rows["r_k"] < 0).sum())
    return f"Of the {len(rows)} position-dominated heads at {md(view.labels[model])}, {down} have a negative r_k."


def _ends(view: View, data: pd.DataFrame, models: Sequence[str]) -> str:
    """The most populated class at both ends."""
    ends = list(dict.fromkeys((models[0], models[-1])))
    parts = []
    for model in ends:
        rows = data[(data["model"] == model) & (data["class"] != UNMEASURED)]
        if len(rows):
            top = rows["class"].value_counts().reindex(CLASSES, fill_value=0)
            kind = str(top.idxmax())
            parts.append(
                f"{md(view.labels[model])}: most heads ({figure(top.max() / len(rows), True)}) are {kind}"
            )
    return "; ".join(parts) + "." if parts else ""
