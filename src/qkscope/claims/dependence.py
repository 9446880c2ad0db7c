"""The claim about ablations: does the model need a part of the scores of some heads?"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qkscope import words
from qkscope.claims.claim import Claim, Row, See, Window
from qkscope.claims.context import DIFFERENT, LEVEL, UNCLEAR, Context, rank
from qkscope.stats.contrast import Compared, compared
from qkscope.stats.levels import rule_of_contrast
from qkscope.words import bare, joined, measured

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
MOST_ROWS = 6  # ablations in a claim besides the first
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
        end = "largest" if found["end"] == "top" else "smallest"
        return f"the {count} {noun} with the {end} {found['by']}"
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
    part_rank, set_rank = ({name: i for i, name in enumerate(names)} for names in (PARTS, sets))
    order = np.lexsort((found["part"].map(part_rank), found["heads"].map(set_rank)))
    return found.iloc[order].reset_index(drop=True)


def ablation(c: Context) -> Claim | None:
    """The part and heads that cost most above random heads of the same layers, at the last checkpoint ablated."""
    table = latest(c.results)
    if table is None:
        return None
    known = table[table["above_random"].notna() & (table["part"] != "head") & (table["population"] != "both")]
    if known.empty:
        return None
    order = known.sort_values("above_random", ascending=False, kind="stable").to_dict("records")
    verdicts = [_verdict(row, len(known)) for row in order]
    # A larger cost that may be noise does not hide one that is clear.
    leading = verdicts.index("higher") if "higher" in verdicts else 0
    for many in (order, verdicts):
        many.insert(0, many.pop(leading))
        del many[1 + MOST_ROWS :]
    first, verdict = order[0], verdicts[0]
    cost, other = (bare(first[name], signed=True) for name in ("delta", "random"))
    random = f"{first['random_heads']} random heads of the same layers"
    models = [checkpoint.model for checkpoint in c.best.checkpoints]
    what = _removed(first) + (
        c.at(models.index(first["checkpoint"])) if first["checkpoint"] in models else ""
    )
    caveat = (
        "This holds for one model and these texts. A head whose work others can take over looks unneeded."
    )
    control = f", {other} in {random}"
    if first["random_heads"] < first["n_heads"]:
        # Other parts of the same heads are the fairer comparison.
        few = f"these layers have only {words.count(first['random_heads'], 'other head')}"
        caveat = f"{words.capital(few)} to compare with, which is too few ({other} nats per token). {caveat}"
        same = known[(known["heads"] == first["heads"]) & (known["part"] != first["part"])].to_dict("records")
        parts = [
            f"{bare(row['delta'], signed=True)} without their {PARTS[row['part']].removeprefix('the ')}"
            for row in same
        ]
        control = f", {words.listing(parts)}" if parts else f"; {few} to compare with"
    if verdict == "higher":
        headline = f"The model needs {what}: {cost} nats per token without it{control}."
    elif verdict == "unclear":
        headline = (
            f"Without {what} the loss changes by {cost} nats per token, in {random} by {other}: a difference within "
            "the errors."
        )
    else:
        headline = (
            f"No part of the scores costs more in the chosen heads than in random ones: {what} {cost} nats per token, "
            f"random heads {other}."
        )
    rows = [
        _row(row, f"loss without {_removed(row)}, minus loss", "delta", each)
        for row, each in zip(order, verdicts, strict=True)
    ]
    in_random = f"the same in random heads of the same layers ({words.count(first['draws'], 'draw')})"
    rows.insert(1, _row(first, in_random, "random", "level"))
    meaning = (
        "A part is removed exactly from the scores of these heads, with mean vectors from other documents; random "
        "heads of the same layers show what removing it from any heads would cost."
    )
    detail = []
    for row in order[:3]:
        own, others = (measured(row[n], row[f"{n}_se"], "nats per token", True) for n in ("delta", "random"))
        detail.append(f"Without {_removed(row)} {own}, in random heads {others}.")
    of_random = "" if first["draws"] < 2 else f", of random heads over {first['draws']} draws"
    sizes = f"{first['documents']} documents{of_random}"
    tier = {"higher": DIFFERENT, "unclear": UNCLEAR}.get(verdict, LEVEL)
    text = (headline, joined(*detail), meaning, caveat, verdict)
    how = joined(f"± is one standard error over {sizes}.", rule_of_contrast())
    see = See("ablation", c.lead, first["checkpoint"], c.main)
    surprise = rank(tier, first["above_random"])
    matched = first["window"] == c.results.timeline.matched_window and c.results.matched() is not None
    window: Window = "matched" if matched else "own"
    found = tuple(replace(row, window=window) for row in rows)
    return Claim("ablation", "Does the model need it?", *text, found, window, how, see, surprise)


def _verdict(row: Mapping[Hashable, Any], looks: int) -> Compared:
    """Of the cost above random heads. Without a cost of its own, a part is not needed, whatever random heads do."""
    own = compared(row["delta"], row["delta_se"], row["documents"] - 1, looks)
    above = compared(row["above_random"], row["above_random_se"], _degrees_of_freedom(row), looks)
    return above if above != "higher" or own == "higher" else "unclear" if own == "unclear" else "equal"


def _degrees_of_freedom(row: Mapping[Hashable, Any]) -> float:
    """Of the error above random heads, which is over documents and over few draws (Welch-Satterthwaite)."""
    documents, draws = row["documents"] - 1, row["draws"] - 1
    whole, of_draws = row["above_random_se"] ** 2, row["random_se"] ** 2
    if draws < 1 or not 0 < of_draws <= whole:
        return float(documents)
    return float(whole**2 / ((whole - of_draws) ** 2 / documents + of_draws**2 / draws))


def _removed(row: Mapping[Hashable, Any]) -> str:
    """`content match in the 8 positional RoPE heads`."""
    heads = in_words(row["heads"], row["n_heads"], row["population"])
    return f"{PARTS.get(row['part'], row['part'])} in {heads}"


def _row(row: Mapping[Hashable, Any], what: str, column: str, verdict: str) -> Row:
    ends = (row["checkpoint"], row[column], row[f"{column}_se"])
    return Row(what, "loss", row["population"], *ends, unit="nats per token", verdict=verdict)
