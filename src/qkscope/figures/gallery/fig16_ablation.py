"""Figure 16: loss without each part of the scores, a panel per set of heads."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from qkscope.claims.dependence import in_words, latest
from qkscope.figures.marks import error_key
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.sheet import Paper, dot, draw_panels, scale, swatch
from qkscope.figures.style import INK, MUTED, PAPER, PART_COLOURS, SINK
from qkscope.figures.view import View
from qkscope.results.tables import ABLATION
from qkscope.words import count

# Short enough to stand beside a panel.
NAMES = {
    "position": "position",
    "query_position": "position\n× query",
    "key": "key\ncontent",
    "match": "match",
    "sink": "sink",
    "head": "whole\nhead",
}
COLOURS = {name.removeprefix("share_"): colour for name, colour in PART_COLOURS.items()} | {
    "sink": SINK,
    "head": MUTED,
}
LONGEST = 30  # letters of a heading


def why_not(view: View) -> str | None:
    return "nothing was ablated: `qkscope ablate` does" if _rows(view).empty else None


def draw(view: View, width: float | None = None) -> Drawing:
    """Bars: the chosen heads; diamonds: random heads of the same layers."""
    data = _rows(view)
    sets = list(dict.fromkeys(data["heads"]))
    parts = [part for part in NAMES if part in set(data["part"])]
    reach = data[["delta", "random"]].to_numpy() + data[["delta_se", "random_se"]].fillna(0.0).to_numpy()
    limits = min(0.0, float(np.nanmin(data[["delta", "random"]]))), float(np.nanmax(reach))
    paper = Paper(width)
    drawn = []
    for text in sets:
        here = data[data["heads"] == text]
        name = in_words(text, int(here["n_heads"].iloc[0]), str(here["population"].iloc[0]))
        heading = name[0].upper() + name[1:] if len(name) <= LONGEST else text
        drawn.append((heading, partial(_bars, here, parts, limits, paper)))
    keys = [
        swatch("these heads", MUTED),
        dot(
            "as many random heads of the same layers, or all others",
            INK,
            marker="D",
            markersize=5,
            markerfacecolor=PAPER,
        ),
        error_key("±1 standard error over documents (random heads: over draws)", marker="_"),
    ]
    caption = _caption(view, data)
    page = draw_panels(
        paper, caption.title, _subtitle(view, data), keys, drawn, "change of loss, nats per token", "",
        wide=3.4, shape=0.15 * max(len(parts), 3), between=0.3, shared="xy",
    )  # fmt: skip
    return Drawing(page.figure, data, caption)


def _subtitle(view: View, data: pd.DataFrame) -> str:
    """Which study, checkpoint and texts."""
    first = data.iloc[0]
    label, documents = (
        view.labels[str(first["checkpoint"])],
        count(int(first["documents"]), "held-out document"),
    )
    return "  ·  ".join([view.results.timeline.title, label, documents])


def _rows(view: View) -> pd.DataFrame:
    """The ablations of the last checkpoint that has any."""
    found = latest(view.results)
    return pd.DataFrame() if found is None else found.drop(columns="weights")


def _bars(
    data: pd.DataFrame, parts: list[str], limits: tuple[float, float], paper: Paper, axes: Axes
) -> None:
    place = np.array([len(parts) - 1 - parts.index(part) for part in data["part"]], dtype=float)
    error = {"ecolor": INK, "elinewidth": 1.1, "capsize": 2.2}
    colours = [COLOURS[part] for part in data["part"]]
    axes.barh(place, data["delta"], 0.7, color=colours, xerr=data["delta_se"], error_kw=error, zorder=2)
    axes.errorbar(
        data["random"], place, xerr=data["random_se"].fillna(0.0), fmt="D", markersize=4.5 * paper.factor, color=INK,
        markerfacecolor=PAPER, elinewidth=1.1, capsize=2.2, zorder=4,
    )  # fmt: skip
    room = 0.06 * (limits[1] - limits[0] or 1.0)
    axes.set_xlim(limits[0] - room, limits[1] + room)
    axes.set_ylim(-0.6, len(parts) - 0.4)
    axes.axvline(0.0, color=INK, linewidth=0.8, zorder=1)
    ends = axes.get_xlim()
    ticks = [tick for tick in MaxNLocator(4).tick_values(*limits) if ends[0] <= tick <= ends[1]]
    scale(axes, "x", ticks, paper, grid=True)
    scale(axes, "y", range(len(parts)), paper, [NAMES[part] for part in reversed(parts)])


def _caption(view: View, data: pd.DataFrame) -> Caption:
    first = data.iloc[0]
    at = view.labels[str(first["checkpoint"])]
    short = {
        "query_position": "position × query: query-dependent position",
        "head": "whole head: uniform attention",
    }
    terms = "; ".join(text for part, text in short.items() if part in set(data["part"]))
    fewer = bool((data["random_heads"] < data["n_heads"]).any())
    return Caption(
        title="What the model loses without a part of its attention scores",
        shows="Each panel is a set of heads. A bar is the rise of the loss, in nats per token, when one part of the "
        "scores of these heads is removed; a diamond is the same for as many random heads of the same layers"
        + (", or for all others where there are fewer" if fewer else "")
        + ". A bar far to the right of its diamond is a part that the model needs in these heads"
        + (f" ({terms})." if terms else "."),
        made=f"loss without the part minus loss, of {at} over {first['documents']} documents "
        f"({first['tokens']:,} tokens; {first['loss']:.3f} nats per token as it is). Mean vectors come from other "
        "documents.",
        drawn="horizontal bars on one scale.",
        takeaway="Compare a bar with its diamond, not with zero: removing a part of many heads always costs something. "
        + ("A diamond of fewer heads costs less for that reason alone." if fewer else ""),
        care="Costs do not add up over heads or parts.",
        table=ABLATION,
        variables=("delta", "random"),
        window="own",
    )


PICTURE = Picture("16_ablation", ("ablation",), draw, why_not)
