"""The two hooks that show a layer's queries and keys as the attention score sees them.

`attention_interface` wraps the attention functions that models get from transformers' `AttentionInterface`: they are
called with queries and keys after rotary embedding and norms, before key heads are repeated. The attention's name stays
the model's own, because some models test it.

`score_products` is for families that compute attention outside the interface. While it is active, torch shows every
function called inside a numbered layer. The score product is the one whose result is (tokens, tokens) and goes into a
softmax; a fused attention has it inside. Either a layer has exactly one, or the family is refused.

Both are context managers, and undo themselves when the block ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from qkscope.capture.architecture import layer_numbers
from qkscope.errors import CaptureError


@dataclass(frozen=True)
class LayerCall:
    """Queries and keys of one layer, as the attention score sees them, on the model's device and in its dtype.

    q       (batch, q_heads, tokens, dim)
    k       (batch, key heads, tokens, dim): repeated or not, as the model passes them on
    scale   what the product q.k is multiplied with; None where the hook cannot see it
    window  how many tokens the layer sees, where it says so
    module  the attention module
    scores  what goes into the softmax, where the hook sees it
    softcap, sinks  of the softmax, where the layer says so: see `qkscope.sums.base.Softmax`
    values  (batch, value heads, tokens, dim) and `output` (batch, tokens, q_heads, dim), their weighted means; or
    weights (batch * q_heads, tokens, tokens), what comes out of the softmax; None where the hook cannot see them
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


Observer = Callable[[LayerCall], None]
Change = Callable[[LayerCall], tuple[Any, Any] | None]
"""Other queries and keys of a layer, which may have more dimensions; None to leave them as they are."""


@contextmanager
def attention_interface(backbone: Any, observe: Observer, change: Change | None = None) -> Iterator[None]:
    """Show every call of an attention function by a layer of the backbone, or change what it is given."""
    from transformers import AttentionInterface

    own = AttentionInterface.get_interface
    layers = layer_numbers(backbone)

    def around(attention: Callable[..., Any]) -> Callable[..., Any]:
        def attend(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            name = type(module).__name__
            crossed = getattr(module, "is_cross_attention", False) or "CrossAttention" in name
            if id(module) not in layers or crossed or query.dim() != 4:
                return attention(module, query, key, value, *args, **kwargs)
            scale = kwargs.get("scaling")
            call = LayerCall(
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
            if change is not None and (changed := change(call)) is not None:
                # Otherwise the scale of some functions follows from the number of dimensions.
                (query, key), kwargs["scaling"] = changed, call.scale
            result = attention(module, query, key, value, *args, **kwargs)
            observe(replace(call, output=result[0].detach()))
            return result

        return attend

    def get_interface(interface: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return around(own(interface, name, default))

    AttentionInterface.get_interface = get_interface
    try:
        yield
    finally:
        AttentionInterface.get_interface = own


@contextmanager
def score_products(backbone: Any, observe: Observer, change: Change | None = None) -> Iterator[None]:
    """Show the operands of every score product inside a layer of the backbone, or change them."""
    from torch.overrides import TorchFunctionMode

    watch = _Watch(observe, change)

    class ScoreProductMode(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if watch.inside:
                args, kwargs = watch.changed(function, args, kwargs)
            result = function(*args, **kwargs)
            if watch.inside:
                watch.saw(function, args, kwargs, result)
            return result

    numbers = layer_numbers(backbone)
    with ExitStack() as hooks:
        hooks.enter_context(backbone.register_forward_pre_hook(watch.begin, with_kwargs=True))
        for module in backbone.modules():
            if (layer := numbers.get(id(module))) is not None:
                enter = partial(watch.enter, layer)
                hooks.enter_context(module.register_forward_pre_hook(enter))
                hooks.enter_context(module.register_forward_hook(lambda *_: watch.leave()))
        hooks.enter_context(ScoreProductMode())
        yield


class _Watch:
    """Which layer is running, and the products in it that no softmax has followed yet."""

    def __init__(self, observe: Observer, change: Change | None) -> None:
        import torch
        from torch.nn import functional

        self.inside: list[tuple[int, Any]] = []
        self._observe, self._change = observe, change
        self._scored = False
        self._pending: list[tuple[Any, Any]] = []
        self._batch = self._tokens = 0
        tensor = torch.Tensor
        self._products = {torch.matmul, torch.bmm, torch.baddbmm}
        self._products |= {tensor.matmul, tensor.__matmul__, tensor.bmm, tensor.baddbmm}
        self._softmax = {functional.softmax, torch.softmax, tensor.softmax}
        self._fused = {functional.scaled_dot_product_attention}

    def begin(self, _module: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        self._batch, self._tokens = ids.shape[:2]
        self.inside, self._pending = [], []

    def enter(self, layer: int, module: Any, _args: Any) -> None:
        if not self.inside:
            self._pending, self._scored = [], False
        self.inside.append((layer, module))

    def leave(self) -> None:
        self.inside.pop()  # a hook that returned it would replace the module's output

    def changed(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of a score product with other queries and keys: the first such product of a layer call."""
        fused = function in self._fused
        if self._change is None or self._scored or not (fused or function in self._products):
            return args, kwargs
        query, second = (args[0], args[1]) if fused else _operands(args, kwargs)
        key = second if fused else second.transpose(-1, -2)
        if (query.shape[-2], key.shape[-2]) != (self._tokens, self._tokens):
            return args, kwargs
        self._scored = True
        scale, flat = kwargs.get("scale"), query.dim() == 3
        q, k = (x.unflatten(0, (self._batch, -1)) if flat else x for x in (query, key))
        layer, module = self.inside[-1]
        found = self._change(LayerCall(layer, q.detach(), k.detach(), None, None, module))
        if found is None:
            return args, kwargs
        q, k = (x.flatten(0, 1) if flat else x for x in found)
        if fused:
            return (q, k, *args[2:]), {**kwargs, "scale": query.shape[-1] ** -0.5 if scale is None else scale}
        new = {id(query): q, id(second): k.transpose(-1, -2)}
        kwargs = {name: new.get(id(each), each) for name, each in kwargs.items()}
        return tuple(new.get(id(each), each) for each in args), kwargs

    def saw(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        if function in self._fused:
            query, key, value = args[:3]
            scale = kwargs.get("scale")
            scale = query.shape[-1] ** -0.5 if scale is None else scale
            self._show(query, key, scale, values=value.detach(), output=result.detach().transpose(1, 2))
        elif function in self._products and result.shape[-2:] == (self._tokens, self._tokens):
            self._pending.append(_operands(args, kwargs))
        elif function in self._softmax and self._pending:
            if len(self._pending) > 1:
                raise CaptureError(
                    f"the scores of layer {self.inside[-1][0]} ({type(self.inside[-1][1]).__name__}) are a sum of "
                    f"{len(self._pending)} products, not the product of one query and one key"
                )
            ((query, key),) = self._pending
            self._pending = []
            self._show(query, key.transpose(-1, -2), None, scores=args[0], weights=result.detach())

    def _show(self, query: Any, key: Any, scale: float | None, **seen: Any) -> None:
        layer, module = self.inside[-1]
        if query.dim() == 3:
            query, key = (x.unflatten(0, (self._batch, -1)) for x in (query, key))
        self._observe(LayerCall(layer, query.detach(), key.detach(), scale, None, module, **seen))


def _operands(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The two factors of a product: the last two positional arguments, or those named."""
    named = [kwargs[name] for name in ("batch1", "batch2", "mat2", "other") if name in kwargs]
    first, second = [*(a for a in args if hasattr(a, "shape")), *named][-2:]
    return first, second
