"""Moments beside the machine's matrix products, and what a unit costs besides its pass."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.capture import ONCE
from benchmarks.harness import Row, Side, Size, interleave, to_base
from benchmarks.made import documents, dumped, ids_of, llama

RATE, WHOLE, PASS = "relative to a large matmul", "whole unit", "forward pass only"


def moments(size: Size) -> Iterator[Row]:
    """Seconds per billion operations of the products y^T y, on two threads. A large square matmul is the machine's
    peak; a plain matmul of the same shape is what the shape allows; moments are all sums of a layer's vectors,
    including checks and shifts.
    """
    import torch

    torch.set_num_threads(2)
    side, tokens, again = size.pick((2048, 4096, 8), (128, 128, 1))
    square = torch.randn(side, side)
    large = Side(f"matmul, {side} x {side}", "limit", lambda: square @ square, 2e-9 * side**3)
    for dim in (64, 128, 256):
        heads = 1024 // dim
        x = torch.randn(heads, tokens, dim)
        operations = 2e-9 * again * heads * tokens * dim**2
        bare = Side("plain matmul of the same shape", "limit", partial(_products, x, again), operations)
        ours = Side("moments", "ours", partial(_sums, x, again), operations)
        rows = interleave(f"Moments of {heads} heads of {dim}", [large, bare, ours], size.rounds)
        for row in rows:
            yield replace(row, facts={RATE: 1 / median(to_base(row, rows[0]))})


def _products(x: Any, again: int) -> None:
    for _ in range(again):
        x.transpose(1, 2) @ x


def _sums(x: Any, again: int) -> None:
    from qkscope.sums.moments import Accumulator

    sums, t = Accumulator(), np.arange(x.shape[1], dtype=np.float64)
    for _ in range(again):
        sums.update(x, t)


def unit(size: Size) -> Iterator[Row]:
    """300 heads of 128 (36 narrow layers with 16 query and 4 key heads), on one thread. A unit of 16 tokens, to
    show its cost without the pass. The rows below it are its steps, timed separately, and the test passes that all
    units of a model share.
    """
    import torch

    from qkscope.capture import Probing, measure
    from qkscope.run.units import write_sums
    from qkscope.store import read_tensors
    from qkscope.sums.head_index import HeadIndex, sample_heads

    torch.set_num_threads(1)
    narrow = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 36, "head_dim": 128}
    model = llama(**narrow, num_attention_heads=16, num_key_value_heads=4)
    heads = HeadIndex.of(sample_heads(range(36), 16, size.pick(300, 20)), 4)
    layers, text = tuple(np.unique(heads.layer).tolist()), documents(1, 16, 256)
    known = Probing(model)

    def sides(windows: tuple[int, ...], path: Path) -> list[Side]:
        done = measure(model, text, heads, windows, probe=known)
        data = dumped(done)

        def whole() -> None:
            made = measure(model, text, heads, windows, probe=known)
            write_sums(path, dumped(made))

        return [
            Side(PASS, "limit", lambda: model.model(ids_of(text[0]), use_cache=False)),
            Side(WHOLE, "ours", whole, facts={"file MB": sum(map(len, data.values())) / 1e6}),
            Side("pack and hash", "ours", lambda: dumped(done)),
            Side("write", "ours", lambda: write_sums(path, data)),
            Side("read and check", "ours", lambda: [read_tensors(file) for file in path.iterdir()]),
            Side(ONCE, "ours", lambda: Probing(model)(layers)),
        ]

    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for windows in ((4096,), (4096, 32768, 65536)):
            many = "one window" if len(windows) == 1 else f"{len(windows)} windows"
            made = sides(windows, Path(folder) / "unit")
            yield from interleave(f"A unit of {len(heads)} heads of 128, {many}", made, size.rounds)
