"""Do keys follow position with the queries or against them, and do heads turn round?"""

from __future__ import annotations

from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL, Row
from qkscope.findings.phrases import amount, by_noise, ends, rows_of, span
from qkscope.inference.evidence import MEAN_ABS_R_K, MEAN_R_K, Evidence, share_of, spoken
from qkscope.inference.levels import SMALLEST, rule_of_change, rule_of_noise
from qkscope.inference.transitions import Turn, turned
from qkscope.taxonomy import POLARITIES
from qkscope.words import about, joined, listing, number, sentence

CONCORDANT, _, DISCORDANT = (share_of(kind) for kind in POLARITIES)


@question("sign_changes", "Do heads change the sign of r_k?", view="portrait", place=31, rule=rule_of_noise())
def sign_changes(s: Asked) -> Answer:
    """Heads that turn from following position with the queries to following it against them, or back."""
    e = s.best
    found = [turned(p) for p in e.pairs]
    known = all(p.has_errors for p in e.pairs)
    rows = tuple(
        Row(
            "heads that change the sign of r_k",
            t.to_model,
            t.heads,
            t.from_model,
            window=e.name,
            verdict=_word(t, known),
        )
        for t in found
    )
    most = max(found, key=lambda t: (t.beyond_noise, t.heads - t.expected if known else t.heads))
    size = (
        f"{most.heads} of {e.heads} heads change the sign of r_k at {spoken(e.timeline.stop(most.to_model))}"
    )
    if not known:
        return Answer(
            CANNOT_TELL, size, "Without errors of single heads it is not known how many do so by noise.", rows
        )
    real = [t for t in found if t.beyond_noise and t is not most]
    also = [f"{t.heads} at {spoken(e.timeline.stop(t.to_model))}" for t in real]
    detail = f"{s.over}noise alone would turn {about(most.expected)} there"
    if most.beyond_noise:
        return Answer("yes", size, joined(sentence(detail), _what_falls(e, most), _also(also)), rows)
    if any(t.perhaps for t in found):
        return Answer(CANNOT_TELL, f"At most {size}, perhaps by noise", sentence(detail), rows)
    hidden = max(t.expected for t in found) > 0.1 * e.heads
    headline = "No more heads change the sign of r_k than noise explains"
    detail = f"{s.over}at most {size}{by_noise(most.expected)}"
    return Answer(CANNOT_TELL if hidden else "no", headline, sentence(detail), rows)


def _word(t: Turn, known: bool) -> str:
    if not known or (t.perhaps and not t.beyond_noise):
        return CANNOT_TELL
    return "yes" if t.beyond_noise else "no"


def _also(places: list[str]) -> str:
    return f"More than noise turns also {listing(places)}." if places else ""


def _what_falls(e: Evidence, t: Turn) -> str:
    """That a fall of mean r_k is heads turning round, where it is."""
    i = [p.from_model for p in e.pairs].index(t.from_model)
    signed, strength = e.steps(MEAN_R_K)[i], e.steps(MEAN_ABS_R_K)[i]
    if signed.verdict != "falls" or strength.verdict == "falls" or t.of_change > signed.delta / 2:
        return ""
    return (
        f"Mean r_k falls there by {number(-signed.delta, signed.se)} because heads turn round, not because their keys "
        f"follow position less: mean |r_k| changes by {amount(e, strength)}."
    )


@question(
    "polarity", "Does the share of heads whose keys run against the queries change?", view="portrait", place=32,
    rule=rule_of_change(),
)  # fmt: skip
def polarity(s: Asked) -> Answer:
    """Discordant heads, and what the mean of r_k hides of them."""
    e = s.best
    verdict = e.direction(DISCORDANT)
    words = {
        "rises": "More heads come to run against the queries",
        "falls": "Fewer heads come to run against the queries",
        "rises and falls": "Heads that run against the queries become more, then fewer, or the reverse",
        "no change": "As many heads run against the queries at the end as at the start",
        CANNOT_TELL: "Whether more heads come to run against the queries cannot be told",
    }
    detail = f"{s.over}discordant heads go {ends(e, DISCORDANT)} and concordant ones {ends(e, CONCORDANT)}"
    series = e.series[MEAN_ABS_R_K], e.series[MEAN_R_K]
    gap = series[0].at(-1) - series[1].at(-1)
    cancels = "heads of opposite sign cancel" if gap >= SMALLEST else "hardly any heads cancel"
    hides = f"At {e.label(-1)} {cancels} in mean r_k, which is {number(gap)} below mean |r_k|."
    names = (*(share_of(kind) for kind in POLARITIES), MEAN_R_K, MEAN_ABS_R_K)
    return Answer(
        verdict,
        f"{words[verdict]}: {span(e, DISCORDANT)}",
        joined(sentence(detail), hides),
        rows_of(s, *names),
    )
