"""What every test may use, and the environment they all run in."""

from __future__ import annotations

import gc
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from qkscope import workers
from qkscope.progress import quieten

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Modules beside the tests (reference, synthetic, tiny, ...) are imported by their plain names.
sys.path.insert(0, str(Path(__file__).parent))
# A busy machine starts no processes in the middle of a test; those of processes ask for them.
workers.PAYS_FROM = math.inf


# Files that take longest or mostly wait, with `--dist loadfile`: begun first, so that both workers end together.
FIRST = (
    "test_engines",
    "test_smollm2",
    "test_owner",
    "test_figures",
    "test_report_views",
    "test_run",
    "test_limits",
)


def pytest_collection_modifyitems(items):
    place = {name: i for i, name in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(FIRST)))


def pytest_collection_finish():
    """Take what libraries hold out of garbage collection: every run and scan collects, and would look through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def reports():
    """`qkscope -q` holds for the rest of its process: the next test has its reports again."""
    yield
    quieten(False)


@pytest.fixture
def no_drawing(monkeypatch):
    """Without claims, figures and report, which have tests of their own."""
    from small_study import undrawn

    undrawn(monkeypatch)


@pytest.fixture(scope="module")
def one_thread():
    """On matrices this small two threads mostly wait for each other, above all on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def rng():
    return np.random.default_rng(0)
