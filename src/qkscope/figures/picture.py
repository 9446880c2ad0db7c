"""What a figure is: a function from a study to a `Drawing`, with its words and the bytes of its files.

The same picture gives the same bytes, whenever and wherever it is drawn.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Literal

import pandas as pd
from fontTools import subset  # type: ignore[import-untyped]
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from qkscope.figures.view import ALL, View
from qkscope.stats.direction import turns
from qkscope.stats.levels import SMALLEST
from qkscope.words import number

DPI = 200
# matplotlib names shared shapes by a salted hash, another salt each time.
_ID = re.compile(r'(?<=id=")([A-Za-z][A-Za-z0-9_]*?)_?[0-9a-f]{10}(?=")')
# Letters as TrueType: publishers refuse Type 3. matplotlib takes this from its settings alone.
_PDF = {"pdf.fonttype": 42, "pdf.compression": 6, "pdf.use14corefonts": False, "pdf.inheritcolor": False}
_SETTINGS = Lock()


def png(figure: Figure) -> bytes:
    """A PNG of 200 dots per inch."""
    buffer = io.BytesIO()
    figure.set_dpi(DPI)
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """An SVG without date, its ids numbered in the order they appear."""
    buffer = io.StringIO()
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": "qkscope"})
    return _numbered(buffer.getvalue()).encode("utf-8")


def pdf(figure: Figure) -> bytes:
    """A PDF without date, its letters embedded."""
    buffer = io.BytesIO()
    about = {"CreationDate": None, "Creator": "qkscope", "Producer": "qkscope"}
    with _SETTINGS, rc_context(_PDF), _letters_alone():
        FigureCanvasPdf(figure).print_pdf(buffer, metadata=about)
    return buffer.getvalue()


class _Letters(subset.Options):  # type: ignore[misc]
    """What is kept of a font: the letters, and nothing of how they join and kern, which a PDF says itself."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.drop_tables += ["GDEF", "GPOS", "GSUB"]


@contextmanager
def _letters_alone() -> Iterator[None]:
    """Embed fonts as `_Letters`: pruning unused font tables is most of the work of a PDF."""
    before = subset.Options
    subset.Options = _Letters
    try:
        yield
    finally:
        subset.Options = before


def _numbered(text: str) -> str:
    """Replace the hashed ids, and every mention of them, by running numbers."""
    names: dict[str, str] = {}
    for match in _ID.finditer(text):
        names.setdefault(match.group(0), f"{match.group(1)}-{len(names)}")
    if not names:
        return text
    hashed = re.compile(r"\b(?:" + "|".join(names) + r")\b")
    return hashed.sub(lambda found: names[found.group(0)], text)


@dataclass(frozen=True)
class Caption:
    """The words of a figure, as plain text: the README escapes them.

    title     the heading
    shows     what is drawn and how to read it, two or three sentences
    made      how heads were classified or averaged
    drawn     how that is drawn
    events   (headline, detail) of what happened, for figures without claims of their own
    takeaway  how to understand it, where no claim does
    care      what to read with care, one sentence
    table     the file of the results that the numbers come from
    variables which columns of it, or variables of measures.safetensors
    window    whose numbers are drawn: each checkpoint's own window, the matched one, or both
    """

    title: str
    shows: str
    made: str
    drawn: str
    events: tuple[tuple[str, str], ...] = ()
    takeaway: str = ""
    care: str = ""
    table: str = "qk.csv"
    variables: tuple[str, ...] = ()
    window: Literal["own", "matched", "both"] = "both"


@dataclass(frozen=True)
class Drawing:
    """A figure, exactly the numbers it draws, and its words."""

    figure: Figure
    data: pd.DataFrame
    caption: Caption

    def _repr_png_(self) -> bytes:
        """Notebooks show the figure."""
        return png(self.figure)


@dataclass(frozen=True)
class Picture:
    """One figure of a study. The catalogue finds every `Picture` that a module of `gallery/` defines.

    name     its folder, beginning with its number
    claims   ids of the claims that it shows, the most important first: its README tells them
    draw     the figure of a study, `width` inches wide for a paper or as wide as it needs
    why_not  why it cannot be drawn of this study, or None
    """

    name: str
    claims: tuple[str, ...]
    draw: Callable[[View, float | None], Drawing]
    why_not: Callable[[View], str | None] = lambda view: None


MOST_TURNS = 3  # turning points of a series that are described one by one


def heads_of(population: str) -> str:
    """`RoPE heads`; `all heads` where there is one population."""
    return "all heads" if population == ALL else f"{population} heads"


def path(data: pd.DataFrame, value: str, error: str, signed: bool = False) -> str:
    """`0.09 ± 0.01 at S1-0, up to 0.58 ± 0.04 at S3-760, down to 0.52 ± 0.01 at LC2-80`.

    `data` has a row per checkpoint, in order, with its `label`. Between the ends are the checkpoints at which the
    series turns; of one that turns often, its highest and lowest.
    """
    known = data.dropna(subset=[value])
    values, errors = known[value].to_list(), known[error].to_list()
    if not values:
        return "unknown"
    texts = [number(v, e, signed) for v, e in zip(values, errors, strict=True)]
    if len(values) == 1:
        return texts[0]
    last, at = len(values) - 1, turns(values, errors)
    if len(at) > MOST_TURNS:
        at = sorted({values.index(max(values)), values.index(min(values))} - {0, last})
    said, before, labels = f"{texts[0]} at {known['label'].iloc[0]}", 0, known["label"].to_list()
    for i in (*at, last):
        change = values[i] - values[before]
        way = "and" if abs(change) < SMALLEST else "up to" if change > 0 else "down to"
        said += f"{' ' if way == 'and' else ', '}{way} {texts[i]} at {labels[i]}"
        before = i
    return said
