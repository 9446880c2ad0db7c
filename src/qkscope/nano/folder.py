"""Files that let the nano training resume: its state, its log, and a mark in each finished checkpoint.

A state or checkpoint is used only if it is complete and has the key of the same training.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Sequence
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


RECORD = "training.json"
STATE = ".training.safetensors"
CHECKPOINT_FILES = {
    *("nano.json", "config.json", "generation_config.json", "model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
}


def claim_folder(out: Path, text: Text, key: str, pieces: Collection[str], replace: bool) -> None:
    """Record that `out` is this training's, having made sure that nothing finished or foreign is in its way.

    The checkpoints and texts of another training go if `replace` says so; files that no training wrote never do.
    """
    record = _record(out)
    recorded: dict[str, str] = dict(record.get("corpus") or {})
    wanted = {name: file_digest(data) for name, data in corpus_files(text).items()}
    texts, folders = _visible(out / "corpus"), _visible(out / "checkpoints")
    keys = {_mark(path) for path in folders} | {record.get("key"), _state_key(out / STATE)}
    if not replace and keys - {None, key}:
        seed = f" (seed {record['seed']})" if "seed" in record else ""
        raise StoreError(
            f"{out} contains a training with another seed, recipe or Python version{seed}, whose checkpoints "
            "and results would be lost; choose another folder with --out, or pass --replace to overwrite them"
        )
    others = [path for path in folders if _mark(path) != key]
    foreign = [
        path for path in texts if _text_digest(path) not in (wanted.get(path.name), recorded.get(path.name))
    ]
    foreign += [each for path in others for each in (foreign_in(path) if _mark(path) else [path])]
    if (out / RECORD).exists() and not record:
        foreign.append(out / RECORD)
    refuse_foreign(out, foreign)
    if record.get("key") != key:
        # Texts of the training before stay on the record until they are gone.
        store.write_json(out / RECORD, {"key": key, "corpus": recorded | wanted, "checkpoints": []})
    elif not recorded:  # of an earlier version
        store.write_json(out / RECORD, {**record, "corpus": wanted})
    for path in texts:
        if path.name not in wanted:
            path.unlink()
    for path in others:
        if path.name not in pieces:  # the others are replaced one by one
            shutil.rmtree(path)


def refuse_foreign(out: Path, foreign: Sequence[Path]) -> None:
    if foreign:
        names = ", ".join(str(path) for path in foreign[:5]) + (" and more" if len(foreign) > 5 else "")
        raise StoreError(
            f"{out} contains files that the demo did not write and would overwrite: {names}. Choose another "
            "folder with --out, or move them away"
        )


def foreign_in(folder: Path) -> list[Path]:
    """What there is in a checkpoint folder that no training wrote."""
    return [path for path in _visible(folder) if path.name not in CHECKPOINT_FILES]


def corpus_files(text: Text) -> dict[str, bytes]:
    return {name.replace("/", "--") + ".txt": data for name, data in text.held_out.items()}


def write_corpus(folder: Path, text: Text) -> None:
    for name, data in corpus_files(text).items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            store.write_bytes(path, data)


def file_digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def _visible(folder: Path) -> list[Path]:
    """What is in a folder, but for hidden files, which are left alone."""
    return [p for p in sorted(folder.iterdir()) if not p.name.startswith(".")] if folder.is_dir() else []


def _text_digest(path: Path) -> str:
    return file_digest(path.read_bytes()) if path.is_file() else "a folder"


def _json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _record(out: Path) -> dict[str, Any]:
    """The training's record in a folder; empty if there is none, or it is not one of ours."""
    found = _json(out / RECORD)
    ours = isinstance(found.get("key"), str) and isinstance(found.get("corpus", {}), dict)
    return found if ours else {}


def _mark(folder: Path) -> str | None:
    """The key of the training that wrote a checkpoint folder; None if none did."""
    key = _json(folder / "nano.json").get("key")
    return None if key is None else str(key)


def _state_key(path: Path) -> str | None:
    try:
        return str(store.read_meta(path)["key"]) if path.is_file() else None
    except (StoreError, KeyError):
        return None  # damaged: it is no state


def write_state(path: Path, state: State, key: str) -> None:
    meta = {name: getattr(state, name) for name in ("done", "updates", "log", "curve")}
    store.write_tensors(path, state.arrays, {"key": key, **meta})


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
    mark = _json(folder / "nano.json")
    there = mark.get("key") == key and (folder / "model.safetensors").is_file()
    return there and mark.get("weights") == weights_digest(folder)


def weights_digest(folder: Path) -> str:
    return file_digest((folder / "model.safetensors").read_bytes())


def read_log(out: Path, key: str) -> list[dict[str, Any]] | None:
    """The checkpoints of a finished training; None if the record is of another one."""
    log = _json(out / RECORD)
    found = log.get("checkpoints")
    return found if log.get("key") == key and isinstance(found, list) else None
