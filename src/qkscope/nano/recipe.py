"""The nano study's recipe: the model's shape, its training in phases, its text, and the study file that follows.

Knows nothing of torch: training itself is in `nano.py`.
"""

from __future__ import annotations

import hashlib
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkscope.errors import CorpusError

END = 256  # the token after each file; tokens 0..255 are bytes
SKIPPED = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "encodings",
    "pydoc_data",
    "__pycache__",
}


@dataclass(frozen=True)
class Phase:
    """A stretch of training with one window, one rope_theta and a learning rate that goes linearly first -> last."""

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
    """All that decides the trained weights, but for the seed and the text."""

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
        """Training cut at its checkpoints, in order."""
        found = []
        for phase in self.phases:
            for start, stop in zip((phase.start, *phase.saves), phase.saves, strict=False):
                found.append(Piece(phase, start, stop))
        return tuple(found)


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
    """The standard library's sources, but for tests and tables; `held_out` long enough files stay out of training."""
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
    end = np.array([END], dtype=np.int16)
    parts = [
        part for name in trained for part in (np.frombuffer(files[name], np.uint8).astype(np.int16), end)
    ]
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
