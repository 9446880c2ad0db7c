"""The kept keys: which they are, that they reach the file, and plasticity from them within its stated error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from reference import plasticity_reference
from simulated import stored, unit_of

from qkscope.measures.cell import Cell, measure_cell
from qkscope.measures.registry import groups
from qkscope.sums import KeySum
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.keys import KeySample, KeySampling, bucket_size
from qkscope.sums.unit import Unit

WINDOW, DIM, GROUPS = 128, 6, 4
SIZE = bucket_size(WINDOW)


def documents(rng, count=16, lengths=None, drift=1.5):
    """(q, k) of documents, (heads, tokens, dim) each, drifting along an axis; documents differ in level."""
    axis, centre = rng.standard_normal(DIM), rng.standard_normal(DIM)
    found = []
    for i in range(count):
        t = np.arange(lengths[i] if lengths is not None else WINDOW)
        level = 0.5 * rng.standard_normal(DIM)
        q = rng.standard_normal((1, len(t), DIM)) + drift * np.outer(t / WINDOW, axis) + centre
        k = rng.standard_normal((1, len(t), DIM)) * (1 + t[:, None] / WINDOW) + level
        found.append((q, k))
    return found


def kept(numbers, pairs, how):
    """The sample that capture would keep of these documents of one group."""
    chosen = how.choose(numbers)
    rows = []
    for i in chosen:
        k = pairs[numbers.index(i)][1][0]
        where = how.positions(i, len(k), WINDOW)
        rows.append(np.where((where >= 0)[..., None], k[np.maximum(where, 0)], np.nan))
    lengths = [pairs[numbers.index(i)][1].shape[1] for i in chosen]
    return KeySample(WINDOW, np.array(lengths), np.stack(rows)[:, :, :, None].astype(np.float32))


def units_of(pairs, how):
    heads = HeadIndex.of([(0, 0)], 1)
    found = []
    for group in range(GROUPS):
        numbers = [i for i in range(len(pairs)) if i % GROUPS == group]
        mine = [pairs[i] for i in numbers]
        sums = unit_of(heads, (WINDOW,), mine).sums.values()
        found.append(Unit.of(*sums, KeySum((kept(numbers, mine, how),))))
    return found


def exact(pairs):
    t = np.concatenate([np.arange(q.shape[1]) for q, _ in pairs])
    document = np.repeat(np.arange(len(pairs)), [q.shape[1] for q, _ in pairs])
    q, k = (np.concatenate([pair[i][0].astype(np.float32) for pair in pairs]) for i in (0, 1))
    return plasticity_reference(q, t, t // SIZE, k, t // SIZE, document)


def as_kept(pairs):
    return [
        (q.astype(np.float32).astype(np.float64), k.astype(np.float32).astype(np.float64)) for q, k in pairs
    ]


def measured(units):
    return measure_cell(Cell.of(units, WINDOW), [groups()["pca"], groups()["plasticity"]])


@pytest.mark.parametrize("ragged", [False, True])
def test_with_every_key_kept_it_is_exact_and_without_error(rng, ragged):
    lengths = [WINDOW, 90, 127, 65] if ragged else None
    pairs = as_kept(documents(rng, 4, lengths))
    found = measured(units_of(pairs, KeySampling(SIZE, 8)))
    expected = exact(pairs)
    np.testing.assert_allclose(found.arrays["plasticity_map"][0], expected, rtol=0, atol=1e-9)
    assert found.value("plasticity")[0] == pytest.approx(np.nanmean(expected), abs=1e-9)
    assert found.value("plasticity_sampling_se")[0] == pytest.approx(0.0, abs=1e-12)
    assert found.arrays["plasticity"].shape == (1 + GROUPS, 1)


@pytest.mark.parametrize(("keys", "count"), [(4, 4), (3, 2)])
def test_the_sample_is_within_two_stated_errors_in_95_of_100_seeds(rng, keys, count):
    """Four keys of eight of all documents; three of eight of half the documents."""
    pairs = as_kept(documents(rng))
    truth = measured(units_of(pairs, KeySampling(SIZE, 8))).value("plasticity")[0]
    whole = units_of(pairs, KeySampling(keys, count))
    inside, off = 0, []
    for seed in range(100):
        how = KeySampling(keys, count, seed)
        some = []
        for group, unit in enumerate(whole):
            numbers = [i for i in range(len(pairs)) if i % GROUPS == group]
            sample = KeySum((kept(numbers, [pairs[i] for i in numbers], how),))
            some.append(Unit.of(*unit.sums.values(), sample))
        found = measured(some)
        off.append((found.value("plasticity")[0] - truth) / found.value("plasticity_sampling_se")[0])
        inside += abs(off[-1]) <= 2
    assert inside >= 95
    assert np.std(off) > 0.5  # an error that is stated far too large would be no use either


def test_kept_positions_depend_on_seed_document_and_window_alone():
    how = KeySampling(3, 2)
    long, short = how.positions(5, 200, WINDOW), how.positions(5, 40, WINDOW)
    assert long.shape == (16, 3)
    assert (long // SIZE == np.arange(16)[:, None]).all()
    np.testing.assert_array_equal(long[:5], short[:5])
    assert (short[5:] == -1).all()
    assert all(len(set(row)) == 3 for row in long.tolist())
    assert (how.positions(6, 200, WINDOW) != long).any()
    assert how.choose(range(10)) == how.choose(list(range(9, -1, -1)))
    assert len(how.choose([4])) == 1


def test_a_window_that_is_no_multiple_of_sixteen_has_more_buckets():
    how = KeySampling(8, 1)
    where = how.positions(0, 40, 40)
    assert where.shape == (20, 8)
    assert sorted(where[where >= 0].tolist()) == list(range(40))


def test_kept_keys_come_back_from_a_units_file(rng):
    unit = units_of(documents(rng, 4), KeySampling(3, 1))[0]
    again = stored(unit)
    np.testing.assert_array_equal(again.keys[0].vectors, unit.keys[0].vectors)
    np.testing.assert_array_equal(again.keys[0].lengths, unit.keys[0].lengths)
    arrays, meta = unit.get(KeySum).to_arrays()
    damaged = {**arrays, f"keys.{WINDOW}.lengths": np.arange(3)}
    with pytest.raises(ValueError, match=r"keys\.128\.vectors"):
        KeySum.from_arrays(damaged, meta, unit.facts)


def test_a_head_that_met_infinity_has_no_plasticity(rng):
    units = units_of(documents(rng, 4), KeySampling(3, 1))
    bad = replace(units[0].q[0], bad=np.array([1]))
    found = measured([Unit.of(*units[0].sums.values(), replace(units[0].moments, q=(bad,))), *units[1:]])
    assert np.isnan(found.value("plasticity")[0])
    assert np.isnan(found.arrays["plasticity_map"]).all()
