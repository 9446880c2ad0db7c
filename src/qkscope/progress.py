"""Long work shows progress: a bar on a terminal, one line per finished unit elsewhere, nothing with --quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class _Reports:
    """Whether progress is reported; warnings and errors always are."""

    quiet = False


def quieten(quiet: bool) -> None:
    """Whether bars and reports of finished work are left out, for the rest of the process."""
    _Reports.quiet = quiet


@contextmanager
def quiet() -> Iterator[None]:
    """Leave bars and reports of finished work out while the block runs."""
    before, _Reports.quiet = _Reports.quiet, True
    try:
        yield
    finally:
        _Reports.quiet = before


def say(line: str) -> None:
    """Print a line about progress on standard error. Warnings are printed even when quiet."""
    if not _Reports.quiet or line.startswith(("warning:", "left out:")):
        print(line, file=sys.stderr, flush=True)


class Bar:
    """Counts things of one unit. `done` prints a line about a finished piece of work."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.count = 0
        self._started = time.monotonic()
        self._rich: tuple[Progress, TaskID] | None = None

    def advance(self, amount: int = 1) -> None:
        self.count += amount
        if self._rich:
            progress, task = self._rich
            progress.update(task, advance=amount, rate=self.rate())

    def done(self, line: str) -> None:
        """Report a finished piece: above the bar on a terminal, as a plain line elsewhere."""
        if self._rich:
            self._rich[0].console.print(line, highlight=False, markup=False)
        else:
            say(line)

    def describe(self, text: str) -> None:
        """Change the words beside the bar; without a terminal nothing is printed."""
        if self._rich:
            self._rich[0].update(self._rich[1], description=_plain(text))

    def rate(self) -> str:
        seconds = time.monotonic() - self._started
        return f"{self.count / seconds:,.0f} {self.unit}/s" if seconds > 0.5 and self.count else ""


@contextmanager
def progress(description: str, total: int | None, unit: str = "tokens") -> Iterator[Bar]:
    """A bar on standard error while the block runs, if that is a terminal."""
    bar = Bar(unit)
    if _Reports.quiet or not sys.stderr.isatty():
        yield bar
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("[dim]{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        bar._rich = (shown, shown.add_task(_plain(description), total=total, rate=""))
        yield bar


def _plain(text: str) -> str:
    """Names may hold square brackets, which rich would read as markup."""
    from rich.markup import escape

    return escape(text)
