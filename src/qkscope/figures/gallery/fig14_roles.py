"""Figure 14: how many heads have each role over training, beside position's share of scores, r_q and the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from qkscope.figures import marks
from qkscope.figures.axis import CheckpointAxis, Panel, draw_stack
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.style import INK, PART_COLOURS, R_Q, ROLE_COLOURS
from qkscope.figures.view import ALL, View
from qkscope.measures.samples import jackknife
from qkscope.results.aggregate import Population, means
from qkscope.results.dataset import NAME
from qkscope.results.roles import ROLES, standings
from qkscope.stats.evidence import Evidence, matched_evidence, own_evidence

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LOOKS = {
    role.name: marks.Look(f"{role.name} heads", colour, marker)
    for role, colour, marker in zip(ROLES, ROLE_COLOURS, MARKERS, strict=True)
}
MEANS = {
    "share_positional": marks.Look("position's share of score variance", PART_COLOURS["share_position"], "o"),
    "r_q": marks.Look("mean $r_q$", R_Q, "s", hollow=True, dashes=marks.DASHED),
}
LOSS = marks.Look("loss", INK, "o")


def draw(view: View, width: float | None = None) -> Drawing:
    """A panel of roles per population, then position's share and r_q of the first, then the loss."""
    evidence = matched_evidence(view.results) or own_evidence(view.results)
    counts = pd.concat([_counts(evidence, view, name) for name in view.populations or (ALL,)])
    taken = counts.groupby("quantity")["possible"].max()
    looks = {role: look for role, look in LOOKS.items() if taken[role] > 0}
    followed = {name: look for name, look in MEANS.items() if evidence.known(name, view.main)}
    trends, loss = _means(view, list(followed)), _loss(evidence)
    panels = [
        Panel("heads", 2.2, partial(_draw_roles, rows, looks), view.population_text(str(name)))
        for name, rows in counts.groupby("population", sort=False)
    ]
    if followed:
        draw_means = partial(_draw_lines, trends, followed, marks.correlation_scale)
        panels.append(Panel("share, r", 1.6, draw_means, view.population_text(view.main)))
    if len(loss):
        draw_loss = partial(_draw_lines, loss, {"loss": LOSS}, marks.number_scale)
        panels.append(Panel("nats per token", 1.3, draw_loss, "Loss"))
    keys = [look.key for look in looks.values()]
    keys += [marks.band_key("heads that errors leave open"), *(look.key for look in followed.values())]
    table = pd.concat([part for part in (counts, trends, loss) if len(part)], ignore_index=True)
    table.insert(1, "label", table["model"].map(view.labels))
    caption = Caption(
        title=f"Roles of heads{view.over_training}",
        shows="A line per role counts the heads that have it: their score is more than two standard errors above the "
        "role's threshold. The band adds heads that errors leave open. Roles that no head has are left out. "
        "Underneath, over the same checkpoints, are position's share of score variance, mean r_q and, where it was "
        "measured, the loss.",
        made="roles follow from attention weights of sampled queries; a head can have several. Errors leave a head "
        "open if its score is within two standard errors of the threshold.",
        drawn="line plots over checkpoints, one panel of roles per population.",
        table=NAME,
        variables=tuple(role.variable for role in ROLES),
        window="matched",
    )
    figure = draw_stack(view, caption.title, panels, keys, width, spaced=True, matched=True)
    return Drawing(figure, table, caption)


def _counts(evidence: Evidence, view: View, population: Population) -> pd.DataFrame:
    """A row per checkpoint and role: heads clearly above its threshold, and those not clearly below it."""
    here = evidence.where(population).to_numpy()
    rows = []
    for role in ROLES:
        scores, standing = evidence.values(role.variable).to_numpy()[:, 0], standings(evidence.data, role)
        for i, checkpoint in enumerate(evidence.checkpoints):
            known = here[i] & np.isfinite(scores[i])
            parts = known & (standing[i] > 0), known & (standing[i] >= 0)
            numbers = [int(each.sum()) if known.any() else np.nan for each in parts]
            rows.append((checkpoint.model, population, role.name, *numbers))
    return pd.DataFrame(rows, columns=["model", "population", "quantity", "clear", "possible"])


def _means(view: View, names: list[str]) -> pd.DataFrame:
    """A row per mean and checkpoint, with its error, of the population that figures lead with."""
    found = means(view.same_tokens, view.order, names, population=view.main)
    place = {"population": view.main}
    rows = [
        found[["model"]].assign(**place, quantity=name, value=found[f"mean_{name}"], se=found[f"se_{name}"])
        for name in names
    ]
    return pd.concat(rows) if rows else pd.DataFrame()


def _loss(evidence: Evidence) -> pd.DataFrame:
    """Loss by checkpoint with its error; empty where no checkpoint has it."""
    if "loss" not in evidence.data or not np.isfinite(evidence.data["loss"].to_numpy()[:, 0]).any():
        return pd.DataFrame()
    found = evidence.data["loss"].to_numpy()
    errors = [float(jackknife(row[1 : 1 + n])) for row, n in zip(found, evidence.groups_at, strict=True)]
    columns = {
        "model": [checkpoint.model for checkpoint in evidence.checkpoints],
        "population": ALL,
        "quantity": "loss",
    }
    return pd.DataFrame(columns | {"value": found[:, 0], "se": errors})


def _draw_roles(
    data: pd.DataFrame, looks: Mapping[str, marks.Look], axes: Axes, axis: CheckpointAxis
) -> None:
    for role, look in looks.items():
        rows = data[data["quantity"] == role].assign(none=np.nan)
        low, high = (marks.heights(axis.view, rows, column) for column in ("clear", "possible"))
        axes.fill_between(np.array(axis.at), low, high, color=look.colour, alpha=0.16, linewidth=0)
        marks.draw_line(axes, axis, rows, look, "clear", "none")
    marks.number_scale(
        axes, axis.paper, 0.0, max(4.0, float(np.nanmax(data["possible"].to_numpy(np.float64))))
    )


def _draw_lines(
    data: pd.DataFrame,
    looks: Mapping[str, marks.Look],
    scale: Callable[..., None],
    axes: Axes,
    axis: CheckpointAxis,
) -> None:
    for name, look in looks.items():
        marks.draw_line(axes, axis, data[data["quantity"] == name], look, "value", "se")
    scale(axes, axis.paper, *marks.read_limits(data, [("value", "se")]))


PICTURE = Picture("14_roles", ("roles",), draw, lambda view: view.lacks("role_sink") or view.why_not_training)
