"""Whatever the bytes, a reader gives an object or an error of ours: 2,000 mutations each, the same every time."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.harness import HANG_SECONDS, Tried, attempt, fuzz, guarded
from fuzz.readers import PLAN, READERS

EXECUTIONS = 2000


@pytest.mark.parametrize("reader", READERS, ids=[reader.name for reader in READERS])
def test_no_foreign_exception_and_no_hang(reader, tmp_path):
    whole = Tried(reader.name)
    with guarded(reader, tmp_path) as path:
        for seed in reader.seeds():
            attempt(reader, path, seed, whole)
    assert whole.read == whole.executions > 0
    tried = fuzz(reader, EXECUTIONS, seed=0)
    assert tried.foreign == {}
    assert tried.executions == EXECUTIONS
    assert tried.slowest < HANG_SECONDS


def _manifest(name: str) -> bytes:
    entry = {"format": 1, "made_from": "x", "finished": True, "drawn": {}}
    return json.dumps({**entry, "tables": {name: [3, "ab" * 20]}}).encode()


FOUND = [
    ("plan", json.dumps(PLAN).replace('"folder": "a"', f'"folder": "{"a" * 300}"').encode()),
    ("manifest", _manifest("q" * 300)),
    ("manifest", _manifest("a/" * 3000)),
]


@pytest.mark.parametrize(("name", "data"), FOUND, ids=range(len(FOUND)))
def test_what_a_million_mutations_found_is_refused(name, data, tmp_path):
    """Names longer than a file system has."""
    reader = next(reader for reader in READERS if reader.name == name)
    tried = Tried(name)
    with guarded(reader, tmp_path) as path:
        attempt(reader, path, data, tried)
    assert tried.foreign == {}
    assert tried.refused == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
BY_JSON = [
    r
    for r in READERS
    if r.name
    in (
        "plan",
        "running mark",
        "manifest",
        "unit, signed",
        "axes, signed",
        "examples, signed",
        "measures, described",
    )
]


@pytest.mark.parametrize("reader", BY_JSON, ids=[reader.name for reader in BY_JSON])
def test_well_formed_nonsense_is_refused_in_words(reader, tmp_path_factory):
    """Any JSON at all, and any JSON in the place of one of the parts that a reader expects."""
    folder = tmp_path_factory.mktemp("nonsense")
    seed = json.loads(reader.seeds()[0])
    tried = Tried(reader.name)

    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(JSON, st.sampled_from(sorted(seed)))
    def give(value, part):
        for nonsense in (value, {**seed, part: value}):
            attempt(reader, path, json.dumps(nonsense).encode(), tried)

    with guarded(reader, folder) as path:
        give()
    assert tried.foreign == {}
    assert tried.executions >= 200
