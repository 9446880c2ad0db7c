"""What would other RoPE settings do? The same weights under candidate settings, without training.

    found = qkscope.whatif("HuggingFaceTB/SmolLM2-135M", ["theta=5e5", "yarn:factor=4"], windows=(2048, 8192))
    found.ranking                           # nats per token of each candidate, paired with the current settings
    found.heads                             # what changes in each head

A candidate for all layers is the model built from the same files with other entries of config.json, so it is what
editing config.json by hand gives. Candidates of some layers are run through a hook.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope import defaults, store
from qkscope.capture import Probing, measure
from qkscope.capture.hooks import rope_in_layers
from qkscope.capture.probe_rotation import depends_on_length
from qkscope.checkpoints import Source, load_config
from qkscope.checkpoints.rope import Candidate, first_negative, frequencies, parse_candidate, parse_layers
from qkscope.errors import CaptureError
from qkscope.measures.cell import Cell, CellNumbers, measure_cell
from qkscope.measures.registry import chosen, sums_for, variables
from qkscope.measures.samples import jackknife
from qkscope.progress import progress
from qkscope.results.owner import Holding, refuse_other, writing
from qkscope.scanning.subject import Setup, Subject, corpus_spec, prepare
from qkscope.sums import LossSum, PathSum
from qkscope.sums.path import SINK
from qkscope.sums.path import Path as MeanPath
from qkscope.sums.rotation import Rotation
from qkscope.sums.scores import distances
from qkscope.sums.token_loss import position_bins
from qkscope.sums.unit import Unit, samples_of
from qkscope.words import number, tokens

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

CURRENT = "current"
# Numbers of a head that are compared, as far as they are measured.
PER_HEAD = {
    "r_q", "r_k", "share_position", "share_key", "share_match", "share_query_position", "sink", "entropy"
}  # fmt: skip
# Wavelengths that are named as carrying a change: the fewest with at least this share of it.
MOST = 0.5


@dataclass(frozen=True, repr=False)
class WhatIf:
    """The same weights under several RoPE settings.

    table        a row per candidate, window and part of it: nats per token, difference from the current settings with
                 the error of the paired and of the unpaired difference. `part` is window or position
    heads        a row per candidate, window and head: measures, their changes, the change of the distance curve as
                 measured and as predicted from vectors before rotation (`prediction`: exact or estimate)
    wavelengths  a row per candidate and rotary pair: wavelength before and now, share of the predicted change
    snippets     by candidate: what to write into config.json, or why that is not possible
    bounds       by candidate: first distance at which Men et al.'s B is negative; None if there is none
    """

    model: str
    windows: tuple[int, ...]
    table: pd.DataFrame
    heads: pd.DataFrame
    wavelengths: pd.DataFrame
    snippets: Mapping[str, str]
    bounds: Mapping[str, int | None]
    documents: int
    holds: Holding
    """What was measured, of which weights and texts."""
    warnings: list[str] = field(default_factory=list)

    @property
    def ranking(self) -> pd.DataFrame:
        """A row per candidate, the smallest loss over the longest window first."""
        whole = self.table[(self.table["part"] == "window") & (self.table["window"] == self.windows[-1])]
        found = whole.drop(columns=["part", "position_from", "position_to"]).sort_values(
            "nats", kind="stable"
        )
        return found.assign(first_negative=[self.bounds.get(name) for name in found["candidate"]])

    def __str__(self) -> str:
        lines = [
            f"{self.model}: {self.documents} documents, nats per token (difference from the current settings)"
        ]
        width = max(len(name) for name in self.ranking["candidate"])
        for row in self.ranking.itertuples():
            parts = [self._in_words(str(row.candidate), window) for window in self.windows]
            bound = self.bounds.get(str(row.candidate))
            sign = "B(m) > 0" if bound is None else f"B(m) < 0 from {bound:,}"
            lines.append(f"  {row.candidate:<{width}}  {'   '.join(parts)}   {sign}")
        for name, rows in self.wavelengths.groupby("candidate", sort=False):
            if main := _main_wavelengths(rows):
                lines.append(f"{name}: {main}")
        best = str(self.ranking["candidate"].iloc[0])
        if best != CURRENT:
            lines.append(f"config.json of {best}: {self.snippets[best]}")
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])

    def _in_words(self, candidate: str, window: int) -> str:
        rows = self.table[(self.table["candidate"] == candidate) & (self.table["part"] == "window")]
        row = rows[rows["window"] == window].iloc[0]
        text = f"{tokens(window)}: {number(row['nats'], row['nats_se'], digits=2)}"
        if candidate == CURRENT:
            return text
        change = number(row["difference"], row["difference_se"], signed=True, digits=2)
        return f"{text} ({change}; unpaired error {row['difference_se_unpaired']:.2g})"

    def save(self, out: Path | str, *, replace: bool = False) -> Path:
        """Write tables, figure and snippets into a folder.

        A folder that holds other results is refused unless `replace` is true.
        """
        from qkscope.figures.loss_by_position import save_figure

        with writing(Path(out), self.holds, self.table, replace) as staged:
            store.write_csv(staged / "whatif.csv", self.table)
            store.write_csv(staged / "whatif_heads.csv", self.heads)
            store.write_csv(staged / "whatif_wavelengths.csv", self.wavelengths)
            store.write_text(staged / "candidates.json", json.dumps(dict(self.snippets), indent=2) + "\n")
            save_figure(staged / "figure", self.table, self.model, str(self))
        return Path(out)


def whatif(
    model: str | Path,
    rope: Sequence[str],
    *,
    layers: str | None = None,
    windows: Sequence[int] | None = None,
    revision: str | None = None,
    tokenizer: Any = None,
    texts: Iterable[Any] | None = None,
    text_paths: Sequence[Path | str] = (),
    documents: int = 16,
    heads: str | int | Sequence[tuple[int, int]] = "all",
    groups: int = defaults.GROUPS,
    seed: int = defaults.SEED,
    dtype: str = "auto",
    device: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    out: Path | str | None = None,
    replace: bool = False,
) -> WhatIf:
    """The same weights under other RoPE settings: loss by position, and what changes in each head.

    model    a hub id, a folder or a GGUF file
    rope     candidates: `theta=2e6`, `linear:factor=4`, `yarn:factor=8,original=4096`, `llama3:factor=8`; with `@0-11`
             only in these layers
    layers   the layers of candidates that name none, such as "0-11" (default: all)
    windows  tokens read from each document, ascending (default: the model's positions, at most 2,048)
    texts, text_paths, documents, heads, replace, ...  as in `scan`
    """
    reading = {"trust_remote_code": trust_remote_code, "allow_pickle": allow_pickle}
    named = isinstance(model, str | Path)
    subject = Subject.of(model, tokenizer, revision, dtype=dtype, device=device, **reading) if named else None
    if subject is None or subject.source is None:
        raise CaptureError("whatif builds the model several times: give its folder, hub name or GGUF file")
    default = parse_layers(layers) if layers else None
    candidates = [parse_candidate(text, default) for text in dict.fromkeys(rope)]
    edges = tuple(sorted(set(windows or [subject.window])))
    setup = prepare(subject, edges[-1], texts, corpus_spec(text_paths, documents, seed), heads, groups)
    parts = dict.fromkeys([f"{subject.name} with {each.name}" for each in candidates], setup.part())
    settings = {"groups": len(setup.groups), "seed": seed, "dtype": dtype}
    holds = Holding("whatif", subject.name, parts, list(edges), settings=settings)
    if out is not None:
        refuse_other(Path(out), holds, replace=replace)
    setup.check_memory()
    # Settings that are impossible are found before anything is measured.
    num_layers = subject.architecture.num_layers
    for each in candidates:
        if outside := [layer for layer in each.layers or () if layer >= num_layers]:
            raise CaptureError(
                f"{each.name}: the model has no layer {outside[0]}; its layers are 0 to {num_layers - 1}"
            )
    tried: dict[str, tuple[Any, ...]] = {CURRENT: (subject.source, subject.config, None)}
    for each in candidates:
        source = changed(subject.source, rotation=each.settings(subject.config))
        tried[each.name] = source, load_config(source), each.layers
    found = {name: _measured(setup, edges, name, *how) for name, how in tried.items()}
    result = WhatIf(
        subject.name,
        edges,
        _loss_table(found, edges),
        _head_table(found, edges),
        _wavelength_table(found, edges[-1]),
        {each.name: _snippet(each, subject.config) for each in candidates},
        {name: each.bound for name, each in found.items()},
        len(setup.documents),
        holds,
        setup.warnings,
    )
    if out is not None:
        result.save(out, replace=replace)
    return result


def _snippet(candidate: Candidate, config: Any) -> str:
    """What to write into config.json."""
    if candidate.layers is not None:
        return "no config.json describes settings of some layers only: the model's code has to be changed"
    return json.dumps({"rope_parameters": candidate.parameters(config)})


@dataclass(frozen=True)
class _CandidateNumbers:
    """Units of one candidate by window, the numbers of its heads, and the first distance where B is negative."""

    units: Mapping[int, list[Unit]]
    numbers: Mapping[int, CellNumbers]
    bound: int | None


def _measured(
    setup: Setup,
    windows: tuple[int, ...],
    name: str,
    source: Source,
    config: Any,
    layers: tuple[int, ...] | None,
) -> _CandidateNumbers:
    """One candidate on all documents; windows share a pass unless the rotation depends on its length.

    `source` and its `config` have the candidate's settings. With `layers`, only these get them, by a hook.
    """
    model = (changed(setup.subject, source=source) if layers is None else setup.subject).load()
    groups = chosen(("loss",))
    sums = {kind: {"every": 1} if kind is LossSum else {} for kind in sums_for(groups).values()}
    apart = depends_on_length(config, windows[-1]) is not None
    passes = [(window,) for window in windows] if apart else [windows]
    total = sum(min(len(d.tokens), rings[-1]) for rings in passes for d in setup.documents)
    units: dict[int, list[Unit]] = {}
    inside = contextlib.nullcontext() if layers is None else rope_in_layers(model, config, layers)
    title = "current settings" if name == CURRENT else name
    with inside, progress(f"Measuring {title}", total, unit="tokens") as bar:
        options: dict[str, Any] = {"sums": sums, "on_tokens": bar.advance, "probe": Probing(model)}
        for rings in passes:
            of_groups = [measure(model, part, setup.heads, rings, **options) for part in setup.groups]
            units |= dict.fromkeys(rings, of_groups)
        bar.done(f"{title}: {total:,} tokens")
    num_layers = setup.subject.architecture.num_layers
    cells = {window: Cell.of(units[window], window, num_layers=num_layers) for window in windows}
    numbers = {window: measure_cell(cell, groups) for window, cell in cells.items()}
    known = frequencies(config, windows[-1])
    return _CandidateNumbers(units, numbers, first_negative(known[0]) if known else None)


def _loss_table(found: Mapping[str, _CandidateNumbers], windows: Sequence[int]) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for window in windows:
        starts = position_bins(window)
        sums = {name: samples_of(tried.units[window], LossSum, window) for name, tried in found.items()}
        # The whole window, then by bin of position: (1 + G, 1 + B).
        nats = {name: np.array([[s.mean, *s.by_position] for s in samples]) for name, samples in sums.items()}
        current = nats[CURRENT]
        for name, own in nats.items():
            se, counts = jackknife(own[1:]), sums[name][0].n[0]
            columns = {
                "candidate": name,
                "window": window,
                "part": ["window", *("position" for _ in starts)],
                "position_from": [1, *starts],
                "position_to": [window - 1, *(starts[1:] - 1), window - 1],
                "tokens": [counts.sum(), *counts],
                "nats": own[0],
                "nats_se": se,
                "difference": own[0] - current[0],
                "difference_se": jackknife((own - current)[1:]),
                "difference_se_unpaired": np.hypot(se, jackknife(current[1:])) if name != CURRENT else 0.0,
            }
            rows.append(pd.DataFrame(columns))
    return pd.concat(rows, ignore_index=True)


def _head_table(found: Mapping[str, _CandidateNumbers], windows: Sequence[int]) -> pd.DataFrame:
    import pandas as pd

    known = [v.name for v in variables().values() if v.sampled and v.per_head and not v.dims]
    compared = [name for name in known if name in PER_HEAD or name.startswith("attn_")]
    rows = []
    for name, tried in found.items():
        for window in windows:
            now, own = tried.numbers[window], found[CURRENT].numbers[window]
            heads = now.heads
            columns: dict[str, Any] = {"candidate": name, "window": window}
            columns |= {"layer": heads.layer, "head": heads.head, "rope": heads.rope}
            for measured in compared:
                if measured not in now.arrays:
                    continue
                change = now.arrays[measured] - own.arrays[measured]
                columns[measured] = now.value(measured)
                columns[f"{measured}_change"] = change[0]
                columns[f"{measured}_change_se"] = jackknife(change[1:])
            columns["curve_change"] = _rms(now.arrays["distance_score"] - own.arrays["distance_score"])
            predicted = predicted_changes(found[CURRENT].units[window], tried.units[window], window)
            columns["curve_change_predicted"] = _rms(predicted.sum(axis=1))
            columns["prediction"] = np.where(heads.layer == 0, "exact", "estimate")
            rows.append(pd.DataFrame(columns))
    return pd.concat(rows, ignore_index=True)


def _rms(curve: Array) -> Array:
    """Root mean square over distances. (H, D) -> (H,)"""
    return np.asarray(np.sqrt(np.nanmean(np.where(np.isfinite(curve), curve**2, np.nan), axis=1)))


def predicted_changes(before: Sequence[Unit], after: Sequence[Unit], width: int) -> Array:
    """How the distance curve changes if vectors before rotation stay as they are, by rotary pair, in logits. (H, P, D)

    Exact in the first layer, whose vectors before rotation no setting changes; elsewhere an estimate.
    """
    sums, first, other = samples_of(before, PathSum, width)[0], before[0], after[0]
    heads, lags = first.heads, distances(width)
    known = [r for r in first.rotations.values() if r is not None]
    found = np.full((len(heads), max((len(r.pairs) for r in known), default=0), len(lags)), np.nan)
    for layer in np.unique(heads.layer).tolist():
        own, new = first.rotations[layer], other.rotations[layer]
        rows = np.flatnonzero(heads.layer == layer)
        if own is None or new is None:
            continue
        found[rows] = 0.0
        paths = sums.q.select(rows), sums.k.select(heads.kv_row[rows])
        scale = first.scales[layer]
        for pair in range(len(own.pairs)):
            curves = [scale * _pair_curve(*paths, rotation, pair, width) for rotation in (own, new)]
            found[rows, pair] = _third_octaves(curves[1] - curves[0], lags)
    return found


def _pair_curve(q: MeanPath, k: MeanPath, rotation: Rotation, pair: int, width: int) -> Array:
    """What one pair adds to b(D) at D = 0, 1, ..., width - 1. (H, width)

    With m(t) = s u(t) exp(i f t), sums over i - j = D of Re m_q(i) m_k(j)* are a correlation, by FFT.
    """
    t = np.arange(width)
    turn = rotation.scale * np.exp(1j * rotation.frequency[pair] * t)
    dims = rotation.pairs[pair]
    mq, mk = (
        (means[..., 0] + 1j * means[..., 1]) * turn
        for means in (np.nan_to_num(path.filled.means_at(t)[..., dims]) for path in (q, k))
    )
    mk[:, :SINK] = 0
    mq[:, : SINK + 1] = 0
    size = 2 * width
    products = np.fft.ifft(np.fft.fft(mq, size) * np.conj(np.fft.fft(mk, size)))[:, :width].real
    before = np.concatenate([np.zeros((len(mk), 1)), np.cumsum(mk, axis=1)[:, :-1]], axis=1)
    own = (mq * np.conj(before / np.maximum(t - SINK, 1))).real  # each query's mean over its keys
    beyond = np.cumsum(own[:, ::-1], axis=1)[:, ::-1]  # sum over queries from t on
    starts = np.minimum(t + SINK, width - 1)
    counts = np.maximum(width - SINK - t, 1)
    return np.asarray((products - beyond[:, starts]) / counts)


def _third_octaves(curve: Array, lags: NDArray[np.int64]) -> Array:
    """Means over the distances within a third of an octave of each lag. (H, T) -> (H, D)"""
    last = curve.shape[1] - SINK - 1
    low = np.clip(np.ceil(lags * 2.0 ** (-1 / 3)).astype(int), 1, last)
    past = np.clip(np.floor(lags * 2.0 ** (1 / 3)).astype(int), 1, last) + 1
    total = np.concatenate([np.zeros((len(curve), 1)), np.cumsum(curve, axis=1)], axis=1)
    return np.asarray((total[:, past] - total[:, low]) / (past - low))


def _wavelength_table(found: Mapping[str, _CandidateNumbers], window: int) -> pd.DataFrame:
    """Which rotary pairs carry the predicted change of the distance curves, over all RoPE heads."""
    import pandas as pd

    own = found[CURRENT].units[window]
    columns = ["candidate", "pair", "wavelength_current", "wavelength", "share_of_change"]
    rows = []
    for name, tried in found.items():
        if name == CURRENT:
            continue
        changes = (predicted_changes(own, tried.units[window], window) ** 2).sum(axis=2)  # (H, P)
        total = changes.sum(axis=1, keepdims=True)
        shares = np.nanmean(np.where(total > 0, changes / np.where(total > 0, total, 1), np.nan), axis=0)
        new = tried.units[window][0].rotations
        turning = [
            (a, b)
            for layer, a in own[0].rotations.items()
            if a is not None and (b := new[layer]) is not None and len(a.pairs)
        ]
        differ = [(a, b) for a, b in turning if not np.allclose(a.frequency, b.frequency)]
        for a, b in (differ or turning)[:1]:
            values = [name, np.arange(len(a.pairs)), a.wavelength, b.wavelength, shares]
            rows.append(pd.DataFrame(dict(zip(columns, values, strict=True))))
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=columns)


def _main_wavelengths(rows: pd.DataFrame) -> str:
    """The fewest wavelengths that carry most of the change, as a sentence."""
    ordered = rows.sort_values("share_of_change", ascending=False)
    carried = ordered["share_of_change"].cumsum()
    if not len(rows) or not carried.iloc[-1] > 0:
        return ""
    most = ordered[carried.shift(fill_value=0) < MOST]
    waves, share = most["wavelength_current"], most["share_of_change"].sum()
    low, high = (f"{edge:,.0f}" for edge in (waves.min(), waves.max()))
    return (
        f"{share:.0%} of the predicted change of distance curves comes from {len(most)} of {len(rows)} rotary pairs, "
        f"of {low if low == high else f'{low} to {high}'} tokens per turn under the current settings"
    )
