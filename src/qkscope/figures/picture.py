"""What a picture is: the one interface between the modules of `pictures/` and everything that shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import pandas as pd
from matplotlib.figure import Figure

from qkscope.figures.save import png
from qkscope.figures.view import View


@dataclass(frozen=True)
class Drawing:
    """A figure and exactly the numbers it draws."""

    figure: Figure
    data: pd.DataFrame

    def _repr_png_(self) -> bytes:
        """Notebooks show the picture."""
        return png(self.figure)


@dataclass(frozen=True)
class Caption:
    """What is drawn and how to read it, and how its numbers were made of the table's, in plain text.

    `table` is the file of the results that they come from, `components` which axes of it, where it has several;
    `window` says over which windows they are: each checkpoint's own, the matched one, or both.
    """

    shows: str
    made: str
    components: str = ""
    table: str = "qk.csv"
    window: Literal["own", "matched", "both"] = "both"


class Picture(Protocol):
    """One picture of a study: a module of `pictures/` has one as `PICTURE`, and nothing else names it.

    `name` begins with its number and is its folder. `claims` are the ids of the claims that it shows, the most
    telling first: its README quotes those the study has.
    """

    name: str
    claims: tuple[str, ...]

    def title(self, view: View) -> str:
        """The heading."""
        ...

    def why_not(self, view: View) -> str | None:
        """Why there is nothing to draw, if so."""
        return None

    def draw(self, view: View, width: float | None = None) -> Drawing:
        """The picture, `width` inches wide for a paper or as wide as it asks."""
        ...

    def caption(self, view: View, data: pd.DataFrame) -> Caption:
        """Words for a reader; `data` is what was drawn."""
        ...
