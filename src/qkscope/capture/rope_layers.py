"""Other RoPE settings in some layers only, for the time of a `with` block.

Most families compute cosine and sine once a pass, in one module, and hand them to every layer. A hook before some of
the layers gives them those of another module of the same class, built from another configuration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from qkscope.capture.architecture import read_architecture
from qkscope.capture.hooks import find_backbone
from qkscope.errors import CaptureError


@contextmanager
def rope_in_layers(model: Any, config: Any, layers: Collection[int]) -> Iterator[None]:
    """While the block runs, `layers` rotate as `config` says and the others as before."""
    backbone = find_backbone(model)
    rotary, blocks = _parts(backbone, config, layers)
    other = type(rotary)(config=config.get_text_config()).to(next(backbone.parameters()).device)
    made: list[tuple[Any, Any]] = []  # the pass's own (cos, sin) and the other ones, made once a pass

    def exchange(module: Any, args: Any, kwargs: Any) -> Any:
        own, positions = kwargs.get("position_embeddings"), kwargs.get("position_ids")
        if own is None or positions is None:
            raise _refused(backbone, "does not hand cosine, sine and positions to its layers by name")
        if not made or made[0][0] is not own:
            hidden = kwargs.get("hidden_states", args[0] if args else None)
            made[:] = [(own, other(hidden, positions))]
        return args, {**kwargs, "position_embeddings": made[0][1]}

    hooks = [blocks[layer].register_forward_pre_hook(exchange, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _parts(backbone: Any, config: Any, layers: Collection[int]) -> tuple[Any, Any]:
    """The module that makes cosine and sine, and the list of layers; refused where there are none such."""
    rotary, blocks = getattr(backbone, "rotary_emb", None), getattr(backbone, "layers", None)
    if rotary is None or blocks is None or not hasattr(rotary, "inv_freq"):
        raise _refused(backbone, "has no single rotary module that serves all layers")
    if getattr(config.get_text_config(), "qk_rope_head_dim", None):
        raise _refused(backbone, "also scales its scores by its RoPE settings (latent attention)")
    architecture = read_architecture(backbone.config)
    if outside := [layer for layer in layers if layer >= architecture.num_layers]:
        raise CaptureError(
            f"layers {outside} were requested, but this {architecture.family} model has layers 0 to "
            f"{architecture.num_layers - 1}"
        )
    if all(architecture.rope[layer] is False for layer in layers):
        raise CaptureError(
            f"layers {list(layers)} do not rotate (NoPE), so RoPE settings change nothing there"
        )
    return rotary, blocks


def _refused(backbone: Any, why: str) -> CaptureError:
    return CaptureError(
        f"this {backbone.config.model_type} model {why}, so settings cannot be given to some layers only: leave "
        "the layers out to change all of them"
    )
