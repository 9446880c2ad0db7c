"""One model, quickly: from a model and texts to the measures of its heads and a short summary.

result = qkscope.scan("HuggingFaceTB/SmolLM2-135M")                      # hub id, folder or GGUF file
result = qkscope.scan(model, tokenizer=tokenizer, texts=["..."])         # a model in memory
result.heads                                                             # a DataFrame, one row per head
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qkscope import defaults
from qkscope.capture import Probing, find_backbone, measure
from qkscope.capture.architecture import Architecture, read_architecture
from qkscope.capture.consumers import VectorSample, unknown_rotation_warning
from qkscope.capture.memory import available_bytes, check_memory, moments_bytes, weights_bytes
from qkscope.corpus.documents import digest
from qkscope.errors import CaptureError, StoreError
from qkscope.measures.cell import Cell, CellNumbers, measure_cell
from qkscope.measures.registry import chosen as chosen_measures
from qkscope.measures.registry import sums_for, unknown_measures
from qkscope.progress import progress
from qkscope.results import Results
from qkscope.results.dataset import CellData, CellInfo, dataset
from qkscope.results.owner import Holding, Part, head_mask, held, refuse_other, writing
from qkscope.results.results_folder import results_of
from qkscope.results.tables import write_tables
from qkscope.results.taxonomy import Thresholds, too_few_measured, unmeasured_warnings
from qkscope.scanning.printout import ScanTables
from qkscope.store import short_digest, write_json
from qkscope.study import CorpusSpec
from qkscope.sums import KeySum
from qkscope.sums.head_index import HeadIndex, sample_heads
from qkscope.sums.unit import Unit

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from qkscope.checkpoints import Source
    from qkscope.corpus import Document


@dataclass(frozen=True)
class Subject:
    """The model that is measured: in memory already, or to be loaded once everything else is known to be right."""

    name: str
    architecture: Architecture
    config: Any
    loaded: Any = None
    source: Source | None = None
    tokenizer: Any = None
    origin: str = ""
    """The folder or hub name that is read; empty for a model in memory."""

    @classmethod
    def of(
        cls,
        model: Any,
        revision: str | None,
        tokenizer: Any,
        dtype: str,
        device: str | None,
        trust_remote_code: bool,
        allow_pickle: bool,
    ) -> Subject:
        if not isinstance(model, str | Path):
            config = find_backbone(model).config
            architecture = read_architecture(config)
            name = Path(str(getattr(model.config, "name_or_path", ""))).name or architecture.family
            return cls(name, architecture, config, loaded=model, tokenizer=tokenizer)
        from qkscope.checkpoints import Source, load_config

        where = tokenizer if isinstance(tokenizer, str) else None
        source = Source(
            str(model),
            revision=revision,
            tokenizer=where,
            dtype=dtype,
            device=device,
            trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle,
            settings_in="scan",
        )
        config = load_config(source)
        name = revision or Path(model).name.removesuffix(".gguf")
        origin = origin_of(model, revision)
        return cls(name, read_architecture(config), config, source=source, tokenizer=tokenizer, origin=origin)

    def find_tokenizer(self) -> Any:
        """The tokenizer given, or the one found where it was said to be, or beside the model; None if unknown."""
        from qkscope.checkpoints import Source, load_tokenizer

        if isinstance(self.tokenizer, str):
            return load_tokenizer(self.source or Source(self.tokenizer, settings_in="scan"))
        if self.tokenizer is None and self.source is not None:
            return load_tokenizer(self.source)
        return self.tokenizer

    def token_names(self) -> Callable[[int], str]:
        tokenizer = self.find_tokenizer()
        if tokenizer is None:
            raise CaptureError("token_str needs a tokenizer: give `tokenizer`")
        return lambda token: str(tokenizer.decode([token]))

    def identity(self) -> str:
        """The commit or a digest of the files of a model to load; a digest of the weights of one in memory."""
        if self.source is not None:
            from qkscope.checkpoints import resolve

            return resolve(self.source).commit
        import torch

        total = hashlib.blake2b(repr(self.config.to_dict()).encode(), digest_size=20)
        for name, value in self.loaded.state_dict().items():
            total.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
            total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return total.hexdigest()

    def part(self, documents: Sequence[Document], heads: HeadIndex) -> Part:
        """What of it is measured, for the record of a results folder."""
        mask = head_mask(zip(heads.layer.tolist(), heads.head.tolist(), strict=True))
        return Part(weights=self.identity(), texts=digest(documents), heads=mask)

    def load(self) -> Any:
        if self.source is None:
            return self.loaded
        from qkscope.checkpoints import load_model

        return load_model(self.source)


def origin_of(model: Any, revision: str | None) -> str:
    """A model's full path or hub name, which distinguishes two of the same name."""
    if not isinstance(model, str | Path):
        return ""
    path = Path(model).expanduser()
    return (str(path.resolve()) if path.exists() else str(model)) + (f"@{revision}" if revision else "")


def choose_heads(
    architecture: Architecture, layers: list[int], heads: str | int | Sequence[tuple[int, int]], seed: int
) -> HeadIndex:
    if isinstance(heads, str | int):
        if isinstance(heads, str) and heads != "all":
            raise CaptureError(f'heads is {heads!r}: expected "all", a number, or (layer, head) pairs')
        count = None if isinstance(heads, str) else heads
        pairs = sample_heads(layers, architecture.q_heads, count, seed)
    else:
        pairs = [(int(layer), int(head)) for layer, head in heads]
    return HeadIndex.of(pairs, architecture.gqa_ratios, architecture.rope_by_layer())


def check_room(subject: Subject, heads: HeadIndex, groups: int) -> None:
    """Before the weights are loaded: is there memory for them and for the moments of every group?"""
    import torch

    vectors = len(heads) + len(heads.keys)
    needed = (groups + 2) * moments_bytes(vectors, subject.architecture.head_dim, 1)
    what = f"measuring {len(heads)} heads of {subject.architecture.head_dim} dimensions in {groups} groups"
    source = subject.source
    on_gpu = source is None or (source.device != "cpu" if source.device else torch.cuda.is_available())
    if source is not None and not on_gpu:
        needed += weights_bytes(subject.config, subject.architecture, source.dtype)
        what = f"loading {subject.name} and {what}"
    check_memory(needed, available_bytes(), what)


log = logging.getLogger(__name__)

# The largest default window.
LONGEST = 2048


@dataclass(frozen=True, repr=False)
class ScanResult(ScanTables):
    """What one model's heads do: `heads` has a row per head with every measure and its error, `qk` a row per head and
    principal component; `data` is all of it as an xarray dataset with one cell (see `qkscope.results.dataset`).

    `results` is what figures, claims and reports are made from.
    """

    model: str
    cell: CellData
    architecture: Architecture
    window: int
    documents: int
    tokens: int
    filled: int
    """Documents with at least `window` tokens."""
    warnings: list[str] = field(default_factory=list)
    available: int | None = None
    """Tokens of the texts that were read, used or not; None for texts in memory."""
    origin: str = ""
    """The folder or hub name that was read; empty for a model in memory."""
    corpus: str = ""
    """A digest of the tokens that were read: equal for results on the same texts."""
    problem: str | None = None
    """Why the result is of no use, and what to do: too many of its heads have no numbers."""
    holds: Holding | None = None
    """What was measured of which weights and texts; None if it is not known, as of a result not made by `scan`."""

    @cached_property
    def results(self) -> Results:
        """The scan as results of one checkpoint."""
        return results_of(dataset([self.cell]), Path(self.model), self.model)

    @property
    def data(self) -> xr.Dataset:
        """Every measure over (cell, sample, head)."""
        return self.results.data

    @property
    def heads(self) -> pd.DataFrame:
        """A row per head: every scalar measure with its error, and the class."""
        return self.results.heads

    @property
    def qk(self) -> pd.DataFrame:
        """A row per head and principal component."""
        return self.results.qk

    def head(self, layer: int, head: int) -> pd.DataFrame:
        """One head: a row with every measure and its error."""
        return self.results.head(layer, head)

    def save(self, out: Path | str, *, replace: bool = False) -> Path:
        """Write measures.safetensors, qk.csv, heads.csv and scan.json into a folder.

        A folder that holds other results is refused unless `replace` is true.
        """
        folder = Path(out)
        holds = self.holds or Holding("scan", self.model, judged=False)
        made_from = short_digest([holds.record(), self.qk.to_csv()])
        with writing(folder, holds, made_from, replace) as staged:
            self._write(staged)
        return folder

    def _write(self, folder: Path) -> None:
        write_tables(folder, [self.cell], [self.model], Thresholds())
        names = (
            "model", "origin", "window", "documents", "tokens", "available", "filled", "warnings", "corpus"
        )  # fmt: skip
        facts = {name: getattr(self, name) for name in names}
        shape = ("family", "num_layers", "n_q_heads", "n_kv_heads", "head_dim", "max_positions", "rope_theta")
        write_json(folder / "scan.json", facts | {name: getattr(self.architecture, name) for name in shape})


def scan(
    model: Any,
    *,
    revision: str | None = None,
    tokenizer: Any = None,
    texts: Iterable[Any] | None = None,
    text_paths: Sequence[Path | str] = (),
    max_length: int | None = None,
    documents: int = 32,
    start: Literal["random", "beginning"] = "random",
    chunk: bool | None = None,
    dtype: str = "auto",
    device: str | None = None,
    heads: str | int | Sequence[tuple[int, int]] = "all",
    groups: int = defaults.GROUPS,
    seed: int = defaults.SEED,
    components: int = defaults.COMPONENTS,
    measures: Sequence[str] = defaults.MEASURES,
    batch_tokens: int = defaults.BATCH_TOKENS,
    save_vectors: float | None = None,
    token_str: bool = False,
    include_sliding: bool = False,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    out: Path | str | None = None,
    replace: bool = False,
) -> ScanResult:
    """Measure the heads of one model on some texts.

    model       a transformers model in memory, a hub id, a folder or a GGUF file
    tokenizer   a tokenizer, or its folder or hub id; not needed for token ids, or if it is stored with the model
    texts       a list of texts or of token id lists (default: `text_paths`, else the Python standard library)
    text_paths  text files or folders; at most `documents` documents are read from files
    max_length  the window: tokens read from each document (default: 2,048, or the model's positions if it has fewer)
    start       where to start reading long texts from files: at a `random` place drawn from `seed`, or `beginning`
    chunk       cut texts from files into consecutive documents (default: only a single text)
    heads       "all", a number of heads to sample with `seed`, or (layer, head) pairs
    measures    optional measures: rotation, per_kind, plasticity (stores a sample of keys during the pass)
    out         a folder for measures.safetensors, qk.csv, heads.csv and, with `save_vectors` (a share of the tokens), a
                sample of the vectors
    replace     overwrite results in `out` that are of another model or other texts, or have more heads or measures
    """
    if mistake := unknown_measures(measures):
        raise CaptureError(mistake)
    if out is None and save_vectors is not None:
        raise CaptureError("save_vectors needs a folder to write to: give `out`")
    subject = Subject.of(model, revision, tokenizer, dtype, device, trust_remote_code, allow_pickle)
    warnings: list[str] = []
    window = min(LONGEST, subject.architecture.max_positions or LONGEST) if max_length is None else max_length
    _warn(warnings, subject.architecture.window_warning(window))
    source = [str(path) for path in text_paths] or ["stdlib"]
    spec = CorpusSpec(source=source, documents=documents, start=start, chunk=chunk, seed=seed)
    corpus, available = read_documents(subject, texts, spec, window, warnings)
    chosen = choose_heads(
        subject.architecture, _layers(subject, corpus, window, include_sliding), heads, seed
    )
    count = min(groups, len(corpus))
    holds = None
    if out is not None:
        settings: dict[str, Any] = {"window": window, "groups": count, "seed": seed, "dtype": dtype}
        # Folders of earlier versions record a second setting, which was almost always False.
        vectors = None if save_vectors is None else [save_vectors, False, token_str]
        settings |= _vectors(Path(out), vectors)
        part = subject.part(corpus, chosen)
        holds = Holding("scan", subject.name, {subject.name: part}, (), list(measures), components, settings)
        refuse_other(Path(out), holds, replace=replace)
    check_room(subject, chosen, count)
    sample = None
    if save_vectors is not None:
        names = subject.token_names() if token_str else None
        sample = VectorSample(chosen, save_vectors, window, seed=seed, names=names)
    units = _measure_groups(
        subject,
        [corpus[group::count] for group in range(count)],
        window,
        heads=chosen,
        batch_tokens=batch_tokens,
        include_sliding=include_sliding,
        save=sample,
        sums={
            kind: {"seed": seed} if kind is KeySum else {}
            for kind in sums_for(chosen_measures(measures)).values()
        },
    )
    _warn(warnings, unknown_rotation_warning(units))
    cell = Cell.of(units, window, components, subject.architecture.num_layers)
    numbers = measure_cell(cell, chosen_measures(measures))
    result = _result(subject, units, numbers, digest(corpus), available, warnings, holds)
    if out is not None:
        result.save(out, replace=replace)
        if sample is not None:
            sample.write(Path(out) / "vectors", subject.name, subject.architecture)
    return result


def _layers(subject: Subject, corpus: Sequence[Document], window: int, include_sliding: bool) -> list[int]:
    longest = min(window, max(len(document.tokens) for document in corpus))
    hint = ", or measure these layers with --sliding"
    return subject.architecture.measured_layers(include_sliding, longest, hint)


def _vectors(out: Path, wanted: list[Any] | None) -> dict[str, Any]:
    """Which vectors a folder has after a scan: those wanted, else those that it has."""
    before = held(out)
    there = before.settings.get("vectors") if before is not None else None
    if wanted is not None and there is None and (out / "vectors").exists():
        raise StoreError(
            f"{out / 'vectors'} exists without a record that a scan wrote it, so it is not overwritten; "
            "choose another folder with --out, or move it away"
        )
    found = wanted or there
    return {} if found is None else {"vectors": found}


def read_documents(
    subject: Subject, texts: Iterable[Any] | None, spec: CorpusSpec, max_length: int, warnings: list[str]
) -> tuple[list[Document], int | None]:
    """The documents, and how many tokens the files they come from have."""
    from qkscope.corpus import documents_from, load_corpus

    available = None
    if texts is not None:
        given = texts if isinstance(texts, str | bytes) else list(texts)
        has_text = not isinstance(given, bytes) and any(isinstance(text, str) for text in given)
        found = documents_from(given, subject.find_tokenizer() if has_text else None, max_length)
    else:
        tokenizer = subject.find_tokenizer()
        if tokenizer is None:
            raise CaptureError("texts need a tokenizer: give `tokenizer`, or token ids as `texts`")
        corpus = load_corpus(spec, tokenizer, max_length)
        found, available = corpus.documents, corpus.available
        # Not `corpus.warnings`: a scan reads at most `documents` documents, so fewer are as expected.
        for note in corpus.notes:
            _warn(warnings, note)
        _warn(warnings, corpus.chunk_hint("--chunk"))
    if not any(len(document.tokens) >= max_length for document in found):
        longest = max(len(document.tokens) for document in found)
        _warn(
            warnings,
            f"no document fills the window of {max_length:,} tokens; the longest of {len(found)} has {longest:,}",
        )
    return found, available


def _measure_groups(
    subject: Subject, groups: Sequence[Sequence[Document]], window: int, **options: Any
) -> list[Unit]:
    """A unit for each group of documents; `options` are those of `measure`."""
    total = sum(min(len(document.tokens), window) for group in groups for document in group)
    model = subject.load()
    probe = Probing(model)
    started = time.monotonic()
    with progress(f"Measuring {subject.name}", total, unit="tokens") as bar:
        options |= {"windows": (window,), "on_tokens": bar.advance, "probe": probe}
        units = [measure(model, group, **options) for group in groups]
        seconds = time.monotonic() - started
        bar.done(f"{subject.name}: {total:,} tokens in {seconds:,.1f} s, {total / seconds:,.0f} tokens/s")
    return units


def _result(
    subject: Subject,
    units: Sequence[Unit],
    numbers: CellNumbers,
    texts: str,
    available: int | None,
    warnings: list[str],
    holds: Holding | None,
) -> ScanResult:
    name = subject.name
    info = CellInfo(
        name, numbers.window, groups=numbers.groups, weights_of=name, rotation_of=name, texts=texts
    )
    result = ScanResult(
        model=name,
        cell=CellData.of(info, numbers),
        architecture=subject.architecture,
        window=numbers.window,
        documents=sum(unit.documents for unit in units),
        tokens=sum(unit.tokens for unit in units),
        filled=sum(unit.filled[0] for unit in units),
        warnings=warnings,
        available=available,
        origin=subject.origin,
        corpus=texts,
        holds=holds,
    )
    non_finite = {name: int(numbers.bad.any(axis=1).sum())}
    for warning in unmeasured_warnings(result.heads, non_finite).values():
        _warn(warnings, warning)
    problem = too_few_measured(result.heads, non_finite, "--dtype float32")
    return dataclasses.replace(result, problem=problem)


def _warn(warnings: list[str], message: str | None) -> None:
    """Say it now and keep it with the result."""
    if message:
        log.warning(message)
        warnings.append(message)
