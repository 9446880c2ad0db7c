"""Counterfactual checkpoints: measured beside the training run's own, so that a change can be put down to its cause.

Between neighbours A and B the weights, the RoPE settings and the window may change, all at once. Where RoPE settings
change, two more checkpoints are measured, over the shorter of the two windows:

    A~rotation-of-B   A's weights with B's RoPE settings
    B~rotation-of-A   B's weights with A's

They are units like any other and never checkpoints of the training run. Where one cannot be built, the study goes on
without it and says which change is not separable, and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from qkscope.capture.probe_rotation import why_not_together
from qkscope.errors import HubError, QkscopeError
from qkscope.store import short_digest
from qkscope.study import Checkpoint, Study

# A folder's name may have 255 bytes; those of two checkpoints can be longer.
LONGEST_NAME = 200


def controls(study: Study, course: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The counterfactual checkpoints of a study that can be measured, each once. Reads configurations only."""
    return controls_and_gaps(study, course)[0]


def controls_and_gaps(study: Study, course: Sequence[Checkpoint]) -> tuple[list[Checkpoint], list[str]]:
    """The counterfactual checkpoints, and a line for each change that is not separable because one cannot be built."""
    if study.kind != "training" or not study.controls.rotation:
        return [], []
    from qkscope.checkpoints import same_rotation

    found: list[Checkpoint] = []
    gaps: list[str] = []
    known = [(c, settings) for c in course if (settings := _settings(c)) is not None]
    for (a, of_a), (b, of_b) in pairwise(known):
        if same_rotation(of_a, of_b):
            continue
        width = min(a.window, b.window)
        for exchanged in (_exchanged(a, b, of_b, width), _exchanged(b, a, of_a, width)):
            why = _why_not(study, exchanged)
            if why is None:
                found.append(exchanged)
            else:
                gaps.append(
                    f"from {a.name} to {b.name}, the effects of training and RoPE settings are not separable, because "
                    f"{exchanged.name} cannot be measured: {why}"
                )
    return list(_each_once(found)), gaps


def _why_not(study: Study, checkpoint: Checkpoint) -> str | None:
    """Why a counterfactual checkpoint cannot be measured; None if it can, or if only the hub stands in the way."""
    from qkscope.checkpoints import load_config

    try:
        config = load_config(checkpoint.source)
    except HubError:
        return None
    except QkscopeError as error:
        return str(error)
    return why_not_together(config, checkpoint.rings(study.windows))


def _settings(checkpoint: Checkpoint) -> str | None:
    """Its RoPE settings; None where its configuration cannot be read, which planning reports."""
    from qkscope.checkpoints import load_config, rotation_settings

    try:
        return rotation_settings(load_config(checkpoint.source))
    except QkscopeError:
        return None


def _exchanged(weights: Checkpoint, other: Checkpoint, settings: str, width: int) -> Checkpoint:
    return replace(
        weights,
        name=_name(weights, other),
        window=width,
        source=replace(weights.source, rotation=settings),
        weights_of=weights.name,
        rotation_of=other.name,
    )


def _name(weights: Checkpoint, other: Checkpoint) -> str:
    name = f"{weights.name}~rotation-of-{other.name}"
    if len(name.encode()) <= LONGEST_NAME:
        return name
    return f"{weights.name.encode()[:100].decode(errors='ignore')}~rotation-of-{short_digest(name)[:16]}"


def _each_once(found: Iterable[Checkpoint]) -> Iterable[Checkpoint]:
    """Both neighbours of a checkpoint may have the same settings: then one counterfactual serves both steps."""
    from qkscope.checkpoints import same_rotation

    kept: list[Checkpoint] = []
    for each in found:
        for i, other in enumerate(kept):
            same = same_rotation(other.source.rotation, each.source.rotation)
            if other.weights_of == each.weights_of and same:
                kept[i] = max(other, each, key=lambda c: c.window)
                break
        else:
            kept.append(each)
    return kept
