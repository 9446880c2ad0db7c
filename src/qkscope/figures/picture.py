"""What a figure is: a function from a study to a `Drawing`, and the name and claims that go with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pandas as pd
from matplotlib.figure import Figure

from qkscope.figures.save import png
from qkscope.figures.view import View


@dataclass(frozen=True)
class Caption:
    """The words of a figure, as plain text: the README escapes them.

    title     the heading
    shows     what is drawn and how to read it, two or three sentences
    made      how heads were classified or averaged
    drawn     how that is drawn
    stories   (headline, detail) of what happened, for a figure whose numbers no claim speaks of
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
    stories: tuple[tuple[str, str], ...] = ()
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
