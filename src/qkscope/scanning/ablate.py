"""Remove a part of the scores in some heads and see what it costs, in nats per token.

    qkscope.ablate("results/nano", heads=["top:8:share_position"], parts=["position"])    # a study's last checkpoint
    qkscope.ablate("HuggingFaceTB/SmolLM2-135M", heads=["class:positional"])              # a model

Half of the documents give the mean vectors by position, the other half is scored: once as the model is, and once per
set of heads and part. Beside each set, random heads of the same layers lose the same part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qkscope import defaults
from qkscope.capture import Probing, measure
from qkscope.capture.ablation import PARTS, Ablation, MeanVectors, check_ablation, document_nats
from qkscope.capture.architecture import read_architecture
from qkscope.capture.head import LanguageHead
from qkscope.checkpoints import load_config, load_tokenizer, resolve
from qkscope.corpus import Document, load_corpus
from qkscope.errors import CaptureError, StudyError, TableError
from qkscope.measures.anatomy import path_about
from qkscope.measures.position import bin_phases
from qkscope.measures.samples import jackknife
from qkscope.progress import progress, say
from qkscope.results import Results, load_results
from qkscope.results.dataset import NAME
from qkscope.results.tables import ABLATION, ABLATION_COLUMNS
from qkscope.run.pipeline import redraw
from qkscope.scanning.head_sets import Head, choose, draw, population, standard_sets
from qkscope.scanning.measured import measured_cell, results_in_memory
from qkscope.scanning.subject import Subject, corpus_spec, deal, read_documents
from qkscope.store import write_csv
from qkscope.study import load_study, sources
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.moments import merge_all
from qkscope.sums.path import SINK, PathSum
from qkscope.sums.rotation import Rotation
from qkscope.sums.unit import Unit, window
from qkscope.words import count

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

# Documents that are scored, and as many that give the mean vectors; random sets of heads beside each chosen one.
DOCUMENTS, DRAWS = 16, 3


@dataclass(frozen=True)
class AblationResult:
    """`table` has a row per set of heads and part: see `docs/ablation.md` for its columns."""

    table: pd.DataFrame

    def __str__(self) -> str:
        line = "{:<16} {:<34} {:>6} {:>18} {:>18}".format
        lines = [line("without", "in heads", "heads", "nats per token", "random heads")]
        for row in self.table.itertuples():
            costs = _with_error(row.delta, row.delta_se), _with_error(row.random, row.random_se)
            lines.append(line(row.part, row.heads, row.n_heads, *costs))
        first, draws = self.table.iloc[0], self.table["draws"].max()
        about = (
            f"{first['checkpoint']}: loss {first['loss']:.3f} nats per token as it is; {first['documents']} documents, "
            f"{first['tokens']:,} tokens. ± is one standard error over documents"
        )
        if draws:
            about += (
                f", of random heads over {count(draws, 'draw')} of heads of the same layers (over documents where no "
                "other draw is possible)"
            )
        about += "."
        return "\n".join([*lines, "", about])


def _with_error(value: float, se: float) -> str:
    """`+0.866 ± 0.147`; without the error where there is none, as of a single draw; no heads, no number."""
    if not math.isfinite(value):
        return "none left"
    return f"{value:+.3f} ± {se:.3f}" if math.isfinite(se) else f"{value:+.3f}"


@dataclass(frozen=True)
class _AblationTask:
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
    source: Results | Path | str | Any,
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
) -> AblationResult:
    """What a model loses, in nats per token, without one part of its scores in some heads.

    source      a results folder (its last checkpoint, or `checkpoint`), or a model: in memory, hub id, folder or file
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
    results = source if isinstance(source, Results) else None
    if isinstance(source, str | Path) and (Path(source) / NAME).is_file():
        results = load_results(source)
    if results is None:
        reading = {"trust_remote_code": trust_remote_code, "allow_pickle": allow_pickle}
        subject = Subject.of(source, tokenizer, revision, dtype=dtype, device=device, **reading)
        window = max_length or subject.window
        spec = corpus_spec(text_paths, 2 * documents, seed)
        found, _ = read_documents(subject, window, texts, spec, [])
        task = _AblationTask(
            subject.name, subject.identity(), subject, window, *_halves(found, documents), None
        )
    else:
        task = _study_task(results, checkpoint, max_length, documents, dtype=dtype, device=device)
    table = _run(task, heads, parts, draws, seed, batch_tokens)
    if out is not None:
        write_csv(Path(out) / ABLATION, table)
    elif results is not None:
        redraw(results, _joined(results.ablation, table))
    return AblationResult(table)


def _study_task(
    results: Results,
    checkpoint: str | None,
    max_length: int | None,
    documents: int,
    dtype: str,
    device: str | None,
) -> _AblationTask:
    path = results.folder / "study.yaml"
    if not path.is_file():
        raise StudyError(f"{results.folder} is not a study's results: give the model itself, with its texts")
    study, names = load_study(path), results.timeline.models
    name = checkpoint or names[-1]
    if name not in names:
        raise StudyError(f"checkpoint {name!r} was not measured; measured are {', '.join(names)}")
    given = next(each for each in sources(study) if each.name == name)
    source = replace(given.source, dtype=dtype, device=device or given.source.device)
    resolved, commit = resolve(source), results.record.checkpoints[name].commit
    if commit and resolved.commit != commit:
        raise StudyError(
            f"{source}: its weights are not those that were measured ({resolved.commit[:20]} instead of "
            f"{commit[:20]}): run the study again"
        )
    config = load_config(resolved.source)
    subject = Subject(name, read_architecture(config), config, source=resolved.source)
    window = min(given.window, max_length or given.window)
    corpus = load_corpus(study.corpus, load_tokenizer(resolved.source), max(study.windows))
    # Classes and measures over the same tokens that are scored, where the study has them.
    matched = results.matched_heads if window == results.timeline.matched_window else None
    table = results.heads if matched is None else matched
    heads = table[table["model"] == name]
    return _AblationTask(name, resolved.commit, subject, window, *_halves(corpus.documents, documents), heads)


def _halves(documents: Sequence[Document], most: int) -> tuple[Sequence[Document], Sequence[Document]]:
    """Every other document, so that no document is in both."""
    if len(documents) < 2:
        raise CaptureError(
            "ablation needs at least two documents, one for the mean vectors and one to score: give more texts"
        )
    return documents[0::2][:most], documents[1::2][:most]


def _run(
    task: _AblationTask, heads: Sequence[str], parts: Sequence[str], draws: int, seed: int, batch_tokens: int
) -> pd.DataFrame:
    import pandas as pd

    width = min(task.window, max(len(document.tokens) for document in task.for_paths))
    if width <= SINK:
        raise CaptureError(
            f"documents of {width} tokens are too short: scores are changed from token {SINK} on"
        )
    if task.table is not None:
        for text in heads:  # mistakes are found before the model is loaded
            choose(text, task.table)
    shape, model = task.subject.architecture, task.subject.load()
    # A study may have measured layers with a sliding window too.
    sliding = task.table is not None and any(shape.sliding[layer] for layer in set(task.table["layer"]))
    layers = shape.measured_layers(sliding, longest=width)
    probe = Probing(model)
    say(f"{task.name}: mean vectors from {len(task.for_paths)} documents")
    options: dict[str, Any] = {"batch_tokens": batch_tokens, "include_sliding": sliding, "probe": probe}
    units = _units(task, model, layers, width, **options)
    table = task.table
    if table is None:
        cell = measured_cell(task.name, units, width, shape.num_layers)
        table = results_in_memory([cell], task.name).heads
    sets = {text: choose(text, table) for text in heads or standard_sets(table)}
    beside = {text: draw(chosen, table, draws, seed) for text, chosen in sets.items()}
    through = probe(tuple(layers))[1].through
    means: dict[int, MeanVectors] = {}
    if set(parts) != {"head"}:
        used = sorted({layer for chosen in sets.values() for layer, _ in chosen})
        rotations = _known_rotations(units[0], used, shape.family)
        dims = {
            layer: (shape.q_heads[layer], shape.kv_heads[layer], shape.head_dims[layer]) for layer in used
        }
        check_ablation(model, through, dims)
        means = {layer: mean_vectors(units, width, layer, rotations[layer]) for layer in used}
    seen = shape.sliding_window
    windows = {layer: seen for layer in layers if shape.sliding[layer] and seen is not None}
    head = LanguageHead(model)

    def nats(ablation: Ablation | None = None) -> tuple[Array, NDArray[np.int64]]:
        return document_nats(model, head, task.scored, width, batch_tokens, through, ablation)

    def cost(part: str, chosen: Sequence[Head]) -> Array:
        """Nats that each document costs more without the part in these heads."""
        by_layer: dict[int, list[int]] = {}
        for layer, number in chosen:
            by_layer.setdefault(layer, []).append(number)
        return np.asarray(nats(Ablation(part, by_layer, means, windows))[0] - base)

    rows = []
    passes = len(parts) * (len(sets) + sum(map(len, beside.values())))
    tokens = 1 + sum(min(len(document.tokens), width) for document in task.scored)
    with progress(f"Ablating {task.name}", tokens * (passes + 1)) as bar:
        base, counts = nats()
        bar.advance(tokens)
        about: dict[str, Any] = {"checkpoint": task.name, "weights": task.weights, "window": width}
        about |= {"loss": _per_token(base, counts)[0], "documents": len(counts), "tokens": int(counts.sum())}
        for text, chosen in sets.items():
            for part in parts:
                others = [cost(part, some) for some in beside[text]]
                row = _row(cost(part, chosen), others, counts, only=0 < len(others) < draws)
                row |= {"part": part, "heads": text, "n_heads": len(chosen), "draws": len(others)}
                row |= {"random_heads": len(beside[text][0]) if others else 0}
                rows.append(row | {"population": population(chosen, table)} | about)
                bar.advance(tokens * (1 + len(others)))
                bar.done(f"{part} in {text}: {row['delta']:+.3f} ± {row['delta_se']:.3f} nats per token")
    return pd.DataFrame(rows)[list(ABLATION_COLUMNS)]


def _units(task: _AblationTask, model: Any, layers: Sequence[int], width: int, **options: Any) -> list[Unit]:
    """Sums of all heads over the documents that give the mean vectors; in groups where they also give the table."""
    shape = task.subject.architecture
    pairs = [(layer, head) for layer in layers for head in range(shape.q_heads[layer])]
    every = HeadIndex.of(pairs, shape.gqa_ratios, shape.rope_by_layer())
    groups = deal(task.for_paths, defaults.GROUPS if task.table is None else 1)
    return [measure(model, documents, every, (width,), **options) for documents in groups]


def _known_rotations(unit: Unit, layers: Sequence[int], family: str) -> dict[int, Rotation]:
    """The rotations of layers; refuses those where it is not known, before the first pass that changes scores."""
    found = {layer: rotation for layer in layers if (rotation := unit.rotations[layer]) is not None}
    if unknown := [layer for layer in layers if layer not in found]:
        raise CaptureError(
            f"the rotation of layers {unknown} of this {family} model is not known "
            f"({unit.unknown_rotations[unknown[0]]}), so their mean vectors by position are not: only the part `head` "
            "can be removed there"
        )
    return found


def mean_vectors(units: Sequence[Unit], width: int, layer: int, rotation: Rotation) -> MeanVectors:
    """m(t) of a layer's heads: R_t mu_b(t) of queries; of keys about their mean, kbar + R_t mu_b(t)."""
    heads = units[0].heads
    rows_q, rows_k = np.flatnonzero(heads.layer == layer), np.flatnonzero(heads.keys[:, 0] == layer)
    paths = reduce(PathSum.merge, [unit.get(PathSum).window(width) for unit in units])
    q, k = paths.q.select(rows_q), paths.k.select(rows_k)
    late = merge_all([window(unit, width, skip_sink=True, rows=(rows_q, rows_k))[1] for unit in units])
    counts = np.sum([unit.counts(width) for unit in units], axis=0)
    about = path_about(k, late.mean_x, rotation, bin_phases(rotation, counts, k.edges))
    t = np.arange(width)
    m_q, m_k = q.filled.at(rotation, t), late.mean_x[:, None] + about.filled.at(rotation, t)
    return MeanVectors(m_q.astype(np.float32), m_k.astype(np.float32))


def _row(cost: Array, others: Sequence[Array], counts: NDArray[np.int64], only: bool) -> dict[str, Any]:
    """What a part costs in the chosen heads, in random ones, and the difference; costs (documents,) in nats.

    only  whether there are no other sets to draw: their mean then has the error over documents alone
    """
    delta, se = _per_token(cost, counts)
    row = {"delta": delta, "delta_se": se, "random": math.nan, "random_se": math.nan}
    above, above_se = math.nan, math.nan
    if others:
        each = np.array([_per_token(other, counts)[0] for other in others])
        row["random"], over_documents = _per_token(np.mean(others, axis=0), counts)
        above, above_se = _per_token(cost - np.mean(others, axis=0), counts)
        if only:
            row["random_se"] = over_documents
        else:
            row["random_se"] = float(each.std(ddof=1) / math.sqrt(len(each))) if len(each) > 1 else math.nan
            above_se = math.hypot(above_se, row["random_se"])
    return row | {"above_random": above, "above_random_se": above_se}


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
