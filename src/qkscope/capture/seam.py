"""Queries and keys of each layer, as the attention score sees them, while a model runs.

Every transformers model that dispatches its attention through `AttentionInterface` asks it for a function and calls
that with the queries and keys after rotary embedding and norms and before key heads are repeated. For the time of a
`with` block `capture` stands around whichever function the model gets: it hands both to a consumer and lets that same
function answer. The name of the attention stays the model's own, for some models test it. Nothing is kept and nothing
is changed at import. Knows nothing of text, tokenizers or files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from qkscope.capture.architecture import Architecture, read_architecture
from qkscope.errors import CaptureError

# (layer, q (batch, q_heads, tokens, dim), k (batch, kv_heads, tokens, dim)), on the model's device and in its dtype.
Consumer = Callable[[int, Any, Any], None]


@contextmanager
def capture(model: Any, consumer: Consumer, scales: dict[int, float] | None = None) -> Iterator[Any]:
    """Hand every layer's queries and keys to `consumer` during each forward pass inside the block.

    Yields the backbone: calling it rather than `model` skips the language-model head. Cross-attention and the
    encoders of a multimodal model never enter. A pass must show each attention layer of the configuration exactly
    once, else `CaptureError`. On exit, also after an exception, the model is as it was. `scales` is filled with each
    layer's factor between q.k and the score.
    """
    backbone = find_backbone(model)
    seam = _Seam(backbone, consumer, {} if scales is None else scales)
    hooks = [
        backbone.register_forward_pre_hook(lambda *_: seam.begin()),
        backbone.register_forward_hook(lambda *_: seam.end()),
    ]
    try:
        with _around_attention(seam.around):
            yield backbone
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _around_attention(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Every attention function that a model asks the interface for inside the block comes wrapped."""
    from transformers import AttentionInterface

    own = AttentionInterface.get_interface

    def get_interface(interface: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return wrap(own(interface, name, default))

    AttentionInterface.get_interface = get_interface
    try:
        yield
    finally:
        AttentionInterface.get_interface = own


def find_backbone(model: Any) -> Any:
    """The text decoder inside a transformers model: everything but the language-model head."""
    if not hasattr(model, "get_decoder") or not hasattr(model, "set_attn_implementation"):
        raise CaptureError(
            f"expected a transformers model (such as AutoModelForCausalLM loads), found {type(model).__name__}"
        )
    if getattr(model.config, "is_encoder_decoder", False):
        raise CaptureError(
            f"{model.config.model_type} is an encoder-decoder model; only causal language models can be measured"
        )
    return model.get_decoder()


class _Seam:
    """Stands around the attention function and counts what passes."""

    def __init__(self, backbone: Any, consumer: Consumer, scales: dict[int, float]) -> None:
        self.architecture = read_architecture(backbone.config)
        self._consumer, self._scales = consumer, scales
        self._inside = {id(module) for module in backbone.modules()}
        self._seen: list[int] = []

    def around(self, attention: Callable[..., Any]) -> Callable[..., Any]:
        """The model's own attention function, observed."""

        def attend(module: Any, query: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
            if id(module) in self._inside and _is_self_attention(module, query, key):
                self._check_shapes(module.layer_idx, query, key)
                self._seen.append(module.layer_idx)
                scale = kwargs.get("scaling")
                # The interface's own default.
                self._scales[module.layer_idx] = query.shape[3] ** -0.5 if scale is None else float(scale)
                self._consumer(module.layer_idx, query.detach(), key.detach())
            return attention(module, query, key, *args, **kwargs)

        return attend

    def begin(self) -> None:
        self._seen = []

    def end(self) -> None:
        """After a pass: every attention layer of the configuration, each exactly once."""
        expected, seen = self.architecture.attention_layers, self._seen
        if sorted(seen) == expected:
            return
        if len(set(seen)) < len(seen):
            twice = sorted({layer for layer in seen if seen.count(layer) > 1})
            raise CaptureError(
                f"this {self.architecture.family} model ran layers {twice} more than once in one pass, so their "
                "tokens cannot be counted exactly once"
            )
        raise CaptureError(_not_through_the_interface(self.architecture, len(seen)))

    def _check_shapes(self, layer: int, query: Any, key: Any) -> None:
        a = self.architecture
        found = (query.shape[1], query.shape[3]), (key.shape[1], key.shape[3])
        expected = (a.n_q_heads, a.head_dim), (a.n_kv_heads, a.head_dim)
        if found != expected:
            raise CaptureError(
                f"layer {layer} of this {a.family} model has {found[0][0]} query heads of {found[0][1]} dimensions "
                f"and {found[1][0]} key heads of {found[1][1]}; its configuration says {expected[0][0]} and "
                f"{expected[1][0]} of {a.head_dim}"
            )


def _is_self_attention(module: Any, query: Any, key: Any) -> bool:
    """Whether queries and keys come from the same tokens (run without a cache, so they are equally many)."""
    crossing = getattr(module, "is_cross_attention", False) or "CrossAttention" in type(module).__name__
    return (
        isinstance(getattr(module, "layer_idx", None), int)
        and not crossing
        and query.shape[2] == key.shape[2]
    )


def _not_through_the_interface(architecture: Architecture, found: int) -> str:
    return (
        f"the {architecture.family} family cannot be captured: {found} of its "
        f"{len(architecture.attention_layers)} attention layers went through transformers' attention interface, "
        "where queries and keys are read after rotation. Use a family that does (llama, qwen, gpt_neox, olmo, "
        "gemma, mistral, phi3, smollm3 and most newer ones)"
    )
