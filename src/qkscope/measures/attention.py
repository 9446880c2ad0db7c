"""What a head attends to: means of attention weights over the sampled queries of a window (`sums.attention_rows`).

`sink_score` is the mean weight of token 0 over the queries at positions 1 to 63. `attn_recent256` and `attn_middle` are
over queries from position 512 on, so that both ranges are whole. `duplicate` and `induction` are over queries whose
token occurred before: the weight of its copies, and of the tokens right after them, minus their share of the visible
keys. `role_*` are the scores of the roles that heads are known for, between 0 and 1; `results.roles` names roles from
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.sums.attention_rows import WHOLE, AttentionSum
from qkscope.sums.repeats import RepeatSum

if TYPE_CHECKING:
    from qkscope.measures.cell import HeadBlock

Array = NDArray[np.float64]

# Keys up to LOCAL are local, up to RECENT recent; what lies further back is measured for queries from LATE on.
LOCAL, RECENT, LATE = 16, 256, 512
# Attention that overlaps with uniform attention up to this is uniform: there is nothing to predict.
FLAT = 1e-6


def compute(block: HeadBlock) -> Mapping[str, Array]:
    rows = block.rows.queries
    samples = [_of_sample(each) for each in block.sums_of(AttentionSum)]
    found = {name: np.stack([each[name] for each in samples])[:, rows] for name in samples[0]}
    repeats = np.stack([each.mean for each in block.sums_of(RepeatSum)])[:, :, rows]  # (1 + G, 2, H)
    found |= {"induction_score": repeats[:, 0], "duplicate_score": repeats[:, 1]}
    same = {"sink": "sink_score", "previous": "attn_prev", "broad": "entropy_normalised"}
    same |= {"induction": "induction_score", "duplicate": "duplicate_score"}
    return found | {f"role_{role}": found[name] for role, name in same.items()}


def _of_sample(sums: AttentionSum) -> dict[str, Array]:
    """What follows from attention rows, of all heads. (H,), or (H, bins)"""
    first, entropy = sums.mean("first"), sums.mean("entropy")
    # Of the first queries, all keys are near.
    distance, local = sums.distance(WHOLE), sums.bins <= LOCAL
    late, recent = sums.distance(LATE), sums.bins <= RECENT
    itself, late_itself = sums.mean("self", WHOLE), sums.mean("self", LATE)
    overlap, uniform = (sums.ratio(name, "compared") for name in ("by_position", "uniform"))
    sinks = np.isfinite(sums.softmax["sink"])
    return {
        "attn_first": first,
        "attn_first4": first + sums.mean("early"),
        "attn_learned_sink": np.where(sinks, sums.mean("learned_sink"), np.nan),
        "sink_score": sums.mean("first", past=WHOLE),
        "attn_self": sums.mean("self"),
        "attn_prev": sums.mean("previous"),
        "attn_distance": sums.distance(),
        "attn_recent256": late_itself + late[:, recent].sum(axis=1),
        "attn_middle": late[:, ~recent].sum(axis=1),
        "entropy": entropy,
        "entropy_normalised": sums.mean("normalised_entropy"),
        "effective_keys": np.exp(entropy),
        "duplicate": sums.ratio("duplicate", "copied"),
        "induction": sums.ratio("induction", "followed"),
        "attn_by_position": _share(overlap - uniform, np.where(uniform < 1 - FLAT, 1 - uniform, np.nan)),
        "attn_position_overlap": overlap,
        "role_local": _share(itself + distance[:, local].sum(axis=1), itself + distance.sum(axis=1)),
        "role_long_range": _share(late[:, ~recent].sum(axis=1), late_itself + late.sum(axis=1)),
        "q_norm": sums.mean("q_norm"),
        "k_norm": sums.mean("k_norm"),
    }


def _share(part: Array, whole: Array) -> Array:
    return part / np.where(whole > 0, whole, np.nan)


GROUP = MeasureGroup(
    name="attention",
    needs=("attention", "repeats"),
    version=3,
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
        Variable("attn_by_position", "attention that position predicts", "share",
                 "share of the departure from uniform attention, over the keys from token 4 on, that distance alone "
                 "reproduces from the head's mean query and key: 1 if position explains every weight, 0 if it predicts "
                 "no more than uniform attention; not measured where the rotation is unknown"),
        Variable("attn_position_overlap", "overlap with attention by position", "share",
                 "mean overlap, the sum of min(p, phat), of the attention to the keys from token 4 on with what "
                 "distance alone predicts; high for uniform attention too", detail=True),
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
        Variable("q_norm", "query norm", "", "mean norm of queries; depends on coordinates", detail=True),
        Variable("k_norm", "key norm", "", "mean norm of keys; depends on coordinates", detail=True),
    ),
)  # fmt: skip
