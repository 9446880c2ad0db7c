"""Figures as files: the same picture gives the same bytes, whenever and wherever it is drawn."""

from __future__ import annotations

import io
import re

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

DPI = 200
# matplotlib names shared shapes by a salted hash, another salt each time.
_ID = re.compile(r'(?<=id=")([A-Za-z][A-Za-z0-9_]*?)_?[0-9a-f]{10}(?=")')


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


def _numbered(text: str) -> str:
    """Replace the hashed ids, and every mention of them, by running numbers."""
    names: dict[str, str] = {}
    for match in _ID.finditer(text):
        names.setdefault(match.group(0), f"{match.group(1)}-{len(names)}")
    if not names:
        return text
    hashed = re.compile(r"\b(?:" + "|".join(names) + r")\b")
    return hashed.sub(lambda found: names[found.group(0)], text)
