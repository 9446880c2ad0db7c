"""How time, memory and disk grow with documents, heads, windows and checkpoints, as exponents."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.harness import Row, Size, alone, exponent, peak_megabytes, say
from benchmarks.made import all_heads, documents, smollm2, study_of_units
from qkscope.run.plan import Planned
from qkscope.study import Study


def growth(size: Size) -> Iterator[Row]:
    """Slopes of log number against log size, with their standard errors. Documents of 256 tokens through SmolLM2-135M,
    each number of them in a process of its own: time from the end of the first pass to that of the last, over the
    documents between, so that what a unit costs once does not count; peak memory of that process, its model included;
    the least of three rounds. Heads, windows and checkpoints: unit files (heads of 64, 4 groups) to tables, the second
    of two runs.
    """
    counts, tokens, threads = size.pick(((8, 16, 32, 64), 256, 2), ((2, 4), 16, 1))
    rounds = [{n: alone(_unit, n, tokens, threads) for n in counts} for _ in range(min(size.rounds, 3))]
    least = {n: {unit: min(each[n][unit] for each in rounds) for unit in rounds[0][n]} for n in counts}
    yield from _rows("documents", "capture", least, less=1)
    steps = size.pick((1, 2, 4, 8), (1, 2))
    yield from _rows("heads", "tables", {16 * n: _study(1, n, 1) for n in steps})
    yield from _rows("windows", "tables", {n: _study(1, 2, n) for n in steps[:3]})
    yield from _rows("checkpoints", "tables", {n: _study(n, 2, 1) for n in steps})


def _unit(count: int, tokens: int, threads: int) -> dict[str, float]:
    """Of all passes but the first; the memory and the file of the whole."""
    from qkscope.capture import measure
    from qkscope.store import dump_tensors

    model = smollm2(threads)
    heads, texts = all_heads(model), documents(count, tokens)
    measure(model, texts[:1], heads, (tokens,), batch_tokens=tokens)
    times: list[tuple[float, float]] = []
    units = []

    def tick(tokens: int) -> None:
        times.append((time.perf_counter(), time.process_time()))

    def work() -> None:
        units.append(measure(model, texts, heads, (tokens,), batch_tokens=tokens, on_tokens=tick))

    peak = peak_megabytes(work, whole=True)
    wall, processor = (b - a for a, b in zip(times[0], times[-1], strict=True))
    size = len(dump_tensors(*units[0].to_tensors())) / 1e6
    return {"seconds": wall, "processor seconds": processor, "peak MB": peak, "MB a unit": size}


def _study(checkpoints: int, layers: int, windows: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        edges = [4096 * 2**i for i in range(windows)]
        study, planned = study_of_units(Path(name), checkpoints, layers, 64, edges, groups=4)
        size = planned[0].jobs[0].path(Path(name)).stat().st_size / 1e6
        return alone(_tables, study, planned, name) | {"MB a unit": size}


def _tables(study: Study, planned: Sequence[Planned], folder: str) -> dict[str, float]:
    from qkscope.run.assemble import tables

    tables(study, planned, Path(folder))
    started = time.perf_counter()
    peak = peak_megabytes(lambda: tables(study, planned, Path(folder)))
    return {"seconds": time.perf_counter() - started, "peak MB": peak}


def _rows(what: str, of: str, found: Mapping[int, Mapping[str, float]], less: int = 0) -> Iterator[Row]:
    """A row a number; seconds are those of `less` pieces fewer."""
    for unit in next(iter(found.values())):
        left = less if "seconds" in unit else 0
        curve = [[count - left, each[unit]] for count, each in found.items()]
        slope, error = exponent(curve)
        text = f"{slope:.3f} ± {error:.3f}"
        say(f"growth: {of}, {unit} with {what}: exponent {text}")
        ends = " to ".join(f"{y:.3g}" for _, y in (curve[0], curve[-1]))
        facts = {what: f"{curve[0][0]} to {curve[-1][0]}", "number": ends, "exponent": text}
        yield Row(f"Growth with {what}", f"{of}, {unit}", "ours", facts=facts, curve=curve)
