"""The dataset -> rows and packed columns of the page: every measure of PC0, class, since when; further components.

What a measure is called, its unit and its meaning are those of its declaration, stored with the variable. Principal
components beyond the first are the bulk of the file; past a size they are left out, and the page says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope.report.encode import NO_CODE, pack, pack_column, pack_numbers, pack_thousandths
from qkscope.results.aggregate import classes, error, ordered, present
from qkscope.results.roles import ROLES, has_roles, named
from qkscope.results.taxonomy import (
    CLASSES,
    CONTENT,
    MIXED,
    POSITIONAL,
    SCORE_CLASSES,
    SCORE_HIGH,
    SCORE_LOW,
    UNMEASURED,
    Thresholds,
    classify,
    score_class,
)

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

VALUES = ("r_q", "r_k", "explained_variance")
ERRORS = ("r_q_se", "r_k_se", "r_q_null", "r_k_null")
# Ways to sort heads into classes: by what determines their scores, which leads, and the published taxonomy.
TAXONOMIES = {"scores": (*SCORE_CLASSES, UNMEASURED), "published": (*CLASSES, UNMEASURED)}
# What determines where a head looks: four parts of the variance of its scores over keys, which add up to 1.
PARTS = ("share_position", "share_query_position", "share_key", "share_match")
# A head counts as following position from the checkpoint at which position determines more than this of its scores.
ENOUGH = 0.3
# Those that the table of heads has columns for; a head's page and the portrait's menus have all.
_IN_TABLE = ("share_positional", "r_q", "r_k")
_SCALAR = (("head",), ("sample", "head"))

# base64 characters of the components beyond the first: with errors and nulls up to the first limit (a report of
# 10 x 576 heads stays below 2 MB), the bare values up to the second, none above it.
ERRORS_LIMIT = 1_000_000
VALUES_LIMIT = 6_000_000
MOST_ROWS_WITH_ERRORS = 50_000


@dataclass(frozen=True)
class Grid:
    """The rows of the page: `heads` are (owner, layer, head) in order.

    Over training every checkpoint measures the same heads, so row = checkpoint * heads + head, with missing values
    where a checkpoint lacks a head, and every owner is 0. In a study of different models a head belongs to one model
    only, so row = head and `owner` is the number of its model.
    """

    models: Sequence[str]
    heads: Sequence[tuple[int, int, int]]
    training: bool

    @classmethod
    def of(cls, data: xr.Dataset, models: Sequence[str], *, training: bool) -> Grid:
        data = ordered(data, models)
        keys = list(zip(data["layer"].to_numpy().tolist(), data["number"].to_numpy().tolist(), strict=True))
        order = {model: i for i, model in enumerate(models)}
        owners = [0 if training else order[model] for model in data["checkpoint"].to_numpy()]
        here = present(data).to_numpy()
        found = {(owners[i], *keys[j]) for i, j in zip(*np.nonzero(here), strict=True)}
        return cls(models, sorted(found), training)

    @property
    def rows(self) -> int:
        return len(self.heads) * (len(self.models) if self.training else 1)

    @cached_property
    def index(self) -> dict[tuple[int, int, int], int]:
        """(owner, layer, head) -> its number."""
        return {key: i for i, key in enumerate(self.heads)}

    def arrange(self, found: xr.DataArray) -> Array:
        """(checkpoint, head, ...) as the rows of the page, (rows, ...); NaN where there is no such head."""
        known = {model: i for i, model in enumerate(found["checkpoint"].to_numpy())}
        keys = list(zip(found["layer"].to_numpy().tolist(), found["number"].to_numpy().tolist(), strict=True))
        values = found.to_numpy()
        arranged = np.full((self.rows, *values.shape[2:]), np.nan)
        for number, model in enumerate(self.models):
            if model not in known:
                continue
            owner = 0 if self.training else number
            rows = np.array([self.index.get((owner, *key), -1) for key in keys], dtype=np.int64)
            start = number * len(self.heads) if self.training else 0
            arranged[start + rows[rows >= 0]] = values[known[model], rows >= 0]
        return arranged


def measures(data: xr.Dataset) -> list[str]:
    """Measures that a head can be placed or coloured by: one number per head, measured somewhere; r first."""
    found = [
        str(name)
        for name, variable in data.data_vars.items()
        if variable.dims[1:] in _SCALAR
        and not variable.attrs.get("detail")
        and np.isfinite(_whole(variable)).any()
    ]
    return sorted(found, key=lambda name: VALUES.index(name) if name in VALUES else len(VALUES))


def described(data: xr.Dataset, names: Sequence[str]) -> list[dict[str, Any]]:
    """Measures as they are declared, and whether the table of heads shows them."""
    return [
        {"name": name, "inTable": name in _IN_TABLE}
        | {key: str(data[name].attrs.get(key) or "") for key in ("units", "description")}
        | {"label": str(data[name].attrs.get("label") or name)}
        for name in names
    ]


def parts(data: xr.Dataset, names: Sequence[str]) -> list[dict[str, str]]:
    """The parts of the variance of scores that were measured; their labels without `share of`."""
    found = described(data, [name for name in PARTS if name in names])
    return [{"name": one["name"], "label": one["label"].removeprefix("share of ")} for one in found]


def regions(limit: Thresholds) -> list[dict[str, Any]]:
    """Where each class lies in the plane of r_q and r_k: the middle of its fields, beside the class."""
    sure, none, between = (1 + limit.high) / 2, limit.low / 2, (limit.low + limit.high) / 2
    fields = [(q, k) for q in (none, sure) for k in (sure, none, -sure)] + [(between, -between)]
    names = classify([q for q, _ in fields], [k for _, k in fields], limit)
    return [{"name": str(name), "r_q": q, "r_k": k} for name, (q, k) in zip(names, fields, strict=True)]


def first_component(data: xr.Dataset, grid: Grid, names: Sequence[str], limits: Thresholds) -> dict[str, Any]:
    """PC0 of every row: packed columns (those that were measured), classes and since when, roles."""
    shown = {name: _whole(data[name]) for name in (*names, "same_axis") if name in data}
    for name in names:
        # In a large study only the correlations keep their errors.
        if (
            name in data
            and "sample" in data[name].dims
            and (grid.rows <= MOST_ROWS_WITH_ERRORS or name in VALUES)
        ):
            shown[f"{name}_se"] = error(data, name)
    for name in ("r_q", "r_k"):
        shown[f"{name}_null"] = data[f"pc_{name}_null"].isel(pc=0, drop=True)
    columns = {name: pack_column(grid.arrange(found)) for name, found in shown.items()}
    codes = {name: class_codes(data, grid, limits, name) for name in taxonomies(data)}
    # A bit for each of ROLES, in their order.
    roles = sum(named(data, role) * 2.0**i for i, role in enumerate(ROLES)) if has_roles(data) else None
    return {
        "columns": {name: column for name, column in columns.items() if column is not None},
        "classes": {
            name: {
                "codes": pack(found),
                "since": since(found.reshape(-1, len(grid.heads))) if grid.training else None,
            }
            for name, found in codes.items()
        },
        "roles": None if roles is None else pack(_codes(data, grid, roles)),
    }


def taxonomies(data: xr.Dataset) -> list[str]:
    """The ways to sort these heads into classes, the leading one first."""
    return [name for name in TAXONOMIES if name == "published" or "share_positional" in data]


def described_taxonomy(name: str, limits: Thresholds) -> dict[str, Any]:
    """What a taxonomy is called, its classes, and what they mean and depend on."""
    if name == "scores":
        means = (
            f"{POSITIONAL.capitalize()}: position explains more than {SCORE_HIGH:.0%} of the variance of a head's "
            f"scores over keys; {CONTENT}: less than {SCORE_LOW:.0%}; {MIXED}: between."
        )
    else:
        means = (
            f"Published protocol: r_q and |r_k| along PC0, cut at {limits.high:g} and {limits.low:g}. They depend on "
            "how queries and keys are scaled against each other, which attention does not."
        )
    label = {"scores": "score shares", "published": "published protocol"}[name]
    return {"label": label, "classes": list(TAXONOMIES[name]), "means": means}


def _codes(data: xr.Dataset, grid: Grid, numbers: Any) -> NDArray[np.uint8]:
    """Small numbers by (checkpoint, head) as a byte a row, NO_CODE where a checkpoint lacks the head. (rows,)"""
    here = present(data)
    found = grid.arrange(here.copy(data=np.where(here, numbers, np.nan)))
    return np.where(np.isfinite(found), found, NO_CODE).astype(np.uint8)


def roles(data: xr.Dataset) -> list[dict[str, Any]]:
    """Roles that heads can have: the measure that is their score, and the threshold above which a head has one."""
    if not has_roles(data):
        return []
    found = []
    for role in ROLES:
        about = str(data[role.variable].attrs.get("description") or "")
        # Some roles have another measure as their score.
        score, means = (
            (about, str(data[about].attrs.get("description"))) if about in data else (role.variable, about)
        )
        found.append({"name": role.name, "score": score, "threshold": role.threshold, "means": means})
    return found


def _whole(found: xr.DataArray) -> xr.DataArray:
    """Over all documents."""
    return found.isel(sample=0, drop=True) if "sample" in found.dims else found


def class_codes(
    data: xr.Dataset, grid: Grid, limits: Thresholds, taxonomy: str = "published"
) -> NDArray[np.uint8]:
    """The class of every row as its place in the taxonomy, NO_CODE where a checkpoint lacks the head. (rows,)"""
    scored = taxonomy == "scores"
    kinds = score_class(_whole(data["share_positional"])) if scored else classes(data, limits)[:, 0]
    return _codes(data, grid, sum((kinds == name) * code for code, name in enumerate(TAXONOMIES[taxonomy])))


def since(codes: NDArray[np.uint8]) -> list[int | None]:
    """The checkpoint from which a head keeps the class it ends with, (checkpoints, heads) -> one number a head.

    None for a head that the last checkpoint lacks.
    """
    other = codes != codes[-1]
    first = np.where(other.any(axis=0), len(codes) - np.argmax(other[::-1], axis=0), 0)
    known = codes[-1] != NO_CODE
    return [int(checkpoint) if here else None for checkpoint, here in zip(first, known, strict=True)]


def components(data: xr.Dataset, grid: Grid) -> tuple[dict[str, Any] | None, str | None]:
    """The components beyond the first over the training contexts, (rows, count) each, and what was left out and why."""
    count = int(data.sizes["pc"]) - 1
    if count == 0:
        return None, "The table holds the first principal component only."
    column_size = grid.rows * count * 2 * 4 / 3
    if column_size * len(VALUES) > VALUES_LIMIT:
        return None, (
            f"Components 1 to {count} are left out of this page to keep it small "
            f"({grid.rows:,} measurements of a head); they are in qk.csv."
        )
    whole = column_size * (len(VALUES) + len(ERRORS)) <= ERRORS_LIMIT
    more: dict[str, Any] = {"count": count, "thousandths": []}
    for name in (*VALUES, *ERRORS) if whole else VALUES:
        found = grid.arrange(data[f"pc_{name}"].isel(pc=slice(1, None)))
        small = pack_thousandths(found) if name.endswith("_se") else None
        more[name] = small or pack_numbers(found)
        if small:
            more["thousandths"].append(name)
    omitted = f"Errors and null levels of components 1 to {count} are in qk.csv, not on this page."
    return more, None if whole else omitted
