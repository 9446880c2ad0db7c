from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from qkscope import store
from qkscope.errors import StoreError

TENSORS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([1, 2], dtype=np.int64)}
META = {"heads": [1, 2], "name": "Größe </script>"}


def test_tensors_come_back_as_they_went(tmp_path):
    path = tmp_path / "deep" / "unit.safetensors"
    store.write_tensors(path, TENSORS, META)
    arrays, meta = store.read_tensors(path)
    assert meta == META == store.read_meta(path)
    assert all(np.array_equal(arrays[name], TENSORS[name]) for name in TENSORS)
    assert [p.name for p in path.parent.iterdir()] == ["unit.safetensors"]


def test_equal_tensors_are_equal_bytes_in_every_process():
    code = (
        "import sys, numpy as np; from qkscope import store\n"
        "arrays = {'a': np.arange(6.0).reshape(2, 3), 'b': np.array([1, 2])}\n"
        "sys.stdout.buffer.write(store.dump_tensors(arrays, {'name': 'x'}))"
    )
    made = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(6)
    }
    assert len(made) == 1


def same(arrays):
    return all(np.array_equal(arrays[n], a) and arrays[n].dtype == a.dtype for n, a in TENSORS.items())


def noticed(path):
    """None if the file is refused by name, else what was read from it."""
    try:
        return store.read_tensors(path)
    except StoreError as error:
        return None if str(path) in str(error) else (str(error), None)


def test_tensors_are_the_bytes_that_the_library_writes_but_for_the_order_of_the_header():
    from safetensors.numpy import load, save

    rng = np.random.default_rng(0)
    kinds = ("f8", "f4", "i8", "i4", "i2", "u1", "?")
    arrays = {f"{name}{kind}": rng.random((3, 2)).astype(kind) for name in "ba" for kind in kinds}
    arrays["empty"] = np.zeros((0, 4))
    data = store.dump_tensors(arrays, {"some": "words"})
    theirs = save(arrays)
    read = load(data)
    assert set(read) == set(arrays)
    assert all(
        np.array_equal(read[name], arrays[name]) and read[name].dtype == arrays[name].dtype for name in arrays
    )
    assert len(data) - int.from_bytes(data[:8], "little") == len(theirs) - int.from_bytes(
        theirs[:8], "little"
    )


def test_every_single_flipped_byte_and_every_truncation_is_noticed(tmp_path):
    path = tmp_path / "unit.safetensors"
    data = store.dump_tensors(TENSORS, META)
    for i in range(len(data)):
        path.write_bytes(data[:i] + bytes([data[i] ^ 0x10]) + data[i + 1 :])
        found = noticed(path)
        # Only the padding after the header may change without changing what is read.
        assert found is None or (found[1] == META and same(found[0]))
    for size in range(0, len(data), 7):
        path.write_bytes(data[:size])
        with pytest.raises(StoreError, match=r"unit\.safetensors"):
            store.read_tensors(path)


def test_a_failure_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "table.csv"
    store.write_text(path, "old")

    def fail():
        with store.replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_killed_in_mid_write_the_old_file_stays_and_the_litter_is_swept(tmp_path):
    path = tmp_path / "table.csv"
    store.write_text(path, "old")
    code = (
        "import sys, time; from pathlib import Path; from qkscope.store import replacing\n"
        "with replacing(Path(sys.argv[1])) as t:\n"
        "    t.write_text('half'); print('go', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"go\n"
    assert store.sweep(tmp_path) == []  # it is still being written
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert path.read_text() == "old"
    assert len(store.sweep(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_csv_floats_read_back_the_same_and_nan_is_empty(tmp_path):
    values = [0.1, 1 / 3, float("nan"), -1.0]
    store.write_csv(tmp_path / "t.csv", pd.DataFrame({"x": values}))
    text = (tmp_path / "t.csv").read_text()
    assert text.splitlines()[3] in ("", '""')
    again = pd.read_csv(tmp_path / "t.csv", skip_blank_lines=False)["x"]
    np.testing.assert_array_equal(again, values)


def test_json_refuses_what_json_does_not_have(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        store.write_json(tmp_path / "s.json", {"x": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_says_so(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"t\.csv.*disk is full.*kept"):
        store.write_text(tmp_path / "t.csv", "x")
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_a_folder_is_needed(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(StoreError, match="where a folder is needed"):
        store.write_text(tmp_path / "out" / "t.csv", "x")


def test_files_get_ordinary_permissions(tmp_path):
    old = os.umask(0o022)
    try:
        store.write_text(tmp_path / "t.csv", "x")
    finally:
        os.umask(old)
    assert (tmp_path / "t.csv").stat().st_mode & 0o777 == 0o644
    assert time.time() - (tmp_path / "t.csv").stat().st_mtime < 3600
