"""A million damaged and hostile files, as many to each reader."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fuzz.harness import HANG_SECONDS, fuzz
from fuzz.readers import READERS, Reader

from soak.forks import Result, Unit

BATCH = 5000
PEAK_BYTES = 1_000_000_000
"""More than that, with what was imported, is a finding."""


class Fuzzing:
    """`counts` is what earlier runs left, and grows."""

    def __init__(self, counts: dict[str, Any], executions: int, findings: Path) -> None:
        self.counts, self._target, self._findings = counts, executions, findings
        counts.setdefault("most_memory_bytes", 0)
        for reader in READERS:
            fuzz(reader, 1, 0)  # here and not in forks, so that every fork has imported what it needs
        readers = counts.setdefault("readers", {})
        for reader in READERS:
            zero = {"batches": 0, "executions": 0, "read": 0, "refused": 0, "slowest": 0.0, "seconds": 0.0}
            readers.setdefault(reader.name, {**zero, "findings": []})

    @property
    def executions(self) -> int:
        return sum(entry["executions"] for entry in self.counts["readers"].values())

    def units(self) -> Iterator[Unit]:
        """Readers in turn, so that a run that is stopped has tried all of them."""
        share = -(-self._target // len(READERS))
        left = {reader: share - self.counts["readers"][reader.name]["executions"] for reader in READERS}
        while any(size > 0 for size in left.values()):
            for reader in [reader for reader, size in left.items() if size > 0]:
                size = min(BATCH, left[reader])
                left[reader] -= size
                entry = self.counts["readers"][reader.name]
                entry["batches"] += 1
                yield Unit(
                    f"fuzz {reader.name} {entry['batches']}",
                    partial(self._do, reader, size, entry["batches"]),
                    partial(self._take, reader.name),
                )

    def _do(self, reader: Reader, size: int, seed: int) -> Result:
        resource.setrlimit(resource.RLIMIT_DATA, (4 * PEAK_BYTES, 4 * PEAK_BYTES))
        started = time.monotonic()
        tried = fuzz(reader, size, seed)
        for number, data in enumerate(tried.foreign.values()):
            self._findings.mkdir(parents=True, exist_ok=True)
            (self._findings / f"{reader.name.replace(' ', '-')}-{seed}-{number}").write_bytes(data)
        return {
            "executions": tried.executions,
            "read": tried.read,
            "refused": tried.refused,
            "slowest": tried.slowest,
            "seconds": time.monotonic() - started,
            "findings": [ascii(what) for what in tried.foreign],
        }

    def _take(self, name: str, result: Result | None, memory: int) -> str:
        entry = self.counts["readers"][name]
        self.counts["most_memory_bytes"] = max(memory, self.counts["most_memory_bytes"])
        if result is None:
            entry["findings"].append(f"batch {entry['batches']} or one before it died")
            return "died"
        for part in ("executions", "read", "refused", "seconds"):
            entry[part] += result[part]
        entry["slowest"] = max(entry["slowest"], result["slowest"])
        found = result["findings"]
        if result["slowest"] > HANG_SECONDS:
            found = [*found, f"took {result['slowest']:.0f} s"]
        if memory > PEAK_BYTES:
            found = [*found, f"took {memory / 1e6:.0f} MB"]
        entry["findings"] += found
        return (
            f"{result['executions']:,} in {result['seconds']:.1f} s, {len(found)} findings, slowest "
            f"{result['slowest']:.2f} s; {self.executions:,} of {self._target:,}"
        )
