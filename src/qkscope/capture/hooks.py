"""Queries and keys of each layer, as the attention score sees them, while a model runs.

`capture` hooks into the place where the model computes its attention, for the duration of a `with` block: the attention
function in families that use transformers' interface, the score product in the others. Nothing is stored, and nothing
changes at import.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from qkscope.capture.architecture import Architecture, read_architecture
from qkscope.capture.layer_calls import LayerCall, Observer, attention_interface, score_products
from qkscope.errors import CaptureError

# (layer, q (batch, q_heads, tokens, dim), k (batch, kv_heads, tokens, dim)), on the model's device and in its dtype.
Consumer = Callable[[int, Any, Any], None]
HOOKS = {"interface": attention_interface, "products": score_products}


@contextmanager
def capture(
    model: Any,
    consumer: Consumer,
    layers: Collection[int] | None = None,
    through: str | None = None,
    observe: Observer | None = None,
) -> Iterator[Any]:
    """Pass the queries and keys of `layers` (default: all with attention) to `consumer` in each forward pass.

    Yields the backbone: calling it rather than `model` skips the language-model head. Cross-attention and the
    encoders of a multimodal model never enter. A pass must show each of the layers exactly once, else
    `CaptureError`. On exit, also after an exception, the model is as it was. `through` names the hook
    ("interface" or "products") where it is known already; otherwise a pass over two tokens finds it. `observe` is
    shown all that the hook saw of a layer, before `consumer`.
    """
    backbone = find_backbone(model)
    architecture = read_architecture(backbone.config)
    layers = architecture.attention_layers if layers is None else layers
    chosen = _Layers(architecture, sorted(layers), consumer, observe)
    show_layers = HOOKS[through or find_hook(backbone)]
    with (
        backbone.register_forward_pre_hook(lambda *_: chosen.begin()),
        backbone.register_forward_hook(lambda *_: chosen.end()),
        show_layers(backbone, chosen.observe),
    ):
        yield backbone


def find_backbone(model: Any) -> Any:
    """The text decoder inside a transformers model: everything but the language-model head."""
    if hasattr(model, "stands_for_backbone"):
        return model
    if not hasattr(model, "get_decoder") or not hasattr(model, "set_attn_implementation"):
        raise CaptureError(
            f"expected a transformers model (such as AutoModelForCausalLM loads), found {type(model).__name__}"
        )
    if getattr(model.config, "is_encoder_decoder", False):
        raise CaptureError(
            f"{model.config.model_type} is an encoder-decoder model; only causal language models can be measured"
        )
    for name, adapter in dict(getattr(model, "peft_config", None) or {}).items():
        # LoRA and the like change layers and are seen there; a tuned prompt is put before the text.
        if getattr(adapter, "is_prompt_learning", False):
            raise CaptureError(
                f"the adapter {name!r} adds virtual tokens before every text, which shifts positions: measure the "
                "model without it (model.get_base_model()), or use an adapter that changes weights, such as LoRA"
            )
    decoder = model.get_decoder()
    # Some models call their language-model head the decoder.
    backbone = decoder if hasattr(decoder, "config") else model.base_model
    if not hasattr(backbone.get_input_embeddings(), "weight"):
        raise CaptureError(
            f"this {backbone.config.model_type} model does not take text input: only language models can be measured"
        )
    return backbone


def input_device(backbone: Any) -> Any:
    """The device for input tokens: that of the embeddings, or where they are loaded from disk or main memory."""
    embeddings = backbone.get_input_embeddings()
    device = embeddings.weight.device
    return embeddings._hf_hook.execution_device if device.type == "meta" else device


def find_hook(backbone: Any) -> str:
    """Where a pass over two tokens shows an attention layer: "interface" or "products"."""
    import torch

    ids = torch.tensor([[1, 2]], device=input_device(backbone))
    seen: list[LayerCall] = []
    with torch.no_grad(), attention_interface(backbone, seen.append):
        backbone(input_ids=ids, use_cache=False)
    return "interface" if seen else "products"


@dataclass
class _Layers:
    """Passes on the calls that a hook sees; `layers` must be called exactly once per pass."""

    architecture: Architecture
    layers: list[int]
    consumer: Consumer
    observer: Observer | None
    seen: list[int] = field(default_factory=list)
    last: LayerCall | None = None

    def begin(self) -> None:
        self.seen, self.last = [], None

    def observe(self, call: LayerCall) -> None:
        if call.layer not in self.layers or call.q.shape[2] != call.k.shape[2]:
            return
        if self.last is not None and _pointers(call) == _pointers(self.last):
            return  # some layers weigh two sets of values with the same queries and keys
        self.last = replace(call, scores=None, values=None, output=None, weights=None)
        self.seen.append(call.layer)
        if self.observer is not None:
            self.observer(call)
        self.consumer(call.layer, call.q, _own_keys(self.architecture, call))

    def end(self) -> None:
        """After a pass: each layer exactly once."""
        self.last = None
        if sorted(self.seen) == self.layers:
            return
        family = self.architecture.family
        if twice := sorted({layer for layer in self.seen if self.seen.count(layer) > 1}):
            raise CaptureError(
                f"this {family} model ran layers {twice} more than once in one pass, so their tokens cannot be counted "
                "exactly once"
            )
        raise CaptureError(
            f"the {family} family cannot be captured: only {len(self.seen)} of its {len(self.layers)} attention "
            "layers have one query and one key per token in transformers' attention interface or in a product that "
            "goes into a softmax"
        )


def _pointers(call: LayerCall) -> tuple[int, int, int]:
    return call.layer, call.q.data_ptr(), call.k.data_ptr()


def _own_keys(architecture: Architecture, call: LayerCall) -> Any:
    """The layer's key heads without repeats; an error if their shape is not the configuration's."""
    import torch

    layer, q, k = call.layer, call.q, call.k
    expected = architecture.q_heads[layer], architecture.kv_heads[layer], architecture.head_dims[layer]
    if k.shape[1] == q.shape[1] != expected[1] and k.shape[1] % expected[1] == 0:
        groups = k.unflatten(1, (expected[1], -1))
        if torch.equal(groups, groups[:, :, :1].expand_as(groups)):  # the model repeated its key heads
            k = groups[:, :, 0]
    found = q.shape[1], k.shape[1], q.shape[3]
    if found != expected or k.shape[3] != found[2]:
        raise CaptureError(
            f"layer {layer} of this {architecture.family} model has {found[0]} query heads of {found[2]} dimensions "
            f"and {found[1]} key heads of {k.shape[3]}; its configuration says {expected[0]} and {expected[1]} of "
            f"{expected[2]}"
        )
    return k


@contextmanager
def rope_in_layers(model: Any, config: Any, layers: Collection[int]) -> Iterator[None]:
    """While the block runs, `layers` rotate as `config` says and the others as before.

    Most families compute cosine and sine once a pass, in one module, and give them to every layer. A hook before
    `layers` replaces them by those of another module of the same class, built from `config`.
    """
    backbone = find_backbone(model)
    rotary, blocks = _rotary_and_layers(backbone, config, layers)
    other = type(rotary)(config=config.get_text_config()).to(next(backbone.parameters()).device)
    # The pass's own (cos, sin) and the other ones, computed once a pass.
    exchanged: list[tuple[Any, Any]] = []

    def exchange(module: Any, args: Any, kwargs: Any) -> Any:
        own, positions = kwargs.get("position_embeddings"), kwargs.get("position_ids")
        if own is None or positions is None:
            raise _refused(backbone, "does not hand cosine, sine and positions to its layers by name")
        if not exchanged or exchanged[0][0] is not own:
            hidden = kwargs.get("hidden_states", args[0] if args else None)
            exchanged[:] = [(own, other(hidden, positions))]
        return args, {**kwargs, "position_embeddings": exchanged[0][1]}

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(blocks[layer].register_forward_pre_hook(exchange, with_kwargs=True))
        yield


def _rotary_and_layers(backbone: Any, config: Any, layers: Collection[int]) -> tuple[Any, Any]:
    """The module that computes cosine and sine, and the list of layers; an error where there is no such module."""
    rotary, blocks = getattr(backbone, "rotary_emb", None), getattr(backbone, "layers", None)
    if rotary is None or blocks is None or not hasattr(rotary, "inv_freq"):
        raise _refused(backbone, "has no single rotary module that serves all layers")
    if getattr(config.get_text_config(), "qk_rope_head_dim", None):
        raise _refused(backbone, "also scales its scores by its RoPE settings (latent attention)")
    architecture = read_architecture(backbone.config)
    if all(architecture.rope[layer] is False for layer in layers):
        why = "do not rotate (NoPE), so RoPE settings change nothing there"
        raise CaptureError(f"layers {list(layers)} {why}")
    return rotary, blocks


def _refused(backbone: Any, why: str) -> CaptureError:
    return CaptureError(
        f"this {backbone.config.model_type} model {why}, so settings cannot be given to some layers only: leave "
        "the layers out to change all of them"
    )
