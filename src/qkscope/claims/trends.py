"""Claims about training: how strongly heads follow position and since when, the long-context onset, plasticity.

Of a study of several models: which follows position most.
"""

from __future__ import annotations

import math

from qkscope.claims.claim import Claim, See
from qkscope.claims.context import Context, name_of, small, unit_of
from qkscope.claims.templates import CHANGED, DIFFERENT, LEVEL, OPPOSED, UNCLEAR, Trend, rank, rule
from qkscope.stats.contrast import contrast
from qkscope.stats.direction import Emergence, emergence_of
from qkscope.stats.evidence import Evidence
from qkscope.stats.levels import SMALLEST, rule_of_change, rule_of_contrast, rule_of_emergence
from qkscope.words import in_words, joined, listing, sentence, tokens

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


def between_models(c: Context) -> Claim | None:
    """The models with the strongest and the weakest position signal."""
    if not c.several_models:
        return None
    e, measure = c.best, c.lead
    known = [i for i in range(len(e)) if math.isfinite(e.level(measure, c.main, i)[0])]
    order = sorted(known, key=lambda i: -e.level(measure, c.main, i)[0])
    if len(order) < 2:
        return None
    top, low = order[0], order[-1]
    first, last = (e.mean(measure, c.main, i) for i in (top, low))
    gap = contrast(first, last, paired=False, looks=len(order) - 1)
    name, values = name_of(measure), [c.value(measure, c.main, i) for i in (top, low)]
    words = {
        "higher": f"{name}{c.heads()} is higher in {c.labels[top]} ({values[0]}) than in {c.labels[low]} ({values[1]})",
        "equal": f"{name}{c.heads()} is the same in all models, from {values[1]} to {values[0]}",
    }
    unclear = (
        f"{name}{c.heads()} is {values[0]} in {c.labels[top]} and {values[1]} in {c.labels[low]}, which errors do not "
        "tell apart"
    )
    verdict = gap.verdict if gap.verdict in words else "unclear"
    levels = [f"{c.level(measure, c.main, i)} ({c.labels[i]})" for i in order]
    windows = {stop.window for stop in e.stops}
    differ = (
        "The models were measured over different windows." if len(windows) > 1 and c.matched is None else ""
    )
    rows = tuple(c.row(measure, c.main, i) for i in (top, low, *order[1:-1]))
    return Claim(
        "position",
        "Which model follows position most?",
        sentence(words.get(verdict, unclear)),
        sentence(f"{c.over}{name}{c.heads()}: {', '.join(levels)}"),
        "The models have different heads and texts of their own, so their errors add and nothing cancels.",
        joined(c.caveat, differ),
        verdict,
        rows,
        e.name,
        rule(c, rule_of_contrast()),
        See("signal", measure, c.model(top), c.main),
        rank(UNCLEAR if verdict == "unclear" else DIFFERENT, gap.difference),
    )


FEW = 3


def emergence(c: Context) -> Claim | None:
    """The layers whose signal reaches half of its rise first."""
    e, p, measure = c.best, c.main, c.lead
    if not c.training or len(e) < FEW or e.basis != "documents" or not c.comparable:
        return None
    many = {layer: s for layer in e.layers(p) if (s := e.series(measure, p, layer)) is not None}
    if len(many) < 2:
        return None
    layers, found = list(many), emergence_of(many)
    at, verdict = (found.stop, "rises") if found.first else (c.last, found.verdict)
    pool = found.first or tuple(layers)

    def gain(layer: int) -> float:
        now = e.level(measure, p, at, layer)[0]
        return now - e.level(measure, p, at - 1, layer)[0] if found.first else now

    top = max(pool, key=gain)
    after = c.row(measure, p, at, layer=top)
    value = c.value(measure, p, at, top)
    if found.first:
        before = c.row(measure, p, at - 1, layer=top)
        headline = (
            f"in this run, {name_of(measure)} rose {_where(c, found, layers)}, {_between(c, at)} "
            f"(layer {top}: {c.value(measure, p, at - 1, top)} to {value})"
        )
        rows = [before, after]
    else:
        headline = f"in this run, {name_of(measure)} rises clearly in no layer after {c.labels[0]}"
        headline += f"; it is highest in layer {top}{c.at(at)}, {value}"
        rows = [after]
    rows += [c.row(measure, p, at, layer=layer) for layer in layers if layer != top]
    size = rows[1].value - rows[0].value if found.first else 0.0
    tier = CHANGED if found.first else UNCLEAR if verdict == "unclear" else LEVEL
    meaning = (
        "Another seed may order layers differently. A layer counts from the checkpoint at which it "
        "has half of its rise."
        if found.first
        else "The signal was there at the first checkpoint, or never came: earlier checkpoints would tell."
    )
    question = "When did the position signal emerge, and in which layers first?"
    text = (sentence(headline), _detail(c, found, layers), meaning, c.caveat, verdict)
    see = See("emergence", measure, c.model(at), p)
    how = rule(c, rule_of_emergence())
    return Claim("emergence", question, *text, tuple(rows), e.name, how, see, rank(tier, size / 2))


def _between(c: Context, at: int) -> str:
    return f"between {c.labels[at - 1]} and {c.labels[at]}"


def _named(layers: tuple[int, ...] | list[int]) -> str:
    return ("layer " if len(layers) == 1 else "layers ") + listing([str(layer) for layer in layers])


def _where(c: Context, found: Emergence, layers: list[int]) -> str:
    kind = "layers" if c.main == "all" else f"{c.main} layers"
    if len(found.first) == len(layers):
        return f"in all {kind}"
    if len(found.first) <= FEW:
        return f"first in {_named(found.first)}{_also(found)}"
    return f"first in {in_words(len(found.first))} of {in_words(len(layers))} {kind}{_also(found)}"


def _also(found: Emergence) -> str:
    """Layers that errors do not exclude from being as early."""
    if not found.perhaps:
        return ""
    return f", perhaps also {_named(found.perhaps) if len(found.perhaps) <= FEW else 'others'}"


def _detail(c: Context, found: Emergence, layers: list[int]) -> str:
    still = [layer for layer in layers if layer not in found.risen]
    parts = [f"{_between(c, at)} in {_named(names)}" for at, names in found.by_stop.items()]
    risen = f"half of the rise was reached {', '.join(parts)}" if parts else ""
    flat = f"{_named(still)} {'has' if len(still) == 1 else 'have'} no clear rise" if still else ""
    own = sentence(c.over + "; ".join(part for part in (risen, flat) if part))
    if c.other is None:
        return own
    first, last = (c.level(c.lead, c.other, i) for i in (0, c.last))
    name = name_of(c.lead)
    return joined(
        own,
        sentence(f"{name}{c.heads(c.other)} goes from {first} at {c.labels[0]} to {last} at {c.labels[-1]}"),
    )
