"""The five classes of heads over the checkpoints, as stacked bars."""

from __future__ import annotations

from qkscope.aggregate import class_shares
from qkscope.figures.axis import CheckpointAxis
from qkscope.figures.bars import LEFT, Kinds, draw_counts, draw_shares, share_keys
from qkscope.figures.style import CLASS_COLOURS, sheet
from qkscope.figures.view import Drawing, View, look
from qkscope.results import Results
from qkscope.taxonomy import CLASSES

NAME = "03_taxonomy_evolution"
KINDS = Kinds("class", CLASSES, CLASS_COLOURS)


def draw(results: Results) -> Drawing:
    """Fractions of the measured heads from 0 to 1, counts in the table below."""
    view = look(results)
    data = view.both_windows(lambda heads, loo, order: class_shares(heads, loo, order, results.thresholds))
    axis = CheckpointAxis(view, left=LEFT)
    height, table = 3.9, KINDS.table_height(data)
    body = axis.above + height + axis.below + table
    page = sheet(title(view), view.subtitle, axis.sheet_width, body, share_keys(view, data, KINDS))
    axes = page.axes(axis.left, axis.above, axis.width, height)
    axis.draw(axes)
    axis.mark_missing(axes)
    draw_shares(axes, view, data, KINDS, axis.pitch)
    below = page.axes(axis.left, axis.above + height + axis.below, axis.width, table)
    draw_counts(below, view, data, KINDS, axis)
    return Drawing(page.figure, data)


def title(view: View) -> str:
    return "Head taxonomy" + (" by model" if view.of_models else " over training" if view.training else "")
