"""A simulated study in which everything was measured, with a known truth: what a demo looks like to claims."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from simulated import LAYERS, PARTS, PER_LAYER, anatomy, measured, results

from qkscope.results import Results
from qkscope.timeline import Stop

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
    study = results(*own, windows=WINDOWS, matched=matched, labels=("S1-0", "S1-50", "S1-100", "LC1-40"))
    phases = ("Stage 1", "Stage 1", "Stage 1", "Long context")
    stops = tuple(replace(s, phase=p) for s, p in zip(study.timeline.stops, phases, strict=True))
    parts = dict(
        zip(PARTS, (0.6 * signal, 0.4 * signal, 0.6 * (1 - signal), 0.4 * (1 - signal)), strict=True)
    )
    values = parts | {"eta_q": r_q, "eta_k": np.abs(r_k) + 0.1}
    tables = {}
    for i, end in enumerate(("", "_matched")):
        tables[f"anatomy{end}"], tables[f"loo_anatomy{end}"] = anatomy(NAMES, values, rope, seed=i)
    plastic = {"plasticity": np.full_like(signal, 0.7)}
    optional = {}
    for i, end in enumerate(("", "_matched")):
        optional[f"plasticity{end}"], optional[f"loo_plasticity{end}"] = anatomy(
            NAMES, plastic, rope, seed=i + 2
        )
    made = replace(study, timeline=replace(study.timeline, stops=stops), optional=optional, **tables)
    for end in ("", "_matched"):  # in place of what is read when first asked for
        vars(made)[f"spectrum{end}"] = spectrum(rope, end)
        vars(made)[f"distance{end}"] = distance(end)
    return made


def widths(end: str) -> dict[str, int]:
    return dict.fromkeys(NAMES, 256) if end else dict(zip(NAMES, WINDOWS, strict=True))


def spectrum(rope: np.ndarray, end: str) -> pd.DataFrame:
    """Three rotary pairs, of 20, 400 and 9,000 tokens; the middle one carries most of r_q."""
    rng = np.random.default_rng(3)
    rows = []
    for model, window in widths(end).items():
        for i in np.flatnonzero(rope == 1):
            for kind in "qk":
                sizes = np.array([0.1, 0.3, 0.05]) * rng.uniform(0.8, 1.2, 3) * np.array([1, 1, -1])
                for pair, (wave, size) in enumerate(zip((20.0, 400.0, 9000.0), sizes, strict=True)):
                    rows.append((model, window, *divmod(int(i), PER_LAYER), kind, pair, wave, size))
    return pd.DataFrame(
        rows, columns=["model", "window", "layer", "head", "kind", "pair", "wavelength", "signal"]
    )


def distance(end: str) -> pd.DataFrame:
    """Scores that fall with the logarithm of the distance, at a height of each head's own."""
    rows = []
    for model, window in widths(end).items():
        lags = np.unique(np.geomspace(1, window - 11, 20).astype(int))
        for i in range(len(LAYER)):
            for lag in lags:
                rows.append((model, window, *divmod(i, PER_LAYER), lag, i / 50 - 0.5 * np.log(lag), 0.02))
    return pd.DataFrame(
        rows, columns=["model", "window", "layer", "head", "distance", "score", "score_se"]
    ).assign(measured=np.nan)


def gone(study: Results, place: int) -> Results:
    """The same study with a checkpoint in it that could not be measured."""
    stops = list(study.timeline.stops)
    stops.insert(place, Stop("gone", "gone", "Stage 1", 256, missing="no such revision"))
    return replace(study, timeline=replace(study.timeline, stops=tuple(stops)))
