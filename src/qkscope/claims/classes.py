"""Claims about single heads: their classes, queries against keys, and whether position is encoded linearly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qkscope.claims.claim import Claim, Population, Row
from qkscope.claims.context import LEVEL, MOST_NAMED, UNCLEAR, Context, head_names, rank
from qkscope.claims.templates import Compared, training_context
from qkscope.claims.trends import SCALED
from qkscope.measures.samples import jackknife
from qkscope.results.taxonomy import CLASSES, classify
from qkscope.stats.evidence import Evidence
from qkscope.stats.levels import MISSED, margin, rule_of_change, rule_of_contrast
from qkscope.words import bare, joined, listing, percent, sentence

MOST_CHANGES = 3


def classes(c: Context) -> Claim | None:
    """How many heads of each class there are at the last checkpoint, and which classes gained or lost."""
    if c.several_models or not all(_total(c, p) for p in c.populations):
        return None
    ranked = {p: c.best.ranked_classes(p, c.last) for p in c.populations}
    verdict, (top, second, *_) = ranked[c.main]
    rows = [_count(c, kind, p) for p in c.populations for kind in ranked[p][1]]
    if verdict in ("tie", "unclear"):
        rows.sort(key=lambda row: (row.population != c.main, row.measure not in (top, second)))
    else:  # the largest of each population first
        rows.sort(key=lambda row: row.measure != ranked[row.population][1][0])
    headline = _headline(c, verdict, top, second)
    if path := _path(c):
        headline += f"; {path[1]}"
        rows.append(path[0])
    elif c.other and ranked[c.other][0] in ("majority", "largest"):
        kind = ranked[c.other][1][0]
        headline += f"; {_of(c, kind, c.other).lower()} NoPE heads are {kind}"
    changed, text = _changed(c)
    rows += changed
    detail = joined(text, sentence(_counts(c, c.best)))
    if c.matched:
        rows += [_count(c, kind, c.main, c.own) for kind in CLASSES]
        detail = joined(detail, sentence(f"{training_context(c)}, {_counts(c, c.own)}"))
    meaning = joined("Classes cut r_q and |r_k| along PC0 at fixed thresholds.", _content(c))
    caveat = joined(c.window_caveat, c.caveat, SCALED)
    # Coordinates may change it: it never leads.
    tier = UNCLEAR if verdict == "unclear" and not changed else LEVEL
    size = max((abs(row.value) / 2 / _total(c, row.population) for row in changed), default=0.0)
    how = c.rule(rule_of_contrast(), rule_of_change() if c.training else "")
    see = c.see("classes", "class")
    question = "Published taxonomy: how many heads follow position with queries, keys, both or neither?"
    said = (sentence(headline), detail, meaning, caveat, verdict)
    return Claim("classes", question, *said, tuple(rows), c.best.name, how, see, rank(tier, size))


def _total(c: Context, p: Population) -> int:
    return len(c.best.kinds(c.last, p))


def _of(c: Context, kind: str, p: Population) -> str:
    members, total = c.best.count(kind, p, c.last), _total(c, p)
    return f"All {total}" if members == total else f"{members} of {total}"


def _count(c: Context, kind: str, p: Population, e: Evidence | None = None, i: int | None = None) -> Row:
    i = c.last if i is None else i
    return c.counted(f"{kind} {c.kind(p)}", kind, p, i, (e or c.best).count(kind, p, i), e)


def _headline(c: Context, verdict: str, top: str, second: str) -> str:
    at, kind = c.at(c.last), c.kind()
    if verdict in ("majority", "largest"):
        most = "" if verdict == "majority" else ", the largest class"
        return f"{_of(c, top, c.main)} {kind} are {top}{at}{most}"
    numbers = [c.best.count(name, c.main, c.last) for name in (top, second)]
    if numbers[0] == numbers[1]:
        each = f"{numbers[0]} of {_total(c, c.main)} each"
        return f"Two classes are equally large among {kind}{at}, {each}: {top} and {second}"
    return (
        f"No class is clearly the largest among {kind}{at}: {numbers[0]} are {top} and {numbers[1]} {second}"
    )


def _path(c: Context) -> tuple[Row, str] | None:
    """The class that rose and fell most clearly between the first and the last checkpoint, and its path in words."""
    found = []
    for kind in CLASSES if c.follows else ():
        if c.best.direction(kind, c.main) != "rises and falls":
            continue
        counts = [c.best.count(kind, c.main, i) for i in range(c.last + 1)]
        low, high = sorted((counts[0], counts[-1]))
        beyond = [max(count - high, low - count) for count in counts]
        found.append((max(beyond), kind, counts, beyond.index(max(beyond))))
    size, kind, counts, top = max(found, default=(0, "", [], 0))
    if size <= 0:
        return None
    text = f"in this run {kind} ones went from {counts[0]} to {counts[top]} at {c.labels[top]}, then to {counts[-1]}"
    return _count(c, kind, c.main, i=top), text


def _content(c: Context) -> str:
    """A note that content-focused heads may follow position along other axes, with their range of position's share."""
    kind, here = "content-focused", c.best.mask(c.last, c.main)
    r_q, r_k, share = (c.best.value(m, c.last)[here] for m in ("r_q", "r_k", "share_positional"))
    shares = share[(classify(r_q, r_k, c.best.thresholds) == kind) & np.isfinite(share)]
    said = f"{kind} means low r along PC0 only"
    if len(shares) and shares.max() > MISSED:
        span = " to ".join(dict.fromkeys(percent(float(end)) for end in (shares.min(), shares.max())))
        said += f": position explains {span} of score variance in such {c.kind()}"
    return sentence(said)


def _counts(c: Context, e: Evidence) -> str:
    parts = []
    for p in c.populations:
        shown = [f"{n} {kind}" for kind in CLASSES if (n := e.count(kind, p, c.last))]
        parts.append(f"{c.kind(p)}: {', '.join(shown)}")
    return "; ".join(parts)


def _changed(c: Context) -> tuple[list[Row], str]:
    """The classes of each population whose share changed clearly, as rows of heads and as a sentence."""
    if not c.follows:
        return [], ""
    found = []
    for p in c.populations:
        for kind in CLASSES:
            change = c.best.overall(kind, p)
            before, after = (c.best.count(kind, p, i) for i in (0, c.last))
            # Judged on the heads that every checkpoint has, which may go another way than all that were measured.
            if change is not None and change.clear and (after - before) * change.delta > 0:
                row = c.counted(f"{kind} {c.kind(p)}", kind, p, c.last, after - before)
                row = replace(row, from_model=c.model(0), verdict=change.verdict)
                found.append((row, f"{row.what} from {before} to {after}"))
    ends = f"from {c.labels[0]} to {c.labels[-1]}"
    if not found:
        return [], f"No class's number changed clearly {ends}."
    least = sorted((abs(row.value) for row, _ in found), reverse=True)[:MOST_CHANGES][-1]
    largest = [text for row, text in found if abs(row.value) >= least][:MOST_CHANGES]
    few = "Clear changes" if len(found) <= MOST_CHANGES else f"The {MOST_CHANGES} largest clear changes"
    return [row for row, _ in found], f"{few} {ends}: {listing(largest)}."


queries_keys = Compared(
    id="queries_keys",
    question="Do queries or keys follow position more closely?",
    first="r_q",
    second="abs_r_k",
    says={
        "higher": "Queries follow position more closely than keys",
        "lower": "Keys follow position more closely than queries",
        "equal": "Queries and keys follow position equally closely",
        "unclear": "Errors are too large to say whether queries or keys follow position more closely",
    },
    meaning="|r_k| ignores the sign: keys may follow position with the queries or against them.",
    caveat=SCALED,
)


def linearity(c: Context) -> Claim | None:
    """eta, from any function of position, against |r|, from a straight line: of keys or of queries."""
    if c.several_models or not all(c.best.known(m, c.main) for m in ("eta_q", "eta_k")):
        return None
    question = "Do linear and nonlinear measures of position agree?"
    meaning = (
        "eta allows any function of position, r only a straight line: where eta is much larger, a low r does not mean "
        "that a head ignores position. eta is corrected for bias, so it may be below |r|."
    )
    answers = {}
    for x, kind in KINDS.items():
        line, misses = f"captures how {kind} encode position", f"misses part of how {kind} encode position"
        says = dict.fromkeys(("lower", "equal"), f"A straight line {line}")
        says |= {
            "higher": f"A straight line {misses}",
            "unclear": f"Errors are too large to say whether a straight line {line}",
        }
        if claim := Compared("linearity", question, f"eta_{x}", f"abs_r_{x}", says, meaning, looks=2)(c):
            answers[x] = claim
    x, most = max(answers.items(), key=lambda item: item[1].rows[0].value - item[1].rows[1].value)
    total, missed = int(c.best.mask(c.last, c.main).sum()), {each: _missed(c, each) for each in KINDS}
    headline, (eta, r, *_) = most.headline, most.rows
    if most.verdict == "higher" and missed[x]:
        headline = (
            f"A straight line misses part of how {KINDS[x]} encode position in {len(missed[x])} of {total} {c.kind()}"
            f"{c.at(c.last)}; over all {total}, mean eta_{x} is {bare(eta.value)} and mean |r_{x}| {bare(r.value)}."
        )
    beyond = [f"eta_{x} exceeds |r_{x}| in {_named(heads, total, c.kind())}" for x, heads in missed.items()]
    clearly = "Clearly and by" if c.best.basis == "documents" else "By"
    detail = joined(most.detail, f"{clearly} more than {bare(MISSED, 1)}, {' and '.join(beyond)}.")
    others = [row for claim in answers.values() if claim is not most for row in claim.rows]
    return replace(most, headline=headline, detail=detail, rows=(*most.rows, *others))


KINDS = {"k": "keys", "q": "queries"}


def _missed(c: Context, x: str) -> list[str]:
    """The heads in which eta exceeds |r| by more than MISSED, and clearly where errors are known."""
    e, i = c.best, c.last
    eta, r = (e.values(name).to_numpy()[i, : 1 + e.groups_at[i]] for name in (f"eta_{x}", f"abs_r_{x}"))
    beyond = eta - r  # (1 + G, heads)
    here = e.mask(i, c.main) & (beyond[0] > MISSED)
    if e.basis == "documents":
        here &= beyond[0] > margin(1.0, e.groups_at[i] - 1) * jackknife(beyond[1:])
    return head_names(e.heads(here))


def _named(heads: list[str], total: int, kind: str) -> str:
    """`2 of 36 RoPE heads (layer 1 head 0 and layer 4 head 2)`; the count alone where there are many."""
    names = f" ({listing(heads)})" if 0 < len(heads) <= MOST_NAMED else ""
    return f"{len(heads)} of {total} {kind}{names}"
