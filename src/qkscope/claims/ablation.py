"""The claim about ablations: does the model need a part of the scores of some heads?"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from qkscope.claims.claim import Claim, Row, See
from qkscope.claims.context import Context
from qkscope.claims.templates import DIFFERENT, LEVEL, UNCLEAR, rank
from qkscope.stats.contrast import judged
from qkscope.stats.levels import rule_of_contrast
from qkscope.words import bare, joined, measured, sentence

if TYPE_CHECKING:
    import pandas as pd

    from qkscope.results import Results

PARTS = {
    "position": "position",
    "query_position": "query-dependent position",
    "key": "key content",
    "match": "content match",
    "sink": "the first token's advantage",
    "head": "everything",
}
MOST_ROWS = 6  # ablations that a claim tells besides the first
_SET = re.compile(
    r"(?:class:(?P<kind>[\w-]+)|(?P<end>top|bottom):\d+:(?P<by>\w+)|layer:(?P<layer>[\d-]+)|all)(?:&(rope|nope))?"
)


def in_words(heads: str, count: int, population: str) -> str:
    """A set of heads as a noun: `the 27 heads with the largest share_position`."""
    found = _SET.fullmatch(heads)
    noun = f"{population} heads" if population in ("RoPE", "NoPE") else "heads"
    noun = noun if count != 1 else noun.removesuffix("s")
    if found is None:
        return f"{count} {noun} ({heads})"
    if found["kind"]:
        return f"the {count} {found['kind']} {noun}"
    if found["by"]:
        return (
            f"the {count} {noun} with the {'largest' if found['end'] == 'top' else 'smallest'} {found['by']}"
        )
    return f"the {count} {noun} of layer {found['layer']}" if found["layer"] else f"all {count} {noun}"


def latest(results: Results) -> pd.DataFrame | None:
    """Ablations of the last checkpoint that has any, parts in the order of PARTS; None where there are none."""
    table = results.ablation
    if table is None:
        return None
    there = [model for model in results.timeline.models if (table["checkpoint"] == model).any()]
    if not there:
        return None
    found = table[table["checkpoint"] == there[-1]]
    sets = list(dict.fromkeys(found["heads"]))
    places = [{name: i for i, name in enumerate(names)} for names in (PARTS, sets)]
    order = np.lexsort((found["part"].map(places[0]), found["heads"].map(places[1])))
    return found.iloc[order].reset_index(drop=True)


def ablation(c: Context) -> Claim | None:
    """The part and heads that cost most above random heads of the same layers, at the last checkpoint ablated."""
    table = latest(c.results)
    if table is None:
        return None
    known = table[table["above_random"].notna() & (table["part"] != "head") & (table["population"] != "both")]
    if known.empty:
        return None
    order = known.sort_values("above_random", ascending=False, kind="stable")
    first = order.iloc[0].to_dict()
    verdict = _verdict(first, len(known))
    rest = order.to_dict("records")[1 : 1 + MOST_ROWS]
    part, heads = (
        PARTS.get(first["part"], first["part"]),
        in_words(first["heads"], first["n_heads"], first["population"]),
    )
    cost, other = (bare(first[name], signed=True) for name in ("delta", "random"))
    controls = f"{first['random_heads']} random heads of the same layers"
    headlines = {
        "higher": f"The model needs {part} in {heads}: {cost} nats per token without it, {other} in "
        f"{controls}",
        "equal": f"No part of the scores costs more in the chosen heads than in random ones: {part} in {heads} {cost} "
        f"nats per token, random heads {other}",
    }
    unclear = (
        f"Without {part} in {heads} the loss changes by {cost} nats per token, in {controls} by {other}, which "
        "errors do not tell apart"
    )
    rows = [
        _row(c, first, verdict),
        _random(c, first),
        *(_row(c, row, _verdict(row, len(known))) for row in rest),
    ]
    return Claim(
        "ablation",
        "Does the model need it?",
        sentence(headlines.get(verdict, unclear)),
        joined(*(sentence(_told(row)) for row in (first, *rest[:2]))),
        "A part is removed exactly from the scores of these heads, with mean vectors from other documents; random "
        "heads of the same layers show what removing it from any heads would cost."
        + (
            f" Only {first['random_heads']} other heads are in these layers, fewer than the {first['n_heads']} chosen."
            if first["random_heads"] < first["n_heads"]
            else ""
        ),
        "In one model, on these texts; a head whose work others can take over looks unneeded.",
        verdict,
        tuple(rows),
        "own",
        f"± is one standard error over {first['documents']} documents, of random heads over {first['draws']} draws. "
        + rule_of_contrast(),
        See("ablation", c.lead, first["checkpoint"], c.main),
        rank(
            DIFFERENT if verdict == "higher" else LEVEL if verdict == "equal" else UNCLEAR,
            first["above_random"],
        ),
    )


def _verdict(row: Mapping[Hashable, Any], looks: int) -> str:
    return judged(row["above_random"], row["above_random_se"], int(row["documents"]) - 1, looks)


def _told(row: Mapping[Hashable, Any]) -> str:
    heads = in_words(row["heads"], row["n_heads"], row["population"])
    own, other = (measured(row[n], row[f"{n}_se"], "nats per token", True) for n in ("delta", "random"))
    return f"without {PARTS.get(row['part'], row['part'])} in {heads} {own}, in random heads {other}"


def _row(c: Context, row: Mapping[Hashable, Any], verdict: str) -> Row:
    heads = in_words(row["heads"], row["n_heads"], row["population"])
    what = f"loss without {PARTS.get(row['part'], row['part'])} in {heads}, minus loss"
    return Row(
        what, "loss", row["population"], row["checkpoint"], row["delta"], row["delta_se"], unit="nats per token",
        verdict=verdict,
    )  # fmt: skip


def _random(c: Context, row: Mapping[Hashable, Any]) -> Row:
    se = row["random_se"] if row["random_se"] is not None else math.nan
    what = f"the same in random heads of the same layers ({row['draws']} draws)"
    return Row(what, "loss", row["population"], row["checkpoint"], row["random"], se, unit="nats per token")
