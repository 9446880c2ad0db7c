"""Tables for papers and pages: a DataFrame as LaTeX or Markdown, with every name escaped."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
# HTML's own as entities: not every renderer of Markdown takes a backslash before them.
_MARKDOWN = {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {sign: f"\\{sign}" for sign in "\\`*_{}[]#|!~$"}


def to_latex(table: pd.DataFrame, decimals: int = 3) -> str:
    """The table as a booktabs `tabular`: text escaped, numbers with `decimals` decimals, NaN as `--`."""
    header, rows = _cells(table, _latex, decimals, "--")
    columns = "".join("l" if kind == "O" else "r" for kind in _kinds(table))
    body = [" & ".join(row) + r" \\" for row in rows]
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", " & ".join(header) + r" \\", r"\midrule", *body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def to_markdown(table: pd.DataFrame, decimals: int = 3) -> str:
    """The table as a Markdown table: text escaped, numbers with `decimals` decimals, NaN as `–`."""
    header, rows = _cells(table, escape_markdown, decimals, "–")
    rule = ["---" if kind == "O" else "---:" for kind in _kinds(table)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, rule, *rows)) + "\n"


def _cells(
    table: pd.DataFrame, escape: Callable[[str], str], decimals: int, unknown: str
) -> tuple[list[str], list[list[str]]]:
    def cell(value: Any) -> str:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return unknown
        if isinstance(value, float):
            return f"{value:.{decimals}f}"
        return escape(" ".join(str(value).split()))

    rows = [[cell(value) for value in row] for row in table.astype(object).itertuples(index=False, name=None)]
    return [escape(str(name)) for name in table.columns], rows


def _kinds(table: pd.DataFrame) -> list[str]:
    """`O` for a column of texts, else its dtype's own letter."""
    return [kind if (kind := dtype.kind) in "biuf" else "O" for dtype in table.dtypes]


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)


def escape_markdown(text: str) -> str:
    """Text that Markdown shows letter by letter: no markup, no HTML, no formulas."""
    return "".join(_MARKDOWN.get(sign, sign) for sign in text)
