"""The figures of a study, each with its data and a README that says in measured numbers what it shows.

    results -> view (checks, axis, windows) -> one module a figure -> figure.png, figure.svg, data.csv, README.md

A figure is a pure function from results to a `Drawing`: the matplotlib figure and exactly the numbers in it. Nothing
here uses pyplot or changes a setting of matplotlib, so figures can be drawn in threads and in notebooks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pandas as pd

from qkscope import store
from qkscope.figures import (
    by_component,
    explained_variance,
    layer_heatmap_rk,
    layer_heatmap_rq,
    phase_portraits,
    polarity,
    position_signal,
    rope_vs_nope,
    taxonomy_evolution,
    transitions,
)
from qkscope.figures.prose import Words
from qkscope.figures.readme import readme
from qkscope.figures.save import png, svg
from qkscope.figures.view import Drawing, View, look
from qkscope.results import Results, load_results

if TYPE_CHECKING:
    from rich.text import Text

    from qkscope.findings import Claim


FILES = ("figure.png", "figure.svg", "data.csv", "README.md")


@dataclass(frozen=True)
class Entry:
    """A figure of the catalogue, and which of the study's findings its README quotes."""

    name: str
    draw: Callable[[Results], Drawing]
    title: Callable[[View], str]
    describe: Callable[[View, pd.DataFrame], Words]
    why_not: Callable[[View], str | None]
    findings: tuple[str, ...]
    function: str


def _entry(module: ModuleType, *findings: str, why_not: Callable[[View], str | None] | None = None) -> Entry:
    check: Callable[[View], str | None] = why_not or getattr(module, "why_not", None) or _always
    function = f"{module.__name__}.draw"
    return Entry(module.NAME, module.draw, module.title, module.describe, check, findings, function)


def _always(view: View) -> str | None:
    return None


def _no_course(view: View) -> str | None:
    return view.why_no_course


CATALOGUE: tuple[Entry, ...] = (
    _entry(
        position_signal,
        "signal",
        "window",
        "r_q",
        "long_context",
        "jumps",
        "plateaus",
        why_not=_no_course,
    ),
    _entry(polarity, "long_context", "sign_changes", why_not=_no_course),
    _entry(taxonomy_evolution, "content_vanishes", "feeds"),
    _entry(explained_variance, "jumps", "plateaus"),
    _entry(layer_heatmap_rq, "early_layers"),
    _entry(layer_heatmap_rk, "early_layers"),
    _entry(phase_portraits, "signal", "sign_changes", "models"),
    _entry(transitions, "feeds", "sign_changes"),
    _entry(rope_vs_nope, "rope"),
    _entry(by_component, "models"),
)
"""All figures, in the order of their numbers."""


@dataclass(frozen=True)
class Drawn:
    """A figure that was drawn, and the folder it is in."""

    name: str
    folder: Path


@dataclass(frozen=True)
class LeftOut:
    """A figure that was not drawn, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Made:
    """What `draw_all` did; its text is what the command line prints."""

    drawn: tuple[Drawn, ...]
    left_out: tuple[LeftOut, ...]

    def __str__(self) -> str:
        lines = [str(each.folder / "figure.png") for each in self.drawn]
        lines += [f"left out: {each.name}: {each.reason}" for each in self.left_out]
        return "\n".join(lines)

    def __rich__(self) -> Text:
        """Paths stay whole whatever the width of the terminal."""
        from rich.text import Text

        return Text(str(self), no_wrap=True, overflow="ignore")


def draw_all(results: Results | Path | str, out: Path | None = None) -> Made:
    """Draw all figures the data allow into `out`, by default the results' own folder `figures`."""
    from qkscope.findings import claims

    loaded = results if isinstance(results, Results) else load_results(results)
    view = look(loaded)
    found = claims(loaded)
    folder = Path(out) if out is not None else loaded.folder / "figures"
    drawn, left_out = [], []
    for entry in CATALOGUE:
        reason = entry.why_not(view)
        if reason is None:
            _write(entry, view, found, folder / entry.name)
            drawn.append(Drawn(entry.name, folder / entry.name))
        else:
            _clear(folder / entry.name)
            left_out.append(LeftOut(entry.name, reason))
    return Made(tuple(drawn), tuple(left_out))


def _clear(folder: Path) -> None:
    """Remove a figure of an earlier drawing: it would show other data than its neighbours."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _write(entry: Entry, view: View, found: tuple[Claim, ...], folder: Path) -> None:
    """One figure's four files."""
    drawing = entry.draw(view.results)
    quoted = [each for each in found if each.id in entry.findings]
    words = entry.describe(view, drawing.data)
    text = readme(view, entry.title(view), words, entry.function, quoted)
    store.write_bytes(folder / "figure.png", png(drawing.figure))
    store.write_bytes(folder / "figure.svg", svg(drawing.figure))
    store.write_csv(folder / "data.csv", drawing.data)
    store.write_text(folder / "README.md", text)
