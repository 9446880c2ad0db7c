"""What the attention product is given, recorded below every attention function of an uncaptured model.

A dispatch mode sees the ATen operators that whatever Python code ends in: fused attention kernels with their operands,
or a batched matrix product followed by a softmax. Nothing of qkscope takes part, so what it captures can be held
against this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Scores below this are masked out, whatever number a family writes for it.
MASKED = -1e4
# (name of a module, its layer)
Place = tuple[str, int | None]


@dataclass
class Product:
    """One score product: q (n, tokens, dim) and k (n, tokens, dim), where n runs over batch and heads.

    allowed  (tokens, tokens) which keys some head of some document could see; None if no softmax followed
    scale    what the product is multiplied with on the way into the softmax; None if more than that happens to it
    """

    module: str
    layer: int | None
    q: torch.Tensor
    k: torch.Tensor
    scores: int
    allowed: torch.Tensor | None = None
    scale: float | None = None

    @property
    def kind(self) -> str:
        """Which keys a query sees: all before it, a window of them, a choice of its own, or some after it."""
        if self.allowed is None:
            return "unknown"
        n = len(self.allowed)
        before = torch.ones(n, n, dtype=torch.bool).tril()
        if (self.allowed & ~before).any():
            return "future"
        if (self.allowed | ~before).all():
            return "all"
        window = int(self.allowed[-1].sum())
        return "window" if torch.equal(self.allowed, before & ~before.tril(-window)) else "chosen"


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, tokens: int, place: list[Place]) -> None:
        super().__init__()
        self.products: list[Product] = []
        self._tokens, self._place = tokens, place

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = op(*args, **kwargs)
        name = op.overloadpacket.__name__
        if "scaled_dot_product" in name:
            self._fused(args, kwargs)
        elif name in ("bmm", "baddbmm"):
            self._product(args[-2], args[-1], result)
        elif name in ("_softmax", "_safe_softmax") and self.products:
            self._softmax(args[0])
        return result

    def _fused(self, args: Any, kwargs: Any) -> None:
        q, k = (x.flatten(0, 1).clone() for x in args[:2])
        causal = any(a is True for a in args[3:]) or kwargs.get("is_causal", False)
        mask = kwargs.get("attn_mask")
        n = q.shape[1]
        allowed = torch.ones(n, n, dtype=torch.bool)
        if causal:
            allowed = allowed.tril()
        if mask is not None:
            open_ = mask if mask.dtype == torch.bool else mask > MASKED
            allowed &= open_.expand(*mask.shape[:-2], n, n).reshape(-1, n, n).any(0)
        scale = kwargs.get("scale")
        scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
        biased = mask is not None and mask.dtype != torch.bool and (mask[mask > MASKED] != 0).any()
        self.products.append(Product(*self._place[-1], q, k, 0, allowed, None if biased else scale))

    def _product(self, a: torch.Tensor, b: torch.Tensor, scores: torch.Tensor) -> None:
        if scores.shape[-2:] == (self._tokens, self._tokens) and a.shape[-1] != self._tokens:
            self.products.append(
                Product(*self._place[-1], a.clone(), b.transpose(1, 2).clone(), scores.numel())
            )

    def _softmax(self, scores: torch.Tensor) -> None:
        n = self._tokens
        # An attention sink is one more column.
        scores = scores[..., :n] if scores.shape[-1] == n + 1 else scores
        last = next((p for p in reversed(self.products) if p.scores == scores.numel()), None)
        if last is not None and last.allowed is None and last.module.startswith(self._place[-1][0]):
            seen = scores.reshape(-1, n, n) > MASKED
            last.allowed, last.scale = seen.any(0), _scale(last, scores.reshape(-1, n, n), seen)


def _scale(product: Product, scores: torch.Tensor, seen: torch.Tensor) -> float | None:
    """The one factor between q.k and the scores that are seen, if that is all there is between them."""
    plain, scores = (product.q @ product.k.transpose(1, 2)).double()[seen], scores.double()[seen]
    factor = (plain * scores).sum() / (plain * plain).sum()
    return float(factor) if (plain * factor - scores).abs().max() <= 1e-5 * scores.abs().max() else None


def record(model: Any, ids: torch.Tensor) -> tuple[list[Product], torch.Tensor]:
    """The score products of one pass of `model`, in order, and its logits."""
    place: list[Place] = [("", None)]
    with _following(model, place), _Recorder(ids.shape[1], place) as recorder, torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
    return recorder.products, logits


def _layer(name: str, module: Any) -> int | None:
    """The layer a module says it is in, else the first number of its name."""
    own = getattr(module, "layer_idx", None)
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    return own if isinstance(own, int) and own >= 0 else next(iter(numbers), None)


def _leave(place: list[Place]) -> None:
    place.pop()


@contextmanager
def _following(model: Any, place: list[Place]) -> Iterator[None]:
    """Keeps the names of the modules that are running, the innermost last."""
    hooks = []
    for name, module in model.named_modules():
        here = name, _layer(name, module)
        hooks.append(module.register_forward_pre_hook(lambda *_, here=here: place.append(here)))
        hooks.append(module.register_forward_hook(lambda *_: _leave(place)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
