"""One run at a time in a results folder.

A whole run locks the folder, a shard its own number; a whole run and shards exclude each other, shards of one study do
not. Each writes its own lock first and looks at the others' afterwards, so that of two that start at once at most
one continues. A lock is a file that is touched while its process lives (filelock's soft lease), which works on network
disks: of a dead process of this machine it is void at once, of a lost node after a minute. Readers lock nothing.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from qkscope import store
from qkscope.errors import EngineError, StoreError

if TYPE_CHECKING:
    from filelock import OwnerRecord, SoftFileLease

LEASE_SECONDS = 60.0
POLL_SECONDS = 0.1
LOOKS = 3


class FolderLock:
    """A folder, or a shard of it, that is this process's to write to."""

    def __init__(self, path: Path, lease: SoftFileLease) -> None:
        self._path, self._lease, self._token = path, lease, lease.token

    def holds(self) -> bool:
        """Whether the lock is still this process's, by the file itself.

        The heartbeat alone does not tell in time: a process that was suspended goes on before its heartbeat notices
        that another one has taken over.
        """
        if self._lease.compromise is not None:
            return False
        # A contender moves the file aside for a moment to look at it: it is lost only if it stays away.
        for _ in range(LOOKS):
            owner = _owner(self._path)
            if owner is not None:
                return owner.token == self._token
            time.sleep(POLL_SECONDS)
        return False

    def require(self) -> None:
        """Raise if the lock was lost: a process that slept for longer than the lease may have been replaced."""
        if not self.holds():
            raise EngineError(
                f"{self._path.parent}: this run did not respond for more than {LEASE_SECONDS:.0f} s "
                "and lost its lock on the folder; finished units are kept: run again to continue"
            )


@contextmanager
def locked(results: Path, study: str, shard: str | None = None) -> Iterator[FolderLock]:
    """Lock `results` for this process, or raise an EngineError that says who has it and how to go on."""
    whole = results / ".run.lock"
    path = results / "shards" / f".{shard.replace('/', '-of-')}.lock" if shard else whole
    with store.clear_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lease = _acquire(path)
    lock = FolderLock(path, lease)
    try:
        with store.clear_errors(path):
            store.write_json(_note(path), {"study": study, "shard": shard, "since": time.time()})
        here = getattr(lease.owner, "hostname", "")
        for other in [whole] if shard else sorted((results / "shards").glob(".*.lock")):
            if _is_held(other, here):
                raise EngineError(_who(other))
        yield lock
    finally:
        try:
            if lock.holds():
                _note(path).unlink(missing_ok=True)
        finally:
            lease.release()


def at_work(results: Path) -> str | None:
    """Which other process is at work in a folder, as far as a look at its files tells; None if there is none."""
    for path in (results / ".run.lock", *sorted((results / "shards").glob(".*.lock"))):
        if (owner := _owner(path)) is None:
            continue
        host = owner.hostname.partition("?")[0]
        ended = owner.pid == os.getpid() or not store.alive(owner.pid)
        if not (host == socket.gethostname() and ended):
            return f"process {owner.pid} on {host}"
    return None


def _acquire(path: Path) -> SoftFileLease:
    from filelock import SoftFileLease, Timeout

    lease = SoftFileLease(path, lease_duration=LEASE_SECONDS)
    first = _touched(path)
    try:
        # Gives up as soon as the holder shows a sign of life, or takes over after the lease's length without one.
        lease.acquire(
            timeout=1.5 * LEASE_SECONDS, poll_interval=POLL_SECONDS, cancel_check=lambda: _lives(path, first)
        )
    except Timeout as error:
        raise EngineError(_who(path)) from error
    return lease


def _is_held(path: Path, here: str) -> bool:
    """Whether the holder of a lock lives. A lock of another machine is watched until it is touched or has expired."""
    first, deadline = _touched(path), time.monotonic() + LEASE_SECONDS
    while path.exists() and time.monotonic() < deadline:
        if _lives(path, first):
            return True
        owner = _owner(path)
        if owner and owner.hostname == here and not store.alive(owner.pid):
            return False
        time.sleep(POLL_SECONDS)
    return False


def _lives(path: Path, first: int) -> bool:
    """A process of this machine that runs, or a lock touched since `first`."""
    owner = _owner(path)
    # Containers of one machine share its name but not its processes; filelock tells them apart after a "?".
    if owner and owner.hostname.partition("?")[0] == socket.gethostname() and store.alive(owner.pid):
        return True
    return first != 0 and _touched(path) not in (0, first)


def _owner(path: Path) -> OwnerRecord | None:
    from filelock import SoftFileLease

    return SoftFileLease(path, lease_duration=LEASE_SECONDS).owner


def _touched(path: Path) -> int:
    """When a lock was last touched; 0 if there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _who(path: Path) -> str:
    """Who holds a lock, since when, and how to go on."""
    owner = _owner(path)
    process = f"process {owner.pid} on {owner.hostname.partition('?')[0]}" if owner else "an unknown process"
    try:
        note = store.read_json(_note(path))
        since = datetime.fromtimestamp(float(note["since"])).strftime("%Y-%m-%d %H:%M:%S")
        what = (f"shard {note['shard']} of " if note["shard"] else "") + f"the study {note['study']!r}"
    except (StoreError, KeyError, TypeError, ValueError, OverflowError, OSError):
        what, since = "another run", "an unknown time"
    folder = path.parent.parent if path.parent.name == "shards" else path.parent
    return (
        f"{folder}: {what} is running in this folder ({process}, since {since}); wait for it to end "
        f"(`qkscope status {folder}` shows its progress), stop it, or choose another folder with --out. If you are "
        f"sure it has ended, delete {path}"
    )


def _note(path: Path) -> Path:
    return path.with_suffix(".who")
