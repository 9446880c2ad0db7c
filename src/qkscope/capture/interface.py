"""The first seam: the attention function that a model asks transformers' `AttentionInterface` for.

It is called with queries and keys after rotary embedding and norms and before key heads are repeated. For the time of a
`with` block every function that a model gets comes wrapped: it answers as it would have, and shows what it was given
and what it answers.
The attention's name stays the model's own, for some models test it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from qkscope.capture.architecture import layer_numbers
from qkscope.capture.sight import Change, Observer, Sight


@contextmanager
def attention_interface(backbone: Any, observe: Observer, change: Change | None = None) -> Iterator[None]:
    """Show every call of an attention function by a layer of the backbone, or change what it is given."""
    from transformers import AttentionInterface

    own = AttentionInterface.get_interface
    layers = layer_numbers(backbone)

    def around(attention: Callable[..., Any]) -> Callable[..., Any]:
        def attend(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            if id(module) not in layers or not _is_self_attention(module, query):
                return attention(module, query, key, value, *args, **kwargs)
            scale = kwargs.get("scaling")
            sight = Sight(
                layer=layers[id(module)],
                q=query.detach(),
                k=key.detach(),
                scale=float(query.shape[-1] ** -0.5 if scale is None else scale),
                window=kwargs.get("sliding_window"),
                module=module,
                softcap=kwargs.get("softcap"),
                sinks=kwargs.get("s_aux"),
                values=value.detach(),
            )
            if change is not None and (changed := change(sight)) is not None:
                # Otherwise the scale of some functions follows from the number of dimensions.
                (query, key), kwargs["scaling"] = changed, sight.scale
            result = attention(module, query, key, value, *args, **kwargs)
            observe(replace(sight, output=result[0].detach()))
            return result

        return attend

    def get_interface(interface: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return around(own(interface, name, default))

    AttentionInterface.get_interface = get_interface
    try:
        yield
    finally:
        AttentionInterface.get_interface = own


def _is_self_attention(module: Any, query: Any) -> bool:
    return query.dim() == 4 and not (
        getattr(module, "is_cross_attention", False) or "CrossAttention" in type(module).__name__
    )
