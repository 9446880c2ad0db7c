"""Ours beside peers and limits: `python -m benchmarks [--quick] [PART...]`.

Each part runs in a process of its own; its rows go to results.json as soon as it is done, and RESULTS.md, its plot and
the tables of docs/scaling.md are drawn anew from there. A stopped run keeps what it has; naming parts does them again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import capture, engines, growth, kept, studies, sums, tables, waiting
from benchmarks.harness import Row, Size, load, machine, say
from benchmarks.render import render


@dataclass(frozen=True)
class Part:
    """Rows of a few tables. `derived` ones follow from the rows of the others and come last."""

    rows: Callable[[Size], Iterator[Row]]
    rounds: int = 5
    quick: bool = False
    derived: bool = False


PARTS = {
    "goals": Part(studies.goals, quick=True, derived=True),
    "capture-512": Part(partial(capture.timing, 512)),
    "capture-2048": Part(partial(capture.timing, 2048, turns=3), quick=True),
    "capture-4096": Part(partial(capture.timing, 4096), rounds=3),
    "memory": Part(capture.memory),
    "moments": Part(sums.moments, quick=True),
    "unit": Part(sums.unit, quick=True),
    "vectors": Part(tables.vectors, rounds=2),
    "assembly": Part(tables.assembly, quick=True),
    "large": Part(tables.memory),
    "start": Part(waiting.start, rounds=3),
    "reading": Part(waiting.reading),
    "drawing": Part(waiting.drawing, rounds=2),
    "page": Part(waiting.page, rounds=3),
    "growth": Part(growth.growth),
    "engines": Part(engines.engines),
    "estimate": Part(studies.estimate, derived=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, []], default=[], metavar="PART", help=", ".join(PARTS)
    )
    parser.add_argument("--quick", action="store_true", help="the main rows, in minutes")
    parser.add_argument(
        "--tiny", action="store_true", help="the smallest sizes, into build/benchmarks: does it run?"
    )
    parser.add_argument("--render", action="store_true", help="only draw what is kept")
    options = parser.parse_args()
    folder = kept.HERE.parent / "build" / "benchmarks" if options.tiny else kept.HERE
    if options.render:
        render(kept.read(folder), folder)
    elif len(options.parts) == 1:
        do(options.parts[0], folder, options.quick, options.tiny)
    else:
        chosen = options.parts or [name for name, part in PARTS.items() if part.quick or not options.quick]
        flags = [f"--{flag}" for flag in ("quick", "tiny") if getattr(options, flag)]
        sys.exit(do_all(sorted(chosen, key=lambda name: PARTS[name].derived), flags))


def do_all(parts: list[str], flags: list[str]) -> int:
    """One process a part. One that fails is named at the end; the others are done."""
    failed = [
        part
        for part in parts
        if subprocess.run([sys.executable, "-m", "benchmarks", *flags, part]).returncode
    ]
    if failed:
        say(f"failed: {', '.join(failed)}")
    return len(failed)


def do(name: str, folder: Path, quick: bool, tiny: bool) -> None:
    part = PARTS[name]
    rounds = 1 if tiny else min(part.rounds, 3) if quick else part.rounds
    before, started = load(), time.monotonic()
    rows = list(part.rows(Size(folder, rounds, quick, tiny)))
    function = part.rows.func if isinstance(part.rows, partial) else part.rows
    note = " ".join((function.__doc__ or "").split())
    record = {"note": note, "seconds": round(time.monotonic() - started, 1), "load": [before, load()]}
    found = kept.keep(folder, name, record | {"machine": machine()}, rows, list(PARTS))
    render(found, folder)
    say(f"{name}: {len(rows)} rows in {record['seconds']} s, kept in {folder / 'results.json'}")


if __name__ == "__main__":
    main()
