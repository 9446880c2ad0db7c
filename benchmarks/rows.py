"""Rows of a benchmark -> RESULTS.md and its plot: what was measured, beside what, and how far rounds scatter."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

Taken = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Row:
    """One side of a comparison: (wall, processor) seconds in each round, and those of what it is compared with."""

    part: str
    name: str
    taken: Taken
    base: Taken

    @property
    def ratios(self) -> list[tuple[float, float]]:
        """To the base of the same round, on the clock and of the processor."""
        return [(a[0] / b[0], a[1] / b[1]) for a, b in zip(self.taken, self.base, strict=True)]

    def line(self) -> str:
        wall, processor = zip(*self.ratios, strict=True)
        seconds = [median(column) for column in zip(*self.taken, strict=True)]
        spread = f"{min(wall):.2f} to {max(wall):.2f}"
        return (
            f"| {self.name} | {seconds[0]:.3g} | {median(wall):.2f} | {spread} | {seconds[1]:.3g} | "
            f"{median(processor):.2f} | {min(processor):.2f} to {max(processor):.2f} |"
        )


HEADER = "| | wall s | ratio | of each round | processor s | ratio | of each round |\n|---|---|---|---|---|---|---|"


def write(rows: Sequence[Row], said: Sequence[str], folder: Path) -> None:
    """RESULTS.md and RESULTS.png. `said` are further lines."""
    parts = list(dict.fromkeys(row.part for row in rows))
    machine = f"{os.cpu_count()} cores ({platform.machine()}), load {os.getloadavg()[0]:.1f} at the end"
    text = [
        "# Measured speed",
        "",
        f"Written by `python -m benchmarks` on {machine}. Rounds are interleaved; a ratio is to the first row of its "
        "table in the same round: whatever else the machine does meets both. Processor time counts all threads.",
        "",
        "![Ratios of every round](RESULTS.png)",
    ]
    for part in parts:
        text += ["", f"## {part}", "", HEADER, *(row.line() for row in rows if row.part == part)]
    text += ["", *(f"- {line}" for line in said)] if said else []
    (folder / "RESULTS.md").write_text("\n".join(text) + "\n")
    _plot(rows, folder / "RESULTS.png")


def _plot(rows: Sequence[Row], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.6 + 0.32 * len(rows)), layout="constrained")
    axis = figure.subplots()
    for y, row in enumerate(rows):
        wall, processor = zip(*row.ratios, strict=True)
        axis.plot(wall, [y] * len(wall), "o", color="#0072b2", label="" if y else "wall clock", alpha=0.7)
        axis.plot(processor, [y] * len(wall), "|", color="#d55e00", label="" if y else "processor", ms=12)
    axis.set_yticks(range(len(rows)), [f"{row.part}: {row.name}" for row in rows])
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.axvline(1, color="0.7", lw=0.8, zorder=0)
    axis.set_xlabel("ratio to the first row of the part, one mark a round")
    axis.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=130)
