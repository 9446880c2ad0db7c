"""About thirty numbers of each checkpoint, for logs, terminal tables and alarms. RoPE and NoPE heads stay separate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.results.aggregate import ROPE, over_heads, populations, present, values

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

# Means over the heads of a population; those of all `role_` measures come with them.
MEANS = (
    *("share_position", "share_key", "share_match", "share_query_position", "share_positional"),
    *("r_q", "abs_r_k", "q_norm", "k_norm"),
)
# Largest values over all heads, without an error.
LARGEST = ("max_logit",)
# Numbers of the whole model.
WHOLE = ("loss",)
# A head with a larger mean attention of queries 1 to 63 to the first token is a sink head (Gu et al. 2024).
SINK_HEAD = 0.3


def scalars(data: xr.Dataset) -> dict[str, Array]:
    """By name, `measure` or `RoPE/measure` and `NoPE/measure`: values of (checkpoint, sample).

    `data` is `results.own()` or `results.matched()`. What was not measured is left out. Sample 0 has all documents,
    the others lack one group each.
    """
    found: dict[str, Array] = {}
    for name in LARGEST:
        found[name] = _array(values(data, name).max("head"))
    for name in WHOLE:
        if name in data:
            found[name] = _array(data[name])
    for population in populations(data):
        start = f"{population}/" if population in ROPE else ""
        here = present(data, population)
        for name in MEANS:
            found[start + name] = _array(over_heads(values(data, name), here))
        for role in (str(name) for name in data if str(name).startswith("role_")):
            found[start + role] = _array(over_heads(values(data, role), here))
        if "sink_score" in data:
            sinks = values(data, "sink_score")
            found[f"{start}sink_rate"] = _array(over_heads((sinks > SINK_HEAD).where(sinks.notnull()), here))
    return {name: each for name, each in found.items() if np.isfinite(each[:, 0]).any()}


def _array(found: xr.DataArray) -> Array:
    return np.asarray(found.transpose("checkpoint", "sample").to_numpy(), dtype=np.float64)
