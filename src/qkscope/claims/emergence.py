"""Claim: when the position signal emerged, and in which layers first."""

from __future__ import annotations

from qkscope.claims.claim import Claim, See
from qkscope.claims.context import Context, name_of
from qkscope.claims.templates import CHANGED, LEVEL, UNCLEAR, rank, rule
from qkscope.stats.direction import Emergence, emergence_of
from qkscope.stats.levels import rule_of_emergence
from qkscope.words import in_words, joined, listing, sentence

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
