"""Claims about single heads: their classes, queries against keys, and whether a straight line says it all."""

from __future__ import annotations

from dataclasses import replace

from qkscope.claims.claim import Claim, Population, Row, See
from qkscope.claims.context import Context
from qkscope.claims.templates import CHANGED, LEVEL, UNCLEAR, Compared, rank, rule
from qkscope.claims.trends import SCALED
from qkscope.inference.levels import MISSED, rule_of_change, rule_of_contrast
from qkscope.taxonomy import CLASSES
from qkscope.words import bare, joined, listing, sentence

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
    said = _headline(c, verdict, top, second)
    if c.other and tops[c.other][0] in ("majority", "largest"):
        kind = tops[c.other][1][0]
        said += f"; {_of(c, kind, c.other).lower()} NoPE heads are {kind}"
    changed, text = _changed(c)
    if verdict in ("tie", "unclear"):
        rows.sort(key=lambda row: (row.population != c.main, row.measure not in (top, second)))
    tier = CHANGED if changed else UNCLEAR if verdict == "unclear" else LEVEL
    meaning = "Classes cut r_q and |r_k| of the first axis at fixed thresholds, so heads near one change class easily."
    if c.other:
        meaning = joined(meaning, "NoPE heads show what the thresholds give without rotation.")
    size = max((abs(row.value) / 2 / _total(c, row.population) for row in changed), default=0.0)
    said_of = (sentence(said), joined(text, _shares(c)), meaning, joined(c.window_caveat, c.caveat, SCALED))
    how = rule(c, joined(rule_of_contrast(), rule_of_change() if c.training else ""))
    see = See("classes", "class", c.model(c.last), c.main)
    question = "How many heads follow position with queries, keys, both or neither?"
    every = (*rows, *changed)
    return Claim("classes", question, *said_of, verdict, every, c.best.name, how, see, rank(tier, size))


def _total(c: Context, p: Population) -> int:
    return len(c.best.kinds(c.last, p))


def _of(c: Context, kind: str, p: Population) -> str:
    members, total = c.best.count(kind, p, c.last), _total(c, p)
    return f"All {total}" if members == total else f"{members} of {total}"


def _count(c: Context, kind: str, p: Population) -> Row:
    what = f"{kind} {c.kind(p)}"
    value = float(c.best.count(kind, p, c.last))
    return Row(what, kind, p, c.model(c.last), value, window=c.best.name, unit="heads")


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


def _shares(c: Context) -> str:
    parts = []
    for p in c.populations:
        shown = [f"{n} {kind}" for kind in CLASSES if (n := c.best.count(kind, p, c.last))]
        parts += [f"{c.kind(p)}: {', '.join(shown)}"] if len(shown) > 1 else []
    return sentence("; ".join(parts))


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
    meaning="Both are correlations with position along the head's first axis, |r_k| without its sign: keys may follow "
    "position with the queries or against them.",
    caveat=SCALED,
)


def linearity(c: Context) -> Claim | None:
    """eta, from any function of position, against |r|, from a straight line: of keys or of queries."""
    if c.several_models or not all(c.best.known(m, c.main) for m in ("eta_q", "eta_k")):
        return None
    made = [claim for each in (_line("k"), _line("q")) if (claim := each(c)) is not None]
    most = max(made, key=lambda claim: claim.rows[0].value - claim.rows[1].value)
    counts = " and ".join(f"{_missed(c, x)} ({kind})" for x, kind in KINDS.items())
    total = int(c.best.mask(c.last, c.main).sum())
    beyond = f"eta² exceeds r² by more than {bare(MISSED, 1)} in {counts} of {total} {c.kind()}"
    others = [row for claim in made if claim is not most for row in claim.rows]
    return replace(most, detail=joined(most.detail, sentence(beyond)), rows=(*most.rows, *others))


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
        meaning="eta allows any function of position, r only a straight line, both along the head's first axis. Where "
        "eta is much larger, a low r does not mean that a head ignores position.",
        looks=2,
    )


def _missed(c: Context, x: str) -> int:
    cell, here = c.best.cells[c.last], c.best.mask(c.last, c.main)
    eta, r = (cell.value(f"{name}_{x}")[0, here] for name in ("eta", "r"))
    return int((eta**2 > r**2 + MISSED).sum())
