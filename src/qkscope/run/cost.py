"""What a study costs before it is begun: units, tokens, disk and time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkscope.capture.architecture import Architecture
from qkscope.capture.memory import moments_bytes, weights_bytes
from qkscope.run.controls import controls
from qkscope.study import Checkpoint, Study, sources
from qkscope.sums.head_index import HeadIndex

if TYPE_CHECKING:
    from qkscope.corpus import Corpus

# Of the speed of a large matrix product, what a pass reaches: 0.7 to 0.9 was measured with 135 M parameters
# (benchmarks/RESULTS.md), half with 5 M, a third with the demo's.
REACHED = 0.7
SIDE = 1024


@dataclass(frozen=True)
class Looked:
    """A checkpoint on this machine, and what its configuration tells."""

    checkpoint: Checkpoint
    config: Any
    architecture: Architecture
    heads: HeadIndex


def cost(study: Study, looked: Mapping[str, Looked] | None = None, corpus: Corpus | None = None) -> str:
    """In words. Only what lies on this machine is looked at: a hub model's RoPE settings are known when it is run."""
    course = sources(study)
    local = all(Path(each.source.model).exists() for each in course)
    extra = controls(study, course) if local else []
    lines = [f"{len(course)} checkpoints: {_amount(study, course, corpus)}"]
    if extra:
        lines.append(
            f"{len(extra)} counterfactual checkpoints, because RoPE settings change: "
            f"{_amount(study, extra, corpus)} in addition (controls: {{rotation: false}} leaves them out)"
        )
    elif not local and study.kind == "training" and study.controls.rotation:
        lines.append(
            "plus 2 counterfactual checkpoints wherever RoPE settings change "
            "(controls: {rotation: false} leaves them out)"
        )
    known = looked or {}
    if corpus is not None and all(each.name in known for each in course):
        lines.append(_disk_and_time(study, [*course, *extra], known, corpus))
    return "\n".join(lines)


def _amount(study: Study, checkpoints: Iterable[Checkpoint], corpus: Corpus | None) -> str:
    windows = [each.window for each in checkpoints]
    if corpus is not None:
        tokens = f"{sum(corpus.tokens(window) for window in windows):,} tokens"
    elif study.corpus.documents:
        tokens = f"up to {sum(windows) * study.corpus.documents:,} tokens"
    else:
        tokens = f"up to {sum(windows):,} tokens per document"
    groups = filled_groups(study, corpus)
    few = f" in {groups} groups of documents" if groups < study.groups else ""
    return f"{len(windows) * groups} units{few}, {tokens}"


def filled_groups(study: Study, corpus: Corpus | None) -> int:
    """Groups that have a document; all of them where the documents are not known."""
    known = len(corpus.documents) if corpus is not None else study.corpus.documents or study.groups
    return min(study.groups, known)


def _disk_and_time(
    study: Study, checkpoints: Iterable[Checkpoint], known: Mapping[str, Looked], corpus: Corpus
) -> str:
    size, operations = 0, 0.0
    groups = filled_groups(study, corpus)
    for each in checkpoints:
        of = known[each.weights_of or each.name]
        vectors = len(of.heads) + len(of.heads.keys)
        size += groups * moments_bytes(vectors, of.architecture.head_dim, len(each.rings(study.windows)))
        lengths = [min(len(document.tokens), each.window) for document in corpus.documents]
        operations += pass_operations(of.config, of.architecture, lengths)
    minutes = operations / (REACHED * matrix_speed()) / 60
    took = "under a minute" if minutes < 1 else f"about {_rounded(minutes)} minutes"
    took = took if minutes < 120 else f"about {_rounded(minutes / 60)} hours"
    return f"about {size / 1e6:,.0f} MB on disk; {took} on this machine's CPU, less on a GPU"


def pass_operations(config: Any, architecture: Architecture, lengths: Iterable[int]) -> float:
    """Of passes over documents: two a weight and token, and attention of each token to those before it."""
    weights = weights_bytes(config, architecture, "float32") / 4
    width = architecture.num_layers * architecture.n_q_heads * architecture.head_dim
    return float(sum(2 * length * (weights + width * length) for length in lengths))


def matrix_speed() -> float:
    """Operations a second of a float32 matrix product here, from the best of three."""
    square = np.ones((SIDE, SIDE), dtype=np.float32)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        square @ square
        seconds.append(time.perf_counter() - started)
    return 2 * SIDE**3 / min(seconds)


def _rounded(value: float) -> str:
    """Two digits: more would be pretended."""
    return f"{float(f'{value:.1e}'):,.0f}"
