"""The sheet that panels, heading and legend are laid out on, in inches from its top left corner.

Without a width, a sheet is as wide as its content needs and has a heading. With a width it fits a column of a paper:
no heading (the paper's caption replaces it), smaller letters but never below 7 points, thin margins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from qkscope.errors import TableError
from qkscope.figures.tools import style

SMALLEST = 7.0  # points
NARROWEST = 3.0  # inches
_HANDLE = 4.9  # a legend's mark with the gaps around it, in font sizes


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


@dataclass(frozen=True)
class Key:
    """One entry of a legend; `math` says that `$...$` in its text is mathematics, never so for names of checkpoints."""

    mark: Artist
    text: str
    math: bool = False


@dataclass(frozen=True)
class Sheet:
    """A figure measured in inches from its top left corner; `top` is where the body begins."""

    figure: Figure
    paper: Paper
    width: float
    height: float
    top: float

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


def sheet(
    paper: Paper, title: str, subtitle: str, width: float, body: float, keys: Sequence[Key] = ()
) -> Sheet:
    """An empty sheet with its head and legend; `width` and `body` (height) are those of the panels, in inches."""
    width = paper.width or width
    margin, inner = paper.margin, width - 2 * paper.margin
    heading = style.wrap(style.drawable(title), inner, 14, "bold") if paper.width is None else []
    below = style.wrap(style.drawable(subtitle), inner, 9.5) if paper.width is None else []
    top = margin + (0.25 * len(heading) + 0.19 * len(below) + 0.12 if heading else 0.0)
    legend = _Legend(paper, keys, inner)
    height = top + body + legend.height + margin
    figure = Figure(figsize=(width, height), dpi=200, facecolor=style.PAPER, edgecolor=style.PAPER)
    figure.set_layout_engine("none")
    FigureCanvasAgg(figure)
    if heading:
        place: dict[str, Any] = {"x": margin / width, "ha": "left", "va": "top", "linespacing": 1.15}
        y = 1 - (margin + 0.25 * len(heading) + 0.03) / height
        bold, quiet = style.lettering(14, style.INK, "bold", math=True), style.lettering(9.5, style.MUTED)
        figure.text(y=1 - margin / height, s="\n".join(heading), **bold, **place)
        figure.text(y=y, s="\n".join(below), **quiet, **place)
    legend.draw(figure, margin, margin)
    return Sheet(figure, paper, width, height, top)


_Entries = list[tuple[Key, list[str]]]


class _Legend:
    """A legend at the foot of the sheet: short entries in columns, and below them those that need half the width."""

    def __init__(self, paper: Paper, keys: Sequence[Key], width: float) -> None:
        self.size = paper.points(9.5)
        handle = _HANDLE * self.size / 72
        room = width - handle
        entries = [(key, style.wrap(style.drawable(key.text), room, self.size)) for key in keys]
        widths = [max(style.extent(line, self.size)[0] for line in lines) + handle for _, lines in entries]
        short = [w <= width / 2 for w in widths] if sum(widths) > width else [True] * len(keys)
        self.columns = [entry for entry, few in zip(entries, short, strict=True) if few]
        self.rows = [entry for entry, few in zip(entries, short, strict=True) if not few]
        narrow = [w for w, few in zip(widths, short, strict=True) if few]
        self.count = next((n for n in range(len(narrow), 1, -1) if _legend_width(narrow, n) <= width), 1)
        self.below = sum(style.LINE * len(lines) + 0.36 for _, lines in self.rows) * self.size / 72
        lines = -(-len(self.columns) // self.count)
        self.height = self.below + lines * (style.LINE + 0.36) * self.size / 72 + 0.1 if keys else 0.0

    def draw(self, figure: Figure, left: float, bottom: float) -> None:
        """At `left` and `bottom` inches."""
        self._part(figure, self.rows, 1, left, bottom)
        self._part(figure, self.columns, self.count, left, bottom + self.below)

    def _part(self, figure: Figure, entries: _Entries, columns: int, left: float, bottom: float) -> None:
        if not entries:
            return
        width, height = figure.get_size_inches()
        legend = figure.legend(
            [key.mark for key, _ in entries], ["\n".join(lines) for _, lines in entries], loc="lower left",
            bbox_to_anchor=(left / width, bottom / height), ncols=columns, frameon=False, borderaxespad=0, borderpad=0,
            handlelength=2.6, handletextpad=0.5, columnspacing=1.6, labelspacing=0.55,
            prop={"family": style.FONT, "size": self.size}, labelcolor=style.INK,
        )  # fmt: skip
        for text, (key, _) in zip(legend.get_texts(), entries, strict=True):
            text.set(parse_math=key.math, math_fontfamily="dejavusans", usetex=False)


def _legend_width(widths: Sequence[float], columns: int) -> float:
    """Entries fill column after column, the first columns holding one more where they do not divide evenly."""
    rows, more = divmod(len(widths), columns)
    total, start = 0.0, 0
    for column in range(columns):
        stop = start + rows + (column < more)
        total += max(widths[start:stop], default=0.0)
        start = stop
    return total


def _dress(axes: Axes, paper: Paper) -> None:
    """A panel without ornament: left and bottom lines, quiet ticks, no grid."""
    axes.set_facecolor(style.PAPER)
    axes.grid(False)
    axes.set_axisbelow(True)
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
    axes: Axes, axis: Literal["x", "y"], values: Sequence[float], texts: Sequence[str], paper: Paper, grid: bool = False
) -> None:  # fmt: skip
    """Ticks at `values` with `texts`, written as they are."""
    setter = axes.set_xticks if axis == "x" else axes.set_yticks
    setter(values, [style.drawable(text) for text in texts], **style.lettering(paper.points(9.5)))
    axes.minorticks_off()
    if grid:
        axes.grid(True, axis=axis, color=style.FAINT, linewidth=0.7, linestyle="-")


def name_axis(axes: Axes, paper: Paper, x: str | None = None, y: str | None = None) -> None:
    """Names of the axes, which may hold mathematics; the vertical one no longer than its panel."""
    size = paper.points(10.5)
    if x is not None:
        axes.set_xlabel(x, **style.lettering(size, math=True), labelpad=4 * paper.factor)
    if y is not None:
        high = inches(axes)[1]
        points = next((p for p in (size, 9.0, 8.0) if p <= size and style.fits([y], high, p)), SMALLEST)
        axes.set_ylabel(y, **style.lettering(points, math=True), labelpad=5 * paper.factor)


@dataclass(frozen=True)
class Panels:
    """`count` equal panels in rows of `columns`; all sizes in inches."""

    paper: Paper
    count: int
    columns: int
    wide: float
    high: float
    between: float
    below: float

    @classmethod
    def of(
        cls,
        paper: Paper,
        count: int,
        columns: int | None = None,
        wide: float = 3.2,
        shape: float = 0.85,
        between: float = 0.72,
        below: float = 0.59,
    ) -> Panels:
        """`shape` is the height of a panel over its width; `between` inches lie between panels of a row, and `below`
        between rows, without their headings. Default: three columns, one in a single column of a paper."""
        columns = min(count, columns or (1 if paper.narrow else 3))
        if paper.width is not None:
            gaps = (columns - 1) * between * paper.factor
            wide = (paper.width - paper.left - paper.right - gaps) / columns
        return cls(paper, count, columns, wide, wide * shape, between, below)

    @property
    def rows(self) -> int:
        return -(-self.count // self.columns)

    @property
    def _row(self) -> float:
        return self.high + (0.36 + self.below) * self.paper.factor

    @property
    def width(self) -> float:
        gaps = (self.columns - 1) * self.between * self.paper.factor
        return self.paper.left + self.columns * self.wide + gaps + self.paper.right

    @property
    def body(self) -> float:
        return self.rows * self._row + max(0.0, 0.59 - self.below) * self.paper.factor

    def axes(self, page: Sheet, i: int, heading: str) -> Axes:
        """The i-th panel with its heading."""
        row, column = divmod(i, self.columns)
        left = self.paper.left + column * (self.wide + self.between * self.paper.factor)
        top = row * self._row + 0.36 * self.paper.factor
        size = self.paper.points(10)
        page.write_heading(
            style.shorten_to(style.drawable(heading), self.wide, size, "bold"), left, top - 0.06
        )
        return page.axes(left, top, self.wide, self.high)

    def outer(self, i: int) -> tuple[bool, bool]:
        """Whether the i-th panel is the first of its row, and whether none is below it: where axes are named."""
        return i % self.columns == 0, i + self.columns >= self.count


def draw_panels(
    panels: Panels,
    title: str,
    subtitle: str,
    keys: Sequence[Key],
    drawn: Sequence[tuple[str, Callable[[Axes], None]]],
    x: str,
    y: str,
    foot: float = 0.0,
) -> Sheet:
    """A sheet of panels, given as (heading, what draws into it), whose axes are all called `x` and `y`.

    The vertical axis is named at the first panel of a row. `foot` inches stay free below the panels.
    """
    page = sheet(panels.paper, title, subtitle, panels.width, panels.body + foot, keys)
    for i, (heading, draw) in enumerate(drawn):
        axes = panels.axes(page, i, heading)
        draw(axes)
        name_axis(axes, panels.paper, x=x, y=y if panels.outer(i)[0] else None)
    return page
