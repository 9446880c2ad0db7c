"""What happens to the keys where long-context training begins."""

from __future__ import annotations

from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL
from qkscope.findings.phrases import amount, by_noise, moved_row, row, span
from qkscope.findings.questions.signs import TURNING
from qkscope.inference.evidence import MEAN_ABS_R_K, MEAN_R_K
from qkscope.inference.transitions import part_of_turned, turned
from qkscope.words import joined, number, sentence


@question(
    "long_context", "How does mean r_k change where long-context training begins?", view="signal", place=30
)
def long_context(s: Asked) -> Answer | None:
    """Mean r_k at the onset, and how much of its change is heads changing sign."""
    e = s.best
    if s.own.onset is None:
        return None
    i = s.own.onset
    signed, strength = (e.steps(name)[i - 1] for name in (MEAN_R_K, MEAN_ABS_R_K))
    flips = turned(e.pairs[i - 1])
    words = {"no change": "stays level", CANNOT_TELL: "does not clearly change"}
    verb = words.get(signed.verdict, signed.verdict)
    headline = f"Where long-context training begins, mean r_k {verb}: {span(e, MEAN_R_K, i - 1, i)}"
    detail = (
        f"{s.over}between {e.label(i - 1)} and {e.label(i)} mean r_k changes by {amount(e, signed)} and mean |r_k| by "
        f"{amount(e, strength)}; {flips.heads} of {e.heads} heads change sign{by_noise(flips.expected)}"
    )
    if flips.verdict == "yes":
        detail += f", which makes {number(part_of_turned(e.pairs[i - 1]), signed=True)} of the change"
    both = [e] if e is s.own else [e, s.own]
    rows = [row(each, each.steps(name)[i - 1]) for each in both for name in (MEAN_R_K, MEAN_ABS_R_K)]
    own = ""
    if s.matched is not None:
        step = s.own.steps(MEAN_R_K)[i - 1]
        own = f"Over own windows, where the window changes too, mean r_k changes by {amount(s.own, step)}."
    return Answer(
        signed.verdict, headline, joined(sentence(detail), own), (*rows, moved_row(e, TURNING, flips))
    )
