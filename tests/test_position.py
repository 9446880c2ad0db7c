from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from reference import constant_part_reference, eta_squared_reference
from sklearn.linear_model import LinearRegression
from synthetic import rope, summed

from qkscope.measures.position import (
    Along,
    about_mean,
    constant_part,
    correlation,
    eta_squared,
    linear_reading,
    phases,
    projected_paths,
)
from qkscope.measures.samples import GRID_SIZE
from qkscope.measures.waves import Pairs, sampled_grid, waves, whole_grid
from qkscope.sums.moments import merge_all
from qkscope.sums.rotation import Rotation

LENGTH, DIM = 40, 8
EVERY = np.arange(LENGTH + 1)


def eta_of(made, grid, rotation, sums, v):
    paths, edges = [m[2] for m in made], np.asarray(made[0][2].edges)
    means = Pairs.of(rotation, np.stack([path.filled.mean for path in paths]))
    wave, n = waves(rotation, grid.t), np.stack([path.n for path in paths])
    projected = projected_paths(means, edges, grid, wave, Pairs.of(rotation, v))
    return eta_squared(n, edges, grid, projected, {0: Along(sums, v)})[0][0]


def unit_axis(rng, dim=DIM):
    v = rng.standard_normal(dim)
    return v / np.linalg.norm(v)


def noisy_path(rng, rotation, documents, *, drift=0.0, noise=1.0, constant=1.5, length=LENGTH):
    """(documents, tokens, dim): one constant vector, a drift with position and noise, rotated."""
    mean = np.random.default_rng(5).standard_normal((2, rotation.dim)) * [[constant], [drift]]
    t = np.arange(length)
    u = (
        mean[0]
        + np.outer(t / length, mean[1])
        + noise * rng.standard_normal((documents, length, rotation.dim))
    )
    return rotation.rotate(u, t)


@pytest.mark.parametrize("rotation", [rope(DIM), rope(DIM, scale=1.3, unrotated=4), Rotation.none(DIM)])
def test_the_constant_part_is_what_rotating_the_mean_does(rng, rotation):
    x = noisy_path(rng, rotation, 6, drift=2.0)
    v = unit_axis(rng)
    sums, _, path = summed(x[None], rotation, [0, 1, 4, 12, 40])
    t = np.tile(np.arange(LENGTH), 6)
    r, r_const = constant_part_reference(x.reshape(-1, DIM), t.astype(float), rotation, v)
    phase = phases(rotation, about_mean(np.full(LENGTH, 6.0)))
    assert correlation(Along(sums, v[None]))[0] == pytest.approx(r, abs=1e-12)
    assert constant_part(path, rotation, phase, Along(sums, v[None]))[0] == pytest.approx(r_const, abs=1e-12)
    if not len(rotation.pairs):
        assert r_const == pytest.approx(0, abs=1e-12)


def test_a_rotated_constant_is_all_constant_part(rng):
    rotation = rope(DIM)
    sums, _, path = summed(noisy_path(rng, rotation, 4, noise=1e-9)[None], rotation, [0, 1, 4, 40])
    v = unit_axis(rng)[None]
    found = constant_part(path, rotation, phases(rotation, about_mean(np.full(LENGTH, 4.0))), Along(sums, v))
    np.testing.assert_allclose(found, correlation(Along(sums, v)), atol=1e-7)


@pytest.mark.parametrize("skip", [0, 4])
def test_eta_is_the_products_over_different_groups(rng, skip):
    rotation = rope(DIM)
    groups = [noisy_path(rng, rotation, 3, drift=1.0) for _ in range(4)]
    v = unit_axis(rng)
    made = [summed(x[None], rotation, EVERY) for x in groups]
    sums = merge_all([m[1 if skip else 0] for m in made])
    grid = sampled_grid(np.full(LENGTH, 12.0), skip, LENGTH)
    found = eta_of(made, grid, rotation, sums, v[None])
    assert found == pytest.approx(eta_squared_reference([x[:, skip:] for x in groups], v), rel=1e-9)


def test_wide_bins_of_the_derotated_path_see_every_frequency(rng):
    """Five bins, a wavelength of six tokens: as good as one bin a position."""
    rotation = rope(DIM)
    groups = [noisy_path(rng, rotation, 20, noise=0.7) for _ in range(4)]
    v = unit_axis(rng)[None]
    grid = sampled_grid(np.full(LENGTH, 80.0), 0, LENGTH)
    found = []
    for edges in (EVERY, np.array([0, 1, 4, 16, 28, 40])):
        made = [summed(x[None], rotation, edges) for x in groups]
        sums = merge_all([m[0] for m in made])
        found.append(eta_of(made, grid, rotation, sums, v))
    assert found[0] > 0.3
    assert found[1] == pytest.approx(found[0], abs=0.02)


def test_eta_of_noise_is_not_above_zero_on_average(rng):
    """The plain square would give one over the number of documents and more."""
    rotation, found = rope(DIM), []
    for _ in range(60):
        made = [summed(rng.standard_normal((1, 1, LENGTH, DIM)), rotation, EVERY) for _ in range(4)]
        sums = merge_all([m[0] for m in made])
        grid = sampled_grid(np.full(LENGTH, 4.0), 0, LENGTH)
        v = unit_axis(rng)[None]
        found.append(eta_of(made, grid, rotation, sums, v))
    assert np.mean(found) < 0.06  # clipped at 0; the plain square's mean is 0.24


def test_a_periodic_head_has_no_r_and_all_eta(rng):
    t = np.arange(LENGTH)
    wave = np.cos(2 * np.pi * (t + 0.5) / 10)
    rotation, v = Rotation.none(DIM), np.eye(DIM)[:1]
    made = []
    for _ in range(4):
        x = 0.05 * rng.standard_normal((2, LENGTH, DIM))
        x[:, :, 0] += wave
        made.append(summed(x[None], rotation, EVERY))
    sums = merge_all([m[0] for m in made])
    assert abs(correlation(Along(sums, v))[0]) < 0.05
    grid = sampled_grid(np.full(LENGTH, 8.0), 0, LENGTH)
    assert eta_of(made, grid, rotation, sums, v) > 0.98


def test_unequal_documents_and_groups(rng):
    """A bin that one group alone reaches does not make position of that group's content."""
    rotation = Rotation.none(DIM)
    short = np.full((2, LENGTH, DIM), np.nan)
    short[:, :20] = noisy_path(rng, rotation, 2)[:, :20]
    groups = [short, short.copy(), noisy_path(rng, rotation, 1)]
    groups[1][:, :20] = noisy_path(rng, rotation, 2)[:, :20]
    made = [summed(x[None], rotation, [0, 1, 4, 20, 40]) for x in groups]
    sums = merge_all([m[0] for m in made])
    counts = np.where(np.arange(LENGTH) < 20, 5.0, 1.0)
    grid, v = sampled_grid(counts, 0, 64), unit_axis(rng)[None]
    assert 0 <= eta_of(made, grid, rotation, sums, v) < 0.2
    assert np.isnan(eta_of(made[:1], grid, rotation, sums, v))


def test_a_sample_of_positions_is_enough_for_eta(rng):
    rotation, length = rope(DIM, theta=10_000.0), 4096
    edges = np.r_[0, 1, np.linspace(4, length, 17).astype(int)]
    made = [summed(noisy_path(rng, rotation, 1, length=length)[None], rotation, edges) for _ in range(3)]
    sums = merge_all([m[0] for m in made])
    for _ in range(5):
        v = unit_axis(rng)[None]
        found = []
        for most in (GRID_SIZE, length):
            grid = whole_grid(np.full(length, 3.0), most)
            found.append(eta_of(made, grid, rotation, sums, v))
        assert found[1] > 0.02
        assert found[0] == pytest.approx(found[1], abs=0.005)


def test_the_best_linear_reading_is_the_regressions(rng):
    rotation = rope(DIM)
    x = noisy_path(rng, rotation, 5, drift=3.0)
    sums, _, _ = summed(x[None], rotation, EVERY)
    t = np.tile(np.arange(LENGTH), 5).astype(float)
    flat = x.reshape(-1, DIM)
    expected = np.sqrt(LinearRegression().fit(flat, t).score(flat, t))
    assert linear_reading(sums)[0] == pytest.approx(expected, abs=1e-6)
    assert linear_reading(sums)[0] >= abs(correlation(Along(sums, unit_axis(rng)[None]))[0])


def test_a_scatter_that_rounding_made_indefinite_is_read(rng):
    sums, _, _ = summed(noisy_path(rng, rope(DIM), 5, drift=3.0)[None], rope(DIM), EVERY)
    M = sums.M - 1.001 * np.linalg.eigvalsh(sums.M)[0, 0] * np.eye(DIM)
    expected = np.sqrt(np.clip(sums.C[0] @ np.linalg.solve(M[0], sums.C[0]) / sums.T[0], 0, 1))
    assert linear_reading(replace(sums, M=M))[0] == pytest.approx(expected, rel=1e-4)


def test_a_flat_direction_is_not_read(rng):
    """One dimension constant, one a copy: no number explodes, and the answer is that of the others."""
    x = noisy_path(rng, rope(DIM), 5, drift=3.0)
    flat = x.reshape(-1, DIM)
    flat[:, 1] = 7.0
    flat[:, 2] = flat[:, 3]
    sums, _, _ = summed(x[None], Rotation.none(DIM), EVERY)
    t = np.tile(np.arange(LENGTH), 5).astype(float)
    kept = flat[:, [0, 3, 4, 5, 6, 7]]
    expected = np.sqrt(LinearRegression().fit(kept, t).score(kept, t))
    assert linear_reading(sums)[0] == pytest.approx(expected, abs=1e-6)
    few, _, _ = summed(rng.standard_normal((1, 1, 2 * DIM - 1, DIM)), Rotation.none(DIM), EVERY[: 2 * DIM])
    assert np.isnan(linear_reading(few)[0])


def test_a_grid_covers_its_window():
    whole = whole_grid(np.arange(40.0), 9)
    assert whole.t[:4].tolist() == [0, 1, 2, 3]
    assert whole.tokens.sum() == np.arange(40).sum()
    assert len(whole.t) == 4 + 9
    assert len(whole_grid(np.ones(3), 9).t) == 3
    counts = np.random.default_rng(0).integers(1, 9, 5000).astype(float)
    for most in (7, 512, 6000):
        grid = sampled_grid(counts, 4, most)
        assert grid.tokens.sum() == pytest.approx(counts[4:].sum())
        assert (grid.edges[:-1] <= grid.t).all()
        assert (grid.t < grid.edges[1:]).all()
        assert len(grid.t) == min(most, 4996)
        assert grid.exact == (most > 4996)
