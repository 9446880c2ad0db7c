"""measures.safetensors: what is written is read back, lazily; files that are damaged or foreign are refused."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from frames import results_of
from simulated import measured, truth

from qkscope.errors import StoreError, TableError
from qkscope.measures.registry import variables
from qkscope.results import aggregate, load_results
from qkscope.results.dataset import NAME, CellData, CellInfo, dataset, read_dataset, write_dataset
from qkscope.results.tables import select
from qkscope.results.taxonomy import Thresholds
from qkscope.study.timeline import Timeline, TimelineCheckpoint

HEADS = [(0, 0), (0, 1), (2, 0)]
SAMPLED = ("r_q", "r_k", "explained_variance", "share_key")


def cell(
    name: str, groups: int = 4, heads: list[tuple[int, int]] = HEADS, seed: int = 0, pcs: int = 2, **info: Any
) -> CellData:
    """A cell of random numbers with every kind of variable."""
    rng, count = np.random.default_rng(seed), len(heads)
    arrays = {each: rng.uniform(-0.9, 0.9, (1 + groups, count)) for each in SAMPLED}
    arrays |= {
        each: rng.uniform(0, 1, count) for each in ("depth", "rope", "kv_head", "n_q", "n_k", "axis_lost")
    }
    for each in ("r_q", "r_k", "explained_variance", "r_q_se", "r_k_se", "r_q_null", "r_k_null"):
        arrays[f"pc_{each}"] = rng.uniform(0, 1, (count, pcs))
    for each in ("distance_score", "distance_score_se"):
        arrays[each] = rng.normal(size=(count, 7))
    arrays["axis_lost"] = np.zeros(count)
    return CellData(CellInfo(name, **{"window": 64, "groups": groups} | info), heads, arrays)


@pytest.fixture
def cells() -> list[CellData]:
    wide = [(0, 0), (1, 3), (2, 0)]
    return [
        cell("a", seed=1),
        cell("a", seed=2, window=16, own=False, matched=True),
        cell("b", groups=2, heads=wide, seed=3, pcs=3),
    ]


@pytest.fixture
def path(cells: list[CellData], tmp_path: Path) -> Path:
    write_dataset(tmp_path / NAME, cells)
    return tmp_path / NAME


def test_what_is_written_is_read(cells: list[CellData], path: Path) -> None:
    made, read = dataset(cells), read_dataset(path)
    assert set(made) == set(read)
    for name in made:
        assert made[name].attrs == read[name].attrs
        assert made[name].attrs["label"]
        if "sample" in made[name].dims:
            whole, left = made[name].values[:, :1], made[name].values[:, 1:]
            np.testing.assert_array_equal(read[name].values[:, :1], whole)
            # Float32 differences from the whole.
            np.testing.assert_allclose(read[name].values[:, 1:], left, rtol=0, atol=2**-23 * 2)
        elif str(name).endswith("_se"):
            np.testing.assert_allclose(read[name].values, made[name].values, rtol=2**-23)
        else:
            np.testing.assert_array_equal(read[name].values, made[name].values)
    for name in made.coords:
        assert made[name].values.tolist() == read[name].values.tolist()


def test_heads_groups_and_entries_that_a_cell_lacks_are_nan(cells: list[CellData], path: Path) -> None:
    data = read_dataset(path)
    assert data["head"].values.tolist() == ["L0H0", "L0H1", "L1H3", "L2H0"]
    r_q = data["r_q"]
    assert r_q.shape == (3, 5, 4)
    assert np.isfinite(r_q.values[0][:, [0, 1, 3]]).all()
    assert np.isnan(r_q.sel(head="L1H3").values[:2]).all()
    assert np.isnan(r_q.values[2, 3:]).all(), "the third cell has two groups only"
    np.testing.assert_array_equal(r_q.values[2, 0, [0, 2, 3]], cells[2].arrays["r_q"][0])
    assert data.sizes["pc"] == 3
    assert np.isnan(data["pc_r_q"].values[0, :, 2]).all()


def test_only_what_is_used_is_read(path: Path) -> None:
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    start = json.loads(whole[8 : 8 + size])["share_key"]["data_offsets"][0] + 8 + size
    path.write_bytes(whole[:start] + bytes([whole[start] ^ 1]) + whole[start + 1 :])
    data = read_dataset(path)
    assert np.isfinite(data["r_q"].values[0, 0, 0])
    with pytest.raises(StoreError, match="share_key") as caught:
        data["share_key"].values  # noqa: B018
    assert str(path) in str(caught.value)


def test_a_file_replaced_after_it_was_opened_is_still_the_old_one(cells: list[CellData], path: Path) -> None:
    data = read_dataset(path)
    write_dataset(path, [cell("other", seed=9)])
    np.testing.assert_array_equal(data["r_k"].values[0, 0, [0, 1, 3]], cells[0].arrays["r_k"][0])


def test_a_folder_without_a_measure_lacks_it_and_unknown_ones_are_kept(
    path: Path, cells: list[CellData], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load_results(path.parent).data
    assert "share_match" not in data
    assert np.isnan(aggregate.values(select(data, "own"), "share_match")).all()
    # A folder written by a package that declares one more measure.
    known = variables()
    more = known | {"cone": replace(known["share_key"], name="cone", label="cone of keys")}
    monkeypatch.setattr("qkscope.results.dataset.variables", lambda: more)
    added = {"cone": np.full((5, 3), 0.25)}
    write_dataset(path, [replace(cells[0], arrays={**cells[0].arrays, **added})])
    monkeypatch.undo()
    results = load_results(path.parent)
    assert results.heads["cone"].tolist() == [0.25] * 3
    assert results.heads["cone_se"].tolist() == [0.0] * 3
    assert results.data["cone"].attrs["label"] == "cone of keys"


# --- aggregates, against loops -------------------------------------------------------------------------------------


def slow_mean(values: np.ndarray, where: np.ndarray, groups: int) -> list[float]:
    """Of one checkpoint, values (samples, heads): the means that `over_heads` promises."""
    there = [h for h in range(values.shape[1]) if where[h] and np.isfinite(values[0, h])]
    complete = [h for h in there if all(np.isfinite(values[g, h]) for g in range(1 + groups))]
    first = sum(values[0, h] for h in there) / len(there) if there else np.nan
    found = [first]
    for g in range(1, values.shape[0]):
        if g > groups or not complete:
            found.append(np.nan)
        else:
            found.append(first + sum(values[g, h] - values[0, h] for h in complete) / len(complete))
    return found


def slow_error(left: list[float]) -> float:
    if len(left) < 2 or any(np.isnan(each) for each in left):
        return np.nan
    mean = sum(left) / len(left)
    return float(np.sqrt((len(left) - 1) / len(left) * sum((each - mean) ** 2 for each in left)))


def array(rng: np.random.Generator, groups: tuple[int, ...] = (4, 4, 2, 0), heads: int = 6) -> xr.DataArray:
    """Random values of checkpoints with different numbers of groups, some heads missing."""
    values = rng.normal(size=(len(groups), 5, heads))
    values[0, 2, 1] = values[1, :, 3] = values[2, 0, 4] = values[3, 0, 0] = np.nan
    for i, count in enumerate(groups):
        values[i, 1 + count :] = np.nan
    names = [f"c{i}" for i in range(len(groups))]
    coords = {"checkpoint": names, "sample": np.arange(5), "groups": ("checkpoint", list(groups))}
    return xr.DataArray(values, dims=("checkpoint", "sample", "head"), coords=coords)


@pytest.mark.parametrize("some", [False, True])
def test_means_over_heads_and_their_errors(rng: np.random.Generator, some: bool) -> None:
    values = array(rng)
    where = np.array([True, True, False, True, True, False]) if some else np.ones(6, dtype=bool)
    found = aggregate.over_heads(values, xr.DataArray(where, dims="head") if some else None)
    assert found.dims == ("checkpoint", "sample")
    errors = aggregate.jackknife(found)
    for i, groups in enumerate(values["groups"].values.tolist()):
        expected = slow_mean(values.values[i], where, groups)
        np.testing.assert_allclose(found.values[i], expected, rtol=0, atol=1e-14)
        np.testing.assert_allclose(errors.values[i], slow_error(expected[1 : 1 + groups]), rtol=0, atol=1e-14)


def test_no_head_gives_no_mean(rng: np.random.Generator) -> None:
    values = array(rng)
    assert np.isnan(
        aggregate.over_heads(values, xr.zeros_like(values.isel(sample=0, drop=True), dtype=bool))
    ).all()


def test_errors_of_heads(rng: np.random.Generator) -> None:
    values = array(rng)
    found = aggregate.jackknife(values)
    assert found.dims == ("checkpoint", "head")
    for i, groups in enumerate(values["groups"].values.tolist()):
        for h in range(values.sizes["head"]):
            left = values.values[i, 1 : 1 + groups, h].tolist()
            np.testing.assert_allclose(found.values[i, h], slow_error(left), rtol=0, atol=1e-14)


def test_differences_are_paired_and_only_where_groups_are_the_same(rng: np.random.Generator) -> None:
    values = array(rng)
    moved = aggregate.difference(values, "c0", "c1")
    np.testing.assert_array_equal(moved.values, values.values[1] - values.values[0])
    left = [values.values[1, g, 0] - values.values[0, g, 0] for g in range(1, 5)]
    assert aggregate.jackknife(moved).values[0] == pytest.approx(slow_error(left), abs=1e-14)
    other = aggregate.difference(values, "c0", "c2")
    assert np.isfinite(other.values[0, 2])
    assert np.isnan(aggregate.jackknife(other)).all()


def test_an_axis_that_a_left_out_sample_lost_has_no_error(cells: list[CellData]) -> None:
    lost = replace(cells[0], arrays={**cells[0].arrays, "axis_lost": np.array([0.0, 2.0, 0.0])})
    data = select(dataset([lost]), "own")
    left = aggregate.values(data, "r_q").values[0]
    assert np.isnan(left[1:, 1]).all()
    assert np.isfinite(left[0]).all()
    assert np.isfinite(aggregate.values(data, "share_key").values).all()


def test_heads_of_different_populations_are_not_mixed(cells: list[CellData]) -> None:
    one = replace(cells[0], arrays={**cells[0].arrays, "rope": np.array([1.0, 0.0, 1.0])})
    data = select(dataset([one]), "own")
    values = one.arrays["r_q"][0]
    for population, rows in (("RoPE", [0, 2]), ("NoPE", [1]), ("all", [0, 1, 2])):
        table = aggregate.means(data, ["a"], ("r_q",), population=population)
        assert table["mean_r_q"][0] == pytest.approx(values[rows].mean(), abs=1e-15)


# --- what users call -----------------------------------------------------------------------------------------------


def test_own_and_matched_cells_heads_and_changes() -> None:
    names = ["step0", "step1", "step2"]
    tables = [measured(names, *truth(0, 3), seed=seed, noise=0.02) for seed in (1, 2)]
    checkpoints = tuple(
        TimelineCheckpoint(name, name, "Stage", window=64, step=i) for i, name in enumerate(names)
    )
    (qk, loo), (qk_first, loo_first) = tables
    timeline = Timeline("t", "t", checkpoints, matched_window=16)
    results = results_of(qk, timeline, loo, matched=qk_first, left_out_matched=loo_first)
    first = results.matched()
    assert first is not None
    assert results.own().sizes == first.sizes
    assert set(results.own().sizes) >= {"checkpoint", "sample", "head"}
    assert results.to_dataframe()["r_q"].tolist() == qk["r_q"].tolist()
    assert results.to_dataframe(matched=True)["r_q"].tolist() == qk_first["r_q"].tolist()
    row = results.head(2, 3, matched=True)
    at = (qk_first["layer"] == 2) & (qk_first["head"] == 3)
    assert row["r_k"].tolist() == qk_first[at]["r_k"].tolist()
    moved = results.changed("step0", "step2", n=1, by="r_k")
    r_k = qk.pivot(index=["layer", "head"], columns="model", values="r_k")
    change = r_k["step2"] - r_k["step0"]
    assert (moved["layer"][0], moved["head"][0]) == change.abs().idxmax()
    assert abs(moved["r_k_change"][0]) == pytest.approx(change.abs().max(), abs=1e-15)
    with pytest.raises(TableError, match="step9"):
        results.changed("step0", "step9")
    strict = results.rethreshold(0.95, 0.01)
    assert strict.thresholds == Thresholds(0.95, 0.01)
    assert (strict.heads["class"] != results.heads["class"]).any()
    assert strict.data is results.data
    with pytest.raises(TableError, match="matched window"):
        results_of(qk, timeline, loo).to_dataframe(matched=True)


# --- bad files -----------------------------------------------------------------------------------------------------


def rewritten(path: Path, change: Any) -> None:
    """The file with `change(header, description)` applied; arrays stay as they are."""
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    described = json.loads(header["__metadata__"]["dataset"])
    change(header, described)
    header["__metadata__"]["dataset"] = json.dumps(described)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + size :])


def set_in(*keys: Any, value: Any) -> Any:
    """A change of the description."""

    def change(_: dict[str, Any], described: Any) -> None:
        for key in keys[:-1]:
            described = described[key]
        described[keys[-1]] = value

    return change


def grow(header: dict[str, Any], described: dict[str, Any]) -> None:
    header["r_q"]["shape"] = [3, 4, 5]


BAD = {
    "another format": set_in("format", value=99),
    "two own cells": set_in("cells", 1, "own", value=True),
    "duplicate cell": lambda h, d: d["cells"].append(d["cells"][0]),
    "window NaN": set_in("cells", 0, "window", value=float("nan")),
    "window negative": set_in("cells", 0, "window", value=-1),
    "window huge": set_in("cells", 0, "window", value=10**30),
    "groups huge": set_in("cells", 0, "groups", value=2**31 - 1),
    "groups text": set_in("cells", 0, "groups", value="4"),
    "own text": set_in("cells", 0, "own", value="yes"),
    "no name": set_in("cells", 0, "checkpoint", value=""),
    "name not text": set_in("cells", 0, "checkpoint", value=7),
    "unknown field": set_in("cells", 0, "mood", value="good"),
    "cells not a list": set_in("cells", value=5),
    "duplicate head": set_in("heads", 1, value=[0, 0]),
    "head NaN": set_in("heads", 1, value=[0, float("nan")]),
    "head huge": set_in("heads", 3, value=[2, 10**20]),
    "head negative": set_in("heads", 1, value=[-1, 0]),
    "head of three": set_in("heads", 1, value=[0, 1, 2]),
    "absurd length": set_in("lengths", "pc", value=10**18),
    "length NaN": set_in("lengths", "pc", value=float("nan")),
    "distances without end": set_in("lengths", "distance", value=10**6),
    "wrong dims": set_in("variables", 0, "dims", value=["pc", "nothing"]),
    "dims of text": set_in("variables", 0, "dims", value="pc"),
    "variable without name": set_in("variables", 0, "name", value=""),
    "variable named by a path": set_in("variables", 0, "name", value="../x"),
    "no digest": set_in("digests", value={}),
    "no array": lambda h, d: h.pop("r_q"),
    "wrong shape": grow,
    "wrong type": lambda h, d: h["r_q"].update(dtype="F16"),
    "offset beyond the file": lambda h, d: h["r_q"].update(data_offsets=[0, 10**15]),
    "offset negative": lambda h, d: h["r_q"].update(data_offsets=[-8, 100]),
    "no description": lambda h, d: d.clear(),
}


@pytest.mark.parametrize("how", BAD)
def test_a_wrong_header_is_refused(path: Path, how: str) -> None:
    rewritten(path, BAD[how])
    refused(path)


def refused(path: Path) -> None:
    """A StoreError that names the file, at once."""
    started = time.process_time()
    with pytest.raises(StoreError) as caught:
        read_dataset(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert time.process_time() - started < 1


def test_truncated_and_lengthened_files_are_refused(path: Path) -> None:
    whole = path.read_bytes()
    for size in (0, 4, 8, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        refused(path)
    path.write_bytes(whole + b"\0")
    refused(path)


def test_a_foreign_file_is_refused(path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"weight": np.zeros((2, 2), np.float32)}, path)
    refused(path)
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    refused(path)
    path.write_bytes(b"\x10" + bytes(7) + b"[" * 16)
    refused(path)


def test_groups_without_end_are_refused(path: Path) -> None:
    """Arrays of no head have no bytes, whatever the number of groups."""
    write_dataset(path, [cell("a", heads=[])])

    def change(header: dict[str, Any], described: dict[str, Any]) -> None:
        described["cells"][0]["groups"] = 2**31 - 1
        for name, entry in header.items():
            if name.endswith(".left_out"):
                entry["shape"][1] = 2**31 - 1

    rewritten(path, change)
    refused(path)


def test_a_sparse_array_of_gigabytes_is_refused_unread(path: Path) -> None:
    write_dataset(path, [CellData(CellInfo("a", 1), [(0, 0)], {"plasticity_map": np.zeros((1, 1, 1))})])

    def change(header: dict[str, Any], described: dict[str, Any]) -> None:
        described["lengths"] = {"query_bucket": 100_000, "key_bucket": 100_000}
        header["plasticity_map"].update(shape=[1, 1, 100_000, 100_000], data_offsets=[0, 8 * 10**10])

    rewritten(path, change)
    os.truncate(path, path.stat().st_size - 8 + 8 * 10**10)
    refused(path)


@pytest.mark.parametrize("size", [10**9, 2**40, 2**63])
def test_a_header_of_gigabytes_is_not_read(path: Path, size: int) -> None:
    path.write_bytes(size.to_bytes(8, "little"))
    os.truncate(path, min(8 + size, 4 * 10**9))
    refused(path)


def test_no_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nothing\.safetensors"):
        read_dataset(tmp_path / "nothing.safetensors")
