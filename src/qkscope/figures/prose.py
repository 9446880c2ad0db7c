"""Sentences about numbers. Every one is computed: opposite data give the opposite sentence, noise is called noise.

Markdown is escaped here and nowhere else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qkscope.figures.course import DOCUMENTS, HEADS, Course, Statistic, follow
from qkscope.figures.style import plain, tokens
from qkscope.figures.view import View
from qkscope.inference.series import Change

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$!])")


def md(name: object) -> str:
    """A name as Markdown shows it, letter by letter."""
    return _SPECIAL.sub(r"\\\1", plain(name).replace("&", "&amp;"))


def code(text: object) -> str:
    """A path or name in a code span, with enough backticks around it."""
    clean = plain(text)
    longest = max((len(run) for run in re.findall("`+", clean)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{clean}{pad}{fence}"


def figure(value: float, percent: bool = False) -> str:
    """A number: three decimals, or a percentage with one."""
    if not math.isfinite(value):
        return "unknown"
    text = f"{100 * value:.1f}%" if percent else f"{value:.3f}"
    return text.replace("-0.000", "0.000").replace("-0.0%", "0.0%")


def difference(change: Change, percent: bool = False) -> str:
    """A change with its sign and standard error: `+0.140 (± 0.010)`."""
    scale, digits, unit = (100, 1, " points") if percent else (1, 3, "")
    text = f"{scale * change.delta:+.{digits}f}"
    text = f"{0:.{digits}f}" if float(text) == 0 else text
    error = f" (± {scale * change.se:.{digits}f})" if math.isfinite(change.se) else ""
    return f"{text}{unit}{error}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def small(text: str) -> str:
    """To follow a colon."""
    return text[:1].lower() + text[1:]


def listing(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return "".join(parts) if len(parts) < 2 else ", ".join(parts[:-1]) + " and " + parts[-1]


def overall(course: Course) -> str:
    """From first to last, in one sentence."""
    name, first, last = capital(course.name), 0, len(course) - 1

    def at(i: int) -> str:
        return f"{figure(course.values[i], course.percent)} at {md(course.labels[i])}"

    if len(course) == 1:
        return f"{name} is {with_error(course, 0)}."
    change = difference(course.whole, course.percent)
    if course.direction:
        verb = "rises" if course.direction > 0 else "falls"
        return f"{name} {verb} from {at(first)} to {at(last)}: {change}."
    if not course.judged:
        return f"{name} is {at(first)} and {at(last)}: {change}. No uncertainty is available, so this may be noise."
    if course.swing(1).clear or course.swing(-1).clear:
        return (
            f"{name} does not clearly change from first to last ({at(first)}, {at(last)}: {change}), but it moves in "
            f"between: its highest value is {at(int(np.argmax(course.values)))}, its lowest "
            f"{at(int(np.argmin(course.values)))}."
        )
    low, high = (figure(v, course.percent) for v in (course.values.min(), course.values.max()))
    return (
        f"{name} shows no clear change beyond noise: it stays between {low} and {high}, and from "
        f"{md(course.labels[0])} to {md(course.labels[-1])} it changes by {change}."
    )


def largest_step(course: Course, view: View, other: Course | None) -> str:
    """Where the biggest change between neighbours is, and whether the window changed there too."""
    if len(course) < 3:
        return ""
    step = course.largest
    where = f"from {md(course.labels[step.start])} to {md(course.labels[step.stop])}"
    size = difference(step, course.percent)
    if step.clear:
        whole = course.whole.delta
        part = step.delta / whole if course.direction else 0.0
        share = f", {100 * part:.0f}% of the whole change" if 0 < part <= 1 else ""
        text = f"The largest step is {size}, {where}{share}."
    elif course.judged:
        text = f"No single step is clear of noise; the largest is {size}, {where}."
    else:
        text = f"The largest step is {size}, {where}."
    return text + (_window_note(course, view, other, step) if step.clear or not course.judged else "")


def _window_note(course: Course, view: View, other: Course | None, step: Change) -> str:
    """That a step coincides with a change of window, and what it is over the matched one."""
    before, after = (view.stops[view.place[course.models[i]]] for i in (step.start, step.stop))
    if before.window is None or after.window is None or before.window == after.window:
        return ""
    text = f" There the window changes from {tokens(before.window)} to {tokens(after.window)} tokens"
    same = other.between(before.model, after.model) if other else None
    if same is None:
        return f"{text}, so it may be the window's doing."
    return f"{text}; over the {view.matched_text} the step is {difference(same, course.percent)}."


def steadiness(course: Course) -> str:
    """Whether the series goes one way only."""
    if len(course) < 3:
        return ""
    deltas = np.array([step.delta for step in course.steps])
    if not course.judged:
        up, down = int((deltas > 0).sum()), int((deltas < 0).sum())
        if not (up and down):
            return f"It {'rises' if up else 'falls'} at every step." if (up or down) == len(deltas) else ""
        return f"It is not monotonic: it rises at {up} and falls at {down} of {len(deltas)} steps."
    if not course.direction:
        return ""
    forward, back = ("rises", "falls") if course.direction > 0 else ("falls", "rises")
    if (course.direction * deltas > 0).all():
        return f"It {forward} at every step."
    turn = course.swing(-course.direction)
    if course.direction * turn.delta >= 0:
        return f"It never {back}."
    span = f"{md(course.labels[turn.start])} to {md(course.labels[turn.stop])}"
    size = difference(turn, course.percent)
    if turn.clear:
        return f"It is not monotonic: from {span} it {back}, {size}."
    why = "too small to count" if abs(turn.delta) < course.series.smallest else "not clearly more than noise"
    return f"It never clearly {back}: the most it does is {size}, from {span}, which is {why}."


def windows(course: Course, other: Course | None, view: View) -> str:
    """What remains of the whole change when every checkpoint is measured over the same window."""
    if other is None or len(course) < 2 or not view.rematched:
        return ""
    same = other.between(course.models[0], course.models[-1])
    if same is None:
        return ""
    size = difference(same, course.percent)
    lead = f"Over the {view.matched_text} of every checkpoint"
    own = course.direction
    matched = int(np.sign(same.delta)) if same.clear else 0
    if not np.isfinite(same.se):
        return f"{lead} the whole change is {size}."
    if own and matched == own:
        return f"{lead} it {'rises' if own > 0 else 'falls'} too: {size}."
    if own and matched == -own:
        return f"{lead} it goes the other way: {size}. The sign of the change depends on the window."
    if own and abs(same.delta) <= min(2 * same.se, abs(course.whole.delta) / 2):
        return f"{lead} nothing of it remains beyond noise ({size}): the change comes with the window."
    if own:
        return (
            f"{lead} the change is not clear of noise ({size}): how much of it is the window's doing is open."
        )
    if matched:
        return f"{lead} it {'rises' if matched > 0 else 'falls'}, which the change of window hides: {size}."
    return f"{lead} there is no change beyond noise either: {size}."


@dataclass(frozen=True)
class Story:
    """All sentences about one number."""

    own: Course
    head: str
    details: str = ""
    windows: str = ""

    @property
    def text(self) -> str:
        return joined(self.head, self.details, self.windows)

    @property
    def short(self) -> str:
        """The whole change, and what remains of it over the matched window."""
        return joined(self.head, self.windows)


@dataclass(frozen=True)
class Words:
    """What a figure's README says: what is drawn, what it tells, how its numbers were made, what to remember."""

    shows: str
    says: tuple[str, ...]
    made: str
    takeaway: str
    certainty: str
    components: str = "first principal component (`pc == 0`)"


def joined(*parts: str) -> str:
    """Sentences in a row, without the empty ones."""
    return " ".join(part for part in parts if part)


def story(view: View, name: str, statistic: Statistic, percent: bool = False) -> Story | None:
    """Follow a number over the checkpoints and tell it."""
    own = follow(view, name, statistic, percent=percent)
    if own is None:
        return None
    matched = follow(view, name, statistic, matched=True, percent=percent)
    if view.of_models:
        return Story(own, across_models(own))
    details = joined(largest_step(own, view, matched), steadiness(own))
    return Story(own, overall(own), details, windows(own, matched, view))


def across_models(course: Course) -> str:
    """Highest and lowest model, without a word of training."""
    high, low = int(np.argmax(course.values)), int(np.argmin(course.values))
    if len(course) == 1 or high == low:
        return f"{capital(course.name)} is {with_error(course, 0)} in {md(course.labels[0])}."
    ends = [f"in {md(course.labels[i])} ({with_error(course, i)})" for i in (high, low)]
    return f"{capital(course.name)} is highest {ends[0]} and lowest {ends[1]}."


def with_error(course: Course, i: int) -> str:
    """A value with its standard error over documents, where known."""
    value = figure(course.values[i], course.percent)
    error = course.series.se(i) if course.basis == DOCUMENTS else math.nan
    return f"{value} ± {figure(error, course.percent)}" if math.isfinite(error) else value


def certainty(course: Course | None, changes: bool = True) -> str:
    """How the ± were made and, where `changes` are told, when a change is called one."""
    changes = changes and course is not None and len(course) > 1
    if course is None or course.basis not in (DOCUMENTS, HEADS):
        return "No uncertainty is available: the table has neither document groups nor enough heads to judge noise by."
    groups = len(course.series.values[0]) - 1
    if course.basis == HEADS and not changes:
        return "No uncertainty over documents is available: the table has no document groups."
    if course.basis == HEADS:
        return (
            "No uncertainty over documents is available: the table has no document groups. Instead, ± tells how much "
            f"a difference rests on single heads (one standard error from leaving out each of {groups} groups of "
            "heads); other documents may move the numbers more."
        )
    text = f"± is one standard error from leaving out each of {groups} groups of documents"
    if not changes:
        return f"{text}."
    return (
        f"{text}; differences are taken on the same documents. A change is named as one if it is at least "
        f"{course.series.smallest:.2f} and passes a t-test at 1% held over all steps; otherwise it counts as noise."
    )
