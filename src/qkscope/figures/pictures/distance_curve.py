"""Figure 10: what position adds to the score of a key, by its distance, at representative checkpoints."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray

from qkscope.axes_file import CheckpointAxes
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.pictures.score_variance import WHY_NOT
from qkscope.figures.tools.marks import number_scale
from qkscope.figures.tools.sheet import Key, Panels, Paper, name_axis, scale, sheet
from qkscope.figures.tools.style import shorten
from qkscope.figures.view import ROPE, View
from qkscope.measures.distance import octave_means, position_bias

COUNT = 3  # heads


def why_not(view: View) -> str | None:
    if view.of_models and len(view.order) > 1:
        return view.why_no_course
    if view.results.anatomy is None or not view.results.axes or not _heads(view):
        return WHY_NOT
    return None


def draw(view: View, width: float | None = None) -> Drawing:
    """A line a checkpoint, from light to dark in the order of training."""
    heads = _heads(view)
    data = pd.concat([_curves(view, layer, head) for layer, head in heads], ignore_index=True)
    shown = [model for model in view.shown if model in set(data["model"])]
    looks = dict(zip(shown, _shades(len(shown)), strict=True))
    keys = [Key(Line2D([], [], color=looks[m], linewidth=2), shorten(view.labels[m], 34)) for m in shown]
    panels = Panels.of(Paper(width), len(heads), 1 if width and width < 5 else 3, 3.2, between=0.3)
    caption = _caption(view)
    page = sheet(panels.paper, caption.title, view.subtitle, panels.width, panels.body, keys)
    limits = float(data["bias"].min()), float(data["bias"].max())
    for i, (layer, head) in enumerate(heads):
        axes = panels.axes(page, i, _heading(view, layer, head))
        rows = data[(data["layer"] == layer) & (data["head"] == head)]
        for model, colour in looks.items():
            part = rows[rows["model"] == model]
            axes.plot(part["distance"], part["bias"], color=colour, linewidth=1.5)
        _distances(axes, int(data["distance"].max()), panels.paper)
        number_scale(axes, panels.paper, *limits)
        first, _ = panels.outer(i)
        axes.tick_params(labelleft=first)
        name_axis(axes, panels.paper, x="distance, tokens", y="position bias, logits" if first else None)
    return Drawing(page.figure, data, caption)


def _caption(view: View) -> Caption:
    apart = (
        "the two RoPE heads and the NoPE head with the largest share of score variance due to key position"
        if view.populations
        else "the heads with the largest share of score variance due to key position"
    )
    return Caption(
        title=f"Position bias by distance{view.over_matched}",
        shows="A line is what position adds to the score of a key that stands so many tokens before the query, in "
        "logits, relative to the query's mean over all its keys: above zero a key at that distance is favoured. "
        f"Lines run from light to dark in the order of training; the panels are {apart} at the last {view.noun}, each "
        "from another layer.",
        made="mean over all pairs at a distance of scale · m_q(i)·m_k(j), with m the mean query and key at a position, "
        "minus query i's mean over its keys; keys from position 4 on. Each point is the mean over all "
        "distances within a third of an octave, so that fast rotations average out instead of being sampled.",
        drawn="line plots over a logarithmic distance, all panels on one scale.",
        table="axes.safetensors",
        window="matched",
    )


def _heads(view: View) -> list[tuple[int, int]]:
    """The heads shown: those most decided by position, of different layers; the last of NoPE where there is one."""
    anatomy = view.results.anatomy_matched if view.rematched else view.results.anatomy
    if anatomy is None:
        return []
    rows = anatomy[anatomy["model"] == view.order[-1]].dropna(subset=["share_position"])
    rows = rows.sort_values("share_position", ascending=False).drop_duplicates("layer")
    if view.populations:
        of = {name: rows[rows["rope"] == code] for name, code in ROPE.items()}
        rows = pd.concat([of["RoPE"].iloc[: COUNT - 1], of["NoPE"].iloc[:1]])
    return [(int(layer), int(head)) for layer, head in rows[["layer", "head"]].iloc[:COUNT].to_numpy()]


def _heading(view: View, layer: int, head: int) -> str:
    kind = "" if not view.populations else " (NoPE)" if layer in view.nope_layers else " (RoPE)"
    return f"layer {layer} head {head}{kind}"


def _curves(view: View, layer: int, head: int) -> pd.DataFrame:
    """model, label, tokens, layer, head, distance, from, to, bias: a row per checkpoint and distance."""
    frames = []
    for model in view.shown:
        found = (view.results.axes or {}).get(model)
        if found is None or found.rotations.get(layer) is None:
            continue
        window = view.results.timeline.matched_window if model in view.rematched else None
        at, low, high, bias = octave_means(_bias(found, layer, head, window))
        start = {"model": model, "label": view.labels[model], "tokens": window or int(found.path_q.edges[-1])}
        cells = {"layer": layer, "head": head, "distance": at, "from": low, "to": high, "bias": bias}
        frames.append(pd.DataFrame(start | cells))
    columns = ["model", "label", "tokens", "layer", "head", "distance", "from", "to", "bias"]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)


def _bias(found: CheckpointAxes, layer: int, head: int, window: int | None) -> NDArray[np.float64]:
    """The position bias at every distance, in logits."""
    row = found.row(layer, head)
    key = int(found.heads.kv_row[row])
    width = window or int(found.path_q.edges[-1])
    q, k = (
        path.select(np.array([at])).window(width) for path, at in ((found.path_q, row), (found.path_k, key))
    )
    rotation = found.rotations[layer]
    assert rotation is not None
    return np.asarray(found.scales[layer] * position_bias(q, k, found.mean_k[key], rotation))


def _shades(count: int) -> list[str]:
    return [str(to_hex(colormaps["viridis"](x))) for x in np.linspace(0.85, 0.0, count)]


def _distances(axes: Axes, longest: int, paper: Paper) -> None:
    """Distances on a scale of octaves, every second or third of them named."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.9, longest * 1.1)
    octaves = range(0, int(np.log2(longest)) + 1, 2 if longest < 4096 else 3)
    scale(axes, "x", [2**o for o in octaves], [f"{2**o:,}" for o in octaves], paper)
    axes.xaxis.set_minor_locator(NullLocator())


PICTURE = Picture("10_distance_curve", ("distance", "scores"), draw, why_not)
