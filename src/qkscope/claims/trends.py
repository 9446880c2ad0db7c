"""Claims about training: how strongly heads follow position, what the long-context onset changed, plasticity."""

from __future__ import annotations

from qkscope.claims.claim import Claim, See
from qkscope.claims.context import Context, name_of, small, unit_of
from qkscope.claims.templates import CHANGED, DIFFERENT, LEVEL, OPPOSED, UNCLEAR, Trend, rank, rule
from qkscope.stats.evidence import Evidence
from qkscope.stats.levels import SMALLEST, rule_of_change
from qkscope.words import joined, listing, sentence, tokens

# What published r and its classes depend on.
SCALED = (
    "r_q, r_k and their classes follow the published protocol: unlike score shares and attention itself, they also "
    "depend on how queries and keys are scaled against each other and on what all keys share."
)


def _position(c: Context, measure: str) -> str:
    share = (
        "The share does not depend on how queries and keys are scaled."
        if measure == "share_positional"
        else "r_q is the correlation of queries with position along the head's first principal axis."
    )
    if c.other is None:
        return share
    gap = c.best.between(measure, c.last)
    control = {
        "higher": f"it is {'far ' if gap.second < gap.first / 2 else ''}lower there",
        "lower": "it is higher there",
        "equal": "it is the same there",
        "unclear": "errors do not tell the two apart",
    }[gap.verdict]
    name = "position's share" if measure == "share_positional" else "mean r_q"
    return joined(f"NoPE heads, which do not rotate, are the control for {name}: {control}.", share)


def _split(c: Context, measure: str) -> str:
    """The two parts of position's share, and since when it has hardly changed."""
    if measure != "share_positional":
        return ""
    alone, query = (c.level(m, c.main, c.last) for m in ("share_position", "share_query_position"))
    at = f"{c.at(c.last)}, ".lstrip()
    split = sentence(f"{at}{alone} is due to position alone and {query} to position depending on the query")
    levels = [c.best.level(measure, c.main, i)[0] for i in range(c.last + 1)]
    far = [i for i, level in enumerate(levels) if abs(level - levels[-1]) > SMALLEST]
    since = far[-1] + 1 if far else 0
    if not c.training or not c.comparable or not 0 < since < c.last:
        return split
    reached = f"it has been within {small('share')} of its last value since {c.labels[since]}"
    return joined(split, sentence(reached))


position = Trend(
    id="position",
    question="How strongly do heads follow position?",
    says={
        "share_positional": "Position explains {value} of score variance{heads}",
        "r_q": "Mean r_q is {value}{heads}",
    },
    meaning=_position,
    beside="r_q",
    adds=_split,
    leads=True,
    caveat=lambda c, measure: SCALED if measure == "r_q" else "",
)

plasticity = Trend(
    id="plasticity",
    question="How undetermined is a query's preference between two keys?",
    says={"plasticity": "Mean plasticity is {value}{heads}"},
    meaning=lambda c, measure: (
        "Plasticity is low where position or key content decides which of two keys wins. It models queries as a "
        "straight line in position plus noise."
    ),
)


def long_context(c: Context) -> Claim | None:
    """The step into long-context training, over the same tokens and over training contexts."""
    onset = c.best.onset
    if not c.training or onset is None:
        return None
    e, p = c.best, c.main
    measures = [m for m in dict.fromkeys((c.lead, "r_q", "abs_r_k")) if e.known(m, p)]
    steps = {m: step for m in measures if (step := e.step(m, p, onset)) is not None}
    if not steps:
        return None
    measure = c.lead if c.lead in steps else next(iter(steps))
    step = steps[measure]
    verdict = step.verdict if c.comparable else "unclear"
    name, unit = name_of(measure), unit_of(measure)
    before, after = c.row(measure, p, onset - 1), c.row(measure, p, onset)
    values = c.value(measure, p, onset - 1), c.value(measure, p, onset)
    says = {
        "rises": f"rises from {values[0]} to {values[1]}",
        "falls": f"falls from {values[0]} to {values[1]}",
        "flat": f"stays within {small(unit)}, from {values[0]} to {values[1]}",
        "unclear": f"goes from {values[0]} to {values[1]}, which is not clear of noise",
    }
    window = f" over the first {tokens(e.window)}" if e.window else ""
    if not c.comparable:
        sizes = [tokens(stop.window or 0) for stop in e.stops[onset - 1 : onset + 1]]
        says["unclear"] = f"is {values[0]} over {sizes[0]}, then {values[1]} over {sizes[1]}"
    ends = f"In this run, from {c.labels[onset - 1]} to {c.labels[onset]}"
    headline = f"{ends}, {name}{c.heads()} {says[verdict]}{window}"
    own = {m: c.own.step(m, p, onset) for m in steps} if c.matched else {}
    overall = e.overall(measure, p)
    opposed = overall is not None and overall.verdict in {"rises", "falls"} - {verdict}
    only_published = verdict == "flat" and any(each.clear for each in steps.values())
    tier = {"unclear": UNCLEAR, "flat": DIFFERENT if only_published else LEVEL}.get(
        verdict, OPPOSED if opposed else CHANGED
    )
    meaning = (
        "Both numbers are over the same tokens, so they compare the two checkpoints. Numbers over training contexts "
        "also compare windows of different length."
        if c.matched
        else "The two checkpoints differ in more than one respect; a difference between them names no cause."
    )
    changes = [c.change(m, p, each) for m, each in steps.items()]
    changes += [c.change(m, p, each, e=c.own) for m, each in own.items() if each is not None]
    detail = joined(
        _long_context_detail(c, onset, measure, list(steps)),
        *(c.change_of_r(m, each) for m, each in steps.items()),
    )
    text = (sentence(headline), detail, meaning)
    scaled = "" if measure == "share_positional" else SCALED
    caveat, rows = joined(c.window_caveat, c.caveat, scaled), (before, after, *changes)
    how, see = rule(c, rule_of_change()), See("signal", measure, c.model(onset), p)
    question = "What changed when long-context training began?"
    return Claim(
        "long_context", question, *text, caveat, verdict, rows, e.name, how, see, rank(tier, step.delta)
    )


def _long_context_detail(c: Context, onset: int, measure: str, measures: list[str]) -> str:
    """The headline's measure over training contexts, then every measure over both windows."""

    def said(e: Evidence, some: list[str]) -> str:
        paths = [
            f"{name_of(m)} {c.level(m, c.main, onset - 1, e)} to {c.level(m, c.main, onset, e)}" for m in some
        ]
        return listing(paths)

    sizes = [f"{stop.window:,}" for stop in c.own.stops[onset - 1 : onset + 1] if stop.window is not None]
    own = f"over their training contexts ({' and '.join(sizes)} tokens)"
    over = f"over the first {tokens(c.best.window)}" if c.best.window else own if len(sizes) > 1 else ""
    first = sentence(f"{over}{c.heads()}: {said(c.best, measures)}".strip())
    if not c.matched:
        return first
    before, after = (c.level(measure, c.main, i, c.own) for i in (onset - 1, onset))
    step = c.own.step(measure, c.main, onset)
    goes = {
        "rises": f"it rises from {before} to {after}",
        "falls": f"it falls from {before} to {after}",
        "flat": f"it stays within {small(unit_of(measure))}, from {before} to {after}",
    }.get(step.verdict if step else "", f"it goes from {before} to {after}, which is not clear of noise")
    rest = [m for m in measures if m != measure]
    others = sentence(f"{own}: {said(c.own, rest)}") if rest else ""
    return joined(sentence(f"{own}, {goes}"), first, others)
