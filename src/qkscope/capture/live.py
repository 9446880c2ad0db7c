"""A model in the middle of its training: measured without leaving a trace, alone or on several ranks."""

from __future__ import annotations

import hashlib
import inspect
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from qkscope.capture.hooks import find_backbone
from qkscope.capture.probe import evaluating
from qkscope.errors import EngineError

Result = TypeVar("Result")


@contextmanager
def undisturbed(model: Any) -> Iterator[None]:
    """Evaluation mode without gradients, autocast or compiled code; afterwards the training state is as before.

    That is: the mode of each module, buffers and plain attributes of modules with buffers (models with dynamic RoPE
    change theirs in a pass), and the random numbers of Python, numpy and torch on every device. In evaluation mode
    gradient checkpointing is off, so each layer runs once in a pass.
    """
    import torch

    python, numbers = random.getstate(), np.random.get_state()
    with_buffers = [module for module in model.modules() if module._buffers]
    buffers = [
        {n: (x, None if x is None else x.clone()) for n, x in m._buffers.items()} for m in with_buffers
    ]
    plain = [{n: x for n, x in vars(m).items() if isinstance(x, int | float | str)} for m in with_buffers]
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    device = next(model.parameters()).device.type
    try:
        with (
            torch.random.fork_rng(list(cuda)),
            torch.compiler.set_stance("force_eager"),
            torch.autocast(device, enabled=False),
            _without_accelerate(model),
            evaluating(model),
        ):
            yield
    finally:
        with torch.no_grad():
            for module, tensors, values in zip(with_buffers, buffers, plain, strict=True):
                for name, (buffer, value) in tensors.items():
                    if buffer is not None and not bool((buffer == value).all()):
                        buffer.copy_(value)
                    if module._buffers.get(name) is not buffer:
                        module._buffers[name] = buffer
                for name, value in values.items():
                    if vars(module).get(name) != value:
                        setattr(module, name, value)
        random.setstate(python)
        np.random.set_state(numbers)


@contextmanager
def _without_accelerate(model: Any) -> Iterator[None]:
    """accelerate replaces the model's `forward` by one with autocast, and stores the original on the model."""
    wrapped = vars(model).get("forward")
    if wrapped is not None and "_original_forward" in vars(model):
        model.forward = model._original_forward
    try:
        yield
    finally:
        if wrapped is not None:
            model.forward = wrapped


class WholeModel:
    """The backbone of a model that has to be called as a whole.

    FSDP gathers the weights of a layer in hooks of the wrapped model: a call of the backbone alone would find them in
    pieces. Everything but a call is the backbone's own.
    """

    stands_for_backbone = True

    def __init__(self, model: Any) -> None:
        self.whole, self._backbone = model, find_backbone(model)
        # Unused logits of all tokens would take more memory than the rest.
        few = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._only = {"logits_to_keep": 1} if few else {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backbone, name)

    def __call__(self, **inputs: Any) -> Any:
        """What the backbone returns."""
        outputs: list[Any] = []
        with self._backbone.register_forward_hook(lambda _, args, output: outputs.append(output)):
            self.whole(**inputs, **self._only)
        return outputs[0]


def is_sharded(model: Any) -> bool:
    """Whether this process holds only a part of the weights (FSDP)."""
    return any(hasattr(parameter, "to_local") for parameter in model.parameters())


def unwrapped(model: Any) -> Any:
    """The transformers model inside torch.compile and DDP. FSDP2 wraps in place: the model is the wrapper."""
    if hasattr(model, "_orig_mod"):
        return unwrapped(model._orig_mod)
    # Called through its wrapper without gradients, the next training step would not synchronise buffers.
    return unwrapped(model.module) if type(model).__name__ == "DistributedDataParallel" else model


def weights_digest(model: Any) -> str:
    """40 hex digits over the names and bytes of all parameters; of sharded ones, over this process's part."""
    import torch

    def digest(parameter: Any) -> str:
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        data = local.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return hashlib.blake2b(data, digest_size=20).hexdigest()

    named = dict(model.named_parameters())
    with ThreadPoolExecutor(max_workers=4) as pool:
        found = pool.map(digest, named.values())
        parts = [f"{name}|{p.dtype}|{sha}" for (name, p), sha in zip(named.items(), found, strict=True)]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=20).hexdigest()


def was_saved_in(model: Any, folder: Path) -> bool:
    """Whether the safetensors files of a checkpoint folder have exactly the weights of the model."""
    import torch
    from safetensors import safe_open

    state, found = model.state_dict(), set()
    for path in sorted(folder.glob("model*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                saved, live = file.get_tensor(name), state.get(name)
                if live is None or saved.dtype != live.dtype or not torch.equal(saved, live.detach().cpu()):
                    return False
                found.add(live.data_ptr())
    return found >= {parameter.data_ptr() for parameter in model.parameters()}


class Ranks:
    """The processes of a distributed training run; a single process is one rank of one.

    An error on one rank is raised on all, so that none waits for the others.
    """

    def __init__(self) -> None:
        from torch import distributed

        here = distributed.is_available() and distributed.is_initialized()
        self._torch = distributed if here else None
        self.rank: int = distributed.get_rank() if here else 0
        self.count: int = distributed.get_world_size() if here else 1

    def first(self, work: Callable[[], Result]) -> Result:
        """What `work` returns on the first rank, on all ranks."""
        outcome = [_outcome(work) if self.rank == 0 else None]
        if self._torch is not None:
            self._torch.broadcast_object_list(outcome, src=0)
        found: Result = _result(outcome)[0]
        return found

    def each(self, work: Callable[[], Result]) -> list[Result]:
        """What `work` returns on every rank, by rank, on all ranks."""
        outcomes: list[Any] = [_outcome(work)] * self.count
        if self._torch is not None:
            self._torch.all_gather_object(outcomes, outcomes[0])
        return _result(outcomes)


def _outcome(work: Callable[[], Any]) -> tuple[Any, BaseException | None, str]:
    try:
        return work(), None, ""
    except Exception as error:
        return None, error, f"{type(error).__name__}: {error}"


def _result(outcomes: list[Any]) -> list[Any]:
    for rank, (_, error, text) in enumerate(outcomes):
        if error is not None:
            raise error if len(outcomes) == 1 else EngineError(f"rank {rank}: {text}") from error
    return [found for found, _, _ in outcomes]
