"""All benchmarks, one after the other: `python -m benchmarks`, or `make bench`."""

import subprocess
import sys
from pathlib import Path

for name in ("core", "capture", "trust", "scale"):
    print(f"== {name}", flush=True)
    subprocess.run([sys.executable, str(Path(__file__).parent / f"{name}.py")], check=True)
