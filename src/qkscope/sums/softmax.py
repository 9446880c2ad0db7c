"""How a layer turns scores into attention weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Softmax:
    """How a layer turns scores s = scale q.k into attention weights: a softmax over the visible keys j <= i.

    window   the query at i sees i - window < j <= i; None: all earlier keys
    softcap  s becomes softcap tanh(s / softcap); None: it stays as it is
    sinks    (heads,) a learned logit of each head that takes part in its softmax; None: there is none
    slopes   (heads,) of ALiBi, which adds -slope (i - j); None: it has none
    """

    window: int | None = None
    softcap: float | None = None
    sinks: Any = None
    slopes: Any = None

    @property
    def constants(self) -> dict[str, Any]:
        """What sums keep of it: softcap, sink, slope and reach (the window), a number or (heads,); NaN for none."""
        per_head = {"sink": self.sinks, "slope": self.slopes}
        known = {name: None if each is None else each.cpu().numpy() for name, each in per_head.items()}
        known |= {"softcap": self.softcap, "reach": self.window}
        return {name: math.nan if each is None else each for name, each in known.items()}

    def select(self, heads: Any) -> Softmax:
        """Of some of the heads."""
        sinks, slopes = (None if each is None else each[heads] for each in (self.sinks, self.slopes))
        return replace(self, sinks=sinks, slopes=slopes)

    def weights(self, scores: Any, t: Any, keys: Any) -> tuple[Any, Any, Any, Any]:
        """Attention of queries at t (..., n) to the keys at `keys` (m,): torch tensors, `scores` (..., heads, n, m).

        Returns e and its logarithm (..., heads, n, m), and of each row (..., heads, n) the sum Z and the learned sink's
        part of it: weights are e / Z. `scores`, scale q.k, are overwritten.
        """
        back = t[..., None, :, None] - keys
        self.bias(scores, back)
        # Finite, so that 0 times its logarithm is 0.
        scores.masked_fill_(self.hidden(back), -1e30)
        largest = scores.amax(dim=-1)
        sinks = None if self.sinks is None else self.sinks[:, None].expand_as(largest)
        largest = largest if sinks is None else largest.maximum(sinks)
        scores -= largest[..., None]
        e = scores.exp()
        total = e.sum(dim=-1)
        if sinks is None:
            return e, scores, total, total.new_zeros(total.shape)
        sink = (sinks - largest).exp()
        return e, scores, total + sink, sink

    def hidden(self, back: Any) -> Any:
        """Which keys a query does not see, at distances `back` before it."""
        later = back < 0
        return later if self.window is None else later | (back >= self.window)

    def bias(self, scores: Any, back: Any) -> None:
        """Apply the soft cap and ALiBi to scores (..., heads, n, m), in place."""
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.slopes is not None:
            scores -= self.slopes[:, None, None] * back
