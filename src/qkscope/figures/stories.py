"""Sentences about a figure's own data, for READMEs of figures whose numbers no claim has."""

from __future__ import annotations

import pandas as pd

from qkscope.figures.view import ALL
from qkscope.stats.direction import turns
from qkscope.stats.levels import SMALLEST
from qkscope.words import number

MOST_TURNS = 3  # of a series that are told one by one


def heads_of(population: str) -> str:
    """`RoPE heads`; `all heads` where there is one population."""
    return "all heads" if population == ALL else f"{population} heads"


def path(data: pd.DataFrame, value: str, error: str, signed: bool = False) -> str:
    """`0.09 ± 0.01 at S1-0, up to 0.58 ± 0.04 at S3-760, down to 0.52 ± 0.01 at LC2-80`.

    `data` has a row per checkpoint, in order, with its `label`. Between the ends are the checkpoints at which the
    series turns; of one that turns often, its highest and lowest.
    """
    known = data.dropna(subset=[value])
    values, errors = known[value].to_list(), known[error].to_list()
    if not values:
        return "unknown"
    texts = [number(v, e, signed) for v, e in zip(values, errors, strict=True)]
    if len(values) == 1:
        return texts[0]
    last, at = len(values) - 1, turns(values, errors)
    if len(at) > MOST_TURNS:
        at = sorted({values.index(max(values)), values.index(min(values))} - {0, last})
    said, before, labels = f"{texts[0]} at {known['label'].iloc[0]}", 0, known["label"].to_list()
    for i in (*at, last):
        change = values[i] - values[before]
        way = "and" if abs(change) < SMALLEST else "up to" if change > 0 else "down to"
        said += f"{' ' if way == 'and' else ', '}{way} {texts[i]} at {labels[i]}"
        before = i
    return said
