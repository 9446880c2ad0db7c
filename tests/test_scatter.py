"""Scatter matrices in half the bytes: what is lost, and what must come back as it was."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import combined_pca_reference, separated
from test_pca import moments_of

from qkscope.measures.pca import measure_batch
from qkscope.sums.scatter import PackedScatter, pack_scatter


def again(M):
    return PackedScatter.of(pack_scatter("M", M), "M")[:]


def scatters(seed, heads, dim, spread=1.0, samples=None):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((heads, samples or 2 * dim, dim)) * spread ** rng.uniform(-1, 1, dim)
    return x.transpose(0, 2, 1) @ x


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 40), st.sampled_from([1.0, 1e3, 1e60]))
def test_at_most_half_a_step_is_lost(seed, heads, dim, spread):
    M = scatters(seed, heads, dim, spread)
    found = again(M)
    scale = np.sqrt(np.einsum("hi,hj->hij", *2 * [np.diagonal(M, axis1=1, axis2=2)]))
    assert np.abs((found - M) / scale).max() <= 2.0**-32 * (1 + 1e-6)
    assert np.array_equal(np.diagonal(found, axis1=1, axis2=2), np.diagonal(M, axis1=1, axis2=2))
    assert np.array_equal(found, found.transpose(0, 2, 1))


@given(st.integers(0, 10_000), st.integers(2, 40))
def test_what_was_packed_once_is_packed_the_same_again(seed, dim):
    once = again(scatters(seed, 3, dim))
    assert np.array_equal(again(once), once)


def test_some_heads_are_unpacked_as_all_of_them():
    packed = PackedScatter.of(pack_scatter("M", scatters(3, 6, 20)), "M")
    whole = np.asarray(packed)
    assert packed.shape == whole.shape
    for rows in (slice(None), slice(1, 3), np.array([4, 0, 4]), np.array([], dtype=np.int64)):
        assert np.array_equal(packed[rows], whole[rows])
    assert np.array_equal(packed[5], whole[5])


def test_half_of_the_bytes():
    M = scatters(0, 4, 128)
    kept = sum(array.nbytes for array in pack_scatter("M", M).values())
    assert kept < 0.52 * 4 * (128 * 129 // 2) * 8


def test_a_dimension_that_never_varies_and_a_head_that_is_not_finite():
    M = scatters(1, 3, 5)
    M[0, 2] = M[0, :, 2] = 0.0
    M[1] = np.nan
    found = again(M)
    np.testing.assert_allclose(found[[0, 2]], M[[0, 2]], rtol=0, atol=1e-8)
    assert np.isnan(found[1]).all()
    assert not again(np.zeros((2, 4, 4))).any()


@pytest.mark.parametrize("dim", [16, 64, 128])
def test_r_moves_by_less_than_a_billionth(rng, dim):
    """Of axes that stand apart: those of equal variance are any, in float64 too."""
    t = np.arange(3000.0)
    spread = np.geomspace(3, 0.3, dim)
    q, k = (
        rng.standard_normal((3000, dim)) * spread + np.outer(t / 1500, rng.standard_normal(dim)) for _ in "qk"
    )
    kept = [replace(moments, M=again(moments.M)) for moments in (moments_of(q, t), moments_of(k, t))]
    found = measure_batch([tuple(kept)], 10)
    r_q, r_k, explained, _ = combined_pca_reference(q, t, k, t, components=11)
    apart = separated(explained, gap=0.02)[:10]
    assert apart.sum() > 2
    for ours, theirs in ((found.r_q[0], r_q), (found.r_k[0], r_k)):
        np.testing.assert_allclose(np.abs(ours[apart]), np.abs(theirs[:10][apart]), atol=1e-9)
