"""How the pictures look: colours, marks, fonts, text that fits, and the sheet they are laid out on.

Everything is said explicitly on each artist. No global setting of matplotlib is read where it matters and none is
changed, so pictures come out the same in a script, a thread and a notebook with a style of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.text import Text
from matplotlib.textpath import TextToPath

from qkscope.taxonomy import CLASSES, POLARITIES, UNMEASURED

R_Q, R_K = "#1f77b4", "#d62728"
VARIANCE = "#6a51a3"
CLASS_COLOURS = dict(
    zip(
        (*CLASSES, UNMEASURED),
        ("#1f77b4", "#3f3d99", "#e377c2", "#2ca02c", "#8c8c8c", "#ffffff"),
        strict=True,
    )
)
POLARITY_COLOURS = dict(
    zip((*POLARITIES, UNMEASURED), ("#0072b2", "#999999", "#d55e00", "#ffffff"), strict=True)
)
ROPE_COLOURS = {"RoPE": "#1b4f72", "NoPE": "#c0660c"}
FAMILY_COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a5195", "#8c564b", "#b8860b", "#17a2b8", "#6b6b6b", "#a3123f",
)  # fmt: skip
INK, MUTED, FAINT, PAPER = "#222222", "#666666", "#dddddd", "#ffffff"
SEPARATOR = "#8f8f8f"

FONT = "DejaVu Sans"  # comes with matplotlib: the same letters everywhere
MARGIN = 0.22  # inches, around the sheet
LEFT = 0.86  # inches, for the numbers and the name of a vertical axis
ROW = 0.225  # inches, one line of the legend
_HANDLE = 0.62  # inches, a legend's mark with the gaps around it
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\ud800-\udfff\ufffe\uffff]+"
)


def plain(text: object) -> str:
    """Text as it can be drawn and stored: no control characters, and a box for letters the font does not have."""
    clean = _UNPRINTABLE.sub(" ", str(text)).strip()
    if clean.isascii():
        return clean
    known = get_font(findfont(FontProperties(family=FONT))).get_charmap()
    return "".join(letter if ord(letter) in known else "\u25a1" for letter in clean)


def shorten(text: str, letters: int) -> str:
    """At most `letters` letters, the middle left out: the ends of checkpoint names tell them apart."""
    if len(text) <= letters:
        return text
    tail = (letters - 1) // 2
    return text[: letters - 1 - tail] + "…" + text[len(text) - tail :]


@lru_cache(maxsize=4096)
def extent(text: str, size: float, weight: str = "normal") -> tuple[float, float]:
    """Width and height of one line of text, in inches."""
    font = FontProperties(family=FONT, size=size, weight=weight)
    width, height, _ = TextToPath().get_text_width_height_descent(text or " ", font, False)
    return float(width) / 72, max(float(height), size) / 72


def wrap(text: str, width: float, size: float, weight: str = "normal") -> list[str]:
    """Break at spaces and after separators so that lines fit `width` inches; a longer word stays whole."""
    lines: list[str] = []
    line = ""
    for piece in re.findall(r"[^\s\-_/.:]*[\-_/.:]+|[^\s\-_/.:]+\s*|\s+", text):
        if line and extent((line + piece).rstrip(), size, weight)[0] > width:
            lines.append(line.rstrip())
            line = ""
        line += piece if line else piece.lstrip()
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def fits(lines: Sequence[str], width: float, size: float, weight: str = "normal") -> bool:
    """Whether every line is at most `width` inches wide."""
    return all(extent(line, size, weight)[0] <= width for line in lines)


def lettering(size: float = 10, colour: str = INK, weight: str = "normal") -> dict[str, Any]:
    """Properties of a text. Names may hold `$` and `_`: nothing is read as mathematics or TeX."""
    return {
        "fontfamily": FONT,
        "fontsize": size,
        "fontweight": weight,
        "fontstyle": "normal",
        "color": colour,
        "parse_math": False,
        "usetex": False,
    }


def write(
    axes: Axes, x: float, y: float, text: str, size: float = 10, colour: str = INK, **more: Any
) -> Text:
    """A text in an axes, in data coordinates unless `transform` says otherwise."""
    weight = more.pop("weight", "normal")
    return axes.text(x, y, text, **lettering(size, colour, weight), **more)


@dataclass(frozen=True)
class Key:
    """One entry of a legend."""

    mark: Artist
    text: str


@dataclass(frozen=True)
class Sheet:
    """A figure measured in inches from its top left corner; `top` is where the body begins."""

    figure: Figure
    width: float
    height: float
    top: float

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """A plain panel whose top edge is `top` inches below the head of the sheet."""
        y = 1 - (self.top + top + height) / self.height
        axes = self.figure.add_axes((left / self.width, y, width / self.width, height / self.height))
        dress(axes)
        return axes


def sheet(title: str, subtitle: str, width: float, body: float, keys: Sequence[Key] = ()) -> Sheet:
    """An empty sheet with its head and legend; `width` and `body` (height) are those of the panels, in inches."""
    inner = width - 2 * MARGIN
    heading = wrap(plain(title), inner, 14, "bold")
    below = wrap(plain(subtitle), inner, 9.5)
    top = MARGIN + 0.25 * len(heading) + 0.19 * len(below) + 0.12
    columns, legend_height = _legend_shape(keys, inner)
    height = top + body + legend_height + MARGIN
    figure = Figure(figsize=(width, height), dpi=200, facecolor=PAPER, edgecolor=PAPER)
    figure.set_layout_engine("none")
    FigureCanvasAgg(figure)
    place: dict[str, Any] = {"ha": "left", "va": "top", "linespacing": 1.15}
    x = MARGIN / width
    figure.text(x, 1 - MARGIN / height, "\n".join(heading), **lettering(14, INK, "bold"), **place)
    y = 1 - (MARGIN + 0.25 * len(heading) + 0.03) / height
    figure.text(x, y, "\n".join(below), **lettering(9.5, MUTED), **place)
    if keys:
        _legend(figure, keys, columns, (x, MARGIN / height))
    return Sheet(figure, width, height, top)


def _legend_shape(keys: Sequence[Key], width: float) -> tuple[int, float]:
    """Columns and height of a legend that fits `width` inches."""
    if not keys:
        return 0, 0.0
    widths = [extent(plain(key.text), 9.5)[0] + _HANDLE for key in keys]
    columns = next((n for n in range(len(keys), 1, -1) if _legend_width(widths, n) <= width), 1)
    rows = -(-len(keys) // columns)
    return columns, ROW * rows + 0.16


def _legend_width(widths: Sequence[float], columns: int) -> float:
    """Entries fill column after column, the first columns holding one more where they do not divide evenly."""
    rows, more = divmod(len(widths), columns)
    total, start = 0.0, 0
    for column in range(columns):
        stop = start + rows + (column < more)
        total += max(widths[start:stop], default=0.0)
        start = stop
    return total


def _legend(figure: Figure, keys: Sequence[Key], columns: int, corner: tuple[float, float]) -> None:
    legend = figure.legend(
        [key.mark for key in keys],
        [plain(key.text) for key in keys],
        loc="lower left",
        bbox_to_anchor=corner,
        ncols=columns,
        frameon=False,
        borderaxespad=0,
        borderpad=0,
        handlelength=2.6,
        handletextpad=0.5,
        columnspacing=1.6,
        labelspacing=0.55,
        prop={"family": FONT, "size": 9.5},
        labelcolor=INK,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
        text.set_usetex(False)


def dress(axes: Axes) -> None:
    """A panel without ornament: left and bottom lines, quiet ticks, no grid."""
    axes.set_facecolor(PAPER)
    axes.grid(False)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(MUTED)
        spine.set_linewidth(0.9)
    axes.tick_params(
        which="both", direction="out", length=3.5, width=0.9, color=MUTED, labelcolor=INK, labelsize=9.5,
        labelfontfamily=FONT, pad=3.5, top=False, right=False, left=True, bottom=True,
    )  # fmt: skip


def scale(
    axes: Axes, axis: Literal["x", "y"], values: Sequence[float], texts: Sequence[str], grid: bool = False
) -> None:
    """Ticks at `values` with `texts`, written as they are; `axis` is "x" or "y"."""
    setter = axes.set_xticks if axis == "x" else axes.set_yticks
    setter(values, [plain(text) for text in texts], **lettering(9.5))
    axes.minorticks_off()
    if grid:
        axes.grid(True, axis=axis, color=FAINT, linewidth=0.7, linestyle="-")


def name_axis(axes: Axes, x: str | None = None, y: str | None = None) -> None:
    """Names of the axes."""
    if x is not None:
        axes.set_xlabel(x, **lettering(10.5), labelpad=5)
    if y is not None:
        axes.set_ylabel(y, **lettering(10.5), labelpad=6)


def number(value: float, digits: int = 2) -> str:
    """A number as printed in pictures: a true minus, and no minus zero."""
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = f"{0:.{digits}f}"
    return text.replace("-", "\u2212")


def halo(width: float = 2.4) -> list[Any]:
    """A white rim around letters that stand on lines, points or bands."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=width, foreground=PAPER)]


def tokens(count: int | None) -> str:
    """A window as people say it: 256, 4K, 64K, 1M."""
    if count is None:
        return "unknown"
    for size, letter in ((1 << 20, "M"), (1 << 10, "K"), (1_000_000, "M"), (1000, "K")):
        if count >= size and count % size == 0:
            return f"{count // size}{letter}"
    return f"{count:,}"


def ink_on(colour: str) -> str:
    """Black or white, whichever stands out more on `colour` (contrast ratio of relative luminances)."""
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    # INK has a luminance of 0.016: the two ratios are equal where (l + 0.05)^2 = 1.05 * 0.066.
    return INK if (luminance + 0.05) ** 2 > 1.05 * 0.066 else PAPER
