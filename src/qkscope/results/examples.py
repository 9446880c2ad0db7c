"""examples.safetensors: attention of a few heads on short excerpts of the texts, for the report.

It is the only file of a results folder that holds text. It has at most 8 heads: those that `shown` chooses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope import store
from qkscope.results.aggregate import ordered, populations, present
from qkscope.results.axes import read_checkpoints
from qkscope.results.roles import ROLES, has_roles, named
from qkscope.sums import ExampleSum

if TYPE_CHECKING:
    import xarray as xr

NAME = "examples.safetensors"
# Heads in the file.
MOST_HEADS = 8
# Characters of one token: longer ones are cut.
MOST_CHARACTERS = 64


@dataclass(frozen=True)
class CheckpointExamples:
    """Attention of the heads (layer, head) at one checkpoint, and the text of each token of each excerpt."""

    heads: tuple[tuple[int, int], ...]
    sums: ExampleSum
    words: tuple[tuple[str, ...], ...]


def shown(
    data: xr.Dataset, order: Sequence[str], known: Collection[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The heads to show of those `known`, in order of layer and head, at the last checkpoint of the run.

    For each role and each population the head with the highest score among those that clearly have the role, unless
    one was taken already; then the heads whose scores depend most on position.
    """
    data = ordered(data, [order[-1]])
    keys = list(zip(data["layer"].to_numpy().tolist(), data["number"].to_numpy().tolist(), strict=True))
    here = np.array([key in known for key in keys])
    found: list[int] = []

    def take(score: NDArray[np.float64], among: NDArray[np.bool_]) -> None:
        rows = np.flatnonzero(among & np.isfinite(score))
        found.extend(int(row) for row in rows[np.argsort(-score[rows], kind="stable")] if row not in found)

    for role in ROLES if has_roles(data) else ():
        for population in populations(data):
            able = named(data, role)[0] & here & present(data, population).to_numpy()[0]
            if able.any() and not able[found].any():
                scores = data[role.variable].isel(sample=0).to_numpy()[0]
                take(scores, able & (scores == scores[able].max()))
    for name in ("share_positional", "r_q"):
        if name in data:
            take(np.abs(data[name].isel(sample=0).to_numpy()[0]), here)
    return sorted(keys[row] for row in found[:MOST_HEADS])


def spell(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """The text of each token, as the tokenizer decodes it after the tokens before it.

    A character of several tokens is the text of its last; the others before it are the replacement character. Without
    a tokenizer, as in a study of token ids, it is the id.
    """
    if tokenizer is None:
        return tuple(f"#{each}" for each in ids)
    found, before = [], ""
    for count in range(1, len(ids) + 1):
        text = str(tokenizer.decode(ids[:count], clean_up_tokenization_spaces=False))
        steady = before.rstrip("\ufffd")
        piece = text[len(steady) :] if text.startswith(steady) else str(tokenizer.decode([ids[count - 1]]))
        found.append(piece[:MOST_CHARACTERS].encode("utf-8", "replace").decode())
        before = text
    return tuple(found)


def write_examples(path: Path, checkpoints: Mapping[str, CheckpointExamples]) -> None:
    tensors: dict[str, NDArray[Any]] = {}
    entries = []
    texts = list(dict.fromkeys(found.words for found in checkpoints.values()))
    for number, (name, found) in enumerate(checkpoints.items()):
        arrays, _ = found.sums.to_arrays()
        tensors |= {f"{number}.{key}": array for key, array in arrays.items()}
        entries.append([name, {"heads": found.heads, "words": texts.index(found.words)}])
    store.write_tensors(path, tensors, {"checkpoints": entries, "texts": texts})


def read_examples(path: Path, most: int | None = None) -> dict[str, CheckpointExamples]:
    """By checkpoint, in the study's order. A file with more than `most` bytes of arrays is refused unread."""
    return read_checkpoints(path, most, "a file of examples", _unpacked)


def _unpacked(own: Mapping[str, NDArray[Any]], entry: Any, meta: Any) -> CheckpointExamples:
    texts = meta["texts"][entry["words"]]
    words = tuple(tuple(str(word)[:MOST_CHARACTERS] for word in some) for some in texts)
    heads = tuple((int(layer), int(head)) for layer, head in entry["heads"])
    if len(heads) > MOST_HEADS or len(set(heads)) < len(heads):
        raise ValueError(f"heads are {heads[:20]}, expected at most {MOST_HEADS} different ones")
    sums = ExampleSum.of_heads(own, len(heads))
    if [len(some) for some in words] != sums.lengths.tolist():
        raise ValueError("an excerpt has another number of texts than of tokens")
    return CheckpointExamples(heads, sums, words)
