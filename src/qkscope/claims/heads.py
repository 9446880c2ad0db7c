"""Claims about single heads: their classes, queries against keys, and whether a straight line says it all."""

from __future__ import annotations

from qkscope.claims.claim import Claim, Population, Row, See
from qkscope.claims.context import NAMES, Context
from qkscope.claims.templates import CHANGED, DIFFERENT, LEVEL, UNCLEAR, compared, rank, rule
from qkscope.claims.trends import SCALED
from qkscope.inference.levels import MISSED, rule_of_change, rule_of_contrast
from qkscope.taxonomy import CLASSES
from qkscope.words import bare, joined, listing, number, sentence

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
    if c.other:
        kind = tops[c.other][1][0]
        said += f"; {_of(c, kind, c.other).lower()} NoPE heads are {kind}" if tops[c.other][0] in (
            "majority", "largest") else ""  # fmt: skip
    changed, text = _changed(c)
    if verdict in ("tie", "unclear"):
        rows.sort(key=lambda row: (row.population != c.main, row.measure not in (top, second)))
    tier = CHANGED if changed else UNCLEAR if verdict == "unclear" else LEVEL
    return Claim(
        "classes",
        "How many heads follow position with queries, keys, both or neither?",
        sentence(said),
        joined(text, _shares(c)),
        "Classes cut r_q and |r_k| of the first axis at fixed thresholds. NoPE heads, without rotation, show what the "
        "thresholds give there." if c.other
        else "Classes cut r_q and |r_k| of the first axis at fixed thresholds, so heads near a threshold change class "
        "easily.",
        joined(c.window_caveat, c.caveat, SCALED),
        verdict,
        (*rows, *changed),
        c.best.name,
        rule(c, joined(rule_of_contrast(), rule_of_change() if c.training else "")),
        See("classes", "class", c.model(c.last), c.main),
        rank(tier, max((abs(row.value) / 2 / _total(c, row.population) for row in changed), default=0.0)),
    )  # fmt: skip


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
            change = c.best.overall(kind, p) if c.best.followed(kind, p) else None
            if change is None or not change.clear:
                continue
            before, after = (c.best.count(kind, p, i) for i in (0, c.last))
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


def queries_keys(c: Context) -> Claim | None:
    """Mean r_q against mean |r_k| of the same heads."""
    if c.several_models or not c.best.known("r_q", c.main):
        return None
    gap = c.best.compare("r_q", "abs_r_k", c.main, c.last)
    values = f"mean r_q {c.value('r_q', c.main, c.last)}, mean |r_k| {c.value('abs_r_k', c.main, c.last)}"
    says = {
        "higher": "Queries follow position more closely than keys",
        "lower": "Keys follow position more closely than queries",
        "equal": "Queries and keys follow position equally closely",
        "unclear": "Errors do not tell whether queries or keys follow position more closely",
    }
    over = f"{c.over}, " if c.over else ""
    names = ("r_q", "abs_r_k")
    said = "; ".join(f"{compared(names, c, p)}{c.heads(p)}" for p in c.populations)
    difference = Row(
        f"mean r_q minus mean |r_k|{c.heads()}", "r_q-abs_r_k", c.main, c.model(c.last), gap.difference, gap.se,
        None, c.best.name, "r", gap.verdict,
    )  # fmt: skip
    return Claim(
        "queries_keys",
        "Do queries or keys follow position more closely?",
        sentence(f"{says[gap.verdict]}{c.heads()}{c.at(c.last)}: {values}"),
        sentence(f"{over}{said}; the difference{c.heads()} is {number(gap.difference, gap.se, signed=True)}"),
        "Both are correlations with position along the head's first axis, |r_k| without its sign: keys may follow "
        "position with the queries or against them.",
        joined(c.caveat, SCALED),
        gap.verdict,
        (
            *(c.row(m, p, c.last) for p in c.populations for m in names),
            difference,
        ),
        c.best.name,
        rule(c, rule_of_contrast()),
        See("signal", "r_q", c.model(c.last), c.main),
        rank({"equal": LEVEL, "unclear": UNCLEAR}.get(gap.verdict, DIFFERENT), gap.difference),
    )


def linearity(c: Context) -> Claim | None:
    """eta, from any function of position, against |r|, from a straight line."""
    if c.several_models or not all(c.best.known(m, c.main) for m in ("eta_q", "eta_k")):
        return None
    pairs = {"keys": ("eta_k", "abs_r_k"), "queries": ("eta_q", "abs_r_q")}
    gaps = {kind: c.best.compare(*pair, c.main, c.last, looks=2) for kind, pair in pairs.items()}
    kind = max(gaps, key=lambda kind: gaps[kind].difference)
    sure = {gap.verdict for gap in gaps.values()}
    verdict = (
        "higher" if gaps[kind].verdict == "higher" else "equal" if sure <= {"equal", "lower"} else "unclear"
    )
    eta, r = pairs[kind]
    where = f"{c.heads()}{c.at(c.last)}"
    values = f"{NAMES[eta][0]} {c.value(eta, c.main, c.last)}, {NAMES[r][0]} {c.value(r, c.main, c.last)}"
    says = {
        "higher": f"A straight line misses part of how {kind} encode position{where}: {values}",
        "equal": f"A straight line captures how queries and keys encode position{where}: {values}",
        "unclear": f"Errors do not tell whether a straight line captures position{where}: {values}",
    }
    over = f"{c.over}, " if c.over else ""
    said = [compared(pair, c, c.main) for pair in pairs.values()]
    total = int(c.best.mask(c.last, c.main).sum())
    counts = " and ".join(f"{_missed(c, each)} of {total} {c.kind()} ({each})" for each in pairs)
    return Claim(
        "linearity",
        "Do linear and nonlinear measures of position agree?",
        sentence(says[verdict]),
        joined(
            sentence(f"{over}{'; '.join(said)}{c.heads()}"),
            sentence(f"eta² exceeds r² by more than {bare(MISSED, 1)} in {counts}"),
        ),
        "eta allows any function of position, r only a straight line, both along the head's first axis. Where eta is "
        "much larger, a low r does not mean that a head ignores position.",
        c.caveat,
        verdict,
        tuple(c.row(m, c.main, c.last) for m in dict.fromkeys((eta, r, *pairs["keys"], *pairs["queries"]))),
        c.best.name,
        rule(c, rule_of_contrast()),
        See("signal", eta, c.model(c.last), c.main),
        rank({"higher": DIFFERENT, "equal": LEVEL}.get(verdict, UNCLEAR), gaps[kind].difference),
    )


def _missed(c: Context, kind: str) -> int:
    cell, here, x = c.best.cells[c.last], c.best.mask(c.last, c.main), kind[0]
    eta, r = (cell.value(f"{name}_{x}")[0, here] for name in ("eta", "r"))
    return int((eta**2 > r**2 + MISSED).sum())
