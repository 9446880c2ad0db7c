from __future__ import annotations

import numpy as np
import pytest
from reference import anatomy_reference, distance_reference, score_variance_reference
from synthetic import rope, summed

from qkscope.measures.anatomy import Layout, RotatedLayout, anatomy, path_about
from qkscope.measures.distance import BinPairs, distance_curve
from qkscope.measures.position import bin_phases
from qkscope.measures.waves import Pairs, waves
from qkscope.sums.path import bin_edges
from qkscope.sums.rotation import Rotation
from qkscope.sums.scores import distances

LENGTH, DIM, SCALE = 48, 8, 0.35
EVERY = np.arange(LENGTH + 1)
NAMES = ("position", "key", "match", "query_position")


def documents(rng, rotation, count, *, noise=1.0, constant=1.0, drift=1.0, length=LENGTH):
    """(documents, tokens, dim): means that drift with position, and noise of a shape of its own, rotated."""
    mean = rng.standard_normal((2, rotation.dim)) * [[constant], [drift]]
    shape = noise * rng.standard_normal((rotation.dim, rotation.dim)) / np.sqrt(rotation.dim)
    t = np.arange(length)
    u = mean[0] + np.outer(t / length, mean[1]) + rng.standard_normal((count, length, rotation.dim)) @ shape
    return rotation.rotate(u, t)


def anatomy_of(q, k, rotation, edges, **layout):
    (_, late_q, path_q), (_, late_k, path_k) = (summed(x[None], rotation, edges) for x in (q, k))
    counts = np.full(q.shape[1], float(len(q)))
    path_k = path_about(path_k, late_k.mean_x, rotation, bin_phases(rotation, counts, np.asarray(edges)))
    made = Layout.of(counts, **layout)
    return anatomy(path_q, path_k, late_q, late_k, RotatedLayout.of(rotation, made, np.asarray(edges)))


def curve_of(q, k, rotation, counts, lags):
    means = (Pairs.of(rotation, summed(x[None], rotation, EVERY)[2].mean) for x in (q, k))
    pairs = BinPairs.of(EVERY, lags)
    wave = waves(rotation, -lags, rotated=2)
    return SCALE * distance_curve(*means, pairs, pairs.counted(counts), wave)[0]


@pytest.mark.parametrize("rotation", [rope(DIM), rope(DIM, scale=1.2, unrotated=4), Rotation.none(DIM)])
def test_the_parts_are_the_textbooks(rng, rotation):
    q, k = documents(rng, rotation, 7), documents(rng, rotation, 7)
    found = anatomy_of(q, k, rotation, EVERY)
    parts, sink = anatomy_reference(q, k)
    np.testing.assert_allclose([getattr(found, name)[0] for name in NAMES], parts, rtol=1e-9)
    assert found.sink[0] == pytest.approx(sink, rel=1e-9)
    assert sum(share[0] for share in found.shares.values()) == pytest.approx(1, abs=1e-12)
    assert found.score_sd[0] == pytest.approx(np.sqrt(parts.sum()), rel=1e-9)


@pytest.mark.parametrize("rotation", [rope(DIM), Rotation.none(DIM)])
def test_the_parts_add_up_to_the_measured_variance(rng, rotation):
    for _ in range(5):
        q, k = documents(rng, rotation, 30), documents(rng, rotation, 30)
        total = anatomy_of(q, k, rotation, [0, 1, 4, 15, 26, 37, 48]).total[0]

        assert 0.9 < total / score_variance_reference(q, k) < 1.1


@pytest.mark.parametrize("theta", [100.0, 10_000.0])
@pytest.mark.parametrize("common", [0.0, 0.5, 2.0])
def test_a_vector_common_to_all_keys_is_no_position(rng, theta, common):
    """Bins of sixteen a ring against one bin a position: a path of the plain keys is off by 0.14 to 0.18 on average
    with a common vector of 2 standard deviations, and by 0.03 to 0.04 with one of half a standard deviation.
    """
    rotation, length, off = rope(DIM, theta), 128, []
    for _ in range(4):
        q, k = (documents(rng, rotation, 60, length=length) for _ in "qk")
        k = k + common * k.std() * rng.standard_normal(DIM)
        parts, _ = anatomy_reference(q, k)
        shares = anatomy_of(q, k, rotation, bin_edges([length])).shares
        off.append(
            max(abs(shares[name][0] - part) for name, part in zip(NAMES, parts / parts.sum(), strict=True))
        )
    assert np.mean(off) < 0.02


HEADS = {
    "position": (rope(DIM), {"noise": 0.02, "drift": 0.0}, {"noise": 0.02, "drift": 0.0}),
    "key": (Rotation.none(DIM), {"noise": 0.02, "drift": 0.0}, {"constant": 0.0, "drift": 0.0}),
    "match": (rope(DIM), {"constant": 0.0, "drift": 0.0}, {"constant": 0.0, "drift": 0.0}),
    "query_position": (Rotation.none(DIM), {"constant": 0.0, "drift": 0.0}, {"noise": 0.02, "drift": 5.0}),
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_built_to_look_by_one_thing_gets_its_share(rng, kind):
    rotation, of_q, of_k = HEADS[kind]
    q, k = documents(rng, rotation, 40, **of_q), documents(rng, rotation, 40, **of_k)
    found = anatomy_of(q, k, rotation, EVERY)
    assert found.shares[kind][0] > 0.95


def test_scores_that_do_not_vary_have_no_shares():
    still = np.zeros((3, LENGTH, DIM))
    found = anatomy_of(still, still, rope(DIM), EVERY)
    assert all(np.isnan(share[0]) for share in found.shares.values())
    assert found.score_sd[0] == 0


@pytest.mark.parametrize("length", [2048, 16384])
def test_a_sample_of_positions_is_enough_in_a_long_window(rng, length):
    """Shares from at most 512 keys and 128 queries differ by less than 0.005 from those of every position."""
    rotation = rope(16, theta=10_000.0)
    edges = np.r_[0, 1, np.linspace(4, length, 17).astype(int)]
    for constant in (0.3, 1.0, 3.0):
        q, k = (documents(rng, rotation, 2, constant=constant, length=length) for _ in "qk")
        few = anatomy_of(q, k, rotation, edges)
        all_keys = anatomy_of(q, k, rotation, edges, keys=length, queries=min(length, 1024))
        for name in NAMES:
            assert few.shares[name][0] == pytest.approx(all_keys.shares[name][0], abs=0.005), name
        assert few.score_sd[0] == pytest.approx(all_keys.score_sd[0], rel=0.01)
        assert few.sink[0] == pytest.approx(all_keys.sink[0], abs=0.02 * few.score_sd[0])


def test_where_nothing_turns_a_bin_is_one_position(rng):
    edges, still = np.array([0, 1, 4, 15, 26, 37, 48]), Rotation.none(DIM)
    q, k = documents(rng, still, 7), documents(rng, still, 7)
    few, every = anatomy_of(q, k, still, edges, bins=edges), anatomy_of(q, k, still, edges)
    for name in (*NAMES, "sink"):
        np.testing.assert_allclose(getattr(few, name), getattr(every, name), rtol=1e-11)


@pytest.mark.parametrize("rotation", [rope(DIM), rope(DIM, scale=1.2, unrotated=4), Rotation.none(DIM)])
def test_the_distance_curve_is_the_mean_over_pairs(rng, rotation):
    """One bin a position, no residual: then the prediction is the measurement."""
    q, k = (np.repeat(documents(rng, rotation, 1), 3, axis=0) for _ in "qk")
    lags = distances(LENGTH)
    found = curve_of(q, k, rotation, np.full(LENGTH, 3.0), lags)
    expected = [distance_reference(q, k, SCALE, lag) for lag in lags]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_documents_of_unequal_length_count_where_they_are(rng):
    rotation = rope(DIM)
    q, k = (np.repeat(documents(rng, rotation, 1), 3, axis=0) for _ in "qk")
    cut = [x.copy() for x in (q, k)]
    for x in cut:
        x[1:, 30:] = np.nan
    counts = np.where(np.arange(LENGTH) < 30, 3.0, 1.0)
    lag = 9
    found = curve_of(*cut, rotation, counts, np.array([lag]))[0]
    scores = [q[d, j + lag] @ k[d, j] for d, n in enumerate((48, 30, 30)) for j in range(4, n - lag)]
    assert found == pytest.approx(SCALE * np.mean(scores), rel=1e-9)


def test_distances_are_dense_nearby_and_sixteen_an_octave():
    lags = distances(4096)
    assert lags[:32].tolist() == list(range(1, 33))
    assert np.unique(lags).tolist() == lags.tolist()
    assert lags[-1] <= 4091
    assert len(lags) == 32 + 16 * 6 + 15
    assert distances(8).tolist() == [1, 2, 3]
