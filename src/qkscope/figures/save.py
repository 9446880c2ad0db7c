"""Figures as files: the same picture gives the same bytes, whenever and wherever it is drawn."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from fontTools import subset  # type: ignore[import-untyped]
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

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
    """Embed fonts as `_Letters`: pruning tables that nobody reads is most of the work of a PDF."""
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
