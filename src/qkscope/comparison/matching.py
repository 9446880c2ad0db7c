"""Which checkpoints and heads of two runs belong together.

Checkpoints are matched by name; those of runs that name them differently by step, by label or by their order in
training. Heads are those that both runs measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from qkscope.errors import TableError
from qkscope.results import Results
from qkscope.study.timeline import Timeline, TimelineCheckpoint
from qkscope.words import some

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

Heads = set[tuple[int, int]]


@dataclass(frozen=True)
class Matched:
    """Two runs as far as they can be compared: the same checkpoints, in our order, and the same heads of them.

    `pairs` are our checkpoints' names -> theirs; each side keeps its own. `notes` say how they were matched and what
    is left out.
    """

    ours: Results
    theirs: Results
    names: tuple[str, str]
    pairs: Mapping[str, str]
    only_ours: tuple[str, ...]
    only_theirs: tuple[str, ...]
    notes: tuple[str, ...]


def match(ours: Results, theirs: Results) -> Matched:
    """The part of each run that the other has too."""
    names = run_names(ours, theirs)
    pairs, how = pair_checkpoints(ours.timeline, theirs.timeline, *names)
    shared = _same_heads(ours, theirs, pairs)
    counts = [len(head_keys(side.heads)) for side in (ours, theirs)]
    fewer = f"Compared on the {len(shared)} heads that both runs have, of {counts[0]} and {counts[1]}."
    return Matched(
        ours=part(ours, list(pairs), shared),
        theirs=part(theirs, list(pairs.values()), shared),
        names=names,
        pairs=pairs,
        only_ours=tuple(model for model in ours.timeline.models if model not in pairs),
        only_theirs=tuple(model for model in theirs.timeline.models if model not in pairs.values()),
        notes=(*how, *([fewer] if max(counts) > len(shared) else [])),
    )


def run_name(results: Results) -> str:
    """What a run is called: its study's name, else its folder."""
    return results.timeline.name or str(results.folder)


def run_names(ours: Results, theirs: Results) -> tuple[str, str]:
    """Names that differ between two runs: those of their studies, those of their folders, else their whole paths."""
    for name in (run_name, lambda side: side.folder.name, lambda side: str(side.folder)):
        names = name(ours), name(theirs)
        if names[0] != names[1]:
            break
    return names


def part(side: Results, order: Sequence[str], heads: Heads) -> Results:
    """Some checkpoints of a run, in this order, and some heads of them. Causes are of all heads or not at all."""
    cells = np.flatnonzero(side.data["checkpoint"].isin(list(order)))
    checkpoints = tuple(side.timeline.checkpoint(model) for model in order)
    return replace(
        side,
        timeline=replace(side.timeline, checkpoints=checkpoints),
        data=only_heads(side.data.isel(cell=cells), heads),
        causes=side.causes if head_keys(side.heads) == heads else None,
    )


def pair_checkpoints(
    ours: Timeline, theirs: Timeline, our_name: str, their_name: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Our checkpoints -> theirs, in our order, and how they were matched where not by name."""
    both = [model for model in ours.models if model in set(theirs.models)]
    if both:
        return {model: model for model in both}, ()
    for what in ("step", "label"):
        found = _by(what, ours.measured, theirs.measured)
        if found:
            return found, (f"Checkpoint names differ, so checkpoints were matched by {what}.",)
    if ours.kind == theirs.kind == "training" and len(ours.models) == len(theirs.models):
        how = "Checkpoint names differ, so checkpoints were matched by their order in training."
        return dict(zip(ours.models, theirs.models, strict=True)), (how,)
    raise nothing_in_common(ours.models, theirs.models, our_name, their_name)


def nothing_in_common(
    ours: Sequence[str], theirs: Sequence[str], our_name: str, their_name: str
) -> TableError:
    """The error that names both sides' checkpoints."""
    return TableError(
        f"{our_name} and {their_name} have no checkpoint in common: {our_name} has {some(ours)}; {their_name} has "
        f"{some(theirs)}. Checkpoints are matched by name"
    )


def head_keys(table: pd.DataFrame) -> Heads:
    """The (layer, head) of a table's rows."""
    return set(zip(table["layer"].tolist(), table["head"].tolist(), strict=True))


def only_heads(data: xr.Dataset, heads: Heads) -> xr.Dataset:
    """Some heads of a dataset."""
    there = zip(data["layer"].to_numpy().tolist(), data["number"].to_numpy().tolist(), strict=True)
    return data.isel(head=[i for i, head in enumerate(there) if head in heads])


def _by(
    what: str, ours: Sequence[TimelineCheckpoint], theirs: Sequence[TimelineCheckpoint]
) -> dict[str, str]:
    """Checkpoints with the same step or label in the same phase; none if these are not unique."""
    first, second = ({(getattr(c, what), c.phase): c.model for c in side} for side in (ours, theirs))
    unknown = any(getattr(c, what) is None for c in (*ours, *theirs))
    if unknown or len(first) < len(ours) or len(second) < len(theirs):
        return {}
    return {model: second[key] for key, model in first.items() if key in second}


def _same_heads(ours: Results, theirs: Results, pairs: Mapping[str, str]) -> Heads:
    """The heads to compare: the smaller set, if the other side has all of it."""
    mine = head_keys(ours.heads[ours.heads["model"].isin(list(pairs))])
    others = head_keys(theirs.heads[theirs.heads["model"].isin(list(pairs.values()))])
    if not (mine <= others or others <= mine):
        raise TableError(
            f"{ours.folder} and {theirs.folder} measured different heads: {len(mine)} and {len(others)}, of which "
            f"{len(mine & others)} are shared; measure both with the same `heads:` (sample and seed) or all heads"
        )
    return mine & others
