"""Claims about single heads: their classes, queries against keys, and whether a straight line says it all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qkscope.claims.claim import Claim, Population, Row, See
from qkscope.claims.context import MOST_NAMED, Context, head_names
from qkscope.claims.templates import LEVEL, UNCLEAR, Compared, rank, rule
from qkscope.claims.trends import SCALED
from qkscope.results.taxonomy import CLASSES, classify
from qkscope.stats.evidence import Evidence
from qkscope.stats.levels import MISSED, rule_of_change, rule_of_contrast
from qkscope.words import bare, joined, listing, percent, sentence, tokens

MOST_CHANGES = 3


def classes(c: Context) -> Claim | None:
    """How many heads of each class there are at the last checkpoint, and which classes gained or lost."""
    if c.several_models or not all(len(c.best.kinds(c.last, p)) for p in c.populations):
        return None
    tops = {p: c.best.ranked_classes(p, c.last) for p in c.populations}
    verdict, (top, second, *_) = tops[c.main]
    rows = [_count(c, kind, p) for p in c.populations for kind in tops[p][1]]
    rows.sort(
        key=lambda row: row.measure != tops[row.population][1][0]
    )  # the largest of each population first
    said, path = _headline(c, verdict, top, second), _path(c)
    if path:
        said += f"; {path[1]}"
        rows.append(path[0])
    elif c.other and tops[c.other][0] in ("majority", "largest"):
        kind = tops[c.other][1][0]
        said += f"; {_of(c, kind, c.other).lower()} NoPE heads are {kind}"
    changed, text = _changed(c)
    if verdict in ("tie", "unclear"):
        rows.sort(key=lambda row: (row.population != c.main, row.measure not in (top, second)))
    tier = (
        UNCLEAR if verdict == "unclear" and not changed else LEVEL
    )  # coordinates may change it: it never leads
    meaning = joined(
        "Classes cut r_q and |r_k| along PC0 at fixed thresholds.",
        _content(c),
    )
    size = max((abs(row.value) / 2 / _total(c, row.population) for row in changed), default=0.0)
    detail = joined(text, sentence(_shares(c, c.best)), _own_shares(c))
    said_of = (sentence(said), detail, meaning, joined(c.window_caveat, c.caveat, SCALED))
    how = rule(c, joined(rule_of_contrast(), rule_of_change() if c.training else ""))
    see = See("classes", "class", c.model(c.last), c.main)
    question = "Published taxonomy: how many heads follow position with queries, keys, both or neither?"
    own = [_count(c, kind, c.main, c.own) for kind in CLASSES] if c.matched else []
    every = (*rows, *changed, *own)
    return Claim("classes", question, *said_of, verdict, every, c.best.name, how, see, rank(tier, size))


def _total(c: Context, p: Population) -> int:
    return len(c.best.kinds(c.last, p))


def _of(c: Context, kind: str, p: Population) -> str:
    members, total = c.best.count(kind, p, c.last), _total(c, p)
    return f"All {total}" if members == total else f"{members} of {total}"


def _count(c: Context, kind: str, p: Population, e: Evidence | None = None, i: int | None = None) -> Row:
    e, i = e or c.best, c.last if i is None else i
    return Row(
        f"{kind} {c.kind(p)}", kind, p, c.model(i), float(e.count(kind, p, i)), window=e.name, unit="heads"
    )


def _path(c: Context) -> tuple[Row, str] | None:
    """The class that rose and fell most clearly between the first and the last checkpoint, and its path in words."""
    if not c.training or not c.comparable:
        return None
    found = []
    for kind in CLASSES:
        if c.best.direction(kind, c.main) != "rises and falls":
            continue
        counts = [c.best.count(kind, c.main, i) for i in range(c.last + 1)]
        low, high = sorted((counts[0], counts[-1]))
        top = max(range(len(counts)), key=lambda i: max(counts[i] - high, low - counts[i]))
        found.append((max(counts[top] - high, low - counts[top]), kind, counts, top))
    size, kind, counts, top = max(found, default=(0, "", [], 0))
    if size <= 0:
        return None
    text = f"in this run {kind} ones went from {counts[0]} to {counts[top]} at {c.labels[top]}, then to {counts[-1]}"
    return _count(c, kind, c.main, i=top), text


def _content(c: Context) -> str:
    """That content-focused heads may follow position elsewhere: their range of position's share."""
    kind, here = "content-focused", c.best.mask(c.last, c.main)
    r_q, r_k, share = (c.best.value(m, c.last)[here] for m in ("r_q", "r_k", "share_positional"))
    shares = share[(classify(r_q, r_k, c.best.thresholds) == kind) & np.isfinite(share)]
    said = f"{kind.capitalize()} means low r along PC0 only"
    if len(shares) and shares.max() > MISSED:
        low, high = (percent(float(end)) for end in (shares.min(), shares.max()))
        span = f"{low} to {high}" if low != high else low
        said += f": position explains {span} of score variance in such {c.kind()}"
    return sentence(said)


def _headline(c: Context, verdict: str, top: str, second: str) -> str:
    at, kind = c.at(c.last), c.kind()
    number = {name: c.best.count(name, c.main, c.last) for name in (top, second)}
    if verdict in ("majority", "largest"):
        most = "" if verdict == "majority" else ", the largest class"
        return f"{_of(c, top, c.main)} {kind} are {top}{at}{most}"
    if number[top] == number[second]:
        each = f"{number[top]} of {_total(c, c.main)} each"
        return f"Two classes are equally large among {kind}{at}, {each}: {top} and {second}"
    return f"No class is clearly the largest among {kind}{at}: {number[top]} are {top} and {number[second]} {second}"


def _shares(c: Context, e: Evidence) -> str:
    parts = []
    for p in c.populations:
        shown = [f"{n} {kind}" for kind in CLASSES if (n := e.count(kind, p, c.last))]
        parts.append(f"{c.kind(p)}: {', '.join(shown)}")
    return "; ".join(parts)


def _own_shares(c: Context) -> str:
    """The same counts over the last checkpoint's training context."""
    if not c.matched:
        return ""
    window = c.own.stops[c.last].window
    over = f" ({tokens(window)})" if window else ""
    return sentence(f"over the training context{over}, {_shares(c, c.own)}")


def _changed(c: Context) -> tuple[list[Row], str]:
    """The classes of each population whose share changed clearly, as rows of heads and as a sentence."""
    if not c.training or not c.comparable:
        return [], ""
    rows, said = [], []
    for p in c.populations:
        for kind in CLASSES:
            change = c.best.overall(kind, p)
            before, after = (c.best.count(kind, p, i) for i in (0, c.last))
            # Judged on the heads that every checkpoint has, which may go another way than all that were measured.
            if change is None or not change.clear or (after - before) * change.delta <= 0:
                continue
            what = f"{kind} {c.kind(p)}"
            rows.append(Row(what, kind, p, c.model(c.last), float(after - before), from_model=c.model(0),
                            window=c.best.name, unit="heads", verdict=change.verdict))  # fmt: skip
            said.append(f"{what} from {before} to {after}")
    ends = f"from {c.labels[0]} to {c.labels[-1]}"
    if not said:
        return [], f"No class's number changed clearly {ends}."
    largest = sorted(range(len(rows)), key=lambda i: -abs(rows[i].value))[:MOST_CHANGES]
    few = "Clear changes" if len(rows) <= MOST_CHANGES else f"The {MOST_CHANGES} largest clear changes"
    return rows, f"{few} {ends}: {listing([said[i] for i in sorted(largest)])}."


queries_keys = Compared(
    id="queries_keys",
    question="Do queries or keys follow position more closely?",
    first="r_q",
    second="abs_r_k",
    says={
        "higher": "Queries follow position more closely than keys",
        "lower": "Keys follow position more closely than queries",
        "equal": "Queries and keys follow position equally closely",
        "unclear": "Errors do not tell whether queries or keys follow position more closely",
    },
    meaning="|r_k| ignores the sign: keys may follow position with the queries or against them.",
    caveat=SCALED,
)


def linearity(c: Context) -> Claim | None:
    """eta, from any function of position, against |r|, from a straight line: of keys or of queries."""
    if c.several_models or not all(c.best.known(m, c.main) for m in ("eta_q", "eta_k")):
        return None
    made = [claim for each in (_line("k"), _line("q")) if (claim := each(c)) is not None]
    most = max(made, key=lambda claim: claim.rows[0].value - claim.rows[1].value)
    total = int(c.best.mask(c.last, c.main).sum())
    beyond = [
        f"in {_named(_missed(c, x), total)}, eta_{x} exceeds |r_{x}| by more than {bare(MISSED, 1)} (medians over "
        f"all {c.kind()} {bare(_median(c, f'eta_{x}'))} and {bare(_median(c, f'abs_r_{x}'))})"
        for x in KINDS
    ]
    lower = any(
        c.best.level(f"eta_{x}", p, c.last)[0] < c.best.level(f"abs_r_{x}", p, c.last)[0]
        for x in KINDS
        for p in c.populations
        if c.best.known(f"eta_{x}", p)
    )
    corrected = "eta is corrected for bias, so it may be below |r|." if lower else ""
    others = [row for claim in made if claim is not most for row in claim.rows]
    headline, x = most.headline, most.rows[0].measure[-1]
    if most.verdict == "higher" and (few := len(_missed(c, x))):
        headline = sentence(
            f"A straight line misses part of how {KINDS[x]} encode position in {few} of {total} {c.kind()}"
            f"{c.at(c.last)}; over all heads, mean eta_{x} is {bare(most.rows[0].value)} and mean |r_{x}| "
            f"{bare(most.rows[1].value)}"
        )
    detail = joined(most.detail, sentence("; ".join(beyond)), corrected)
    return replace(most, headline=headline, detail=detail, rows=(*most.rows, *others))


KINDS = {"k": "keys", "q": "queries"}


def _line(x: str) -> Compared:
    kind = KINDS[x]
    return Compared(
        id="linearity",
        question="Do linear and nonlinear measures of position agree?",
        first=f"eta_{x}",
        second=f"abs_r_{x}",
        says={
            "higher": f"A straight line misses part of how {kind} encode position",
            "lower": f"A straight line captures how {kind} encode position",
            "equal": f"A straight line captures how {kind} encode position",
            "unclear": f"Errors do not tell whether a straight line captures how {kind} encode position",
        },
        meaning="eta allows any function of position, r only a straight line. Where eta is much larger, a low r does "
        "not mean that a head ignores position.",
        looks=2,
    )


def _missed(c: Context, x: str) -> list[str]:
    """The heads in which eta clearly exceeds |r|."""
    here = c.best.mask(c.last, c.main)
    eta, r = (c.best.value(name, c.last) for name in (f"eta_{x}", f"abs_r_{x}"))
    return head_names(c.best.heads(here & (eta > r + MISSED)))


def _named(heads: list[str], total: int) -> str:
    """`2 of 36 (layer 1 head 0 and layer 4 head 2)`; the count alone where there are many."""
    names = f" ({listing(heads)})" if 0 < len(heads) <= MOST_NAMED else ""
    return f"{len(heads)} of {total}{names}"


def _median(c: Context, measure: str) -> float:
    return float(np.nanmedian(c.best.value(measure, c.last)[c.best.mask(c.last, c.main)]))
