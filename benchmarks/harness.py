"""What a measurement is: sides timed in interleaved rounds, rows of a table, and the machine they were taken on."""

from __future__ import annotations

import os
import platform
import random
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import distributions
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from scipy.stats import linregress

from qkscope.workers import cores

Role = Literal["ours", "peer", "limit"]
Clock = Literal["wall", "processor"]
Fact = float | str
T = TypeVar("T")

PACKAGES = (
    "qkscope",
    "numpy",
    "torch",
    "transformers",
    "scikit-learn",
    "pandas",
    "nnsight",
    "transformer-lens",
    "ray",
)


@dataclass(frozen=True)
class Size:
    """How much is measured: rounds, the main rows or all, real sizes or the smallest that still run; and where it is
    kept.
    """

    folder: Path
    rounds: int = 5
    quick: bool = False
    tiny: bool = False

    def pick(self, full: T, tiny: T) -> T:
        return tiny if self.tiny else full


@dataclass(frozen=True)
class Row:
    """A line of a table; the first of a table is what the others are compared with.

    wall, processor   seconds of each round, the same rounds as the other rows of the table; processor: all threads
    facts             further columns
    curve             (size, number) pairs of a growth, whose exponent stands in the facts
    """

    table: str
    name: str
    role: Role
    wall: Sequence[float] = ()
    processor: Sequence[float] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict)
    curve: Sequence[Sequence[float]] = ()


@dataclass(frozen=True)
class Side:
    """One side of a comparison; its work does `count` pieces of what is counted. Of its turns in a round, the shortest
    counts: a machine that stutters only adds.
    """

    name: str
    role: Role
    work: Callable[[], object]
    count: float = 1.0
    facts: Mapping[str, Fact] = field(default_factory=dict)
    turns: int = 1


def interleave(table: str, sides: Sequence[Side], rounds: int, warm: bool = True) -> list[Row]:
    """Time all sides in each round, in another order each time: what else the machine does meets them all, and none
    always follows the same one.

    A round before the first warms up and does not count.
    """
    shuffled, turns = random.Random(0), [side for side in sides for _ in range(side.turns)]
    taken: dict[str, list[tuple[float, float]]] = {side.name: [] for side in sides}
    for number in range(not warm, rounds + 1):
        spent: dict[str, list[tuple[float, float]]] = {side.name: [] for side in sides}
        for side in shuffled.sample(turns, len(turns)):
            started = time.perf_counter(), processor_seconds()
            side.work()
            wall, processor = time.perf_counter() - started[0], processor_seconds() - started[1]
            spent[side.name].append((wall / side.count, processor / side.count))
        for name, each in spent.items():
            taken[name] += [min(each)] if number else []
        last = ", ".join(f"{name} {each[-1][0]:.3g} s" for name, each in taken.items() if each)
        say(f"{table}: {f'round {number} of {rounds}: {last}' if number else 'warm'}")
    rows = []
    for side in sides:
        walls, processors = ([each[clock] for each in taken[side.name]] for clock in (0, 1))
        rows.append(Row(table, side.name, side.role, walls, processors, side.facts))
    return rows


def processor_seconds() -> float:
    """Of all threads of this process, and of children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def to_base(row: Row, base: Row, clock: Clock = "wall") -> list[float]:
    """Its seconds over those of `base`, round by round."""
    return [a / b for a, b in zip(getattr(row, clock), getattr(base, clock), strict=True)]


def exponent(curve: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Slope of log y against log x by least squares, and its standard error."""
    fit = linregress(*np.log(np.asarray(curve, dtype=np.float64).T))
    # What does not grow at all lies on its line, of which linregress says NaN.
    return float(fit.slope), float(np.nan_to_num(fit.stderr))


def alone(function: Callable[..., T], *arguments: Any) -> T:
    """The function's result, from a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak_megabytes(work: Callable[[], object], *, whole: bool = False) -> float:
    """The most memory this process had during `work`, over what it had before unless the `whole` is asked for.

    Processes that it started count too: one a core, each as large as the largest.
    """
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = 0 if whole else _kilobytes("VmRSS")
    work()
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * cores()
    return (_kilobytes("VmHWM") - before + children) / 1024


def _kilobytes(name: str) -> int:
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith(name))
    return int(line.split()[1])


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def machine() -> dict[str, Any]:
    """What the numbers were taken on."""
    installed = {each.name: each.version for each in distributions()}
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": cpu[0].partition(": ")[2] if cpu else platform.machine(),
        "cores": cores(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9),
        "versions": {name: installed[name] for name in PACKAGES if name in installed},
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def load() -> float:
    """Processes that wanted to run during the last minute."""
    return round(os.getloadavg()[0], 2)
