"""The model's own language-model head, run alone: the backbone's last hidden states -> logits."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from qkscope.capture.hooks import find_backbone, input_device
from qkscope.errors import CaptureError

# Where every token's logits cost more than this share of a pass, only every k-th token's are computed.
SHARE = 0.15
# Difference of logits, relative to the largest, between the head alone and the whole model.
SAME = 1e-3


class LanguageHead:
    """Calls the code that the model itself runs after its backbone: norms, soft caps and scales included.

    For the time of a call, a module that returns the given hidden states takes the place of the backbone, so that
    neither the backbone's layers nor hooks on it run.
    """

    def __init__(self, model: Any) -> None:
        import torch

        called = find_backbone(model)  # with FSDP, a stand-in that calls the whole model
        self._model = model = getattr(model, "whole", model)
        self._backbone = find_backbone(model)
        family = self._backbone.config.model_type
        if self._backbone is model or model.get_output_embeddings() is None:
            raise CaptureError(
                f"this {family} model has no language-model head, so it has no loss: load it with its head "
                "(AutoModelForCausalLM), or measure without the loss"
            )
        children = [(parent, *each) for parent in model.modules() for each in parent.named_children()]
        self._parents = [(parent, name) for parent, name, child in children if child is self._backbone]
        ids = torch.tensor([[1, 2, 3]], device=input_device(self._backbone))
        with torch.no_grad():
            self._output = called(input_ids=ids, use_cache=False)
            whole, alone = model(input_ids=ids, use_cache=False).logits[0].float(), self(self._output[0][0])
        if not torch.allclose(alone, whole, rtol=0, atol=SAME * float(whole.abs().max())):
            raise CaptureError(
                f"the language-model head of this {family} model needs more than the last hidden states (logits differ "
                f"by {float((alone - whole).abs().max()):.3g}), so its loss cannot be measured: leave it out"
            )

    def __call__(self, hidden: Any) -> Any:
        """hidden (tokens, size) -> logits (tokens, vocabulary) in float32."""
        import torch

        ids = torch.zeros((1, len(hidden)), dtype=torch.long, device=input_device(self._backbone))
        output: Any = copy.copy(self._output)
        if isinstance(output, tuple):
            output = (hidden[None], *output[1:])
        else:
            output[next(iter(output))] = hidden[None]
        with _returning(self._parents, self._backbone, output):
            return self._model(input_ids=ids, use_cache=False).logits[0].float()

    @property
    def every(self) -> int:
        """k, so that the logits of every k-th token cost at most `SHARE` of a pass: 1 for small vocabularies."""
        embeddings = {id(x) for x in self._backbone.get_input_embeddings().parameters()}
        inside = sum(x.numel() for x in self._backbone.parameters() if id(x) not in embeddings)
        share: float = self._model.get_output_embeddings().weight.numel() / max(1, inside)
        return math.ceil(share / SHARE)


@contextmanager
def _returning(parents: list[tuple[Any, str]], backbone: Any, output: Any) -> Iterator[None]:
    """Replace the backbone by a module that returns `output` and has the backbone's attributes."""
    from torch import nn

    class FixedOutput(nn.Module):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return output

        def __getattr__(self, name: str) -> Any:
            return getattr(backbone, name)

    try:
        for parent, name in parents:
            setattr(parent, name, FixedOutput())
        yield
    finally:
        for parent, name in parents:
            setattr(parent, name, backbone)
