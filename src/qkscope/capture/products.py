"""The second seam: the score product itself, in families that compute their attention outside the interface.

For the time of a `with` block torch shows every function called inside a numbered layer. The score product is the one
whose result is (tokens, tokens) and goes into a softmax; a fused attention has it inside. Either there is exactly one a
layer, or the family is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from qkscope.capture.architecture import layer_numbers
from qkscope.capture.sight import Change, Observer, Sight
from qkscope.errors import CaptureError


@contextmanager
def score_products(backbone: Any, observe: Observer, change: Change | None = None) -> Iterator[None]:
    """Show the operands of every score product inside a layer of the backbone, or change them."""
    from torch.overrides import TorchFunctionMode

    watch = _Watch(observe, change)

    class Watching(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if watch.inside:
                args, kwargs = watch.changed(function, args, kwargs)
            result = function(*args, **kwargs)
            if watch.inside:
                watch.saw(function, args, kwargs, result)
            return result

    hooks = [backbone.register_forward_pre_hook(watch.begin, with_kwargs=True)]
    numbers = layer_numbers(backbone)
    for module in backbone.modules():
        if id(module) in numbers:
            layer = numbers[id(module)]
            hooks.append(module.register_forward_pre_hook(lambda m, _, layer=layer: watch.enter(layer, m)))
            hooks.append(module.register_forward_hook(lambda *_: watch.leave()))
    try:
        with Watching():
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _Watch:
    """Which layer is running, and the products in it that no softmax has followed yet."""

    def __init__(self, observe: Observer, change: Change | None) -> None:
        self.inside: list[tuple[int, Any]] = []
        self._observe, self._change = observe, change
        self._scored = False
        self._pending: list[tuple[Any, Any]] = []
        self._batch = self._tokens = 0
        self._products, self._softmax, self._fused = _functions()

    def begin(self, _module: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        self._batch, self._tokens = ids.shape[:2]
        self.inside, self._pending = [], []

    def enter(self, layer: int, module: Any) -> None:
        if not self.inside:
            self._pending, self._scored = [], False
        self.inside.append((layer, module))

    def leave(self) -> None:
        self.inside.pop()

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
        found = self._change(Sight(layer, q.detach(), k.detach(), None, None, module))
        if found is None:
            return args, kwargs
        q, k = (x.flatten(0, 1) if flat else x for x in found)
        if fused:
            return (q, k, *args[2:]), {**kwargs, "scale": query.shape[-1] ** -0.5 if scale is None else scale}
        new = {id(query): q, id(second): k.transpose(-1, -2)}
        return (
            tuple(new.get(id(each), each) for each in args),
            {name: new.get(id(each), each) for name, each in kwargs.items()},
        )

    def saw(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        if function in self._fused:
            query, key = args[0], args[1]
            scale = kwargs.get("scale")
            self._show(
                query,
                key,
                query.shape[-1] ** -0.5 if scale is None else scale,
                values=args[2].detach(),
                output=result.detach().transpose(1, 2),
            )
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
        self._observe(Sight(layer, query.detach(), key.detach(), scale, None, module, **seen))


def _functions() -> tuple[set[Callable[..., Any]], set[Callable[..., Any]], set[Callable[..., Any]]]:
    """(products, softmax, fused attention): all the ways to call them."""
    import torch
    from torch.nn import functional

    tensor = torch.Tensor
    products = {
        *(torch.matmul, torch.bmm, torch.baddbmm),
        *(tensor.matmul, tensor.__matmul__, tensor.bmm, tensor.baddbmm),
    }
    softmax = {functional.softmax, torch.softmax, tensor.softmax}
    return products, softmax, {functional.scaled_dot_product_attention}


def _operands(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The two factors of a product: the last two positional arguments, or those named."""
    named = [kwargs[name] for name in ("batch1", "batch2", "mat2", "other") if name in kwargs]
    first, second = [*(a for a in args if hasattr(a, "shape")), *named][-2:]
    return first, second
