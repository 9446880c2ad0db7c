"""All that r alone does not tell, from units: the same numbers as from the vectors, with the jackknife's errors."""

from __future__ import annotations

import numpy as np
import pytest
from reference import (
    anatomy_reference,
    between_documents_reference,
    bias_reference,
    constant_part_reference,
    jackknife_reference,
    score_variance_reference,
)
from simulated import unit_of
from synthetic import rope
from test_anatomy import documents

from qkscope.measures import measure
from qkscope.measures.cell import Cell, measure_cell
from qkscope.measures.continuity import continuity
from qkscope.measures.registry import chosen
from qkscope.results.axes import CheckpointAxes, dump_axes, read_axes
from qkscope.results.dataset import CellData, CellInfo, dataset
from qkscope.results.tables import head_table, select
from qkscope.results.taxonomy import Thresholds, classify, periodic, score_class
from qkscope.store import write_tensors
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.rotation import Rotation
from qkscope.sums.scores import distances

DIM, WINDOW, SCALE = 8, 20, 0.4
TURN = rope(DIM)
HEADS = HeadIndex.of([(0, 0), (0, 1), (1, 0)], 2, {0: True, 1: False})
ROTATIONS = {0: TURN, 1: Rotation.none(DIM)}


@pytest.fixture(scope="module")
def vectors():
    """(groups, documents, heads, tokens, dim) of three query heads and of the two key heads they read."""
    rng = np.random.default_rng(3)
    turns = [TURN, TURN, ROTATIONS[1]], [TURN, ROTATIONS[1]]
    made = [[documents(rng, turn, 12, length=WINDOW) for turn in kind] for kind in turns]
    return [np.stack(kind, axis=1).reshape(4, 3, len(kind), WINDOW, DIM) for kind in made]


@pytest.fixture(scope="module")
def units(vectors):
    q, k = vectors
    return [unit_of(HEADS, [WINDOW], list(zip(q[g], k[g], strict=True)), ROTATIONS, SCALE) for g in range(4)]


@pytest.fixture(scope="module")
def measured(units):
    return measure(units, WINDOW, 4), numbers(units)


def numbers(units, width=WINDOW, components=4):
    return measure_cell(Cell.of(units, width, components), chosen(()))


def test_numbers_are_those_of_the_vectors(vectors, measured):
    """One position a bin in so short a window: every number is the reference's."""
    axes, found = measured
    q, k = (x.reshape(12, -1, WINDOW, DIM) for x in vectors)
    t = np.tile(np.arange(WINDOW), 12).astype(float)
    for h, key in enumerate(HEADS.kv_row):
        x, y = q[:, h], k[:, key]
        turn, v = ROTATIONS[int(HEADS.layer[h])], axes.v[h, :, 0]
        for name, z, r in (("q", x, axes.r_q), ("k", y, axes.r_k)):
            expected, constant = constant_part_reference(z.reshape(-1, DIM), t, turn, v)
            assert r[h, 0] == pytest.approx(expected, abs=1e-9)
            assert found.value(f"r_{name}_const")[h] == pytest.approx(constant, abs=1e-6)
            late = z[:, 4:].reshape(-1, DIM)
            expected = np.corrcoef(late @ v, np.tile(np.arange(4, WINDOW), 12))[0, 1]
            assert found.value(f"r_{name}_from4")[h] == pytest.approx(expected, abs=1e-6)
        parts, sink = anatomy_reference(x, y, between=between_documents_reference(y, 4))
        names = ("share_position", "share_key", "share_match", "share_query_position")
        np.testing.assert_allclose([found.value(n)[h] for n in names], parts / parts.sum(), atol=1e-6)
        assert found.value("score_sd")[h] == pytest.approx(SCALE * np.sqrt(parts.sum()), rel=1e-6)
        assert found.value("sink")[h] == pytest.approx(SCALE * sink, abs=1e-5)


def third_octave_means(every, lags):
    """Means of a curve over D = 0, 1, ... over the distances within a third of an octave of each lag."""
    ends = [(int(np.ceil(lag / 2 ** (1 / 3))), int(lag * 2 ** (1 / 3))) for lag in lags]
    return np.array([every[a : b + 1].mean() for a, b in ends])


@pytest.mark.parametrize(("window", "exact"), [(WINDOW, True), (96, False)])
def test_the_curve_is_relative_to_each_querys_mean_over_its_keys(window, exact):
    """Without residuals, paths are all there is: exact with one bin a position, close to it with sixteen a ring."""
    rng = np.random.default_rng(5)
    turns = [TURN, TURN, ROTATIONS[1]], [TURN, ROTATIONS[1]]
    q, k = (np.stack([documents(rng, t, 1, noise=0.0, length=window)[0] for t in kind]) for kind in turns)
    units = [unit_of(HEADS, [window], [(q, k)] * 2, ROTATIONS, SCALE) for _ in range(2)]
    found, lags = numbers(units, window), distances(window)
    for h, key in enumerate(HEADS.kv_row):
        every = bias_reference(q[h], k[key], SCALE)
        expected = third_octave_means(every, lags)
        spread = np.ptp(expected)
        np.testing.assert_allclose(
            found.arrays["distance_score"][h], expected, atol=1e-9 if exact else 0.05 * spread
        )


def test_fast_rotations_average_out_at_far_distances():
    """A rotation with a period of 6.3 tokens, sampled at single far distances, would look like a slow wave."""
    window = 512
    turn = rope(2, theta=1.0)
    one = np.broadcast_to([1.0, 0.0], (window, 2))
    q = k = turn.rotate(one, np.arange(window))[None]
    heads = HeadIndex.of([(0, 0)], 1, {0: True})
    units = [unit_of(heads, [window], [(q, k)], {0: turn}, 1.0) for _ in range(2)]
    lags, curve = distances(window), numbers(units, window, 2).arrays["distance_score"][0]
    every = bias_reference(q[0], k[0], 1.0)
    np.testing.assert_allclose(curve, third_octave_means(every, lags), atol=0.06)
    assert curve[:3] == pytest.approx(every[1:4], abs=0.02), "near distances are as they are"
    far = lags > 50
    assert np.abs(curve[far]).max() < 0.2 < 0.9 < np.abs(every[50:]).max()


def test_errors_are_the_jackknifes(units, measured):
    axes, found = measured
    left = []
    for g in range(4):
        rest = [unit for i, unit in enumerate(units) if i != g]
        left.append(numbers(rest))
    for name in ("eta_q", "R_k", "share_key", "score_sd", "sink", "eta_k_from4"):
        expected = [jackknife_reference([each.value(name)[h] for each in left]) for h in range(3)]
        keep = axes.lost == 0 if name.startswith("eta") else np.full(3, True)
        assert keep.any()
        # Paths and scores of left-out samples are evaluated in single precision.
        np.testing.assert_allclose(found.error(name)[keep], np.array(expected)[keep], rtol=1e-3, atol=1e-12)


def test_heads_that_read_one_key_are_as_each_alone(rng):
    """Some keys have one reader, some two, some three; layers turn or not: blocks change no number."""
    pairs = [(0, 0), (0, 1), (0, 2), (0, 3), (0, 5), (1, 0), (1, 1), (1, 2), (1, 5)]
    heads = HeadIndex.of(pairs, 3)
    data = [(rng.standard_normal((9, WINDOW, DIM)), rng.standard_normal((4, WINDOW, DIM))) for _ in range(8)]
    made = [unit_of(heads, [WINDOW], data[g::4], ROTATIONS, SCALE) for g in range(4)]
    found = numbers(made, components=3)
    for i, (pair, key) in enumerate(zip(pairs, heads.kv_row, strict=True)):
        cut = [(q[[i]], k[[key]]) for q, k in data]
        alone = [unit_of(HeadIndex.of([pair], 3), [WINDOW], cut[g::4], ROTATIONS, SCALE) for g in range(4)]
        its = numbers(alone, components=3)
        for name, array in found.arrays.items():
            own = its.arrays[name]
            one = array[:, i] if array.shape[:1] == (5,) else array[i][tuple(slice(n) for n in own.shape[1:])]
            np.testing.assert_allclose(
                one, own[:, 0] if own.shape[:1] == (5,) else own[0], rtol=1e-6, atol=1e-7, err_msg=name
            )


def test_an_axis_that_a_sample_lost_has_no_error(rng):
    """Two axes of nearly the same variance: which comes first depends on the documents."""
    heads = HeadIndex.of([(0, 0)], 1)
    spreads = [np.array([1.3, 0.8, 0.2, 0.2])] + [np.array([0.9, 1.0, 0.2, 0.2])] * 3
    made = [
        unit_of(heads, [WINDOW], [(rng.standard_normal((1, WINDOW, 4)) * spread,) * 2 for _ in range(9)])
        for spread in spreads
    ]
    axes, found = measure(made, WINDOW, 4), numbers(made)
    assert axes.lost[0] > 0
    assert np.isnan(axes.r_q_se[0, 0])
    assert np.isnan(found.error("eta_q")[0])
    assert np.isfinite(found.error("share_match")[0])
    assert np.isfinite(axes.loo_r_q).all()


def test_the_dataset_has_every_measure_and_its_error(measured):
    axes, found = measured
    info = CellInfo("m", WINDOW, groups=found.groups)
    data = select(dataset([CellData.of(info, found)]), "own")
    table = head_table(data, Thresholds())
    measures = {"eta_q", "eta_k", "r_q_const", "r_k_const", "R_q", "R_k", "share_position", "share_key"}
    measures |= {"share_match", "share_query_position", "share_positional", "score_sd", "sink", "eta_q_from4"}
    assert measures | {f"{name}_se" for name in measures} <= set(table.columns)
    assert table["score_class"].tolist() == score_class(table["share_positional"]).tolist()
    assert table["class_balanced"].tolist() == classify(table["r_q_balanced"], table["r_k_balanced"]).tolist()
    follows = periodic(table["eta_q"], table["r_q"]) | periodic(table["eta_k"], table["r_k"])
    assert (table["periodic"] == follows).all()
    for name in measures:
        np.testing.assert_array_equal(table[name], found.value(name))
        np.testing.assert_allclose(table[f"{name}_se"], found.error(name), rtol=1e-12)
    assert data["eta_q"].sizes == {"checkpoint": 1, "sample": 5, "head": 3}
    for kind in "qk":
        np.testing.assert_allclose(data[f"energy_{kind}"].sum("pair"), 1)
    assert data["signal_k"].sum("pair").values[0, 1] == pytest.approx(axes.r_k[1, 0], abs=1e-9)
    rotates = data["energy_q"].notnull().values[0]
    assert data["pair"].values[rotates[2]].tolist() == [-1], "layer 1 does not rotate"
    assert (rotates[:2].sum(axis=1) == DIM // 2).all()
    measured_at = data["distance"].values[data["distance_score"].notnull().values[0, 0]]
    assert measured_at.max() == WINDOW - 5


def test_axes_that_continue_those_before_overlap_with_them(measured):
    found = measured[1]
    again = continuity((found.v, found.loo_v), (found.v, found.loo_v))
    np.testing.assert_allclose(again["overlap"][0], 1)
    assert again["overlap_pc"].tolist() == [0, 0, 0]
    assert again["same_axis"].tolist() == [1, 1, 1]
    first = continuity(None, (found.v, found.loo_v))
    assert np.isnan(first["overlap"]).all()


def test_what_all_keys_of_a_document_share_decides_nothing(rng):
    """Documents with keys of their own: within each, scores vary no more than without."""
    heads, rotation = HeadIndex.of([(0, 0)], 1), Rotation.none(DIM)
    plain, right = [], []
    for _ in range(6):
        q, k = (documents(rng, rotation, 32, length=60) for _ in "qk")
        k = k + 0.8 * rng.standard_normal((32, 1, DIM))
        pairs = [(a[None], b[None]) for a, b in zip(q, k, strict=True)]
        made = [unit_of(heads, [60], pairs[g::16]) for g in range(16)]
        found = numbers(made, 60)
        truth = score_variance_reference(q, k)
        plain.append(anatomy_reference(q, k)[0].sum() / truth)
        right.append(found.value("score_sd")[0] ** 2 / truth)
    assert np.mean(plain) > 1.3
    assert 0.9 < np.mean(right) < 1.15


def test_an_unknown_rotation_leaves_what_needs_none(vectors):
    q, k = vectors
    unknown = dict.fromkeys(ROTATIONS)
    made = [unit_of(HEADS, [WINDOW], list(zip(q[g], k[g], strict=True)), unknown, SCALE) for g in range(4)]
    found = numbers(made)
    for name in ("r_q_const", "r_k_const_from4"):
        assert np.isnan(found.value(name)).all()
    for name in ("R_q", "eta_q", "share_key", "score_sd"):
        assert np.isfinite(found.value(name)).all()
    assert np.isnan(found.arrays["distance_score"]).all()
    assert np.isnan(found.arrays["energy_q"]).all()


def test_a_window_too_short_for_scores(rng):
    heads = HeadIndex.of([(0, 0)], 1)
    made = [unit_of(heads, [6], [(rng.standard_normal((1, 6, 2)),) * 2 for _ in range(3)]) for _ in range(3)]
    found = numbers(made, 6, 2)
    assert np.isnan(found.value("share_key")[0])
    assert np.isfinite(found.value("eta_q")[0])


def test_axes_and_paths_read_back(units, measured, tmp_path):
    axes, _ = measured
    written = CheckpointAxes.of(units, WINDOW, axes.v)
    write_tensors(tmp_path / "axes.safetensors", *dump_axes({"b/1": written, "a": written}))
    found = read_axes(tmp_path / "axes.safetensors")
    assert list(found) == ["b/1", "a"]
    again = found["a"]
    assert again.scales == {0: SCALE, 1: SCALE}
    np.testing.assert_allclose(again.v, axes.v, atol=1e-6)
    t = np.arange(WINDOW)
    np.testing.assert_allclose(again.path_q.at(TURN, t), written.path_q.at(TURN, t), atol=1e-5)
    assert again.rotations[1].pairs.shape == (0, 2)
    np.testing.assert_allclose(again.rotations[0].frequency, TURN.frequency)
