"""A claim about two means of the same heads, as a declaration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qkscope.claims.claim import Claim, Population, Row, View
from qkscope.claims.context import COORDINATES, DIFFERENT, LEVEL, UNCLEAR, Context, name_of, rank, unit_of
from qkscope.stats.contrast import Contrast
from qkscope.stats.evidence import Evidence
from qkscope.stats.levels import rule_of_contrast
from qkscope.words import bare, capital, joined, listing, number, sentence, some, tokens

MOST_LABELS = 5  # checkpoints that a sentence lists
CLEAR = ("higher", "lower")  # verdicts on a difference


def training_context(c: Context) -> str:
    """`over the training context (1,024 tokens)`, of the last checkpoint."""
    window = c.own.checkpoints[c.last].window
    return "over the training context" + (f" ({tokens(window)})" if window else "")


@dataclass(frozen=True)
class Compared:
    """Two means of the same heads, at the last checkpoint. `says` has the sentence of each verdict on the first.

    `looks` is the number of such comparisons that are read together.
    """

    id: str
    question: str
    first: str
    second: str
    says: Mapping[str, str]
    meaning: str
    caveat: str = ""
    view: View = "signal"
    looks: int = 1

    @property
    def names(self) -> tuple[str, str]:
        return self.first, self.second

    def __call__(self, c: Context) -> Claim | None:
        if c.several_models or not all(c.best.known(m, c.main) for m in self.names):
            return None
        gap = c.best.compare(*self.names, c.main, c.last, self.looks)
        rows = [c.row(m, p, c.last) for p in c.populations for m in self.names]
        rows.append(self.difference(c, gap, c.best))
        values = ", ".join(f"{name_of(m)} {c.value(m, c.main, c.last)}" for m in self.names)
        headline = f"{self.says[gap.verdict]}{c.heads()}{c.at(c.last)}: {values}"
        means = "; ".join(f"{self.levels(c, p)}{c.heads(p)}" for p in c.populations)
        apart = f"the difference{c.heads()} is {number(gap.difference, gap.se, signed=True)}"
        detail = [sentence(f"{c.over}{means}; {apart}")]
        if c.matched:
            own = c.own.compare(*self.names, c.main, c.last, self.looks)
            rows += [*(c.row(m, c.main, c.last, e=c.own) for m in self.names), self.difference(c, own, c.own)]
            headline += self.unlike(c, gap, own)
            says, apart = self.says[own.verdict], number(own.difference, own.se, signed=True)
            detail.append(
                f"{capital(training_context(c))}, {says[0].lower()}{says[1:]}{c.heads()}: "
                f"{self.levels(c, c.main, c.own)} (difference {apart})."
            )
        detail.append(self.before(c, gap))
        text = (sentence(headline), joined(*detail), self.meaning, joined(c.caveat, self.caveat), gap.verdict)
        how, see = c.rule(rule_of_contrast()), c.see(self.view, self.first)
        surprise = rank({"equal": LEVEL, "unclear": UNCLEAR}.get(gap.verdict, DIFFERENT), gap.difference)
        return Claim(self.id, self.question, *text, tuple(rows), c.best.name, how, see, surprise)

    def difference(self, c: Context, gap: Contrast, e: Evidence) -> Row:
        what, unit = f"{name_of(self.first)} minus {name_of(self.second)}{c.heads()}", unit_of(self.first)
        ends = (c.model(c.last), gap.difference, gap.se, None, e.name)
        return Row(what, "-".join(self.names), c.main, *ends, unit, gap.verdict)

    def levels(self, c: Context, population: Population, e: Evidence | None = None) -> str:
        return ", ".join(f"{name_of(m)} {c.level(m, population, c.last, e)}" for m in self.names)

    def unlike(self, c: Context, gap: Contrast, own: Contrast) -> str:
        """A note where the training context clearly gives another answer."""
        if own.verdict == gap.verdict or own.verdict not in CLEAR:
            return ""
        values = " and ".join(f"{name_of(m)} {bare(c.own.level(m, c.main, c.last)[0])}" for m in self.names)
        if gap.verdict not in CLEAR:  # the sign of what is not clear has no reverse
            says = self.says[own.verdict]
            return f"; {training_context(c)}, {says[0].lower()}{says[1:]}: {values}"
        reverse = " the other way round," if own.difference * gap.difference < 0 else ""
        return f"; {training_context(c)}{reverse} {values}"

    def before(self, c: Context, gap: Contrast) -> str:
        """The checkpoints at which the difference clearly had the other sign, or a sign where it has none now."""
        looks = self.looks * (c.last + 1)
        other: dict[str, list[int]] = {}
        for i in range(c.last) if c.training else ():
            each = c.best.compare(*self.names, c.main, i, looks)
            same = gap.verdict in CLEAR and each.difference * gap.difference > 0
            if each.verdict in CLEAR and not same:
                other.setdefault(each.verdict, []).append(i)
        said = []
        for verdict, found in other.items():
            says = "The difference had the opposite sign" if gap.verdict in CLEAR else self.says[verdict]
            said.append(f"{says} at {self.listed(c, found)}{self.aside(c, found)}.")
        return joined(*said)

    def listed(self, c: Context, found: Sequence[int]) -> str:
        labels = [c.labels[i] for i in found]
        return listing(labels) if len(labels) <= MOST_LABELS else some(labels, MOST_LABELS)

    def aside(self, c: Context, found: Sequence[int]) -> str:
        """That published r differs from now in coordinates only."""
        if self.names != ("r_q", "abs_r_k") or any(c.new_settings(i, c.last) for i in found):
            return ""
        changed = {c.best.what_changed(c.main, i, c.last) for i in found}
        return f", {COORDINATES}" if changed == {"coordinates"} else ""
