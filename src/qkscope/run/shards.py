"""Parts of a study for machines without a common scheduler: `--shard I/N` measures the I-th of N parts.

Which units belong to a shard follows from the study and N alone, and whether a unit is done from its file alone. So a
shard needs no record of its own: started again it measures what is missing, and a run without `--shard` measures what
no shard has finished. `shards/plan-I-of-N.json` lists the units for `qkscope status`, until a run without `--shard`
writes the plan of the whole study.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qkscope.errors import EngineError
from qkscope.run.units import Job
from qkscope.study import Checkpoint

# Earlier versions also wrote `I-of-N.json`.
_OURS = re.compile(r"(plan-)?[0-9]{1,6}-of-([0-9]{1,6})\.json")


@dataclass(frozen=True)
class Shard:
    """The `number`-th of `count` parts of the work, counted from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def plan_path(self, results: Path) -> Path:
        return results / "shards" / f"plan-{self.number}-of-{self.count}.json"


def parse_shard(text: str) -> Shard:
    match = re.fullmatch(r"\s*([0-9]{1,6})\s*/\s*([0-9]{1,6})\s*", text)
    shard = Shard(int(match[1]), int(match[2])) if match else None
    if shard is None or not 1 <= shard.number <= shard.count:
        raise EngineError(f"--shard {text}: expected I/N with I from 1 to N, such as 1/8 to 8/8")
    return shard


def shard_of(checkpoint: int, group: int, checkpoints: int, count: int) -> int:
    """Which of `count` shards (from 1) measures a unit.

    With at most as many shards as checkpoints, all units of a checkpoint are in one shard, so that its model is loaded
    once. With more, each checkpoint has shards of its own, to which its groups are dealt.
    """
    if count <= checkpoints:
        return checkpoint % count + 1
    own = range(checkpoint, count, checkpoints)
    return own[group % len(own)] + 1


def shard_checkpoints(checkpoints: Sequence[Checkpoint], groups: int, shard: Shard) -> list[Checkpoint]:
    """The checkpoints of which a shard measures at least one unit."""
    total = len(checkpoints)
    return [
        checkpoint
        for i, checkpoint in enumerate(checkpoints)
        if any(shard_of(i, group, total, shard.count) == shard.number for group in range(groups))
    ]


def jobs_by_shard(jobs: Sequence[Job], checkpoints: Sequence[Checkpoint], count: int) -> dict[int, list[Job]]:
    """Units by the number of their shard; shards without a unit are left out."""
    index = {checkpoint.name: i for i, checkpoint in enumerate(checkpoints)}
    found: dict[int, list[Job]] = {}
    for job in jobs:
        found.setdefault(shard_of(index[job.name], job.group, len(checkpoints), count), []).append(job)
    return found


def shard_jobs(jobs: Sequence[Job], checkpoints: Sequence[Checkpoint], shard: Shard) -> list[Job]:
    """The units that belong to a shard."""
    return jobs_by_shard(jobs, checkpoints, shard.count).get(shard.number, [])


def shard_plans(results: Path) -> list[Path]:
    """The plans of the shards that were started since the last run of the whole study."""
    return [path for path, planned, _ in _files(results) if planned]


def shard_count(results: Path) -> int:
    """Into how many shards the work in a folder was split last; 0 if it was not."""
    return max((count for _, planned, count in _files(results) if planned), default=0)


def clear_shards(results: Path, keep_count: int = 0) -> None:
    """Remove the plans of shards, except those of a split into `keep_count`, and their folder if it is empty then."""
    for path, _, count in _files(results):
        if count != keep_count:
            path.unlink(missing_ok=True)
    folder = results / "shards"
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _files(results: Path) -> list[tuple[Path, bool, int]]:
    """Our files about shards: path, whether it is a plan, number of shards."""
    paths = sorted((results / "shards").glob("*.json"))
    return [(path, bool(m[1]), int(m[2])) for path in paths if (m := _OURS.fullmatch(path.name))]
