"""Heads without numbers: which they are, why, and when there are too many of them for a result to be of use.

One rule for everything that measures: beyond `defaults.MOST_UNMEASURED` of a model's heads it has not succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from qkscope.defaults import MOST_UNMEASURED
from qkscope.words import capital, some

if TYPE_CHECKING:
    import pandas as pd


def unmeasured_warnings(heads: pd.DataFrame, non_finite: Mapping[str, int]) -> dict[str, str]:
    """By model that has some: how many of its heads have no numbers, which they are, and why.

    `heads` is a heads table, `non_finite` how many heads of each model met values that are not finite.
    """
    found = {}
    for model, rows in heads.groupby("model", sort=False):
        lost = rows[rows["r_q"].isna() | rows["r_k"].isna()]
        if len(lost):
            why = _why(len(lost), non_finite.get(str(model), 0))
            found[str(model)] = (
                f"{len(lost)} of {len(rows)} heads are unmeasured ({_which(rows, lost)}): {why}"
            )
    return found


def too_few_measured(heads: pd.DataFrame, non_finite: Mapping[str, int], float32: str) -> str | None:
    """What is wrong with a result that lacks too many heads, and what to do; None if it has enough of them.

    `float32` is how the person who asked writes that the weights are to be read in that format.
    """
    lost = heads["r_q"].isna() | heads["r_k"].isna()
    shares = lost.groupby(heads["model"], sort=False).mean()
    models = [str(model) for model in shares[shares > MOST_UNMEASURED].index]
    if not models:
        return None
    warnings = unmeasured_warnings(heads, non_finite)
    lines = [f"  {model}: {warnings[model]}" for model in models]
    remedies = []
    if any(non_finite.get(model) for model in models):
        remedies.append(f"where values are not finite, try {float32}")
    remedies.append("check that the checkpoint was saved whole, or leave it out")
    limit = f"more than {MOST_UNMEASURED:.0%} of the heads have no numbers:"
    return "\n".join([limit, *lines, f"What was measured is written. {capital('; '.join(remedies))}"])


def _why(lost: int, non_finite: int) -> str:
    still = max(lost - non_finite, 0)
    reasons = [f"{non_finite} met NaN or infinity"] if non_finite else []
    if still:
        reasons.append(f"the queries or keys of {still} do not vary, or have no first axis")
    return "; ".join(reasons)


def _which(rows: pd.DataFrame, lost: pd.DataFrame) -> str:
    """`all`, or layer by layer: `layer 3 heads 0, 2; layer 5 all heads`."""
    if len(lost) == len(rows):
        return "all"
    whole = rows.groupby("layer").size()
    parts = []
    for layer, members in lost.groupby("layer"):
        every = len(members) == whole[layer]
        named = "all heads" if every else f"heads {', '.join(map(str, sorted(members['head'])))}"
        parts.append(f"layer {layer} {named}")
    return some(parts, 12)
