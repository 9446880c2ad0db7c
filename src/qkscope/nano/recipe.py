"""The nano study's recipe and its folder: the model's shape, training phases and text, and files to resume from.

A state or checkpoint is used only if it is complete and has the key of the same training. Nothing here needs torch:
training itself is in `training.py`.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qkscope import store
from qkscope.errors import CorpusError, StoreError

END = 256  # the token after each file; tokens 0..255 are bytes
SKIPPED = {
    "site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__pycache__"
}  # fmt: skip


@dataclass(frozen=True)
class Phase:
    """A phase of training with one window and one rope_theta; the learning rate changes linearly."""

    name: str
    label: str
    window: int
    rope_theta: float
    batch: int
    start: int
    saves: tuple[int, ...]
    first_rate: float
    last_rate: float
    warmup: int = 0

    def rate(self, step: int) -> float:
        """The learning rate of the step that follows `step` steps."""
        done = (step - self.start) / max(1, self.saves[-1] - self.start)
        warm = min(1.0, (step - self.start + 1) / self.warmup) if self.warmup else 1.0
        return warm * (self.first_rate + (self.last_rate - self.first_rate) * done)


@dataclass(frozen=True)
class Recipe:
    """Everything that determines the trained weights, except the seed and the text."""

    layers: int = 12
    q_heads: int = 4
    kv_heads: int = 1
    head_dim: int = 32
    hidden: int = 64
    intermediate: int = 192
    init: float = 0.05
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    held_out: int = 64
    validation: int = 16
    phases: tuple[Phase, ...] = (
        Phase("stage1", "Stage 1", 256, 5e4, 4, 0, (0, 50, 180, 360, 540), 4e-3, 4e-3, warmup=20),
        Phase("stage2", "Stage 2", 256, 5e4, 4, 540, (650,), 4e-3, 4e-3),
        Phase("stage3", "Stage 3", 256, 5e4, 4, 650, (760,), 4e-3, 1e-4),
        Phase("lc-256-to-512", "LC 256→512", 512, 2e6, 2, 0, (40, 80), 1.2e-3, 1e-4, warmup=5),
        Phase("lc-512-to-1k", "LC 512→1K", 1024, 5e6, 1, 0, (40, 80), 1.2e-3, 1e-4, warmup=5),
    )

    @property
    def windows(self) -> tuple[int, ...]:
        return tuple(sorted({phase.window for phase in self.phases}))

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The parts of training from one checkpoint to the next, in order."""
        return tuple(
            Piece(phase, start, stop)
            for phase in self.phases
            for start, stop in zip((phase.start, *phase.saves), phase.saves, strict=False)
        )


@dataclass(frozen=True)
class Piece:
    """The steps `start` to `stop` of a phase, which end in a checkpoint."""

    phase: Phase
    start: int
    stop: int

    @property
    def name(self) -> str:
        return f"{self.phase.name}-step-{self.stop}"

    @property
    def tokens(self) -> int:
        return (self.stop - self.start) * self.phase.batch * self.phase.window


@dataclass(frozen=True)
class Text:
    """Training text as one stream of tokens, int16 (tokens,), and the files kept out of it, by name."""

    stream: np.ndarray[Any, Any]
    held_out: dict[str, bytes]

    @property
    def digest(self) -> str:
        digest = hashlib.blake2b(self.stream.tobytes(), digest_size=20)
        for name, data in self.held_out.items():
            digest.update(f"{name}|{len(data)}|".encode() + data)
        return digest.hexdigest()


def study_text(recipe: Recipe, root: str) -> str:
    """The nano study as a study file; `root` leads from that file to the demo's folder (`../results/nano/`)."""
    longest = max(recipe.windows)
    lines = [
        "# The nano SmolLM3: a study of checkpoints that `qkscope demo` trains, on held-out files.",
        "# The demo trains them and runs this study; `qkscope run` on this file then reuses what is finished.",
        "name: nano",
        "title: A nano SmolLM3, trained on the Python standard library",
        "dtype: float32",
        f"corpus: {{source: {root}corpus, min_tokens: {longest}}}",
        "heads: all",
        f"windows: [{', '.join(map(str, recipe.windows))}]",
        "measures: [rotation, per_kind, plasticity]",
        "plasticity: {keys: 4, documents: 4}",
        "loss: true",
        "phases:",
    ]
    for phase in recipe.phases:
        lines += [f"  - label: {phase.label}", f"    window: {phase.window}", "    checkpoints:"]
        lines += [f"      - folder: {root}checkpoints/{phase.name}-step-{step}" for step in phase.saves]
    return "\n".join(lines) + "\n"


def read_text(recipe: Recipe, seed: int) -> Text:
    """The standard library's sources without tests and tables; `held_out` long enough files are not trained on."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(_sources(root))}
    files = {name: data for name, data in files.items() if _is_utf8(data)}
    longest = max(recipe.windows)
    fit = [name for name, data in files.items() if len(data) >= longest]
    if len(fit) < 2 * recipe.held_out:
        raise CorpusError(
            f"{root}: {len(fit)} source files of at least {longest} bytes; the nano study needs "
            f"{2 * recipe.held_out}. Use a Python that comes with its standard library's sources"
        )
    chance = random.Random(seed)
    held_out = set(chance.sample(fit, recipe.held_out))
    trained = [name for name in files if name not in held_out]
    chance.shuffle(trained)
    end = np.int16(END)
    parts = [np.append(np.frombuffer(files[name], np.uint8).astype(np.int16), end) for name in trained]
    return Text(np.concatenate(parts), {name: files[name] for name in sorted(held_out)})


def _sources(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir() and path.name not in SKIPPED:
            yield from _sources(path)
        elif path.suffix == ".py" and path.is_file():
            yield path


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass
class State:
    """Training after `done` pieces: weights, Adam's moments and the log so far."""

    arrays: Arrays
    done: int = 0
    updates: int = 0
    log: list[dict[str, Any]] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)


RECORD = "training.json"
STATE = ".training.safetensors"
WEIGHTS = "model.safetensors"
CHECKPOINT_FILES = {
    *("nano.json", "config.json", "generation_config.json", WEIGHTS),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
}


def claim_folder(out: Path, text: Text, key: str, pieces: Collection[str], replace: bool) -> None:
    """Record which training `out` holds, after checking that no finished or foreign files would be lost.

    With `replace`, checkpoints and texts of another training are deleted; files that no training wrote never are.
    """
    record = _record(out)
    recorded: dict[str, str] = dict(record.get("corpus") or {})
    wanted = {name: bytes_digest(data) for name, data in corpus_files(text).items()}
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
        path
        for path in texts
        if path.is_dir() or store.file_digest(path) not in (wanted.get(path.name), recorded.get(path.name))
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
    """Files in a checkpoint folder that no training wrote."""
    return [path for path in _visible(folder) if path.name not in CHECKPOINT_FILES]


def corpus_files(text: Text) -> dict[str, bytes]:
    return {name.replace("/", "--") + ".txt": data for name, data in text.held_out.items()}


def write_corpus(folder: Path, text: Text) -> None:
    for name, data in corpus_files(text).items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != data:
            store.write_bytes(path, data)


def bytes_digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def _visible(folder: Path) -> list[Path]:
    """What is in a folder, except hidden files, which are left alone."""
    return [p for p in sorted(folder.iterdir()) if not p.name.startswith(".")] if folder.is_dir() else []


def _json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is none."""
    try:
        found = store.read_json(path)
    except StoreError:
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
    """The state of an interrupted training; None if there is none, or it is damaged or of another training."""
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
    """Whether a folder has a complete checkpoint of this training."""
    mark, weights = _json(folder / "nano.json"), folder / WEIGHTS
    return mark.get("key") == key and weights.is_file() and mark.get("weights") == store.file_digest(weights)


def read_log(out: Path, key: str) -> list[dict[str, Any]] | None:
    """The checkpoints of a finished training; None if the record is of another one."""
    log = _json(out / RECORD)
    found = log.get("checkpoints")
    return found if log.get("key") == key and isinstance(found, list) else None
