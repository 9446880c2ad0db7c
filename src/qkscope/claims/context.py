"""A study as claims see it: its windows and populations, rows and phrases for sentences, and how claims are ranked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from qkscope.claims.claim import Population, Row, See, View
from qkscope.results import Results
from qkscope.stats.evidence import Evidence, matched_evidence, own_evidence
from qkscope.stats.levels import SMALLEST, rule_of_error
from qkscope.stats.series import Change, Changed
from qkscope.words import Unit, bare, count, joined, measured, points, sentence, tokens

# What a mean is called, and its unit; others are `mean <measure>`.
NAMES: dict[str, tuple[str, Unit]] = {
    "share_positional": ("position's share of score variance", "share"),
    "share_key": ("key content's share of score variance", "share"),
    "share_match": ("content match's share of score variance", "share"),
    "share_query_position": ("query-dependent position's share of score variance", "share"),
    "share_position": ("the share of score variance due to position alone", "share"),
    "abs_r_q_balanced": ("balanced |r_q|", "r"),
    "abs_r_k": ("mean |r_k|", "r"),
    "abs_r_q": ("mean |r_q|", "r"),
}
MOST_NAMED = 3  # heads that a sentence names one by one
# How a change of published r is called that is none of attention.
COORDINATES = "only in coordinates: balanced r and score shares did not change"
# For errors that are not over groups of documents.
_BASIS = {
    "heads": "Noise is estimated by leaving out heads; other texts may change the numbers by more.",
    "too few groups": "Two document groups are too few to test anything: measure with more groups.",
    "nothing": "There are no standard errors, so no difference can be tested.",
}
# What ranks claims: opposing directions, then changes, then differences, then levels; what is unclear comes last.
OPPOSED, CHANGED, DIFFERENT, LEVEL, UNCLEAR = 3.0, 2.0, 1.0, 0.0, -1.0


def rank(tier: float, size: float = 0.0) -> float:
    """A claim's `surprise`: its tier, and within that the size of what it says."""
    return tier + min(abs(size), 0.99)


def name_of(measure: str) -> str:
    return NAMES[measure][0] if measure in NAMES else f"mean {measure}"


def unit_of(measure: str) -> Unit:
    return NAMES[measure][1] if measure in NAMES else "r"


@dataclass(frozen=True)
class Context:
    """The evidence of one study. Claims are about `best`: the first N tokens of every checkpoint where measured."""

    results: Results

    @cached_property
    def own(self) -> Evidence:
        return own_evidence(self.results)

    @cached_property
    def matched(self) -> Evidence | None:
        return matched_evidence(self.results)

    @property
    def best(self) -> Evidence:
        return self.matched or self.own

    @property
    def training(self) -> bool:
        """Whether there are several checkpoints of one run."""
        return self.results.timeline.kind == "training" and len(self.best) > 1

    @property
    def several_models(self) -> bool:
        return self.results.timeline.kind == "models" and len(self.best) > 1

    @property
    def comparable(self) -> bool:
        """Whether all checkpoints were measured over one window."""
        return self.matched is not None or not self.results.timeline.window_changes

    @property
    def follows(self) -> bool:
        """Whether there is a training to follow, checkpoint by checkpoint."""
        return self.training and self.comparable

    @property
    def populations(self) -> tuple[Population, ...]:
        return self.best.populations

    @property
    def main(self) -> Population:
        """RoPE heads, or all where there is one population."""
        return self.populations[0]

    @property
    def other(self) -> Population | None:
        return self.populations[1] if len(self.populations) > 1 else None

    @cached_property
    def lead(self) -> str:
        """Position's share of score variance; r_q where scores were not measured."""
        known = all(self.best.known("share_positional", p) for p in self.populations)
        return "share_positional" if known else "r_q"

    @property
    def last(self) -> int:
        return len(self.best) - 1

    def model(self, i: int) -> str:
        return self.best.checkpoints[i].model

    @cached_property
    def labels(self) -> list[str]:
        """Checkpoints in sentences: a bare number is a step, and its phase is named where there are several."""
        checkpoints, found = self.best.checkpoints, []
        several_phases = len({checkpoint.phase for checkpoint in checkpoints}) > 1
        uses = Counter(checkpoint.label for checkpoint in checkpoints)
        for label, phase in ((checkpoint.label, checkpoint.phase) for checkpoint in checkpoints):
            digits = label[:1].isdigit()
            name = f"step {label}" if digits else label
            vague = several_phases and (digits or uses[label] > 1) and phase not in label
            found.append(f"{phase} {name}" if vague else name)
        return found

    def at(self, i: int) -> str:
        """` at LC2-80`; nothing for a single model."""
        return f" at {self.labels[i]}" if len(self.best) > 1 else ""

    def heads(self, population: Population | None = None) -> str:
        """` in RoPE heads`; nothing where there is one population."""
        name = population or self.main
        return "" if name == "all" else f" in {name} heads"

    def kind(self, population: Population | None = None) -> str:
        """`RoPE heads`, or `heads` where there is one population."""
        name = population or self.main
        return "heads" if name == "all" else f"{name} heads"

    @property
    def over(self) -> str:
        """`over the first 256 tokens, `; nothing where windows differ or are not known."""
        own = {checkpoint.window for checkpoint in self.best.checkpoints}
        window = self.best.window or (own.pop() if len(own) == 1 else None)
        return f"over the first {tokens(window)}, " if window else ""

    def value(self, measure: str, population: Population, i: int, layer: int | None = None) -> str:
        """A level without its error, as a headline has it."""
        unit = unit_of(measure)
        return measured(self.best.level(measure, population, i, layer)[0], math.nan, unit, signed=False)

    def level(self, measure: str, population: Population, i: int, e: Evidence | None = None) -> str:
        """A level with its error."""
        return measured(*(e or self.best).level(measure, population, i), unit_of(measure), signed=False)

    def path(
        self, measure: str, population: Population, ends: Iterable[int], e: Evidence | None = None
    ) -> str:
        """`13.2 ± 0.2% to 63.6 ± 0.3%`."""
        return " to ".join(self.level(measure, population, i, e) for i in ends)

    def row(
        self,
        measure: str,
        population: Population,
        i: int,
        layer: int | None = None,
        e: Evidence | None = None,
    ) -> Row:
        """The mean of a measure at a checkpoint."""
        e = e or self.best
        value, se = e.level(measure, population, i, layer)
        at = None if layer is None else float(layer)
        what = name_of(measure) + self.heads(population) + ("" if layer is None else f", layer {layer}")
        return Row(what, measure, population, self.model(i), value, se, None, e.name, unit_of(measure), at=at)

    def counted(
        self, what: str, measure: str, population: Population, i: int, count: int, e: Evidence | None = None
    ) -> Row:
        """A number of heads at a checkpoint."""
        window = (e or self.best).name
        return Row(what, measure, population, self.model(i), float(count), window=window, unit="heads")

    def change(self, measure: str, population: Population, c: Change, e: Evidence | None = None) -> Row:
        """A judged change of a mean."""
        ends = self.model(c.stop), c.delta, c.se, self.model(c.start)
        verdict, unit = c.verdict if self.comparable else "unclear", unit_of(measure)
        what = name_of(measure) + self.heads(population)
        return Row(what, measure, population, *ends, (e or self.best).name, unit, verdict)

    def new_settings(self, start: int, stop: int) -> bool:
        """Whether RoPE settings are known to have changed between two checkpoints."""
        table = self.results.causes
        if table is None:
            return False
        steps = table["to_model"].isin([each.model for each in self.best.checkpoints[start + 1 : stop + 1]])
        return bool((table.loc[steps, "rotation"] != 0).any())

    def change_of_r(self, measure: str, change: Change | None) -> str:
        """For a clear change of published r: that it is one of coordinates only, or may be."""
        if measure not in ("r_q", "abs_r_k") or change is None or not change.clear or not self.comparable:
            return ""
        if self.new_settings(change.start, change.stop):  # their effect may have cancelled training's
            return ""
        changed = self.best.what_changed(self.main, change.start, change.stop)
        ends = f"from {self.labels[change.start]} to {self.labels[change.stop]}"
        return published_r(changed, f"the change of {name_of(measure)}{self.heads()} {ends}")

    def see(self, view: View, measure: str) -> See:
        """The view of a measure of the main population at the last checkpoint."""
        return See(view, measure, self.model(self.last), self.main)

    def rule(self, *texts: str) -> str:
        """How errors are computed, then how the verdict follows."""
        return joined(rule_of_error(self.best.basis, self.best.groups), *texts)

    @property
    def caveat(self) -> str:
        """What casts doubt on every comparison of the study."""
        dropped = self.best.dropped if self.training else 0
        be = "is" if dropped == 1 else "are"
        lost = f"{count(dropped, 'head').capitalize()} {be} not measured at every checkpoint; changes leave them out."
        return joined(_BASIS.get(self.best.basis, ""), lost if dropped else "")

    @property
    def window_caveat(self) -> str:
        """A note where checkpoints were not measured over one common window, or may not have been."""
        if not self.training:
            return ""
        if not self.comparable:
            return "Windows differ and no common one was measured: checkpoints cannot be compared."
        windows = [checkpoint.window for checkpoint in self.best.checkpoints]
        if self.best.onset is not None and None in windows:
            return "The table does not name its windows, which may differ between checkpoints."
        return ""


def published_r(changed: Changed, what: str) -> str:
    """A sentence on whether a clear change of published r is one of attention; nothing where it is."""
    if changed == "coordinates":
        return sentence(f"{what} is {COORDINATES}")
    if changed == "unclear":
        return sentence(f"errors are too large to say whether {what} is more than one of coordinates")
    return ""


def head_names(heads: Iterable[tuple[int, int]]) -> list[str]:
    """`layer 4 head 2` of each."""
    return [f"layer {layer} head {head}" for layer, head in heads]


def small(unit: Unit) -> str:
    """The size below which a change is called flat."""
    return points(SMALLEST).lstrip("+") if unit == "share" else bare(SMALLEST)
