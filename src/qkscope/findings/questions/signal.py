"""Is there a signal of position at all, and is it the queries' or the keys'?"""

from __future__ import annotations

import math

import pandas as pd

from qkscope.aggregate import above_null, positional_below_null
from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL, Row
from qkscope.findings.phrases import amount, contrast_row
from qkscope.inference.contrast import contrast
from qkscope.inference.evidence import MEAN_ABS_R_K, MEAN_R_Q, Evidence, average
from qkscope.inference.levels import ABOVE_CHANCE, rule_of_contrast, rule_of_signal
from qkscope.inference.naming import CAUSES
from qkscope.measures.null import LEVEL
from qkscope.words import bare, count, joined, number, percent, sentence


@question(
    "signal", "Do heads follow position more closely than by chance?", view="signal", place=10, of="any",
    rule=rule_of_signal(), tested=False,
)  # fmt: skip
def signal(s: Asked) -> Answer:
    """The share of heads that follow position more closely than chance reaches, at the last checkpoint."""
    e = s.best
    table = above_null(pd.concat([sample.heads for sample in e.samples]), [stop.model for stop in e.stops])
    last = table.iloc[-1]
    if not last["heads"]:
        return Answer(CANNOT_TELL, "The table has no null values, so a signal cannot be told from none")
    best = max(last["share_q"], last["share_k"])
    who = "queries" if last["share_q"] >= last["share_k"] else "keys"
    verdict = _above_chance(best, LEVEL, int(last["heads"]))
    detail = (
        f"{s.over}at {e.label(-1)}, {last['above_q']} of {last['heads']} heads follow position in their queries and "
        f"{last['above_k']} in their keys more closely than chance reaches"
    )
    below = int(positional_below_null(e.samples[-1].heads, e.thresholds).sum())
    fail = f"{'does' if below == 1 else 'do'} not pass this test"
    doubt = f"{count(below, 'head')} classed as positional by size of r alone {fail}" if below else ""
    words = {
        "yes": f"The {who} of {percent(best)} of the heads follow position more closely than chance reaches",
        "no": "No more heads follow position than chance explains",
        CANNOT_TELL: f"The {who} of {percent(best)} of the heads pass a test that chance also passes",
    }
    rows = tuple(
        Row(
            f"heads whose {name} exceed the null",
            row["model"],
            row[f"share_{letter}"],
            window=e.name,
            unit="share",
        )
        for _, row in table.iterrows()
        for name, letter in (("queries", "q"), ("keys", "k"))
    )
    against = _against_untrained(s, table)
    if against and table.iloc[0][f"share_{who[0]}"] >= best:
        doubt = joined(sentence(doubt), "No fewer do so untrained: to pass the test is no sign of training.")
    return Answer(verdict, words[verdict], joined(sentence(detail), against), rows, sentence(doubt))


def _against_untrained(s: Asked, table: pd.DataFrame) -> str:
    """What the untrained model has of it, where the study begins with one, and what came to it since."""
    e = s.best
    if e.timeline.kind != "training" or len(e.stops) < 2 or e.stops[0].step != 0:
        return ""
    first, since = table.iloc[0], e.overall(MEAN_R_Q)
    said = (
        f"Untrained, at {e.label(0)}, {first['above_q']} do in their queries and {first['above_k']} in their keys; "
        f"mean r_q has since changed by {amount(e, since)}"
    )
    parts = [f"{CAUSES[factor]} {bare(part, signed=True)}" for factor, part in _by_cause(s).items()]
    return sentence(said + (f": {', '.join(parts)}" if parts else ""))


def _by_cause(s: Asked) -> dict[str, float]:
    """The parts of mean r_q's changes by each factor, summed over all steps; nothing where one is not known."""
    causes = s.results.causes if s.matched is None else s.results.causes_matched
    if causes is None:
        return {}
    steps = causes[causes["number"] == MEAN_R_Q]
    parts = steps[list(CAUSES)]
    known = len(steps) == len(s.best.stops) - 1 and bool(
        steps["same_text"].all() and parts.notna().all(axis=None)
    )
    return {factor: float(parts[factor].sum()) for factor in CAUSES if known and parts[factor].any()}


def _above_chance(share: float, chance: float, heads: int) -> str:
    spread = ABOVE_CHANCE * math.sqrt(chance * (1 - chance) / max(heads, 1))
    if share > ABOVE_CHANCE * chance + spread:
        return "yes"
    return "no" if share <= chance + spread else CANNOT_TELL


@question(
    "queries_or_keys", "Do queries follow position more closely than keys?", view="signal", place=22, of="any",
    rule=rule_of_contrast(),
)  # fmt: skip
def queries_or_keys(s: Asked) -> Answer:
    """Mean r_q against mean |r_k|: r_q is turned to be positive, so signs of r_k must not count against it."""
    e = s.best
    found = [contrast(average(x.r_q), average(x.abs_r_k), looks=len(e.samples)) for x in e.samples]
    what = f"{MEAN_R_Q} minus {MEAN_ABS_R_K}"
    rows = tuple(contrast_row(e, what, stop.model, c) for stop, c in zip(e.stops, found, strict=True))
    last = found[-1]
    verdict = {"more": "yes", "less": "no", "same": "no", "": CANNOT_TELL}[last.sure]
    words = {
        "more": "Queries follow position more closely than keys",
        "less": "Keys follow position more closely than queries",
        "same": "Queries and keys follow position equally closely",
        "": "Queries and keys cannot be told apart",
    }
    headline = f"{words[last.sure]}: {MEAN_R_Q} {bare(last.first)}, {MEAN_ABS_R_K} {bare(last.second)}"
    detail = f"{s.over}the difference at {e.label(-1)} is {number(last.difference, last.se, signed=True)}"
    return Answer(verdict, headline, joined(sentence(detail), _counted(e, [c.sure for c in found])), rows)


def _counted(e: Evidence, sure: list[str]) -> str:
    if len(sure) < 2:
        return ""
    noun = "models" if e.timeline.kind == "models" else "checkpoints"
    queries, keys = (sure.count(word) or "none" for word in ("more", "less"))
    return f"Queries are clearly ahead in {queries} of {len(sure)} {noun}, keys in {keys}."
