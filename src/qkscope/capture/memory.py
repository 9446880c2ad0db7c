"""How much memory a measurement needs and how much there is, so that it fails before the start and not after hours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qkscope.capture.architecture import Architecture
from qkscope.errors import CaptureError
from qkscope.sums.path import BINS

FLOAT64 = 8


def moments_bytes(vectors: int, dim: int, windows: int) -> int:
    """Bytes of the sums of `vectors` query and key heads: per ring M (d, d), C (d), mean (d); sink; path's bins (d)."""
    return vectors * ((windows + 1) * dim * (dim + 2) + (2 + BINS * windows) * dim) * FLOAT64


def weights_bytes(config: Any, architecture: Architecture, dtype: str = "auto") -> int:
    """Bytes that a model's weights take at least: embeddings, attention and one MLP a layer. 0 if quantized."""
    text = getattr(config, "text_config", None) or config
    if getattr(config, "quantization_config", None):
        return 0
    hidden, wide, vocabulary = (
        int(getattr(text, name, None) or 0) for name in ("hidden_size", "intermediate_size", "vocab_size")
    )
    heads = 2 * architecture.n_q_heads + 2 * architecture.n_kv_heads
    layer = hidden * architecture.head_dim * heads + 2 * hidden * wide
    saved = str(getattr(text, "dtype", None)).removeprefix("torch.") if dtype == "auto" else dtype
    itemsize = {"float64": 8, "float32": 4}.get(saved, 2)
    return itemsize * (vocabulary * hidden + architecture.num_layers * layer)


def check_memory(needed: int, available: int | None, what: str) -> None:
    """Raise `CaptureError` if `needed` bytes for `what` exceed what is available (None: not known)."""
    if available is not None and needed > available:
        needs, free = (f"{size / 2**30:,.1f} GiB" for size in (needed, available))
        raise CaptureError(
            f"{what} needs about {needs}, but only {free} are free: measure fewer heads or shorter windows, reduce "
            "`batch_tokens` in a study, or use a larger machine"
        )


def available_bytes() -> int | None:
    """Free main memory: the system's, or less where a container sets a limit. None if not known."""
    known = [size for size in (_system_bytes(), _container_bytes()) if size is not None]
    return min(known, default=None)


def _system_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _container_bytes(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Room under a version-2 control group's limit. Cached file pages count as used there but can be dropped."""
    try:
        limit = (root / "memory.max").read_text().strip()
        used = int((root / "memory.current").read_text())
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return max(0, int(limit) - used + int(stat.get("inactive_file", 0)))
