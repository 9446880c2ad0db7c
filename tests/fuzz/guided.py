"""Coverage-guided fuzzing of one reader, with atheris: `python -m fuzz.guided "qk.csv" --executions 100000`.

libFuzzer mutates what reached new lines of qkscope before. It ends with the process: 0 if nothing was found, else the
input is kept in the folder of findings.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import warnings
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["qkscope"]):
    from fuzz.harness import HANG_SECONDS
    from fuzz.readers import READERS
    from qkscope.errors import QkscopeError

MEMORY_MB = 2000


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("reader", choices=[reader.name for reader in READERS])
    options.add_argument("--executions", type=int, default=100_000)
    options.add_argument("--findings", type=Path, default=Path("../build/findings"))
    given = options.parse_args()
    reader = next(reader for reader in READERS if reader.name == given.reader)
    folder = Path(tempfile.mkdtemp(prefix="guided-"))
    path, corpus = folder / "file" / reader.file, folder / "corpus"
    for place in (path.parent, corpus, given.findings):
        place.mkdir(parents=True, exist_ok=True)
    logging.disable()
    warnings.simplefilter("ignore")
    # Readers import what they need when they are called.
    with atheris.instrument_imports(include=["qkscope"]):
        for number, seed in enumerate(reader.seeds()):
            (corpus / str(number)).write_bytes(seed)
            path.write_bytes(seed)
            reader.read(path)

    def read(data: bytes) -> None:
        path.write_bytes(data)
        try:
            reader.read(path)
        except QkscopeError:
            return

    limits = [f"-timeout={HANG_SECONDS}", f"-rss_limit_mb={MEMORY_MB}", f"-artifact_prefix={given.findings}/"]
    atheris.Setup([sys.argv[0], f"-runs={given.executions}", *limits, str(corpus)], read)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
