"""Scores of the roles that heads are known for, each between 0 and 1; `results.roles` names roles from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.attention import LATE, RECENT
from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.sums.attention import WHOLE, AttentionSum
from qkscope.sums.repeats import RepeatSum

if TYPE_CHECKING:
    from qkscope.measures.cell import HeadBlock

Array = NDArray[np.float64]

# Keys up to this distance are local.
LOCAL = 16


def compute(block: HeadBlock) -> Mapping[str, Array]:
    rows = block.rows.queries
    attention = [_of_sample(each) for each in block.sums_of(AttentionSum)]
    found = {name: np.stack([each[name] for each in attention])[:, rows] for name in attention[0]}
    repeats = np.stack([each.mean for each in block.sums_of(RepeatSum)])[:, :, rows]  # (1 + G, 2, H)
    return found | {
        "induction_score": repeats[:, 0],
        "duplicate_score": repeats[:, 1],
        "role_induction": repeats[:, 0],
        "role_duplicate": repeats[:, 1],
    }


def _of_sample(sums: AttentionSum) -> dict[str, Array]:
    # Of the first queries, all keys are near.
    distance, late = sums.distance(WHOLE), sums.distance(LATE)
    local = sums.mean("self", WHOLE) + distance[:, sums.bins <= LOCAL].sum(axis=1)
    far = late[:, sums.bins > RECENT].sum(axis=1)
    return {
        "role_sink": sums.mean("first", past=WHOLE),
        "role_previous": sums.mean("previous"),
        "role_local": _share(local, sums.mean("self", WHOLE) + distance.sum(axis=1)),
        "role_long_range": _share(far, sums.mean("self", LATE) + late.sum(axis=1)),
        "role_broad": sums.mean("normalised_entropy"),
    }


def _share(part: Array, whole: Array) -> Array:
    return np.asarray(part / np.where(whole > 0, whole, np.nan))


GROUP = MeasureGroup(
    name="roles",
    needs=("attention", "repeats"),
    compute=compute,
    variables=(
        Variable("induction_score", "induction score", "share",
                 "on random tokens repeated once: mean weight of the token after the query's first copy (Olsson et al. "
                 "2022)"),
        Variable("duplicate_score", "duplicate-token score", "share",
                 "on random tokens repeated once: mean weight of the query's first copy"),
        Variable("role_sink", "sink role", "share", "sink_score", detail=True),
        Variable("role_previous", "previous-token role", "share", "attn_prev", detail=True),
        Variable("role_induction", "induction role", "share", "induction_score", detail=True),
        Variable("role_duplicate", "duplicate-token role", "share", "duplicate_score", detail=True),
        Variable("role_local", "local role", "share",
                 "share of the attention besides the first four tokens and the learned sink that goes to keys at "
                 "distances 0 to 16, over queries from position 64 on"),
        Variable("role_long_range", "long-range role", "share",
                 "share of the attention besides the first four tokens and the learned sink that goes to keys more "
                 "than 256 tokens back, over queries from position 512 on"),
        Variable("role_broad", "broad role", "share", "entropy_normalised", detail=True),
    ),
)  # fmt: skip
