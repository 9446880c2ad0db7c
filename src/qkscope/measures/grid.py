"""Which positions stand for all of them: every one in a short window, a fixed sample of strata in a long one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkscope.sums.path import SINK
from qkscope.sums.scores import GOLDEN

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """S positions, each standing for the stratum edges[s] <= t < edges[s + 1] and the tokens in it.

    t (S,) int64 · edges (S + 1,) int64 · tokens (S,) float64
    """

    t: NDArray[np.int64]
    edges: NDArray[np.int64]
    tokens: Array

    @property
    def width(self) -> NDArray[np.int64]:
        """How many positions each stands for. (S,)"""
        return np.diff(self.edges)

    @property
    def exact(self) -> bool:
        """Every position stands for itself alone."""
        return bool((self.width == 1).all())

    def since(self, start: int) -> Grid:
        """Only the strata from position `start` on, which must be an edge or past the end."""
        first = int(np.searchsorted(self.edges[:-1], start))
        return Grid(self.t[first:], self.edges[first:], self.tokens[first:])


def whole_grid(counts: Array, most: int) -> Grid:
    """The first four positions, each for itself, and at most `most` of the others."""
    early = np.arange(min(SINK, len(counts)))
    if len(counts) <= SINK:
        return Grid(early, np.arange(len(counts) + 1), counts)
    late = grid(counts, SINK, most)
    tokens = np.concatenate([counts[early], late.tokens])
    return Grid(np.concatenate([early, late.t]), np.concatenate([early, late.edges]), tokens)


def grid(counts: Array, start: int, most: int) -> Grid:
    """At most `most` of the positions from `start` on; counts (T,) are the tokens at each position."""
    strata = max(1, min(most, len(counts) - start))
    edges = np.linspace(start, len(counts), strata + 1).astype(np.int64)
    share = (np.arange(strata) * GOLDEN) % 1.0
    t = edges[:-1] + (share * np.diff(edges)).astype(np.int64)
    below = np.concatenate([[0.0], np.cumsum(counts)])
    return Grid(t, edges, below[edges[1:]] - below[edges[:-1]])


def binned_grid(counts: Array, start: int, edges: NDArray[np.int64]) -> Grid:
    """One position for each bin from `start` on, which must be an edge."""
    edges = edges[edges >= start]
    below = np.concatenate([[0.0], np.cumsum(counts)])
    return Grid(edges[:-1], edges, below[edges[1:]] - below[edges[:-1]])
