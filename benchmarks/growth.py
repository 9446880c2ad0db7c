"""How time, memory and disk grow with documents, heads, windows and checkpoints, as exponents."""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.harness import Row, Size, alone, exponent, peak_megabytes, say
from benchmarks.made import all_heads, documents, dumped, smollm2, study_of_units
from benchmarks.tables import write_study
from qkscope.run.plan import PlannedCheckpoint
from qkscope.study import Study
from qkscope.sums.unit import Unit


def growth(size: Size) -> Iterator[Row]:
    """Slopes of log value against log size, with standard errors. Documents of 256 tokens, SmolLM2-135M. Time:
    from the end of a unit's first pass to the end of its last, so that fixed costs of a unit do not count; mean
    over units with 128 documents in total, interleaved. Peak memory: of a process that measures one unit,
    including its model. Heads and checkpoints: from unit files (heads of 64, 4 groups) to tables, second
    of two runs.
    """
    counts, tokens, threads = size.pick(((8, 16, 32, 64), 256, 2), ((2, 4), 16, 1))
    timed = alone(_times, counts, 2 * counts[-1], tokens, threads)
    units = {n: timed[n] | alone(_peak, n, tokens, threads) for n in counts}
    yield from _rows("documents", "capture", units, less=1)
    steps = size.pick((1, 2, 4, 8), (1, 2))
    yield from _rows("heads", "tables", {16 * n: _study(1, n, 1) for n in steps})
    yield from _rows("checkpoints", "tables", {n: _study(n, 2, 1) for n in steps})


def _measuring(most: int, tokens: int, threads: int) -> Callable[..., Unit]:
    """Measures a unit of the first of `most` documents, once it has warmed up; `tick` hears the end of each pass."""
    from qkscope.capture import measure

    model = smollm2(threads)
    heads, texts = all_heads(model), documents(most, tokens)

    def unit(count: int, tick: Callable[[int], None] | None = None) -> Unit:
        return measure(model, texts[:count], heads, (tokens,), batch_tokens=tokens, on_tokens=tick)

    unit(1)
    return unit


def _times(counts: Sequence[int], every: int, tokens: int, threads: int) -> dict[int, dict[str, float]]:
    """By documents of a unit: seconds of all passes but the first, the mean of units of `every` documents in all."""
    unit = _measuring(counts[-1], tokens, threads)
    clock: list[tuple[float, float]] = []

    def tick(tokens: int) -> None:
        clock.append((time.perf_counter(), time.process_time()))

    found: dict[int, list[tuple[float, float]]] = {n: [] for n in counts}
    # Small units stand evenly between large ones: what else the machine does falls on all alike.
    for _, n in sorted(((i + 0.5) * many, many) for many in counts for i in range(every // many)):
        clock.clear()
        unit(n, tick)
        found[n].append((clock[-1][0] - clock[0][0], clock[-1][1] - clock[0][1]))
    means = {n: [sum(each) / len(each) for each in zip(*took, strict=True)] for n, took in found.items()}
    return {n: {"seconds": wall, "processor seconds": busy} for n, (wall, busy) in means.items()}


def _peak(count: int, tokens: int, threads: int) -> dict[str, float]:
    """Memory and file of a unit."""
    unit, made = _measuring(count, tokens, threads), []
    peak = peak_megabytes(lambda: made.append(unit(count)), whole=True)
    return {"peak MB": peak, "MB per unit": sum(map(len, dumped(made[0]).values())) / 1e6}


def _study(checkpoints: int, layers: int, windows: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        edges = [4096 * 2**i for i in range(windows)]
        study, planned = study_of_units(Path(name), checkpoints, layers, 64, edges, groups=4)
        size = sum(path.stat().st_size for path in planned[0].jobs[0].files(Path(name))) / 1e6
        return alone(_tables, study, planned, name) | {"MB per unit": size}


def _tables(study: Study, planned: Sequence[PlannedCheckpoint], folder: str) -> dict[str, float]:
    write_study(study, planned, folder)
    # What the first run has let go is not there for the second.
    ctypes.CDLL(None).malloc_trim(0)
    started = time.perf_counter()
    peak = peak_megabytes(lambda: write_study(study, planned, folder))
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
