"""What follows from the measured rows: goals held against them, and what full studies cost."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.capture import AROUND, BACKBONE, EVERYTHING, LENS, NNSIGHT, PLAIN
from benchmarks.harness import Fact, Row, Size, exponent, to_base
from benchmarks.kept import Kept, read, rows_of
from benchmarks.sums import PASS, RATE, WHOLE
from benchmarks.tables import TABLES, TEN
from qkscope.words import duration


@dataclass(frozen=True)
class Measured:
    """The kept rows by part and name; `number` tells rows of one name apart. A KeyError says what was not measured."""

    kept: Kept

    def row(self, part: str, name: str, number: int = 0) -> Row:
        rows = [row for row in rows_of(self.kept[part]) if row.name == name] if part in self.kept else []
        if number >= len(rows):
            raise KeyError(f"not measured: {part}")
        return rows[number]

    def seconds(self, part: str, name: str) -> float:
        return median(self.row(part, name).wall)

    def fact(self, part: str, name: str, fact: str, number: int = 0) -> float:
        return float(self.row(part, name, number).facts[fact])

    def ratios(self, name: str, other: str, part: str = "capture-2048") -> list[float]:
        return to_base(self.row(part, name), self.row(part, other))

    def exponent(self, name: str) -> float:
        return exponent(self.row("growth", name).curve)[0]

    def around(self) -> float:
        """Seconds of a unit besides its pass."""
        return self.seconds("unit", WHOLE) - self.seconds("unit", PASS)


# Name, least and most allowed, and where it stands.
GOALS: list[tuple[str, float, float, Callable[[Measured], float]]] = [
    ("full capture / backbone", 0, 1.08, lambda m: median(m.ratios(EVERYTHING, BACKBONE))),
    ("full capture / model(ids)", 0, 0.9, lambda m: median(m.ratios(EVERYTHING, PLAIN))),
    ("full capture / nnsight, worst round", 0, 1, lambda m: max(m.ratios(EVERYTHING, NNSIGHT))),
    ("full capture / TransformerLens", 0, 0.5, lambda m: median(m.ratios(EVERYTHING, LENS))),
    (
        "moments at d = 128, relative to a large matmul",
        0.5,
        1,
        lambda m: m.fact("moments", "moments", RATE, 1),
    ),
    ("capture time over documents, exponent", 0.95, 1.05, lambda m: m.exponent("capture, processor seconds")),
    ("capture memory over documents, exponent", -0.02, 0.02, lambda m: m.exponent("capture, peak MB")),
    ("unit of 300 heads of 128 without its pass, s", 0, 0.3, Measured.around),
    ("file of that unit, MB", 0, 19, lambda m: m.fact("unit", WHOLE, "file MB")),
    ("tables of 10 x 576 heads, 8 groups, 3 windows, s", 0, 150, lambda m: m.fact("assembly", TABLES, TEN)),
    ("load_results of 100,000 rows, s", 0, 0.5, lambda m: m.seconds("reading", "load_results")),
]


def goals(size: Size) -> Iterator[Row]:
    """Targets, and what the tables below show. Ratios are medians over rounds."""
    found = Measured(read(size.folder))
    for name, least, most, of in GOALS:
        facts: dict[str, Fact] = {"goal": f"{least:g} to {most:g}" if least else f"at most {most:g}"}
        try:
            value = of(found)
            facts |= {"measured": value, "reached": "yes" if least <= value <= most else "no"}
        except KeyError as error:
            facts["reached"] = str(error.args[0])
        yield Row("Goals", name, "ours", facts=facts)


@dataclass(frozen=True)
class Plan:
    """What of a study decides its cost: parameters but the head's, measured query heads, the key heads they read."""

    name: str
    parameters: float
    layers: int
    width: int
    heads: int
    keys: int
    dim: int
    windows: list[int]

    def pass_seconds(self, window: int) -> float:
        """A unit's passes: two operations a parameter and token, and attention over half the window on average."""
        operations = 2 * self.parameters + 2 * self.layers * self.width * window
        return DOCUMENTS / GROUPS * window * operations / GPU_FLOPS


SMOLLM3 = [4096] * 6 + [32768] * 2 + [65536] * 2
STUDIES = (
    Plan("SmolLM3-3B, 300 heads, 4K to 64K", 2.8e9, 36, 2048, 300, 142, 128, SMOLLM3),
    Plan("Pythia-160M", 0.085e9, 12, 768, 144, 144, 64, [2048] * 154),
    Plan("Pythia-1.4B", 1.21e9, 24, 2048, 384, 384, 128, [2048] * 154),
    Plan("Pythia-6.9B", 6.44e9, 32, 4096, 1024, 1024, 128, [2048] * 154),
)
DOCUMENTS, GROUPS = 500, 8
# Stated, not measured: an A100's bfloat16 rate at 40% use, weights from a fast disk.
GPU_FLOPS, LOAD_BYTES_PER_SECOND = 0.4 * 312e12, 1e9


def estimate(size: Size) -> Iterator[Row]:
    """500 documents in 8 groups. Assumed: passes at 40% of an A100's 312 TFLOP/s, weights read at 1 GB/s.
    Measured: the ratio of full capture to the backbone at 2048 tokens, start-up of a worker, overhead and fixed
    cost of a unit, disk and tables. Units are scheduled as by the Ray engine. Downloads are not included.
    """
    found, at = Measured(read(size.folder)), "capture-2048"
    share = (found.seconds(at, EVERYTHING) - found.seconds(at, AROUND)) / found.seconds(at, BACKBONE)
    ray = found.row("engines", "one Ray worker").facts
    fixed = found.around() + float(ray["overhead, ms per unit"]) / 1e3
    # Megabytes of a head of 128 with one window, and of each window more.
    one, three = (found.fact("unit", WHOLE, "file MB", i) / (300 + 142) for i in (0, 1))
    table = found.fact("assembly", TABLES, TEN) / (10 * 576 * 3)
    for plan in STUDIES:
        rings = [1 + (w > 4096) + (w > 32768) for w in plan.windows]
        units = [[plan.pass_seconds(w) * share + fixed] * GROUPS for w in plan.windows]
        squares = (plan.dim / 128) ** 2
        disk = sum(one + (three - one) / 2 * (r - 1) for r in rings)
        facts: dict[str, Fact] = {"checkpoints": len(rings), "M tokens": DOCUMENTS * sum(plan.windows) / 1e6}
        for gpus in (1, 8, 64):
            took = _makespan(units, 2 * plan.parameters, gpus, float(ray["s until first unit"]))
            facts["1 GPU" if gpus == 1 else f"{gpus} GPUs"] = duration(took)
        facts["disk GB"] = GROUPS * (plan.heads + plan.keys) * squares * disk / 1e3
        facts["tables, two cores"] = duration(table * plan.heads * sum(rings) * squares)
        yield Row("Full studies", plan.name, "ours", facts=facts)


def _makespan(units: list[list[float]], size: float, workers: int, start: float) -> float:
    """Seconds until the last unit is done when units are dealt as the Ray engine deals them."""
    from qkscope.run.engines import UnitQueue
    from qkscope.run.units import Job

    blank: Any = None
    seconds = {(str(i), g): s for i, groups in enumerate(units) for g, s in enumerate(groups)}
    queue = UnitQueue([Job(n, n, g, blank, {}, {}, blank, (1,), 1, 1) for n, g in seconds], retries=0)
    clock = [(start, worker, "") for worker in range(workers)]
    last = 0.0
    while True:
        now, worker, held = heapq.heappop(clock)
        job = queue.take(worker)
        if job is None:
            return last
        end = now + (size / LOAD_BYTES_PER_SECOND if job.name != held else 0.0) + seconds[job.name, job.group]
        last = max(last, end)
        heapq.heappush(clock, (end, worker, job.name))
