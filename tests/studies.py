"""Small studies to draw: any number of checkpoints, phases, windows, gaps, or several models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from simulated import LAYERS, PER_LAYER, measured, results

from qkscope.results import Results
from qkscope.study.timeline import TimelineCheckpoint

HEADS = LAYERS * PER_LAYER


def truth(checkpoints: int, *, falling: bool = False, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(checkpoints, heads) r_q and r_k that grow with training, or shrink; a few heads are discordant."""
    rng = np.random.default_rng(seed)
    base_q, base_k = rng.uniform(0.3, 0.95, HEADS), rng.uniform(0.1, 0.9, HEADS)
    base_k[::9] *= -1
    course = np.linspace(0.35, 1.0, checkpoints)[:, None]
    course = course[::-1] if falling else course
    return base_q * course, base_k * course


def training(
    checkpoints: int,
    *,
    names: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    phases: Sequence[str] | None = None,
    widen: int | None = None,
    missing: Sequence[int] = (),
    falling: bool = False,
    groups: bool = True,
) -> Results:
    """A study of training; from checkpoint `widen` on, own windows are longer and keys follow position less there."""
    names = names or [f"step-{100 * (i + 1)}" for i in range(checkpoints)]
    labels = labels or [str(100 * (i + 1)) for i in range(checkpoints)]
    phases = phases or ["Stage 1"] * checkpoints
    r_q, r_k = truth(checkpoints, falling=falling)
    windows = [4096 if widen is None or i < widen else 32768 for i in range(checkpoints)]
    own_k = np.where(np.array(windows)[:, None] > 4096, 0.6 * r_k, r_k)
    own = measured(names, r_q, own_k, noise=0.004)
    matched = measured(names, r_q, r_k, noise=0.004) if widen is not None else None
    study = results(own[0], own[1] if groups else None, windows=windows, matched=matched, labels=labels)
    checkpoints = [
        replace(checkpoint, phase=phase)
        for checkpoint, phase in zip(study.timeline.checkpoints, phases, strict=True)
    ]
    for place in missing:
        checkpoints.insert(
            place,
            TimelineCheckpoint(
                f"gone-{place}", f"gone {place}", checkpoints[place].phase, 4096, missing="no such revision"
            ),
        )
    return replace(study, timeline=replace(study.timeline, checkpoints=tuple(checkpoints)))


def models(families: Sequence[str], components: int = 3) -> Results:
    """A study of several models, one for each entry of `families`, with several principal components."""
    names = [f"org/model-{i}" for i in range(len(families))]
    r_q, r_k = truth(len(families))
    study = results(*measured(names, r_q, r_k, noise=0.004), kind="models")
    checkpoints = tuple(
        replace(s, phase=f) for s, f in zip(study.timeline.checkpoints, families, strict=True)
    )
    return replace(
        with_components(study, components), timeline=replace(study.timeline, checkpoints=checkpoints)
    )


def with_components(study: Results, components: int) -> Results:
    """The same study with further components, each of half the size of the one before."""
    data = study.data.load()
    found = {}
    for name in ("pc_r_q", "pc_r_k", "pc_explained_variance"):
        first = data[name].isel(pc=0).to_numpy()
        found[name] = (
            data[name].dims,
            np.stack([first / 2**pc for pc in range(components)], axis=-1),
            data[name].attrs,
        )
    for name in map(str, data.data_vars):
        if "pc" in data[name].dims and name not in found:
            first = data[name].isel(pc=0).to_numpy()
            found[name] = (data[name].dims, np.stack([first] * components, axis=-1), data[name].attrs)
    rest = data.drop_dims("pc")
    return replace(study, data=rest.assign(found).assign_coords(pc=np.arange(components)))
