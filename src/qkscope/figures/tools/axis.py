"""The axis of checkpoints: their names, the phases above, dashed lines between phases, gaps where one is missing.

One checkpoint is one unit wide, whatever its step: training is drawn in the order it happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from qkscope.figures.tools import style
from qkscope.figures.tools.sheet import Paper, inches
from qkscope.figures.view import View


@dataclass(frozen=True)
class Lettered:
    """Texts that fit: their lines, size and whether they stand upright; `height` in inches."""

    texts: tuple[str, ...]
    size: float
    upright: bool
    height: float


class CheckpointAxis:
    """Measures first (`width`, `above`, `below`, all in inches), then draws onto panels of that width."""

    def __init__(self, view: View, paper: Paper, left: float | None = None) -> None:
        self.view, self.paper = view, paper
        self.left = left or paper.left
        count = len(view.stops)
        if paper.width is None:
            self.pitch = min(max(9.4 / count, min(0.36, 18.0 / count)), max(1.5, 5.4 / count))
        else:
            self.pitch = (paper.width - self.left - paper.right) / count
        self.width = self.pitch * count
        self._ticks = fit_names([view.labels[stop.model] for stop in view.stops], self.pitch, paper)
        spans = [(last - first + 1) * self.pitch - 0.1 * paper.factor for _, first, last in view.phases]
        self._phases = fit_phases([style.drawable(name) for name, _, _ in view.phases], spans, paper)

    @property
    def sheet_width(self) -> float:
        return self.left + self.width + self.paper.right

    @property
    def above(self) -> float:
        """Inches the phase names need over the first panel."""
        return self._phases.height + 0.14 if self._named else 0.06

    @property
    def below(self) -> float:
        """Inches the checkpoint names need under the last panel."""
        return self._ticks.height + 0.16 * self.paper.factor

    @property
    def _named(self) -> bool:
        return any(text.strip() for text in self._phases.texts)

    def draw(self, axes: Axes, names: bool = True, phases: bool = True) -> None:
        """Ticks, separators and gaps; the texts only where asked, so that stacked panels share one set."""
        axes.set_xlim(-0.5, len(self.view.stops) - 0.5)
        self._draw_names(axes, names)
        for _, first, _ in self.view.phases[1:]:
            rule = axes.axvline(first - 0.5, color=style.SEPARATOR, linestyle=style.DASHES, zorder=1.2)
            rule.set_linewidth(1.1 * self.paper.factor)
        for i, stop in enumerate(self.view.stops):
            if stop.missing:
                gap = axes.axvspan(i - 0.5, i + 0.5, facecolor="#f6f6f6", edgecolor=style.FAINT, hatch="///")
                gap.set(linewidth=0, zorder=0.5)
        if phases and self._named:
            self._draw_phases(axes)

    def _draw_names(self, axes: Axes, names: bool) -> None:
        ticks = self._ticks
        every = self._every()
        shown = [t if names and i % every == 0 else "" for i, t in enumerate(ticks.texts)]
        axes.set_xticks(range(len(shown)), shown, **style.lettering(ticks.size), linespacing=1.1)
        axes.minorticks_off()
        for i, (tick, stop) in enumerate(zip(axes.xaxis.get_major_ticks(), self.view.stops, strict=True)):
            tick.label1.set_rotation(90 if ticks.upright else 0)
            tick.label1.set_color(style.INK if not stop.missing else "#a0a0a0")
            tick.tick1line.set_visible(i % every == 0)

    def _every(self) -> int:
        """Show every n-th name where they stand closer than their letters are high."""
        if not self._ticks.upright:
            return 1
        need = self._ticks.size / 72 * 1.2
        return max(1, -(-int(need * 1000) // int(self.pitch * 1000)))

    def _draw_phases(self, axes: Axes) -> None:
        fitted, pitch = self._phases, self.pitch
        centres = [(first + last) / 2 for _, first, last in self.view.phases]
        places = centres
        if fitted.upright:
            line = fitted.size / 72 * style.LINE / pitch
            ends = -0.5 + line / 2, len(self.view.stops) - 0.5 - line / 2
            places = style.spread(centres, line, *ends)
        for text, centre, place in zip(fitted.texts, centres, places, strict=True):
            aside = (place - centre) * pitch * 72
            lead = {"arrowstyle": "-", "color": style.SEPARATOR, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0}
            axes.annotate(
                text, (centre, 1), (aside, 8), xycoords=("data", "axes fraction"), textcoords="offset points",
                ha="center", va="bottom" if fitted.upright else "baseline", rotation=90 if fitted.upright else 0,
                linespacing=1.1, arrowprops=lead if abs(aside) > 2 else None,
                **style.lettering(fitted.size, style.MUTED, "bold"),
            )  # fmt: skip

    def mark_missing(self, axes: Axes) -> None:
        """Write "not measured" into the gaps of a panel that are wide and high enough for it."""
        size = self.paper.points(8)
        if size / 72 * style.LINE > self.pitch or style.extent("not measured", size)[0] > inches(axes)[1]:
            return
        box = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 1.5}
        place = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "center", "rotation": 90}
        for i, stop in enumerate(self.view.stops):
            if stop.missing:
                style.write(axes, i, 0.5, "not measured", size, style.MUTED, bbox=box, zorder=0.6, **place)


def fit_names(names: Sequence[str], pitch: float, paper: Paper) -> Lettered:
    """Names side by side if they fit, long ones in up to three lines; else upright."""
    rooms, most = [pitch - 0.1 * paper.factor] * len(names), 3 if max(map(len, names)) > 10 else 1
    lying = _lying(names, rooms, [paper.points(size) for size in (10.0, 9.0, 8.5)], "normal", most)
    return lying or _upright(names, paper.points(9.0 if pitch >= 0.3 else 8.0), "normal", paper)


def fit_phases(names: Sequence[str], spans: Sequence[float], paper: Paper) -> Lettered:
    """Phase names over their spans in up to three lines, smaller if need be, upright if nothing else style.fits."""
    lying = _lying(names, spans, [paper.points(size) for size in (10.0, 9.0, 8.0)], "bold", 3)
    if lying:
        return lying
    size = paper.points(8.0)
    # Upright names stand side by side: what is more than the axis can hold goes unnamed.
    if len(names) * size * style.LINE / 72 > sum(spans) + 0.1 * len(spans):
        return Lettered(("",) * len(names), size, True, 0.0)
    return _upright(names, size, "bold", paper)


def _lying(
    names: Sequence[str], rooms: Sequence[float], sizes: Sequence[float], weight: str, most: int
) -> Lettered | None:
    """In at most so many lines within their rooms, at the first of `sizes` that does it."""
    for size in sizes:
        lines = [style.wrap(name, room, size, weight) for name, room in zip(names, rooms, strict=True)]
        deepest = max(len(each) for each in lines)
        wide = all(style.fits(each, room, size, weight) for each, room in zip(lines, rooms, strict=True))
        if deepest <= most and wide:
            return Lettered(tuple(map("\n".join, lines)), size, False, deepest * size * style.LINE / 72)
    return None


def _upright(names: Sequence[str], size: float, weight: str, paper: Paper) -> Lettered:
    """Shortened: data.csv and README.md have them whole."""
    short = tuple(style.shorten(name, 18 if paper.narrow else 30) for name in names)
    return Lettered(short, size, True, max(style.extent(name, size, weight)[0] for name in short))
