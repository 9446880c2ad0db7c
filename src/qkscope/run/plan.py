"""A study -> what has to be measured: for each checkpoint its commit, its heads, its documents, its units.

One checkpoint that cannot be read does not stop the others: it is `missing`, with the reason. Models are not loaded
here, only their configurations and tokenizers.

Between neighbours A and B of a training run the weights, the RoPE settings and the window may change, all at once.
Where RoPE settings change, two counterfactual checkpoints are measured as well, over the shorter of the two windows:

    A~rotation-of-B   A's weights with B's RoPE settings
    B~rotation-of-A   B's weights with A's

They are units like any other and never checkpoints of the training run. Where one cannot be built, the study goes on
without it and says which change is not separable, and why.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from qkscope.capture.architecture import Architecture, read_architecture
from qkscope.capture.probe_rotation import check_windows, depends_on_length, why_not_together
from qkscope.checkpoints import Source, load_config, load_tokenizer, resolve, rotation_settings, same_rotation
from qkscope.checkpoints.doctor import Finding
from qkscope.checkpoints.rope import frequencies
from qkscope.corpus import Corpus, Document, load_corpus, token_file
from qkscope.errors import CorpusError, HubError, QkscopeError, StoreError, StudyError
from qkscope.measures.registry import chosen, sums_for
from qkscope.progress import say
from qkscope.results.owner import Holding, Part, head_mask, study_holding
from qkscope.run.units import (
    CAPTURE_VERSION,
    Job,
    documents_digest,
    error_line,
    missing_sums,
    sum_settings,
    why_measured_again,
)
from qkscope.store import short_digest
from qkscope.study import Checkpoint, Study
from qkscope.sums import ExampleSum
from qkscope.sums.head_index import HeadIndex, sample_heads


@dataclass(frozen=True)
class PlannedCheckpoint:
    """A checkpoint that can be measured, with its units (one per group that has documents)."""

    checkpoint: Checkpoint
    commit: str
    architecture: Architecture
    heads: HeadIndex
    corpus: Corpus
    jobs: tuple[Job, ...]
    rotation: str
    """Its rotation settings, or those it was given instead of its own."""
    frequencies: tuple[float, ...] | None = None
    """Radians per token of each rotary pair, from its configuration; None if unknown or dependent on length."""
    vocabulary: int | None = None
    """Number of embeddings, by its configuration."""


@dataclass
class Plan:
    """All checkpoints of a study: those that can be measured, and why the others cannot."""

    study: Study
    planned: list[PlannedCheckpoint] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def jobs(self) -> list[Job]:
        return [job for planned in self.planned for job in planned.jobs]

    def documents(self, job: Job) -> list[Document]:
        """What a unit reads: the documents of its group."""
        corpus = next(p.corpus for p in self.planned if p.checkpoint.name == job.name)
        return group_documents(corpus, job.group, self.study.groups)


def without_counterfactual(planned: Iterable[PlannedCheckpoint]) -> list[PlannedCheckpoint]:
    """The checkpoints of the training run."""
    return [each for each in planned if not each.checkpoint.counterfactual]


def pinned(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Checkpoints on the hub by their commits, since a branch may move while a study runs."""
    found = []
    for checkpoint in checkpoints:
        if checkpoint.source.path is None:
            with suppress(QkscopeError):  # planning reports it
                checkpoint = replace(checkpoint, source=resolve(checkpoint.source).source)
        found.append(checkpoint)
    return found


def plan_study(study: Study, checkpoints: Iterable[Checkpoint], cache: Path | None = None) -> Plan:
    """Plan every checkpoint. Raises if none can be measured, or if the texts do not suffice."""
    plan = Plan(study)
    texts = _Texts(study, cache)
    for checkpoint in checkpoints:
        try:
            planned = _plan_checkpoint(study, checkpoint, texts)
            if study.kind == "training":
                _check_same_architecture(plan, planned)
        except (CorpusError, StoreError):
            raise  # every checkpoint reads the same texts and writes to the same disk
        except QkscopeError as error:
            plan.missing[checkpoint.name] = error_line(error)
            continue
        plan.planned.append(planned)
    if not plan.planned and plan.missing:
        lines = [f"\n  {name}: {why}" for name, why in plan.missing.items()]
        reasons = set(plan.missing.values())
        why = "".join(lines) if len(reasons) > 1 else f" {reasons.pop()}"
        raise StudyError(f"no checkpoint can be measured:{why}")
    found = [warning for corpus in texts.by_digest.values() for warning in corpus_warnings(study, corpus)]
    for planned in plan.planned:
        warning = planned.architecture.window_warning(planned.checkpoint.window)
        if warning and not planned.checkpoint.counterfactual:  # there it is the purpose
            found.append(f"{planned.checkpoint.name}: {warning}")
    plan.warnings.extend(dict.fromkeys(found))
    return plan


def needed(plan: Plan, results: Path, jobs: Iterable[Job]) -> list[Job]:
    """The units that have to be measured, each with the sums that are missing; says why any is measured again."""
    todo: list[Job] = []
    again: dict[tuple[str, str], list[int]] = {}
    for job in jobs:
        missing = missing_sums(job.path(results), job.keys)
        if not missing:
            continue
        todo.append(replace(job, sums={name: job.sums[name] for name in job.sums if name in missing}))
        if why := why_measured_again(missing, job.sums):
            again.setdefault((job.name, why), []).append(job.group)
    for (name, why), groups in again.items():
        which = "group " + ", ".join(map(str, groups)) if len(groups) < plan.study.groups else "all groups"
        say(f"{name}, {which}: measuring again, because {why}")
    return todo


def holding(study: Study, planned: Iterable[PlannedCheckpoint]) -> Holding:
    """What a results folder holds once these checkpoints are measured; counterfactual ones follow from them."""
    parts = {
        each.checkpoint.name: Part(
            weights=each.commit,
            texts=each.corpus.texts,
            tokens=each.corpus.digest,
            dtype=each.checkpoint.source.dtype,
            window=each.checkpoint.window,
            heads=head_mask(each.heads.pairs),
        )
        for each in planned
        if not each.checkpoint.counterfactual
    }
    return replace(study_holding(study), checkpoints=parts)


@dataclass(frozen=True)
class ConfiguredCheckpoint:
    """A checkpoint by its configuration: its architecture, and the heads that the study measures."""

    config: Any
    architecture: Architecture
    heads: HeadIndex


def read_configuration(study: Study, checkpoint: Checkpoint) -> ConfiguredCheckpoint:
    """Read and check a checkpoint's configuration."""
    config = load_config(checkpoint.source)
    architecture = read_architecture(config)
    check_windows(config, checkpoint.rings(study.windows))
    layers = architecture.measured_layers(longest=checkpoint.window)
    pairs = sample_heads(layers, architecture.q_heads, study.heads.sample, study.heads.seed)
    heads = HeadIndex.of(pairs, architecture.gqa_ratios, architecture.rope_by_layer())
    return ConfiguredCheckpoint(config, architecture, heads)


def group_documents(corpus: Corpus, group: int, groups: int) -> list[Document]:
    return [document for document in corpus.documents if document.index % groups == group]


class _Texts:
    """The study's corpus by tokenizer; each is read, and held in memory, once."""

    def __init__(self, study: Study, cache: Path | None) -> None:
        self._study, self._cache = study, cache
        self._by_tokenizer: dict[tuple[str, str | None], Corpus] = {}
        self.by_digest: dict[str, Corpus] = {}

    def of(self, source: Source) -> Corpus:
        tokens = token_file(self._study.corpus)
        own = str(tokens) if tokens else source.tokenizer
        key = (own, None) if own else (source.model, source.revision)
        if key not in self._by_tokenizer:
            tokenizer = None if tokens else load_tokenizer(source)
            corpus = load_corpus(self._study.corpus, tokenizer, max(self._study.windows), self._cache)
            for _, unfilled in unfilled_windows(self._study, corpus):
                raise CorpusError(unfilled)
            # Checkpoints that carry equal tokenizers share one copy of the tokens.
            self._by_tokenizer[key] = self.by_digest.setdefault(corpus.digest, corpus)
        return self._by_tokenizer[key]


def unfilled_windows(study: Study, corpus: Corpus) -> Iterator[tuple[int, str]]:
    """The windows that no document fills: index and message."""
    longest = max((len(document.tokens) for document in corpus.documents), default=0)
    for i, window in enumerate(study.windows):
        if corpus.filled(window) == 0:
            what = (
                f"no document fills the window of {window} tokens: the longest of {len(corpus.documents):,} has "
                f"{longest:,}; give longer texts or remove this window from the study"
            )
            yield i, what


def _plan_checkpoint(study: Study, checkpoint: Checkpoint, texts: _Texts) -> PlannedCheckpoint:
    resolved = resolve(checkpoint.source)
    checkpoint = replace(checkpoint, source=resolved.source)
    found = read_configuration(study, checkpoint)
    config, heads, rings = found.config, found.heads, checkpoint.rings(study.windows)
    corpus = texts.of(checkpoint.source)
    key: dict[str, Any] = {
        "checkpoint": resolved.commit,
        "groups": study.groups,
        "windows": list(rings),
        "heads": short_digest(heads.to_meta()),
        "dtype": checkpoint.source.dtype,
        "batch_tokens": study.batch_tokens,
        "capture": CAPTURE_VERSION,
    }
    if checkpoint.source.rotation is not None:
        key["rotation"] = checkpoint.source.rotation
    jobs = [
        Job(
            name=checkpoint.name,
            folder=checkpoint.folder,
            group=group,
            source=resolved,
            key={**key, "documents": documents_digest(documents, rings[-1])},
            sums=_sums(study, checkpoint, documents),
            heads=heads,
            rings=rings,
            batch_tokens=study.batch_tokens,
            tokens=sum(min(len(document.tokens), rings[-1]) for document in documents),
        )
        for group in range(study.groups)
        if (documents := group_documents(corpus, group, study.groups))
    ]
    described = None if depends_on_length(config, sys.maxsize) else frequencies(config)
    return PlannedCheckpoint(
        checkpoint,
        resolved.commit,
        found.architecture,
        heads,
        corpus,
        tuple(jobs),
        rotation_settings(config),
        None if described is None else tuple(described[0].tolist()),
        getattr(config.get_text_config(), "vocab_size", None),
    )


def _sums(study: Study, checkpoint: Checkpoint, documents: list[Document]) -> dict[str, dict[str, Any]]:
    """The sums of a unit with these documents. Of optional measures, counterfactual checkpoints have the loss only."""
    sampling = {"keys": study.plasticity.keys, "documents": study.plasticity.documents, "seed": study.seed}
    names = [name for name in study.optional_measures if name == "loss" or not checkpoint.counterfactual]
    found = {
        name: sum_settings(kind, sampling if name == "keys" else {})
        for name, kind in sums_for(chosen(names)).items()
    }
    shown = study.kind == "training" and any(document.index < study.examples for document in documents)
    if shown and not checkpoint.counterfactual:
        found[ExampleSum.name] = sum_settings(ExampleSum, {"documents": study.examples})
    return found


def _check_same_architecture(plan: Plan, planned: PlannedCheckpoint) -> None:
    """Checkpoints of one training run have one shape: anything else is another model's folder."""
    if not plan.planned:
        return
    first, shape = plan.planned[0], ("family", "num_layers", "n_q_heads", "n_kv_heads", "head_dim")
    differ = [
        f"{name} {found} instead of {expected}"
        for name in shape
        if (found := getattr(planned.architecture, name)) != (expected := getattr(first.architecture, name))
    ]
    if differ:
        raise StudyError(
            f"its architecture differs from that of {first.checkpoint.name} ({', '.join(differ)}), but "
            "checkpoints of one training run must have the same: list different models under families"
        )


def corpus_warnings(study: Study, corpus: Corpus) -> list[str]:
    """What a reader of the results should know about the texts: their selection, few groups, unfilled windows."""
    found = list(corpus.warnings)
    if hint := corpus.chunk_hint("`chunk: true` under corpus"):
        found.append(hint)
    count = len(corpus.documents)
    if count == 1:
        found.append("only one document: without a second one there are no standard errors")
    elif count < study.groups:
        found.append(
            f"only {count} documents for {study.groups} groups: standard errors use {count} groups of one document"
        )
    return found + [
        f"only {filled} of {count} document{'s' * (count != 1)} fill the window of {window} tokens"
        for window in study.windows
        if (filled := corpus.filled(window)) < min(study.groups, count)
    ]


# A folder's name may have 255 bytes; those of two checkpoints can be longer.
LONGEST_NAME = 200


def controls(study: Study, checkpoints: Sequence[Checkpoint]) -> tuple[list[Checkpoint], list[str]]:
    """The counterfactual checkpoints of a study that can be measured, each once; reads configurations only.

    Also a line for each change that is not separable because one of them cannot be built.
    """
    if study.kind != "training" or not study.controls.rotation:
        return [], []
    known: list[tuple[Checkpoint, str]] = []
    for checkpoint in checkpoints:
        with suppress(QkscopeError):  # planning reports it
            known.append((checkpoint, rotation_settings(load_config(checkpoint.source))))
    found: list[Checkpoint] = []
    gaps: list[str] = []
    for (a, of_a), (b, of_b) in pairwise(known):
        if same_rotation(of_a, of_b):
            continue
        for exchanged in (_exchanged(a, b, of_b), _exchanged(b, a, of_a)):
            if why := _why_not(study, exchanged):
                gaps.append(
                    f"from {a.name} to {b.name}, the effects of training and RoPE settings are not separable, because "
                    f"{exchanged.name} cannot be measured: {why}"
                )
                continue
            # Both neighbours of a checkpoint may have the same settings: one counterfactual then serves both steps.
            for i, other in enumerate(found):
                same = same_rotation(other.source.rotation, exchanged.source.rotation)
                if other.weights_of == exchanged.weights_of and same:
                    found[i] = max(other, exchanged, key=lambda checkpoint: checkpoint.window)
                    break
            else:
                found.append(exchanged)
    return found, gaps


def _exchanged(weights: Checkpoint, other: Checkpoint, settings: str) -> Checkpoint:
    """The checkpoint with the RoPE settings of `other`, over the shorter of their windows."""
    name = f"{weights.name}~rotation-of-{other.name}"
    if len(name.encode()) > LONGEST_NAME:
        name = f"{weights.name.encode()[:100].decode(errors='ignore')}~rotation-of-{short_digest(name)[:16]}"
    return replace(
        weights,
        name=name,
        window=min(weights.window, other.window),
        source=replace(weights.source, rotation=settings),
        weights_of=weights.name,
        rotation_of=other.name,
    )


def _why_not(study: Study, checkpoint: Checkpoint) -> str | None:
    """Why a counterfactual checkpoint cannot be measured; None if it can, or if only the hub did not answer."""
    try:
        return why_not_together(load_config(checkpoint.source), checkpoint.rings(study.windows))
    except HubError:
        return None
    except QkscopeError as error:
        return str(error)
