"""Render results.json as RESULTS.md, its plot and the tables of docs/scaling.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import Clock, Fact, Row, to_base
from benchmarks.kept import HERE, Kept, rows_of

CLOCKS: tuple[Clock, Clock] = ("wall", "processor")
COLOURS = {"ours": "#0072b2", "peer": "#d55e00", "limit": "#6b6b6b"}
DOCS = HERE.parent / "docs" / "scaling.md"


def render(kept: Kept, folder: Path) -> None:
    """Write RESULTS.md and RESULTS.png to `folder`; for the repository's own results also the tables in the docs."""
    (folder / "RESULTS.md").write_text(page(kept))
    plot([row for record in kept.values() for row in rows_of(record)], folder / "RESULTS.png")
    if folder == HERE:
        DOCS.write_text(with_tables(DOCS.read_text(), kept))


def page(kept: Kept) -> str:
    text = [
        "# Measured speed",
        "",
        "Written by `make bench` from [results.json](results.json). Rounds are interleaved. A ratio is to the first "
        "row of its table in the same round, so that other load on the machine affects both. Times and ratios are "
        "medians over rounds, followed by the range. CPU time is the sum over all threads.",
        "",
        "![Ratios of every round, and growth](RESULTS.png)",
    ]
    for name, record in kept.items():
        for number, (table, rows) in enumerate(by_table(rows_of(record)).items()):
            text += ["", f"## {table}", ""]
            text += [record["note"], ""] if not number and record["note"] else []
            text += table_lines(rows)
        text += ["", f"`{name}`: {measured_on(record)}"]
    return "\n".join(text) + "\n"


def by_table(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.table, []).append(row)
    return found


def measured_on(record: dict[str, Any]) -> str:
    """The machine that a part was measured on, in one line."""
    of = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in of["versions"].items())
    return (
        f"{of['date']}, {of['cores']} cores of {of['cpu']}, {of['memory_gb']} GB, load {record['load'][0]} before and "
        f"{record['load'][1]} after {record['seconds']:.0f} s; {versions}"
    )


def table_lines(rows: Sequence[Row], brief: bool = False) -> list[str]:
    """Times, if any row has them (`brief`: only median wall times), then one column per fact."""
    timed = any(row.wall for row in rows)
    facts = list(dict.fromkeys(name for row in rows for name in row.facts))
    clock = ["wall s", "ratio", "range over rounds"]
    times = clock[:2] if brief else [*clock, clock[0].replace("wall", "CPU"), *clock[1:]]
    several = len({row.role for row in rows}) > 1
    head = [""] * (1 + several) + (times if timed else []) + facts
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [row.name, *([row.role] if several else [])]
        cells += _times(row, rows[0])[: len(times)] if timed else []
        cells += [number(row.facts[name]) if name in row.facts else "" for name in facts]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _times(row: Row, base: Row) -> list[str]:
    if not row.wall:
        return [""] * 6
    cells = []
    for clock in CLOCKS:
        ratios = to_base(row, base, clock)
        cells += [number(median(getattr(row, clock))), f"{median(ratios):.3g}"]
        cells.append(f"{min(ratios):.3g} to {max(ratios):.3g}" if row is not base else "")
    return cells


def number(value: Fact) -> str:
    """Three significant digits."""
    if isinstance(value, str):
        return value
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-3 or not value else f"{value:.1e}"


def with_tables(text: str, kept: Kept) -> str:
    """The page with everything between `<!-- benchmarks: a, b -->` and `<!-- end -->` replaced by parts' tables."""

    def tables(match: re.Match[str]) -> str:
        lines = [line for name in match[1].split(", ") for line in _brief(name, kept.get(name))]
        return "\n".join([f"<!-- benchmarks: {match[1]} -->", *lines, "<!-- end -->"])

    return re.sub(r"<!-- benchmarks: (.*?) -->.*?<!-- end -->", tables, text, flags=re.S)


def _brief(name: str, record: dict[str, Any] | None) -> Iterable[str]:
    if record is None:
        yield f"\nNot measured yet: `python -m benchmarks {name}`.\n"
        return
    for table, rows in by_table(rows_of(record)).items():
        yield from ("", f"**{table}**", "", *table_lines(rows, brief=True), "")


def plot(rows: Sequence[Row], path: Path) -> None:
    """One panel per table: ratios on a log axis, one mark per round; growth on two log axes, with exponents."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    panels = by_table(rows)
    columns: list[list[tuple[str, float]]] = [[], []]
    for table, of in panels.items():
        if of[0].curve or (len(of) > 1 and any(row.wall or row.curve for row in of)):
            height = 8.0 if of[0].curve else 1.3 + 0.8 * len(of)
            min(columns, key=lambda column: sum(h for _, h in column)).append((table, height))
    tallest = max(sum(h for _, h in column) for column in columns)
    with rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(14, 1.2 + 0.32 * tallest), layout="constrained", facecolor="white")
        halves: Any = figure.subfigures(1, 2, wspace=0.03)
        for half, column in zip(halves, columns, strict=True):
            axes = half.subplots(
                max(1, len(column)), squeeze=False, height_ratios=[h for _, h in column] or None
            )
            for axis, (table, _) in zip(axes[:, 0], column, strict=False):
                (_curves if panels[table][0].curve else _ratios)(axis, panels[table])
                axis.set_title(table, loc="left", fontsize=10, fontweight="bold")
        _legend(figure)
        figure.savefig(path, dpi=150)


def _ratios(axis: Any, rows: Sequence[Row]) -> None:
    for y, row in enumerate(rows):
        style = {"color": COLOURS[row.role], "clip_on": False, "ls": ""}
        axis.plot(
            to_base(row, rows[0]), [y] * len(row.wall), marker="o", ms=5, alpha=0.75, mec="white", **style
        )
        axis.plot(to_base(row, rows[0], "processor"), [y + 0.28] * len(row.wall), marker="|", ms=6, **style)
    axis.set_yticks(range(len(rows)), [row.name for row in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.axvline(1, color="0.75", lw=0.8, zorder=0)
    axis.set(xscale="log", xlabel=f"time relative to {rows[0].name}")
    _tidy(axis, axis.xaxis)


def _curves(axis: Any, rows: Sequence[Row]) -> None:
    highest = 2.0
    for row, mark in zip(rows, "osD^", strict=False):
        x, y = zip(*row.curve, strict=True)
        grown = [each / y[0] for each in y]
        highest = max(highest, *grown)
        axis.plot(x, grown, marker=mark, ms=4, lw=0.9, label=f"{row.name}: {row.facts['exponent']}")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set(xlabel=rows[0].table.removeprefix("Growth with "), ylabel="relative to the first")
    axis.set_ylim(top=highest ** (1.3 + 0.2 * len(rows)))  # room for the legend
    axis.legend(frameon=False, title="exponent ± standard error", loc="upper left", fontsize=7)
    _tidy(axis, axis.xaxis, axis.yaxis)


def _tidy(axis: Any, *scales: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_xlim()
    if len(scales) == 1 and high / low < 30:
        steps = (1, 2, 5) if high / low > 4 else (1, 1.2, 1.5, 2, 3, 5, 6, 7, 8)
        axis.xaxis.set_major_locator(LogLocator(subs=steps))
    for scale in scales:
        scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        scale.set_minor_formatter(NullFormatter())
        scale.grid(True, which="major", color="0.92", lw=0.6)
    axis.set_axisbelow(True)


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D

    def mark(label: str, marker: str = "o", colour: str = "0.2") -> Line2D:
        return Line2D([], [], marker=marker, ls="", color=colour, label=label)

    marks = [mark("wall time of a round:"), *(mark(role, colour=colour) for role, colour in COLOURS.items())]
    marks.append(mark("CPU time of a round", "|"))
    figure.legend(handles=marks, loc="outside upper center", ncols=5, fontsize=9, frameon=False)
