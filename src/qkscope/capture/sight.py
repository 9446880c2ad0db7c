"""What a seam sees of one layer in one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sight:
    """Queries and keys of one layer, as the attention score sees them, on the model's device and in its dtype.

    q       (batch, q_heads, tokens, dim)
    k       (batch, key heads, tokens, dim): repeated or not, as the model hands them over
    scale   what the product q.k is multiplied with; None where the seam cannot see it
    window  how many tokens the layer sees, where it says so
    module  the attention module
    scores  what goes into the softmax, where the seam sees it
    softcap, sinks  of the softmax, where the layer says so: see `qkscope.sums.base.Softmax`
    values  (batch, value heads, tokens, dim) and `output` (batch, tokens, q_heads, dim), their weighted means; or
    weights (batch * q_heads, tokens, tokens), what comes out of the softmax; None where the seam cannot see them
    """

    layer: int
    q: Any
    k: Any
    scale: float | None
    window: int | None
    module: Any
    scores: Any = None
    softcap: float | None = None
    sinks: Any = None
    values: Any = None
    output: Any = None
    weights: Any = None


def same_sight(a: Sight | None, b: Sight) -> bool:
    """Whether both are the very same queries and keys: some layers weigh two sets of values with one of them."""
    return a is not None and (a.layer, a.q.data_ptr(), a.k.data_ptr()) == (
        b.layer,
        b.q.data_ptr(),
        b.k.data_ptr(),
    )


Observer = Callable[[Sight], None]
Change = Callable[[Sight], tuple[Any, Any] | None]
"""Other queries and keys of a layer, which may have more dimensions; None to leave them as they are."""
