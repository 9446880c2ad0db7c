"""Panels one under another over one axis of checkpoints, with their numbers in a table below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkscope.figures.tools import ledger
from qkscope.figures.tools.axis import CheckpointAxis
from qkscope.figures.tools.sheet import Key, Paper, name_axis, sheet
from qkscope.figures.tools.style import LINE
from qkscope.figures.view import View


@dataclass(frozen=True)
class Panel:
    """One panel: the name of its vertical axis, its height on a sheet without a width, and what draws its marks."""

    name: str
    height: float
    draw: Callable[[Axes, CheckpointAxis], None]
    heading: str = ""


def draw_stack(
    view: View,
    title: str,
    panels: Sequence[Panel],
    rows: Sequence[ledger.Row] = (),
    keys: Sequence[Key] = (),
    width: float | None = None,
) -> Figure:
    """The whole figure: phases above the first panel, checkpoints and the table of `rows` below the last."""
    paper = Paper(width)
    axis = CheckpointAxis(view, paper, ledger.room(rows, paper) if rows else None)
    if rows and not ledger.holds(rows, axis):
        axis = CheckpointAxis(view, paper)
        named = {key.text: key for key in (row.key for row in rows)}
        keys, rows = [*named.values(), *keys], ()
    gaps = [_gap(panel, paper) if i else 0.0 for i, panel in enumerate(panels)]
    heights = [paper.tall(panel.height) for panel in panels]
    table = ledger.height(rows, paper) if rows else 0.0
    middle = axis.above + sum(gaps) + sum(heights) + axis.below
    page = sheet(paper, title, view.subtitle, axis.sheet_width, middle + table, keys)
    top = axis.above
    for i, (panel, gap, height) in enumerate(zip(panels, gaps, heights, strict=True)):
        axes = page.axes(axis.left, top + gap, axis.width, height)
        axis.draw(axes, names=i == len(panels) - 1, phases=i == 0)
        axis.mark_missing(axes)
        panel.draw(axes, axis)
        name_axis(axes, paper, y=panel.name)
        if panel.heading:
            page.write_heading(panel.heading, axis.left, top + gap - 0.06)
        top += gap + height
    if rows:
        ledger.draw_ledger(page.axes(axis.left, middle, axis.width, table), rows, axis)
    return page.figure


def _gap(panel: Panel, paper: Paper) -> float:
    """Inches above a panel that is not the first."""
    return 0.25 * paper.factor + (paper.points(10) * LINE / 72 if panel.heading else 0.0)
