"""Whatever the bytes, a reader gives an object or an error of ours: 2,000 mutations each, the same every time."""

from __future__ import annotations

import pytest

from fuzz.harness import HANG_SECONDS, fuzz
from fuzz.readers import READERS

EXECUTIONS = 2000


@pytest.mark.parametrize("reader", READERS, ids=[reader.name for reader in READERS])
def test_no_foreign_exception_and_no_hang(reader):
    tried = fuzz(reader, EXECUTIONS, seed=0)
    assert tried.foreign == {}
    assert tried.executions == EXECUTIONS
    assert tried.slowest < HANG_SECONDS
    assert tried.read  # the seeds are read, and some of what became of them
