"""A scan's result in short: for a terminal, a notebook and a Python prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qkscope.taxonomy import CLASSES, UNMEASURED

if TYPE_CHECKING:
    import pandas as pd

    from qkscope.capture.architecture import Architecture


class ScanTables:
    """The short tables of a result that has heads, and how they are shown."""

    model: str
    heads: pd.DataFrame
    architecture: Architecture
    window: int
    documents: int
    tokens: int
    filled: int
    warnings: list[str]
    available: int | None

    def summary(self) -> pd.DataFrame:
        """Mean r_q, r_k and the share of each class: of all heads, of RoPE layers and of NoPE layers."""
        import pandas as pd

        parts = {"all": self.heads}
        if (self.heads["rope"] == 0).any():
            parts |= {
                "RoPE": self.heads[self.heads["rope"] == 1],
                "NoPE": self.heads[self.heads["rope"] == 0],
            }
        rows = []
        for name, part in parts.items():
            measured = part[part["class"] != UNMEASURED]
            row: dict[str, Any] = {"layers": name, "heads": len(part)}
            row |= {"r_q": measured["r_q"].mean(), "r_k": measured["r_k"].mean()}
            row |= {kind: (measured["class"] == kind).mean() for kind in CLASSES}
            if len(measured) < len(part):
                row[UNMEASURED] = (part["class"] == UNMEASURED).mean()
            rows.append(row)
        return pd.DataFrame(rows)

    def extremes(self, count: int = 5) -> pd.DataFrame:
        """The `count` most and least positional heads, by the mean of r_q and |r_k|."""
        import pandas as pd

        strength = (self.heads["r_q"] + self.heads["r_k"].abs()) / 2
        ranked = self.heads.loc[strength.dropna().sort_values(ascending=False, kind="stable").index]
        count = min(count, len(ranked) // 2) or len(ranked)
        columns = ["layer", "head", "r_q", "r_q_se", "r_k", "r_k_se", "explained_variance", "rope", "class"]
        most, least = ranked.head(count)[columns], ranked.tail(count)[columns]
        parts = [most.assign(which="most"), least.assign(which="least")]
        return pd.concat(parts, ignore_index=True)[["which", *columns]]

    def headline(self) -> str:
        a = self.architecture
        of_all = "" if self.available is None else f" of {self.available:,}"
        return (
            f"{self.model} ({a.family}): {len(self.heads):,} of {a.num_layers * a.n_q_heads:,} heads, "
            f"{self.documents} documents, {self.tokens:,}{of_all} tokens; {self.filled} documents fill the window of "
            f"{self.window:,}"
        )

    def summary_table(self) -> Any:
        """A rich renderable: the two short tables with what was measured above and the warnings below."""
        from rich.console import Group
        from rich.text import Text

        notes = [Text(f"Note: {warning}") for warning in self.warnings]
        tables = [_table(self.summary(), "Mean r and share of each class"), _table(self.extremes(), "Heads")]
        return Group(Text(self.headline()), *tables, *notes)

    def __rich__(self) -> Any:
        return self.summary_table()

    def __repr__(self) -> str:
        text = self.summary().to_string(index=False, formatters=_formats(self.summary()))
        notes = "".join(f"\nNote: {warning}" for warning in self.warnings)
        return f"{self.headline()}\n{text}{notes}"

    def _repr_html_(self) -> str:
        from html import escape

        tables = [table.to_html(index=False, border=0, formatters=_formats(table)) for table in self._short()]
        notes = "".join(f"<p>Note: {escape(warning)}</p>" for warning in self.warnings)
        return f"<p>{escape(self.headline())}</p>{''.join(tables)}{notes}"

    def _short(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        return self.summary(), self.extremes()


def _cell(name: str, value: Any) -> str:
    """One value as a person reads it: shares in percent, correlations with a sign, what is missing as a dash."""
    if isinstance(value, str):
        return value
    if value != value:
        return "–"
    if name == "rope":
        return "RoPE" if value else "NoPE"
    if name in (*CLASSES, UNMEASURED, "explained_variance"):
        return f"{value:.0%}"
    if name in ("r_q", "r_k"):
        return f"{value:+.2f}"
    return f"{value:.2f}" if name.endswith("_se") else str(value)


def _formats(frame: pd.DataFrame) -> dict[str, Any]:
    return {name: (lambda value, name=name: _cell(name, value)) for name in frame.columns}


def _table(frame: pd.DataFrame, title: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in frame.columns:
        words = {"r_q_se": "±", "r_k_se": "±", "explained_variance": "PC0 variance", "which": ""}
        table.add_column(words.get(name, name), justify="left" if frame[name].dtype == object else "right")
    for row in frame.itertuples(index=False):
        table.add_row(*(_cell(name, value) for name, value in zip(frame.columns, row, strict=True)))
    return table
