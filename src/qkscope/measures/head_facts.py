"""What is known of each head: the key head it reads, whether its layer rotates, its depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.sums.head_index import depth

if TYPE_CHECKING:
    from qkscope.measures.cell import HeadBlock

Array = NDArray[np.float64]


def compute(block: HeadBlock) -> Mapping[str, Array]:
    heads, rows = block.cell.heads, block.rows.queries
    rope = heads.rope[rows].astype(np.float64)
    return {
        "kv_head": heads.kv_head[rows].astype(np.float64),
        "rope": np.where(rope < 0, np.nan, rope),
        "depth": depth(heads.layer[rows], block.cell.num_layers or int(heads.layer.max()) + 1),
    }


GROUP = MeasureGroup(
    name="facts",
    needs=("moments",),
    compute=compute,
    variables=(
        Variable("kv_head", "key head", "", "the key head that the query head reads", sampled=False, detail=True),
        Variable("rope", "RoPE", "", "1: the layer rotates queries and keys, 0: it does not (NoPE)", sampled=False,
                 detail=True),
        Variable("depth", "depth in the network", "", "layer / (layers - 1): 0 first, 1 last", sampled=False),
    ),
)  # fmt: skip
