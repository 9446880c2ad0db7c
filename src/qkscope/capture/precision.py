"""Sums in full precision, whatever the process that we are guests in has chosen for its own products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
