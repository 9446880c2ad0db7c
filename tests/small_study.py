"""A study of tiny checkpoints that runs in a second: three checkpoints, two windows, a dozen texts."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import pytest
from tiny import WORDS, save_checkpoint, tiny_tokenizer

STUDY = """\
name: small
windows: [16, 48]
corpus: texts
groups: {groups}
components: 4
device: cpu
tokenizer: tokenizer
phases:
  - label: Start
    window: 16
    checkpoints: [{{folder: checkpoint-1}}, {{folder: checkpoint-2}}]
  - label: Long
    window: 48
    checkpoints: [{{folder: checkpoint-3}}]
"""


def write_texts(folder: Path, count: int = 12, words: int = 60, seed: int = 0) -> None:
    draw = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        text = " ".join(draw.choice(WORDS) for _ in range(words - (number % 3)))
        (folder / f"{number:03d}.txt").write_text(text)


def make_study(folder: Path, groups: int = 4, **texts: int) -> Path:
    """Checkpoints, tokenizer, texts and `study.yaml` below `folder`; the study's path."""
    one_thread()
    write_texts(folder / "texts", **texts)
    tiny_tokenizer().save_pretrained(folder / "tokenizer")
    for number in (1, 2, 3):
        save_checkpoint(folder / f"checkpoint-{number}", seed=number)
    path = folder / "study.yaml"
    path.write_text(STUDY.format(groups=groups))
    return path


def one_thread() -> None:
    """Threads do not pay on matrices this small."""
    import torch

    torch.set_num_threads(1)


def undrawn(patch: pytest.MonkeyPatch) -> None:
    """Leave claims, figures and report out: they have tests of their own."""
    patch.setattr("qkscope.claims.summary", lambda results: {})
    patch.setattr("qkscope.figures.draw_all", lambda *args, **kwargs: [])
    patch.setattr("qkscope.report.write_report", lambda *args, **kwargs: None)


def without_drawing() -> None:
    """The same, for as long as this process lives."""
    undrawn(pytest.MonkeyPatch())


def run_quietly(study: Path, out: Path) -> None:
    """A run in a process of its own, without drawing."""
    from qkscope.run import run

    gc.freeze()  # a forked process need not look through what its libraries hold
    one_thread()
    without_drawing()
    run(study, out)


def run_undrawn(study: Path, out: Path) -> None:
    """A run in this process, without drawing: for fixtures of a module, which `no_drawing` does not reach."""
    from qkscope.run import run

    with pytest.MonkeyPatch.context() as patch:
        undrawn(patch)
        run(study, out)
