from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import combined_pca_reference, jackknife_reference, separated
from scipy.stats import ttest_1samp
from simulated import unit_of
from synthetic import make_head
from test_moments import make_unit

from qkscope.errors import StudyError
from qkscope.measures import measure
from qkscope.measures.pca import measure_batch
from qkscope.measures.samples import jackknife
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.moments import Accumulator
from qkscope.sums.unit import Unit


def moments_of(x, t):
    total = Accumulator()
    total.update(np.asarray(x)[None], np.asarray(t, dtype=float))
    return total.moments()


def measured(q, t_q, k, t_k, components=10):
    return measure_batch([(moments_of(q, t_q), moments_of(k, t_k))], components)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 5e-6), (np.float64, 1e-9)])
@pytest.mark.parametrize("dim", [8, 64, 256])
@pytest.mark.parametrize(("mean", "longest"), [(0.0, 4096), (100.0, 10**6)])
def test_against_the_reference(rng, dtype, tolerance, dim, mean, longest):
    """The mean of the keys is `mean` times their spread; as many queries as three halves of the keys."""
    q, t_q = make_head(rng, 1500, dim, follow=1.0, longest=longest, dtype=dtype)
    k, t_k = make_head(rng, 1000, dim, follow=-0.6, mean=mean, longest=longest, dtype=dtype)
    found = measured(q, t_q, k, t_k)
    r_q, r_k, explained, _ = combined_pca_reference(q, t_q, k, t_k, components=11)
    check = separated(explained)[:10]
    assert check.sum() >= min(7, dim - 2)
    kept = len(found.r_q[0])
    check = check[:kept]
    for name, expected in (("r_q", r_q), ("r_k", r_k), ("explained_variance", explained)):
        got = getattr(found, name)[0]
        np.testing.assert_allclose(got[check], expected[:kept][check], rtol=0, atol=tolerance, err_msg=name)
    assert (found.n_q[0], found.n_k[0]) == (1500, 1000)


def test_a_head_with_a_known_answer():
    """Queries move along one axis with position, keys against it: r is 1 and -1, and all variance is there."""
    t = np.arange(100)
    axis = np.array([3.0, 4.0, 0.0]) / 5
    found = measured(t[:, None] * axis, t, -t[:, None] * axis, t, components=1)
    assert found.r_q[0, 0] == pytest.approx(1, abs=1e-12)
    assert found.r_k[0, 0] == pytest.approx(-1, abs=1e-12)
    assert found.explained_variance[0, 0] == pytest.approx(1, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), slope=st.floats(1e-3, 1e3), origin=st.floats(-1e6, 1e6))
def test_rotation_and_affine_change_of_position_change_nothing(seed, slope, origin):
    rng = np.random.default_rng(seed)
    q, t_q = make_head(rng, 300, 12, follow=0.8)
    k, t_k = make_head(rng, 200, 12, follow=0.5, mean=3.0)
    turn = np.linalg.qr(rng.standard_normal((12, 12)))[0]
    plain = measured(q, t_q, k, t_k, 4)
    for other in (
        measured(q @ turn, t_q, k @ turn, t_k, 4),
        measured(q, t_q * slope + origin, k, t_k * slope + origin, 4),
    ):
        check = separated(plain.explained_variance[0])
        np.testing.assert_allclose(other.explained_variance, plain.explained_variance, atol=1e-10)
        np.testing.assert_allclose(other.r_q[0, check], plain.r_q[0, check], atol=1e-7)
        np.testing.assert_allclose(other.r_k[0, check], plain.r_k[0, check], atol=1e-7)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), groups=st.integers(1, 6))
def test_how_documents_are_dealt_into_groups_changes_nothing(seed, groups):
    rng = np.random.default_rng(seed)
    q, t = make_head(rng, 240, 8)
    k, _ = make_head(rng, 240, 8)
    whole = measured(q, t, k, t, 5)
    deal = rng.integers(0, groups, 240)
    parts = [
        (moments_of(q[deal == g], t[deal == g]), moments_of(k[deal == g], t[deal == g])) for g in set(deal)
    ]
    found = measure_batch(parts, 5)
    np.testing.assert_allclose(found.r_q, whole.r_q, atol=1e-8)
    np.testing.assert_allclose(found.r_k, whole.r_k, atol=1e-8)


def test_sign_rule(rng):
    """r_q is never negative, unless it is faint: then r_k is not."""
    t = np.arange(400)
    z = (t - t.mean()) / t.std()
    noise = rng.standard_normal((4, 400))
    strong = np.stack([-z * 5 + noise[0], noise[1]], axis=1)
    faint = np.stack([noise[2] * 5, noise[3]], axis=1)
    discordant = measured(strong, t, -strong, t, 1)
    assert discordant.r_q[0, 0] > 0.9
    assert discordant.r_k[0, 0] < -0.9
    oriented = measured(faint, t, strong, t, 1)
    assert abs(oriented.r_q[0, 0]) < 0.3
    assert abs(oriented.r_q[0, 0]) >= 0.05 or oriented.r_k[0, 0] >= 0


@pytest.mark.parametrize("what", ["queries", "positions"])
def test_no_variation_is_no_correlation(rng, what):
    q, t = make_head(rng, 200, 8)
    k, _ = make_head(rng, 200, 8)
    if what == "queries":
        found = measured(np.full_like(q, 1.7), t, k, t)
        assert np.isnan(found.r_q).all()
        assert np.isfinite(found.r_k).all()
    else:
        found = measured(q, np.full_like(t, 123456), k, t)
        assert np.isnan(found.r_q).all()
    assert not (found.r_q == 0).any()


def test_a_head_that_met_a_nan_is_unmeasured_and_the_others_are_not(rng):
    q = rng.standard_normal((3, 100, 6))
    k = rng.standard_normal((3, 100, 6))
    k[1, 5, 5] = np.nan
    sums = [Accumulator(), Accumulator()]
    sums[0].update(q, np.arange(100.0))
    sums[1].update(k, np.arange(100.0))
    found = measure_batch([(sums[0].moments(), sums[1].moments())], 3)
    for name in ("r_q", "r_k", "explained_variance"):
        values = getattr(found, name)
        assert np.isnan(values[1]).all()
        assert np.isfinite(values[[0, 2]]).all()
    assert found.bad_k.tolist() == [0, 1, 0]


def test_query_heads_read_their_key_head(rng):
    """Two query heads on one key head: each is measured with that key head's moments."""
    unit, documents = make_unit(rng, [30], [30, 30])
    found = measure([unit], 30, 3)
    q = np.concatenate([doc[0] for doc in documents], axis=1)
    k = np.concatenate([doc[1] for doc in documents], axis=1)
    t = np.tile(np.arange(30), 2)
    for h, row in enumerate(unit.heads.kv_row):
        r_q, r_k, explained, _ = combined_pca_reference(q[h], t, k[row], t, 3)
        np.testing.assert_allclose(found.r_q[h], r_q, atol=1e-9)
        np.testing.assert_allclose(found.r_k[h], r_k, atol=1e-9)
        np.testing.assert_allclose(found.explained_variance[h], explained, atol=1e-9)


def test_standard_errors_are_the_jackknifes(rng):
    parts = []
    for _ in range(5):
        q, t_q = make_head(rng, 120, 6, follow=0.7)
        k, t_k = make_head(rng, 90, 6, follow=0.4)
        parts.append((q, t_q, k, t_k))
    # One basis for all groups: make_head draws a new one each time.
    parts = [(q @ parts[0][0].T[:, :6], t, k @ parts[0][0].T[:, :6], s) for q, t, k, s in parts]
    groups = [(moments_of(q, t), moments_of(k, s)) for q, t, k, s in parts]
    found = measure_batch(groups, 2)
    full = combined_pca_reference(*(np.concatenate([p[i] for p in parts]) for i in range(4)), 3)
    estimates = []
    for g in range(5):
        rest = [p for i, p in enumerate(parts) if i != g]
        r_q, r_k, *_ = combined_pca_reference(*(np.concatenate([p[i] for p in rest]) for i in range(4)), 3)
        # The reference orients each sample by itself; the package orients all like the whole.
        turned = [np.sign(full[0][i] * r_q[i]) if abs(full[0][i]) >= 0.05 else 1 for i in range(2)]
        estimates.append((r_q[:2] * turned, r_k[:2] * turned))
    for i in range(2):
        assert found.r_q_se[0, i] == pytest.approx(
            jackknife_reference([e[0][i] for e in estimates]), rel=1e-6
        )
        assert found.r_k_se[0, i] == pytest.approx(
            jackknife_reference([e[1][i] for e in estimates]), rel=1e-6
        )
    np.testing.assert_allclose(found.loo_r_q[:, 0], [e[0][0] for e in estimates], atol=1e-9)


def test_one_group_has_no_standard_error(rng):
    unit, _ = make_unit(rng, [30], [30, 30])
    found = measure([unit], 30, 3)
    assert np.isnan(found.r_q_se).all()
    assert found.loo_r_q.shape == (0, 3)
    assert np.isnan(jackknife(np.zeros((1, 4)))).all()


def test_the_null_is_a_t_test_over_groups(rng):
    """|r| exceeds r_null exactly where the textbook's t-test over the groups' covariances rejects at 5%."""
    heads = HeadIndex.of([(0, i) for i in range(60)], 1)
    x = (
        rng.standard_normal((60, 2, 5, 30, 3))
        + 0.02 * rng.standard_normal((60, 1, 1, 1, 1)) * np.arange(30)[:, None]
    )
    groups = [unit_of(heads, [30], [(x[:, 0, g], x[:, 1, g])]) for g in range(5)]
    found = measure(groups, 30, 2)
    t = np.tile(np.arange(30) - 14.5, 5)
    rejected = 0
    for h in range(60):
        q, k = x[h, 0].reshape(150, 3), x[h, 1].reshape(150, 3)
        axes = combined_pca_reference(q, t, k, t, 2)[3]
        for pc in range(2):
            parts = ((q - q.mean(axis=0)) @ axes[pc] * t).reshape(5, 30).sum(axis=1)
            rejects = ttest_1samp(parts, 0.0).pvalue < 0.05
            assert (abs(found.r_q[h, pc]) > found.r_q_null[h, pc]) == rejects
            rejected += rejects
    assert 10 < rejected < 110


def test_two_groups_have_no_null(rng):
    units = [make_unit(rng, [30], [30, 30])[0] for _ in range(2)]
    assert np.isnan(measure(units, 30, 3).r_q_null).all()


def test_more_components_than_dimensions_gives_the_dimensions(rng):
    q, t = make_head(rng, 100, 4)
    assert measured(q, t, q, t, 10).r_q.shape == (1, 4)


def test_units_of_different_heads_do_not_merge(rng):
    a, _ = make_unit(rng, [30], [30])
    b, _ = make_unit(rng, [30], [30], heads=HeadIndex.of([(0, 0), (1, 1)], 2))
    with pytest.raises(StudyError, match="different heads"):
        measure([a, b], 30)
    with pytest.raises(StudyError, match="no tokens"):
        measure([Unit.of(*a.sums.values(), replace(a.facts, lengths=()))], 30)
