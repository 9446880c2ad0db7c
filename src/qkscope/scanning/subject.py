"""The model, texts and heads of `scan`, `whatif` and `ablate`, checked before the weights are loaded."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkscope.capture import find_backbone
from qkscope.capture.architecture import Architecture, read_architecture
from qkscope.capture.memory import available_bytes, check_memory, moments_bytes, weights_bytes
from qkscope.checkpoints import Source, load_config, load_model, load_tokenizer, resolve
from qkscope.corpus import Document, documents_from, load_corpus
from qkscope.corpus.documents import digest
from qkscope.errors import CaptureError
from qkscope.results.owner import Part, head_mask
from qkscope.study import CorpusSpec
from qkscope.sums.head_index import HeadIndex, sample_heads

log = logging.getLogger(__name__)

# The largest default window.
LONGEST = 2048


@dataclass(frozen=True)
class Subject:
    """A model: in memory, or to be loaded once everything else is known to be right.

    `origin` is the full path or hub name that is read, which distinguishes two of the same name; empty in memory.
    """

    name: str
    architecture: Architecture
    config: Any
    loaded: Any = None
    source: Source | None = None
    tokenizer: Any = None
    origin: str = ""

    @classmethod
    def of(cls, model: Any, tokenizer: Any = None, revision: str | None = None, **reading: Any) -> Subject:
        """`reading`: dtype, device, trust_remote_code and allow_pickle of a model that is to be loaded."""
        if not isinstance(model, str | Path):
            config = find_backbone(model).config
            architecture = read_architecture(config)
            name = Path(str(getattr(model.config, "name_or_path", ""))).name or architecture.family
            return cls(name, architecture, config, loaded=model, tokenizer=tokenizer)
        where = tokenizer if isinstance(tokenizer, str) else None
        source = Source(str(model), revision=revision, tokenizer=where, settings_in="scan", **reading)
        config, path = load_config(source), Path(model).expanduser()
        origin = str(path.resolve() if path.exists() else model) + (f"@{revision}" if revision else "")
        name = revision or Path(model).name.removesuffix(".gguf")
        architecture = read_architecture(config)
        return cls(name, architecture, config, source=source, tokenizer=tokenizer, origin=origin)

    def find_tokenizer(self) -> Any:
        """The tokenizer that was given, or else the one stored with the model; None if there is none."""
        if isinstance(self.tokenizer, str):
            return load_tokenizer(self.source or Source(self.tokenizer, settings_in="scan"))
        if self.tokenizer is None and self.source is not None:
            return load_tokenizer(self.source)
        return self.tokenizer

    def identity(self) -> str:
        """The commit or a digest of the files of a model to load; a digest of the weights of one in memory."""
        if self.source is not None:
            return resolve(self.source).commit
        import torch

        total = hashlib.blake2b(repr(self.config.to_dict()).encode(), digest_size=20)
        for name, value in self.loaded.state_dict().items():
            total.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
            total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return total.hexdigest()

    def load(self) -> Any:
        if self.source is None:
            return self.loaded
        return load_model(self.source)

    @property
    def window(self) -> int:
        """Tokens read from each document, unless another number is given."""
        return min(LONGEST, self.architecture.max_positions or LONGEST)


@dataclass(frozen=True)
class Setup:
    """What is measured: heads of a model on documents, which are dealt into groups."""

    subject: Subject
    documents: list[Document]
    groups: list[Sequence[Document]]
    heads: HeadIndex
    available: int | None
    """Tokens of the texts that were read, used or not; None for texts in memory."""
    warnings: list[str]

    def part(self) -> Part:
        """Digests of weights and texts, and the heads, for the record of a results folder."""
        weights, texts = self.subject.identity(), digest(self.documents)
        return Part(weights=weights, texts=texts, heads=head_mask(self.heads.pairs))

    def check_memory(self) -> None:
        """Before the weights are loaded: is there memory for them and for the moments of every group?"""
        import torch

        subject, source = self.subject, self.subject.source
        dim, groups = subject.architecture.head_dim, len(self.groups)
        needed = (groups + 2) * moments_bytes(len(self.heads) + len(self.heads.keys), dim, 1)
        what = f"measuring {len(self.heads)} heads of {dim} dimensions in {groups} groups"
        default = "cuda" if torch.cuda.is_available() else "cpu"
        if source is not None and (source.device or default) == "cpu":
            needed += weights_bytes(subject.config, subject.architecture, source.dtype)
            what = f"loading {subject.name} and {what}"
        check_memory(needed, available_bytes(), what)


def prepare(
    subject: Subject,
    window: int,
    texts: Iterable[Any] | None,
    spec: CorpusSpec,
    heads: str | int | Sequence[tuple[int, int]],
    groups: int,
    include_sliding: bool = False,
) -> Setup:
    """Read the texts and choose the heads. Warnings are logged, and are part of the result."""
    architecture = subject.architecture
    warnings: list[str] = []
    warn(warnings, architecture.window_warning(window))
    documents, available = read_documents(subject, window, texts, spec, warnings)
    longest = min(window, max(len(document.tokens) for document in documents))
    hint = ", or measure these layers with --sliding"
    layers = architecture.measured_layers(include_sliding, longest, hint)
    if isinstance(heads, int) or heads == "all":
        count = heads if isinstance(heads, int) else None
        pairs = sample_heads(layers, architecture.q_heads, count, spec.seed)
    elif isinstance(heads, str):
        raise CaptureError(f'heads is {heads!r}: expected "all", a number, or (layer, head) pairs')
    else:
        pairs = [(int(layer), int(head)) for layer, head in heads]
    index = HeadIndex.of(pairs, architecture.gqa_ratios, architecture.rope_by_layer())
    return Setup(subject, documents, deal(documents, groups), index, available, warnings)


def deal(documents: Sequence[Document], groups: int) -> list[Sequence[Document]]:
    """Deal documents into `groups` groups, or into groups of one document if there are fewer."""
    count = min(groups, len(documents))
    return [documents[group::count] for group in range(count)]


def corpus_spec(text_paths: Sequence[Path | str], documents: int, seed: int, **how: Any) -> CorpusSpec:
    """Text files or folders; without any, the Python standard library."""
    source = [str(path) for path in text_paths] or ["stdlib"]
    return CorpusSpec(source=source, documents=documents, seed=seed, **how)


def read_documents(
    subject: Subject, window: int, texts: Iterable[Any] | None, spec: CorpusSpec, warnings: list[str]
) -> tuple[list[Document], int | None]:
    """The documents of `texts`, else of the files of `spec`, and how many tokens these files have."""
    available = None
    if texts is not None:
        given = texts if isinstance(texts, str | bytes) else list(texts)
        has_text = not isinstance(given, bytes) and any(isinstance(text, str) for text in given)
        found = documents_from(given, subject.find_tokenizer() if has_text else None, window)
    else:
        tokenizer = subject.find_tokenizer()
        if tokenizer is None:
            raise CaptureError("texts need a tokenizer: give `tokenizer`, or token ids as `texts`")
        corpus = load_corpus(spec, tokenizer, window)
        found, available = corpus.documents, corpus.available
        # Not `corpus.warnings`: a scan reads at most `documents` documents, so fewer are as expected.
        for note in (*corpus.notes, corpus.chunk_hint("--chunk")):
            warn(warnings, note)
    longest = max(len(document.tokens) for document in found)
    if longest < window:
        few = (
            f"no document fills the window of {window:,} tokens; the longest of {len(found)} has {longest:,}"
        )
        warn(warnings, few)
    return found, available


def warn(warnings: list[str], message: str | None) -> None:
    """Log a warning, if there is one, and add it to those of the result."""
    if message:
        log.warning(message)
        warnings.append(message)
