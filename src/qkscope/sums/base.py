"""The methods that every sum has, and what it knows of the passes it sees.

A sum is one class in one file:

    class NormSum(Sum):
        name = "norms"                              # also the name of its file: <unit>/norms.safetensors

    start(request, **parameters)                    what records the passes: a `Recorder`, or a sum of no tokens
    begin(batch), layer(index, q, k, facts), end(hidden)      called for every pass and for every layer of it
    done()                                          the sum, after the last pass
    merge(other), window(width)                     both sums together; only each document's first `width` tokens
    to_arrays(), from_arrays(arrays, meta, facts)   the arrays of its file, and back

Each sum of a unit is stored in a file of its own, with a key that has the sum's name, version and parameters. A sum
that a study did not have before is measured in a pass of its own; the files of the others stay as they are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from qkscope.errors import StoreError
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.rotation import Rotation, pack_rotations, unpack_rotations

if TYPE_CHECKING:
    from qkscope.corpus import Document

Arrays = Mapping[str, NDArray[Any]]
Meta = Mapping[str, Any]


@dataclass(frozen=True)
class Batch:
    """Documents of one forward pass, cut to `lengths` tokens and padded on the right to the longest."""

    documents: tuple[Document, ...]
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Real tokens: padding does not count."""
        return sum(self.lengths)

    def ids(self) -> NDArray[np.int64]:
        """(documents, longest) token ids. Causal attention never looks right, so any valid id may pad."""
        rows = [document.tokens[:n] for document, n in zip(self.documents, self.lengths, strict=True)]
        longest = max(self.lengths)
        return np.stack([np.pad(row, (0, longest - len(row)), mode="edge") for row in rows]).astype(np.int64)


@dataclass(frozen=True)
class Request:
    """What is measured in all passes of a unit.

    windows    ascending; each is the end of a ring
    dim        of the vectors
    documents  by number: how many of a document's tokens are read
    head       the model's own language-model head, hidden states (tokens, size) -> logits (tokens, vocabulary), and
               `head.every`; only where a sum has `wants_head`
    """

    heads: HeadIndex
    windows: tuple[int, ...]
    dim: int
    documents: Mapping[int, int] = field(default_factory=dict)
    head: Any = None

    def rows(self, kind: str) -> dict[int, NDArray[np.int64]]:
        """By layer: the rows of its query heads (kind q) in `heads`, or of its key heads (k) in `heads.keys`."""
        return self.heads.rows(kind)

    def reads(self) -> dict[int, NDArray[np.int64]]:
        """By layer: which of its measured key heads each of its measured query heads reads."""
        keys = self.rows("k")
        return {layer: self.heads.kv_row[rows] - keys[layer][0] for layer, rows in self.rows("q").items()}

    def spans(self, batch: Batch) -> dict[int, list[tuple[int, int, int]]]:
        """By ring: (row of the batch, start, stop) of the real tokens that are in it."""
        found: dict[int, list[tuple[int, int, int]]] = {}
        for row, length in enumerate(batch.lengths):
            for ring, (start, stop) in enumerate(rings(length, self.windows)):
                found.setdefault(ring, []).append((row, start, stop))
        return found


@dataclass(frozen=True)
class Unrotated:
    """Vectors before rotation: x's dimensions `dims` were `vectors` (documents, heads or 1, tokens, dims)."""

    vectors: Any
    dims: NDArray[np.int64]


def unrotated(x: Any, before: Unrotated | None, reduce: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
    """Apply `reduce`, (documents, heads, tokens, dim) -> (..., dim), to x before rotation; to x without `before`."""
    if before is None:
        return reduce(x)
    found = reduce(before.vectors)
    if x.shape[1] == before.vectors.shape[1] and np.array_equal(before.dims, np.arange(x.shape[3])):
        return found
    # Some dimensions are not rotated, come out in another order, or are the same in all heads.
    total = reduce(x)
    total[..., before.dims] = found
    return total


@dataclass(frozen=True)
class Softmax:
    """How a layer turns scores s = scale q.k into attention weights: a softmax over the visible keys j <= i.

    window   the query at i sees i - window < j <= i; None: all earlier keys
    softcap  s becomes softcap tanh(s / softcap); None: it stays as it is
    sinks    (heads,) a learned logit of each head that takes part in its softmax; None: there is none
    slopes   (heads,) of ALiBi, which adds -slope (i - j); None: it has none
    """

    window: int | None = None
    softcap: float | None = None
    sinks: Any = None
    slopes: Any = None

    @property
    def constants(self) -> dict[str, Any]:
        """What sums keep of it: softcap, sink, slope and reach (the window), a number or (heads,); NaN for none."""
        known = {"sink": self.sinks, "slope": self.slopes, "softcap": self.softcap, "reach": self.window}
        numbers = {name: each.cpu().numpy() if hasattr(each, "cpu") else each for name, each in known.items()}
        return {name: math.nan if each is None else each for name, each in numbers.items()}

    def select(self, heads: Any) -> Softmax:
        """The softmax of some of the heads."""
        sinks, slopes = (None if each is None else each[heads] for each in (self.sinks, self.slopes))
        return replace(self, sinks=sinks, slopes=slopes)

    def weights(self, scores: Any, t: Any, keys: Any) -> tuple[Any, Any, Any, Any]:
        """Attention of queries at t (..., n) to the keys at `keys` (m,): torch tensors, `scores` (..., heads, n, m).

        Returns e and its logarithm (..., heads, n, m), and of each row (..., heads, n) the sum Z and the learned sink's
        part of it: weights are e / Z. `scores`, scale q.k, are overwritten.
        """
        back = t[..., None, :, None] - keys
        self.bias(scores, back)
        # Finite, so that 0 times its logarithm is 0.
        scores.masked_fill_(self.hidden(back), -1e30)
        largest = scores.amax(dim=-1)
        sinks = None if self.sinks is None else self.sinks[:, None].expand_as(largest)
        largest = largest if sinks is None else largest.maximum(sinks)
        scores -= largest[..., None]
        e = scores.exp()
        total = e.sum(dim=-1)
        if sinks is None:
            return e, scores, total, total.new_zeros(total.shape)
        sink = (sinks - largest).exp()
        return e, scores, total + sink, sink

    def hidden(self, back: Any) -> Any:
        """Which keys a query does not see, at distances `back` before it."""
        later = back < 0
        return later if self.window is None else later | (back >= self.window)

    def bias(self, scores: Any, back: Any) -> None:
        """Apply the soft cap and ALiBi to scores (..., heads, n, m), in place."""
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.slopes is not None:
            scores -= self.slopes[:, None, None] * back


@dataclass(frozen=True)
class LayerFacts:
    """What is known of a layer in a pass.

    scale         the factor between q.k and the score; NaN if the model does not show it
    rotation      R_t; None if it is unknown, for the reason `unknown`
    before_q, _k  the vectors before rotation; None where they are q and k themselves
    softmax       from scores to weights, of the measured heads; None if it is unknown, for the reason `no_softmax`
    """

    scale: float
    rotation: Rotation | None
    unknown: str = ""
    before_q: Unrotated | None = None
    before_k: Unrotated | None = None
    softmax: Softmax | None = None
    no_softmax: str = "the pass does not show how weights follow from scores"


class Recorder:
    """Sees every pass of a unit, and the queries and keys of every layer."""

    def begin(self, batch: Batch) -> None:
        """A pass over these documents is next."""

    def layer(self, index: int, q: Any, k: Any, facts: LayerFacts) -> None:
        """Queries and keys of a layer as the score sees them, torch tensors (documents, heads, tokens, dim).

        Only the heads that are measured, in the order of `Request.rows`. Past a document's length there is padding.
        """

    def end(self, hidden: Any) -> None:
        """The pass is over; `hidden` (documents, tokens, size) is the backbone's last hidden state."""

    def done(self) -> Any:
        """The finished sum, after the last pass."""
        return self


class Sum(Recorder, ABC):
    """One sum of a unit: of the tokens of one group of documents, read by one checkpoint."""

    name: ClassVar[str]
    """Lower-case letters, digits and underscores; unique among all installed sums."""
    version: ClassVar[int] = 1
    """Raise it when the numbers change: files of another version are measured again."""
    wants_head: ClassVar[bool] = False
    """Whether it needs `Request.head`."""

    @classmethod
    def own_documents(cls, documents: Sequence[Document], longest: int) -> list[Document]:
        """Documents, made from those of the unit, of passes that only this sum watches, instead of the unit's."""
        return []

    @classmethod
    @abstractmethod
    def start(cls, request: Request, **parameters: Any) -> Recorder:
        """What records the passes. `parameters` are part of the file's key."""

    @abstractmethod
    def merge(self, other: Self) -> Self:
        """The sum over both sets of documents."""

    @abstractmethod
    def window(self, width: int) -> Self:
        """The sum over each document's first `width` tokens, one of the windows."""

    @abstractmethod
    def to_arrays(self) -> tuple[Arrays, Meta]:
        """Arrays and a JSON description for a file."""

    @classmethod
    @abstractmethod
    def from_arrays(cls, arrays: Arrays, meta: Meta, facts: FactSum) -> Self:
        """What `to_arrays` returned, for a unit of these facts. Raises ValueError or LookupError for anything else."""


@dataclass
class FactSum(Sum):
    """What measures need to know besides the sums.

    lengths            tokens read from each document, descending
    rotations          by layer: R_t, or None if unknown. The path of such a layer has sums of the vectors after
                       rotation: read it with `Rotation.none`
    scales             by layer: the factor between q.k and the score
    unknown_rotations  by layer: why its rotation is unknown
    """

    name = "facts"

    heads: HeadIndex
    windows: tuple[int, ...]
    lengths: tuple[int, ...]
    rotations: dict[int, Rotation | None]
    scales: dict[int, float]
    unknown_rotations: dict[int, str] = field(default_factory=dict)

    @classmethod
    def start(cls, request: Request, **parameters: Any) -> FactSum:
        layers = np.unique(request.heads.layer).tolist()
        return cls(request.heads, request.windows, (), dict.fromkeys(layers), {})

    def begin(self, batch: Batch) -> None:
        self.lengths += batch.lengths

    def layer(self, index: int, q: Any, k: Any, facts: LayerFacts) -> None:
        self.rotations[index], self.scales[index] = facts.rotation, facts.scale
        if facts.unknown:
            self.unknown_rotations[index] = facts.unknown

    def merge(self, other: Self) -> Self:
        return replace(self, lengths=tuple(sorted([*self.lengths, *other.lengths], reverse=True)))

    def window(self, width: int) -> Self:
        windows = tuple(edge for edge in self.windows if edge <= width)
        return replace(self, windows=windows, lengths=tuple(min(n, width) for n in self.lengths))

    def counts(self, width: int) -> NDArray[np.float64]:
        """Number of tokens at each position below `width`. (width,)"""
        ends = np.bincount(np.minimum(self.lengths, width).astype(np.int64), minlength=width + 1)
        return np.asarray(len(self.lengths) - np.cumsum(ends)[:width], dtype=np.float64)

    def to_arrays(self) -> tuple[Arrays, Meta]:
        arrays, rotations = pack_rotations(self.rotations)
        meta = {
            "heads": self.heads.to_meta(),
            "windows": self.windows,
            "lengths": self.lengths,
            "rotations": rotations,
            "scales": sorted(self.scales.items()),
            "unknown_rotations": sorted(self.unknown_rotations.items()),
        }
        return arrays, meta

    @classmethod
    def from_arrays(cls, arrays: Arrays, meta: Meta, facts: FactSum | None = None) -> Self:
        windows, lengths = ([int(n) for n in meta[name]] for name in ("windows", "lengths"))
        if not windows or windows[0] < 1 or sorted(set(windows)) != windows:
            raise ValueError(f"windows are {windows}, expected ascending numbers of tokens")
        if any(not 0 < length <= windows[-1] for length in lengths):
            raise ValueError(f"a document's length is not between 1 and {windows[-1]} tokens")
        return cls(
            heads=HeadIndex.from_meta(meta["heads"]),
            windows=tuple(windows),
            lengths=tuple(lengths),
            rotations=unpack_rotations(arrays, meta["rotations"]),
            scales={int(layer): float(scale) for layer, scale in meta["scales"]},
            unknown_rotations={int(layer): str(why) for layer, why in meta["unknown_rotations"]},
        )


def rings(length: int, windows: Sequence[int]) -> list[tuple[int, int]]:
    """(start, stop) of each ring that a document of `length` tokens reaches; rings end at the ascending `windows`."""
    return [(start, min(length, edge)) for start, edge in pairwise((0, *windows)) if start < length]


def ring_count(windows: Sequence[int], width: int) -> int:
    """How many rings make up the window `width`."""
    if width not in windows:
        raise StoreError(f"a window of {width} tokens was not measured; measured windows: {list(windows)}")
    return list(windows).index(width) + 1


def checked(arrays: Arrays, name: str, kind: str, *shape: int | None) -> NDArray[Any]:
    """The array `name`, which must have numbers of a numpy `kind` (i, u, f) and this shape; None: any length."""
    array = arrays[name]
    fits = array.ndim == len(shape) and all(b in (None, a) for a, b in zip(array.shape, shape, strict=True))
    if array.dtype.kind != kind or not fits:
        numbers = {"i": "integers", "u": "unsigned integers", "f": "floats"}[kind]
        expected = f"{numbers} of shape ({', '.join('any' if n is None else str(n) for n in shape)})"
        raise ValueError(f"{name} is {array.dtype} of shape {array.shape}, expected {expected}")
    return array
