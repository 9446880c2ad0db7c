"""What a head attends to: means of attention weights over the sampled queries of a window (`sums.attention`).

`sink_score` is the mean weight of token 0 over the queries at positions 1 to 63. `attn_recent256` and `attn_middle` are
over queries from position 512 on, so that both ranges are whole. `duplicate` and `induction` are over queries whose
token occurred before: the weight of its copies, and of the tokens right after them, minus their share of the visible
keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.sums.attention import WHOLE, AttentionSum

if TYPE_CHECKING:
    from qkscope.measures.cell import HeadBlock

Array = NDArray[np.float64]

# Keys up to this distance are recent; what lies behind is looked at for queries from LATE on.
RECENT, LATE = 256, 512


def compute(block: HeadBlock) -> Mapping[str, Array]:
    found = [_of_sample(each) for each in block.sums_of(AttentionSum)]
    return {name: np.stack([each[name] for each in found])[:, block.rows.queries] for name in found[0]}


def _of_sample(sums: AttentionSum) -> dict[str, Array]:
    """Every variable of all heads. (H,), or (H, bins)"""
    entropy = sums.mean("entropy")
    late, near = sums.distance(LATE), sums.bins <= RECENT
    recent = sums.mean("self", LATE) + late[:, near].sum(axis=1)
    sinks = np.isfinite(sums.softmax["sink"])
    return {
        "attn_first": sums.mean("first"),
        "attn_first4": sums.mean("first") + sums.mean("early"),
        "attn_learned_sink": np.where(sinks, sums.mean("learned_sink"), np.nan),
        "sink_score": sums.mean("first", past=WHOLE),
        "attn_self": sums.mean("self"),
        "attn_prev": sums.mean("previous"),
        "attn_distance": sums.distance(),
        "attn_recent256": recent,
        "attn_middle": late[:, ~near].sum(axis=1),
        "entropy": entropy,
        "entropy_normalised": sums.mean("normalised_entropy"),
        "effective_keys": np.exp(entropy),
        "duplicate": sums.ratio("duplicate", "copied"),
        "induction": sums.ratio("induction", "followed"),
        "q_norm": sums.mean("q_norm"),
        "k_norm": sums.mean("k_norm"),
    }


GROUP = MeasureGroup(
    name="attention",
    needs=("attention",),
    compute=compute,
    variables=(
        Variable("attn_first", "attention to the first token", "share", "mean weight of token 0"),
        Variable("attn_first4", "attention to the first four tokens", "share", "mean weight of tokens 0 to 3"),
        Variable("attn_learned_sink", "attention to the learned sink", "share",
                 "mean weight of the learned sink, in models that have one"),
        Variable("sink_score", "sink score", "share",
                 "mean weight of token 0 over the queries at positions 1 to 63 (Gu et al. 2024)"),
        Variable("attn_self", "attention to the query itself", "share",
                 "mean weight of the query's own token, from position 4 on"),
        Variable("attn_prev", "attention to the previous token", "share",
                 "mean weight of the token right before the query"),
        Variable("attn_distance", "attention by distance", "share",
                 "mean weight of the keys at distances 1, 2, 3-4, 5-8, ... without the first four tokens; with these, "
                 "the query itself and the learned sink it sums to 1", ("distance_bin",)),
        Variable("attn_recent256", "attention to the last 256 tokens", "share",
                 "mean weight of keys at distances 0 to 256, over queries from position 512 on"),
        Variable("attn_middle", "attention to the middle", "share",
                 "mean weight of keys outside the first four tokens and more than 256 tokens back, over queries from "
                 "position 512 on"),
        Variable("entropy", "attention entropy", "nats", "mean entropy of attention weights"),
        Variable("entropy_normalised", "normalised entropy", "share",
                 "mean entropy of attention weights over ln(visible keys): 1 is uniform attention"),
        Variable("effective_keys", "effective number of keys", "keys", "exp of the mean entropy"),
        Variable("duplicate", "attention to copies", "share",
                 "mean weight of earlier copies of the query's token minus their share of the visible keys, over "
                 "queries that have any"),
        Variable("induction", "attention after copies", "share",
                 "mean weight of the tokens right after earlier copies of the query's token minus their share of the "
                 "visible keys, over queries that have any"),
        Variable("q_norm", "query norm", "", "mean norm of queries; depends on coordinates", detail=True),
        Variable("k_norm", "key norm", "", "mean norm of keys; depends on coordinates", detail=True),
    ),
)  # fmt: skip
