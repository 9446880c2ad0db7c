"""Faults at chosen file operations of a run: a kill, or an error such as a full disk's.

Python announces every operation to audit hooks before it does it: opening, renaming, removing, making folders. Those
below the results folder are counted; at the chosen one the process dies or the operation fails. Flushing a file and
writing it are not announced, so `os.fsync` and `Path.write_bytes` are counted by standing in for them; a write dies or
fails half-way. A hook cannot be taken away again, so a run with a fault has a process of its own.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path

from small_study import run_quietly

ERRORS = {name: getattr(errno, name) for name in ("ENOSPC", "EIO", "EACCES", "EROFS", "EDQUOT")}
KILL = "kill"
OPERATIONS = {
    "open",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.listdir",
    "os.scandir",
    "os.utime",
}


class Fault:
    """Strikes once, at the `at`-th operation; counts all the same."""

    def __init__(self, folder: Path, at: int, kind: str) -> None:
        self.folder, self.at, self.kind, self.count = str(folder), at, kind, 0

    def hook(self, event: str, args: tuple) -> None:
        if event in OPERATIONS and args and isinstance(args[0], str | os.PathLike):
            path = os.fspath(args[0])
            if str(path).startswith(self.folder):
                self.meet(path)

    def meet(self, path: str) -> None:
        self.count += 1
        if self.count != self.at:
            return
        if self.kind == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(ERRORS[self.kind], os.strerror(ERRORS[self.kind]), path)

    def install(self) -> None:
        fsync, write = os.fsync, Path.write_bytes

        def flushed(handle):
            self.meet("")
            return fsync(handle)

        def written(path, data):
            if str(path).startswith(self.folder):
                if self.count + 1 == self.at:
                    write(path, data[: len(data) // 2])
                self.meet(str(path))
            return write(path, data)

        os.fsync, Path.write_bytes = flushed, written
        sys.addaudithook(self.hook)


def run_with_fault(study: Path, out: Path, at: int, kind: str = KILL) -> None:
    """A run with one fault. Exits with 0 if it ended well, 1 with an error of ours, 3 with a foreign one."""
    from qkscope.errors import QkscopeError

    fault = Fault(out, at, kind)
    fault.install()
    try:
        run_quietly(study, out)
    except QkscopeError:
        os._exit(1)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(3)
    os._exit(0)


def count_operations(study: Path, out: Path, note: Path) -> None:
    """How many operations a whole run has."""
    fault = Fault(out, 0, KILL)
    fault.install()
    run_quietly(study, out)
    note.write_text(str(fault.count))
    os._exit(0)
