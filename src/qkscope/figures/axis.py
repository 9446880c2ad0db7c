"""The axis of checkpoints: their names, the phases above, dashed lines between phases, gaps where one is missing.

One checkpoint is one unit wide, whatever its step: training is drawn in the order it happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from qkscope.figures.style import (
    FAINT,
    INK,
    LEFT,
    MUTED,
    PAPER,
    SEPARATOR,
    extent,
    fits,
    lettering,
    plain,
    shorten,
    wrap,
    write,
)
from qkscope.figures.view import View

_LONGEST = 30  # letters of a name on the axis; data.csv and README.md have it whole
_LINE = 1.2  # height of a line of text, in font sizes


@dataclass(frozen=True)
class Lettered:
    """Texts that fit: their lines, size and whether they stand upright; `height` in inches."""

    texts: tuple[str, ...]
    size: float
    upright: bool
    height: float


class CheckpointAxis:
    """Measures first (`width`, `above`, `below`, all in inches), then draws onto panels of that width."""

    def __init__(
        self, view: View, left: float = LEFT, right: float = 0.3, pitch: float | None = None
    ) -> None:
        self.view = view
        self.left, self.right = left, right
        count = len(view.stops)
        self.pitch = pitch or min(max(9.4 / count, min(0.36, 18.0 / count)), max(1.5, 5.4 / count))
        self.width = self.pitch * count
        self._ticks = fit_names([view.labels[stop.model] for stop in view.stops], self.pitch)
        spans = [(last - first + 1) * self.pitch - 0.1 for _, first, last in view.phases]
        self._phases = fit_phases([plain(name) for name, _, _ in view.phases], spans)

    @property
    def sheet_width(self) -> float:
        return self.left + self.width + self.right

    @property
    def above(self) -> float:
        """Inches the phase names need over the first panel."""
        return self._phases.height + 0.12 if self._named else 0.06

    @property
    def below(self) -> float:
        """Inches the checkpoint names need under the last panel."""
        return self._ticks.height + 0.16

    @property
    def _named(self) -> bool:
        return any(text.strip() for text in self._phases.texts)

    def draw(self, axes: Axes, names: bool = True, phases: bool = True) -> None:
        """Ticks, separators and gaps; the texts only where asked, so that stacked panels share one set."""
        count = len(self.view.stops)
        axes.set_xlim(-0.5, count - 0.5)
        self._draw_names(axes, names)
        for _, first, _ in self.view.phases[1:]:
            axes.axvline(first - 0.5, color=SEPARATOR, linestyle=(0, (4, 3)), linewidth=1.1, zorder=1.2)
        for i, stop in enumerate(self.view.stops):
            if stop.missing:
                axes.axvspan(
                    i - 0.5,
                    i + 0.5,
                    facecolor="#f6f6f6",
                    edgecolor=FAINT,
                    hatch="///",
                    linewidth=0,
                    zorder=0.5,
                )
        if phases and self._named:
            self._draw_phases(axes)

    def _draw_names(self, axes: Axes, names: bool) -> None:
        ticks = self._ticks
        every = self._every()
        shown = [t if names and i % every == 0 else "" for i, t in enumerate(ticks.texts)]
        axes.set_xticks(range(len(shown)), shown, **lettering(ticks.size), linespacing=1.1)
        axes.minorticks_off()
        for text, stop in zip(axes.get_xticklabels(), self.view.stops, strict=True):
            if ticks.upright:
                text.set_rotation(90)
            text.set_color(INK if not stop.missing else "#a0a0a0")

    def _every(self) -> int:
        """Show every n-th name where they stand closer than their letters are high."""
        if not self._ticks.upright:
            return 1
        need = self._ticks.size / 72 * 1.15
        return max(1, -(-int(need * 1000) // int(self.pitch * 1000)))

    def _draw_phases(self, axes: Axes) -> None:
        fitted = self._phases
        for text, (_, first, last) in zip(fitted.texts, self.view.phases, strict=True):
            axes.annotate(
                text, ((first + last) / 2, 1), (0, 8), xycoords=("data", "axes fraction"), textcoords="offset points",
                ha="center", va="bottom" if fitted.upright else "baseline", rotation=90 if fitted.upright else 0,
                linespacing=1.1, **lettering(fitted.size, MUTED, "bold"),
            )  # fmt: skip

    def mark_missing(self, axes: Axes) -> None:
        """Write "not measured" into the gaps of a panel."""
        for i, stop in enumerate(self.view.stops):
            if stop.missing:
                box = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.5}
                place = {
                    "transform": axes.get_xaxis_transform(),
                    "ha": "center",
                    "va": "center",
                    "rotation": 90,
                }
                write(axes, i, 0.5, "not measured", 8, MUTED, bbox=box, zorder=0.6, **place)


def fit_names(names: Sequence[str], pitch: float) -> Lettered:
    """Names side by side if they fit in up to three lines, else upright."""
    for size in (10.0, 9.0, 8.5):
        room = pitch - 0.1
        lines = [wrap(name, room, size) for name in names]
        deepest = max(len(each) for each in lines)
        if deepest <= 3 and all(fits(each, room, size) for each in lines):
            return Lettered(
                tuple("\n".join(each) for each in lines), size, False, deepest * size * _LINE / 72
            )
    size = 9.0 if pitch >= 0.3 else 8.0
    short = tuple(shorten(name, _LONGEST) for name in names)
    return Lettered(short, size, True, max(extent(name, size)[0] for name in short))


def fit_phases(names: Sequence[str], spans: Sequence[float]) -> Lettered:
    """Phase names over their spans in up to three lines, smaller if need be, upright if nothing else fits."""
    for size in (10.0, 9.0, 8.0):
        lines = [wrap(name, span, size, "bold") for name, span in zip(names, spans, strict=True)]
        deepest = max(len(each) for each in lines)
        wide = all(fits(each, span, size, "bold") for each, span in zip(lines, spans, strict=True))
        if deepest <= 3 and wide:
            return Lettered(
                tuple("\n".join(each) for each in lines), size, False, deepest * size * _LINE / 72
            )
    size = 8.0
    short = tuple(shorten(name, _LONGEST) for name in names)
    return Lettered(short, size, True, max(extent(name, size, "bold")[0] for name in short))
