"""Every measure is declared once, as a `MeasureGroup`.

    GROUP = MeasureGroup(
        name="cone",
        needs=("moments",),
        compute=cone,                       # HeadBlock -> {variable: array}
        variables=(Variable("cone_k", "cone of keys", "share", "|E k|^2 / E|k|^2"),),
    )

The dataset, the CSV columns, `measures:` in the study file, the docs' reference and the report's menus and tooltips are
made from these declarations. A module of this package with a `GROUP` is found by itself; other packages register theirs
through the entry point `qkscope.measures`. A group that needs a sum of its own lists the class in `sums`: studies that
compute the group then measure, store and merge that sum like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.errors import StudyError
from qkscope.sums import (
    AttentionSum,
    ExampleSum,
    FactSum,
    KeySum,
    LogitSum,
    LossSum,
    MomentSum,
    PathSum,
    RepeatSum,
    ScoreSum,
    Sum,
)

if TYPE_CHECKING:
    from qkscope.measures.cell import Cell, HeadBlock

Array = NDArray[np.float64]
_SUM_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True)
class Variable:
    """One number per head, or an array of numbers with the extra dimensions `dims`.

    sampled     it is also computed without each group of documents, so it has a standard error
    along_axis  it depends on a first principal axis: where a left-out sample has another one, it has no error
    axis_lost   the variable that counts these samples
    detail      it is in the tables but not in the report's menus: a count, a check, a variant of another number
    per_head    false: one number (or array) per cell, without the dimension `head`
    """

    name: str
    label: str
    units: str
    description: str
    dims: tuple[str, ...] = ()
    sampled: bool = True
    along_axis: bool = False
    axis_lost: str = "axis_lost"
    detail: bool = False
    per_head: bool = True


@dataclass(frozen=True)
class MeasureGroup:
    """Variables that are computed together.

    `compute` gets a block of H heads and returns an array per variable: (1 + G, H, *dims) where it is sampled (all
    documents, then without each group), (H, *dims) where it is not. Numbers that compare two cells have no `compute`:
    they are added when the cells are put together.
    """

    name: str
    needs: tuple[str, ...]
    compute: Callable[[HeadBlock], Mapping[str, Array]] | None
    variables: tuple[Variable, ...]
    optional: bool = False
    """Computed only where a study asks for it in `measures:`."""
    version: int = 1
    """Raise it when the numbers change: cached values are then computed again."""
    uses: tuple[str, ...] = ()
    """Sums that it reads where they were measured, without needing them."""
    sums: tuple[type[Sum], ...] = ()
    """Sums that only this group needs; `needs` need not name them."""
    compute_cell: Callable[[Cell], Mapping[str, Array]] | None = None
    """For variables that are not per head: arrays of a cell, (1 + G, *dims)."""


@cache
def groups() -> dict[str, MeasureGroup]:
    """All measures by name: those of this package, then those of other installed packages."""
    from qkscope import measures

    found: dict[str, MeasureGroup] = {}
    modules = sorted(module.name for module in iter_modules(measures.__path__))
    declared = [getattr(import_module(f"{measures.__name__}.{name}"), "GROUP", None) for name in modules]
    declared += [entry.load() for entry in entry_points(group="qkscope.measures")]
    taken: dict[str, str] = {}
    for group in declared:
        if group is None:
            continue
        for variable in group.variables:
            if (owner := taken.setdefault(variable.name, group.name)) != group.name:
                raise StudyError(
                    f"measures: {group.name} and {owner} both declare the variable {variable.name}; rename one"
                )
        found[group.name] = group
    return found


@cache
def variables() -> dict[str, Variable]:
    """All variables by name, in the order of their groups."""
    return {variable.name: variable for group in groups().values() for variable in group.variables}


def chosen(requested: Sequence[str]) -> list[MeasureGroup]:
    """The groups that a study computes: all that are not optional, and the optional ones in `requested`."""
    computed = [group for group in groups().values() if group.compute or group.compute_cell]
    return [group for group in computed if not group.optional or group.name in requested]


@cache
def sums() -> dict[str, type[Sum]]:
    """All sums by name: those of this package, then those that measures declare."""
    own: tuple[type[Sum], ...] = (MomentSum, PathSum, ScoreSum, AttentionSum, RepeatSum, LogitSum)
    own = (*own, KeySum, LossSum, ExampleSum, FactSum)
    found = {kind.name: kind for kind in own}
    for group in groups().values():
        for kind in group.sums:
            if not _SUM_NAME.fullmatch(kind.name):
                raise StudyError(
                    f"measures: {group.name} declares a sum named {kind.name!r}; expected lower-case letters, digits "
                    "and underscores"
                )
            if found.setdefault(kind.name, kind) is not kind:
                raise StudyError(
                    f"measures: {group.name} declares a sum named {kind.name}, but another one has this name; rename it"
                )
    return found


def sums_for(requested: Sequence[MeasureGroup]) -> dict[str, type[Sum]]:
    """The sums that these groups need, and the facts of a unit."""
    known = sums()
    wanted = {FactSum.name}
    for group in requested:
        names = {*group.needs, *group.uses, *(kind.name for kind in group.sums)}
        if unknown := sorted(names - set(known)):
            raise StudyError(
                f"measures: {group.name} needs the sum {unknown[0]}, which no installed package declares; known sums: "
                f"{', '.join(known)}"
            )
        wanted |= names
    return {name: kind for name, kind in known.items() if name in wanted}


def optional_names() -> tuple[str, ...]:
    """The measures that `measures:` of a study may list."""
    return tuple(name for name, group in groups().items() if group.optional)


def unknown_measures(requested: Sequence[str]) -> str | None:
    """What is wrong with a list of optional measures; None if nothing is."""
    unknown = [name for name in requested if name not in optional_names()]
    if not isinstance(requested, str) and not unknown:
        return None
    found = repr(requested) if isinstance(requested, str) else ", ".join(map(repr, unknown))
    return f"measures: found {found}; expected a list of some of {', '.join(optional_names())}"
