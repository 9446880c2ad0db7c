"""The claim about emergence: when the position signal arose, and in which layers first."""

from __future__ import annotations

from collections.abc import Sequence

from qkscope.claims.claim import Claim, See
from qkscope.claims.context import CHANGED, LEVEL, UNCLEAR, Context, name_of, rank
from qkscope.stats.levels import rule_of_emergence
from qkscope.stats.series import Emergence, emergence_of
from qkscope.words import in_words, joined, listing, sentence

FEW = 3  # checkpoints that the question needs, and layers that a headline names


def emergence(c: Context) -> Claim | None:
    """The layers whose signal reaches half of its rise first."""
    e, p, measure = c.best, c.main, c.lead
    if not c.follows or len(e) < FEW or e.basis != "documents":
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
            f"in this run, {name_of(measure)} rose {_where(c, found, layers)}, {_between(c, at)} "
            f"(layer {top}: {c.value(measure, p, at - 1, top)} to {value})"
        )
        meaning = (
            "Another seed may order layers differently. A layer counts from the checkpoint at which it has half of "
            "its rise."
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
    text = (sentence(headline), _detail(c, found, layers), meaning, c.caveat, found.verdict)
    how, see = c.rule(rule_of_emergence()), See("emergence", measure, c.model(at), p)
    return Claim("emergence", question, *text, tuple(rows), e.name, how, see, surprise)


def _between(c: Context, at: int) -> str:
    return f"between {c.labels[at - 1]} and {c.labels[at]}"


def _named(layers: Sequence[int]) -> str:
    return ("layer " if len(layers) == 1 else "layers ") + listing([str(layer) for layer in layers])


def _where(c: Context, found: Emergence, layers: Sequence[int]) -> str:
    """The first layers, and those that errors do not exclude from being as early."""
    kind = "layers" if c.main == "all" else f"{c.main} layers"
    if len(found.first) == len(layers):
        return f"in all {kind}"
    few = len(found.first) <= FEW
    first = _named(found.first) if few else f"{in_words(len(found.first))} of {in_words(len(layers))} {kind}"
    perhaps = _named(found.perhaps) if len(found.perhaps) <= FEW else "others"
    return f"first in {first}" + (f", perhaps also {perhaps}" if found.perhaps else "")


def _detail(c: Context, found: Emergence, layers: Sequence[int]) -> str:
    still = [layer for layer in layers if layer not in found.risen]
    parts = [f"{_between(c, at)} in {_named(names)}" for at, names in found.by_checkpoint.items()]
    risen = f"half of the rise was reached {', '.join(parts)}" if parts else ""
    flat = f"{_named(still)} {'has' if len(still) == 1 else 'have'} no clear rise" if still else ""
    own = sentence(c.over + "; ".join(part for part in (risen, flat) if part))
    if c.other is None:
        return own
    first, last = (c.level(c.lead, c.other, i) for i in (0, c.last))
    what = f"{name_of(c.lead)}{c.heads(c.other)}"
    return joined(own, sentence(f"{what} goes from {first} at {c.labels[0]} to {last} at {c.labels[-1]}"))
