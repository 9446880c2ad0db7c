"""A simulated study in which everything was measured, with a known truth: what a demo looks like to claims."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from simulated import LAYERS, PARTS, PER_LAYER, anatomy, measured, results

from qkscope.results import Results
from qkscope.stats.attribution import causes
from qkscope.study.timeline import TimelineCheckpoint
from qkscope.sums.scores import distances

NAMES = ("stage1-step-0", "stage1-step-50", "stage1-step-100", "lc-256-to-1k-step-40")
WINDOWS = (256, 256, 256, 1024)
LAYER = np.arange(LAYERS * PER_LAYER) // PER_LAYER
ROPE = np.where(LAYER % 4 == 3, 0.0, 1.0)
# Layers 4 and 5 reach their signal at the second checkpoint, the other RoPE layers at the third.
EARLY = np.isin(LAYER, (4, 5))


def whole(populations: bool = True) -> Results:
    """Three checkpoints of 256 tokens and one of 1,024; without `populations` every layer rotates."""
    rope = ROPE if populations else np.ones_like(ROPE)
    reached = np.stack([np.zeros_like(rope), EARLY * 1.0, np.ones_like(rope), np.ones_like(rope)])
    signal = 0.05 + np.where(rope == 1, 0.55 * reached, 0.0)  # (checkpoints, heads)
    r_q, r_k = signal.copy(), signal * 0.8
    r_k[3] -= np.where(rope == 1, 0.15, 0.0)  # falls at the long-context onset, over the same tokens
    own_k = r_k.copy()
    own_k[3] += np.where(rope == 1, 0.3, 0.0)  # and rises over the longer window
    own, matched = (measured(NAMES, r_q, k, noise=0.01, seed=i) for i, k in enumerate((own_k, r_k)))
    own[0]["rope"] = matched[0]["rope"] = np.tile(rope, len(NAMES))
    parts = dict(
        zip(PARTS, (0.6 * signal, 0.4 * signal, 0.6 * (1 - signal), 0.4 * (1 - signal)), strict=True)
    )
    values = parts | {"share_positional": signal, "eta_q": r_q, "eta_k": np.abs(r_k) + 0.1}
    plastic = {"plasticity": np.full_like(signal, 0.7)}
    tables = []
    for i, pair in enumerate((own, matched)):
        # The longer window raises position's share.
        longer = np.outer(np.arange(len(NAMES)) == 3, rope) * 0.06 * (i == 0)
        values |= {
            "share_position": parts["share_position"] + longer,
            "share_key": parts["share_key"] - longer,
        }
        for more in (anatomy(NAMES, values, rope, seed=i), anatomy(NAMES, plastic, rope, seed=i + 2)):
            pair = tuple(_joined(one, other) for one, other in zip(pair, more, strict=True))
        tables.append((_with_sums(pair[0]), _with_sums(pair[1])))
    study = results(
        *tables[0],
        windows=WINDOWS,
        matched=tables[1],
        labels=("S1-0", "S1-50", "S1-100", "LC1-40"),
        phases=("Stage 1", "Stage 1", "Stage 1", "Long context"),
        curves=curves(rope, WINDOWS),
        curves_matched=curves(rope, [256] * len(NAMES)),
    )
    heads = zip(
        study.data["layer"].to_numpy().tolist(), study.data["number"].to_numpy().tolist(), strict=True
    )
    stays = dict.fromkeys(heads, True)
    return replace(study, causes=causes(study.data, NAMES, study.thresholds, lambda before, after: stays))


def _joined(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    key = ["model", "layer", "head", *(["group"] if "group" in one else [])]
    return one.merge(other[[*key, *(c for c in other if c not in one)]], on=key)


def _with_sums(table: pd.DataFrame) -> pd.DataFrame:
    """Position's share is the sum of two of the parts, noise included."""
    return table.assign(share_positional=table["share_position"] + table["share_query_position"])


def curves(rope: np.ndarray, windows: Sequence[int]) -> dict[str, list[np.ndarray]]:
    """Spectra and scores by distance, (heads, ...) for each checkpoint.

    Three rotary pairs, of 20, 400 and 9,000 tokens, of which the middle one carries most of r; scores fall with the
    logarithm of the distance, at a height of each head's own.
    """
    rng = np.random.default_rng(3)
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    heads = len(rope)
    for window in windows:
        waves = np.array([np.inf, 20.0, 400.0, 9000.0])  # the first entry is what does not rotate
        for kind in "qk":
            sizes = (
                np.array([0.0, 0.1, 0.3, 0.05]) * rng.uniform(0.8, 1.2, (heads, 4)) * np.array([1, 1, 1, -1])
            )
            found[f"signal_{kind}"].append(np.where((rope == 1)[:, None], sizes, np.nan))
        found["wavelength"].append(np.where((rope == 1)[:, None], waves, np.nan))
        score = np.arange(heads)[:, None] / 50 - 0.5 * np.log(distances(window))[None]
        found["distance_score"].append(score)
        found["distance_score_se"].append(np.full_like(score, 0.02))
    return dict(found)


def gone(study: Results, place: int) -> Results:
    """The same study with a checkpoint in it that could not be measured."""
    checkpoints = list(study.timeline.checkpoints)
    checkpoints.insert(place, TimelineCheckpoint("gone", "gone", "Stage 1", 256, missing="no such revision"))
    return replace(study, timeline=replace(study.timeline, checkpoints=tuple(checkpoints)))
