"""What the published SmolLM3-3B study concludes, held against its own numbers, and what a study here answers to it.

Its figures give means over heads and counts of classes, without errors over documents, counterfactuals or windows
that match. So each conclusion has two answers: what these numbers allow, and the claim of one's own results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from qkscope.claims import Claim
from qkscope.inference.levels import PLACED_IN_PART, PLACED_WITHIN
from qkscope.taxonomy import Thresholds
from qkscope.timeline import Stop, timeline_from_names
from qkscope.words import bare, sentence

# How far a mean read off a published plot may be from the one plotted.
READ_OFF = 0.002


@dataclass(frozen=True)
class Conclusion:
    """What was concluded, whether the published numbers bear it, and which claim of other results answers it."""

    said: str
    verdict: str
    headline: str
    claim: str

    def lines(self, claims: Mapping[str, Claim]) -> list[str]:
        """The conclusion, what its numbers allow, and the answer of one's own results."""
        found = [f"{self.said}; supported by its numbers: {self.verdict}. {sentence(self.headline)}"]
        if self.claim in claims:
            own = claims[self.claim]
            found.append(f"  Here: {own.verdict}. {sentence(own.headline)}")
        return found


def conclusions(data: Mapping[str, Any]) -> tuple[Conclusion, ...]:
    """The published study's conclusions about position, each judged by its published numbers alone."""
    return (_fewer_keys(data), _monotonic(data), _jump(data), _cause(data))


def _fewer_keys(data: Mapping[str, Any]) -> Conclusion:
    """Heads above the threshold make mean |r_k| at least so large; where mean r_k is smaller, signs differ."""
    before, last = _onset(data) - 1, len(data["checkpoints"]) - 1
    counts = data["taxonomy_head_counts"]
    heads = sum(column[last] for column in counts.values())
    follow = sum(counts[kind][last] for kind in ("position-dominated", "K-positional"))
    least, mean = Thresholds().high * follow / heads, data["mean_r_k"][last]
    dominated = [counts["position-dominated"][i] for i in (before, last)]
    shown = least > mean + READ_OFF and dominated[1] >= dominated[0]
    headline = (
        f"Keys of opposite sign cancel: position-dominated heads go from {dominated[0]} to {dominated[1]}, so mean "
        f"|r_k| is above {bare(least)} at {data['short_labels'][last]}, where mean r_k is {bare(mean)}"
    )
    if not shown:
        headline = "It is unclear whether keys follow position less or change sign"
    return Conclusion(
        "Keys are partly decoupled from position at long context",
        "no" if shown else "unclear",
        headline,
        "queries_keys",
    )


def _monotonic(data: Mapping[str, Any]) -> Conclusion:
    values, labels = data["mean_r_q"], data["short_labels"]
    change, at = min((after - before, i) for i, (before, after) in enumerate(pairwise(values)))
    # Both ends of a step may be off by reading; a rise by rounding of the subtraction is none.
    verdict = "no" if change + 2 * READ_OFF < 1e-9 else "unclear" if change < 0 else "yes"
    headline = (
        f"Its smallest step is {bare(values[at], 3)} → {bare(values[at + 1], 3)}, from {labels[at]} to "
        f"{labels[at + 1]}; without standard errors a decrease cannot be distinguished from noise"
    )
    return Conclusion("Mean r_q increases monotonically", verdict, headline, "position")


def _jump(data: Mapping[str, Any]) -> Conclusion:
    values, labels = data["mean_r_q"], data["short_labels"]
    spans = intervals(timeline_from_names(list(data["checkpoints"]), "published").stops)
    at = max(range(len(spans)), key=lambda i: abs(values[i + 1] - values[i]))
    where = f"between {labels[at]} and {labels[at + 1]}"
    step = f"Its largest step, {bare(values[at + 1] - values[at], signed=True)}, is"
    if placed(spans, at):
        verdict, headline = "yes", f"{step} {where}"
    else:
        verdict = "unclear"
        headline = (
            f"{step} within the {spans[at]:,} training steps {where} and cannot be located more precisely"
        )
    return Conclusion("Mean r_q jumps early in stage 1", verdict, headline, "emergence")


def _cause(data: Mapping[str, Any]) -> Conclusion:
    """Long-context phases change the weights, the window and the rotation settings in one step."""
    at = data["short_labels"][_onset(data)]
    headline = f"At {at}, weights, window and RoPE settings change together, and no checkpoint in between was measured"
    return Conclusion(
        "Long-context training reshapes how queries and keys follow position",
        "unclear",
        headline,
        "long_context",
    )


def intervals(stops: Sequence[Stop]) -> list[int | None]:
    """Training steps between neighbouring checkpoints; None where not known.

    Where a phase counts its steps anew, those since its start are taken: what ended the phase before is not known.
    """
    found: list[int | None] = []
    for before, after in pairwise(stops):
        if before.step is None or after.step is None:
            found.append(None)
        else:
            found.append(after.step - before.step if after.step > before.step else after.step or None)
    return found


def placed(spans: Sequence[int | None], at: int) -> bool:
    """Whether an interval is short enough, beside all of them, to say where in training its step lies."""
    span, known = spans[at], [span for span in spans if span]
    short = max(PLACED_WITHIN * median(known), PLACED_IN_PART * sum(known)) if known else 0
    return span is None or span <= short


def _onset(data: Mapping[str, Any]) -> int:
    """The first long-context checkpoint."""
    names: Sequence[str] = data["checkpoints"]
    return next(i for i, name in enumerate(names) if name.startswith("lc-"))
