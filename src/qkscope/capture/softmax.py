"""How each layer turns scores into attention weights: read from the pass, and checked against what the layer computed.

The attention function is called with its soft cap, learned sinks and sliding window; ALiBi's slopes are read from the
scores of the probe. Then the weights of a few queries of every pass are computed from captured queries and keys alone,
and must give what the layer gave: its weights, or its weighted means of the values. Where they do not (sparse or
chunked attention, an unknown bias), the layer's attention is not measured, with the reason; nothing is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkscope.capture.architecture import Architecture
from qkscope.capture.layer_calls import LayerCall
from qkscope.sums import Softmax

# What a layer gave and what its queries and keys give differ by less than this part of the largest value. In half
# precision the layer rounds its weights and means.
TOLERANCE, HALF_TOLERANCE = 1e-3, 3e-2
# A bias counts as linear in distance within this part of its size.
STRAIGHT = 1e-3


class Softmaxes:
    """The softmax of each layer, the same in every pass.

    reasons  by layer: why it is not known
    """

    def __init__(
        self, architecture: Architecture, scales: Mapping[int, float], slopes: Mapping[int, Any]
    ) -> None:
        self._architecture, self._scales, self._slopes = architecture, scales, slopes
        self.reasons: dict[int, str] = {}

    def of(self, call: LayerCall) -> Softmax | None:
        """The softmax of a layer, of all its heads; None if it is not known."""
        layer = call.layer
        if layer in self.reasons:
            return None
        window = call.window
        if window is None and self._architecture.sliding[layer]:
            window = self._architecture.sliding_window
        sinks = None if call.sinks is None else call.sinks.detach().float().reshape(-1)
        found = Softmax(window, call.softcap, sinks, self._slopes.get(layer))
        if why := _wrong(call, self._scales[layer], found):
            self.reasons[layer] = why
            return None
        return found


def read_slopes(call: LayerCall, scale: float) -> Any:
    """ALiBi's slopes (heads,), from what the probe's scores have besides scale q.k; None if they have nothing."""
    import torch

    if call.scores is None or scale != scale:
        return None
    q, k = call.q.float(), call.k.float()
    scores = call.scores.float().reshape(*q.shape[:3], -1)
    last = q.shape[2] - 1
    product = q[:, :, last:] @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).transpose(-1, -2)
    added = scores[0, :, last, : last + 1] - scale * product[0, :, 0]  # (heads, keys)
    back = torch.arange(last, -1, -1, device=added.device)
    slopes = (added[:, -1] - added[:, 0]) / last
    line = added[:, -1:] - slopes[:, None] * back
    size = float(slopes.abs().max()) * last
    rounding = 1e-4 * float(scores[0, :, last, : last + 1].abs().max())
    if size <= rounding or float((added - line).abs().max()) > max(STRAIGHT * size, rounding):
        return None
    return slopes


def _wrong(call: LayerCall, scale: float, softmax: Softmax) -> str:
    """Why queries and keys do not give the weights of a few queries of the first document; empty if they do."""
    import torch

    if scale != scale:
        return "the scale of its scores is not known"
    q, k = call.q[0].float(), call.k[0].float()
    heads, tokens = q.shape[:2]
    t = torch.unique(torch.tensor([tokens - 1, 2 * tokens // 3, tokens // 3, 0], device=q.device))
    k = k.repeat_interleave(heads // k.shape[0], dim=0)
    keys = torch.arange(tokens, device=q.device)
    e, _, total, _ = softmax.weights(scale * (q[:, t] @ k.transpose(1, 2)), t, keys)
    weights = e / total[..., None]  # (heads, n, tokens)
    if call.weights is not None:
        expected = call.weights.reshape(-1, *call.weights.shape[-2:])[:heads, t, :tokens].float()
        size = expected.new_ones(())
    elif call.output is not None:
        values = call.values[0].float()
        values = values.repeat_interleave(heads // values.shape[0], dim=0)
        weights, expected = weights @ values, call.output[0, t].float().transpose(0, 1)
        size = values.abs().max()
    else:
        return "neither its weights nor its output are shown"
    if weights.shape != expected.shape:
        return f"its output has shape {tuple(expected.shape)}, expected {tuple(weights.shape)}"
    if not bool(torch.isfinite(expected).all()):
        return ""
    apart = float((weights - expected).abs().max() / size)
    limit = TOLERANCE if call.q.element_size() >= 4 else HALF_TOLERANCE
    if apart <= limit:
        return ""
    return (
        f"its weights are not a softmax of scale q.k over the visible keys (they differ by up to {apart:.2g})"
    )
