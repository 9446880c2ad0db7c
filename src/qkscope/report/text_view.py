"""Attention on excerpts, for the page: of each head, checkpoint and query the keys of largest weight.

A key and its weight are 16 bits: the key's position in 7, and 511 times the root of the weight, rounded, in 9. So a
weight w is shown within sqrt(w) / 511 of itself: 0.2 points at most, 0.02 points at 1%. Keys with a weight below LEAST
are left out, and counted with the other tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.report.encode import listed, pack
from qkscope.report.rotary import spread
from qkscope.results.aggregate import ordered
from qkscope.results.roles import NO_ROLE, has_roles, role_names
from qkscope.sums.excerpts import NO_KEY, QUERIES, TOKENS, first_query

if TYPE_CHECKING:
    from qkscope.report.columns import Grid
    from qkscope.results import Results
    from qkscope.sums import ExampleSum

LIMIT = 400_000  # base64 characters; of a larger study the page has some checkpoints
LEAST = 0.003
STEPS = 511


def examples(results: Results, grid: Grid) -> dict[str, Any] | None:
    """The excerpts, and the attention of a few heads on them at the checkpoints that fit; None if not measured."""
    known, order = results.examples, list(results.timeline.models)
    if not known or not grid.training or order[-1] not in known:
        return None
    last = known[order[-1]]
    rows = [grid.index.get((0, *head)) for head in last.heads]
    if None in rows or not rows or not last.words:
        return None
    # Checkpoints with other tokens, as after a change of the tokenizer, have other excerpts.
    same = [m for m in order if m in known and known[m].words == last.words and known[m].heads == last.heads]
    packed = {model: _packed(known[model].sums) for model in same}
    kept = same
    while len(kept) > 1 and sum(len(packed[model][1]) * 2 * 4 // 3 for model in kept) > LIMIT:
        kept = spread(same, len(kept) - 1)
    sinks = np.stack([known[model].sums.sink for model in kept]).astype(np.float64)
    return {
        "checkpoints": [order.index(model) for model in kept],
        "heads": rows,
        "words": [list(some) for some in last.words],
        "first": [first_query(len(some)) for some in last.words],
        "queries": QUERIES,
        "bits": TOKENS.bit_length() - 1,
        "steps": STEPS,
        "counts": pack(np.concatenate([packed[model][0] for model in kept])),
        "keys": pack(np.concatenate([packed[model][1] for model in kept])),
        "sinks": pack(_coded(sinks).astype(np.int16)) if (sinks > 0).any() else None,
        "softmax": {name: listed(values) for name, values in last.sums.softmax.items()},
        "roles": _roles(results, kept, last.heads),
    }


def _packed(sums: ExampleSum) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """How many keys each row has, over excerpts, heads and queries; and all keys with their weights."""
    weight = np.nan_to_num(sums.weight.astype(np.float64))
    here = (sums.key != NO_KEY) & (weight >= LEAST)
    codes = sums.key.astype(np.int64) | (_coded(weight) << (TOKENS.bit_length() - 1))
    return here.sum(axis=-1).astype(np.uint8).ravel(), codes[here].astype(np.uint16)


def _coded(weight: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.asarray(np.rint(STEPS * np.sqrt(np.nan_to_num(weight))), dtype=np.int64)


def _roles(results: Results, models: list[str], heads: tuple[tuple[int, int], ...]) -> list[list[list[str]]]:
    """By checkpoint and head: the roles that it clearly has."""
    data = ordered(results.own(), models)
    if not has_roles(data):
        return [[[] for _ in heads] for _ in models]
    names = role_names(data)
    rows = list(zip(data["layer"].to_numpy().tolist(), data["number"].to_numpy().tolist(), strict=True))
    return [
        [[name for name in names[i, rows.index(head)].split("; ") if name != NO_ROLE] for head in heads]
        for i in range(len(models))
    ]
