"""Is a safetensors file as long as its header says? Reads the header alone, whatever the file's size."""

from __future__ import annotations

import json
from pathlib import Path

from qkscope.errors import CheckpointError

# Longer headers are refused by the safetensors library itself.
LONGEST_HEADER = 100_000_000


def check_whole(path: Path) -> None:
    """Raise where a file was cut off, or is no safetensors file at all."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if 8 + length <= min(size, 8 + LONGEST_HEADER) else b""
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    again = (
        "was saving or downloading it interrupted? Save or download it again, or leave this checkpoint out"
    )
    try:
        tensors = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
        expected = 8 + length + max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
    except (ValueError, AttributeError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: damaged weights file: {size:,} bytes, header not readable; {again}"
        ) from error
    if size != expected:
        found = "is truncated" if size < expected else "is too long"
        raise CheckpointError(
            f"{path}: weights file {found}: {size:,} bytes, but its header describes {expected:,}; {again}"
        )
