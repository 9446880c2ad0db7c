"""Places on the hub as people write them: `hub:owner/name`, or `hub:owner/name/folder` for a part of it."""

from __future__ import annotations

from pathlib import Path

from qkscope.errors import HubError

PREFIX = "hub:"


def on_hub(place: Path | str) -> bool:
    """Whether a place is one on the hub."""
    return str(place).startswith(PREFIX)


def split_address(place: Path | str) -> tuple[str, str]:
    """`owner/name` and the folder in it, "" for all of it."""
    owner, _, rest = str(place).removeprefix(PREFIX).partition("/")
    name, _, folder = rest.partition("/")
    if not on_hub(place) or not owner or not name:
        raise HubError(f"{str(place)!r}: expected hub:owner/name")
    return f"{owner}/{name}", folder.rstrip("/")
