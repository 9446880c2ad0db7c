"""The range of the published r_q over rescalings, against the published r_q of rescaled vectors."""

from __future__ import annotations

import numpy as np
import pytest
from simulated import unit_of
from synthetic import make_head

from qkscope.measures import measure
from qkscope.measures.cell import Cell, measure_cell
from qkscope.measures.registry import groups
from qkscope.sums.head_index import HeadIndex

LENGTH, HEADS, KEYS = 60, 4, 2


def vectors(rng, dim):
    """q (documents, heads, tokens, dim) and k (documents, keys, ...), each head following position to its degree."""
    t = np.arange(LENGTH) / LENGTH - 0.5
    found = []
    for heads in (HEADS, KEYS):
        drift = rng.standard_normal((heads, 1, dim)) * np.linspace(0, 4, heads)[:, None, None]
        mean, mix = rng.standard_normal((heads, 1, dim)), rng.standard_normal((heads, dim, dim))
        noise = rng.standard_normal((12, heads, LENGTH, dim)) @ (mix * np.geomspace(1.0, 0.1, dim))
        found.append(mean + drift * t[:, None] + noise)
    return found


def units(q, k):
    heads = HeadIndex.of([(0, h) for h in range(HEADS)], HEADS // KEYS)
    pairs = list(zip(q, k, strict=True))
    return [unit_of(heads, [LENGTH], pairs[g::3]) for g in range(3)]


def gauge(made):
    found = measure_cell(Cell.of(made, LENGTH), [groups()["gauge"]])
    return np.stack([found.value(f"gauge_{end}") for end in ("low", "high")])


@pytest.mark.parametrize("dim", [6, 100])
def test_the_range_is_that_of_rescaled_vectors(rng, dim):
    q, k = vectors(rng, dim)
    published = [measure(units(c * q, k / c), LENGTH).r_q[:, 0] for c in 2.0 ** (np.arange(-4, 5) / 4)]
    low, high = gauge(units(q, k))
    np.testing.assert_allclose(low, np.min(published, axis=0), atol=1e-9)
    np.testing.assert_allclose(high, np.max(published, axis=0), atol=1e-9)
    assert (high - low).max() > 0.1


def test_heads_without_numbers_have_no_range(rng):
    q, k = vectors(rng, 6)
    q[:, 1] = 0.0
    q[0, 2, 5, 0] = np.nan
    low, high = gauge(units(q, k))
    for end in (low, high):
        assert np.isnan(end).tolist() == [False, True, True, False]


def test_r_lies_in_its_range(rng):
    x, _ = make_head(rng, LENGTH * 12, 8)
    q = np.broadcast_to(x.reshape(12, 1, LENGTH, 8), (12, HEADS, LENGTH, 8))
    made = units(q, rng.standard_normal((12, KEYS, LENGTH, 8)))
    low, high = gauge(made)
    r_q = measure(made, LENGTH).r_q[:, 0]
    assert ((low <= r_q + 1e-12) & (r_q <= high + 1e-12)).all()
