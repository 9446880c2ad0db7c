"""Where each (checkpoint, head) of the dataset stands on the page.

Over training every checkpoint measures the same heads, so row = checkpoint * heads + head, with missing values where a
checkpoint lacks a head. In a study of different models a head belongs to one model only, so row = head and `owner`
names its model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.results.aggregate import ordered, present

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """Which heads the page has: (owner, layer, head) in order; owner is 0 for all heads over training."""

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
    def _place(self) -> dict[tuple[int, int, int], int]:
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
            place = np.array([self._place.get((owner, *key), -1) for key in keys], dtype=np.int64)
            start = number * len(self.heads) if self.training else 0
            arranged[start + place[place >= 0]] = values[known[model], place >= 0]
        return arranged
