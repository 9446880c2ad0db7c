"""Claims about training: how strongly heads follow position, when that emerged, plasticity, long-context training.

Of a study of several models: which follows position most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from qkscope.claims.claim import Claim, Row, See
from qkscope.claims.context import (
    CHANGED,
    DIFFERENT,
    LEVEL,
    OPPOSED,
    UNCLEAR,
    Context,
    name_of,
    rank,
    small,
    unit_of,
)
from qkscope.stats.contrast import contrast
from qkscope.stats.evidence import Evidence
from qkscope.stats.levels import SMALLEST, rule_of_change, rule_of_contrast, rule_of_emergence
from qkscope.stats.series import Emergence, emergence_of, turns
from qkscope.words import in_words, joined, listing, sentence, tokens

MOST_TURNS = 3  # that a headline names
FEWEST_CHECKPOINTS = 3  # to ask when something emerged
FEW_LAYERS = 3  # that a headline names
# What published r and its classes depend on.
SCALED = (
    "r_q, r_k and head classes also depend on how queries and keys are scaled against each other and on what all keys "
    "share; score shares and attention do not."
)


def position(c: Context) -> Claim | None:
    """Position's share of score variance, or mean r_q where scores were not measured."""
    if c.lead == "r_q":
        said = f"Mean r_q is {{value}}{c.heads()}"
        meaning = "r_q is the correlation of queries with position along the head's first principal axis."
    else:
        said = f"Position explains {{value}} of score variance{c.heads()}"
        meaning = "The share does not depend on how queries and keys are scaled."
    question, measures = "How strongly do heads follow position?", dict.fromkeys((c.lead, "r_q"))
    return _trend(c, "position", question, list(measures), said, meaning)


def plasticity(c: Context) -> Claim | None:
    """Mean plasticity."""
    question = "How undetermined is a query's preference between two keys?"
    meaning = (
        "Plasticity is low where position or key content decides which of two keys wins. It models queries as a "
        "straight line in position plus noise."
    )
    said = f"Mean plasticity is {{value}}{c.heads()}"
    return _trend(c, "plasticity", question, ["plasticity"], said, meaning)


def _trend(
    c: Context, name: str, question: str, measures: Sequence[str], said: str, meaning: str
) -> Claim | None:
    """The first of some measures over training, or its level; the detail has the others too."""
    measure = measures[0]
    if c.several_models or not all(c.best.known(measure, p) for p in c.populations):
        return None
    measures = [m for m in measures if c.best.known(m, c.main)]
    verdict = "level" if not c.training else c.best.direction(measure, c.main) if c.comparable else "unclear"
    said = said.format(value=c.value(measure, c.main, c.last)) + c.at(c.last)
    headline, rows = _headline(c, measure, said, verdict)
    rows += [row for m in measures for row in _numbers(c, m, beside=m != measure)]
    detail = joined(
        _over_training(c, measures),
        _parts(c) if measure == "share_positional" else "",
        *(c.change_of_r(m, c.best.overall(m, c.main)) for m in measures),
    )
    control = _control(c, measure) if name == "position" and c.other else ""
    caveat = joined(c.window_caveat, c.caveat, SCALED if measure == "r_q" else "")
    text = (sentence(headline), detail, joined(control, meaning), caveat, verdict)
    how, see = c.rule(rule_of_change() if c.training else ""), c.see("signal", measure)
    surprise = _surprise(c, measure, verdict, position=name == "position")
    return Claim(name, question, *text, tuple(rows), c.best.name, how, see, surprise)


def _headline(c: Context, measure: str, said: str, verdict: str) -> tuple[str, list[Row]]:
    """The sentence and its numbers, in the order of the sentence."""
    now, first = (c.row(measure, c.main, i) for i in (c.last, 0))
    other = [c.row(measure, c.other, c.last)] if c.other else []
    aside = f"; {c.value(measure, c.other, c.last)}{c.heads(c.other)}" if c.other else ""
    if not c.follows:
        return said + aside.replace("; ", ", "), [now, *other]
    before = f"{c.value(measure, c.main, 0)} at {c.labels[0]}"
    if verdict == "flat":
        return f"{said}, in this run within {small(now.unit)} of {before}{aside}", [now, first, *other]
    if verdict == "unclear":
        return f"{said}; its change in this run, from {before}, is not clear", [now, first]
    turning: list[int] = []
    if verdict == "rises and falls":
        turning = turns(*zip(*(c.best.level(measure, c.main, i) for i in range(c.last + 1)), strict=True))
    if 0 < len(turning) <= MOST_TURNS:
        extremes = [c.row(measure, c.main, i) for i in turning]
        ways = ["up" if b.value > a.value else "down" for a, b in pairwise((first, *extremes, now))]
        checkpoints = [f"{c.value(measure, c.main, i)} at {c.labels[i]}" for i in turning]
        via = ", ".join(f"{way} to {checkpoint}" for way, checkpoint in zip(ways, checkpoints, strict=False))
        return f"{said}: in this run from {before} {via}, then {ways[-1]}", [now, first, *extremes]
    way, unsteady = "up" if now.value > first.value else "down", ""
    if verdict == "rises and falls":
        overall = c.best.overall(measure, c.main)
        unsteady = ", not steadily" if overall is not None and overall.clear else ""
        if not unsteady:
            return f"{said}; in this run, from {before}, it rises and falls{aside}", [now, first, *other]
    return f"{said}, in this run {way} from {before}{unsteady}{aside}", [now, first, *other]


def _numbers(c: Context, measure: str, beside: bool) -> list[Row]:
    """The judged changes of each population over both windows; of a measure beside the first its level too."""
    found = []
    for p in c.populations:
        if beside:
            found.append(c.row(measure, p, c.last))
        for e in (c.best, c.own) if c.matched else (c.best,):
            if (change := e.overall(measure, p)) is not None:
                found.append(c.change(measure, p, change, e))
    return found


def _over_training(c: Context, measures: Sequence[str]) -> str:
    """`From S1-0 to LC2-80, over the first 256 tokens: mean r_q 0.09 ± 0.01 to ...`."""
    parts, ends = [], (0, c.last) if c.follows else (c.last,)
    for m in measures:
        said = [c.path(m, p, ends) + c.heads(p) for p in c.populations]
        parts.append(f"{name_of(m)} {' and '.join(said)}")
    when = f"from {c.labels[0]} to {c.labels[-1]}" if c.follows else c.at(c.last).strip()
    where = ", ".join(part for part in (when, c.over.removesuffix(", ")) if part)
    text = sentence(f"{where}: {'; '.join(parts)}" if where else "; ".join(parts))
    if c.matched is None or not c.own.known(measures[0], c.main):
        return text
    windows = sorted({checkpoint.window for checkpoint in c.own.checkpoints if checkpoint.window is not None})
    sizes = f" ({windows[0]:,} to {tokens(windows[-1])})" if len(windows) > 1 else ""
    own = f"{name_of(measures[0])}{c.heads()} ends at {c.level(measures[0], c.main, c.last, c.own)}"
    return joined(text, sentence(f"over each checkpoint's training context{sizes}, {own}"))


def _parts(c: Context) -> str:
    """The two parts of position's share, and since when it has hardly changed."""
    alone, query = (c.level(m, c.main, c.last) for m in ("share_position", "share_query_position"))
    at = f"{c.at(c.last)}, ".lstrip()
    parts = sentence(f"{at}{alone} is due to position alone and {query} to position depending on the query")
    levels = [c.best.level("share_positional", c.main, i)[0] for i in range(c.last + 1)]
    far = [i for i, level in enumerate(levels) if abs(level - levels[-1]) > SMALLEST]
    since = far[-1] + 1 if far else 0
    if not c.follows or not 0 < since < c.last:
        return parts
    return f"{parts} It has been within {small('share')} of its last value since {c.labels[since]}."


def _control(c: Context, measure: str) -> str:
    """How NoPE heads compare."""
    there = {
        "higher": "it is lower there",
        "lower": "it is higher there",
        "equal": "it is the same there",
        "unclear": "the difference is within the errors",
    }[c.best.between(measure, c.last).verdict]
    name = "mean r_q" if measure == "r_q" else "position's share"
    return f"NoPE heads, which do not rotate, are the control for {name}: {there}."


def _surprise(c: Context, measure: str, verdict: str, position: bool) -> float:
    if verdict in ("level", "unclear"):
        return rank(LEVEL if verdict == "level" else UNCLEAR)
    seen = {c.best.direction(measure, p) for p in c.populations}
    overall = c.best.overall(measure, c.main)
    size = overall.delta if overall is not None else 0.0
    if seen <= {"flat", "unclear"}:
        return rank(LEVEL, size)
    return rank(OPPOSED if position and (len(seen) > 1 or "rises and falls" in seen) else CHANGED, size)


def emergence(c: Context) -> Claim | None:
    """The layers whose signal reaches half of its rise first."""
    e, p, measure = c.best, c.main, c.lead
    if not c.follows or len(e) < FEWEST_CHECKPOINTS or e.basis != "documents":
        return None
    layers = sorted(set(e.data["layer"].to_numpy()[e.mask(c.last, p)].tolist()))
    many = {layer: s for layer in layers if (s := e.series(measure, p, layer)) is not None}
    if len(many) < 2:
        return None
    layers, found = list(many), emergence_of(many)
    at = found.checkpoint if found.first else c.last

    def gain(layer: int) -> float:
        return levels[layer] - (e.level(measure, p, at - 1, layer)[0] if found.first else 0.0)

    levels = {layer: e.level(measure, p, at, layer)[0] for layer in layers}
    top = max(found.first or layers, key=gain)
    value = c.value(measure, p, at, top)
    rows = [c.row(measure, p, at, layer) for layer in (top, *(layer for layer in layers if layer != top))]
    if found.first:
        rows.insert(0, c.row(measure, p, at - 1, top))
        headline = (
            f"in this run, {name_of(measure)} made half of its rise {_first_layers(c, found, layers)}, "
            f"{_between(c, at)} (layer {top}: {c.value(measure, p, at - 1, top)} to {value})"
        )
        if set(found.first) <= set(found.lost):
            headline += f", and was back below half of that rise{c.at(c.last)}"
        meaning = (
            "Another seed may order layers differently. Layers that rise by more later are not among the first, "
            "although they may have begun to rise."
        )
        surprise = rank(CHANGED, gain(top) / 2)
    else:
        headline = (
            f"in this run, {name_of(measure)} rises clearly in no layer after {c.labels[0]}; it is highest in layer "
            f"{top}{c.at(at)}, {value}"
        )
        meaning = (
            "The signal emerged before the first checkpoint, or not at all: earlier checkpoints would tell."
        )
        surprise = rank(UNCLEAR if found.verdict == "unclear" else LEVEL)
    question = "When did the position signal emerge, and in which layers first?"
    text = (sentence(headline), _layers_over_training(c, found, layers), meaning, c.caveat, found.verdict)
    how, see = c.rule(rule_of_emergence()), See("emergence", measure, c.model(at), p)
    return Claim("emergence", question, *text, tuple(rows), e.name, how, see, surprise)


def _between(c: Context, at: int) -> str:
    return f"between {c.labels[at - 1]} and {c.labels[at]}"


def _named(layers: Sequence[int]) -> str:
    return ("layer " if len(layers) == 1 else "layers ") + listing([str(layer) for layer in layers])


def _first_layers(c: Context, found: Emergence, layers: Sequence[int]) -> str:
    """The first layers, and those that errors do not exclude from being as early."""
    kind = "layers" if c.main == "all" else f"{c.main} layers"
    if len(found.first) == len(layers):
        return f"in all {kind}"
    few = len(found.first) <= FEW_LAYERS
    first = _named(found.first) if few else f"{in_words(len(found.first))} of {in_words(len(layers))} {kind}"
    perhaps = _named(found.perhaps) if len(found.perhaps) <= FEW_LAYERS else "others"
    return f"first in {first}" + (f", perhaps also {perhaps}" if found.perhaps else "")


def _layers_over_training(c: Context, found: Emergence, layers: Sequence[int]) -> str:
    still = [layer for layer in layers if layer not in found.risen]
    parts = [f"{_between(c, at)} in {_named(names)}" for at, names in found.by_checkpoint.items()]
    risen = f"half of the rise was reached {', '.join(parts)}" if parts else ""
    flat = f"{_named(still)} {'has' if len(still) == 1 else 'have'} no clear rise" if still else ""
    were = "was back below half of its" if len(found.lost) == 1 else "were back below half of their"
    lost = f"{_named(found.lost)} {were} rise{c.at(c.last)}" if found.lost else ""
    own = sentence(c.over + "; ".join(part for part in (risen, lost, flat) if part))
    if c.other is None:
        return own
    first, last = (c.level(c.lead, c.other, i) for i in (0, c.last))
    what = f"{name_of(c.lead)}{c.heads(c.other)}"
    return joined(own, sentence(f"{what} goes from {first} at {c.labels[0]} to {last} at {c.labels[-1]}"))


def long_context(c: Context) -> Claim | None:
    """The step into long-context training, over the same tokens and over training contexts."""
    onset = c.best.onset
    if not c.training or onset is None:
        return None
    e, p, ends = c.best, c.main, (onset - 1, onset)
    measures = [m for m in dict.fromkeys((c.lead, "r_q", "abs_r_k")) if e.known(m, p)]
    steps = {m: step for m in measures if (step := e.step(m, p, onset)) is not None}
    if not steps:
        return None
    measure = next(iter(steps))
    step, size = steps[measure], small(unit_of(measure))
    verdict = step.verdict if c.comparable else "unclear"
    start, stop = (c.value(measure, p, i) for i in ends)
    window = f" over the first {tokens(e.window)}" if e.window else ""
    says = {
        "rises": f"rises from {start} to {stop}{window}",
        "falls": f"falls from {start} to {stop}{window}",
        "flat": f"stays within {size}, from {start} to {stop}{window}",
        "unclear": f"does not change clearly{window}, from {start} to {stop}",
    }
    if not c.comparable:
        sizes = [tokens(e.checkpoints[i].window or 0) for i in ends]
        says["unclear"] = f"is {start} over {sizes[0]}, then {stop} over {sizes[1]}"
    labels = f"In this run, from {c.labels[onset - 1]} to {c.labels[onset]}"
    headline = f"{labels}, {name_of(measure)}{c.heads()} {says[verdict]}."
    rows = [c.row(measure, p, i) for i in ends]
    for each in (c.best, c.own) if c.matched else (c.best,):
        changes = {m: each.step(m, p, onset) for m in steps}
        rows += [c.change(m, p, change, each) for m, change in changes.items() if change is not None]
    detail = joined(
        _over(c, c.best, ends, list(steps)),
        _over(c, c.own, ends, list(steps)) if c.matched else "",
        *(c.change_of_r(m, each) for m, each in steps.items()),
    )
    meaning = (
        "Over the same tokens, the numbers compare the two checkpoints. Numbers over training contexts also compare "
        "windows of different length."
        if c.matched
        else "The two checkpoints differ in more than one respect; a difference between them names no cause."
    )
    overall = e.overall(measure, p)
    opposed = overall is not None and overall.verdict in {"rises", "falls"} - {verdict}
    only_published = any(each.clear for each in steps.values())
    tiers = {"unclear": UNCLEAR, "flat": DIFFERENT if only_published else LEVEL}
    surprise = rank(tiers.get(verdict, OPPOSED if opposed else CHANGED), step.delta)
    caveat = joined(c.window_caveat, c.caveat, "" if measure == "share_positional" else SCALED)
    question = "What changed when long-context training began?"
    text = (headline, detail, meaning, caveat, verdict)
    how, see = c.rule(rule_of_change()), See("signal", measure, c.model(onset), p)
    return Claim("long_context", question, *text, tuple(rows), e.name, how, see, surprise)


def _over(c: Context, e: Evidence, ends: tuple[int, int], measures: Sequence[str]) -> str:
    """Every measure at two checkpoints, over one kind of window."""
    sizes = [f"{e.checkpoints[i].window:,}" for i in ends if e.checkpoints[i].window is not None]
    own = f"over their training contexts ({' and '.join(sizes)} tokens)" if len(sizes) > 1 else ""
    over = f"over the first {tokens(e.window)}" if e.window else own
    paths = listing([f"{name_of(m)} {c.path(m, c.main, ends, e)}" for m in measures])
    return sentence(f"{over}{c.heads()}: {paths}".strip())


def between_models(c: Context) -> Claim | None:
    """The models with the strongest and the weakest position signal."""
    e, measure = c.best, c.lead
    known = [i for i in range(len(e)) if math.isfinite(e.level(measure, c.main, i)[0])]
    if not c.several_models or len(known) < 2:
        return None
    order = sorted(known, key=lambda i: -e.level(measure, c.main, i)[0])
    top, low = order[0], order[-1]
    first, last = (e.mean(measure, c.main, i) for i in (top, low))
    gap = contrast(first, last, paired=False, looks=math.comb(len(order), 2))
    what, high, least = f"{name_of(measure)}{c.heads()}", *(c.value(measure, c.main, i) for i in (top, low))
    verdict = "unclear" if gap.verdict == "lower" else gap.verdict
    headline = {
        "higher": f"{what} is higher in {c.labels[top]} ({high}) than in {c.labels[low]} ({least})",
        "equal": f"{what} is the same in all models, from {least} to {high}",
        "unclear": f"{what} is {high} in {c.labels[top]} and {least} in {c.labels[low]}, a difference within "
        "the errors",
    }[verdict]
    levels = ", ".join(f"{c.level(measure, c.main, i)} ({c.labels[i]})" for i in order)
    differ = len({checkpoint.window for checkpoint in e.checkpoints}) > 1 and c.matched is None
    return Claim(
        "position",
        "Which model follows position most?",
        sentence(headline),
        sentence(f"{c.over}{what}: {levels}"),
        "The models have different heads and texts of their own, so their errors add and nothing cancels.",
        joined(c.caveat, "The models were measured over different windows." if differ else ""),
        verdict,
        tuple(c.row(measure, c.main, i) for i in (top, low, *order[1:-1])),
        e.name,
        c.rule(rule_of_contrast()),
        See("signal", measure, c.model(top), c.main),
        rank(UNCLEAR if verdict == "unclear" else DIFFERENT, gap.difference),
    )
