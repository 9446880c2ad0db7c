"""A model and tokens -> queries and keys of each layer, as the attention score sees them -> moments.

Every transformers model that dispatches its attention through `AttentionInterface` calls one function with the
queries and keys after rotary embedding and norms and before key heads are repeated. `capture` puts itself there for
the time of a `with` block, hands both to a consumer and lets the model's own attention answer. Nothing is kept and
nothing is changed at import. Knows nothing of text, tokenizers or files.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from qkscope.capture.architecture import Architecture, read_architecture
from qkscope.capture.consumers import Batch, BatchConsumer, MomentSums, batches
from qkscope.capture.memory import available_bytes, check_memory, moments_bytes, scores_bytes
from qkscope.errors import CaptureError
from qkscope.heads import HeadIndex
from qkscope.moments import Unit

if TYPE_CHECKING:
    from qkscope.corpus import Document

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


def measure(
    model: Any,
    documents: Sequence[Document],
    heads: HeadIndex,
    windows: Sequence[int],
    *,
    shifts: int = 19,
    seed: int = 0,
    batch_tokens: int = 4096,
    include_sliding: bool = False,
    on_tokens: Callable[[int], None] | None = None,
    save: BatchConsumer | None = None,
) -> Unit:
    """The moments of `heads` over each document's first max(windows) tokens, one ring per window.

    `on_tokens` hears how many real tokens each pass added; `save` sees the same queries and keys as the moments.
    """
    import torch

    edges = tuple(sorted(windows))
    backbone = find_backbone(model)
    architecture = read_architecture(backbone.config)
    passes = batches(documents, edges[-1], batch_tokens)
    _check_request(architecture, heads, include_sliding)
    _check_tokens(backbone, passes)
    _check_room(backbone, architecture, heads, edges, shifts, passes)
    sums = MomentSums(heads, edges, shifts, seed, architecture)
    consumers: list[BatchConsumer] = [sums] if save is None else [sums, save]

    def consume(layer: int, q: Any, k: Any) -> None:
        for consumer in consumers:
            consumer(layer, q, k)

    with capture(model, consume), _evaluating(model), torch.no_grad():
        for batch in passes:
            for consumer in consumers:
                consumer.begin(batch)
            _run(backbone, architecture, batch)
            if on_tokens is not None:
                on_tokens(batch.tokens)
    lengths = [n for batch in passes for n in batch.lengths]
    q, k = sums.moments()
    filled = tuple(sum(n >= edge for n in lengths) for edge in edges)
    return Unit(heads, edges, shifts, q, k, documents=len(lengths), tokens=sum(lengths), filled=filled)


def _run(backbone: Any, architecture: Architecture, batch: Batch) -> None:
    """One pass through the backbone, without cache and without the language-model head."""
    import torch

    embeddings = backbone.get_input_embeddings().weight
    ids = torch.from_numpy(batch.ids()).to(embeddings.device)
    try:
        backbone(input_ids=ids, use_cache=False)
    except IndexError as error:
        raise CaptureError(
            f"this {architecture.family} model cannot take {max(batch.lengths)} tokens at once (its configuration "
            f"says {architecture.max_positions}): choose a shorter window"
        ) from error
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "alloc" not in str(error):
            raise
        raise CaptureError(
            f"no memory left in a pass over {len(batch.lengths)} x {max(batch.lengths)} tokens on "
            f"{embeddings.device}: choose smaller batches, a shorter window or another device"
        ) from error


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Without dropout; afterwards each module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _check_request(architecture: Architecture, heads: HeadIndex, include_sliding: bool) -> None:
    if not len(heads):
        raise CaptureError("no heads were asked for: give at least one (layer, head)")
    allowed = architecture.measured_layers(include_sliding)
    outside = sorted({int(layer) for layer in heads.layer} - set(allowed))
    if outside:
        raise CaptureError(
            f"layers {outside} were asked for, but the measurable layers of this {architecture.family} model are "
            f"{allowed}" + ("" if include_sliding else " (include_sliding adds sliding-window layers)")
        )
    if int(heads.head.max()) >= architecture.n_q_heads:
        raise CaptureError(
            f"head {int(heads.head.max())} was asked for, but this {architecture.family} model has query heads 0 "
            f"to {architecture.n_q_heads - 1}"
        )


def _check_tokens(backbone: Any, passes: list[Batch]) -> None:
    size = backbone.get_input_embeddings().weight.shape[0]
    for document in (d for batch in passes for d in batch.documents):
        low, high = int(document.tokens.min()), int(document.tokens.max())
        if low < 0 or high >= size:
            raise CaptureError(
                f"{document.name} holds the token {low if low < 0 else high}, but the model knows tokens 0 to "
                f"{size - 1}: this tokenizer belongs to another model"
            )


def _check_room(
    backbone: Any,
    architecture: Architecture,
    heads: HeadIndex,
    windows: tuple[int, ...],
    shifts: int,
    passes: list[Batch],
) -> None:
    """Before the start: are the moments (sums and their result) and eager attention's scores going to fit?"""
    vectors = len(heads) + len(heads.keys)
    needed = 2 * moments_bytes(vectors, architecture.head_dim, len(windows), shifts)
    check_memory(
        needed, available_bytes(), f"measuring {len(heads)} heads of {architecture.head_dim} dimensions"
    )
    weight = backbone.get_input_embeddings().weight
    if passes and backbone.config._attn_implementation == "eager":
        shape = len(passes[0].lengths), max(passes[0].lengths)
        scores = scores_bytes(architecture, *shape, weight.element_size())
        what = f"the eager attention of this {architecture.family} model over {shape[0]} x {shape[1]} tokens"
        check_memory(scores, _device_bytes(weight.device), what)


def _device_bytes(device: Any) -> int | None:
    """Free memory where the model lies."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_bytes() if device.type == "cpu" else None
