"""An hour of faults and hostile input: `python -m soak`, in `tests/`. Exits with 1 on any finding.

Counts go to `build/soak.json` after every unit of work, so a run that is stopped keeps them and the next goes on.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fuzz.harness import memory_folder

from qkscope.progress import quieten
from qkscope.workers import cores
from soak.faulting import KINDS, Faulting
from soak.forks import side_by_side
from soak.fuzzing import Fuzzing

ROOT = Path(__file__).parents[2]
COUNTS = ROOT / "build" / "soak.json"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--executions", type=int, default=1_000_000, help="of readers, on fuzzed files")
    options.add_argument(
        "--strikes", type=int, help="of each kind of fault, spread; at every operation if not given"
    )
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of faults")
    options.add_argument("--counts", type=Path, default=COUNTS, help="go on from here")
    options.add_argument("--fresh", action="store_true", help="begin at nothing")
    given = options.parse_args()
    counts = read_counts(given.counts, given.fresh)
    before, started = counts["seconds"], time.monotonic()
    folder = given.counts.parent

    def note(line: str) -> None:
        counts["seconds"] = before + time.monotonic() - started
        write(given.counts, counts)
        print(f"[{counts['seconds'] / 60:5.1f} min] {line}", flush=True)

    logging.disable()  # readers warn of damaged files, which these are
    quieten(True)
    fuzzing = Fuzzing(counts["fuzz"], given.executions, folder / "findings")
    side_by_side(fuzzing.units(), cores(), note)
    # Memory, not a disk: what is struck are the operations, and nothing is to outlive this.
    with tempfile.TemporaryDirectory(prefix="soak-", dir=memory_folder()) as place:
        faulting = Faulting(counts["faults"], Path(place), folder / "soak.log", given.kinds, given.strikes)
        side_by_side(faulting.units(), cores(), note)
    note("done")
    entries = [*counts["fuzz"]["readers"].values(), *counts["faults"]["kinds"].values()]
    found = [line for entry in entries for line in entry["findings"]]
    print("\n".join([*found, f"{len(found)} findings; counts in {given.counts}"]))
    return int(bool(found))


def read_counts(path: Path, fresh: bool) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() and not fresh else {}
    counts = {"commits": [], "seconds": 0.0, "fuzz": {}, "faults": {}} | known
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    counts["commits"] = list(dict.fromkeys([*counts["commits"], commit]))
    return counts


def write(path: Path, counts: dict[str, Any]) -> None:
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(counts, indent=1) + "\n")
    beside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
