"""Check one family: compare what qkscope captures with the operands of the attention product."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qkscope.capture import Probing, capture, measure
from qkscope.capture.architecture import Architecture, read_architecture
from qkscope.capture.hooks import find_backbone
from qkscope.capture.probe import Probe, probe_model
from qkscope.corpus import Document
from qkscope.errors import CaptureError
from qkscope.sums.head_index import HeadIndex, sample_heads
from qkscope.sums.unit import Unit
from survey.build import build, tokens
from survey.operands import Product, record

Captured = dict[int, tuple[torch.Tensor, torch.Tensor]]

# A prime: no dimension of a small model equals it, so shapes tell what is what.
LENGTH = 23
EXACT, SECOND, REFUSED, NOT_BUILT, WRONG = "exact", "exact, by product", "refused", "not built", "wrong"
# A model's own scaling of an operand rounds; anything else is another vector.
ROUNDING = 2e-6
# Documents of these lengths share a pass where padding changes nothing. Passes of other shapes round differently, and
# random layers amplify it.
LENGTHS = (41, 31, 23)
ACROSS_SHAPES = 1e-4


@dataclass(frozen=True)
class Verdict:
    """The result for one family, the reason, and what the test passes showed."""

    family: str
    kind: str
    why: str = ""
    layers: str = ""
    rope: str = ""
    lengths: str = ""


def check(family: str, **changes: Any) -> Verdict:
    """Build a small model of the family and compare what is captured with the operands of its attention product."""
    ids = tokens(2, LENGTH)
    try:
        model = build(family, **changes)
        products, plain = record(model, ids)
    except Exception as error:  # whatever keeps transformers from building or running it
        return Verdict(family, NOT_BUILT, f"{type(error).__name__}: {error}")
    try:
        architecture, probed, found, logits = _captured(model, ids)
        together, difference = _padded_against_alone(model, list(found))
    except CaptureError as error:
        return Verdict(family, REFUSED, str(error))
    except Exception as error:  # a crash is a fault of ours, and one line of the table
        return Verdict(family, WRONG, f"crashed: {type(error).__name__}: {error}")
    faults = [fault for layer in found for fault in _faults(architecture, probed, layer, found, products)]
    if not torch.equal(logits, plain):
        faults.append(f"outputs change by {(logits - plain).abs().max():.3g}")
    if difference > ACROSS_SHAPES:
        faults.append(f"documents measured together are off by {difference:.2g} from the same one by one")
    if faults:
        return Verdict(family, WRONG, "; ".join(faults))
    kind = EXACT if probed.through == "interface" else SECOND
    return Verdict(
        family,
        kind,
        layers=_layers(architecture, list(found)),
        rope=_rope(architecture, list(found)),
        lengths="together" if together else "apart",
    )


def _captured(model: Any, ids: torch.Tensor) -> tuple[Architecture, Probe, Captured, torch.Tensor]:
    """What a measurement would see: its layers, probed, then captured in a pass of the whole model."""
    architecture = read_architecture(find_backbone(model).config)
    layers = architecture.measured_layers(include_sliding=not architecture.full_attention_layers)
    architecture, probed = probe_model(model, layers)
    found: Captured = {}

    def keep(layer: int, q: torch.Tensor, k: torch.Tensor) -> None:
        found[layer] = q.clone(), k.clone()

    with torch.no_grad(), capture(model, keep, layers, probed.through):
        logits = model(input_ids=ids, use_cache=False).logits
    return architecture, probed, found, logits


def _padded_against_alone(model: Any, layers: list[int]) -> tuple[bool, float]:
    """Whether documents of different lengths share a pass; how far their moments are from the same one by one."""
    architecture = read_architecture(find_backbone(model).config)
    layers = [layer for layer in layers if architecture.head_dims[layer] == architecture.head_dim]
    heads = HeadIndex.of(sample_heads(layers, architecture.q_heads, None), architecture.gqa_ratios)
    documents = [
        Document(index, f"document {index}", tokens(1, length, seed=index)[0].numpy().astype(np.int32))
        for index, length in enumerate(LENGTHS)
    ]
    probe = Probing(model)

    def moments(batch_tokens: int) -> Unit:
        return measure(
            model, documents, heads, LENGTHS[:1], batch_tokens=batch_tokens, include_sliding=True, probe=probe
        )

    together, alone = moments(1000), moments(1)
    difference = max(
        float(np.linalg.norm(mine - theirs) / np.linalg.norm(theirs))
        for a, b in zip(together.q + together.k, alone.q + alone.k, strict=True)
        for mine, theirs in ((a.M, b.M), (a.C, b.C))
    )
    return not probe.padding_matters(tuple(layers), tokens(len(LENGTHS), LENGTHS[0]), LENGTHS[1]), difference


def _faults(
    architecture: Architecture, probed: Probe, layer: int, found: Captured, products: list[Product]
) -> Iterator[str]:
    """What is wrong with a captured layer: another vector, scale or view than the product's."""
    q, k = found[layer]
    here = [p for p in products if p.layer == layer]
    factors = [(p, factor) for p in here if (factor := _factor(q, k, p)) is not None]
    if not factors:
        shapes = [tuple(p.q.shape) for p in here]
        yield f"layer {layer}: captured q {tuple(q.shape)}, k {tuple(k.shape)}; its products have {shapes}"
    for product, factor in factors:
        if product.kind == "future":
            yield f"layer {layer} sees tokens to come"
        if product.kind == "window" and not architecture.sliding[layer]:
            yield f"layer {layer} sees a window, the architecture says everything"
        scale = product.scale
        if scale is not None and not math.isclose(scale * factor, probed.scales[layer], rel_tol=1e-4):
            yield f"layer {layer} scales by {scale * factor:.5g}, the probe says {probed.scales[layer]:.5g}"


def _factor(q: torch.Tensor, k: torch.Tensor, product: Product) -> float | None:
    """The factor from q.k to the product's q.k if these are its operands, else None."""
    repeated = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    queries = _ratio(q.flatten(0, 1), product.q)
    keys = _ratio(repeated.flatten(0, 1), product.k) or _ratio(k.flatten(0, 1), product.k)
    return None if queries is None or keys is None else queries * keys


def _ratio(mine: torch.Tensor, theirs: torch.Tensor) -> float | None:
    """The positive factor from one to the other, if there is one."""
    if mine.shape != theirs.shape:
        return None
    mine, theirs = mine.double(), theirs.double()
    factor = (mine * theirs).sum() / (mine * mine).sum()
    near = (mine * factor - theirs).abs().max() <= ROUNDING * theirs.abs().max()
    return float(factor) if near and factor > 0 else None


def _layers(architecture: Architecture, layers: list[int]) -> str:
    if not architecture.full_attention_layers:
        return "within its window"
    return "all" if len(layers) == architecture.num_layers else f"{len(layers)} of {architecture.num_layers}"


def _rope(architecture: Architecture, layers: list[int]) -> str:
    rotating = [layer for layer in layers if architecture.rope[layer]]
    if not rotating:
        return architecture.bias or "no"
    return "yes" if len(rotating) == len(layers) else f"{len(rotating)} of {len(layers)}"
