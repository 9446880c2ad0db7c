"""Equal panels in rows, each with a heading: where they stand, in inches."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes

from qkscope.figures.tools.sheet import Paper, Sheet
from qkscope.figures.tools.style import shorten_to


@dataclass(frozen=True)
class Panels:
    """`count` panels, `columns` a row on a wide sheet and fewer on a paper's column; `high` for each inch of width."""

    paper: Paper
    count: int
    columns: int
    wide: float
    high: float

    @classmethod
    def of(cls, paper: Paper, count: int, columns: int = 3, wide: float = 3.2, shape: float = 0.85) -> Panels:
        columns = min(count, 1 if paper.narrow else columns)
        if paper.width is not None:
            gaps = (columns - 1) * cls._gap(paper)
            wide = (paper.width - paper.left - paper.right - gaps) / columns
        return cls(paper, count, columns, wide, wide * shape)

    @staticmethod
    def _gap(paper: Paper) -> float:
        return 0.72 * paper.factor

    @property
    def rows(self) -> int:
        return -(-self.count // self.columns)

    @property
    def _row(self) -> float:
        return self.high + 0.95 * self.paper.factor

    @property
    def width(self) -> float:
        gaps = (self.columns - 1) * self._gap(self.paper)
        return self.paper.left + self.columns * self.wide + gaps + self.paper.right

    @property
    def body(self) -> float:
        return self.rows * self._row

    def axes(self, page: Sheet, i: int, heading: str) -> Axes:
        """The i-th panel with its heading."""
        row, column = divmod(i, self.columns)
        left = self.paper.left + column * (self.wide + self._gap(self.paper))
        top = row * self._row + 0.36 * self.paper.factor
        page.write_heading(shorten_to(heading, self.wide, self.paper.points(10), "bold"), left, top - 0.06)
        return page.axes(left, top, self.wide, self.high)
