"""Colours, and text that fits.

Every artist gets its properties explicitly. No global setting of matplotlib is read where it matters and none is
changed, so figures come out the same in a script, a thread and a notebook with a style of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, to_rgb
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.text import Text
from matplotlib.textpath import TextToPath

from qkscope.results.taxonomy import CLASSES, UNMEASURED

R_Q, R_K = "#1f77b4", "#d62728"
VARIANCE = "#6a51a3"
AXIS = "#d9480f"  # PC0 became a different direction
_CLASSES = ("#1f77b4", "#3f3d99", "#e377c2", "#2ca02c", "#8c8c8c", "#ffffff")
CLASS_COLOURS = dict(zip((*CLASSES, UNMEASURED), _CLASSES, strict=True))
PART_COLOURS = {
    "share_position": "#1f5fa8", "share_key": "#e0a526", "share_match": "#3f8f5b", "share_query_position": "#8d79b8",
}  # fmt: skip
SINK = "#b5533c"  # the first token
# Heat maps of what grows from zero and of what has a sign, on light paper; r_k is red, as its lines are.
SEQUENTIAL = ("#f4f4ee", "#bcdad8", "#6aaebf", "#2a77a1", "#123765")
DIVERGING = ("#9c4200", "#e39a64", "#f6f2ec", "#80b5d9", "#00538a")
DIVERGING_KEYS = ("#0f6b6b", "#86c2bf", "#f6f2ec", "#e98f7f", "#a50f15")
RAMPS = {
    name: LinearSegmentedColormap.from_list(name, colours)
    for name, colours in (
        ("sequential", SEQUENTIAL),
        ("diverging", DIVERGING),
        ("sequential keys", DIVERGING_KEYS[2:]),
        ("diverging keys", DIVERGING_KEYS),
    )
}
CAUSE_COLOURS = {"weights": "#5b6770", "rotation": "#cc79a7", "window": "#17a2b8"}
ROPE_COLOURS = {"RoPE": "#1b4f72", "NoPE": "#c0660c"}
FAMILY_COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a5195", "#8c564b", "#b8860b", "#17a2b8", "#6b6b6b", "#a3123f",
)  # fmt: skip
# Roles of heads in their order: a sink head has the colour of the first token.
ROLE_COLOURS = (SINK, "#0072b2", "#009e73", "#7a5195", "#56b4e9", "#a3123f", "#b8860b")
INK, MUTED, FAINT, PAPER = "#222222", "#666666", "#dddddd", "#ffffff"
SEPARATOR, ABSENT = "#8f8f8f", "#a0a0a0"  # between phases; names of what was not measured
DASHES = (0, (4, 3))
NOT_MEASURED: dict[str, Any] = {"facecolor": "#f6f6f6", "edgecolor": FAINT, "hatch": "///", "linewidth": 0}

ColourScale = tuple[Colormap, Normalize]
LONG_NAME = 20  # letters
FONT = "DejaVu Sans"  # comes with matplotlib: the same letters everywhere
LINE = 1.2  # height of a line of text, in font sizes
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\ud800-\udfff\ufffe\uffff]+"
)


def drawable(text: object) -> str:
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


def without_shared_beginning(names: Sequence[str]) -> list[str]:
    """Long names without what all begin with, up to a separator: their ends tell them apart."""
    if max(map(len, names)) <= LONG_NAME or len(names) < 2:
        return list(names)
    ends = zip(min(names), max(names), strict=False)
    shared = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], ends))
    cut = max((match.end() for match in re.finditer(r"[-_/.: ]+", shared)), default=0)
    return [f"…{name[cut:]}" if cut > 1 else name for name in names]


def shorten_to(text: str, width: float, size: float, weight: str = "normal") -> str:
    """As many letters as fit `width` inches; at least three."""
    fitting = (n for n in range(len(text), 3, -1) if extent(shorten(text, n), size, weight)[0] <= width)
    return shorten(text, next(fitting, 3))


@lru_cache(maxsize=8192)
def extent(text: str, size: float, weight: str = "normal") -> tuple[float, float]:
    """Width and height of one line of text, in inches."""
    font = FontProperties(family=FONT, size=size, weight=weight)
    width, height, _ = TextToPath().get_text_width_height_descent(text or " ", font, False)
    return float(width) / 72, max(float(height), size) / 72


def wrap(text: str, width: float, size: float, weight: str = "normal") -> list[str]:
    """Break at spaces and after separators so that lines fit `width` inches; a longer word stays whole."""
    lines: list[str] = []
    line = ""
    for piece in re.findall(r"\$[^$\s]+\$\s*|[^\s\-_/.:]*[\-_/.:]+|[^\s\-_/.:]+\s*|\s+", text):
        if line and extent((line + piece).rstrip(), size, weight)[0] > width:
            lines.append(line.rstrip())
            line = ""
        line += piece if line else piece.lstrip()
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def fits(lines: Sequence[str], width: float, size: float, weight: str = "normal") -> bool:
    """Whether every line is at most `width` inches wide."""
    return all(extent(line, size, weight)[0] <= width for line in lines)


def lettering(size: float, colour: str = INK, weight: str = "normal", math: bool = False) -> dict[str, Any]:
    """Properties of a text. Names may hold `$` and `_`, so only texts of the figures' own are read as `math`."""
    font = {"fontfamily": FONT, "fontsize": size, "fontweight": weight, "fontstyle": "normal"}
    return font | {"color": colour, "parse_math": math, "math_fontfamily": "dejavusans", "usetex": False}


def write(axes: Axes, x: float, y: float, text: str, size: float, colour: str = INK, **more: Any) -> Text:
    """A text in an axes, in data coordinates unless `transform` says otherwise."""
    weight, math = more.pop("weight", "normal"), more.pop("math", False)
    return axes.text(x, y, text, **lettering(size, colour, weight, math), **more)


def write_not_measured(axes: Axes, x: float, y: float, size: float, **place: Any) -> None:
    """In a hatched gap."""
    box = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.5}
    write(axes, x, y, "not measured", size, MUTED, bbox=box, **place)


def every_nth(size: float, pitch: float) -> int:
    """How many lines apart names of a size must be that stand `pitch` inches apart, so that they do not overlap."""
    return max(1, math.ceil(size / 72 * LINE / pitch - 1e-9))


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places as near as can be to those wanted, in the same order, `gap` apart and within `low` and `high`."""
    places: list[float] = []
    for i, place in enumerate(wanted):
        places.append(max(place, places[-1] + gap if i else low))
    for i in reversed(range(len(places))):
        places[i] = min(places[i], places[i + 1] - gap if i + 1 < len(places) else high)
    return places


def pale(colour: str, share: float = 0.45) -> str:
    """A colour mixed with white: the matched window's."""
    mixed = [round(255 * (part + (1 - part) * share)) for part in to_rgb(colour)]
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def colour_scale(signed: bool, keys: bool = False) -> ColourScale:
    """From 0 (paper) to 1 (blue), or from -1 (orange); of `keys` to 1 (red), or from -1 (teal)."""
    name = ("diverging" if signed else "sequential") + (" keys" if keys else "")
    return RAMPS[name], Normalize(-1.0 if signed else 0.0, 1.0)


def luminance(colour: str) -> float:
    """WCAG's relative luminance, 0 to 1."""
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ink_on(colour: str) -> str:
    """Black or white, whichever stands out more on `colour` (contrast ratio of relative luminances)."""
    # INK has a luminance of 0.016: the two ratios are equal where (l + 0.05)^2 = 1.05 * 0.066.
    return INK if (luminance(colour) + 0.05) ** 2 > 1.05 * 0.066 else PAPER
