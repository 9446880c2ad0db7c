"""On which principal component position sits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from qkscope.aggregate import column
from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL, Row
from qkscope.inference.contrast import contrast
from qkscope.inference.levels import FEWEST_HEADS, HEAD_GROUPS, rule_of_components, rule_of_contrast
from qkscope.words import bare, joined, percent, sentence

Array = NDArray[np.float64]


@question(
    "components", "Is PC0 the axis that follows position most closely?", view="head", place=95, of="any", tested=False,
    rule=joined(rule_of_components(), rule_of_contrast()),
)  # fmt: skip
def components(s: Asked) -> Answer | None:
    """Mean r_q and |r_k| on PC0 against the best other component, at the last checkpoint, over own windows."""
    if s.results.components < 2:
        return None
    model = s.own.stops[-1].model
    rows = s.results.qk[s.results.qk["model"] == model]
    parts, sure, heads, table = [], [], [], []
    for name, label in (("r_q", "mean |r_q|"), ("r_k", "mean |r_k|")):
        values = _by_component(rows, name)
        left = _left_out(values)  # (1 + groups, components)
        first, second = (int(pc) for pc in np.argsort(-left[0], kind="stable")[:2])
        rival = first or second
        found = contrast(left[:, 0], left[:, rival], looks=left.shape[1] - 1)
        sure.append(found.sure if len(values) >= FEWEST_HEADS else "")
        heads.append(_axis(sure[-1], first, rival))
        parts.append(f"{label} is {bare(found.first)} on PC0 and {bare(found.second)} on PC{rival}")
        table += [Row(f"{label} on PC{pc}", model, float(v)) for pc, v in enumerate(left[0])]
    detail = f"at {s.own.label(-1)}, over its own window, {' and '.join(parts)}"
    text = joined(sentence(detail), _variance(rows))
    queries, keys = heads
    headline = f"Queries follow position most closely {queries}; keys {keys}"
    if queries == keys:
        headline = f"Queries and keys follow position most closely {queries}"
    return Answer(_verdict(sure), headline, text, tuple(table), window="own")


def _axis(sure: str, first: int, rival: int) -> str:
    """Where it is followed most closely; what is highest without being sure of it is said to be so."""
    clear = {"more": "on PC0", "less": f"on PC{rival}", "same": f"on PC0 and PC{rival} equally"}
    return clear.get(sure, f"on PC{first}, though not clearly")


def _by_component(rows: pd.DataFrame, name: str) -> Array:
    """(H, components): |r|, of the heads that have every component."""
    values = rows.assign(value=np.abs(column(rows, name))).pivot(
        index=["layer", "head"], columns="pc", values="value"
    )
    return np.asarray(values.dropna().to_numpy(np.float64))


def _left_out(values: Array) -> Array:
    """(H, C) -> (1 + HEAD_GROUPS, C): means, and means without each group of heads."""
    group = np.arange(len(values)) % HEAD_GROUPS
    left: list[Any] = [values[group != g].mean(axis=0) for g in range(HEAD_GROUPS) if (group != g).any()]
    return np.stack([values.mean(axis=0), *left])


def _verdict(sure: list[str]) -> str:
    if all(x == "more" for x in sure):
        return "yes"
    if all(x == "less" for x in sure):
        return "no"
    return "in part" if "more" in sure else CANNOT_TELL


def _variance(rows: pd.DataFrame) -> str:
    shares = rows.assign(value=column(rows, "explained_variance")).groupby("pc")["value"].mean()
    if shares.isna().any():
        return ""
    together = f"all {len(shares)} components {percent(shares.sum())}"
    return f"PC0 holds {percent(shares.iloc[0])} of a head's variance, {together}."
