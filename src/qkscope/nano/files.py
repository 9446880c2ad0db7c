"""What the nano training keeps on disk to be resumed: its state, its log, and marks of finished checkpoints.

A state or a checkpoint counts only if it is whole and carries the key of the very training that asks for it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qkscope import store
from qkscope.errors import StoreError
from qkscope.nano.recipe import Text

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass
class State:
    """Training after `done` pieces: weights and Adam's moments, and the log of how it came there."""

    arrays: Arrays
    done: int = 0
    updates: int = 0
    log: list[dict[str, Any]] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)


def write_corpus(folder: Path, text: Text) -> None:
    wanted = {name.replace("/", "--") + ".txt": data for name, data in text.held_out.items()}
    for name, data in wanted.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            store.write_bytes(path, data)
    for path in folder.glob("*.txt"):  # of an earlier seed or another Python
        if path.name not in wanted:
            path.unlink()


def write_state(path: Path, state: State, key: str) -> None:
    meta = {
        "key": key,
        "done": state.done,
        "updates": state.updates,
        "log": state.log,
        "curve": state.curve,
    }
    store.write_tensors(path, state.arrays, meta)


def read_state(path: Path, key: str) -> State | None:
    """The state that an interrupted training left, if it is whole and of this very training."""
    if not path.is_file():
        return None
    try:
        arrays, meta = store.read_tensors(path)
    except StoreError:
        return None
    if meta.pop("key") != key:
        return None
    return State(arrays, **meta)


def is_whole(folder: Path, key: str) -> bool:
    """Whether a checkpoint of this very training is there, with the weights that were written."""
    try:
        mark = json.loads((folder / "nano.json").read_text())
        return bool(mark["key"] == key and mark["weights"] == weights_digest(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def weights_digest(folder: Path) -> str:
    return hashlib.blake2b((folder / "model.safetensors").read_bytes(), digest_size=20).hexdigest()


def read_log(out: Path, key: str) -> list[dict[str, Any]] | None:
    try:
        log = json.loads((out / "training.json").read_text())
        return list(log["checkpoints"]) if log["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
