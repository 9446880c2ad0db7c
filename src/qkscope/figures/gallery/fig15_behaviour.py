"""Figure 15: geometry against behaviour, a dot per head at the last checkpoint, with rank correlations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.sheet import Paper, dot, draw_panels, scale
from qkscope.figures.style import INK, PAPER, ROPE_COLOURS, write
from qkscope.figures.view import ALL, View
from qkscope.results.aggregate import Population
from qkscope.results.dataset import NAME
from qkscope.stats.behaviour import BEHAVIOUR, GEOMETRY, RankCorrelation, rank_correlations
from qkscope.stats.evidence import Evidence, matched_evidence, own_evidence
from qkscope.words import number

NAMES = {
    "share_position": "share of score variance due to position alone",
    "abs_r_q_balanced": "$|r_q|$, balanced",
    "abs_r_q": "$|r_q|$, published",
    "attn_by_position": "attention that\nposition predicts",
    "role_local": "attention within\n16 tokens",
    "sink_score": "attention to the\nfirst token",
}
SHORT = {
    "share_position": "position share",
    "abs_r_q_balanced": "$|r_q|$, balanced",
    "abs_r_q": "$|r_q|$, published",
}
CLEAR = 0.3  # a correlation with a larger error is not written
MARKERS = {"RoPE": "o", "NoPE": "s", ALL: "o"}


def draw(view: View, width: float | None = None) -> Drawing:
    """A row of panels per behaviour, a column per measure of geometry."""
    evidence = matched_evidence(view.results) or own_evidence(view.results)
    last, names = len(evidence) - 1, view.populations or (ALL,)
    pairs = [(y, x) for y in BEHAVIOUR for x in GEOMETRY if evidence.known(x) and evidence.known(y)]
    heads = _heads(evidence, last, view, pairs)
    paper = Paper(width)
    by_pair = {
        (name, e.behaviour, e.geometry): e for name in names for e in rank_correlations(evidence, name, last)
    }
    drawn = []
    for y, x in pairs:
        here = {name: by_pair.get((name, y, x)) for name in names}
        drawn.append(("", partial(_dots, heads, x, y, here, paper)))
    keys = [
        dot("heads" if name == ALL else f"{name} heads", ROPE_COLOURS.get(name, INK), marker=MARKERS[name])
        for name in names
    ]
    caption = _caption(view, pairs)
    across = [(SHORT if paper.narrow else NAMES)[x] for _, x in pairs]
    page = draw_panels(
        paper, caption.title, view.subtitle(matched=True), keys, drawn, across, [NAMES[y] for y, _ in pairs],
        columns=len({x for _, x in pairs}), wide=2.6, shape=1.4 if paper.narrow else 0.8, between=0.3, shared="xy",
    )  # fmt: skip
    rows = [(name, e.geometry, e.behaviour, e.heads, e.value, e.se) for (name, _, _), e in by_pair.items()]
    columns = ["population", "geometry", "behaviour", "heads", "rank_correlation", "se"]
    table = pd.concat([pd.DataFrame(rows, columns=columns), heads], ignore_index=True)
    return Drawing(page.figure, table, caption)


def _caption(view: View, pairs: list[tuple[str, str]]) -> Caption:
    at = f" at {view.labels[view.order[-1]]}" if len(view.order) > 1 else ""
    return Caption(
        title=f"Which measures predict what heads do{at}",
        shows="A dot per head. Columns are measures of queries and keys that are taken to say how much a head uses "
        "position; rows are what its attention weights do. The number in each panel is Spearman's rank correlation "
        "over the heads of a population with its standard error over documents, left out where that is above 0.3.",
        made="attention weights are those of sampled queries. Attention that position predicts is the share of their "
        "departure from uniform attention that the scores of the head's mean query and key reproduce; this and "
        "attention within 16 tokens leave out the first four tokens. The sink score is the mean weight of the first "
        "token.",
        drawn="scatter plots, one panel per pair of measures.",
        table=NAME,
        variables=tuple(dict.fromkeys([x for _, x in pairs] + [y for y, _ in pairs])),
        window="matched",
    )


def _heads(evidence: Evidence, i: int, view: View, pairs: list[tuple[str, str]]) -> pd.DataFrame:
    """A row per head: its population and every measure drawn."""
    population = np.full(evidence.data.sizes["head"], "", dtype=object)
    for name in view.populations or (ALL,):
        population[evidence.mask(i, name)] = name
    columns = {"layer": evidence.data["layer"].to_numpy(), "head": evidence.data["number"].to_numpy()}
    columns |= {name: evidence.value(name, i) for pair in pairs for name in pair}
    table = pd.DataFrame(columns).assign(population=population, model=evidence.checkpoints[i].model)
    return table[table["population"] != ""]


def _dots(
    heads: pd.DataFrame,
    x: str,
    y: str,
    found: Mapping[Population, RankCorrelation | None],
    paper: Paper,
    axes: Axes,
) -> None:
    for place, (name, each) in enumerate(found.items()):
        rows, colour = heads[heads["population"] == name], ROPE_COLOURS.get(name, INK)
        axes.scatter(
            rows[x], rows[y], s=14 * paper.factor, marker=MARKERS[name], color=colour, edgecolor=PAPER,
            linewidth=0.3, alpha=0.85,
        )  # fmt: skip
        if each is not None and each.se < CLEAR:
            text = f"{'' if paper.narrow else 'ρ = '}{number(each.value, each.se)}"
            write(axes, 0.98, 0.97 - 0.11 * place, text, paper.points(8.5), colour,
                  transform=axes.transAxes, ha="right", va="top")  # fmt: skip
    for axis in ("x", "y"):
        scale(axes, axis, (0.0, 0.5, 1.0), paper, grid=True)
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(-0.03, 1.38)


PICTURE = Picture("15_behaviour", ("behaviour",), draw, lambda view: view.lacks("role_local"))
