"""A model, documents and heads -> the sums of one unit: checks before the first pass, then the passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from qkscope.capture.architecture import Architecture, read_architecture
from qkscope.capture.head import LanguageHead
from qkscope.capture.hooks import capture, find_backbone, input_device
from qkscope.capture.layer_calls import LayerCall
from qkscope.capture.memory import available_bytes, check_memory, moments_bytes
from qkscope.capture.probe import Probing, evaluating
from qkscope.capture.probe_rotation import Rotations, check_windows
from qkscope.capture.softmax import Softmaxes
from qkscope.defaults import BATCH_TOKENS
from qkscope.errors import CaptureError, MemoryShortError, out_of_memory
from qkscope.sums import (
    Batch,
    FactSum,
    LayerFacts,
    MomentSum,
    PathSum,
    Recorder,
    Request,
    ScoreSum,
    Softmax,
    Sum,
    Unrotated,
)
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.unit import Unit
from qkscope.workers import numpy_on_one_thread

if TYPE_CHECKING:
    from qkscope.corpus import Document


# The sums that the standard measures need, and their parameters.
STANDARD: Mapping[type[Sum], Mapping[str, Any]] = {MomentSum: {}, PathSum: {}, ScoreSum: {}}


def measure(
    model: Any,
    documents: Sequence[Document],
    heads: HeadIndex,
    windows: Sequence[int],
    *,
    sums: Mapping[type[Sum], Mapping[str, Any]] = STANDARD,
    batch_tokens: int = BATCH_TOKENS,
    include_sliding: bool = False,
    on_tokens: Callable[[int], None] | None = None,
    save: Recorder | None = None,
    probe: Probing | None = None,
) -> Unit:
    """The sums of all `heads` over the documents' first max(windows) tokens, one ring per window.

    sums       which sums, each with its parameters; the unit's facts come with them
    on_tokens  called with the number of real tokens of each pass
    save       is shown the same as the sums
    probe      the `Probing` of this model, if several units are measured with it: its passes are then run once

    Documents of different lengths share a pass unless padding changes their queries or keys.
    """
    edges = tuple(sorted(windows))
    backbone = find_backbone(model)
    passes = batches(documents, edges[-1], batch_tokens)
    architecture = read_architecture(backbone.config)
    check_windows(backbone.config, edges)
    longest = max((max(batch.lengths) for batch in passes), default=0)
    _check_request(architecture, heads, include_sliding, longest)
    _check_tokens(backbone, passes)
    _check_room(backbone, architecture, heads, edges, passes)
    layers = np.unique(heads.layer).tolist()
    probe = probe or Probing(model)
    architecture, found = probe(tuple(layers))
    if padded := next((batch for batch in passes if len(set(batch.lengths)) > 1), None):
        # Whether padding changes what is measured is tested on the longest documents that would be padded.
        length, ids = max(set(padded.lengths) - {padded.lengths[0]}), _ids(backbone, padded)
        with _explained(architecture, ids):
            matters = probe.padding_matters(tuple(layers), ids, length)
        if matters:
            passes = batches(documents, edges[-1], batch_tokens, mixed=False)
    heads = heads.with_rope(architecture.rope_by_layer())
    lengths = {document.index: min(len(document.tokens), edges[-1]) for document in documents}
    wanted: Mapping[type[Sum], Mapping[str, Any]] = {FactSum: {}, **sums}
    with evaluating(model):
        head = LanguageHead(model) if any(kind.wants_head for kind in wanted) else None
    request = Request(heads, edges, architecture.head_dim, lengths, head)
    running = {kind: kind.start(request, **parameters) for kind, parameters in wanted.items()}
    own = {kind: extra for kind in running if (extra := kind.own_documents(documents, edges[-1]))}
    rotations, softmaxes = Rotations(architecture), Softmaxes(architecture, found.scales, found.slopes)
    shared = [each for kind, each in running.items() if kind not in own] + ([save] if save else [])
    watch = _Watch(request, shared, rotations, softmaxes, found.scales)
    with numpy_on_one_thread():
        with (
            rotations.calls.watching(backbone),
            capture(model, watch.layer, layers, found.through, watch.observe),
        ):
            _run_all(backbone, architecture, passes, watch, on_tokens)
        for kind, extra in own.items():
            watch = _Watch(request, [running[kind]], None, softmaxes, found.scales)
            with capture(model, watch.layer, layers, found.through, watch.observe):
                _run_all(backbone, architecture, batches(extra, edges[-1], batch_tokens), watch)
    return Unit.of(*(each.done() for each in running.values()))


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


class _Watch:
    """Passes queries, keys and facts of each layer on to all sums: the measured heads, selected once."""

    def __init__(
        self,
        request: Request,
        sums: Sequence[Recorder],
        rotations: Rotations | None,
        softmaxes: Softmaxes,
        scales: Mapping[int, float],
    ) -> None:
        self._sums, self._rotations, self._softmaxes, self._scales = sums, rotations, softmaxes, scales
        self._softmax: Softmax | None = None
        self._numbers = {kind: request.heads.numbers(kind) for kind in ("q", "k")}

    def begin(self, batch: Batch) -> None:
        for each in self._sums:
            each.begin(batch)
        if self._rotations is not None:
            self._rotations.calls.take()

    def observe(self, call: LayerCall) -> None:
        """The softmax of the layer that comes next."""
        with full_precision(call.q.device.type):
            self._softmax = self._softmaxes.of(call)

    def layer(self, index: int, q: Any, k: Any) -> None:
        with full_precision(q.device.type):
            facts = self._facts(index, q, k)
            q, k = (_selected(x, self._numbers[kind][index]) for kind, x in (("q", q), ("k", k)))
            for each in self._sums:
                each.layer(index, q, k, facts)

    def _facts(self, index: int, q: Any, k: Any) -> LayerFacts:
        numbers = self._numbers["q"][index]
        softmax = None if self._softmax is None else self._softmax.select(numbers)
        rotation = before_q = before_k = None
        unknown = "not determined in passes of a sum's own documents"
        if self._rotations is not None:
            before_q, before_k = self._rotations.before(index, q, k)
            rotation, unknown = self._rotations.found[index], self._rotations.reasons.get(index, "")
        return LayerFacts(
            scale=self._scales[index],
            rotation=rotation,
            unknown=unknown,
            before_q=_selected_before(before_q, numbers),
            before_k=_selected_before(before_k, self._numbers["k"][index]),
            softmax=softmax,
            no_softmax=self._softmaxes.reasons.get(index, ""),
        )

    def end(self, hidden: Any) -> None:
        with full_precision(hidden.device.type):
            for each in self._sums:
                each.end(hidden)


def _selected(x: Any, numbers: list[int]) -> Any:
    """x (documents, heads, tokens, dim) of the heads `numbers`; all of them in order need no copy."""
    return x if numbers == list(range(x.shape[1])) else x[:, numbers]


def _selected_before(before: Unrotated | None, numbers: list[int]) -> Unrotated | None:
    """Vectors before rotation of the heads `numbers`; there may be one for all heads."""
    if before is None or before.vectors.shape[1] == 1:
        return before
    return Unrotated(_selected(before.vectors, numbers), before.dims)


def _run_all(
    backbone: Any,
    architecture: Architecture,
    passes: Sequence[Batch],
    watch: _Watch,
    on_tokens: Callable[[int], None] | None = None,
) -> None:
    """Show all passes to `watch`, which is given the last hidden states: no cache and no language-model head."""
    with evaluating(backbone):
        for batch in passes:
            watch.begin(batch)
            ids = _ids(backbone, batch)
            with _explained(architecture, ids):
                hidden = backbone(input_ids=ids, use_cache=False)[0]
            watch.end(hidden)
            if on_tokens is not None:
                on_tokens(batch.tokens)


@contextmanager
def _explained(architecture: Architecture, ids: Any) -> Iterator[None]:
    """Errors of too many tokens or too little memory, with what to do."""
    rows, tokens = ids.shape
    try:
        yield
    except IndexError as error:
        raise CaptureError(
            f"this {architecture.family} model cannot process {tokens} tokens in one pass (its configuration "
            f"allows {architecture.max_positions}): choose a shorter window"
        ) from error
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise MemoryShortError(
            f"out of memory in a pass over {rows} x {tokens} tokens on {ids.device}: use smaller batches, a "
            "shorter window or another device"
        ) from error


def _ids(backbone: Any, batch: Batch) -> Any:
    import torch

    return torch.from_numpy(batch.ids()).to(input_device(backbone))


def _check_request(architecture: Architecture, heads: HeadIndex, include_sliding: bool, longest: int) -> None:
    if not len(heads):
        raise CaptureError("no heads requested: give at least one (layer, head)")
    allowed = architecture.measured_layers(include_sliding, longest)
    outside = sorted({int(layer) for layer in heads.layer} - set(allowed))
    if outside:
        raise CaptureError(
            f"layers {outside} were requested, but the measurable layers of this {architecture.family} model are "
            f"{allowed}" + ("" if include_sliding else " (include_sliding adds sliding-window layers)")
        )
    for layer, head in heads.pairs:
        if head >= architecture.q_heads[layer]:
            raise CaptureError(
                f"head {head} was requested, but layer {layer} of this {architecture.family} model has query heads 0 "
                f"to {architecture.q_heads[layer] - 1}"
            )
    dims = sorted({architecture.head_dims[layer] for layer in heads.layer.tolist()})
    if len(dims) > 1:
        raise CaptureError(
            f"the requested heads have different dimensions ({' and '.join(map(str, dims))}): measure the layers of "
            f"each head dimension of this {architecture.family} model separately"
        )


def _check_tokens(backbone: Any, passes: list[Batch]) -> None:
    size = backbone.get_input_embeddings().weight.shape[0]
    for document in (d for batch in passes for d in batch.documents):
        low, high = int(document.tokens.min()), int(document.tokens.max())
        if low < 0 or high >= size:
            raise CaptureError(
                f"{document.name} contains token {low if low < 0 else high}, but the model's vocabulary is 0 to "
                f"{size - 1}: this tokenizer belongs to another model"
            )


def _check_room(
    backbone: Any, architecture: Architecture, heads: HeadIndex, windows: tuple[int, ...], passes: list[Batch]
) -> None:
    """Before the start: are the moments (sums and their result) and eager attention's scores going to fit?"""
    import torch

    needed = 2 * moments_bytes(len(heads) + len(heads.keys), architecture.head_dim, len(windows))
    what = f"measuring {len(heads)} heads of {architecture.head_dim} dimensions"
    check_memory(needed, available_bytes(), what)
    weight = backbone.get_input_embeddings().weight
    if passes and backbone.config._attn_implementation == "eager":
        rows, tokens = len(passes[0].lengths), max(passes[0].lengths)
        # Eager attention holds the scores of a layer twice: before and after their softmax.
        needed = 2 * rows * architecture.n_q_heads * tokens**2 * weight.element_size()
        free = available_bytes() if weight.device.type == "cpu" else None
        if weight.device.type == "cuda":
            free = int(torch.cuda.mem_get_info(weight.device)[0])
        what = f"the eager attention of this {architecture.family} model over {rows} x {tokens} tokens"
        check_memory(needed, free, what)


@contextmanager
def full_precision(device_type: str) -> Iterator[None]:
    """No autocast, no TF32 and no bfloat16 in float32 products; afterwards everything is as it was."""
    import torch

    backends = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    try:
        with torch.autocast(device_type, enabled=False):
            yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
