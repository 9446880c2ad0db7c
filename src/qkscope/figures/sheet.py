"""The sheet that panels, heading and legend are laid out on, in inches from its top left corner.

Without a width, a sheet is as wide as its content needs and has a heading. With a width it fits a column of a paper:
no heading (the paper's caption replaces it), smaller letters but never below 7 points, thin margins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import ArrayLike

from qkscope.errors import TableError
from qkscope.figures import style
from qkscope.words import MINUS

SMALLEST = 7.0  # points
NARROWEST = 3.0  # inches
_HANDLE = 4.9  # a legend's mark with the gaps around it, in font sizes
_HEADING = 0.36  # inches over a panel for its heading


@dataclass(frozen=True)
class Paper:
    """The width of a sheet in inches (None: as wide as its content needs), and the sizes that follow from it."""

    width: float | None = None

    def __post_init__(self) -> None:
        if self.width is not None and not self.width >= NARROWEST:
            raise TableError(
                f"a width of {self.width:g} inches is too narrow for letters of {SMALLEST:g} points; "
                f"give at least {NARROWEST:g}, or no width for the picture's own"
            )

    @property
    def narrow(self) -> bool:
        """A single column of a paper."""
        return self.width is not None and self.width < 5

    @property
    def factor(self) -> float:
        return 1.0 if self.width is None else 0.76 if self.narrow else 0.85

    def points(self, size: float) -> float:
        """The size of letters that have `size` points on a sheet without a width."""
        return max(SMALLEST, size * self.factor)

    def tall(self, height: float) -> float:
        """The height in inches of a panel that is `height` high on a sheet without a width."""
        return height if self.width is None else max(1.25, height * (0.52 if self.narrow else 0.68))

    @property
    def margin(self) -> float:
        return 0.22 if self.width is None else 0.06

    @property
    def left(self) -> float:
        """Inches for the numbers and the name of a vertical axis."""
        return 0.86 if self.width is None else 0.68 if self.narrow else 0.74

    @property
    def right(self) -> float:
        return 0.3 if self.width is None else 0.1

    @property
    def bar(self) -> float:
        """Inches below the panels for a colour bar."""
        return 0.62 * self.factor


@dataclass(frozen=True)
class Key:
    """One entry of a legend; `math` says that `$...$` in its text is mathematics, never so for names of checkpoints."""

    mark: Artist
    text: str
    math: bool = False


def swatch(text: str, colour: str, **look: Any) -> Key:
    """The entry of an area."""
    return Key(Patch(facecolor=colour, **look), text)


def stroke(text: str, colour: Any, **look: Any) -> Key:
    """The entry of a line."""
    return Key(Line2D([], [], color=colour, **({"linewidth": 2.0} | look)), text)


def dot(text: str, colour: Any, **look: Any) -> Key:
    """The entry of marks without a line."""
    return stroke(text, colour, **({"linestyle": "none", "marker": "o", "markersize": 6} | look))


@dataclass(frozen=True)
class Sheet:
    """A figure measured in inches from its top left corner; the panels lie in `body` inches below `top`."""

    figure: Figure
    paper: Paper
    width: float
    height: float
    top: float
    body: float

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """A bare panel whose top edge is `top` inches below the head of the sheet."""
        y = 1 - (self.top + top + height) / self.height
        axes = self.figure.add_axes((left / self.width, y, width / self.width, height / self.height))
        _dress(axes, self.paper)
        return axes

    def write_heading(self, text: str, left: float, bottom: float) -> None:
        """Over a panel that begins at `left`, `bottom` inches below the head of the sheet; never past its edge."""
        size = self.paper.points(10)
        text = style.shorten_to(text, self.width - 2 * self.paper.margin - 0.04, size, "bold")
        left = min(left, self.width - self.paper.margin - style.extent(text, size, "bold")[0] - 0.02)
        x, y = left / self.width, 1 - (self.top + bottom) / self.height
        self.figure.text(x, y, text, ha="left", va="bottom", **style.lettering(size, style.MUTED, "bold"))

    def colour_bar(self, name: str, colour_scale: style.ColourScale, percent: bool = False) -> None:
        """At the foot of the body, which is `Paper.bar` higher for it."""
        colours, norm = colour_scale
        ticks = [tick for tick in (-1.0, -0.5, 0.0, 0.5, 1.0) if tick >= (norm.vmin or 0.0)]
        texts = [f"{tick:.0%}" if percent else plain_number(tick) for tick in ticks]
        length, size = min(3.6, self.width / 2), self.paper.points(8.5)
        axes = self.axes((self.width - length) / 2, self.body - self.paper.bar + 0.04, length, 0.12)
        bar = self.figure.colorbar(ScalarMappable(norm, colours), cax=axes, orientation="horizontal")
        bar.outline.set_visible(False)
        bar.minorticks_off()
        axes.set_xticks(ticks, texts, **style.lettering(size))
        axes.tick_params(length=2)
        axes.set_xlabel(name, **style.lettering(size, math=True), labelpad=2)


def sheet(
    paper: Paper, title: str, subtitle: str, width: float, body: float, keys: Sequence[Key] = ()
) -> Sheet:
    """An empty sheet with its head and legend; `width` and `body` (height) are those of the panels, in inches."""
    width = paper.width or width
    margin, inner = paper.margin, width - 2 * paper.margin
    figure = Figure(figsize=(width, body), dpi=200, facecolor=style.PAPER, edgecolor=style.PAPER)
    figure.set_layout_engine("none")
    FigureCanvasAgg(figure)
    heading = style.wrap(style.drawable(title), inner, 14, "bold") if paper.width is None else []
    below = style.wrap(style.drawable(subtitle), inner, 9.5) if paper.width is None else []
    top = margin + (0.25 * len(heading) + 0.19 * len(below) + 0.12 if heading else 0.0)
    legend = _legend(figure, paper, keys, inner) if keys else None
    foot = 0.1 + legend.get_window_extent().height / figure.dpi if legend else 0.0
    height = top + body + foot + margin
    figure.set_size_inches(width, height)
    if legend:
        legend.set_bbox_to_anchor((margin / width, margin / height), transform=figure.transFigure)
    if heading:
        place: dict[str, Any] = {"x": margin / width, "ha": "left", "va": "top", "linespacing": 1.15}
        y = 1 - (margin + 0.25 * len(heading) + 0.03) / height
        bold, quiet = style.lettering(14, style.INK, "bold", math=True), style.lettering(9.5, style.MUTED)
        figure.text(y=1 - margin / height, s="\n".join(heading), **bold, **place)
        figure.text(y=y, s="\n".join(below), **quiet, **place)
    return Sheet(figure, paper, width, height, top, body)


def _legend(figure: Figure, paper: Paper, keys: Sequence[Key], width: float) -> Legend:
    """A legend in as many columns as fit `width` inches; where not all fit in a row, long entries are wrapped."""
    size = paper.points(9.5)
    handle = _HANDLE * size / 72
    texts = [style.drawable(key.text) for key in keys]
    if sum(style.extent(text, size)[0] + handle for text in texts) > width:
        texts = ["\n".join(style.wrap(text, width / 2 - handle, size)) for text in texts]
    for columns in range(len(keys), 0, -1):
        legend = figure.legend(
            [key.mark for key in keys], texts, loc="lower left", ncols=columns, frameon=False, borderaxespad=0,
            borderpad=0, handlelength=2.6, handletextpad=0.5, columnspacing=1.6, labelspacing=0.55,
            prop={"family": style.FONT, "size": size}, labelcolor=style.INK,
        )  # fmt: skip
        for text, key in zip(legend.get_texts(), keys, strict=True):
            text.set(parse_math=key.math, math_fontfamily="dejavusans", usetex=False)
        if columns == 1 or legend.get_window_extent().width <= width * figure.dpi:
            break
        legend.remove()
    return legend


def _dress(axes: Axes, paper: Paper) -> None:
    """A panel without ornament: left and bottom lines, quiet ticks, no grid."""
    axes.set_facecolor(style.PAPER)
    axes.grid(False)
    axes.set_axisbelow(True)
    axes.minorticks_off()
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(style.MUTED)
        spine.set_linewidth(0.9 * paper.factor)
    axes.tick_params(
        which="both", direction="out", length=3.5 * paper.factor, width=0.9 * paper.factor, color=style.MUTED,
        labelcolor=style.INK, labelsize=paper.points(9.5), labelfontfamily=style.FONT, pad=3.5 * paper.factor,
        top=False, right=False, left=True, bottom=True,
    )  # fmt: skip


def inches(axes: Axes) -> tuple[float, float]:
    """Width and height of a panel."""
    box = axes.get_window_extent()
    return float(box.width / axes.figure.dpi), float(box.height / axes.figure.dpi)


def scale(
    axes: Axes,
    axis: Literal["x", "y"],
    values: Sequence[float],
    paper: Paper,
    texts: Sequence[str] | None = None,
    grid: bool = False,
) -> None:
    """Ticks at `values` with these numbers, or with `texts` of one or more lines, written as they are."""
    setter = axes.set_xticks if axis == "x" else axes.set_yticks
    texts = list(map(plain_number, values)) if texts is None else texts
    drawn = ["\n".join(map(style.drawable, text.split("\n"))) for text in texts]
    setter(values, drawn, **style.lettering(paper.points(9.5)), linespacing=1.1)
    axes.minorticks_off()
    if grid:
        axes.grid(True, axis=axis, color=style.FAINT, linewidth=0.7, linestyle="-")


def draw_cells(
    axes: Axes, columns: ArrayLike, rows: ArrayLike, grid: ArrayLike, colour_scale: style.ColourScale
) -> None:
    """A heat map between the edges `columns` and `rows`; nothing where NaN."""
    colours, norm = colour_scale
    # Edges in the cells' own colour: viewers of the SVG would show hairlines between them otherwise.
    look: dict[str, Any] = {"cmap": colours, "norm": norm, "edgecolors": "face", "linewidth": 0.2}
    axes.pcolormesh(columns, rows, np.ma.masked_invalid(grid), **look)


def plain_number(value: float) -> str:
    """`0.5`, `−1`."""
    return f"{value:g}".replace("-", MINUS)


def name_axis(axes: Axes, paper: Paper, x: str | None = None, y: str | None = None) -> None:
    """Names of the axes, which may hold mathematics; the vertical one no longer than its panel."""
    size = paper.points(10.5)
    if x is not None:
        axes.set_xlabel(x, **style.lettering(size, math=True), labelpad=4 * paper.factor, linespacing=1.1)
    if y is not None:
        high = inches(axes)[1]
        points = next(
            (p for p in (size, 9.0, 8.0) if p <= size and style.fits(y.split("\n"), high, p)), SMALLEST
        )
        axes.set_ylabel(y, **style.lettering(points, math=True), labelpad=5 * paper.factor, linespacing=1.1)


def draw_panels(
    paper: Paper,
    title: str,
    subtitle: str,
    keys: Sequence[Key],
    drawn: Sequence[tuple[str, Callable[[Axes], None]]],
    x: str | Sequence[str],
    y: str | Sequence[str],
    *,
    columns: int | None = None,
    wide: float = 3.2,
    shape: float = 0.85,
    between: float = 0.72,
    shared: str = "",
    foot: float = 0.0,
) -> Sheet:
    """A sheet of equal panels in rows of `columns`, given as (heading, what draws into it).

    Axes are called `x` and `y` (one name, or one a panel). `wide` is the width of a panel on a sheet without a width,
    `shape` its height over its width; `between` inches lie between panels of a row. Only outer panels have the numbers
    and names of `shared` axes ("x", "y" or both); the name of the vertical one is always there alone. `foot` inches
    stay free below the panels. Default: three columns, two for four panels, one in a single column of a paper.
    """
    columns = min(len(drawn), columns or (1 if paper.narrow else 2 if len(drawn) == 4 else 3))
    between *= paper.factor
    if paper.width is not None:
        wide = (paper.width - paper.left - paper.right - (columns - 1) * between) / columns
    head = _HEADING * paper.factor * (1.0 if any(heading for heading, _ in drawn) else 0.4)
    high, below = wide * shape, 0.59 * paper.factor
    size, room = paper.points(10.5), wide + 0.7 * between
    names = [
        "\n".join(style.wrap(name, room, size)) for name in ([x] * len(drawn) if isinstance(x, str) else x)
    ]
    below += max(name.count("\n") for name in names) * size / 72 * style.LINE
    row = high + head + (0.1 * paper.factor if "x" in shared else below)
    rows = -(-len(drawn) // columns)
    width = paper.left + columns * wide + (columns - 1) * between + paper.right
    body = (rows - 1) * row + head + high + below + foot
    page = sheet(paper, title, subtitle, width, body, keys)
    for i, (heading, draw) in enumerate(drawn):
        left, top = paper.left + i % columns * (wide + between), i // columns * row + head
        heading = style.shorten_to(style.drawable(heading), wide, paper.points(10), "bold")
        page.write_heading(heading, left, top - 0.06)
        axes = page.axes(left, top, wide, high)
        draw(axes)
        first, bottom = i % columns == 0, i + columns >= len(drawn) or "x" not in shared
        axes.tick_params(labelleft=first or "y" not in shared, labelbottom=bottom)
        up = y if isinstance(y, str) else y[i]
        name_axis(axes, paper, x=names[i] if bottom else None, y=up if first else None)
    return page
