"""A scan's result in short: for a terminal, a notebook and a Python prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qkscope.results.roles import ROLES
from qkscope.results.taxonomy import CLASSES, UNMEASURED
from qkscope.words import bare, percent, tokens

if TYPE_CHECKING:
    import pandas as pd

    from qkscope.capture.architecture import Architecture


# A column of the summary -> the measure that it averages.
_PARTS = {
    "position": "share_position",
    "key": "share_key",
    "match": "share_match",
    "query x position": "share_query_position",
    "score_sd": "score_sd",
    "sink": "sink",
}


class ScanTables:
    """The short tables of a result that has heads, and how they are shown."""

    model: str
    architecture: Architecture
    window: int
    documents: int
    tokens: int
    filled: int
    warnings: list[str]
    available: int | None

    @property
    def heads(self) -> pd.DataFrame:
        """A row per head."""
        raise NotImplementedError

    def summary(self) -> pd.DataFrame:
        """Mean r_q, r_k and the share of each class: of all heads, of RoPE layers and of NoPE layers."""
        import pandas as pd

        rows = []
        for name, part in self._by_rotation(self.heads).items():
            measured = part[part["class"] != UNMEASURED]
            row: dict[str, Any] = {"layers": name, "heads": len(part)}
            row |= {"r_q": measured["r_q"].mean(), "r_k": measured["r_k"].mean()}
            row |= {kind: (measured["class"] == kind).mean() for kind in CLASSES}
            if len(measured) < len(part):
                row[UNMEASURED] = (part["class"] == UNMEASURED).mean()
            rows.append(row)
        return pd.DataFrame(rows)

    def decides(self) -> pd.DataFrame:
        """What decides where heads look, on average: of all heads, of RoPE and NoPE layers, and of each class.

        Shares of the variance of a query's scores over its keys, its standard deviation in logits, and `sink`: the
        head start of the first token.
        """
        import pandas as pd

        heads = self.heads
        parts = self._by_rotation(heads) | {name: heads[heads["class"] == name] for name in CLASSES}
        rows = [
            {"heads": which} | {short: part[name].mean() for short, name in _PARTS.items()}
            for which, part in parts.items()
            if len(part)
        ]
        return pd.DataFrame(rows)

    def roles(self) -> pd.DataFrame:
        """How many heads have each role beyond noise, and the strongest of them; only roles that some head has."""
        import pandas as pd

        heads = self.heads
        rows = []
        for role in ROLES if "roles" in heads else ():
            own = heads[heads["roles"].str.split("; ").map(lambda names, role=role: role.name in names)]
            best = own.sort_values(role.variable, ascending=False, kind="stable").head(3)
            named = [f"L{r.layer}H{r.head} {getattr(r, role.variable):.2f}" for r in best.itertuples()]
            if len(own):
                rows.append({"role": role.name, "heads": len(own), "strongest": ", ".join(named)})
        return pd.DataFrame(rows)

    def _by_rotation(self, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """All heads and, where some layers do not rotate, those of either kind."""
        if not (frame["rope"] == 0).any():
            return {"all": frame}
        return {"all": frame, "RoPE": frame[frame["rope"] == 1], "NoPE": frame[frame["rope"] == 0]}

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
            f"{tokens(self.window)}"
        )

    def summary_table(self) -> Any:
        """A rich renderable: the two short tables with what was measured above and the warnings below."""
        from rich.console import Group
        from rich.text import Text

        notes = [Text(f"Note: {warning}") for warning in self.warnings]
        tables = [_table(frame, title) for title, frame in self._short().items()]
        return Group(Text(self.headline()), *tables, *notes)

    def __rich__(self) -> Any:
        return self.summary_table()

    def __repr__(self) -> str:
        shown = [self.summary(), self.decides()]
        text = "\n".join(frame.to_string(index=False, formatters=_formats(frame)) for frame in shown)
        notes = "".join(f"\nNote: {warning}" for warning in self.warnings)
        return f"{self.headline()}\n{text}{notes}"

    def _repr_html_(self) -> str:
        from html import escape

        tables = [
            table.to_html(index=False, border=0, formatters=_formats(table))
            for table in self._short().values()
        ]
        notes = "".join(f"<p>Note: {escape(warning)}</p>" for warning in self.warnings)
        return f"<p>{escape(self.headline())}</p>{''.join(tables)}{notes}"

    def _short(self) -> dict[str, pd.DataFrame]:
        roles = self.roles()
        return {
            "Mean r and share of each class": self.summary(),
            "What determines where heads attend: mean share of score variance over keys": self.decides(),
            "Heads": self.extremes(),
        } | ({"Roles: what heads attend to, beyond noise": roles} if len(roles) else {})


def _cell(name: str, value: Any) -> str:
    """One value as a person reads it: shares in percent, correlations with a sign, what is missing as a dash."""
    if isinstance(value, str):
        return value
    if value != value:
        return "–"
    if name == "rope":
        return "RoPE" if value else "NoPE"
    if name in (*CLASSES, UNMEASURED, "explained_variance", *tuple(_PARTS)[:4]):
        return percent(value)
    if name in ("r_q", "r_k", "sink"):
        return bare(value, signed=True)
    return bare(value) if name.endswith(("_se", "_sd")) else str(value)


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
