"""Figure 14: how many heads have each role over training, beside position's share of scores, r_q and the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from qkscope.figures.gallery.fig08_score_variance import missing
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools import marks
from qkscope.figures.tools.axis import CheckpointAxis, Panel, draw_stack
from qkscope.figures.tools.sheet import Key
from qkscope.figures.tools.style import FAMILY_COLOURS, INK, PART_COLOURS, R_Q
from qkscope.figures.view import ALL, View
from qkscope.measures.jackknife import jackknife
from qkscope.results.aggregate import Population, means
from qkscope.results.dataset import NAME
from qkscope.results.roles import ROLES, standings
from qkscope.stats.evidence import Evidence, matched_evidence, own_evidence

Draw = Callable[[Axes, CheckpointAxis], None]
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LOOKS = {
    role.name: marks.Look(f"{role.name} heads", colour, marker)
    for role, colour, marker in zip(ROLES, FAMILY_COLOURS, MARKERS, strict=False)
}
MEANS = {
    "share_positional": marks.Look("position's share of score variance", PART_COLOURS["position"], "o"),
    "r_q": marks.Look("mean $r_q$", R_Q, "s", hollow=True, dashes=(0, (3, 1.5))),
}
LOSS = marks.Look("loss", INK, "o")


def draw(view: View, width: float | None = None) -> Drawing:
    """A panel of roles per population, then position's share and r_q of the first, then the loss."""
    evidence = matched_evidence(view.results) or own_evidence(view.results)
    counts = pd.concat([_counts(evidence, view, name) for name in view.populations or (ALL,)])
    taken = counts.groupby("role")["possible"].max()
    looks = {role: look for role, look in LOOKS.items() if taken[role] > 0}
    followed = [name for name in MEANS if evidence.known(name, view.main)]
    course = means(view.same_tokens, view.order, followed, population=view.main)
    loss = _loss(evidence)
    panels = [
        Panel("heads", 2.2, _draw_roles(counts[counts["population"] == name], looks), _heading(view, name))
        for name in view.populations or (ALL,)
    ]
    panels.append(Panel("share, r", 1.6, _draw_means(course, followed), _heading(view, view.main)))
    if loss is not None:
        panels.append(Panel("nats per token", 1.3, _draw_loss(loss), "Loss"))
    keys = [look.key for look in looks.values()]
    keys += [Key(Patch(facecolor="#555555", alpha=0.16, linewidth=0), "heads that errors leave open")]
    keys += [MEANS[name].key for name in followed]
    table = _table(view, counts, course, followed, loss)
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


def _heading(view: View, population: str) -> str:
    name = (
        f"{view.count(ALL):,} heads"
        if population == ALL
        else f"{population} heads ({view.count(population):,})"
    )
    return name + view.over_matched


def _counts(evidence: Evidence, view: View, population: Population) -> pd.DataFrame:
    """A row per checkpoint and role: heads clearly above its threshold, and those not clearly below it."""
    here = evidence.where(population).to_numpy()
    rows = []
    for role in ROLES:
        scores, standing = evidence.values(role.variable).to_numpy()[:, 0], standings(evidence.data, role)
        for i, stop in enumerate(evidence.stops):
            known = here[i] & np.isfinite(scores[i])
            parts = known & (standing[i] > 0), known & (standing[i] >= 0)
            numbers = [int(each.sum()) if known.any() else np.nan for each in parts]
            rows.append((stop.model, population, role.name, *numbers))
    return pd.DataFrame(rows, columns=["model", "population", "role", "clear", "possible"])


def _loss(evidence: Evidence) -> pd.DataFrame | None:
    """Loss by checkpoint with its error; None where no checkpoint has it."""
    if "loss" not in evidence.data:
        return None
    found = evidence.data["loss"].to_numpy()
    errors = [float(jackknife(row[1 : 1 + n])) for row, n in zip(found, evidence.groups_at, strict=True)]
    models = [stop.model for stop in evidence.stops]
    table = pd.DataFrame({"model": models, "loss": found[:, 0], "se_loss": errors})
    return table if np.isfinite(table["loss"]).any() else None


def _draw_roles(data: pd.DataFrame, looks: Mapping[str, marks.Look]) -> Draw:
    def draw(axes: Axes, axis: CheckpointAxis) -> None:
        for role, look in looks.items():
            rows = data[data["role"] == role].assign(none=np.nan)
            low, high = (marks.heights(axis.view, rows, column) for column in ("clear", "possible"))
            axes.fill_between(np.array(axis.at), low, high, color=look.colour, alpha=0.16, linewidth=0)
            marks.draw_line(axes, axis, rows, look, "clear", "none")
        marks.number_scale(
            axes, axis.paper, 0.0, max(4.0, float(np.nanmax(data["possible"].to_numpy(np.float64))))
        )

    return draw


def _draw_means(data: pd.DataFrame, names: list[str]) -> Draw:
    def draw(axes: Axes, axis: CheckpointAxis) -> None:
        for name in names:
            marks.draw_line(axes, axis, data, MEANS[name], f"mean_{name}", f"se_{name}")
        pairs = [(f"mean_{name}", f"se_{name}") for name in names]
        marks.correlation_scale(axes, axis.paper, *marks.read_limits(data, pairs))

    return draw


def _draw_loss(data: pd.DataFrame) -> Draw:
    def draw(axes: Axes, axis: CheckpointAxis) -> None:
        marks.draw_line(axes, axis, data, LOSS, "loss", "se_loss")
        marks.number_scale(axes, axis.paper, *marks.read_limits(data, [("loss", "se_loss")]))

    return draw


def _table(
    view: View, counts: pd.DataFrame, course: pd.DataFrame, names: list[str], loss: pd.DataFrame | None
) -> pd.DataFrame:
    """Exactly what is drawn: counts of heads, then means and loss, distinguished by `role`."""
    parts = [counts]
    for name in names:
        found = course[["model", f"mean_{name}", f"se_{name}"]]
        found = found.rename(columns={f"mean_{name}": "value", f"se_{name}": "se"})
        parts.append(found.assign(population=view.main, role=name))
    if loss is not None:
        found = loss.rename(columns={"loss": "value", "se_loss": "se"})
        parts.append(found.assign(population=ALL, role="loss"))
    table = pd.concat(parts, ignore_index=True)
    table.insert(1, "label", table["model"].map(view.labels))
    return table.rename(columns={"role": "quantity"})


def _why_not(view: View) -> str | None:
    return missing(view, "role_sink") or view.why_no_course


PICTURE = Picture("14_roles", ("roles",), draw, _why_not)
