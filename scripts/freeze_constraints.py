"""Pin the versions installed in this environment in constraints.txt.

Pins of packages that are not installed here (those of other systems) and the comments at the top are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
# Not pinned: what comes with Python, and the package itself.
UNPINNED = {"pip", "qkscope"}


def frozen(text: str, installed: Mapping[str, str]) -> str:
    """The text of constraints.txt with the installed versions, without build tags such as +cpu."""
    lines = text.splitlines()
    comments = [line for line in lines if line.startswith("#")]
    pins = {
        _plain(name): f"{name}=={version}"
        for name, _, version in (line.partition("==") for line in lines)
        if version
    }
    pins |= {
        _plain(name): f"{name}=={version.partition('+')[0]}"
        for name, version in installed.items()
        if _plain(name) not in UNPINNED
    }
    return "\n".join([*comments, *(pins[name] for name in sorted(pins)), ""])


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    here = {found.name: found.version for found in distributions()}
    CONSTRAINTS.write_text(frozen(CONSTRAINTS.read_text("utf-8"), here), "utf-8")
    print(f"{CONSTRAINTS}: {len(here)} packages of this environment")
