"""The rotation of each layer, determined by calling the model's own rotary function, and checked on captured vectors.

Calls of rotary functions are recorded during a pass. Each function is called again: on basis vectors, to see which
dimensions it rotates together; on one vector over all positions, for angles, which must be a frequency times the
position, and for the scale. Captured vectors, rotated back, must then be what went into the function. A layer that
calls no rotary function, and whose configuration says so, does not rotate. In all other cases the rotation is unknown,
with the reason; nothing is assumed about a family.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkscope.capture.architecture import Architecture
from qkscope.errors import CaptureError
from qkscope.sums import Unrotated
from qkscope.sums.rotation import Rotation, same_rotation

# Rotated back, captured vectors equal what was rotated within this part of the largest of them.
TOLERANCE = 1e-4
# Half-precision models round vectors and tables.
HALF_TOLERANCE = 2e-2
# An angle is a float32 product of position and frequency: this part of it is rounding.
ROUNDING = 1.2e-7
# Number of positions at which the structure is determined and vectors are checked.
PROBED, CHECKED = 8, 16
# A shorter document shows no angle beyond the first.
FEWEST_TOKENS = 3
# Kinds of rotation whose frequencies change with the length of a pass.
LENGTH_DEPENDENT = ("dynamic", "longrope")
# Names of rotary functions.
_ROTARY = re.compile(r"(^|_)apply_rot")


# Queries and keys before rotation; None where they do not rotate or that is not known.
Sources = tuple[Unrotated | None, Unrotated | None]


class UnknownRotationError(Exception):
    """Why a layer's rotation is not known."""


@dataclass(frozen=True)
class Call:
    """One call of a rotary function: its arguments, and the vectors that came out."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Any, ...]

    @property
    def inputs(self) -> list[Any]:
        """The vectors that went in: as many of the leading arguments as came out."""
        # Real tensors (documents, heads, tokens, dim) or (documents, tokens, heads, dim).
        everything = (*self.args, *self.kwargs.values())
        vectors = [x for x in everything if getattr(x, "ndim", 0) == 4 and x.is_floating_point()]
        return vectors[: len(self.outputs)]

    @property
    def settings(self) -> tuple[Any, ...]:
        """Everything but the vectors: tables of cosines and sines, or of complex numbers, and switches."""
        inputs = {id(each) for each in self.inputs}
        return tuple(each for each in (*self.args, *self.kwargs.values()) if id(each) not in inputs)


class RotaryCalls:
    """The calls of a model's rotary functions since they were last taken; of nested ones, only the outer one.

    A modelling file of transformers rotates queries and keys in a function of its own (`apply_rotary_pos_emb` and the
    like). While `watching`, each is wrapped in the namespace in which the attention module's code looks it up.
    """

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


@dataclass(frozen=True)
class _RotaryInput:
    """The vectors that the rotary call behind captured vectors x was given, and the first dimension of x it rotated."""

    call: Call
    vectors: Any
    first: int
    heads_first: bool

    def turn(self, vectors: NDArray[np.float64], tokens: int, only: int | None = None) -> NDArray[np.float64]:
        """What the function makes of other vectors (n, dim), each at every position: (n, tokens, dim).

        With `only`, at the first few positions: (n, only, dim). Arguments with an entry per position are cut to these.
        """
        import torch

        inputs = {id(each) for each in self.call.inputs}
        given = torch.as_tensor(vectors, dtype=torch.float32, device=self.vectors.device)
        given = given[None, :, None].expand(1, len(vectors), only or tokens, vectors.shape[1])
        given = (given if self.heads_first else given.transpose(1, 2)).contiguous()

        def change(argument: Any) -> Any:
            if id(argument) in inputs:
                return given
            return argument if only is None else _first(argument, tokens, only)

        args = [change(each) for each in self.call.args]
        try:
            image = self.call.function(*args, **{k: change(v) for k, v in self.call.kwargs.items()})
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise UnknownRotationError("its rotary function fails on test vectors") from error
        image = image[0] if isinstance(image, tuple) else image
        if image.shape[1:] != given.shape[1:]:
            raise UnknownRotationError("its rotary function changes the shape of its input")
        return np.asarray((image if self.heads_first else image.transpose(1, 2))[0].double().cpu())


class Rotations:
    """The rotation of each layer, the same in every pass, and each pass's vectors before it.

    found    by layer: the rotation, None where it is not known
    reasons  by layer: why it is not known
    """

    def __init__(self, architecture: Architecture) -> None:
        self._architecture = architecture
        self._orders: dict[tuple[int, str], NDArray[np.int64]] = {}
        self._fitted: dict[tuple[int, ...], tuple[Any, tuple[Rotation, NDArray[np.int64]]]] = {}
        self._longest = 0
        self.calls = RotaryCalls()
        self.found: dict[int, Rotation | None] = {}
        self.reasons: dict[int, str] = {}

    def before(self, layer: int, q: Any, k: Any) -> Sources:
        """Queries and keys of a layer before rotation; the first pass finds the rotation."""
        calls, first = self.calls.take(), layer not in self.found
        try:
            if first:
                self._longest = max(self._longest, q.shape[2])
                self.found[layer] = self._find(layer, calls, q, k)
            return self._sources(layer, calls, q, k)
        except UnknownRotationError as error:
            if first:
                self.found[layer], self.reasons[layer] = None, str(error)
                return None, None
            raise CaptureError(
                f"layer {layer} of this {self._architecture.family} model rotates a pass of {q.shape[2]} tokens "
                f"differently from one of {self._longest} ({error}): measure a single window, with documents that "
                "fill it"
            ) from error

    def _find(self, layer: int, calls: list[Call], q: Any, k: Any) -> Rotation:
        if not calls:
            if self._architecture.rope[layer] is not False:
                raise UnknownRotationError("no known rotary function was called")
            return Rotation.none(q.shape[3])
        a, b = (self._fit(layer, calls, kind, x) for kind, x in (("q", q), ("k", k)))
        if not same_rotation(a, b, q.shape[2]):
            raise UnknownRotationError("queries and keys are rotated differently")
        return a

    def _fit(self, layer: int, calls: list[Call], kind: str, x: Any) -> Rotation:
        """The rotation that made captured vectors x. Layers share tables, so each is fitted once."""
        given = _origin(calls, x)
        settings, dim = given.call.settings, given.vectors.shape[3]
        key = dim, *map(id, settings)
        if key not in self._fitted:
            # With the settings, so that no other table gets one of their ids.
            self._fitted[key] = settings, fit(given, x.shape[2])
        _, (inner, self._orders[layer, kind]) = self._fitted[key]
        if inner.dim == x.shape[3]:
            return inner
        return Rotation(x.shape[3], inner.pairs + given.first, inner.frequency, inner.scale)

    def _sources(self, layer: int, calls: list[Call], q: Any, k: Any) -> Sources:
        """Where q and k (documents, heads, tokens, dim) are before rotation, checked by rotating them back."""
        rotation = self.found[layer]
        if rotation is None or not len(rotation.pairs):
            return None, None
        found = []
        for kind, x in (("q", q), ("k", k)):
            given = _origin(calls, x)
            source = Unrotated(given.vectors, given.first + self._orders[layer, kind])
            _check_captured(rotation, source, x)
            found.append(source)
        return found[0], found[1]


def check_windows(config: Any, windows: Sequence[int]) -> None:
    """Refuse several windows where the rotation of a pass depends on its length: none can be cut out of another."""
    if why := why_not_together(config, windows):
        raise CaptureError(f"{why}: write a separate study for each window")


def why_not_together(config: Any, windows: Sequence[int]) -> str | None:
    """Why these windows cannot be measured in one pass through the model; None if they can."""
    found = depends_on_length(config, max(windows)) if len(windows) > 1 else None
    if found is None:
        return None
    kind, limit = found
    return (
        f"the rotation of this {config.model_type} model ({kind}) depends on the length of a pass beyond "
        f"{limit:,} tokens, so the windows {sorted(windows)} cannot be measured in one pass"
    )


def depends_on_length(config: Any, tokens: int) -> tuple[str, int] | None:
    """The rope type and the length from which on it depends on a pass's length, if `tokens` is beyond that."""
    config = getattr(config, "text_config", None) or config
    parameters = getattr(config, "rope_parameters", None) or {}
    for each in [parameters] if "rope_type" in parameters else parameters.values():
        kind = each.get("rope_type") if isinstance(each, dict) else None
        if kind in LENGTH_DEPENDENT:
            limit = each.get("original_max_position_embeddings") or config.max_position_embeddings
            if tokens > limit:
                return kind, limit
    return None


def fit(given: _RotaryInput, tokens: int) -> tuple[Rotation, NDArray[np.int64]]:
    """What a rotary function does, and which dimension of its output each dimension of its input becomes."""
    if tokens < FEWEST_TOKENS:
        raise UnknownRotationError(f"documents of {tokens} tokens are too short to determine it")
    pairs, order, scale = _structure(given, tokens)
    if not len(pairs):
        return Rotation.none(len(order)), order
    # Scale times cosine and sine of each pair's angle at every position (tokens, P), from one vector.
    firsts = np.zeros((1, len(order)))
    firsts[0, np.argsort(order)[pairs[:, 0]]] = 1.0
    image = given.turn(firsts, tokens)[0]
    cos, sin = image[:, pairs[:, 0]], image[:, pairs[:, 1]]
    tolerance = _tolerance(given.vectors)
    if np.abs(np.hypot(cos, sin) / scale - 1).max() > tolerance:
        raise UnknownRotationError("its rotary function is not a rotation")
    frequency = _frequency(np.arctan2(sin, cos), tolerance)
    turned = frequency < 0
    pairs[turned] = pairs[turned, ::-1]
    return Rotation(len(order), pairs, np.abs(frequency), scale), order


def _structure(given: _RotaryInput, tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64], float]:
    """(pairs (P, 2), order (dim,), scale): from what becomes of each basis vector at the first few positions."""
    dim = given.call.inputs[0].shape[3]
    # (position, output, input)
    images = given.turn(np.eye(dim), tokens, min(PROBED, tokens)).transpose(1, 2, 0)
    order = np.abs(images[0]).argmax(axis=0)
    still = np.zeros((dim, dim))
    still[order, np.arange(dim)] = images[0].max(axis=0)
    if len(set(order.tolist())) < dim or not np.allclose(images[0], still) or (still.max(axis=0) <= 0).any():
        raise UnknownRotationError("its rotary function changes vectors at position 0")
    back = np.argsort(order)
    mixes = (images[1:][:, :, back] != 0).any(axis=0) & ~np.eye(dim, dtype=bool)
    if not np.array_equal(mixes, mixes.T) or mixes.sum(axis=0).max(initial=0) > 1:
        raise UnknownRotationError("its rotary function does not rotate dimensions in pairs")
    pairs = np.argwhere(np.triu(mixes))
    scales = images[0].max(axis=0)[back][pairs.ravel()]
    scale = float(scales.mean()) if len(scales) else 1.0
    rest = np.delete(images[0].max(axis=0)[back], pairs.ravel())
    if np.abs(scales / scale - 1).max(initial=0) > 1e-3 or np.abs(rest - 1).max(initial=0) > 1e-3:
        raise UnknownRotationError("its rotary function scales dimensions differently")
    return pairs.astype(np.int64), order.astype(np.int64), scale


def _frequency(angle: NDArray[np.float64], tolerance: float) -> NDArray[np.float64]:
    """Radians a token from angles (tokens, P) known up to full turns; every position must agree."""
    count = len(angle)
    t = np.arange(count, dtype=np.float64)
    frequency = angle[min(1, count - 1)].copy()
    reach = 2
    while reach < count:
        frequency += _wrapped(angle[reach] - reach * frequency) / reach
        reach *= 2
    residual = _wrapped(angle - t[:, None] * frequency)
    frequency = frequency + t @ residual / max(float(t @ t), 1.0)
    off = np.abs(_wrapped(angle - t[:, None] * frequency))
    if (off > tolerance + ROUNDING * t[:, None] * np.abs(frequency)).any():
        raise UnknownRotationError("its angles are not proportional to position")
    return np.asarray(frequency)


def _wrapped(angle: NDArray[np.float64]) -> NDArray[np.float64]:
    return (angle + np.pi) % (2 * np.pi) - np.pi


def _origin(calls: list[Call], x: Any) -> _RotaryInput:
    """The call that x (documents, heads, tokens, dim) comes from: its very output, or recognized by its values."""
    heads, tokens, dim = x.shape[1:]
    pairs = [(c, *pair) for c in calls for pair in zip(c.inputs, c.outputs, strict=False)]
    for call, given, made in pairs:
        same_numbers = (made.shape, made.stride(), made.data_ptr()) == (x.shape, x.stride(), x.data_ptr())
        if same_numbers and given.shape == x.shape:
            return _RotaryInput(call, given, 0, heads_first=True)
    seen = _sample(x)
    near = _tolerance(x) * float(np.abs(seen).max())
    for (call, *both), heads_first in product(pairs, (True, False)):
        a, b = (each if heads_first else each.transpose(1, 2) for each in both)
        if a.shape != b.shape or b.shape[1] not in (heads, 1) or b.shape[2] != tokens or b.shape[3] > dim:
            continue
        part = _sample(b)
        for first in sorted({0, dim - b.shape[3]}):
            if np.abs(seen[..., first : first + b.shape[3]] - part).max() <= near:
                return _RotaryInput(call, a, first, heads_first)
    raise UnknownRotationError("queries or keys are modified after their rotation")


def _check_captured(rotation: Rotation, source: Unrotated, x: Any) -> None:
    """Raise unless captured vectors, rotated back, are what went into the function."""
    seen, given = _at_checked(x), _at_checked(source.vectors)
    captured = _without_nan(seen)
    expected = captured.copy()
    expected[..., source.dims] = _without_nan(given)
    found = rotation.derotate(captured, np.arange(0, x.shape[2], _step(x), dtype=np.float64))
    # Rotation spreads a value that is not finite over its pair: such vectors are not compared.
    finite = np.isfinite(seen).all(axis=-1) & np.isfinite(given).all(axis=-1)
    allowed = (_tolerance(x) + ROUNDING * x.shape[2]) * np.abs(expected).max()
    if (np.abs(found - expected).max(axis=-1)[finite] > allowed).any():
        what = "undoing the rotation of captured vectors does not give the original vectors"
        raise UnknownRotationError(what)


def _step(x: Any) -> int:
    """Distance between the positions at which x (documents, heads, tokens, dim) is compared."""
    return max(1, (int(x.shape[2]) - 1) // (CHECKED - 1))


def _at_checked(x: Any) -> NDArray[np.float64]:
    """The first document's vectors at these positions."""
    # Evenly spaced, so that a slice takes them: an index would be a kernel of its own for each tensor of each layer.
    return np.asarray(x[0][:, :: _step(x)].double().cpu())


def _without_nan(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same with 0 for NaN and infinity, which have their own warning."""
    return np.where(np.isfinite(values), values, 0.0)


def _sample(x: Any) -> NDArray[np.float64]:
    return _without_nan(_at_checked(x))


def _tolerance(x: Any) -> float:
    return TOLERANCE if x.element_size() >= 4 else HALF_TOLERANCE


def _namespaces(backbone: Any) -> list[dict[str, Any]]:
    """The namespaces of the files that define the modules of a layer, each once."""
    kinds = {type(module) for module in backbone.modules() if hasattr(module, "layer_idx")}
    files = {cls.__module__ for kind in kinds for cls in kind.__mro__}
    return [vars(sys.modules[name]) for name in sorted(files) if name in sys.modules]


def _first(argument: Any, tokens: int, only: int) -> Any:
    """A table cut to its first positions; other arguments unchanged."""
    shape = getattr(argument, "shape", ())
    axes = [axis for axis in (len(shape) - 2, len(shape) - 1, 0) if axis >= 0 and shape[axis] == tokens]
    return argument.narrow(axes[0], 0, only) if axes and tokens > only else argument
