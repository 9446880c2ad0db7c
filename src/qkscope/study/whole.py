"""What only shows when the parts of a study are seen together: names, order, windows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from qkscope.study.schema import Checkpoint, Entry, Study, folder_name, sources
from qkscope.study.yaml_lines import Loc, Mistake, did_you_mean, found_in_short

_WHICH_MODEL = "no model given: set model or folder here, or model for the whole study"


def together(study: Study, refused: list[Loc]) -> Iterator[Mistake]:
    """What is wrong between parts, left unsaid where a part it speaks of was already refused."""
    found = sources(study)
    checks = [
        *_what(study, found),
        *_limits(study),
        *_duplicates(found),
        *_steps(study, found),
        *_portraits(study, found),
    ]
    if ("model",) in refused:  # then every bare name was read as something else than a revision
        checks = [mistake for mistake in checks if mistake.what != _WHICH_MODEL]
    if not any(loc[:1] == ("windows",) for loc in refused):
        checks += [*_windows(study, found), *_shrinking(study)]
    for mistake in checks:
        overlaps = (loc[: len(mistake.loc)] == mistake.loc[: len(loc)] for loc in refused)
        if not mistake.loc or not any(overlaps):
            yield mistake


def _what(study: Study, found: list[Checkpoint]) -> Iterator[Mistake]:
    """Names that cannot be folders, and what is to be measured: said once, and completely."""
    if not study.name.strip() or folder_name(study.name) != study.name:
        yield Mistake(
            ("name",), f"{study.name!r} is used as a folder name: use only letters, digits, - _ and ."
        )
    ways = [way for way in ("phases", "families", "checkpoints") if getattr(study, way)]
    if not ways:
        yield Mistake((), "nothing to measure: give one of phases, families, checkpoints")
    if len(ways) > 1:
        yield Mistake(
            (ways[1],), f"found both {' and '.join(ways)}; a study has only one of them: remove the other"
        )
    for checkpoint in found:
        if not checkpoint.source.model:
            yield Mistake(checkpoint.loc, _WHICH_MODEL)
        elif not checkpoint.name.strip() or len(checkpoint.folder.encode()) > 200:
            yield Mistake(
                checkpoint.loc,
                f"the name {found_in_short(checkpoint.name)} cannot be used as a folder name: give a shorter name",
            )
        elif re.search("~(rotation|window)-of-", checkpoint.name):
            what = f"the name {found_in_short(checkpoint.name)} is reserved for counterfactual checkpoints: rename it"
            yield Mistake(checkpoint.loc, what)
    for loc, entry in _entries(study):
        if entry.folder and (entry.model or entry.revision):
            yield Mistake(loc, "folder cannot be combined with model or revision: give one or the other")


def _entries(study: Study) -> Iterator[tuple[Loc, Entry]]:
    for i, phase in enumerate(study.phases or []):
        yield from ((("phases", i, "checkpoints", j), entry) for j, entry in enumerate(phase.checkpoints))
    for i, family in enumerate(study.families or []):
        yield from ((("families", i, "models", j), entry) for j, entry in enumerate(family.models))
    yield from ((("checkpoints", j), entry) for j, entry in enumerate(study.checkpoints or []))


def _limits(study: Study) -> Iterator[Mistake]:
    limits = study.thresholds
    if limits.low > limits.high:
        yield Mistake(("thresholds", "low"), f"low ({limits.low}) is above high ({limits.high})")


def _duplicates(found: list[Checkpoint]) -> Iterator[Mistake]:
    """Two checkpoints that share a name would share a row; two that share a folder would share files."""
    names: dict[str, Checkpoint] = {}
    for checkpoint in found:
        # File systems that ignore case would give both the same folder.
        first = names.setdefault(checkpoint.folder.casefold(), checkpoint)
        if first is checkpoint:
            continue
        if first.name == checkpoint.name:
            what = f"the checkpoint {checkpoint.name} is listed twice; remove one or give it another name"
        else:
            what = f"{checkpoint.name} and {first.name} would share one folder: give one of them another name"
        yield Mistake(checkpoint.loc, what)


def _steps(study: Study, found: list[Checkpoint]) -> Iterator[Mistake]:
    """Within a phase training only goes on: steps ascend. Between phases they may restart."""
    if study.kind != "training":
        return
    for before, after in pairwise(found):
        same_phase = (
            before.loc[:-1] == after.loc[:-1] and before.phase == after.phase and before.name != after.name
        )
        if same_phase and before.step is not None and after.step is not None and after.step <= before.step:
            what = f"step {after.step} comes after step {before.step}: list checkpoints in training order"
            yield Mistake(after.loc, what)


def _portraits(study: Study, found: list[Checkpoint]) -> Iterator[Mistake]:
    names = [checkpoint.name for checkpoint in found]
    for i, name in enumerate(study.portraits):
        if name not in names:
            yield Mistake(("portraits", i), f"no checkpoint is named {name!r}" + did_you_mean(name, names))


def _windows(study: Study, found: list[Checkpoint]) -> Iterator[Mistake]:
    """Windows ascend, and every checkpoint's own window is one of them: rings are cut at their edges."""
    if not study.windows:
        yield Mistake(("windows",), "missing: give the context windows to measure, such as [1024]")
        return
    if study.windows[0] < 2:
        what = "a window of 1 token has a single position: the smallest window is 2"
        yield Mistake(("windows", 0), what)
    for i, (smaller, larger) in enumerate(pairwise(study.windows)):
        if larger <= smaller:
            yield Mistake(
                ("windows", i + 1), f"{larger} comes after {smaller}: list windows in ascending order"
            )
    said: set[Loc] = set()
    for checkpoint in found:
        loc = checkpoint.loc[:2] if len(checkpoint.loc) > 2 else checkpoint.loc
        if checkpoint.window not in study.windows and loc not in said:
            said.add(loc)
            yield Mistake(
                (*loc, "window"), f"{checkpoint.window} is not one of windows {study.windows}: add it there"
            )


def _shrinking(study: Study) -> Iterator[Mistake]:
    """Phases come in training order, in which the context window never shrinks."""
    labels: set[str] = set()
    largest = 0
    for i, phase in enumerate(study.phases or []):
        if phase.label and phase.label in labels:
            yield Mistake(("phases", i, "label"), f"two phases are labelled {phase.label!r}")
        labels.add(phase.label)
        window = phase.window or largest
        if window < largest:
            what = f"phases out of order: the window decreases from {largest} to {window}"
            yield Mistake(("phases", i, "window"), what)
        largest = max(largest, window)
