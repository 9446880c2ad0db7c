"""A model and tokens -> queries and keys of each layer, as the attention score sees them -> moments.

Every transformers model that dispatches its attention through `AttentionInterface` calls one function with the
queries and keys after rotary embedding and norms and before key heads are repeated. `capture` puts itself there for
the time of a `with` block, hands both to a consumer and lets the model's own attention answer. Nothing is kept and
nothing is changed at import. Knows nothing of text, tokenizers or files.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from qkscope.capture.architecture import Architecture, read_architecture
from qkscope.errors import CaptureError

if TYPE_CHECKING:
    pass

# (layer, q (batch, q_heads, tokens, dim), k (batch, kv_heads, tokens, dim)), on the model's device and in its dtype.
Consumer = Callable[[int, Any, Any], None]

# No name may contain "flash", "flex", "sdpa" or "eager": transformers reads meaning into those.
_serial = itertools.count()


@contextmanager
def capture(model: Any, consumer: Consumer) -> Iterator[Any]:
    """Hand every layer's queries and keys to `consumer` during each forward pass inside the block.

    Yields the backbone: calling it rather than `model` skips the language-model head. Cross-attention and the
    encoders of a multimodal model never enter. A pass must show each attention layer of the configuration exactly
    once, else `CaptureError`. On exit, also after an exception, the model is as it was.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    backbone = find_backbone(model)
    seam = _Seam(backbone, consumer)
    name = f"qkscope_capture_{next(_serial)}"
    before = [(config, config._attn_implementation) for config in _configs(backbone)]
    hooks = [
        backbone.register_forward_pre_hook(lambda *_: seam.begin()),
        backbone.register_forward_hook(lambda *_: seam.end()),
    ]
    try:
        AttentionInterface.register(name, seam.attend)
        # Without a mask function of the same name the mask silently becomes None; the model's own is right.
        mask = AttentionMaskInterface._global_mapping.get(seam.own)
        if mask is not None:
            AttentionMaskInterface.register(name, mask)
        backbone.set_attn_implementation(name)
        if backbone.config._attn_implementation != name:
            raise CaptureError(_not_through_the_interface(seam.architecture, 0))
        yield backbone
    finally:
        for config, own in before:
            config._attn_implementation_internal = own
        AttentionInterface._global_mapping.pop(name, None)
        AttentionMaskInterface._global_mapping.pop(name, None)
        for hook in hooks:
            hook.remove()


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
    """Stands in the attention function's place and counts what passes."""

    def __init__(self, backbone: Any, consumer: Consumer) -> None:
        self.architecture = read_architecture(backbone.config)
        self.own: str | None = backbone.config._attn_implementation
        self._consumer = consumer
        self._inside = {id(module) for module in backbone.modules()}
        self._seen: list[int] = []

    def attend(self, module: Any, query: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        """The registered attention function: observe, then answer as the model's own attention would."""
        if id(module) in self._inside and _is_self_attention(module, query, key):
            self._check_shapes(module.layer_idx, query, key)
            self._seen.append(module.layer_idx)
            self._consumer(module.layer_idx, query.detach(), key.detach())
        with self._own_name(module):
            return _own_attention(module, self.own)(module, query, key, *args, **kwargs)

    @contextmanager
    def _own_name(self, module: Any) -> Iterator[None]:
        """Flash attention asks the configuration which of its versions it is."""
        config = module.config
        name = config._attn_implementation
        config._attn_implementation_internal = self.own
        try:
            yield
        finally:
            config._attn_implementation_internal = name

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


def _own_attention(module: Any, name: str | None) -> Callable[..., Any]:
    """The function the model itself would call: of its own file first, for some override the shared ones there."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    homes = [
        vars(sys.modules[cls.__module__]) for cls in type(module).__mro__ if cls.__module__ in sys.modules
    ]
    home = next((names for names in homes if "eager_attention_forward" in names), {})
    function = home.get("ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS).get(name) or home.get(
        "eager_attention_forward"
    )
    if function is None:
        raise CaptureError(
            f"{type(module).__name__} runs the attention {name!r}, for which no function is registered and its "
            "file defines none; load the model with attn_implementation='sdpa' or 'eager'"
        )
    return function  # type: ignore[no-any-return]


def _configs(backbone: Any) -> list[Any]:
    """Every configuration that holds an attention implementation of the backbone, each once."""
    queue = [m.config for m in backbone.modules() if hasattr(m, "set_attn_implementation")]
    found: dict[int, Any] = {}
    while queue:
        config = queue.pop()
        if id(config) not in found:
            found[id(config)] = config
            parts = (getattr(config, name, None) for name in getattr(config, "sub_configs", {}))
            queue.extend(part for part in parts if part is not None)
    return list(found.values())


def _not_through_the_interface(architecture: Architecture, found: int) -> str:
    return (
        f"the {architecture.family} family cannot be captured: {found} of its "
        f"{len(architecture.attention_layers)} attention layers went through transformers' attention interface, "
        "where queries and keys are read after rotation. Use a family that does (llama, qwen, gpt_neox, olmo, "
        "gemma, mistral, phi3, smollm3 and most newer ones)"
    )
