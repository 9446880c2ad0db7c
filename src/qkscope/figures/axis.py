"""The axis of checkpoints, and panels one under another over it.

Checkpoints are one unit apart in the order of training, or spaced by training steps where the study asks for that.
Phases are named above, with dashed lines between them; a checkpoint that could not be measured is a hatched gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from qkscope.figures import style
from qkscope.figures.sheet import Key, Paper, inches, name_axis, sheet
from qkscope.figures.view import View


@dataclass(frozen=True)
class Lettered:
    """Texts that fit: their lines, size and whether they are vertical; `height` in inches."""

    texts: tuple[str, ...]
    size: float
    vertical: bool
    height: float


class CheckpointAxis:
    """Measures first (`width`, `above`, `below`, all in inches), then draws onto panels of that width.

    `at` is where each checkpoint of the study stands, `spans` the (start, end) of each phase: it ends halfway to the
    first checkpoint of the next. With `spaced`, places follow training steps if the view does.
    """

    def __init__(self, view: View, paper: Paper, spaced: bool = False) -> None:
        self.view, self.paper = view, paper
        self.steps = view.steps if spaced else None
        count = len(view.checkpoints)
        if paper.width is None:
            self.pitch = min(max(9.4 / count, min(0.36, 18.0 / count)), max(1.5, 5.4 / count))
        else:
            self.pitch = (paper.width - paper.left - paper.right) / count
        self.width = self.pitch * count
        self.at = [float(i) for i in range(count)] if self.steps is None else self._places(self.steps)
        edges = [(self.at[first - 1] + self.at[first]) / 2 for _, first, _ in view.phases[1:]]
        self.spans = list(pairwise([-0.5, *edges, count - 0.5]))
        names = [view.drawn_labels[checkpoint.model] for checkpoint in view.checkpoints]
        self._ticks = fit_names(names if self.steps is None else ["0"], self.pitch, paper)
        rooms = [(b - a) * self.pitch - 0.1 * paper.factor for a, b in self.spans]
        self._phases = fit_phases(view.phase_names, rooms, paper)
        self._named = any(text.strip() for text in self._phases.texts)
        # Inches that phase names need over the first panel, and names of checkpoints under the last.
        self.above = self._phases.height + 0.14 if self._named else 0.06
        self.below = self._ticks.height + 0.16 * paper.factor
        if self.steps is not None:
            self.below += paper.points(10.5) / 72 * style.LINE + 0.08

    def _places(self, steps: Sequence[float]) -> list[float]:
        """Where training steps stand, the first checkpoint's at 0 and the last one's at its number."""
        known = self.steps or [0.0]
        first, last = known[0], known[-1]
        return [(step - first) / max(last - first, 1) * (len(self.view.checkpoints) - 1) for step in steps]

    def draw(self, axes: Axes, names: bool, phases: bool) -> None:
        """Ticks, phase separators and gaps; texts only where wanted, so that stacked panels share one set."""
        axes.set_xlim(-0.5, len(self.view.checkpoints) - 0.5)
        for start, _ in self.spans[1:]:
            width = 1.1 * self.paper.factor
            axes.axvline(start, color=style.SEPARATOR, linestyle=style.DASHES, linewidth=width, zorder=1.2)
        if self.steps is None:
            self._draw_names(axes, names)
            self._draw_gaps(axes)
        else:
            self._draw_steps(axes, self.steps, names)
        if phases and self._named:
            self._draw_phases(axes)

    def _draw_steps(self, axes: Axes, steps: Sequence[float], names: bool) -> None:
        """Round numbers of training steps."""
        ticks = [t for t in MaxNLocator(6).tick_values(steps[0], steps[-1]) if steps[0] <= t <= steps[-1]]
        texts = [short_count(tick) if names else "" for tick in ticks]
        axes.set_xticks(self._places(ticks), texts, **style.lettering(self._ticks.size))
        if names:
            name_axis(axes, self.paper, x="training steps, added up over phases")

    def _draw_names(self, axes: Axes, names: bool) -> None:
        """Every n-th name where they stand closer than their letters are high."""
        ticks = self._ticks
        every = style.every_nth(ticks.size, self.pitch) if ticks.vertical else 1
        places = range(0, len(ticks.texts), every)
        texts = [ticks.texts[i] if names else "" for i in places]
        axes.set_xticks(places, texts, **style.lettering(ticks.size), linespacing=1.1)
        for i, label in zip(places, axes.get_xticklabels(), strict=True):
            label.set_rotation(90 if ticks.vertical else 0)
            label.set_color(self.view.ink(i))

    def _draw_gaps(self, axes: Axes) -> None:
        """A hatched gap for what could not be measured, which says so where it is wide and high enough."""
        size = self.paper.points(8)
        fits = (
            size / 72 * style.LINE <= self.pitch and style.extent("not measured", size)[0] <= inches(axes)[1]
        )
        place = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "center", "rotation": 90}
        for i, checkpoint in enumerate(self.view.checkpoints):
            if checkpoint.missing:
                axes.axvspan(i - 0.5, i + 0.5, **style.NOT_MEASURED, zorder=0.5)
                if fits:
                    style.write_not_measured(axes, i, 0.5, size, zorder=0.6, **place)

    def _draw_phases(self, axes: Axes) -> None:
        """Over the middle of their spans; vertical names move apart, with a line to where they belong."""
        fitted, pitch = self._phases, self.pitch
        centres = places = [(a + b) / 2 for a, b in self.spans]
        if fitted.vertical:
            line = fitted.size / 72 * style.LINE / pitch
            places = style.spread(centres, line, (line - 1) / 2, len(self.view.checkpoints) - (line + 1) / 2)
        for text, centre, place in zip(fitted.texts, centres, places, strict=True):
            aside = (place - centre) * pitch * 72
            lead = {"arrowstyle": "-", "color": style.SEPARATOR, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0}
            axes.annotate(
                text, (centre, 1), (aside, 8), xycoords=("data", "axes fraction"), textcoords="offset points",
                ha="center", va="bottom" if fitted.vertical else "baseline", rotation=90 if fitted.vertical else 0,
                linespacing=1.1, arrowprops=lead if abs(aside) > 2 else None,
                **style.lettering(fitted.size, style.MUTED, "bold"),
            )  # fmt: skip


def fit_names(names: Sequence[str], pitch: float, paper: Paper) -> Lettered:
    """Names side by side if they fit, long ones in up to three lines; else vertical."""
    rooms, most = [pitch - 0.1 * paper.factor] * len(names), 3 if max(map(len, names)) > 10 else 1
    lying = _lying(names, rooms, [paper.points(size) for size in (10.0, 9.0, 8.5)], "normal", most)
    return lying or _vertical(names, paper.points(9.0 if pitch >= 0.3 else 8.0), "normal", paper)


def fit_phases(names: Sequence[str], spans: Sequence[float], paper: Paper) -> Lettered:
    """Phase names over their spans in up to three lines, smaller if need be, vertical if nothing else fits."""
    lying = _lying(names, spans, [paper.points(size) for size in (10.0, 9.0, 8.0)], "bold", 3)
    if lying:
        return lying
    size = paper.points(8.0)
    # Vertical names need a line's height each: more than the axis can hold are left out.
    if len(names) * size * style.LINE / 72 > sum(spans) + 0.1 * len(spans):
        return Lettered(("",) * len(names), size, True, 0.0)
    return _vertical(names, size, "bold", paper)


def _lying(
    names: Sequence[str], rooms: Sequence[float], sizes: Sequence[float], weight: str, most: int
) -> Lettered | None:
    """In at most `most` lines within `rooms` (inches), at the first of `sizes` that fits."""
    for size in sizes:
        lines = [style.wrap(name, room, size, weight) for name, room in zip(names, rooms, strict=True)]
        deepest = max(len(each) for each in lines)
        wide = all(style.fits(each, room, size, weight) for each, room in zip(lines, rooms, strict=True))
        if deepest <= most and wide:
            return Lettered(tuple(map("\n".join, lines)), size, False, deepest * size * style.LINE / 72)
    return None


def _vertical(names: Sequence[str], size: float, weight: str, paper: Paper) -> Lettered:
    """Shortened: data.csv and README.md have them whole."""
    short = tuple(style.shorten(name, 18 if paper.narrow else 30) for name in names)
    return Lettered(short, size, True, max(style.extent(name, size, weight)[0] for name in short))


def short_count(value: float) -> str:
    """`800`, `40K`, `1.2M`."""
    for size, letter in ((1e6, "M"), (1e3, "K")):
        if value >= 10 * size or (value >= size and value % (size / 10) == 0):
            return f"{value / size:.3g}{letter}"
    return f"{value:,.0f}"


@dataclass(frozen=True)
class Panel:
    """One panel: the name of its vertical axis, its height on a sheet without a width, and what draws its marks."""

    name: str
    height: float
    draw: Callable[[Axes, CheckpointAxis], None]
    heading: str = ""


def draw_stack(
    view: View,
    title: str,
    panels: Sequence[Panel],
    keys: Sequence[Key] = (),
    width: float | None = None,
    spaced: bool = False,
    matched: bool = False,
) -> Figure:
    """The whole figure: phases above the first panel, names of checkpoints below the last.

    `matched`: all panels are over the matched window where windows differ.
    """
    paper = Paper(width)
    axis = CheckpointAxis(view, paper, spaced)
    # Inches above each panel: a heading of the first one stands over the phases' names.
    heading = paper.points(10) * style.LINE / 72 + 0.06
    gaps = [heading * bool(panel.heading) + 0.25 * paper.factor * (i > 0) for i, panel in enumerate(panels)]
    heights = [paper.tall(panel.height) for panel in panels]
    body = axis.above + sum(gaps) + sum(heights) + axis.below
    page = sheet(paper, title, view.subtitle(matched), paper.left + axis.width + paper.right, body, keys)
    top = axis.above
    for i, (panel, gap, height) in enumerate(zip(panels, gaps, heights, strict=True)):
        axes = page.axes(paper.left, top + gap, axis.width, height)
        axis.draw(axes, names=i == len(panels) - 1, phases=i == 0)
        panel.draw(axes, axis)
        name_axis(axes, paper, y=panel.name)
        if panel.heading:
            page.write_heading(panel.heading, paper.left, top + gap - 0.06 if i else gap - 0.02)
        top += gap + height
    return page.figure
