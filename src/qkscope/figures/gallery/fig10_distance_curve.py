"""Figure 10: what position adds to the score of a key, by its distance, at representative checkpoints."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.ticker import NullLocator

from qkscope.figures.marks import band_key, number_scale, read_limits
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.sheet import Paper, draw_panels, scale, stroke
from qkscope.figures.style import RAMPS, shorten
from qkscope.figures.view import ALL, MATCHED, OWN, View
from qkscope.results.aggregate import present, score_by_distance
from qkscope.results.dataset import NAME

if TYPE_CHECKING:
    import xarray as xr

LIGHTEST = 0.3  # of the colours, for the first checkpoint
COUNT = 3  # panels: populations, then single heads


def why_not(view: View) -> str | None:
    if reason := view.why_not_training or view.lacks("distance_score") or view.lacks("share_position"):
        return reason
    known = view.same_tokens["distance_score"].sel(checkpoint=view.shown).notnull().any()
    return None if known else "the model's rotation is not known"


def draw(view: View, width: float | None = None) -> Drawing:
    """A line per checkpoint, from light to dark in the order of training, with a band of its error."""
    data = _curves(view)
    shown = [model for model in view.shown if model in set(data["model"])]
    shades = [str(to_hex(RAMPS["sequential"](x))) for x in np.linspace(LIGHTEST, 1.0, len(shown))]
    looks, paper = dict(zip(shown, shades, strict=True)), Paper(width)
    caption = _caption(view)
    limits = read_limits(data, [("score", "se")])

    def panel(name: str, axes: Axes) -> None:
        for model, colour in looks.items():
            _line(axes, data[(data["heads"] == name) & (data["model"] == model)], colour)
        _distances(axes, int(data["distance"].max()), paper)
        number_scale(axes, paper, *limits)

    keys = [stroke(shorten(view.drawn_labels[model], 34), colour) for model, colour in looks.items()]
    if data["se"].notna().any():
        keys.append(band_key("±1 standard error over documents"))
    page = draw_panels(
        paper, caption.title, view.subtitle(matched=True), keys,
        [(name, partial(panel, name)) for name in data["heads"].unique()], "distance, tokens", "position bias, logits",
        between=0.3, shared="y",
    )  # fmt: skip
    return Drawing(page.figure, data, caption)


def _caption(view: View) -> Caption:
    alone = "the head" if view.populations else "two heads of different layers"
    return Caption(
        title="Position bias by distance",
        shows="A line is what position alone adds to the score of a key at a distance from the query, in logits, "
        "relative to the query's mean over all its keys: above zero, a key at that distance is favoured. "
        + ("Lines run from light to dark in the order of training. " if view.training else "")
        + f"Panels are means over heads{' of each population' if view.populations else ''}, and {alone} with the "
        "largest share of score variance due to key position at the last checkpoint.",
        made="mean over all pairs at a distance of scale · m_q(i)·m_k(j), with m the mean query and key at a position, "
        "minus query i's mean over its keys; keys from position 4 on. A point is the mean over all distances within a "
        "third of an octave, so that fast rotations average out instead of being sampled.",
        drawn="line plots over a logarithmic distance, all panels on one scale; bands are the mean of the heads' "
        "standard errors.",
        table=NAME,
        variables=("distance_score", "distance_score_se"),
        window="matched",
    )


def _curves(view: View) -> pd.DataFrame:
    """A row per group of heads, checkpoint and distance: heads, model, label, window, tokens, distance, score, se."""
    frames = []
    for name, heads in _groups(view).items():
        for model in view.shown:
            curve = score_by_distance(view.same_tokens, model, heads)
            rows = curve.assign(model=model, label=view.labels[model], heads=name)
            rows["window"] = MATCHED if model in view.rematched else OWN
            frames.append(rows)
    columns = ["heads", "model", "label", "window", "distance", "score", "se"]
    return pd.concat(frames, ignore_index=True)[columns]


def _groups(view: View) -> dict[str, xr.DataArray]:
    """Heads by the name of their panel: each population, then those most determined by position, of other layers."""
    data = view.same_tokens
    found: dict[str, xr.DataArray] = {}
    for name in view.populations or (ALL,):
        found[f"mean of {view.count_text(name)}"] = present(data, name)
    share = data["share_position"].isel(checkpoint=-1, sample=0).to_numpy()
    most: dict[int, int] = {}  # layer -> its head
    for at in np.argsort(-share)[: int(np.isfinite(share).sum())]:
        most.setdefault(int(data["layer"][at]), int(data["number"][at]))
    for layer, number in list(most.items())[: COUNT - len(found)]:
        found[f"layer {layer} head {number}"] = (data["layer"] == layer) & (data["number"] == number)
    return found


def _line(axes: Axes, rows: pd.DataFrame, colour: str) -> None:
    x, y = rows["distance"].to_numpy(np.float64), rows["score"].to_numpy(np.float64)
    se = rows["se"].fillna(0.0).to_numpy(np.float64)
    axes.fill_between(x, y - se, y + se, color=colour, alpha=0.18, linewidth=0)
    axes.plot(x, y, color=colour, linewidth=1.4)


def _distances(axes: Axes, longest: int, paper: Paper) -> None:
    """Distances on a scale of octaves, every second or third of them named."""
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.9, longest * 1.1)
    octaves = range(0, int(np.log2(1.1 * longest)) + 1, 2 if longest < 4096 else 3)
    scale(axes, "x", [2**o for o in octaves], paper, [f"{2**o:,}" for o in octaves])
    axes.xaxis.set_minor_locator(NullLocator())


PICTURE = Picture("10_distance_curve", ("distance",), draw, why_not)
