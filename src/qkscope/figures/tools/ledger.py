"""The table under a picture: a line per series with its mark, a number per checkpoint. It is the legend too.

Numbers stand below the axis because beside their marks they would cover each other where lines meet. Where the
checkpoints are too close for numbers, the lines become a legend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from qkscope.figures.tools.axis import CheckpointAxis
from qkscope.figures.tools.sheet import SMALLEST, Key, Paper
from qkscope.figures.tools.style import INK, MUTED, extent, write

_MARK, _NAME = 0.32, 0.42  # inches: the mark's width, and where the name begins


@dataclass(frozen=True)
class Row:
    """One line: its name, its mark (a sample of the line drawn; without one, a swatch), a text per checkpoint.

    `legend` is its name where the lines become a legend: those of one name become one entry.
    """

    name: str
    texts: Mapping[str, str]
    colour: str
    sample: Line2D | None = None
    hatched: bool = False
    legend: str = ""

    @property
    def key(self) -> Key:
        """The line as an entry of a legend."""
        swatch = Patch(facecolor=self.colour, edgecolor=MUTED, hatch="////" if self.hatched else None)
        swatch.set_linewidth(0.6 if self.hatched else 0)
        return Key(self.sample or swatch, self.legend or self.name)


def room(rows: Sequence[Row], paper: Paper) -> float:
    """Inches the names need left of the picture."""
    widest = max(extent(row.name, paper.points(9))[0] for row in rows)
    return max(paper.left, paper.margin + _NAME + widest + 0.14)


def height(rows: Sequence[Row], paper: Paper) -> float:
    return (0.215 * len(rows) + 0.1) * paper.factor


def holds(rows: Sequence[Row], axis: CheckpointAxis) -> bool:
    """Whether the checkpoints stand far enough apart for their numbers."""
    return all(_fitting(row.texts, axis) for row in rows)


def draw_ledger(axes: Axes, rows: Sequence[Row], axis: CheckpointAxis) -> None:
    """Onto a panel of the axis's width, right under the names of the checkpoints."""
    axes.set_axis_off()
    axes.set_xlim(-0.5, len(axis.view.stops) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    inch = 1 / axis.pitch
    left = -0.5 - (axis.left - axis.paper.margin) * inch
    place = {"va": "center_baseline"}
    size = min(_fitting(row.texts, axis) for row in rows)
    for y, row in enumerate(rows):
        axes.add_artist(_mark(row, left, y, _MARK * inch))
        write(axes, left + _NAME * inch, y, row.name, axis.paper.points(9), INK, ha="left", **place)
        for model, text in row.texts.items():
            colour = "#a5a5a5" if text == "0" else INK
            write(axes, axis.view.place[model], y, text, size, colour, ha="center", **place)


def _fitting(texts: Mapping[str, str], axis: CheckpointAxis) -> float:
    """The letters' size at which no number touches the next; 0 if there is none."""
    widest = max(texts.values(), key=lambda text: extent(text, 9)[0], default="")
    sizes = (axis.paper.points(9), 8.0, 7.5, SMALLEST)
    return next((size for size in sizes if extent(widest, size)[0] + 0.05 <= axis.pitch), 0.0)


def _mark(row: Row, left: float, y: float, width: float) -> Artist:
    if row.sample is not None:
        line = row.sample
        line.set_data([left, left + width / 2, left + width], [y, y, y])
        line.set(clip_on=False, markevery=[1])
        return line
    swatch = Rectangle((left, y - 0.3), width, 0.6, facecolor=row.colour, edgecolor=MUTED)
    swatch.set(clip_on=False, hatch="////" if row.hatched else None, linewidth=0.6 if row.hatched else 0)
    return swatch
