"""The largest score of each head, over all visible pairs of the first 4,096 tokens of two documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.sums.largest_logit import LogitSum

if TYPE_CHECKING:
    from qkscope.measures.cell import HeadBlock

Array = NDArray[np.float64]


def compute(block: HeadBlock) -> Mapping[str, Array]:
    sums, rows = block.sums_of(LogitSum)[0], block.rows.queries
    logit = sums.logit[0, rows]
    seen = np.isfinite(logit)
    document, query, key = np.where(seen, sums.where[0, rows].T.astype(np.float64), np.nan)
    bound = np.where(seen, sums.q_norm[0, rows] * sums.k_norm[0, rows], np.nan)
    return {
        "max_logit": np.where(seen, logit, np.nan),
        "max_logit_bound": bound,
        "max_logit_document": document,
        "max_logit_query": query,
        "max_logit_key": key,
    }


GROUP = MeasureGroup(
    name="logits",
    needs=("logits",),
    compute=compute,
    variables=(
        Variable("max_logit", "largest logit", "logits",
                 "largest score over all visible pairs of the first 4,096 tokens of two documents, before a soft cap",
                 sampled=False),
        Variable("max_logit_bound", "bound of the largest logit", "logits",
                 "scale times the largest query norm times the largest key norm of the same documents",
                 sampled=False, detail=True),
        Variable("max_logit_document", "document of the largest logit", "", "number of the document",
                 sampled=False, detail=True),
        Variable("max_logit_query", "query of the largest logit", "tokens", "position of its query",
                 sampled=False, detail=True),
        Variable("max_logit_key", "key of the largest logit", "tokens", "position of its key",
                 sampled=False, detail=True),
    ),
)  # fmt: skip
