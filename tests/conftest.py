"""Synthetic heads with known answers, shared by the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

# Tests never look for the network; hub tests point the client at a server of their own.
os.environ.setdefault("HF_HUB_OFFLINE", "0")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parent))


def make_head(rng, n, dim, *, follow=1.0, mean=0.0, longest=4096, dtype=np.float64):
    """Vectors (n, dim) whose leading axes follow position to a degree, and their positions (n,)."""
    t = rng.integers(0, longest, n)
    spread = np.geomspace(4.0, 0.2, dim)
    basis = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    scores = rng.standard_normal((n, dim)) * spread
    z = (t - t.mean()) / max(t.std(), 1e-12)
    scores[:, 0] += follow * spread[0] * z
    scores[:, 1] -= 0.5 * follow * spread[1] * z
    return (scores @ basis.T + mean).astype(dtype), t


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def head():
    return make_head
