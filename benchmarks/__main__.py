"""Ours beside peers and limits in interleaved rounds: `python -m benchmarks [--quick]` writes RESULTS.md here.

`make bench-quick` does three rounds of the main rows; `make bench` five, then memory, vectors on disk and growth.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from benchmarks import assembly, capture, rows

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="the main rows, in minutes")
    quick = parser.parse_args().quick
    rounds = 3 if quick else 5
    found = [*assembly.rows(rounds), *capture.rows(rounds)]
    rows.write(found, [] if quick else [capture.memory_line()], HERE)
    print((HERE / "RESULTS.md").read_text())
    for name in () if quick else ("core", "trust", "scale"):
        print(f"== {name}", flush=True)
        subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=True)


if __name__ == "__main__":
    main()
