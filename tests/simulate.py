"""Simulated studies with a known cause between two checkpoints, and how often the claim names it.

Here numbers of heads are simulated, with effects of known size; in `simulated_models` whole models are, of which the
second is made from the first by a known change.

cd tests && python -m simulate [SEEDS]      a table of right, unclear and wrong answers (default: 100 seeds)
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
from simulated_models import MODELS, pair

from qkscope.claims import Claim
from qkscope.claims.causes import causes as cause_claim
from qkscope.claims.context import Context
from qkscope.results import Results
from qkscope.results.dataset import CellData, CellInfo, dataset
from qkscope.results.tables import ROTATION, WEIGHTS, WINDOW
from qkscope.results.taxonomy import Thresholds
from qkscope.stats.attribution import causes
from qkscope.study.timeline import Timeline, TimelineCheckpoint

GROUPS, HEADS, SHORT, LONG = 8, 60, 256, 512
LAYERS = np.arange(HEADS) // 10
NAMES = [(int(layer), i % 10) for i, layer in enumerate(LAYERS)]
# By role: weights of, settings of, window.
ROLES = {
    "a": ("a", "a", SHORT), "ab": ("a", "b", SHORT), "ba": ("b", "a", SHORT), "b": ("b", "b", SHORT),
    "b0": ("b", "b", LONG),
}  # fmt: skip
TEXT, RESCALING = "text", "rescaling"
PUBLISHED = ("r_q", "r_k")
BALANCED = ("r_q_balanced", "r_k_balanced")
SHARES = ("share_position", "share_query_position", "share_key", "share_match")


def errors(rng: np.random.Generator, size: float = 0.03, shared: float = 0.3) -> dict[str, np.ndarray]:
    """Each group's errors (G, H): a part common to all heads and a part of each head's own."""
    scale = size * math.sqrt(GROUPS)
    return {
        name: rng.normal(0, scale * shared, (GROUPS, 1)) + rng.normal(0, scale, (GROUPS, HEADS))
        for name in (*PUBLISHED, *BALANCED, *SHARES[:3])
    }


def left_out(groups: np.ndarray) -> np.ndarray:
    """(G, H) of each group alone -> (1 + G, H): the groups' mean, and the mean without each."""
    return np.concatenate([groups.mean(axis=0, keepdims=True), (groups.sum(axis=0) - groups) / (GROUPS - 1)])


def cell(role: str, truth: Mapping[str, np.ndarray], noise: Mapping[str, np.ndarray], **more) -> CellData:
    """What a measurement gives: (1 + G, H), the groups' mean and the mean without each, of values off by `noise`."""
    weights, settings, window = ROLES[role]
    arrays = {
        "rope": more.get("rope", np.ones(HEADS)),
        "kv_head": np.zeros(HEADS),
        "depth": LAYERS / LAYERS.max(),
    }
    for name, true in truth.items():
        arrays[name] = left_out(np.clip(true + noise[name], -1, 1))
        if name in PUBLISHED:
            left = arrays[name][1:]
            spread = ((left - left.mean(axis=0)) ** 2).sum(axis=0)
            arrays[f"pc_{name}"] = arrays[name][0][:, None]
            arrays[f"pc_{name}_null"] = np.full((HEADS, 1), 0.05)
            arrays[f"pc_{name}_se"] = np.sqrt((GROUPS - 1) / GROUPS * spread)[:, None]
    if "share_key" in arrays:
        arrays["share_positional"] = arrays["share_position"] + arrays["share_query_position"]
        arrays["share_match"] = 1 - arrays["share_positional"] - arrays["share_key"]
    real = weights == settings
    info = CellInfo(
        checkpoint=weights if real else f"{weights}~{settings}",
        window=window,
        own=real and window == {"a": SHORT, "b": LONG}[weights],
        matched=real and window == SHORT,
        groups=GROUPS,
        weights_of=weights,
        rotation_of=settings,
        settings=f'{{"theta": {ord(settings)}}}',
        texts=more.get("texts", {}).get(weights, "same"),
    )
    return CellData(info, NAMES, arrays)


def step(
    seed: int,
    effects: Mapping[str, float],
    roles=tuple(ROLES),
    interaction: float = 0.0,
    scores: bool = False,
    **more,
) -> xr.Dataset:
    """Cells between two checkpoints whose heads change by `effects`, one for each factor.

    The documents are the same in all cells, so most of their error is too; each cell adds some of its own. With
    `scores`, balanced r and score shares are measured too and change by as much, except by RESCALING of queries against
    keys, which changes published r only. TEXT changes everything, and the later checkpoint has other documents.
    """
    rng = np.random.default_rng(seed)
    base = {name: rng.uniform(0.2, 0.6, HEADS) for name in ("r_q", *BALANCED)}
    base["r_k"] = rng.uniform(-0.1, 0.6, HEADS)
    base |= {name: rng.uniform(0.1, 0.25, HEADS) for name in SHARES[:3]}
    kept = (*PUBLISHED, *BALANCED, *SHARES[:3]) if scores else PUBLISHED
    documents = {"a": errors(rng), "b": errors(rng)}
    if TEXT in effects:
        more["texts"] = {"b": "other"}
    same_attention = {window: errors(rng, 0.01) for window in (SHORT, LONG)}
    cells = []
    for role, (weights, settings, window) in ROLES.items():
        own = errors(rng, 0.01)
        which = documents[weights if TEXT in effects else "a"]
        if RESCALING in effects:  # attention is exactly the same: so is everything that depends on it alone
            own |= {n: x for n, x in same_attention[window].items() if n not in PUBLISHED}
        noise = {name: which[name] + own[name] for name in own}
        on = {
            WEIGHTS: weights == "b",
            ROTATION: settings == "b",
            WINDOW: window == LONG,
            TEXT: weights == "b",
        }
        shift = sum(effects.get(factor, 0.0) for factor, there in on.items() if there)
        shift += interaction * (on[WEIGHTS] and on[ROTATION])
        scaled = effects.get(RESCALING, 0.0) * on[WEIGHTS]
        moved = dict.fromkeys((*BALANCED, "share_position"), shift)
        moved |= {"r_q": shift + scaled, "r_k": shift - scaled if scaled else shift}
        if role in roles:
            truth = {name: base[name] + moved.get(name, 0.0) for name in kept}
            cells.append(cell(role, truth, noise, **more))
    return dataset(cells)


def nothing_swaps(before: CellInfo, after: CellInfo) -> dict[tuple[int, int], bool]:
    return dict.fromkeys(NAMES, True)


def rotation_swaps(before: CellInfo, after: CellInfo) -> dict[tuple[int, int], bool]:
    """The first fifteen heads change their axis when the settings change, none when the weights do."""
    return {name: i >= 15 or before.settings == after.settings for i, name in enumerate(NAMES)}


def table(data: xr.Dataset, same_axis=nothing_swaps, order=("a", "b")) -> pd.DataFrame:
    return causes(data, order, Thresholds(), same_axis)


def study(data: xr.Dataset, same_axis=nothing_swaps, **fields) -> Results:
    """The cells as a study of two checkpoints."""
    own = data.where(data["own"], drop=True)
    short, long = (int(own["window"][own["checkpoint"] == name].item()) for name in "ab")
    checkpoints = (
        TimelineCheckpoint("a", "S1-100", "Stage 1", short, step=0),
        TimelineCheckpoint("b", "LC1-40", "Long context", long, step=1),
    )
    timeline = Timeline("simulated", "A simulated study", checkpoints, kind="training", matched_window=short)
    fields = {"study": {"groups": GROUPS}} | fields
    return Results(
        folder=Path("simulated"), timeline=timeline, data=data, causes=table(data, same_axis), **fields
    )


def claim_of(seed: int, effects: Mapping[str, float], **more) -> Claim:
    found = cause_claim(Context(study(step(seed, effects, scores=True, **more))))
    assert found is not None
    return found


SIZE = 0.06
# What changed, its true effects, and the right verdict.
CASES: dict[str, tuple[dict[str, float], tuple[str, ...]]] = {
    "training": ({WEIGHTS: SIZE}, ("training",)),
    "RoPE settings": ({ROTATION: -SIZE}, ("RoPE settings",)),
    "window": ({WINDOW: SIZE}, ("window",)),
    "text": ({TEXT: 2 * SIZE}, ("training and text",)),
    "rescaling of q and k": ({RESCALING: SIZE}, ("coordinates only",)),
    "nothing": ({}, ("flat", "unclear")),
    "two causes": ({ROTATION: -SIZE, WEIGHTS: 1.5 * SIZE}, ("several causes",)),
}


def count(verdicts: Iterable[str], right: Sequence[str]) -> Counter[str]:
    """How many answers are right, unclear or wrong."""
    return Counter(
        "right" if verdict in right else "unclear" if verdict in ("unclear", "flat") else "wrong"
        for verdict in verdicts
    )


def answers(case: str, seeds: Iterable[int]) -> Counter[str]:
    """For simulated numbers."""
    effects, right = CASES[case]
    return count((claim_of(seed, effects).verdict for seed in seeds), right)


def answers_of_models(case: str, seeds: Iterable[int]) -> Counter[str]:
    """For simulated models."""
    return count((verdict_of_models(seed, case) for seed in seeds), MODELS[case][-1])


def verdict_of_models(seed: int, case: str) -> str:
    found = cause_claim(Context(study_of_models(pair(seed, *MODELS[case][:3]))))
    assert found is not None
    return found.verdict


def study_of_models(data: xr.Dataset) -> Results:
    heads = list(zip(data["layer"].to_numpy().tolist(), data["number"].to_numpy().tolist(), strict=True))
    return study(data, lambda before, after: dict.fromkeys(heads, True))


def main(seeds: int = 100) -> int:
    import torch

    torch.set_num_threads(1)
    failed = False
    for title, cases, ask in (("numbers", CASES, answers), ("models", MODELS, answers_of_models)):
        print(f"\n{f'what changed ({title})':<32}{'right':>8}{'unclear':>9}{'wrong':>7}   of {seeds} seeds")
        for case in cases:
            found = ask(case, range(seeds))
            print(f"{case:<32}{found['right']:>8}{found['unclear']:>9}{found['wrong']:>7}", flush=True)
            failed |= found["right"] < 0.95 * seeds or found["wrong"] > 0.05 * seeds
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
