"""What a few short passes show about a model that its configuration may not say.

Two documents that differ in their last token only: if anything before it differs, tokens see those to come. One
document whose tokens all look alike to an attention layer: if its queries or keys still turn from position to
position, the layer rotates them. Where the configuration and the probe disagree, that is an error that names both.
One document alone and padded: if its queries or keys differ, documents of different lengths must not share a pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from qkscope.capture.architecture import Architecture, read_architecture
from qkscope.capture.hooks import capture, find_backbone, find_hook, input_device
from qkscope.capture.layer_calls import LayerCall
from qkscope.capture.probe_rotation import depends_on_length
from qkscope.capture.softmax import read_slopes
from qkscope.errors import CaptureError

TOKENS = 16
# Relative to the vectors' size. Rounding, where experts are given other batches: in full and in half precision. A later
# token or a rotation changes the first digits.
LEAK, HALF_LEAK = 1e-5, 0.05
TURN = 0.01
# The same for passes of different length, as a ratio of norms: layers amplify rounding, in half precision also by
# another choice of experts. Another choice of keys changes a tenth or more.
PADDED, HALF_PADDED = 1e-4, 0.05
PADDED_TOKENS, LAST = 2048, 64


@dataclass(frozen=True)
class Probe:
    """What the passes showed: the hook, and of each layer its score scale, its rotation and its window, if given.

    scales   what q.k is multiplied with before the softmax; NaN where the model does not show it
    rotates  None where the layer's input could not be replaced, or gave no numbers
    slopes   of ALiBi, (heads,); None where there is none
    """

    through: str
    causal: bool
    scales: dict[int, float]
    rotates: dict[int, bool | None]
    windows: dict[int, int | None]
    slopes: dict[int, Any]


class Probing:
    """The probe of a model that does not change: the passes for each question run once."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._found: dict[tuple[int, ...], tuple[Architecture, Probe]] = {}
        self._padding: dict[tuple[tuple[int, ...], int], bool] = {}

    def __call__(self, layers: tuple[int, ...]) -> tuple[Architecture, Probe]:
        """`probe_model` of these layers."""
        if layers not in self._found:
            self._found[layers] = probe_model(self._model, layers)
        return self._found[layers]

    def padding_matters(self, layers: tuple[int, ...], ids: Any, length: int) -> bool:
        """Whether documents padded as in `ids` (documents, tokens) have other queries or keys than without padding.

        Models that choose their keys may choose others in a longer pass, but only where there are more keys than they
        take: short documents tell nothing about longer ones. `length` is that of the longest padded document, and the
        answer is reused for lengths of the same power of two.
        """
        if depends_on_length(find_backbone(self._model).config, ids.shape[1]):
            return True
        key = layers, length.bit_length()
        if key not in self._padding:
            # One or two tokens more may make no difference where many more do, and so may one short document.
            length, rows = min(length, 7 * ids.shape[1] // 8), max(1, PADDED_TOKENS // ids.shape[1])
            difference = padding_difference(self._model, self(layers)[1].through, layers, ids[:rows], length)
            weight = find_backbone(self._model).get_input_embeddings().weight
            self._padding[key] = difference > (PADDED if weight.element_size() >= 4 else HALF_PADDED)
        return self._padding[key]


def probe(model: Any, layers: Collection[int]) -> Probe:
    """Run the two passes and look at `layers`; outputs must be those of the same pass uncaptured, bit for bit."""
    import torch

    backbone = find_backbone(model)
    ids = _two_documents(backbone)
    with evaluating(backbone):
        through = find_hook(backbone)
        plain = backbone(input_ids=ids, use_cache=False)[0]
        seen, watched = _look(model, through, layers, ids)
        # Some models never give the same output twice.
        if not torch.equal(watched, plain) and torch.equal(
            backbone(input_ids=ids, use_cache=False)[0], plain
        ):
            raise CaptureError(
                f"capturing queries and keys of this {backbone.config.model_type} model changes its outputs by up to "
                f"{(watched - plain).abs().max():.3g}, so the captured vectors would not be those it computes"
            )
        with _alike([call.module for call in seen.values()]) as replaced:
            turned, _ = _look(model, through, layers, ids)
    scales = {layer: _scale(call) for layer, call in seen.items()}
    shown = [plain, *(call.q for call in seen.values()), *(call.k for call in seen.values())]
    return Probe(
        through=through,
        causal=not any(map(_leaks, shown)),
        scales=scales,
        rotates={n: _turns(call) if id(call.module) in replaced else None for n, call in turned.items()},
        windows={layer: call.window for layer, call in seen.items()},
        slopes={layer: read_slopes(call, scales[layer]) for layer, call in seen.items()},
    )


def agree(architecture: Architecture, found: Probe) -> Architecture:
    """The architecture with what the probe adds; `CaptureError` where it contradicts or the model is not causal."""
    family = architecture.family
    if not found.causal:
        raise CaptureError(
            f"this {family} model is not causal: its tokens attend to later tokens, so padding and later text would "
            "change the measurement. Only causal models can be measured (some encoders can be loaded as decoders "
            "with is_decoder=True)"
        )
    rope = list(architecture.rope)
    for layer, rotates in found.rotates.items():
        if rotates is not None and rope[layer] is not None and rope[layer] != rotates:
            raise CaptureError(
                f"the configuration of this {family} model says that layer {layer} "
                f"{'rotates' if rope[layer] else 'does not rotate'} its queries and keys, but on {TOKENS} "
                f"identical tokens they {'change' if rotates else 'do not change'} from position to position"
            )
        rope[layer] = rope[layer] if rotates is None else rotates
    for layer, window in found.windows.items():
        if window is not None and not architecture.sliding[layer]:
            raise CaptureError(
                f"the configuration of this {family} model says that layer {layer} attends to all earlier "
                f"tokens, but its attention is called with a sliding window of {window:,}"
            )
    return replace(architecture, rope=tuple(rope))


def probe_model(model: Any, layers: Collection[int]) -> tuple[Architecture, Probe]:
    """What configuration and probe agree on, and the probe itself."""
    found = probe(model, layers)
    return agree(read_architecture(find_backbone(model).config), found), found


def padding_difference(model: Any, through: str, layers: Collection[int], ids: Any, length: int) -> float:
    """How far queries and keys of `ids` cut to `length` are from those of the whole pass, relative to their size.

    Of each layer the last tokens before the cut are compared, which have the most keys to choose from.
    """
    alone: dict[int, tuple[Any, Any]] = {}
    found = [0.0]

    def keep(layer: int, q: Any, k: Any) -> None:
        alone[layer] = q[:, :, -LAST:].float(), k[:, :, -LAST:].float()

    def compare(layer: int, q: Any, k: Any) -> None:
        for before, x in zip(alone.pop(layer), (q, k), strict=True):
            padded = x[:, :, max(0, length - LAST) : length].float()
            found.append(float((padded - before).norm() / before.norm()))

    with evaluating(find_backbone(model)):
        for consumer, part in ((keep, ids[:, :length]), (compare, ids)):
            with capture(model, consumer, layers, through) as backbone:
                backbone(input_ids=part, use_cache=False)
    return max(found)


def _look(model: Any, through: str, layers: Collection[int], ids: Any) -> tuple[dict[int, LayerCall], Any]:
    """The call of each layer in one pass, and the pass's output."""
    seen: dict[int, LayerCall] = {}

    def keep(call: LayerCall) -> None:
        seen[call.layer] = call

    with capture(model, lambda *_: None, layers, through, keep) as backbone:
        return seen, backbone(input_ids=ids, use_cache=False)[0]


def _two_documents(backbone: Any) -> Any:
    """(2, TOKENS) ids, the same but for the last; none with a meaning of its own."""
    import torch

    config = backbone.config
    vocabulary = len(backbone.get_input_embeddings().weight)
    special = {value for name, value in vars(config).items() if "token" in name and isinstance(value, int)}
    ordinary = [token for token in range(min(vocabulary, 1000)) if token not in special]
    length = min(TOKENS, read_architecture(config).max_positions or TOKENS)
    row = [ordinary[(7 * i + 5) % len(ordinary)] for i in range(length + 1)]
    return torch.tensor([row[:length], [*row[: length - 1], row[length]]], device=input_device(backbone))


def _leaks(x: Any) -> bool:
    """Whether two documents (2, ..., tokens, dim) differ before their last token, the only one that differs."""
    first, second = x[..., :-1, :].float()
    rounding = LEAK if x.element_size() >= 4 else HALF_LEAK
    return bool((first - second).abs().max() > rounding * first.abs().max())


def _turns(call: LayerCall) -> bool | None:
    """Whether queries or keys of identical tokens change direction between the middle and the end."""
    import torch

    last = call.q.shape[2] - 1
    ends = [x[:1, :, [last // 2, last]].float() for x in (call.q, call.k)]
    if not all(torch.isfinite(x).all() for x in ends):
        return None
    directions = [torch.nn.functional.normalize(x, dim=-1) for x in ends]
    return any(bool((x[:, :, 0] - x[:, :, 1]).norm(dim=-1).max() > TURN) for x in directions)


def _scale(call: LayerCall) -> float:
    """The scale a layer was called with; else how its scores follow q.k where the last token makes the difference."""
    import torch

    if call.scale is not None or call.scores is None:
        return float("nan") if call.scale is None else call.scale
    q, k = call.q.float(), call.k.float()
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = call.scores.float().reshape(*q.shape[:3], -1)[..., : q.shape[2]]
    # A bias by distance is the same in both documents and cancels in their difference.
    product, score = ((x[0] - x[1])[:, -1, :-1] for x in (q @ k.transpose(-1, -2), scores))
    scale = float((product * score).sum() / (product * product).sum())
    near = torch.allclose(scale * product, score, rtol=1e-2, atol=1e-3 * float(score.abs().max()))
    return scale if near else float("nan")


@contextmanager
def _alike(modules: list[Any]) -> Iterator[set[int]]:
    """Replace every token by its document's first in the input of `modules`; yields the ids of those replaced."""
    replaced: set[int] = set()

    def first_token(module: Any, args: Any, kwargs: Any) -> Any:
        hidden = next((x for x in (kwargs.get("hidden_states"), *args) if getattr(x, "ndim", 0) == 3), None)
        if hidden is None:
            return None
        replaced.add(id(module))

        def alike(x: Any) -> Any:
            same = getattr(x, "shape", None) == hidden.shape
            return x[:, :1].expand_as(x).contiguous() if same else x

        return tuple(alike(x) for x in args), {name: alike(x) for name, x in kwargs.items()}

    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_pre_hook(first_token, with_kwargs=True))
        yield replaced


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Without dropout and without gradients; afterwards each module is in the mode it was in."""
    import torch

    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
