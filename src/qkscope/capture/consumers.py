"""What becomes of captured queries and keys: moments of every token, and on request a sample of the vectors.

A consumer is told which documents a forward pass holds, then called once per layer. Padding is left out here: it
never reaches an accumulator or a file. Works on any array type with slices, so it needs no torch of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qkscope.capture.architecture import Architecture
from qkscope.capture.rotation import Rotations, Source
from qkscope.heads import HeadIndex
from qkscope.moments import Accumulator, Moments
from qkscope.path import SINK, Bins, Path, bin_edges
from qkscope.unit import Unit, rings
from qkscope.vectors import write_vectors

if TYPE_CHECKING:
    from qkscope.corpus import Document


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


class BatchConsumer(Protocol):
    """A consumer that is told which documents the next pass holds."""

    def begin(self, batch: Batch) -> None: ...
    def __call__(self, layer: int, q: Any, k: Any) -> None: ...


def batches(
    documents: Sequence[Document], longest: int, batch_tokens: int, *, mixed: bool = True
) -> list[Batch]:
    """Documents of similar length together, at most `batch_tokens` with padding (one document may exceed it).

    Without `mixed`, only documents of the same length share a batch, so that nothing is padded.
    The order depends on lengths and indices alone: longest first, so that too little memory shows at once.
    """
    lengths = {document.index: min(len(document.tokens), longest) for document in documents}
    queue = sorted((d for d in documents if lengths[d.index]), key=lambda d: (-lengths[d.index], d.index))
    result: list[list[Document]] = []
    for document in queue:
        first = lengths[result[-1][0].index] if result else 0
        fits = result and (len(result[-1]) + 1) * first <= batch_tokens
        if fits and (mixed or lengths[document.index] == first):
            result[-1].append(document)
        else:
            result.append([document])
    return [Batch(tuple(group), tuple(lengths[d.index] for d in group)) for group in result]


class MomentSums:
    """Adds each pass's queries and keys to the sums of each (kind, layer): rings, sink and path."""

    def __init__(
        self, heads: HeadIndex, windows: tuple[int, ...], architecture: Architecture, rotations: Rotations
    ) -> None:
        self._rotations = rotations
        self._windows, self._edges = windows, bin_edges(windows)
        self._dim = architecture.head_dim
        self._rows = {"q": _rows_by_layer(heads.layer), "k": _rows_by_layer(heads.keys[:, 0])}
        numbers = {"q": heads.head, "k": heads.keys[:, 1]}
        counts = {"q": architecture.n_q_heads, "k": architecture.n_kv_heads}
        # None stands for all heads in order, which needs no copy.
        self._chosen: dict[tuple[str, int], list[int] | None] = {}
        for kind, layers in self._rows.items():
            for layer, rows in layers.items():
                chosen = numbers[kind][rows].tolist()
                self._chosen[kind, layer] = None if chosen == list(range(counts[kind])) else chosen
        self._sums: dict[tuple[str, int, int | str], Accumulator] = {}
        self._paths: dict[tuple[str, int], NDArray[np.float64]] = {}
        self._n = np.zeros(len(self._edges) - 1, dtype=np.int64)
        self._parts: list[_Part] = []
        self._bins: Bins

    def begin(self, batch: Batch) -> None:
        """Lay out the pass: which tokens belong to which ring, to the sink and to which bin."""
        spans: dict[int | str, list[tuple[int, int, int]]] = {}
        for row, length in enumerate(batch.lengths):
            for ring, (start, stop) in enumerate(rings(length, self._windows)):
                spans.setdefault(ring, []).append((row, start, stop))
            spans.setdefault("sink", []).append((row, 0, min(length, SINK, self._windows[-1])))
        self._parts = [_Part(name, where) for name, where in spans.items()]
        t = np.arange(max(batch.lengths))
        self._bins = Bins(self._edges, np.where(t < np.array(batch.lengths)[:, None], t, -1))
        self._n += self._bins.n
        self._rotations.calls.take()

    def __call__(self, layer: int, q: Any, k: Any) -> None:
        if layer not in self._rows["q"]:
            self._rotations.calls.take()
            return
        sources = self._rotations.before(layer, q, k)
        for kind, x, source in (("q", q, sources[0]), ("k", k, sources[1])):
            chosen = self._chosen[kind, layer]
            x = x if chosen is None else x[:, chosen]
            for part in self._parts:
                sums = self._sums.setdefault((kind, layer, part.name), Accumulator())
                tokens = _tokens(x, part.spans)
                # Products of a few tokens are done before torch has begun with them.
                few = part.name == "sink"
                sums.update(np.asarray(tokens.cpu().double()) if few else tokens, part.positions)
            total = self._path_sums(x, source, chosen)
            self._paths[kind, layer] = self._paths.get((kind, layer), 0.0) + total

    def _path_sums(self, x: Any, source: Source | None, chosen: list[int] | None) -> NDArray[np.float64]:
        """Bin sums of the vectors before rotation, or as they are where there is none. (heads, bins, dim)"""
        if source is None:
            return self._bins.sums(x)
        u = source.vectors if chosen is None or source.vectors.shape[1] == 1 else source.vectors[:, chosen]
        before = self._bins.sums(u)
        if np.array_equal(source.dims, np.arange(self._dim)):
            return before
        # Some dimensions are not rotated, or come out in another order.
        total = self._bins.sums(x)
        total[..., source.dims] = before
        return total

    def moments(self, kind: str) -> tuple[Moments, ...]:
        """Per ring, the moments of all heads in the rows' order."""
        return tuple(self._part(kind, ring) for ring in range(len(self._windows)))

    def sink(self, kind: str) -> Moments:
        """The moments of the first four tokens."""
        return self._part(kind, "sink")

    def path(self, kind: str) -> Path:
        """The bin sums of all heads in the rows' order, as a unit's file keeps them."""
        rows = self._rows[kind]
        none = np.zeros((1, len(self._n), self._dim))
        parts = [self._paths.pop((kind, layer), none.repeat(len(rows[layer]), 0)) for layer in rows]
        total = np.concatenate(parts)[np.argsort(np.concatenate(list(rows.values())))]
        return Path(self._edges, self._n, _single(total))

    def _part(self, kind: str, name: int | str) -> Moments:
        layers = self._rows[kind]
        total = Moments.empty(sum(map(len, layers.values())), self._dim)
        for layer, rows in layers.items():
            if sums := self._sums.pop((kind, layer, name), None):
                total.put(rows, sums.moments())
        return total


class _Part:
    """Tokens of a pass that are summed together: (row, start, stop) of each document, and their positions."""

    def __init__(self, name: int | str, spans: list[tuple[int, int, int]]) -> None:
        self.name, self.spans = name, spans
        self.positions = np.concatenate(
            [np.arange(start, stop, dtype=np.float64) for _, start, stop in spans]
        )


class VectorSample:
    """Keeps a deterministic sample of the queries and keys, to be written in the public layout.

    Whether a token is in the sample depends on (seed, document, position) alone: the same tokens for q and k, every
    head, every checkpoint and every machine. `names` gives the text of a token id, which is written beside the vector.
    """

    def __init__(
        self,
        heads: HeadIndex,
        rate: float,
        window: int,
        *,
        seed: int = 0,
        names: Callable[[int], str] | None = None,
    ) -> None:
        self._numbers = {
            "q": {layer: heads.head[rows] for layer, rows in _rows_by_layer(heads.layer).items()},
            "k": {layer: heads.keys[rows, 1] for layer, rows in _rows_by_layer(heads.keys[:, 0]).items()},
        }
        self._rate, self._window, self._seed, self._names = rate, window, seed, names
        self._labels: list[NDArray[np.int64]] = []  # (document, position, token) x tokens, a batch each
        self._vectors: dict[tuple[str, int], list[NDArray[np.float32]]] = {}
        self._picked: list[NDArray[np.int64]] = []

    def begin(self, batch: Batch) -> None:
        pairs = list(zip(batch.documents, batch.lengths, strict=True))
        self._picked = [sampled_positions(document.index, n, self._rate, self._seed) for document, n in pairs]
        rows = [
            np.stack([np.full(len(t), document.index), t, document.tokens[t]])
            for (document, _), t in zip(pairs, self._picked, strict=True)
        ]
        self._labels.append(np.concatenate(rows, axis=1))

    def __call__(self, layer: int, q: Any, k: Any) -> None:
        for kind, x in (("q", q), ("k", k)):
            if layer in self._numbers[kind]:
                rows = [x[row][:, t].float().cpu().numpy() for row, t in enumerate(self._picked)]
                every = np.concatenate(rows, axis=1)
                self._vectors.setdefault((kind, layer), []).append(every[self._numbers[kind][layer]])

    def write(self, root: FilePath, model: str, architecture: Architecture) -> None:
        """One file per head and kind under root/model, ordered by document and position."""
        example, position, token = np.concatenate(self._labels, axis=1)
        order = np.lexsort([position, example])
        labels: dict[str, Any] = {"example_id": example[order], "position": position[order]}
        if self._names is not None:
            known = {int(i): self._names(int(i)) for i in np.unique(token)}
            labels["token_str"] = [known[i] for i in token[order].tolist()]
        for kind, by_layer in self._numbers.items():
            for layer, numbers in by_layer.items():
                vectors = np.concatenate(self._vectors[kind, layer], axis=1)[:, order]
                labels["sliding_window"] = (
                    architecture.sliding_window if architecture.sliding[layer] else None
                )
                for head, vector in zip(numbers, vectors, strict=True):
                    write_vectors(
                        root, model, layer, int(head), kind, **labels, vector=vector, window=self._window
                    )


def sampled_positions(document: int, length: int, rate: float, seed: int) -> NDArray[np.int64]:
    """The positions below `length` that are sampled at this rate; a longer document has these too."""
    return np.flatnonzero(np.random.default_rng([seed, document]).random(length) < rate)


def _single(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rounded to float32, so that a unit in memory is the same as one read from its file."""
    return array.astype(np.float32).astype(np.float64)


def _rows_by_layer(layers: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    return {int(layer): np.flatnonzero(layers == layer) for layer in np.unique(layers)}


def _tokens(x: Any, spans: list[tuple[int, int, int]]) -> Any:
    """x (batch, heads, tokens, dim) -> (heads, all tokens of the spans, dim); a single span is a view."""
    if len(spans) == 1:
        row, start, stop = spans[0]
        return x[row, :, start:stop]
    joined = x.new_empty((x.shape[1], sum(stop - start for _, start, stop in spans), x.shape[3]))
    at = 0
    for row, start, stop in spans:
        joined[:, at : at + stop - start] = x[row, :, start:stop]
        at += stop - start
    return joined


def unknown_rotation_warning(units: Sequence[Unit]) -> str | None:
    """What to tell a person about layers whose rotation is not known, and what that costs."""
    reasons = {layer: why for unit in units for layer, why in unit.unknown_rotations.items()}
    if not reasons:
        return None
    return (
        f"the rotation of layers {', '.join(map(str, sorted(reasons)))} is unknown "
        f"({'; '.join(sorted(set(reasons.values())))}): how their mean vector changes with position is "
        "estimated from position bins of the rotated vectors, which misses rotations faster than one bin"
    )
