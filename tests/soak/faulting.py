"""A small study, struck at every file operation by every kind of fault that can happen there, and run again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from faults import (
    KILL,
    READS,
    SHORT,
    WRITE,
    differences,
    exits_as_it_should,
    list_operations,
    run_with_fault,
    tables,
)
from small_study import make_study, run_quietly

from soak.forks import Result, Unit, exit_code

KINDS = (KILL, "ENOSPC", "EIO", "EACCES", "EROFS", SHORT)
BATCH = 10
SECONDS = 120
"""A run takes a second; one that takes longer than this hangs."""


class Faulting:
    """`counts` is what earlier runs left, and grows; it begins anew where the operations of a run are others."""

    def __init__(
        self, counts: dict[str, Any], folder: Path, log: Path, kinds: Sequence[str], most: int | None
    ) -> None:
        self.counts, self._folder, self._log = counts, folder, str(log)
        self._kinds, self._most = kinds, most
        self._study = make_study(folder / "study", groups=2, count=4)
        # Here and not in a fork, so that every fork has imported and built what a run needs.
        run_quietly(self._study, folder / "whole")
        self._left_alone = tables(folder / "whole")
        self._operations = self._list()
        if counts.get("operations") != self._operations:
            counts.clear()
            counts.update({"operations": self._operations, "kinds": {}})
        for kind in KINDS:
            counts["kinds"].setdefault(kind, {"tried": [], "went_on": 0, "findings": []})

    def _list(self) -> list[str]:
        note = self._folder / "list"
        listing = partial(list_operations, self._study, self._folder / "counted", note)
        if exit_code(listing, self._log, SECONDS) != 0:
            raise RuntimeError(f"the operations of a run cannot be listed: see {self._log}")
        return note.read_text().splitlines()

    def wanted(self, kind: str) -> list[int]:
        """Numbers of the operations where a kind of fault can happen and differs from the same fault at another one."""
        can_happen = {
            SHORT: lambda what: what == WRITE,
            "EIO": lambda what: True,
            "EACCES": lambda what: True,
        }.get(kind, lambda what: what not in READS)
        places = [at for at, what in enumerate(self._operations, 1) if can_happen(what)]
        return places[:: max(1, len(places) // self._most)] if self._most else places

    def units(self) -> Iterator[Unit]:
        for kind in self._kinds:
            left = [at for at in self.wanted(kind) if at not in self.counts["kinds"][kind]["tried"]]
            for batch in (left[i : i + BATCH] for i in range(0, len(left), BATCH)):
                yield Unit(
                    f"{kind} at {batch[0]} to {batch[-1]}",
                    partial(self._do, kind, batch),
                    partial(self._take, kind, batch),
                )

    def _do(self, kind: str, batch: list[int]) -> Result:
        outcomes = [self._strike(kind, at) for at in batch]
        return {
            "went_on": sum(code == 0 for code, _ in outcomes),
            "findings": [why for _, why in outcomes if why],
        }

    def _strike(self, kind: str, at: int) -> tuple[int, str]:
        """How the struck run ended, and what was wrong with that or with the run after it."""
        out = self._folder / f"{kind} {at}"
        code = exit_code(partial(run_with_fault, self._study, out, at, kind), self._log, SECONDS)
        again = exit_code(partial(run_quietly, self._study, out), self._log, SECONDS)
        wrong = differences(out, self._left_alone) if again == 0 else [f"the run after it ended with {again}"]
        if not exits_as_it_should(kind, code):
            wrong.append(f"ended with {code}")
        shutil.rmtree(out)
        where = f"{kind} at operation {at} ({self._operations[at - 1]})"
        return code, f"{where}: {'; '.join(wrong)}" if wrong else ""

    def _take(self, kind: str, batch: list[int], result: Result | None, memory: int) -> str:
        entry = self.counts["kinds"][kind]
        if result is None:
            entry["findings"].append(f"{kind} at {batch}: died")
            return "died"
        entry["tried"] += batch
        entry["went_on"] += result["went_on"]
        entry["findings"] += result["findings"]
        return (
            f"{len(batch)} struck and run again, {len(result['findings'])} findings; "
            f"{len(entry['tried'])} of {len(self.wanted(kind))}"
        )
