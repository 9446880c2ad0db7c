"""A results folder is one set of files: what is damaged, edited or of two runs is an error that names it."""

from __future__ import annotations

import json
import os
import random
from contextlib import suppress
from pathlib import Path

import pytest
from small_study import make_study, undrawn

from qkscope import store
from qkscope.errors import StoreError
from qkscope.results import load_results, manifest
from qkscope.run import run, status


@pytest.fixture(autouse=True)
def at_once(monkeypatch, no_drawing):
    monkeypatch.setattr(manifest, "PAUSE", 0.0)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        undrawn(patch)
        run(make_study(folder, groups=2, count=4), folder / "out")
    return folder / "out"


def damaged_copies(data: bytes, seed: int):
    """Seeded single-bit flips and truncations."""
    draw = random.Random(seed)
    for _ in range(100):
        place = draw.randrange(len(data))
        yield data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]
    for _ in range(40):
        yield data[: draw.randrange(len(data))]


@pytest.mark.parametrize("name", ["qk.csv", "heads.csv", "causes.csv", "measures.safetensors", "study.yaml"])
def test_every_flipped_bit_and_every_truncation_of_a_table_is_noticed(done, name):
    path = done / name
    data = path.read_bytes()
    try:
        for wrong in damaged_copies(data, seed=len(data)):
            path.write_bytes(wrong)
            with pytest.raises(StoreError, match=f"{name}.*not the file that qkscope wrote"):
                load_results(done)
    finally:
        path.write_bytes(data)
    load_results(done)


def test_one_digit_under_the_same_size_and_time_is_noticed_and_put_right(done, capsys):
    path = done / "qk.csv"
    data, times = path.read_bytes(), path.stat()
    place = data.rindex(b"1")
    path.write_bytes(data[:place] + b"2" + data[place + 1 :])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert any("qk.csv" in line for line in status(done, verify=True).damage)
    run(done.parent / "study.yaml", done)
    assert "merging 6 units" in capsys.readouterr().err
    assert path.read_bytes() == data
    assert status(done, verify=True).damage == ()


def test_every_flipped_bit_of_the_manifest_is_noticed_or_harmless(done):
    path = done / manifest.NAME
    data, before, noticed = path.read_bytes(), load_results(done).qk, 0
    try:
        for wrong in damaged_copies(data, seed=1):
            path.write_bytes(wrong)
            with suppress(StoreError):
                noticed += 1
                assert load_results(done).qk.equals(before)
                noticed -= 1
    finally:
        path.write_bytes(data)
    assert noticed > 100


def write_set(folder, version, names=("a.csv", "b.csv", "c.csv")):
    with manifest.replacing_set(folder, version) as staged:
        for name in names:
            store.write_text(staged / name, version)


@pytest.mark.parametrize("moves", [0, 1, 2])
def test_a_set_that_is_only_half_in_place_is_not_read(tmp_path, monkeypatch, moves):
    """Killed after any number of renames, the folder holds no set until the run is repeated."""
    write_set(tmp_path, "old")
    rename, left = Path.replace, [moves]

    def deadly(self, target):
        if target.parent == tmp_path and target.name != manifest.NAME:
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", deadly)
    with pytest.raises(KeyboardInterrupt):
        write_set(tmp_path, "new")
    monkeypatch.setattr(Path, "replace", rename)
    with pytest.raises(StoreError, match="not the file that qkscope wrote"):
        manifest.read_set(tmp_path, lambda: "half of two")
    assert not manifest.is_finished(tmp_path, "new")
    write_set(tmp_path, "new")
    assert manifest.read_set(tmp_path, (tmp_path / "c.csv").read_text) == "new"
    assert len(list(tmp_path.iterdir())) == 4


def test_a_set_swapped_while_it_is_read_is_read_again(tmp_path):
    write_set(tmp_path, "first")
    read = []

    def load():
        a = (tmp_path / "a.csv").read_text()
        if not read:
            write_set(tmp_path, "second")
        read.append((a, (tmp_path / "b.csv").read_text()))
        return read[-1]

    assert manifest.read_set(tmp_path, load) == ("second", "second")
    assert read[0] == ("first", "second")


def test_tables_of_the_set_before_go(tmp_path):
    for names in (["qk.csv", "qk_64.csv", "other.parquet"], ["qk.csv"]):
        write_set(tmp_path, "x", names)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["manifest.json", "qk.csv"]


@pytest.mark.parametrize("name", ["../out.csv", "/etc/passwd", "a/../../b"])
def test_a_manifest_names_nothing_outside_its_folder(tmp_path, name):
    made = {"format": 1, "made_from": "", "finished": True, "tables": {name: [1, "0" * 40]}, "drawn": {}}
    (tmp_path / manifest.NAME).write_text(json.dumps(made))
    with pytest.raises(StoreError, match="invalid file entry"):
        manifest.read_manifest(tmp_path)


def test_a_table_of_another_program_needs_no_manifest(tmp_path):
    (tmp_path / "qk.csv").write_text("model,layer,head,pc,r_q,r_k\nstep1,0,0,0,0.5,0.5\n")
    assert len(load_results(tmp_path).qk) == 1
