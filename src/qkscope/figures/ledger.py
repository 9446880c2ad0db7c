"""The table under a picture: a line per series with its mark, a number per checkpoint. It is the legend too.

Numbers stand below the axis because beside their marks they would cover each other where lines meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from qkscope.figures.axis import CheckpointAxis
from qkscope.figures.style import INK, LEFT, MARGIN, MUTED, extent, write

LINE = 0.215  # inches, one line of the table
_MARK, _NAME = 0.32, 0.42  # inches: the mark's width, and where the name begins
_SIZE = 9.0


@dataclass(frozen=True)
class Row:
    """One line: its name, its mark (a sample of the line drawn; without one, a swatch), a text per checkpoint."""

    name: str
    texts: Mapping[str, str]
    colour: str
    sample: Line2D | None = None
    hatched: bool = False


def room(rows: Sequence[Row]) -> float:
    """Inches the names need left of the picture."""
    return max(LEFT, MARGIN + _NAME + max(extent(row.name, _SIZE)[0] for row in rows) + 0.14)


def height(rows: Sequence[Row]) -> float:
    return LINE * len(rows) + 0.1


def draw_ledger(axes: Axes, rows: Sequence[Row], axis: CheckpointAxis) -> None:
    """Onto a panel of the axis's width, right under the names of the checkpoints."""
    axes.set_axis_off()
    axes.set_xlim(-0.5, len(axis.view.stops) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    inch = 1 / axis.pitch
    left = -0.5 - (axis.left - MARGIN) * inch
    for y, row in enumerate(rows):
        axes.add_artist(_mark(row, left, y, _MARK * inch))
        write(axes, left + _NAME * inch, y, row.name, _SIZE, INK, ha="left", va="center_baseline")
        size = _fitting(row.texts, axis.pitch)
        for model, text in row.texts.items():
            if size:
                colour = "#a5a5a5" if text == "0" else INK
                write(axes, axis.view.place[model], y, text, size, colour, ha="center", va="center_baseline")


def _fitting(texts: Mapping[str, str], pitch: float) -> float:
    """The letters' size at which no number touches the next; 0 if there is none."""
    longest = max(texts.values(), key=len, default="")
    return next((size for size in (_SIZE, 8.0, 7.0) if extent(longest, size)[0] + 0.05 <= pitch), 0.0)


def _mark(row: Row, left: float, y: float, width: float) -> Artist:
    if row.sample is not None:
        line = row.sample
        line.set_data([left, left + width / 2, left + width], [y, y, y])
        line.set(clip_on=False, markevery=[1])
        return line
    swatch = Rectangle((left, y - 0.3), width, 0.6, facecolor=row.colour, edgecolor=MUTED)
    swatch.set(clip_on=False, hatch="////" if row.hatched else None, linewidth=0.6 if row.hatched else 0)
    return swatch
