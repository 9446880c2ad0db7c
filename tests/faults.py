"""Faults at chosen file operations of a run: a kill, an error such as a full disk's, or a write that loses its end.

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
KILL, SHORT = "kill", "short write"
WRITE, FLUSH, READ = "write", "fsync", "open to read"
# These leave the disk as it was: a run killed before one of them leaves what a run killed before the next change
# leaves, and a full or read-only disk does not refuse them.
READS = {READ, "os.listdir", "os.scandir"}
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
UNITS = 6
"""Of the small study with two groups."""


class Fault:
    """Strikes once, at the `at`-th operation, counted from 1; notes what each was all the same."""

    def __init__(self, folder: Path, at: int, kind: str) -> None:
        self.folder, self.at, self.kind = str(folder), at, kind
        self.met: list[str] = []
        self._aside = False

    def hook(self, event: str, args: tuple) -> None:
        if event in OPERATIONS and args and isinstance(args[0], str | os.PathLike):
            path = str(os.fspath(args[0]))
            if path.startswith(self.folder) and not self._aside:
                reads = event == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
                self.meet(READ if reads else event, path)

    def meet(self, event: str, path: str) -> None:
        self.met.append(event)
        if len(self.met) != self.at:
            return
        if self.kind == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(ERRORS[self.kind], os.strerror(ERRORS[self.kind]), path)

    def install(self) -> None:
        fsync, write = os.fsync, Path.write_bytes

        def flushed(handle):
            self.meet(FLUSH, "")
            return fsync(handle)

        def written(path, data):
            if not str(path).startswith(self.folder):
                return write(path, data)
            if len(self.met) + 1 == self.at:
                self._aside = True
                write(path, data[: len(data) // 2])
                self._aside = False
                if self.kind == SHORT:
                    self.met.append(WRITE)
                    return len(data)
            self.meet(WRITE, str(path))
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


def list_operations(study: Path, out: Path, note: Path) -> None:
    """The operations of a whole run, a line each."""
    fault = Fault(out, 0, KILL)
    fault.install()
    run_quietly(study, out)
    note.write_text("\n".join(fault.met))
    os._exit(0)


def exits_as_it_should(kind: str, code: int) -> bool:
    """A killed process died of it; one that met an error went on or said so in words of ours."""
    return code == -signal.SIGKILL if kind == KILL else code in (0, 1)


def tables(out: Path) -> dict[str, bytes]:
    names = [*out.glob("*.csv"), *out.glob("*.parquet"), *out.glob("*.safetensors"), out / "study.yaml"]
    return {path.name: path.read_bytes() for path in names}


def differences(out: Path, left_alone: dict[str, bytes]) -> list[str]:
    """In what a folder that was run again differs from one that was left alone: nothing, it is promised."""
    from qkscope.run import status

    found = tables(out)
    wrong = [name for name in {*found, *left_alone} if found.get(name) != left_alone.get(name)]
    state = status(out, verify=True)
    if not state.count("done") == len(state.units) == UNITS:
        wrong.append(f"{state.count('done')} of {len(state.units)} units are done")
    litter = [path for kind in ("tmp", "running", "failed", "lock", "who") for path in out.rglob(f"*.{kind}")]
    return sorted([*wrong, *state.damage, *(f"{path} is left" for path in litter)])
