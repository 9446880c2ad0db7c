"""Roles of heads, named from their `role_*` scores and thresholds whenever results are read.

A head can have several roles, or none. It has a role if its score exceeds the threshold by more than BEYOND standard
errors over documents; without an error (fewer than two groups of documents) no role is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.results.aggregate import error, jackknife, ordered, over_heads, populations, present, values

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

# By how many standard errors a score must exceed its threshold.
BEYOND = 2.0
# Written in tables for a head without a role.
NO_ROLE = "no role"


@dataclass(frozen=True)
class Role:
    """A role, the variable that is its score, the threshold above which a head has it, and where that comes from."""

    name: str
    variable: str
    threshold: float
    source: str


_AS_SINKS = "no published threshold: the same share of attention as for sinks"
ROLES = (
    Role("sink", "role_sink", 0.3, "Gu et al. 2024 (arXiv 2410.10781): weight of token 0 above 0.3"),
    Role("previous-token", "role_previous", 0.3, _AS_SINKS),
    Role("induction", "role_induction", 0.3, f"score of Olsson et al. 2022 (arXiv 2209.11895); {_AS_SINKS}"),
    Role(
        "duplicate-token", "role_duplicate", 0.3, f"role of Wang et al. 2022 (arXiv 2211.00593); {_AS_SINKS}"
    ),
    Role("local", "role_local", 0.5, "most of the attention besides the sink"),
    Role("long-range", "role_long_range", 0.5, "most of the attention besides the sink"),
    Role("broad", "role_broad", 0.9, "no published threshold: uniform attention has 1"),
)


def has_roles(data: xr.Dataset) -> bool:
    """Whether role scores were measured."""
    return all(role.variable in data for role in ROLES)


def standings(data: xr.Dataset, role: Role) -> NDArray[np.int64]:
    """Whether a head has a role: 1 clearly, -1 clearly not, 0 within errors. (checkpoint or cell, head)"""
    score, se = data[role.variable].isel(sample=0).to_numpy(), error(data, role.variable).to_numpy()
    with np.errstate(invalid="ignore"):
        above, below = score - BEYOND * se > role.threshold, score + BEYOND * se < role.threshold
    return above.astype(np.int64) - below.astype(np.int64)


def named(data: xr.Dataset, role: Role) -> NDArray[np.bool_]:
    """Which heads have a role, beyond noise. (checkpoint or cell, head)"""
    return standings(data, role) > 0


def role_names(data: xr.Dataset) -> NDArray[Any]:
    """The roles of every head, joined by "; ", or NO_ROLE. (checkpoint or cell, head)"""
    found = np.stack([named(data, role) for role in ROLES], axis=-1)
    names = np.array([role.name for role in ROLES], dtype=object)
    flat = ["; ".join(names[row]) or NO_ROLE for row in found.reshape(-1, len(ROLES))]
    return np.array(flat, dtype=object).reshape(found.shape[:-1])


def with_role(table: pd.DataFrame, role: str) -> pd.Series:
    """Which rows of a table of heads have a role, by its column `roles`."""
    return table["roles"].str.split("; ").map(lambda names: role in names)


def role_table(heads: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """A row per checkpoint, head and role: score, its error, the threshold, and whether the head has the role.

    `heads` is a table of heads. Columns: model, layer, head, rope, role, score, se, threshold, named. Heads without a
    score are left out.
    """
    import pandas as pd

    parts = []
    for role in ROLES:
        columns = {role.variable: "score", f"{role.variable}_se": "se"}
        part = heads[["model", "layer", "head", "rope", *columns]].rename(columns=columns)
        part.insert(4, "role", role.name)
        parts.append(
            part.assign(threshold=role.threshold, named=part["score"] - BEYOND * part["se"] > role.threshold)
        )
    table = pd.concat(parts, ignore_index=True).dropna(subset="score")
    table["_at"] = pd.Categorical(table["model"], categories=order).codes
    table = table[table["_at"] >= 0].sort_values(["_at", "layer", "head"], kind="stable", ignore_index=True)
    return table.drop(columns="_at")


def role_shares(data: xr.Dataset, order: Sequence[str]) -> pd.DataFrame:
    """The share of heads above each role's threshold, with errors over documents; for sinks, Gu et al.'s sink rate.

    Populations are never pooled. Columns: model, population, role, heads, share, se.
    """
    import pandas as pd

    data = ordered(data, order)
    rows = []
    for population in populations(data):
        here = present(data, population)
        for role in ROLES:
            score = values(data, role.variable)
            above = (score > role.threshold).where(score.notnull()).astype(np.float64)
            share = over_heads(above.assign_coords(groups=data["groups"]), here)
            count = (score.isel(sample=0).notnull() & here).sum("head").to_numpy()
            se = jackknife(share).to_numpy()
            for i, model in enumerate(data["checkpoint"].to_numpy().tolist()):
                whole = float(share.isel(sample=0).to_numpy()[i])
                rows.append((model, population, role.name, int(count[i]), whole, float(se[i])))
    return pd.DataFrame(rows, columns=["model", "population", "role", "heads", "share", "se"])
