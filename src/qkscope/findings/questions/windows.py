"""Is what changes where the window grows still there over the same tokens?"""

from __future__ import annotations

from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL, Row
from qkscope.findings.phrases import amount, contrast_row, row
from qkscope.inference.contrast import contrast
from qkscope.inference.evidence import MEAN_ABS_R_K, MEAN_EV, MEAN_R_K, MEAN_R_Q
from qkscope.inference.levels import rule_of_change, rule_of_windows
from qkscope.inference.series import Change
from qkscope.inference.windows import remains
from qkscope.words import joined, listing, number, sentence, tokens

COMPARED = (MEAN_R_Q, MEAN_R_K, MEAN_ABS_R_K, MEAN_EV)
ENDINGS = {
    "same": "about as much",
    "altered": "which is not as much",
    "opposite": "which is the other way",
    "hidden": "which the growing window hides",
    "gone": "where it is gone",
    "unclear": "where it is not clear",
}


@question(
    "window", "Does what changes where the window grows remain over the same tokens?", view="signal", place=12,
    rule=joined(rule_of_change(), rule_of_windows()),
)  # fmt: skip
def window(s: Asked) -> Answer | None:
    """Changes at the places where the window does, over own windows and over the same tokens."""
    if not s.own.widened:
        return None
    if s.matched is None:
        places = listing([s.own.label(i) for i in s.own.widened])
        text = f"The window changes at {places}, and no common window was measured"
        return Answer(CANNOT_TELL, "Whether changes come with the window cannot be told", sentence(text))
    pairs = {
        (i, name): (s.own.steps(name)[i - 1], s.matched.steps(name)[i - 1])
        for i in s.own.widened for name in COMPARED if name in s.own.series and name in s.matched.series
    }  # fmt: skip
    kinds = {key: remains(*pair) for key, pair in pairs.items()}
    rows = [row(e, c) for own, same in pairs.values() for e, c in ((s.own, own), (s.matched, same))]
    verdict, headline = _verdict(set(kinds.values()) - {""})
    last, sizes = _effect(s)
    return Answer(verdict, headline, joined(_detail(s, pairs, kinds), last), (*rows, *sizes))


def _verdict(kinds: set[str]) -> tuple[str, str]:
    if not kinds:
        return "no", "Nothing clearly changes where the window grows"
    if kinds == {"gone"}:
        return "no", "What changes where the window grows is gone over the same tokens"
    if kinds == {"same"}:
        return "yes", "What changes where the window grows is there over the same tokens too"
    if kinds <= {"unclear", "gone"}:
        return CANNOT_TELL, "Whether changes remain over the same tokens cannot be told"
    if "opposite" in kinds:
        return "in part", "Where the window grows, some numbers move the other way over the same tokens"
    if "hidden" in kinds:
        return "in part", "Windows that grow hide changes that the same tokens show"
    return "in part", "Over the same tokens part of what changes where the window grows remains"


def _detail(
    s: Asked, pairs: dict[tuple[int, str], tuple[Change, Change]], kinds: dict[tuple[int, str], str]
) -> str:
    """The clearest change of each place, as own windows and the same tokens have it."""
    parts = []
    for i in s.own.widened:
        here = [key for key in pairs if key[0] == i and kinds[key]]
        if not here or s.matched is None:
            continue
        key = max(here, key=lambda k: max(abs(c.delta) for c in pairs[k]))
        own, same = pairs[key]
        sizes = f"{amount(s.own, own)} over own windows and {amount(s.matched, same)} over the same tokens"
        parts.append(f"at {s.own.label(i)} {key[1]} changes by {sizes}, {ENDINGS[kinds[key]]}")
    return sentence("; ".join(parts))


def _effect(s: Asked) -> tuple[str, list[Row]]:
    """What the longer window alone does to the last checkpoint: own minus matched, from the same documents."""
    last, same = s.own.stops[-1], s.best
    if last.window == same.window or last.window is None or same.window is None:
        return "", []
    rows, parts = [], []
    for name in COMPARED[:2]:
        c = contrast(
            s.own.series[name].values[-1], same.series[name].values[-1], paired=s.own.heads == same.heads
        )
        what = f"{name}, own window minus first {tokens(same.window)}"
        rows.append(contrast_row(s.own, what, last.model, c))
        parts.append(f"{name} by {number(c.difference, c.se, signed=True)}")
    longer = f"{tokens(last.window)} instead of its first {same.window:,}"
    return f"Measured over {longer}, {s.own.label(-1)} differs in {listing(parts)}.", rows
