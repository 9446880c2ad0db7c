"""Fuzzing at length: `python -m fuzz --executions 1000000`, on all cores, counted; exits with 1 on any finding.

Every reader gets the same time, so cheap ones are tried more often; each at least a hundredth of all executions.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from fuzz.harness import HANG_SECONDS, Tried, fuzz
from fuzz.readers import READERS

MEMORY_BYTES = 2_000_000_000


def share(name: str, executions: int, seed: int) -> tuple[Tried, int]:
    """One batch of one reader, and the most memory its process has had."""
    reader = next(reader for reader in READERS if reader.name == name)
    tried = fuzz(reader, executions, seed)
    return tried, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def batches(executions: int, seed: int) -> list[tuple[str, int, int]]:
    """(reader, executions, seed) of each batch, by the time that one execution takes."""
    cost = {}
    for reader in READERS:
        started = time.monotonic()
        fuzz(reader, 100, seed)
        cost[reader.name] = time.monotonic() - started
    rate = sum(1 / seconds for seconds in cost.values())
    counts = {
        name: max(executions // 100, round(executions / seconds / rate)) for name, seconds in cost.items()
    }
    return [(name, 2000, seed + 1 + i) for name, count in counts.items() for i in range(-(-count // 2000))]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--executions", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--findings", type=Path, default=Path("build/findings"))
    given = options.parse_args()
    total: dict[str, Tried] = {reader.name: Tried(reader.name) for reader in READERS}
    started, peak = time.monotonic(), 0
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures = [pool.submit(share, *batch) for batch in batches(given.executions, given.seed)]
        for future in futures:
            tried, memory = future.result()
            total[tried.reader].add(tried)
            peak = max(peak, memory)
    for tried in total.values():
        print(f"{tried.reader:<14} {tried}")
        for number, (what, data) in enumerate(tried.foreign.items()):
            given.findings.mkdir(parents=True, exist_ok=True)
            (given.findings / f"{tried.reader.replace(' ', '-')}-{number}").write_bytes(data)
            print(f"    {what!a}")
    executions = sum(tried.executions for tried in total.values())
    foreign = sum(len(tried.foreign) for tried in total.values())
    slowest = max(tried.slowest for tried in total.values())
    print(
        f"{executions:,} executions in {time.monotonic() - started:.0f} s: {foreign} foreign exceptions, slowest "
        f"{slowest:.1f} s, most memory {peak / 1e6:.0f} MB"
    )
    return int(foreign > 0 or slowest > HANG_SECONDS or peak > MEMORY_BYTES)


if __name__ == "__main__":
    sys.exit(main())
