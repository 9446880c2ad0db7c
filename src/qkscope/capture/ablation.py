"""Attention without one part of its scores, in chosen heads, while a model runs.

With m_q(i) and m_k(j) the mean query and key at a position, a = q - m_q and b = k - m_k, a score is the sum of four
parts:

    q_i.k_j = m_q(i).m_k(j) + m_q(i).b_j + a_i.b_j + a_i.m_k(j)
              position        key          match     query_position

Each is a product x_i.y_j. It is removed from keys j >= 4 exactly, up to each query's mean over its visible keys, by
more dimensions of queries and keys. No matrix of all pairs is needed; masks, soft caps and biases stay the model's:

    q' = [q, -x_i, x_i.ybar(i)],   k' = [k, 1{j >= 4} y_j, 1{j >= 4}],   ybar(i) = mean of y_j over visible j >= 4

The columns of the keys are the same for all query heads of a key head: heads that are not chosen have zeros in theirs.
Without `sink`, the score of token 0 is q_i.kbar(i), kbar the mean of m_k; without the whole `head`, q' = 0: uniform
attention over visible keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.capture.head import LanguageHead
from qkscope.capture.hooks import HOOKS, find_backbone, input_device
from qkscope.capture.layer_calls import LayerCall
from qkscope.capture.measure import batches
from qkscope.capture.probe import HALF_PADDED, PADDED, evaluating
from qkscope.errors import CaptureError
from qkscope.sums.path import SINK
from qkscope.sums.token_loss import token_nats

if TYPE_CHECKING:
    from qkscope.corpus import Document

Array = NDArray[np.float64]

# Which of mean and rest of queries (x) and keys (y) each part of a score is the product of.
_PRODUCTS = {
    "position": ("mean", "mean"),
    "query_position": ("rest", "mean"),
    "key": ("mean", "rest"),
    "match": ("rest", "rest"),
}
PARTS = (*_PRODUCTS, "sink", "head")
# Widened vectors have a multiple of this many dimensions, as fast attention on GPUs needs.
ALIGNED = 8
# Tokens of the pass that shows whether a model can be ablated.
TOKENS = 16


@dataclass(frozen=True)
class MeanVectors:
    """m_q (query heads, T, d) and m_k (key heads, T, d) of all heads of a layer."""

    q: NDArray[np.float32]
    k: NDArray[np.float32]


@dataclass
class Ablation:
    """One part, the query heads of each layer that lose it, and the mean vectors of these layers.

    windows  of layers with a sliding window: how many tokens they see
    """

    part: str
    heads: Mapping[int, Collection[int]]
    means: Mapping[int, MeanVectors]
    windows: Mapping[int, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def change(self, call: LayerCall) -> tuple[Any, Any] | None:
        """Queries and keys of a layer without the part; None where none of its heads is chosen."""
        import torch

        chosen = sorted(self.heads.get(call.layer, ()))
        if not chosen or call.q.shape[2] != call.k.shape[2]:
            return None
        self.seen.add(call.layer)
        mask = torch.zeros(call.q.shape[1], 1, 1, dtype=torch.bool, device=call.q.device)
        mask[chosen] = True
        if self.part == "head":
            return call.q.masked_fill(mask, 0.0), call.k
        means, tokens = self.means[call.layer], call.q.shape[2]
        m_q, m_k = (torch.from_numpy(each[:, :tokens]).to(call.q.device) for each in (means.q, means.k))
        window = self.windows.get(call.layer)
        q, k = widened(self.part, call.q.float(), call.k.float(), m_q, m_k, mask, window)
        return q.to(call.q.dtype), k.to(call.k.dtype)


def widened(
    part: str, q: Any, k: Any, m_q: Any, m_k: Any, chosen: Any, window: int | None = None
) -> tuple[Any, Any]:
    """q', k' as in the module's docstring.

    q (documents, H, T, d), k (documents, H or K, T, d), m_q (H, T, d), m_k (K, T, d), chosen (H, 1, 1)
    window: the query at i sees i - window < j <= i; None: all earlier keys
    """
    import torch

    t = torch.arange(q.shape[2], device=q.device)
    late = (t >= SINK).to(q.dtype)[:, None]

    def visible_mean(y: Any) -> Any:
        """The mean of y (..., T, d) over the keys from 4 on that each query sees; 0 where it sees none."""
        total, count = (y * late).cumsum(-2), late.cumsum(0)
        if window is not None and window < len(t):
            total, count = (
                torch.cat([x[..., :window, :], x[..., window:, :] - x[..., :-window, :]], dim=-2)
                for x in (total, count)
            )
        return total / count.clamp(min=1)

    m_k = m_k.repeat_interleave(k.shape[1] // len(m_k), dim=0)
    readers = q.shape[1] // k.shape[1]
    if part == "sink":
        level = (visible_mean(m_k) - k[:, :, :1]).repeat_interleave(readers, dim=1)
        columns_q = [(q * level).sum(-1, keepdim=True) * late]
        columns_k = [(t == 0).to(q.dtype)[:, None].expand(*k.shape[:3], 1)]
    else:
        of_q, of_k = _PRODUCTS[part]
        x = (m_q if of_q == "mean" else q - m_q).expand_as(q)
        y = ((m_k if of_k == "mean" else k - m_k) * late).expand_as(k)
        level = visible_mean(y).repeat_interleave(readers, dim=1)
        columns_q = [-x, (x * level).sum(-1, keepdim=True)]
        columns_k = [y, late.expand(*k.shape[:3], 1)]
    columns_q = [torch.where(chosen, column, 0.0) for column in columns_q]
    wide_q, wide_k = torch.cat([q, *columns_q], dim=3), torch.cat([k, *columns_k], dim=3)
    spare = (0, -wide_q.shape[3] % ALIGNED)
    return torch.nn.functional.pad(wide_q, spare), torch.nn.functional.pad(wide_k, spare)


@contextmanager
def ablating(model: Any, through: str, ablation: Ablation) -> Iterator[Any]:
    """Yields the backbone, whose passes lack the part; `through` names the hook ("interface" or "products")."""
    backbone = find_backbone(model)
    with HOOKS[through](backbone, lambda call: None, ablation.change):
        yield backbone


def check_ablation(model: Any, through: str, layers: Mapping[int, tuple[int, int, int]]) -> None:
    """Raise if widening the heads of `layers` with zeros changes the output of a short pass.

    layers: (query heads, key heads, dimensions) of each.
    """
    import torch

    backbone = find_backbone(model)
    size = len(backbone.get_input_embeddings().weight)
    ids = (torch.arange(TOKENS, device=input_device(backbone)) * 7 + 5)[None] % size
    zeros = {
        layer: MeanVectors(np.zeros((q, TOKENS, d), np.float32), np.zeros((k, TOKENS, d), np.float32))
        for layer, (q, k, d) in layers.items()
    }
    nothing = Ablation("position", {layer: range(q) for layer, (q, _, _) in layers.items()}, zeros)
    refused = (
        f"parts of the scores of this {backbone.config.model_type} model cannot be removed, because its attention does "
        "not take queries and keys of more dimensions ({}): heads can be measured, but not ablated"
    )
    with evaluating(backbone):
        plain = backbone(input_ids=ids, use_cache=False)[0].float()
        try:
            with ablating(model, through, nothing):
                same = backbone(input_ids=ids, use_cache=False)[0].float()
        except RuntimeError as error:
            raise CaptureError(refused.format(" ".join(str(error).split())[:200])) from error
    if missing := sorted(set(layers) - nothing.seen):
        raise CaptureError(refused.format(f"layers {missing} were not reached"))
    difference = float((same - plain).norm() / plain.norm())
    half = backbone.get_input_embeddings().weight.element_size() < 4
    if not difference < (HALF_PADDED if half else PADDED):
        raise CaptureError(refused.format(f"zeros change its output by {difference:.2g}"))


def document_nats(
    model: Any,
    head: LanguageHead,
    documents: Sequence[Document],
    window: int,
    batch_tokens: int,
    through: str = "interface",
    ablation: Ablation | None = None,
) -> tuple[Array, NDArray[np.int64]]:
    """Sum of -log p over each document's tokens 1 to `window`, and how many these are; in the order of `documents`."""
    import torch

    row_of = {document.index: i for i, document in enumerate(documents)}
    nats, counts = np.zeros(len(documents)), np.zeros(len(documents), dtype=np.int64)
    ablation = ablation or Ablation("head", {}, {})
    wanted = {layer for layer, heads in ablation.heads.items() if heads}
    with evaluating(model), ablating(model, through, ablation) as backbone:
        for batch in batches(documents, window, batch_tokens, mixed=False):
            ablation.seen.clear()
            ids = torch.from_numpy(batch.ids()).to(input_device(backbone))
            hidden = backbone(input_ids=ids, use_cache=False)[0]
            if ablation.seen != wanted:
                raise CaptureError(
                    f"layers {sorted(wanted - ablation.seen)} of this {backbone.config.model_type} model were not "
                    "reached, so their heads cannot be ablated"
                )
            found = token_nats(head, hidden[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            rows = [row_of[document.index] for document in batch.documents]
            nats[rows], counts[rows] = found.reshape(len(ids), -1).sum(axis=1), ids.shape[1] - 1
    return nats, counts
