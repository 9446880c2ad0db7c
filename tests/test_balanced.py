"""Balanced r against a slow reference from the vectors, and under every change that leaves attention as it is."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from reference import jackknife_reference
from scipy.linalg import sqrtm
from scipy.stats import ortho_group, pearsonr
from simulated import unit_of
from synthetic import rope

from qkscope.measures import balanced
from qkscope.measures.anatomy import SHARES
from qkscope.measures.cell import Cell, measure_cell
from qkscope.measures.registry import groups
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.rotation import Rotation
from qkscope.sums.unit import Unit

LENGTH, DIM, GROUPS, DOCUMENTS, HEADS = 48, 8, 4, 6, 4
MEASURED = ("pca", "balanced", "scores", "distance")
VALUES = ("r_q_balanced", "r_k_balanced", "explained_variance_balanced", "gap_balanced")
ROTATIONS = {
    "rope": rope(DIM),
    "partial": rope(DIM, unrotated=4),
    "nope": Rotation.none(DIM),
    "slow": Rotation(DIM, rope(DIM).pairs, np.array([1.0, 0.1, 1e-6, 1e-7])),
    "slow and partial": Rotation(DIM, rope(DIM, unrotated=4).pairs, np.array([0.3, 1e-6])),
}


def vectors(rng, rotation, keys=HEADS, documents=GROUPS * DOCUMENTS):
    """q (heads, documents, tokens, d) and k (keys, ...) after rotation; each head has its own mean, drift and noise."""
    found = []
    for heads in (HEADS, keys):
        dim = rotation.dim
        mean, drift = rng.standard_normal((2, heads, 1, 1, dim)) * np.array([1.0, 2.0]).reshape(2, 1, 1, 1, 1)
        mix = rng.standard_normal((heads, 1, dim, dim)) * np.geomspace(2.0, 0.2, dim)
        t = np.arange(LENGTH)
        noise = rng.standard_normal((heads, documents, LENGTH, dim))
        u = mean + drift * (t / LENGTH)[:, None] + noise @ mix.swapaxes(2, 3)
        found.append(rotation.rotate(u, t))
    return found


def measured(q, k, rotation, known=True, bad=0):
    """All variables of the group from vectors (heads, documents, tokens, d), in groups of six documents.

    `bad` vectors of the second head's queries were not finite.
    """
    heads = HeadIndex.of([(0, h) for h in range(len(q))], len(q) // len(k))
    units = []
    for start in range(0, q.shape[1], DOCUMENTS):
        documents = [(q[:, d], k[:, d]) for d in range(start, start + DOCUMENTS)]
        unit = unit_of(heads, [LENGTH], documents, {0: rotation if known else None})
        every = replace(unit.q[0], bad=np.where(np.arange(len(q)) == 1, bad, 0))
        units.append(Unit.of(*unit.sums.values(), replace(unit.moments, q=(every,))))
    return measure_cell(Cell.of(units, LENGTH), [groups()[name] for name in MEASURED])


def reference(q, k, rotation):
    """r_q, r_k, explained variance, gap, score energy (pair -1 first) and the axes of one head's q, k (tokens, d)."""
    t = np.tile(np.arange(LENGTH), len(q) // LENGTH)
    A, B = q.T @ q / len(q), np.cov(k.T, bias=True)
    W, V = np.zeros((2, rotation.dim, rotation.dim))  # q' = W q, k' = V k
    energy = [np.sqrt(np.trace(A[np.ix_(p, p)]) * np.trace(B[np.ix_(p, p)])) for p in rotation.pairs]
    still = np.setdiff1d(np.arange(rotation.dim), rotation.pairs)
    energy.insert(
        0, np.sqrt(np.abs(np.linalg.eigvals(A[np.ix_(still, still)] @ B[np.ix_(still, still)]))).sum()
    )
    rest = list(still)
    for pair, frequency, share in zip(rotation.pairs, rotation.frequency, energy[1:], strict=True):
        if frequency * LENGTH < 1e-3:
            rest += list(pair)
        elif share > 1e-6 * sum(energy):
            a, b = (np.trace(X[np.ix_(pair, pair)]) for X in (A, B))
            W[pair, pair], V[pair, pair] = (b / a) ** 0.25, (a / b) ** 0.25
    if rest:
        # The geometric mean G of A^-1 and B has G A G = B; its root balances, up to an orthogonal map.
        square = np.ix_(rest, rest)
        root = np.real(sqrtm(A[square]))
        G = np.linalg.inv(root) @ np.real(sqrtm(root @ B[square] @ root)) @ np.linalg.inv(root)
        W[square] = np.real(sqrtm(G))
        V[square] = np.linalg.inv(W[square])
        np.testing.assert_allclose(
            W[square] @ A[square] @ W[square], V[square] @ B[square] @ V[square], atol=1e-9
        )
    q, k = q @ W.T, k @ V.T
    values, axes = np.linalg.eigh(np.cov(q.T, bias=True) + np.cov(k.T, bias=True))
    r_q, r_k = (pearsonr(x @ axes[:, -1], t).statistic for x in (q, k))
    sign = np.sign(r_k if abs(r_q) < 0.05 else r_q)
    share = np.array(energy) / sum(energy)
    share[0] = share[0] if len(still) else np.nan
    return sign * r_q, sign * r_k, values[-1] / values.sum(), 1 - values[-2] / values[-1], share


def flat(x, documents=slice(None)):
    return x[documents].reshape(-1, x.shape[-1])


@pytest.mark.parametrize("keys", [HEADS, 2])
@pytest.mark.parametrize("name", ROTATIONS)
def test_balanced_numbers_are_those_of_the_vectors(rng, name, keys):
    """Also for two query heads of one key head, which have a transform each."""
    rotation = ROTATIONS[name]
    q, k = vectors(rng, rotation, keys)
    found = measured(q, k, rotation)
    for head in range(HEADS):
        *expected, energy = reference(flat(q[head]), flat(k[head * keys // HEADS]), rotation)
        assert [found.value(each)[head] for each in VALUES] == pytest.approx(expected, abs=1e-10)
        np.testing.assert_allclose(found.arrays["score_energy"][head], energy, atol=1e-10)


@pytest.mark.parametrize("name", ROTATIONS)
def test_errors_are_those_of_transforms_computed_without_each_group(rng, name):
    rotation = ROTATIONS[name]
    q, k = vectors(rng, rotation)
    found, compared = measured(q, k, rotation), 0
    for head in range(HEADS):
        whole = np.array(reference(flat(q[head]), flat(k[head]), rotation)[:4])
        left, energies = [], []
        for g in range(GROUPS):
            some = np.arange(GROUPS * DOCUMENTS) // DOCUMENTS != g
            *values, energy = reference(flat(q[head], some), flat(k[head], some), rotation)
            values[:2] = np.array(values[:2]) * np.sign(np.dot(values[:2], whole[:2]))
            left.append(values)
            energies.append(energy)
        if found.arrays["axis_lost_balanced"][head] == 0:
            compared += 1
            for i, each in enumerate(VALUES):
                expected = jackknife_reference([values[i] for values in left])
                assert found.error(each)[head] == pytest.approx(expected, rel=1e-6), each
        np.testing.assert_allclose(
            found.arrays["score_energy_se"][head],
            jackknife_reference(np.array(energies)),
            rtol=1e-6,
            atol=1e-12,
        )
    assert compared


def changed(name, rng, q, k, rotation):
    """Other queries and keys with the same attention weights."""
    if name == "head":
        return q * 3.7, k / 3.7
    if name == "pairs":
        factor = np.ones(rotation.dim)
        factor[rotation.pairs] = np.exp(rng.standard_normal(len(rotation.pairs)) * np.log(8))[:, None]
        return q * factor, k / factor
    if name == "keys":
        return q, k + 2 * k.std() * rng.standard_normal(rotation.dim)
    if name == "turned pairs":
        turn = Rotation(rotation.dim, rotation.pairs, rng.uniform(0, 6, len(rotation.pairs)))
        return tuple(turn.rotate(x[..., None, :], np.ones(1))[..., 0, :] for x in (q, k))
    T = (
        ortho_group.rvs(DIM, random_state=1)
        * np.geomspace(1, 1000, DIM)
        @ ortho_group.rvs(DIM, random_state=2)
    )
    return q @ T.T, k @ np.linalg.inv(T)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(
            (name, change)
            for name in ("rope", "partial")
            for change in ("head", "pairs", "keys", "turned pairs")
        ),
        *(("nope", change) for change in ("head", "keys", "map")),
    ],
)
def test_what_leaves_attention_as_it_is_leaves_balanced_r(rng, name, change):
    rotation = ROTATIONS[name]
    q, k = vectors(rng, rotation, keys=2 if change in ("head", "keys") else HEADS)
    before, after = measured(q, k, rotation), measured(*changed(change, rng, q, k, rotation), rotation)
    for each in (*VALUES, *SHARES, "share_positional", "score_sd", "sink", "score_energy", "distance_score"):
        size = np.abs(before.arrays[each][np.isfinite(before.arrays[each])]).max()
        pair = after.arrays[each], before.arrays[each]
        # Scores of left-out samples are computed in single precision.
        single = each not in VALUES and len(pair[0]) == after.groups + 1
        for part, digits in ((slice(1), 1e-9), (slice(1, None), 1e-5 if single else 1e-9)):
            close = {"rtol": 0, "atol": digits * max(1, size)}
            np.testing.assert_allclose(pair[0][part], pair[1][part], **close, err_msg=each)
    assert (after.arrays["axis_lost_balanced"] == before.arrays["axis_lost_balanced"]).all()
    if change != "turned pairs":
        assert np.abs(after.value("r_q") - before.value("r_q")).max() > 0.01  # the published r changes


def test_queries_that_do_not_follow_position_leave_the_sign_to_the_keys(rng):
    rotation = ROTATIONS["nope"]
    q, k = vectors(rng, rotation)
    t = np.arange(LENGTH) / LENGTH
    drift = (q.mean(axis=1, keepdims=True) - q.mean(axis=(1, 2), keepdims=True)) * (t > -1)[:, None]
    found = measured(q - drift, k, rotation)  # the mean query is the same at every position
    r_q, r_k = found.value("r_q_balanced"), found.value("r_k_balanced")
    assert (np.abs(r_q) < 0.05).all()
    assert (r_k >= 0).all()
    assert np.abs(r_k).max() > 0.05
    assert (measured(q, k, rotation).value("r_q_balanced") > -0.05).all()


def test_a_pair_without_energy_is_dropped(rng):
    rotation = ROTATIONS["rope"]
    q, k = vectors(rng, rotation)
    first = rotation.pairs[0]
    faint_q, faint_k = q.copy(), k.copy()
    faint_q[..., first] *= 1e-9
    q[..., first] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        without, faint = measured(q, k, rotation), measured(faint_q, faint_k, rotation)
    for each in VALUES:
        assert np.isfinite(without.value(each)).all()
        np.testing.assert_allclose(faint.value(each), without.value(each), rtol=0, atol=1e-9)
    assert (without.arrays["score_energy"][:, 1] == 0).all()


@pytest.mark.parametrize("name", ROTATIONS)
def test_vectors_that_do_not_vary_have_no_number(rng, name):
    rotation = ROTATIONS[name]
    q, k = vectors(rng, rotation)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for constant in (np.zeros_like(k), np.ones_like(k)):
            found = measured(q, constant, rotation)
            assert all(np.isnan(found.value(each)).all() for each in VALUES)
            assert np.isnan(found.arrays["score_energy"]).all()
        assert all(np.isnan(measured(np.zeros_like(q), k, rotation).value(each)).all() for each in VALUES)


def test_heads_that_were_not_measured_have_no_number(rng):
    rotation = ROTATIONS["partial"]
    q, k = vectors(rng, rotation)
    whole = measured(q, k, rotation)
    unknown = measured(q, k, rotation, known=False)
    assert all(np.isnan(unknown.arrays[each]).all() for each in VALUES)
    assert np.isnan(unknown.arrays["score_energy"]).all()
    found = measured(q, k, rotation, bad=1)
    for each in VALUES:
        assert np.isnan(found.arrays[each][:, 1]).all()
        np.testing.assert_array_equal(found.arrays[each][:, [0, 2, 3]], whole.arrays[each][:, [0, 2, 3]])


def test_a_left_out_sample_with_another_axis_leaves_no_error(rng):
    rotation = ROTATIONS["nope"]
    q, k = (rng.standard_normal((HEADS, GROUPS * DOCUMENTS, LENGTH, DIM)) for _ in range(2))
    q[..., 0] *= 2
    k[..., 0] *= 2
    q[0, :DOCUMENTS, :, 1] *= 6  # along another axis, the documents of the first group alone vary most
    k[0, :DOCUMENTS, :, 1] *= 6
    found = measured(q, k, rotation)
    assert found.arrays["axis_lost_balanced"].tolist() == [1, 0, 0, 0]
    for each in ("r_q_balanced", "r_k_balanced"):
        assert np.isnan(found.error(each)).tolist() == [True, False, False, False]
        assert np.isfinite(found.arrays[each][1:]).all()


@pytest.mark.parametrize("rotation", [rope(96), rope(96, unrotated=64), Rotation.none(96)])
def test_left_out_samples_of_large_heads_are_close_to_exact(rng, rotation, monkeypatch):
    q, k = vectors(rng, rotation, keys=2)
    near = measured(q, k, rotation)
    for name in ("NEAR_FROM", "NEAR_FROM_REST"):
        monkeypatch.setattr(balanced, name, 1000)
    exact = measured(q, k, rotation)
    assert (near.arrays["axis_lost_balanced"] == exact.arrays["axis_lost_balanced"]).all()
    for each in VALUES:
        np.testing.assert_array_equal(near.value(each), exact.value(each))
        np.testing.assert_allclose(near.arrays[each][1:], exact.arrays[each][1:], rtol=0, atol=0.01)
        np.testing.assert_allclose(near.error(each), exact.error(each), rtol=0.3)
    np.testing.assert_allclose(
        near.arrays["score_energy_se"], exact.arrays["score_energy_se"], rtol=0.05, atol=1e-12
    )
