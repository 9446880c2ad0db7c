"""Documents in batches, and a sample of their queries and keys in files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.capture.architecture import Architecture
from qkscope.sums import Batch, LayerFacts, Recorder
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.unit import Unit
from qkscope.vectors import write_vectors

if TYPE_CHECKING:
    from qkscope.corpus import Document


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


class VectorSample(Recorder):
    """A deterministic sample of the queries and keys, to be written in the public layout.

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
        self._numbers = heads_by_layer(heads)
        self._rate, self._window, self._seed, self._names = rate, window, seed, names
        self._labels: list[NDArray[np.int64]] = []  # (document, position, token) x tokens, a document each
        self._vectors: dict[tuple[str, int], list[NDArray[np.float32]]] = {}
        self._picked: list[NDArray[np.int64]] = []

    def begin(self, batch: Batch) -> None:
        self._picked = []
        for document, length in zip(batch.documents, batch.lengths, strict=True):
            t = sampled_positions(document.index, length, self._rate, self._seed)
            self._picked.append(t)
            self._labels.append(np.stack([np.full(len(t), document.index), t, document.tokens[t]]))

    def layer(self, index: int, q: Any, k: Any, facts: LayerFacts) -> None:
        for kind, x in (("q", q), ("k", k)):
            rows = [x[row][:, t].float().cpu().numpy() for row, t in enumerate(self._picked)]
            self._vectors.setdefault((kind, index), []).append(np.concatenate(rows, axis=1))

    def write(self, root: Path, model: str, architecture: Architecture) -> None:
        """One file per head and kind under root/model, ordered by document and position."""
        example, position, token = np.concatenate(self._labels, axis=1)
        order = np.lexsort([position, example])
        labels: dict[str, Any] = {"example_id": example[order], "position": position[order]}
        labels["window"] = self._window
        if self._names is not None:
            known = {int(i): self._names(int(i)) for i in np.unique(token)}
            labels["token_str"] = [known[i] for i in token[order].tolist()]
        for (kind, layer), parts in self._vectors.items():
            vectors = np.concatenate(parts, axis=1)[:, order]
            labels["sliding_window"] = architecture.sliding_window if architecture.sliding[layer] else None
            for head, vector in zip(self._numbers[kind][layer], vectors, strict=True):
                write_vectors(root, model, layer, head, kind, **labels, vector=vector)


def sampled_positions(document: int, length: int, rate: float, seed: int) -> NDArray[np.int64]:
    """The positions below `length` that are sampled at this rate; a longer document has these too."""
    return np.flatnonzero(np.random.default_rng([seed, document]).random(length) < rate)


def heads_by_layer(heads: HeadIndex) -> dict[str, dict[int, list[int]]]:
    """Of each kind ("q" or "k") and layer, the numbers of its query or key heads."""
    kinds = (("q", heads.layer, heads.head), ("k", heads.keys[:, 0], heads.keys[:, 1]))
    return {
        kind: {int(layer): numbers[layers == layer].tolist() for layer in np.unique(layers)}
        for kind, layers, numbers in kinds
    }


def unknown_rotation_warning(units: Sequence[Unit]) -> str | None:
    """The warning about layers whose rotation is not known, and its consequence; None if there are none."""
    reasons = {layer: why for unit in units for layer, why in unit.unknown_rotations.items()}
    if not reasons:
        return None
    return (
        f"the rotation of layer{'s' * (len(reasons) > 1)} {', '.join(map(str, sorted(reasons)))} is unknown "
        f"({'; '.join(sorted(set(reasons.values())))}): how their mean vector changes with position is "
        "estimated from position bins of the rotated vectors, which misses rotations faster than one bin"
    )
