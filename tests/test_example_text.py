"""Attention on excerpts: against the weights of the eager model, in files, and on the way to the report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_attention import FAMILIES, attentions, eager
from test_capture import document, every_head

from qkscope import store
from qkscope.capture import measure
from qkscope.corpus import Document
from qkscope.sums import ExampleSum, FactSum
from qkscope.sums.examples import HEADS, KEYS, NO_KEY, NO_TOKEN, QUERIES, TOKENS, first_query, shown_heads
from qkscope.sums.unit import Unit

pytestmark = pytest.mark.usefixtures("one_thread")

# Half precision rounds a weight by at most 2^-11 of itself.
HALF = 2.0**-11


def excerpts(model: Any, documents: list[Document], count: int = 2) -> Unit:
    sums = {ExampleSum: {"documents": count}}
    return measure(model, documents, every_head(model, True), (150,), sums=sums, include_sliding=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_and_weights_are_the_eager_models(family: str) -> None:
    model = eager(family, **FAMILIES[family])
    # One padded batch.
    longest = 128 if family == "mpt" else 150
    documents = [document(i, n) for i, n in enumerate((longest, 90, 40, longest))]
    found = excerpts(model, documents, 3).get(ExampleSum)
    assert found.document.tolist() == [0, 1, 2]
    assert found.lengths.tolist() == [TOKENS, 90, 40]
    for at, each in enumerate(documents[:3]):
        n = int(found.lengths[at])
        assert found.tokens[at].tolist() == each.tokens[:n].tolist() + [NO_TOKEN] * (TOKENS - n)
        expected = np.concatenate(attentions(model, each, n))[
            :, first_query(n) :, :n
        ]  # (heads, queries, keys)
        count = expected.shape[1]
        key, weight = found.key[at, :, :count], found.weight[at, :, :count].astype(np.float64)
        # The weights of the keys named, which are the largest there are, largest first.
        named = np.take_along_axis(expected, np.where(key == NO_KEY, 0, key), axis=2)
        np.testing.assert_allclose(weight, np.where(key == NO_KEY, 0.0, named), rtol=1.01 * HALF, atol=1e-6)
        np.testing.assert_allclose(
            weight, -np.sort(-expected, axis=2)[..., :KEYS], rtol=1.01 * HALF, atol=1e-6
        )
        learned = np.maximum(0.0, 1.0 - expected.sum(axis=2))
        np.testing.assert_allclose(found.sink[at, :, :count], learned, atol=1e-3)
        assert (found.key[at, :, count:] == NO_KEY).all()
        # No key twice.
        ordered = np.sort(key.astype(np.int64), axis=2)
        assert ((np.diff(ordered, axis=2) > 0) | (ordered[..., 1:] == NO_KEY)).all()


def test_units_give_the_same_bytes_in_any_order() -> None:
    model = eager("smollm3")
    documents = [document(i, n) for i, n in enumerate((150, 90, 40, 150, 150))]
    together = excerpts(model, documents, 3).get(ExampleSum)
    parts = [
        excerpts(model, [documents[i] for i in some], 3).get(ExampleSum) for some in ((2, 3), (0,), (1, 4))
    ]
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        merged = parts[order[0]].merge(parts[order[1]]).merge(parts[order[2]])
        assert store.dump_tensors(*merged.to_arrays()) == store.dump_tensors(
            *together.window(150).to_arrays()
        )


def test_no_excerpt_in_a_unit_of_later_documents() -> None:
    unit = excerpts(eager("llama"), [document(7, 60)])
    assert len(unit.get(ExampleSum).document) == 0
    assert unit.get(ExampleSum).weight.shape == (0, len(unit.heads), QUERIES, KEYS)


def test_a_file_is_read_back_and_damage_is_noticed() -> None:
    unit = excerpts(eager("llama"), [document(i, 100) for i in range(2)])
    facts, made = unit.get(FactSum), unit.get(ExampleSum)
    arrays, meta = made.to_arrays()
    again = ExampleSum.from_arrays(arrays, meta, facts)
    assert store.dump_tensors(*again.to_arrays()) == store.dump_tensors(arrays, meta)
    wrong = {
        "document": arrays["document"][::-1].copy(),
        "tokens": np.where(arrays["tokens"] == NO_TOKEN, -2, arrays["tokens"]),
        "key": np.where(arrays["key"] == arrays["key"].max(), 101, arrays["key"]).astype(np.uint8),
        "weight": arrays["weight"] * np.float16(3),
        "sink": arrays["sink"] - np.float16(1),
        "reach": arrays["reach"][1:],
    }
    for name, array in wrong.items():
        with pytest.raises(ValueError, match=name):
            ExampleSum.from_arrays({**arrays, name: array}, meta, facts)


def test_at_most_so_many_heads_evenly_spaced() -> None:
    assert shown_heads(48).tolist() == list(range(48))
    rows = shown_heads(1000)
    assert len(rows) == HEADS
    assert rows[0] == 0
    assert set(np.diff(rows).tolist()) == {3, 4}


def test_some_heads_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where heads are left out, the others have the same numbers."""
    model, documents = eager("llama"), [document(0, 100)]
    whole = excerpts(model, documents).get(ExampleSum)
    count = whole.weight.shape[1]
    monkeypatch.setattr("qkscope.sums.examples.HEADS", 3)
    some = excerpts(model, documents).get(ExampleSum)
    chosen = whole.select(np.arange(3) * count // 3)
    np.testing.assert_array_equal(some.key, chosen.key)
    np.testing.assert_array_equal(some.weight, chosen.weight)
