"""What a figure is: a function from a study to a `Drawing`, with its words and the bytes of its files.

The same picture gives the same bytes, whenever and wherever it is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import RLock
from typing import Literal

import pandas as pd
from fontTools import subset  # type: ignore[import-untyped]
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from qkscope import store
from qkscope.figures.view import ALL, View
from qkscope.stats.series import differ, turns
from qkscope.words import number

DPI = 200
# What matplotlib takes from its settings alone. Letters as TrueType: publishers refuse Type 3.
_PDF = {"pdf.fonttype": 42, "pdf.compression": 6, "pdf.use14corefonts": False, "pdf.inheritcolor": False}
_SVG = {"svg.hashsalt": "qkscope", "svg.fonttype": "path", "svg.id": None}
# Threads share these settings and matplotlib's parser of mathematics, which is not made for several at a time.
MATPLOTLIB = RLock()


def png(figure: Figure) -> bytes:
    """A PNG of 200 dots per inch."""
    buffer = io.BytesIO()
    with MATPLOTLIB:
        figure.set_dpi(DPI)
        FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def svg(figure: Figure) -> bytes:
    """An SVG without date, its letters as shapes."""
    buffer = io.BytesIO()
    with MATPLOTLIB, rc_context(_SVG):
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": "qkscope"})
    return buffer.getvalue()


def pdf(figure: Figure) -> bytes:
    """A PDF without date, its letters embedded."""
    buffer = io.BytesIO()
    about = {"CreationDate": None, "Creator": "qkscope", "Producer": "qkscope"}
    with MATPLOTLIB, rc_context(_PDF), _letters_alone():
        FigureCanvasPdf(figure).print_pdf(buffer, metadata=about)
    return buffer.getvalue()


def save(figure: Figure, data: pd.DataFrame, text: str, folder: Path) -> None:
    """PNG, SVG and PDF, the numbers drawn, and what the README says of them."""
    for kind, render in (("png", png), ("svg", svg), ("pdf", pdf)):
        store.write_bytes(folder / f"figure.{kind}", render(figure))
    store.write_csv(folder / "data.csv", data)
    store.write_text(folder / "README.md", text)


class _Letters(subset.Options):  # type: ignore[misc]
    """Font subsets of letters alone, without tables for joining and kerning, which a PDF does itself."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.drop_tables += ["GDEF", "GPOS", "GSUB"]


@contextmanager
def _letters_alone() -> Iterator[None]:
    """Embed fonts as `_Letters`: pruning those tables is most of the work of a PDF."""
    before = subset.Options
    subset.Options = _Letters
    try:
        yield
    finally:
        subset.Options = before


@dataclass(frozen=True)
class Caption:
    """The words of a figure, as plain text: the README escapes them."""

    title: str
    shows: str  # what is drawn and how to read it, two or three sentences
    made: str  # how heads were classified or averaged
    drawn: str  # how that is drawn
    events: tuple[tuple[str, str], ...] = ()  # (headline, detail), for figures without claims of their own
    takeaway: str = ""  # how to understand it, where no claim says so
    care: str = ""  # what to read with care, one sentence
    table: str = "qk.csv"  # the file of the results that the numbers come from
    variables: tuple[str, ...] = ()  # which columns of it, or variables of measures.safetensors
    window: Literal["own", "matched", "both"] = "both"  # over which the numbers are


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
    """One figure of a study. The catalogue finds every `Picture` that a module of `gallery/` defines."""

    name: str  # its folder, beginning with its number
    claims: tuple[str, ...]  # ids of the claims that its README quotes, the most important first
    draw: Callable[[View, float | None], Drawing]  # `width` inches wide for a paper, or as wide as it needs
    why_not: Callable[[View], str | None] = lambda view: None  # why it cannot be drawn of this study


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
    values, errors, labels = (known[column].to_list() for column in (value, error, "label"))
    if not values:
        return "unknown"
    texts = [number(v, e, signed) for v, e in zip(values, errors, strict=True)]
    if len(values) == 1:
        return texts[0]
    last, at = len(values) - 1, turns(values, errors)
    if len(at) > MOST_TURNS:
        at = sorted({values.index(max(values)), values.index(min(values))} - {0, last})
    said = f"{texts[0]} at {labels[0]}"
    for before, i in pairwise([0, *at, last]):
        change = values[i] - values[before]
        clear = differ(values[i], values[before], errors[i], errors[before])
        way = " and" if not clear else ", up to" if change > 0 else ", down to"
        said += f"{way} {texts[i]} at {labels[i]}"
    return said
