"""Remove a part of the scores in some heads and see what it costs, in nats per token.

    qkscope.ablate("results/nano", heads=["top:8:share_position"], parts=["position"])    # a study's last checkpoint
    qkscope.ablate("HuggingFaceTB/SmolLM2-135M", heads=["class:positional"])              # a model

Half of the documents give the mean vectors by position, the other half is scored: once as the model is, and once per
set of heads and part. Beside each set, random heads of the same layers lose the same part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope import defaults
from qkscope.ablation.heads import Head, choose, draw, population, standard_sets
from qkscope.capture import Probing, measure
from qkscope.capture.ablation import PARTS, Ablation, MeanVectors, check_ablation, document_nats
from qkscope.capture.head import LanguageHead
from qkscope.errors import CaptureError, StudyError, TableError
from qkscope.measures.anatomy import path_about
from qkscope.measures.cell import Cell, measure_cell
from qkscope.measures.jackknife import jackknife
from qkscope.measures.position import bin_phases
from qkscope.measures.registry import chosen as chosen_measures
from qkscope.progress import progress, say
from qkscope.results import Results, load_results
from qkscope.results.dataset import NAME, CellData, CellInfo, dataset
from qkscope.results.results_folder import results_of
from qkscope.results.tables import ABLATION, ABLATION_COLUMNS
from qkscope.scanning.model import LONGEST, Subject, read_documents
from qkscope.store import write_csv
from qkscope.study import CorpusSpec, load_study, sources
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.moments import merge_all
from qkscope.sums.path import SINK
from qkscope.sums.path import Path as HeadPath
from qkscope.sums.unit import Unit, window

if TYPE_CHECKING:
    import pandas as pd

    from qkscope.corpus import Document

Array = NDArray[np.float64]

# Documents that are scored, and as many that give the mean vectors; random sets of heads beside each chosen one.
DOCUMENTS, DRAWS = 16, 3


@dataclass(frozen=True)
class Ablated:
    """`table` has a row per set of heads and part: see `docs/ablation.md` for its columns."""

    table: pd.DataFrame

    def __str__(self) -> str:
        line = "{:<16} {:<34} {:>6} {:>18} {:>18}".format
        lines = [line("without", "in heads", "heads", "nats per token", "random heads")]
        for row in self.table.to_dict("records"):
            own, other = (
                _with_error(row[name], row[f"{name}_se"]) if math.isfinite(row[name]) else "none left"
                for name in ("delta", "random")
            )
            lines.append(line(row["part"], row["heads"], row["n_heads"], own, other))
        first = self.table.iloc[0]
        lines += [
            "",
            f"{first['checkpoint']}: loss {first['loss']:.3f} nats per token as it is; {first['documents']} documents, "
            f"{first['tokens']:,} tokens. ± is one standard error over documents, of random heads over "
            f"{first['draws']} draw{'' if first['draws'] == 1 else 's'} of heads of the same layers.",
        ]
        return "\n".join(lines)

    def __rich__(self) -> str:
        return str(self)


def _with_error(value: float, se: float) -> str:
    """`+0.866 ± 0.147`; without the error where there is none, as of a single draw."""
    return f"{value:+.3f} ± {se:.3f}" if math.isfinite(se) else f"{value:+.3f}"


@dataclass(frozen=True)
class _Task:
    """A model with its documents, those that give the mean vectors apart from those that are scored."""

    name: str
    weights: str
    subject: Subject
    window: int
    for_paths: Sequence[Document]
    scored: Sequence[Document]
    table: pd.DataFrame | None
    """A row per head, to choose from; None: computed from the first documents."""


def ablate(
    place: Results | Path | str | Any,
    *,
    heads: Sequence[str] = (),
    parts: Sequence[str] = PARTS,
    checkpoint: str | None = None,
    revision: str | None = None,
    tokenizer: Any = None,
    texts: Iterable[Any] | None = None,
    text_paths: Sequence[Path | str] = (),
    max_length: int | None = None,
    documents: int = DOCUMENTS,
    draws: int = DRAWS,
    seed: int = defaults.SEED,
    dtype: str = "float32",
    device: str | None = None,
    batch_tokens: int = defaults.BATCH_TOKENS,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    out: Path | str | None = None,
) -> Ablated:
    """What a model loses, in nats per token, without one part of its scores in some heads.

    place       a results folder (its last checkpoint, or `checkpoint`), or a model: in memory, hub id, folder or file
    heads       sets of heads: `top:27:share_position`, `class:positional`, `layer:3`, `L4H2,L5H0`, `all`, ... (default:
                each class of scores)
    parts       position, query_position, key, match, sink or head (the whole head: uniform attention)
    texts, text_paths, tokenizer, revision   of a model, as in `scan`; a study has its own
    documents   maximum number of scored documents; as many others give the mean vectors
    draws       random sets of heads of the same layers beside each set
    dtype       parts are removed exactly in float32; half precision rounds what is left
    out         a folder for ablation.csv (default: the results folder; a model's table is not written)
    """
    if unknown := [part for part in parts if part not in PARTS]:
        raise TableError(f"part {unknown[0]!r}; expected some of {', '.join(PARTS)}")
    results = _as_results(place)
    options = {"max_length": max_length, "documents": documents, "dtype": dtype, "device": device}
    if results is None:
        subject = Subject.of(place, revision, tokenizer, dtype, device, trust_remote_code, allow_pickle)
        task = _model_task(subject, texts, text_paths, seed, options)
    else:
        task = _study_task(results, checkpoint, options)
    table = _run(task, heads, parts, draws, seed, batch_tokens)
    if out is not None:
        write_csv(Path(out) / ABLATION, table)
    elif results is not None:
        from qkscope.run.pipeline import redraw

        redraw(results, _joined(results.ablation, table))
    return Ablated(table)


def _as_results(place: Any) -> Results | None:
    if isinstance(place, Results):
        return place
    found = isinstance(place, str | Path) and (Path(place) / NAME).is_file()
    return load_results(place) if found else None


def _study_task(results: Results, checkpoint: str | None, options: Mapping[str, Any]) -> _Task:
    from qkscope.capture.architecture import read_architecture
    from qkscope.checkpoints import load_config, load_tokenizer, resolve
    from qkscope.corpus import load_corpus

    path = results.folder / "study.yaml"
    if not path.is_file():
        raise StudyError(f"{results.folder} is not a study's results: give the model itself, with its texts")
    study, names = load_study(path), results.timeline.models
    name = checkpoint or names[-1]
    if name not in names:
        raise StudyError(f"checkpoint {name!r} was not measured; measured are {', '.join(names)}")
    given = next(each for each in sources(study) if each.name == name)
    source = replace(given.source, dtype=options["dtype"], device=options["device"] or given.source.device)
    resolved, commit = resolve(source), results.record.checkpoints[name].commit
    if commit and resolved.commit != commit:
        raise StudyError(
            f"{source}: its weights are not those that were measured ({resolved.commit[:20]} instead of "
            f"{commit[:20]}): run the study again"
        )
    config = load_config(resolved.source)
    subject = Subject(name, read_architecture(config), config, source=resolved.source)
    width = min(given.window, options["max_length"] or given.window)
    corpus = load_corpus(study.corpus, load_tokenizer(resolved.source), max(study.windows))
    for_paths, scored = _halves(corpus.documents, options["documents"])
    heads = results.heads[results.heads["model"] == name]
    return _Task(name, resolved.commit, subject, width, for_paths, scored, heads)


def _model_task(
    subject: Subject,
    texts: Iterable[Any] | None,
    text_paths: Sequence[Path | str],
    seed: int,
    options: Mapping[str, Any],
) -> _Task:
    most = subject.architecture.max_positions or LONGEST
    width = options["max_length"] or min(LONGEST, most)
    count = 2 * options["documents"]
    spec = CorpusSpec(source=[str(path) for path in text_paths] or ["stdlib"], documents=count, seed=seed)
    found, _ = read_documents(subject, texts, spec, width, [])
    for_paths, scored = _halves(found, options["documents"])
    return _Task(subject.name, subject.identity(), subject, width, for_paths, scored, None)


def _halves(documents: Sequence[Document], most: int) -> tuple[Sequence[Document], Sequence[Document]]:
    """Every other document, so that no document is in both."""
    if len(documents) < 2:
        raise CaptureError(
            "ablation needs at least two documents, one for the mean vectors and one to score: give more texts"
        )
    return documents[0::2][:most], documents[1::2][:most]


def _run(
    task: _Task, heads: Sequence[str], parts: Sequence[str], draws: int, seed: int, batch_tokens: int
) -> pd.DataFrame:
    import pandas as pd

    longest = max(len(document.tokens) for document in task.for_paths)
    width = min(task.window, longest)
    if width <= SINK:
        raise CaptureError(
            f"documents of {width} tokens are too short: scores are changed from token {SINK} on"
        )
    architecture, model = task.subject.architecture, task.subject.load()
    # A study may have measured layers with a sliding window too.
    sliding = task.table is not None and any(
        architecture.sliding[layer] for layer in set(task.table["layer"])
    )
    layers = architecture.measured_layers(sliding, longest=width)
    pairs = [(layer, head) for layer in layers for head in range(architecture.q_heads[layer])]
    every = HeadIndex.of(pairs, architecture.gqa_ratios, architecture.rope_by_layer())
    probe, head = Probing(model), LanguageHead(model)
    say(f"{task.name}: mean vectors from {len(task.for_paths)} documents")
    groups = min(defaults.GROUPS, len(task.for_paths)) if task.table is None else 1
    dealt = [task.for_paths[group::groups] for group in range(groups)]
    units = [
        measure(model, some, every, (width,), batch_tokens=batch_tokens, include_sliding=sliding, probe=probe)
        for some in dealt
    ]
    table = task.table if task.table is not None else _heads_table(task, units, width)
    texts = list(heads) or standard_sets(table)
    sets = {text: choose(text, table) for text in texts}
    beside = {text: draw(found, table, draws, seed) for text, found in sets.items()}
    through = probe(tuple(layers))[1].through
    means = _Means(units, width)
    used = sorted({layer for found in sets.values() for layer, _ in found})
    _check(task, units[0], through, used, parts, model)
    seen = architecture.sliding_window
    windows = {layer: seen for layer in layers if architecture.sliding[layer] and seen is not None}
    scoring = _Scoring(model, head, task.scored, width, batch_tokens, through, means, windows)
    rows = []
    passes = len(parts) * sum(1 + len(beside[text]) for text in sets)
    tokens = 1 + sum(min(len(document.tokens), width) for document in task.scored)
    with progress(f"Ablating {task.name}", tokens * (passes + 1)) as bar:
        scoring.base  # noqa: B018  # the baseline, once
        bar.advance(tokens)
        for text, found in sets.items():
            for part in parts:
                row = _row(scoring, text, part, found, beside[text])
                rows.append(row | {"population": population(found, table)})
                bar.advance(tokens * (1 + len(beside[text])))
                bar.done(
                    f"{part} in {text}: {rows[-1]['delta']:+.3f} ± {rows[-1]['delta_se']:.3f} nats per token"
                )
    found_table = pd.DataFrame(rows).assign(checkpoint=task.name, weights=task.weights, window=width)
    return found_table[list(ABLATION_COLUMNS)]


def _check(
    task: _Task, unit: Unit, through: str, layers: Sequence[int], parts: Sequence[str], model: Any
) -> None:
    """Refuse what cannot be done before the first pass."""
    if set(parts) <= {"head"}:
        return
    unknown = [layer for layer in layers if unit.rotations[layer] is None]
    if unknown:
        raise CaptureError(
            f"the rotation of layers {unknown} of this {task.subject.architecture.family} model is not known "
            f"({unit.unknown_rotations[unknown[0]]}), so their mean vectors by position are not: only the part `head` "
            "can be removed there"
        )
    shape = task.subject.architecture
    dims = {layer: (shape.q_heads[layer], shape.kv_heads[layer], shape.head_dims[layer]) for layer in layers}
    check_ablation(model, through, dims)


def _heads_table(task: _Task, units: Sequence[Unit], width: int) -> pd.DataFrame:
    """The measures of the heads of a model, from the documents that give the mean vectors."""
    cell = Cell.of(units, width, num_layers=task.subject.architecture.num_layers)
    numbers = measure_cell(cell, chosen_measures(defaults.MEASURES))
    info = CellInfo(task.name, width, groups=numbers.groups)
    return results_of(dataset([CellData.of(info, numbers)]), Path(task.name), task.name).heads


class _Means(Mapping[int, MeanVectors]):
    """m_q and m_k at every position, by layer; computed when a layer is first used."""

    def __init__(self, units: Sequence[Unit], width: int) -> None:
        self._units, self._width = units, width
        self._found: dict[int, MeanVectors] = {}

    def __getitem__(self, layer: int) -> MeanVectors:
        if layer not in self._found:
            self._found[layer] = mean_vectors(self._units, self._width, layer)
        return self._found[layer]

    def __iter__(self) -> Any:
        return iter(self._units[0].rotations)

    def __len__(self) -> int:
        return len(self._units[0].rotations)


def mean_vectors(units: Sequence[Unit], width: int, layer: int) -> MeanVectors:
    """m(t) of a layer's heads: R_t mu_b(t) of queries; of keys about their mean, kbar + R_t mu_b(t)."""
    heads, rotation = units[0].heads, units[0].rotations[layer]
    if rotation is None:
        raise CaptureError(f"the rotation of layer {layer} is not known")
    rows_q, rows_k = np.flatnonzero(heads.layer == layer), np.flatnonzero(heads.keys[:, 0] == layer)
    q, k = (
        reduce(HeadPath.merge, [path.window(width) for path in paths if path is not None]).select(rows)
        for paths, rows in (
            ([unit.path_q for unit in units], rows_q),
            ([unit.path_k for unit in units], rows_k),
        )
    )
    late = merge_all([window(unit, width, skip_sink=True, rows=(rows_q, rows_k))[1] for unit in units])
    counts = np.sum([unit.counts(width) for unit in units], axis=0)
    about = path_about(k, late.mean_x, rotation, bin_phases(rotation, counts, k.edges))
    t = np.arange(width)
    m_q, m_k = q.filled.at(rotation, t), late.mean_x[:, None] + about.filled.at(rotation, t)
    return MeanVectors(m_q.astype(np.float32), m_k.astype(np.float32))


@dataclass(frozen=True)
class _Scoring:
    """Passes over the scored documents."""

    model: Any
    head: LanguageHead
    documents: Sequence[Document]
    width: int
    batch_tokens: int
    through: str
    means: Mapping[int, MeanVectors]
    windows: Mapping[int, int]

    @cached_property
    def base(self) -> tuple[Array, NDArray[np.int64]]:
        """Nats and tokens of each document as the model is."""
        return self._nats(None)

    def cost(self, part: str, heads: Sequence[Head]) -> Array:
        """Nats that each document costs more without the part in these heads."""
        by_layer: dict[int, list[int]] = {}
        for layer, head in heads:
            by_layer.setdefault(layer, []).append(head)
        return np.asarray(self._nats(Ablation(part, by_layer, self.means, self.windows))[0] - self.base[0])

    def _nats(self, ablation: Ablation | None) -> tuple[Array, NDArray[np.int64]]:
        options = self.width, self.batch_tokens, self.through, ablation
        return document_nats(self.model, self.head, self.documents, *options)


def _row(
    scoring: _Scoring, text: str, part: str, heads: Sequence[Head], beside: Sequence[Sequence[Head]]
) -> dict[str, Any]:
    base, counts = scoring.base
    cost = scoring.cost(part, heads)
    delta, se = _per_token(cost, counts)
    row: dict[str, Any] = {"part": part, "heads": text, "n_heads": len(heads), "delta": delta, "delta_se": se}
    row |= {"random": math.nan, "random_se": math.nan, "above_random": math.nan, "above_random_se": math.nan}
    row |= {"random_heads": len(beside[0]) if beside else 0, "draws": len(beside)}
    if beside:
        others = np.stack([scoring.cost(part, some) for some in beside])  # (draws, documents)
        each = others.sum(axis=1) / counts.sum()
        spread = float(each.std(ddof=1) / math.sqrt(len(each))) if len(each) > 1 else math.nan
        above, above_se = _per_token(cost - others.mean(axis=0), counts)
        row |= {"random": float(each.mean()), "random_se": spread}
        row |= {"above_random": above, "above_random_se": math.hypot(above_se, spread)}
    loss, _ = _per_token(base, counts)
    return row | {"loss": loss, "documents": len(counts), "tokens": int(counts.sum())}


def _per_token(nats: Array, counts: NDArray[np.int64]) -> tuple[float, float]:
    """Nats per token over all documents, with its delete-one-document jackknife error."""
    without = (nats.sum() - nats) / np.where(counts.sum() > counts, counts.sum() - counts, np.nan)
    return float(nats.sum() / counts.sum()), float(jackknife(without))


def _joined(before: pd.DataFrame | None, now: pd.DataFrame) -> pd.DataFrame:
    """Both tables; a set of heads and part that was measured again has its new row only."""
    import pandas as pd

    if before is None:
        return now
    both = pd.concat([before, now], ignore_index=True)
    return both.drop_duplicates(["checkpoint", "part", "heads"], keep="last", ignore_index=True)
