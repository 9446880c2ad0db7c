"""The few shapes that claims have. A claim is mostly a declaration over one of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from qkscope.claims.claim import Claim, Population, Row, See, View
from qkscope.claims.context import COORDINATES, Context, name_of, small, unit_of
from qkscope.stats.contrast import Contrast, exceeds
from qkscope.stats.direction import turns
from qkscope.stats.evidence import Evidence
from qkscope.stats.levels import MOST, rule_of_change, rule_of_contrast, rule_of_error
from qkscope.words import bare, joined, listing, number, sentence, some, tokens

# What ranks claims: opposing directions, then changes, then differences, then levels; what is unclear comes last.
OPPOSED, CHANGED, DIFFERENT, LEVEL, UNCLEAR = 3.0, 2.0, 1.0, 0.0, -1.0
MOST_TURNS = 3  # that a headline tells
MOST_LABELS = 5  # checkpoints that a sentence lists


def rank(tier: float, size: float = 0.0) -> float:
    """A claim's `surprise`: its tier, and within that the size of what it says."""
    return tier + min(abs(size), 0.99)


def rule(c: Context, text: str) -> str:
    """How errors are made, then how the verdict is."""
    return joined(rule_of_error(c.best.basis, c.best.groups), text)


@dataclass(frozen=True)
class Trend:
    """The course of a mean over training; its level where there is one checkpoint.

    `says` has the headline of each measure it may be about, with {value} and {heads}; the first that was measured is
    taken. `beside` is another measure that the detail gives too, and `adds` sentences after it. `leads` says that
    populations which go different ways count as opposed.
    """

    id: str
    question: str
    says: dict[str, str]
    meaning: Callable[[Context, str], str]
    view: View = "signal"
    beside: str = ""
    adds: Callable[[Context, str], str] = lambda c, measure: ""
    leads: bool = False
    caveat: Callable[[Context, str], str] = lambda c, measure: ""

    def __call__(self, c: Context) -> Claim | None:
        known = (m for m in self.says if all(c.best.known(m, p) for p in c.populations))
        measure = next(known, None)
        if measure is None or c.several_models:
            return None
        verdict = self.verdict(c, measure)
        headline, rows = self.headline(c, measure, verdict)
        caveat = joined(c.window_caveat, c.caveat, self.caveat(c, measure))
        detail = joined(self.detail(c, measure), self.adds(c, measure), self.coordinates(c, measure))
        said = (headline, detail, self.meaning(c, measure), caveat, verdict)
        how = rule(c, rule_of_change() if c.training else "")
        see, surprise = See(self.view, measure, c.model(c.last), c.main), self.surprise(c, measure, verdict)
        rows += self.more(c, measure)
        return Claim(self.id, self.question, *said, rows, c.best.name, how, see, surprise)

    def coordinates(self, c: Context, measure: str) -> str:
        """Of published r: whether its changes are of attention."""
        shown = dict.fromkeys((measure, self.beside))
        return joined(*(c.change_of_r(m, c.best.overall(m, c.main)) for m in shown if m))

    def verdict(self, c: Context, measure: str) -> str:
        if not c.training:
            return "level"
        return c.best.direction(measure, c.main) if c.comparable else "unclear"

    def headline(self, c: Context, measure: str, verdict: str) -> tuple[str, tuple[Row, ...]]:
        """The sentence and its numbers, in the order of the sentence."""
        now = c.row(measure, c.main, c.last)
        said = self.says[measure].format(value=c.value(measure, c.main, c.last), heads=c.heads())
        said += c.at(c.last)
        other = c.row(measure, c.other, c.last) if c.other else None
        aside = f"; {c.value(measure, c.other, c.last)}{c.heads(c.other)}" if c.other else ""
        rows: tuple[Row, ...] = (now,) if other is None else (now, other)
        if not c.training or not c.comparable:
            return sentence(said + aside.replace("; ", ", ")), rows
        first, before = c.row(measure, c.main, 0), f"{c.value(measure, c.main, 0)} at {c.labels[0]}"
        rows = (now, first) if other is None else (now, first, other)
        if verdict == "flat":
            return sentence(f"{said}, in this run within {small(now.unit)} of {before}{aside}"), rows
        if verdict == "unclear":
            return sentence(f"{said}; its change in this run, from {before}, is not clear of noise"), rows[:2]
        up = now.value > first.value
        if verdict == "rises and falls" and (turning := self.turns(c, measure)):
            extremes = tuple(c.row(measure, c.main, i) for i in turning)
            ways = ["up" if b.value > a.value else "down" for a, b in pairwise((first, *extremes, now))]
            stops = [f"{c.value(measure, c.main, i)} at {c.labels[i]}" for i in turning]
            via = [f"{way} to {stop}" for way, stop in zip(ways, stops, strict=False)]
            return sentence(f"{said}: in this run from {before} {', '.join(via)}, then {ways[-1]}"), (
                now,
                first,
                *extremes,
            )
        unsteady = ", not steadily" if verdict == "rises and falls" else ""
        return sentence(f"{said}, in this run {'up' if up else 'down'} from {before}{unsteady}{aside}"), rows

    def turns(self, c: Context, measure: str) -> list[int]:
        """The checkpoints at which it turns; none where there are too many for a sentence."""
        found = turns(*zip(*(c.best.level(measure, c.main, i) for i in range(c.last + 1)), strict=True))
        return found if len(found) <= MOST_TURNS else []

    def detail(self, c: Context, measure: str) -> str:
        """`From S1-0 to LC2-80, over the first 256 tokens: mean r_q 0.09 ± 0.01 to ...`."""
        course = c.training and c.comparable
        parts = []
        for m in dict.fromkeys((measure, self.beside)):
            if m and c.best.known(m, c.main):
                said = [
                    (c.path(m, p, 0, c.last) if course else c.level(m, p, c.last)) + c.heads(p)
                    for p in c.populations
                ]
                parts.append(f"{name_of(m)} {' and '.join(said)}")
        when = f"from {c.labels[0]} to {c.labels[-1]}" if course else c.at(c.last).strip()
        where = ", ".join(part for part in (when, c.over.removesuffix(", ")) if part)
        text = sentence(f"{where}: {'; '.join(parts)}" if where else "; ".join(parts))
        if c.matched is None or not c.own.known(measure, c.main):
            return text
        own = f"{name_of(measure)}{c.heads()} ends at {c.level(measure, c.main, c.last, c.own)}"
        return joined(text, sentence(f"{c.contexts}, {own}"))

    def more(self, c: Context, measure: str) -> tuple[Row, ...]:
        """The judged changes of each population over both windows, and the level of the measure beside it."""
        found: list[Row] = []
        for m in dict.fromkeys((measure, self.beside)):
            for p in c.populations:
                if not m or not c.best.known(m, p):
                    continue
                if m != measure:
                    found.append(c.row(m, p, c.last))
                for e in (c.best, c.own) if c.matched else (c.best,):
                    if (change := e.overall(m, p)) is not None:
                        found.append(c.change(m, p, change, e=e))
        return tuple(found)

    def surprise(self, c: Context, measure: str, verdict: str) -> float:
        if verdict in ("level", "unclear"):
            return rank(LEVEL if verdict == "level" else UNCLEAR)
        seen = {c.best.direction(measure, p) for p in c.populations}
        overall = c.best.overall(measure, c.main)
        size = overall.delta if overall is not None else 0.0
        if seen <= {"flat", "unclear"}:
            return rank(LEVEL, size)
        opposed = self.leads and (len(seen) > 1 or "rises and falls" in seen)
        return rank(OPPOSED if opposed else CHANGED, size)


@dataclass(frozen=True)
class Largest:
    """Which of several shares of one whole is the largest, at the last checkpoint.

    `parts` are names and measures, `whole` is what they are parts of, `verb` what one part and several do, `more` are
    further numbers of the detail.
    """

    id: str
    question: str
    parts: dict[str, str]
    verb: tuple[str, str]
    whole: str
    meaning: str
    detail: Callable[[Context], str]
    view: View
    more: Callable[[Context], tuple[Row, ...]] = lambda c: ()

    def __call__(self, c: Context) -> Claim | None:
        if c.several_models or not all(
            c.best.known(m, p) for m in self.parts.values() for p in c.populations
        ):
            return None
        verdict, order = self.order(c, c.main)
        rows = tuple(c.row(self.parts[name], c.main, c.last) for name in order)
        rest = [c.row(m, c.other, c.last) for m in self.parts.values()] if c.other else []
        top, second = (c.value(self.parts[name], c.main, c.last) for name in order[:2])
        where = f"{self.whole}{c.heads()}{c.at(c.last)}"
        one, several = self.verb
        said = {
            "majority": f"{order[0]} {one} most of the {where}: {top}, ahead of {order[1]} with {second}",
            "largest": f"{order[0]} {one} the largest part of the {where}: {top}, ahead of {order[1]} with {second}",
            "tie": f"{order[0]} and {order[1]} {several} equal parts of the {where}: {top} and {second}",
            "unclear": f"{order[0]} and {order[1]} {several} parts of the {where} that errors do not tell apart: "
            f"{top} and {second}",
        }
        tops = {self.order(c, p)[1][0] for p in c.populations}
        tier = UNCLEAR if verdict == "unclear" else LEVEL if verdict == "tie" else DIFFERENT
        surprise = rank(tier, rows[0].value - rows[1].value + (0.5 if len(tops) > 1 else 0.0))
        text = (sentence(said[verdict]), self.detail(c), self.meaning, c.caveat, verdict)
        see = See(self.view, self.parts[order[0]], c.model(c.last), c.main)
        how = rule(c, rule_of_contrast())
        every = (*rows, *rest, *self.more(c))
        return Claim(self.id, self.question, *text, every, c.best.name, how, see, surprise)

    def order(self, c: Context, population: Population) -> tuple[str, list[str]]:
        """The verdict, and the parts by falling share."""

        def share(name: str) -> float:
            return c.best.level(self.parts[name], population, c.last)[0]

        order = sorted(self.parts, key=share, reverse=True)
        gaps = [
            c.best.compare(self.parts[order[0]], self.parts[name], population, c.last, len(order) - 1)
            for name in order[1:]
        ]
        if gaps[0].verdict == "equal":
            return "tie", order
        if any(gap.verdict != "higher" for gap in gaps):
            return "unclear", order
        value, se = c.best.level(self.parts[order[0]], population, c.last)
        return "majority" if exceeds(value, se, MOST, c.best.groups - 1) == "yes" else "largest", order


@dataclass(frozen=True)
class Compared:
    """Two means of the same heads, at the last checkpoint. `says` has the sentence of each verdict on the first."""

    id: str
    question: str
    first: str
    second: str
    says: dict[str, str]
    meaning: str
    caveat: str = ""
    view: View = "signal"
    looks: int = 1

    def __call__(self, c: Context) -> Claim | None:
        names = (self.first, self.second)
        if c.several_models or not all(c.best.known(m, c.main) for m in names):
            return None
        gap = c.best.compare(*names, c.main, c.last, self.looks)
        values = ", ".join(f"{name_of(m)} {c.value(m, c.main, c.last)}" for m in names)
        measured = "; ".join(f"{self.levels(c, p)}{c.heads(p)}" for p in c.populations)
        what, both = f"{name_of(self.first)} minus {name_of(self.second)}{c.heads()}", "-".join(names)
        ends, unit = (c.model(c.last), gap.difference, gap.se, None, c.best.name), unit_of(self.first)
        difference = Row(what, both, c.main, *ends, unit, gap.verdict)
        rows = (*(c.row(m, p, c.last) for p in c.populations for m in names), difference)
        own = c.own.compare(*names, c.main, c.last, self.looks) if c.matched else None
        if own is not None:
            ends = (c.model(c.last), own.difference, own.se, None, c.own.name)
            rows += (*(c.row(m, c.main, c.last, e=c.own) for m in names),
                     Row(what, both, c.main, *ends, unit, own.verdict))  # fmt: skip
        headline = sentence(
            f"{self.says[gap.verdict]}{c.heads()}{c.at(c.last)}: {values}{self.unlike(c, gap, own)}"
        )
        apart = f"the difference{c.heads()} is {number(gap.difference, gap.se, signed=True)}"
        text = (
            headline,
            joined(sentence(f"{c.over}{measured}; {apart}"), self.elsewhere(c, own), self.before(c, gap)),
            self.meaning,
            joined(c.caveat, self.caveat),
        )
        how, see = rule(c, rule_of_contrast()), See(self.view, self.first, c.model(c.last), c.main)
        surprise = rank({"equal": LEVEL, "unclear": UNCLEAR}.get(gap.verdict, DIFFERENT), gap.difference)
        return Claim(self.id, self.question, *text, gap.verdict, rows, c.best.name, how, see, surprise)

    def levels(self, c: Context, population: Population, e: Evidence | None = None) -> str:
        names = (self.first, self.second)
        return ", ".join(f"{name_of(m)} {c.level(m, population, c.last, e)}" for m in names)

    def unlike(self, c: Context, gap: Contrast, own: Contrast | None) -> str:
        """That the training context gives another answer, where it clearly gives the opposite one."""
        if own is None or own.verdict == gap.verdict or own.verdict not in ("higher", "lower"):
            return ""
        window = c.own.stops[c.last].window
        over = f" ({tokens(window)})" if window else ""
        values = " and ".join(bare(c.own.level(m, c.main, c.last)[0]) for m in (self.first, self.second))
        reverse = "the other way round, " if own.difference * gap.difference < 0 else ""
        return f"; over the training context{over} {reverse}{values}"

    def elsewhere(self, c: Context, own: Contrast | None) -> str:
        """The same comparison over the last checkpoint's training context."""
        if own is None:
            return ""
        window = c.own.stops[c.last].window
        over = f" ({tokens(window)})" if window else ""
        says = self.says[own.verdict]
        apart = f"difference {number(own.difference, own.se, signed=True)}"
        levels = self.levels(c, c.main, c.own)
        return sentence(
            f"over the training context{over}, {says[0].lower()}{says[1:]}{c.heads()}: {levels} ({apart})"
        )

    def before(self, c: Context, gap: Contrast) -> str:
        """The checkpoints at which the difference clearly had the other sign."""
        if not c.training:
            return ""
        pair, looks = (self.first, self.second), self.looks * (c.last + 1)
        found = [c.best.compare(*pair, c.main, i, looks) for i in range(c.last)]
        other = [
            label
            for label, each in zip(c.labels, found, strict=False)
            if each.verdict in ("higher", "lower") and each.difference * gap.difference < 0
        ]
        changed = {
            "settings" if c.new_settings(i, c.last) else c.best.what_changed(c.main, i, c.last)
            for i, label in enumerate(c.labels)
            if label in other
        }
        aside = f", {COORDINATES}" if {"r_q", "abs_r_k"} == set(pair) and changed == {"coordinates"} else ""
        names = listing(other) if len(other) <= MOST_LABELS else some(other, MOST_LABELS)
        return sentence(f"the difference had the opposite sign at {names}{aside}") if other else ""
