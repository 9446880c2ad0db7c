"""All figures, drawing one or all of them, and what was drawn.

    results -> view (checks, order, windows) -> picture -> figure.png, figure.svg, figure.pdf, data.csv, README.md

A figure is a pure function from a study to a `Drawing`. Nothing here uses pyplot or leaves a setting of matplotlib
changed, so figures can be drawn in threads and in notebooks.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from qkscope.claims import Claim, all_claims
from qkscope.errors import TableError
from qkscope.figures import gallery as pictures
from qkscope.figures.picture import MATPLOTLIB, Drawing, Picture, save
from qkscope.figures.readme import readme
from qkscope.figures.view import Spacing, View, look
from qkscope.progress import say
from qkscope.results import Results, as_results
from qkscope.results.owner import redrawing, refuse_drawing_into_other
from qkscope.workers import in_processes, worth

if TYPE_CHECKING:
    from rich.text import Text

FILES = ("figure.png", "figure.svg", "figure.pdf", "data.csv", "README.md")
MANY = 500  # checkpoints from which drawing takes a minute and more
_FOLDER = re.compile(r"\d\d_[a-z_]+")


def find_pictures() -> tuple[Picture, ...]:
    """Every `Picture` that a module of `gallery/` defines, by name."""
    names = [f"{pictures.__name__}.{module.name}" for module in iter_modules(pictures.__path__)]
    values = [value for name in names for value in vars(import_module(name)).values()]
    found = {value.name: value for value in values if isinstance(value, Picture)}
    return tuple(found[name] for name in sorted(found))


CATALOGUE = find_pictures()
"""The figures of `gallery/`, in the order of their numbers."""


@dataclass(frozen=True)
class FigureSet:
    """What `draw_all` did; its text is what the command line prints."""

    drawn: tuple[Path, ...]
    """The folders of the figures, called like them."""
    left_out: Mapping[str, str]
    """Name of a figure -> why it was not drawn."""
    older: tuple[Path, ...] = ()
    """Folders of figures left out now that have files all the same, of which it is not known what they show."""

    def __str__(self) -> str:
        old = "was not drawn from these results; delete it if it is old"
        lines = [str(folder / "figure.png") for folder in self.drawn]
        lines += [f"left out: {name}: {reason}" for name, reason in self.left_out.items()]
        return "\n".join([*lines, *(f"warning: {folder} {old}" for folder in self.older)])

    def __rich__(self) -> Text:
        """Paths stay whole whatever the width of the terminal."""
        from rich.text import Text

        return Text(str(self), no_wrap=True, overflow="ignore")


def draw(
    name: str, results: Results | Path | str, width: float | None = None, spacing: Spacing = "order"
) -> Drawing:
    """Draw one figure by name, with or without its number.

    `width` is in inches (3.3 for one paper column, 6.9 for two). With `spacing="steps"`, line plots space checkpoints
    by training steps instead of evenly.
    """
    named = {key: picture for picture in CATALOGUE for key in (picture.name, picture.name.partition("_")[2])}
    if name not in named:
        raise TableError(f"there is no figure {name!r}; there are {', '.join(p.name for p in CATALOGUE)}")
    picture, view = named[name], look(as_results(results), spacing)
    reason = picture.why_not(view)
    if reason:
        raise TableError(f"{picture.name} cannot be drawn: {reason}")
    with MATPLOTLIB:
        return picture.draw(view, width)


def draw_all(results: Results | Path | str, out: Path | None = None, spacing: Spacing = "order") -> FigureSet:
    """Draw every figure that the results have data for, into `out` (default: the folder `figures` of the results).

    In the results folder all figures are replaced together, and figures from an earlier call are removed.
    """
    loaded = as_results(results)
    if (count := len(loaded.timeline.models)) >= MANY:
        say(
            f"drawing {count:,} checkpoints takes about {count / 500:.0f} minutes; a study of every tenth shows as much"
        )
    folder = Path(out) if out is not None else loaded.folder / loaded.beside_study("figures")
    refuse_drawing_into_other(folder, loaded.folder)
    view = look(loaded, spacing)
    reasons = {picture.name: picture.why_not(view) for picture in CATALOGUE}
    names = [name for name, reason in reasons.items() if reason is None]
    if folder.resolve() == (loaded.folder / "figures").resolve():
        with redrawing(loaded.folder, loaded.made_from, "figures") as staged:
            _draw(view, names, staged / "figures")
    else:
        _draw(view, names, folder)
    there = sorted(folder.glob("*/")) if folder.is_dir() else []
    older = [path for path in there if _FOLDER.fullmatch(path.name) and path.name not in names]
    left_out = {name: reason for name, reason in reasons.items() if reason is not None}
    return FigureSet(tuple(folder / name for name in names), left_out, tuple(older))


def _draw(view: View, names: Sequence[str], into: Path) -> None:
    """Draw figures by name; in processes where the time of the first says that it pays."""
    started, write = time.monotonic(), partial(_write, view, all_claims(view.results), into)
    write(names[:1])
    count = worth(len(names[1:]), time.monotonic() - started)
    if count == 1:
        write(names[1:])
    else:
        list(in_processes(write, [names[1 + i :: count] for i in range(count)], count))


def _write(view: View, said: Sequence[Claim], into: Path, names: Sequence[str]) -> None:
    named = {picture.name: picture for picture in CATALOGUE}
    for name in names:
        drawing = named[name].draw(view, None)
        save(drawing.figure, drawing.data, readme(named[name], view, drawing, said), into / name)
