"""The figure of `qkscope whatif`: nats per token against position, a line per candidate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from qkscope.figures.picture import save
from qkscope.figures.style import FAINT, FAMILY_COLOURS, INK, MUTED, lettering

if TYPE_CHECKING:
    import pandas as pd

# Fewer predicted tokens in a bin than this make noise, not a line.
FEWEST_TOKENS = 64


def draw_whatif(table: pd.DataFrame, model: str) -> Figure:
    """Nats per token by position over the longest window; bands are standard errors of the paired difference."""
    rows = drawn_rows(table)
    figure = Figure(figsize=(7.2, 4.3), layout="constrained")
    axes = figure.add_subplot()
    for i, (name, part) in enumerate(rows.groupby("candidate", sort=False)):
        first = name == "current"
        colour = INK if first else FAMILY_COLOURS[(i - 1) % len(FAMILY_COLOURS)]
        x = (part["position_from"] * (part["position_to"] + 1)) ** 0.5
        axes.plot(x, part["nats"], color=colour, lw=2.2 if first else 1.8, label=str(name), zorder=3)
        band = part["difference_se"]
        axes.fill_between(x, part["nats"] - band, part["nats"] + band, color=colour, alpha=0.15, lw=0)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(color=FAINT, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9, colors=MUTED)
    axes.set_xlabel("position of the predicted token", **lettering(10))
    axes.set_ylabel("nats per token", **lettering(10))
    axes.set_title(
        f"{model}: loss under other RoPE settings, no training", loc="left", **lettering(11, weight="bold")
    )
    axes.legend(frameon=False, fontsize=9)
    return figure


def drawn_rows(table: pd.DataFrame) -> pd.DataFrame:
    """The bins of the longest window that have enough tokens."""
    rows = table[(table["part"] == "position") & (table["window"] == table["window"].max())]
    return rows[rows["tokens"] >= min(FEWEST_TOKENS, rows["tokens"].max())]


def save_figure(folder: Path, table: pd.DataFrame, model: str, summary: str) -> None:
    """PNG, SVG, PDF, the numbers drawn and a README."""
    text = f"""\
# Loss by position under other RoPE settings

Nats per token of {model} against the position of the predicted token, a line per candidate: the same weights and \
documents, only the RoPE settings differ. Bands are standard errors of the difference from the current settings, \
paired by groups of documents. Bins of few tokens are left out.

```
{summary}
```

Nothing was trained: after training under a candidate its loss can be lower, and the order can change.
"""
    save(draw_whatif(table, model), drawn_rows(table), text, folder)
