"""Results folders of any size for the report's tests: plausible numbers, written in the formats of a run.

Heads grow from content to position over training, RoPE layers more than NoPE ones, each at its own pace; the same
seed gives the same folder.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from frames import cells_of, results_of

from qkscope import store
from qkscope.measures.registry import groups, variables
from qkscope.report.columns import PARTS
from qkscope.report.encode import MISSING, SCALE
from qkscope.results import Results
from qkscope.results.axes import CheckpointAxes, dump_axes
from qkscope.results.examples import NAME as EXAMPLES
from qkscope.results.examples import CheckpointExamples, write_examples
from qkscope.results.roles import ROLES
from qkscope.results.tables import ABLATION_COLUMNS, CAUSES_COLUMNS, write_tables
from qkscope.results.taxonomy import Thresholds
from qkscope.study.timeline import Timeline, TimelineCheckpoint
from qkscope.sums.excerpts import KEYS, NO_KEY, QUERIES, TOKENS, ExampleSum, first_query
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.path import Path as Path_
from qkscope.sums.path import bin_edges
from qkscope.sums.rotation import Rotation
from qkscope.sums.scores import distances

SMOLLM3 = (
    (
        "Stage 1",
        4096,
        ("stage1-step-40000", "stage1-step-1200000", "stage1-step-2400000", "stage1-step-3440000"),
    ),
    ("Stage 2", 4096, ("stage2-step-4200000",)),
    ("Stage 3", 4096, ("stage3-step-4720000",)),
    ("Long context 32K", 32768, ("lc-4k-to-32k-step-4000", "lc-4k-to-32k-step-20000")),
    ("Long context 64K", 65536, ("lc-32k-to-64k-step-4000", "lc-32k-to-64k-step-20000")),
)


@dataclass(frozen=True)
class Shape:
    """How large a synthetic model is, and which parts its tables hold."""

    layers: int = 36
    heads: int = 16
    group: int = 4
    components: int = 10
    errors: bool = True
    null: bool = True
    rope: bool = True
    kv: bool = True
    variance: bool = True
    unmeasured: int = 0


def head_frame(shape: Shape) -> pd.DataFrame:
    """One row per head: layer, head, kv_head, rope (every fourth layer does not rotate)."""
    layer, head = np.divmod(np.arange(shape.layers * shape.heads), shape.heads)
    rope = ((layer + 1) % 4 != 0).astype(float)
    return pd.DataFrame({"layer": layer, "head": head, "kv_head": head // shape.group, "rope": rope})


def qk_frame(model: str, progress: float, shape: Shape, seed: int, damp: float = 1.0) -> pd.DataFrame:
    """qk.csv's rows of one checkpoint at `progress` (0 to 1) of training."""
    heads = head_frame(shape)
    count, components = len(heads), shape.components
    own = np.random.default_rng(seed)  # what a head is: the same at every checkpoint
    pace, level, turn = own.uniform(0.5, 5, count), own.beta(3, 1.1, count), own.normal(0, 1, count)
    noise = np.random.default_rng([seed, int(1e6 * progress)])
    reach = level * np.where(heads["rope"] > 0, 1.0, 0.55) * (1 - np.exp(-pace * (0.15 + 2 * progress)))
    depth = heads["layer"].to_numpy() / max(1, shape.layers - 1)
    r_q = np.clip(damp * reach * (1.12 - 0.35 * np.abs(depth - 0.3)) + noise.normal(0, 0.02, count), 0, 0.995)
    sign = np.where(turn > -1.0, 1.0, -1.0)
    r_k = np.clip(
        sign * r_q * np.abs(np.tanh(1.2 + 0.6 * turn)) + noise.normal(0, 0.03, count), -0.995, 0.995
    )
    fade = np.r_[1.0, 0.45 * 0.82 ** np.arange(components - 1)]
    spin = own.uniform(-1, 1, (count, components))
    spin[:, 0] = 1.0
    share = (0.15 + 0.3 * r_q)[:, None] * fade
    columns: dict[str, Any] = {name: np.repeat(heads[name].to_numpy(), components) for name in heads}
    columns["pc"] = np.tile(np.arange(components), count)
    columns["r_q"] = (np.abs(spin) * r_q[:, None] * fade).ravel()
    columns["r_k"] = (spin * r_k[:, None] * fade).ravel()
    columns["explained_variance"] = share.ravel()
    columns["n_q"] = columns["n_k"] = np.full(count * components, 250_000)
    for name, scale in (("r_q_se", 0.012), ("r_k_se", 0.018)):
        columns[name] = noise.uniform(0.3, 1, count * components) * scale
    for name in ("r_q_null", "r_k_null"):
        columns[name] = noise.uniform(0.05, 0.2, count * components)
    frame = pd.DataFrame({"model": model, **columns})
    lost = frame["layer"].eq(0) & frame["head"].lt(shape.unmeasured)
    frame.loc[lost, ["r_q", "r_k"]] = np.nan
    return frame.drop(columns=_left_out(shape))


def _left_out(shape: Shape) -> list[str]:
    parts = {"errors": ["r_q_se", "r_k_se"], "null": ["r_q_null", "r_k_null"], "rope": ["rope"]}
    parts |= {"kv": ["kv_head"], "variance": ["explained_variance"]}
    return [column for part, columns in parts.items() if not getattr(shape, part) for column in columns]


def loo_frame(table: pd.DataFrame, groups: int, seed: int) -> pd.DataFrame:
    """Every sampled measure of PC0 without each group of documents: the value plus a little noise."""
    rows = table[table["pc"] == 0]
    noise = np.random.default_rng(seed)
    names = [name for name, one in variables().items() if one.sampled and not one.dims and name in rows]
    frames = []
    for group in range(groups):
        moved = rows[["model", "layer", "head", *names]].assign(group=group)
        for name in names:
            moved[name] = moved[name] + noise.normal(0, 0.004, len(rows))
        frames.append(moved)
    return pd.concat(frames, ignore_index=True)


def study_dict(phases: tuple[Any, ...], shape: Shape, *, families: bool, title: str) -> dict[str, Any]:
    names = [name for _, _, members in phases for name in members]
    entries = "models" if families else "checkpoints"
    member = (lambda name: {"model": name}) if families else (lambda name: {"revision": name, "name": name})
    windows = sorted({window for _, window, _ in phases})
    facts = {"family": "smollm3", "num_layers": shape.layers, "n_q_heads": shape.heads, "head_dim": 128}
    facts |= {"n_kv_heads": shape.heads // shape.group, "rope_theta": 50000.0, "max_positions": 65536}
    study: dict[str, Any] = {
        "name": "synthetic",
        "title": title,
        "corpus": {"source": "stdlib"},
        "heads": "all",
        "windows": windows,
        "families" if families else "phases": [
            {"label": label, "window": window, entries: [member(name) for name in members]}
            for label, window, members in phases
        ],
        "provenance": {
            "versions": {"python": "3.11.2", "qkscope": "0.1.0", "torch": "2.13.0"},
            "checkpoints": {
                name: {"commit": f"{abs(hash_of(name)):040x}", "window": windows[0], **facts}
                for name in names
            },
            "corpus": {
                "documents": 64,
                "digest": "blake2b:" + "7c" * 20,
                "tokens": 4_123_456,
                "filled": {window: 64 - 9 * i for i, window in enumerate(windows)},
            },
            "warnings": ["12 of 64 documents are shorter than 65,536 tokens."],
            "missing": {},
            "unmeasured": {},
        },
    }
    return study if families else {"model": "HuggingFaceTB/SmolLM3-3B-checkpoints", **study}


def hash_of(name: str) -> int:
    """A number that depends on the name alone, in every process."""
    return int.from_bytes(name.encode()[-16:].ljust(16, b"x"), "big")


def with_anatomy(qk: pd.DataFrame, seed: int, start: str) -> pd.DataFrame:
    """A qk table with what attention scores and paths say: numbers between 0 and 1, shares that add up to 1.

    The checkpoint `start` has none before it.
    """
    first = qk[qk["pc"] == 0][["model", "layer", "head"]].reset_index(drop=True)
    noise = np.random.default_rng(seed)
    groups_of = [groups()[name] for name in ("scores", "position", "continuity")]
    names = [one.name for group in groups_of for one in group.variables] + ["gap"]
    names += [role.variable for role in ROLES]
    found = pd.DataFrame(noise.uniform(0, 1, (len(first), len(names))), columns=names)
    found[list(PARTS)] = noise.dirichlet(np.ones(len(PARTS)), len(first))
    found["share_positional"] = found["share_position"] + found["share_query_position"]
    found["same_axis"] = np.where(first["model"] == start, np.nan, np.where(first["head"] % 4 == 2, 0.0, 1.0))
    found = pd.concat([first, found.assign(overlap_pc=0.0, sink=20 * found["sink"] - 4)], axis=1)
    return qk.merge(found, on=["model", "layer", "head"], how="left", validate="many_to_one")


def curves_of(qk: pd.DataFrame, window: int = 256) -> dict[str, np.ndarray]:
    """Over (model, head, place): scores that fall with the distance, the faster the larger r_q; three wavelengths."""
    first = qk[qk["pc"] == 0]
    models = first["model"].nunique()
    r_q = first["r_q"].fillna(0).to_numpy().reshape(models, -1, 1)
    still = first["rope"].to_numpy().reshape(models, -1, 1) == 0
    score = 2 - r_q * np.log2(distances(window))
    signal = np.where(still, [1.0, np.nan, np.nan, np.nan], [np.nan, 0.2, 0.7, 0.1]) * r_q
    waves = np.where(still, [np.inf, np.nan, np.nan, np.nan], [np.nan, 20.0, 400.0, 9000.0])
    found = {"distance_score": score, "distance_score_measured": score, "wavelength": waves}
    found |= {"signal_q": signal, "signal_k": signal, "energy_q": np.abs(signal), "energy_k": np.abs(signal)}
    found["score_energy"] = np.where(still, np.nan, [np.nan, 0.5, 0.3, 0.2]) * (0.5 + r_q / 2)
    return found | {
        f"{name}_se": np.full_like(values, 0.01) for name, values in found.items() if name != "wavelength"
    }


def causes_frame(names: list[str]) -> pd.DataFrame:
    """causes.csv of RoPE and NoPE heads: the third checkpoint changes the settings, which interact with training."""
    found = []
    for i, (before, after) in enumerate(pairwise(names)):
        for population, number in product(("RoPE", "NoPE"), ("mean r_q", "mean r_k")):
            weights, rotation = (0.08, -0.05 * i) if population == "RoPE" else (0.01, 0.0)
            swapped = 0.06 if i == 1 and population == "RoPE" else 0.0
            effects = {"weights_first": weights, "rotation_first": rotation, "window": 0.01 * i}
            effects |= {"weights_other_order": weights - swapped, "rotation_other_order": rotation + swapped}
            effects |= {"weights": weights - swapped / 2, "rotation": rotation + swapped / 2}
            effects |= {"total": weights + rotation + 0.01 * i, "weights_same_axis": weights}
            effects |= {"interaction": swapped, "weights_and_rotation": weights + rotation}
            row = {"from_model": before, "to_model": after, "number": number, "population": population}
            row |= effects | {f"{name}_se": 0.004 for name in (*effects, "rotation_same_axis")}
            found.append(row | {"rotation_same_axis": rotation, "window_tokens": 256, "same_text": 1})
    return pd.DataFrame(found).assign(heads=24, groups=8)[list(CAUSES_COLUMNS)]


def ablation_frame(model: str, weights: str) -> pd.DataFrame:
    """ablation.csv of two sets of heads at one checkpoint; the second has no other heads in its layers."""
    noise, found = np.random.default_rng(2), []
    for heads, population in (("class:positional&rope", "RoPE"), ("class:content&nope", "NoPE")):
        for part in ("position", "query_position", "key", "match", "sink", "head"):
            delta, random = noise.uniform(0, 0.6), noise.uniform(0, 0.1) if population == "RoPE" else np.nan
            row = {"checkpoint": model, "part": part, "heads": heads, "population": population}
            row |= {"delta": delta, "delta_se": 0.02, "random": random, "random_se": random / 5}
            found.append(row | {"above_random": delta - random, "above_random_se": 0.02 + random / 5})
    more = {"random_heads": 8, "draws": 3, "loss": 1.5, "documents": 6, "tokens": 6138, "window": 512}
    return pd.DataFrame(found).assign(n_heads=8, weights=weights, **more)[list(ABLATION_COLUMNS)]


def write_axes(folder: Path, windows: Mapping[str, int], shape: Shape, dim: int = 16) -> None:
    """axes.safetensors: axes that turn a little from checkpoint to checkpoint, and paths that depend on position."""
    frame, noise = head_frame(shape), np.random.default_rng(11)
    rope = {int(layer): bool(r) for layer, r in zip(frame["layer"], frame["rope"], strict=True)}
    heads = HeadIndex.of(zip(frame["layer"], frame["head"], strict=True), shape.group, rope)
    start, drift = (noise.normal(size=(len(heads), dim, dim)) for _ in range(2))
    still = Rotation.none(dim)
    found = {}
    for i, (name, window) in enumerate(windows.items()):
        rotation = Rotation.plain(dim, 50_000.0 * (1 + 39 * (window > 256)))
        v = np.linalg.qr(start + 0.4 * i * drift)[0][:, :, : shape.components]
        edges = bin_edges(sorted({w for w in windows.values() if w <= window}))
        n = np.diff(edges) * 8
        means = [noise.normal(size=(rows, 1, dim)) for rows in (len(heads), len(heads.keys))]
        paths = [
            Path_(edges, n, (mean + 0.1 * noise.normal(size=(1, len(n), 1))) * n[:, None]) for mean in means
        ]
        rotations = {layer: rotation if turns else still for layer, turns in rope.items()}
        scales = dict.fromkeys(rope, dim**-0.5)
        found[name] = CheckpointAxes(heads, v, means[0][:, 0], means[1][:, 0], *paths, rotations, scales)
    store.write_tensors(folder / "axes.safetensors", *dump_axes(found))


HOSTILE = (
    *(
        "<img src=x onerror=alert(1)>",
        "</script>",
        "\u202egnp.exe",
        "\x00",
        "\n",
        "\t ",
        "",
        "x" * 64,
        "r_q",
        "&lt;",
    ),
    *("\u0301", "\ufffd", "العربية", "日本", "👩‍👩‍👧", '"', "'", "\u2028", "{{ 7 * 7 }}", "\\u003c"),
)
SHOWN = ((1, 0), (2, 3), (3, 1), (5, 2))  # heads with excerpts; layer 3 does not rotate


def write_excerpts(folder: Path, names: list[str]) -> None:
    """Attention of some heads on two texts, one of them of hostile tokens."""
    rng = np.random.default_rng(11)
    words = (tuple(f" word{i}" for i in range(TOKENS)), (*HOSTILE, *(" end" for _ in range(40))))
    lengths = [len(some) for some in words]
    found = {}
    for name in names:
        key = np.full((2, len(SHOWN), QUERIES, KEYS), NO_KEY, dtype=np.uint8)
        weight = np.zeros(key.shape, dtype=np.float16)
        for at, n in enumerate(lengths):
            for head in range(len(SHOWN)):
                for slot, t in enumerate(range(first_query(n), n)):
                    row = rng.dirichlet(np.full(t + 1, 0.1))
                    largest = np.argsort(-row)[:KEYS]
                    largest = largest[row[largest].astype(np.float16) > 0]
                    key[at, head, slot, : len(largest)] = largest
                    weight[at, head, slot, : len(largest)] = row[largest]
        tokens = np.stack([np.where(np.arange(TOKENS) < n, 7, -1) for n in lengths]).astype(np.int32)
        softmax = {each: np.full(len(SHOWN), np.nan) for each in ("softcap", "slope", "reach")}
        sums = ExampleSum(np.arange(2), tokens, key, weight, weight[..., 0] * np.float16(0), softmax)
        found[name] = CheckpointExamples(SHOWN, sums, words)
    write_examples(folder / EXAMPLES, found)


def write_results(
    folder: Path,
    shape: Shape | None = None,
    phases: tuple[Any, ...] = SMOLLM3,
    *,
    matched: bool = True,
    loo: bool = True,
    families: bool = False,
    missing: dict[str, str] | None = None,
    title: str = "SmolLM3-3B over training",
    everything: bool = False,
    change: Callable[[pd.DataFrame], pd.DataFrame] = lambda qk: qk,
) -> Path:
    """Write a results folder as a run does and return it.

    With `everything` it holds scores, curves, causes and ablations too; `change` is applied to the qk tables.
    """
    shape = shape or Shape()
    folder.mkdir(parents=True, exist_ok=True)
    study = study_dict(phases, shape, families=families, title=title)
    study["provenance"]["missing"] = missing or {}
    (folder / "study.yaml").write_text(yaml.safe_dump(study, allow_unicode=True), encoding="utf-8")
    windows = {
        name: window for _, window, members in phases for name in members if name not in (missing or {})
    }
    names, smallest = list(windows), min(windows.values())
    cells = []
    for which, damp in (("own", 1.0), ("matched", 0.93)):
        # A checkpoint whose training context is the smallest window has one cell for both.
        here = [i for i, name in enumerate(names) if which == "own" or windows[name] > smallest]
        if not here or (which == "matched" and not matched):
            continue
        frames = [
            qk_frame(names[i], i / max(1, len(names) - 1), shape, seed=i + 7 if families else 7, damp=damp)
            for i in here
        ]
        qk = change(pd.concat(frames, ignore_index=True))
        table = with_anatomy(qk, seed=5, start=names[0]) if everything else qk
        found = cells_of(
            table,
            loo_frame(table, 8, seed=3) if loo else None,
            layers=shape.layers,
            window=windows if which == "own" else smallest,
            own=which == "own",
            matched=which == "matched",
            curves=curves_of(qk) if everything else None,
        )
        both = [matched and cell.info.window == smallest for cell in found]
        cells += [
            replace(c, info=replace(c.info, matched=c.info.matched or b))
            for c, b in zip(found, both, strict=True)
        ]
    write_tables(folder, cells, names, Thresholds())
    if everything:
        causes_frame(names).to_csv(folder / "causes.csv", index=False)
        commit = study["provenance"]["checkpoints"][names[-1]]["commit"]
        ablation_frame(names[-1], commit).to_csv(folder / "ablation.csv", index=False)
        write_axes(folder, windows, shape)
        write_excerpts(folder, names)
    return folder


def make_results(
    folder: Path,
    names: list[str],
    shape: Shape,
    *,
    title: str = "Synthetic",
    kind: str = "training",
    loo: bool = False,
    study: dict[str, Any] | None = None,
    provenance: dict[str, Any] | None = None,
    matched: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> Results:
    """Results in memory, of any names and size: nothing is written but what a test writes.

    `extra` are columns of further measures; with `matched` the first tokens have the same numbers.
    """
    steps = max(1, len(names) - 1)
    qk = pd.concat(
        [qk_frame(name, i / steps, shape, seed=7) for i, name in enumerate(names)], ignore_index=True
    ).assign(**(extra or {}))
    left = loo_frame(qk, 8, seed=3) if loo else None
    checkpoints = tuple(
        TimelineCheckpoint(name, name, f"Phase of {name}", window=4096, step=i)
        for i, name in enumerate(names)
    )
    return results_of(
        qk,
        Timeline("synthetic", title, checkpoints, kind="training" if kind == "training" else "models"),
        left,
        matched=qk if matched else None,
        left_out_matched=left if matched else None,
        folder=folder,
        layers=shape.layers,
        study=study or {},
        provenance=provenance or {},
    )


def unpack(text: str, scale: float = SCALE) -> np.ndarray:
    """The reader's side of `pack_numbers`, as js/data.js does it."""
    q = np.frombuffer(base64.b64decode(text), dtype="<i2")
    return np.where(q == MISSING, np.nan, q / scale)


def column(table: dict, name: str) -> np.ndarray:
    """A column of the first component, unpacked."""
    return unpack(table["columns"][name]["values"], table["columns"][name]["scale"])


def page_data(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found[1])


def write_foreign(folder: Path, names: list[str], shape: Shape | None = None) -> Path:
    """A qk.csv as somebody else's script may have written it: only the columns that are needed."""
    shape = shape or Shape(layers=6, heads=4, group=1, components=1)
    folder.mkdir(parents=True, exist_ok=True)
    frames = [qk_frame(name, i / max(1, len(names) - 1), shape, seed=7) for i, name in enumerate(names)]
    columns = ["model", "layer", "head", "pc", "r_q", "r_k"]
    pd.concat(frames, ignore_index=True)[columns].to_csv(folder / "qk.csv", index=False)
    return folder / "qk.csv"
