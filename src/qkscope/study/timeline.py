"""The order of a study's checkpoints: the x axis of the figures.

It comes from the study file or, for a table from elsewhere, from the names of the checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, Literal

from qkscope.checkpoints.revisions import PLAIN, parse_revision, phase_labels, split_revisions
from qkscope.errors import TableError
from qkscope.study.schema import Study, sources


@dataclass(frozen=True)
class TimelineCheckpoint:
    """One checkpoint, or one model of a study of several.

    `model` is its name in the tables, `phase` its training phase (or family), `window` the context it was measured
    over. `missing` says why it could not be measured; None if it was.
    """

    model: str
    label: str
    phase: str
    window: int | None = None
    step: int | None = None
    missing: str | None = None


@dataclass(frozen=True)
class Timeline:
    """All checkpoints in order. `kind` says whether that order is one of training."""

    name: str
    title: str
    checkpoints: tuple[TimelineCheckpoint, ...]
    kind: Literal["training", "models"] = "training"
    portraits: tuple[str, ...] = ()
    matched_window: int | None = None

    @cached_property
    def measured(self) -> tuple[TimelineCheckpoint, ...]:
        return tuple(checkpoint for checkpoint in self.checkpoints if checkpoint.missing is None)

    @cached_property
    def models(self) -> list[str]:
        """Names of the measured checkpoints, in order."""
        return [checkpoint.model for checkpoint in self.measured]

    @cached_property
    def phases(self) -> list[tuple[str, int, int]]:
        """(phase, index of its first, index of its last measured checkpoint), in order."""
        runs = groupby(range(len(self.measured)), key=lambda i: self.measured[i].phase)
        indices = [(phase, list(members)) for phase, members in runs]
        return [(phase, members[0], members[-1]) for phase, members in indices]

    @cached_property
    def window_changes(self) -> list[int]:
        """Indices of measured checkpoints whose window differs from the one before: a change of the measurement."""
        windows = [checkpoint.window for checkpoint in self.measured]
        pairs = enumerate(pairwise(windows), start=1)
        return [i for i, (a, b) in pairs if a is not None and b is not None and a != b]

    def training_steps(self) -> list[int] | None:
        """Steps of the measured checkpoints, added up over phases that count from 0 again; None if one is not known."""
        return _added_up([checkpoint.step for checkpoint in self.measured])

    def training_tokens(self) -> list[int] | None:
        """Tokens seen at the measured checkpoints, if all of their names contain them."""
        known = [parse_revision(checkpoint.model) for checkpoint in self.measured]
        return _added_up([one.tokens if one else None for one in known])

    def checkpoint(self, model: str) -> TimelineCheckpoint:
        known = {checkpoint.model: checkpoint for checkpoint in self.checkpoints}
        if model not in known:
            raise TableError(f"checkpoint {model!r} is not in the study; it has {', '.join(known)}")
        return known[model]


def _added_up(counts: Sequence[int | None]) -> list[int] | None:
    """Counts that begin anew with some phases, each phase counted on from the end of the one before."""
    found: list[int] = []
    offset = before = 0
    for count in counts:
        if count is None:
            return None
        offset += before if count < before else 0
        found.append(count + offset)
        before = count
    return found or None


def timeline_of(study: Study, provenance: Mapping[str, Any] | None = None) -> Timeline:
    """The timeline of a study; checkpoints that are missing according to `provenance` stay in it as gaps."""
    missing = (provenance or {}).get("missing") or {}
    return Timeline(
        name=study.name,
        title=study.title or study.name,
        checkpoints=tuple(
            TimelineCheckpoint(c.name, c.label, c.phase, c.window, c.step, missing.get(c.name))
            for c in sources(study)
        ),
        kind=study.kind,
        portraits=tuple(study.portraits),
        matched_window=study.matched_window,
    )


def timeline_from_names(names: Sequence[str], title: str = "", name: str = "") -> Timeline:
    """A timeline from checkpoint names alone: known naming schemes in training order, others in the order given.

    Names in several folders (`base/checkpoint-400`, `long/checkpoint-40`) are phases, in the order given. If no name
    has a training step, the names are those of different models.
    """
    split = {folder: split_revisions(members) for folder, members in _by_folder(names).items()}
    other = [name for _, others in split.values() for name in others]
    checkpoints = [
        TimelineCheckpoint(r.name, r.label, folder or r.phase_label, step=r.step)
        for folder, (ordered, _) in split.items()
        for r in ordered
    ]
    labels = {c.model: c.label for c in checkpoints}
    labels |= phase_labels([(c.model, c.phase, c.step) for c in checkpoints], labels)
    checkpoints = [replace(checkpoint, label=labels[checkpoint.model]) for checkpoint in checkpoints]
    if not checkpoints:
        checkpoints = [TimelineCheckpoint(each, each, "Models") for each in names]
        return Timeline(name, title or "Position in attention heads", tuple(checkpoints), kind="models")
    checkpoints += [TimelineCheckpoint(each, each, "Other") for each in other]
    return Timeline(name, title or "Position in attention heads over training", tuple(checkpoints))


def _by_folder(names: Sequence[str]) -> dict[str, list[str]]:
    """Names by the folder before their last part, if there are two folders or more and each name only has a step."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.rpartition("/")[0], []).append(name)
    known = [parse_revision(name) for name in names]
    plain = all(one is not None and one.phase_key[0] == PLAIN for one in known) and "@" not in "".join(names)
    return found if len(found) > 1 and all(found) and plain else {"": list(names)}
