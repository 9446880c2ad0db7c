"""The calls of a model's rotary functions while it runs: what went in, what came out, and with which arguments.

A modelling file of transformers rotates queries and keys in a function of its own (`apply_rotary_pos_emb` and its
kin). For the time of a `with` block each of them is watched in the namespace that the attention module's code looks it
up in. What a call means is found out elsewhere (`capture.rotation`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

_ROTARY = re.compile(r"(^|_)apply_rot")


@dataclass(frozen=True)
class Call:
    """One call: the vectors that went in, those that came out (in the same order), and how to do it again.

    `again(vectors, only)` calls the function with other vectors in the place of each of its own; `only` cuts what
    belongs to a position down to the first few.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Any, ...]

    @property
    def inputs(self) -> list[Any]:
        """The vectors that went in: as many of the leading arguments as came out."""
        given = [each for each in (*self.args, *self.kwargs.values()) if _is_vectors(each)]
        return given[: len(self.outputs)]

    @property
    def settings(self) -> tuple[Any, ...]:
        """Everything but the vectors: tables of cosines and sines, or of complex numbers, and switches."""
        inputs = {id(each) for each in self.inputs}
        return tuple(each for each in (*self.args, *self.kwargs.values()) if id(each) not in inputs)

    def again(self, vectors: Any, tokens: int, only: int | None = None) -> Any:
        """What the function makes of `vectors`, shaped like its own but for the number of heads."""
        inputs = {id(each) for each in self.inputs}

        def change(argument: Any) -> Any:
            if id(argument) in inputs:
                return vectors
            return argument if only is None else _first(argument, tokens, only)

        found = self.function(
            *(change(each) for each in self.args), **{k: change(v) for k, v in self.kwargs.items()}
        )
        return found[0] if isinstance(found, tuple) else found


class RotaryCalls:
    """The calls since they were last taken. Of a function that calls another, only the outer one counts."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._inside = False

    def take(self) -> list[Call]:
        calls, self._calls = self._calls, []
        return calls

    @contextmanager
    def watching(self, backbone: Any) -> Iterator[None]:
        """Watch the rotary functions of the backbone's attention modules; afterwards all is as it was."""
        watched = [
            (names, name, function)
            for names in _namespaces(backbone)
            for name, function in names.items()
            if isinstance(function, FunctionType) and _ROTARY.search(name)
        ]
        for names, name, function in watched:
            names[name] = self._watched(function)
        try:
            yield
        finally:
            for names, name, function in watched:
                names[name] = function

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watch(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside = True
            try:
                found = function(*args, **kwargs)
            finally:
                self._inside = False
            outputs = found if isinstance(found, tuple) else (found,)
            self._calls.append(Call(function, args, kwargs, outputs))
            return found

        return watch


def _namespaces(backbone: Any) -> list[dict[str, Any]]:
    """Of the files that define the modules of a layer, each once."""
    files = {
        cls.__module__
        for module in backbone.modules()
        if hasattr(module, "layer_idx")
        for cls in type(module).__mro__
    }
    return [vars(sys.modules[name]) for name in sorted(files) if name in sys.modules]


def _is_vectors(argument: Any) -> bool:
    """Queries or keys: real tensors (documents, heads, tokens, dim) or (documents, tokens, heads, dim)."""
    return getattr(argument, "ndim", 0) == 4 and argument.is_floating_point()


def _first(argument: Any, tokens: int, only: int) -> Any:
    """A table cut to its first positions; whatever else comes, as it is."""
    shape = getattr(argument, "shape", ())
    axes = [axis for axis in (len(shape) - 2, len(shape) - 1, 0) if axis >= 0 and shape[axis] == tokens]
    return argument.narrow(axes[0], 0, only) if axes and tokens > only else argument
