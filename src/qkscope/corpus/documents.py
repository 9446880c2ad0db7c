"""Documents and their tokens.

A document is the first tokens of one text, tokenised as its tokenizer does by default. Which documents a study
measures is fixed by its file: the first `documents` in the source's order that have `min_tokens` tokens or more.
A source that is a single text file would make a single document, so it is cut into consecutive ones instead; `cut`
does or forbids that for any source.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qkscope import store
from qkscope.corpus.texts import JSONL, PARQUET, Notes, Spec, Text, read_texts
from qkscope.errors import CorpusError, StoreError
from qkscope.progress import progress

BATCH = 32  # texts handed to the tokenizer at once, which works on them in parallel
Tokens = npt.NDArray[np.int32]


class CorpusSpec(Spec, Protocol):
    """`study.CorpusSpec`, or anything with its fields."""

    @property
    def documents(self) -> int | None: ...
    @property
    def min_tokens(self) -> int: ...
    @property
    def cut(self) -> bool | None: ...


@dataclass(frozen=True)
class Document:
    """One document: its running number after selection, which decides its group, its name and tokens (n,)."""

    index: int
    name: str
    tokens: Tokens


@dataclass
class Corpus:
    """The selected documents, with what there was to say about the selection."""

    documents: list[Document]
    digest: str
    """Of all tokens in order: two corpora with the same digest measure the same."""
    warnings: list[str] = field(default_factory=list)
    origin: str = ""
    """Where the texts came from exactly: paths, a dataset's commit, Python's version."""

    def filled(self, window: int) -> int:
        """How many documents have at least `window` tokens."""
        return sum(len(document.tokens) >= window for document in self.documents)

    def tokens(self, window: int) -> int:
        """Tokens in all when each document counts with its first `window`."""
        return sum(min(len(document.tokens), window) for document in self.documents)


def load_corpus(spec: CorpusSpec, tokenizer: Any, max_tokens: int, cache: Path | None = None) -> Corpus:
    """Read, tokenise and select. With a `cache` folder, a text is tokenised once per tokenizer."""
    notes = Notes()
    cut = cuts(spec)
    memory = _Memory(cache, spec, tokenizer, None if cut else max_tokens)
    documents: list[Document] = []
    read = short = 0
    with (
        progress("Tokenising", spec.documents, unit="documents") as bar,
        closing(read_texts(spec, notes)) as texts,
        closing(memory.tokenised(texts, spec.documents)) as tokenised,
        closing(_pieces(tokenised, max_tokens, cut)) as pieces,
    ):
        for name, tokens, length in pieces:
            read += 1
            if length < max(1, spec.min_tokens):
                short += 1
                continue
            documents.append(Document(len(documents), name, tokens))
            bar.advance(1)
            if len(documents) == spec.documents:
                break
    _check_selection(spec, read, short, documents, notes)
    memory.save()
    return Corpus(documents, digest(documents), notes.warnings + memory.warnings, "; ".join(notes.origins))


def cuts(spec: CorpusSpec) -> bool:
    """Whether texts are cut into documents: as the specification says, else only for a single text file."""
    if spec.cut is not None:
        return spec.cut
    sources = [spec.source] if isinstance(spec.source, str) else list(spec.source)
    path = Path(sources[0]).expanduser()
    return len(sources) == 1 and path.is_file() and not path.name.endswith(JSONL + PARQUET)


def _pieces(
    texts: Iterator[tuple[Text, Tokens, int]], size: int, cut: bool
) -> Generator[tuple[str, Tokens, int]]:
    """(name, tokens, length) of each document: one a text, or one for every `size` tokens of it."""
    for text, tokens, length in texts:
        if not cut or length <= size:
            yield text.name, tokens[:size], length
            continue
        for start in range(0, length, size):
            piece = tokens[start : start + size]
            yield f"{text.name}[{start}:{start + len(piece)}]", piece, len(piece)


def documents_from(
    texts_or_ids: Iterable[Any], tokenizer: Any = None, max_tokens: int | None = None
) -> list[Document]:
    """Documents of texts, or of token ids (lists, arrays or tensors of shape (n,) or (1, n)), in memory."""
    if isinstance(texts_or_ids, str | bytes):
        raise CorpusError("a single text; expected a list of texts or of token ids, such as [text]")
    documents = []
    for index, item in enumerate(texts_or_ids):
        if isinstance(item, str):
            if tokenizer is None:
                raise CorpusError(f"document {index} is text; give its tokenizer, or token ids instead")
            ids = _encode(tokenizer, [item])[0]
        else:
            ids = _as_ids(item, index)
        if len(ids) == 0:
            raise CorpusError(f"document {index} is empty; expected text or token ids")
        documents.append(Document(index, f"document {index}", ids[:max_tokens]))
    if not documents:
        raise CorpusError("no documents; expected at least one text or list of token ids")
    return documents


def digest(documents: Sequence[Document]) -> str:
    """40 hex digits over the tokens of all documents, in order."""
    total = hashlib.blake2b(digest_size=20)
    for document in documents:
        total.update(len(document.tokens).to_bytes(8, "little"))
        total.update(np.ascontiguousarray(document.tokens, "<i4").tobytes())
    return total.hexdigest()


def tokenizer_identity(tokenizer: Any) -> str:
    """Equal for tokenizers that give equal tokens, wherever they were loaded from."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        state = json.loads(backend.to_str())
        # Left behind by earlier calls; a corpus uses neither.
        parts = [
            json.dumps({k: v for k, v in state.items() if k not in ("truncation", "padding")}, sort_keys=True)
        ]
    else:
        vocabulary = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
        parts = [type(tokenizer).__name__, json.dumps(vocabulary, sort_keys=True)]
    flags = [
        str(getattr(tokenizer, name, None)) for name in ("add_bos_token", "add_eos_token", "name_or_path")
    ]
    parts += flags[:2] if backend is not None else flags
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=20).hexdigest()


def _check_selection(
    spec: CorpusSpec, read: int, short: int, documents: list[Document], notes: Notes
) -> None:
    where = ", ".join(notes.origins) or str(spec.source)
    if read == 0:
        raise CorpusError(f"{where}: no texts in it")
    limit = f"{spec.min_tokens} tokens or more (min_tokens)" if spec.min_tokens else "any tokens"
    if not documents:
        raise CorpusError(
            f"{where}: none of its {read} texts has {limit}; lower min_tokens or give longer texts"
        )
    if short:
        notes.warnings.append(f"{short} of {read} texts read were left out: they do not have {limit}")
    if spec.documents and len(documents) < spec.documents:
        notes.warnings.append(f"{spec.documents} documents asked for, {len(documents)} found")


def _as_ids(item: Any, index: int) -> Tokens:
    if hasattr(item, "detach"):
        item = item.detach().cpu()
    try:
        ids = np.asarray(item)
    except (ValueError, TypeError) as error:
        raise CorpusError(f"document {index}: neither text nor token ids ({error})") from error
    if ids.ndim == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.size and (ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.min() < 0):
        raise CorpusError(
            f"document {index}: shape {ids.shape}, {ids.dtype}; expected text or token ids (whole numbers from 0)"
        )
    return ids.astype(np.int32)


def _encode(tokenizer: Any, texts: list[str]) -> list[Tokens]:
    """Token ids as the tokenizer gives them by default; not its warning that texts are long, which they shall be."""
    return [np.asarray(ids, np.int32) for ids in tokenizer(texts, verbose=False)["input_ids"]]


class _Memory:
    """Tokens of the texts met so far, kept in one file per source, tokenizer and length."""

    def __init__(self, folder: Path | None, spec: CorpusSpec, tokenizer: Any, max_tokens: int | None) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._used: dict[bytes, tuple[Tokens, int]] = {}
        self._kept: dict[bytes, tuple[Tokens, int]] = {}
        self._path: Path | None = None
        self._changed = False
        self.warnings: list[str] = []
        if folder is not None:
            source = [str(spec.source), spec.split, spec.text_column, str(spec.revision)]
            key = "\0".join([*source, tokenizer_identity(tokenizer), str(max_tokens)])
            self._path = (
                Path(folder)
                / f"tokens-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}.safetensors"
            )
            self._kept = self._load()

    def tokenised(self, texts: Iterator[Text], wanted: int | None) -> Generator[tuple[Text, Tokens, int]]:
        """Each text with its first tokens (n,) and the number it has in all."""
        # No more at once than are wanted: texts beyond the selection are not tokenised in vain.
        while batch := list(islice(texts, min(BATCH, wanted or BATCH))):
            keys = [hashlib.blake2b(text.text.encode(), digest_size=16).digest() for text in batch]
            new = {key: text.text for key, text in zip(keys, batch, strict=True) if key not in self._kept}
            if new:
                for key, ids in zip(new, _encode(self._tokenizer, list(new.values())), strict=True):
                    self._kept[key] = ids[: self._max_tokens].copy(), len(ids)
                    self._changed = True
            for key, text in zip(keys, batch, strict=True):
                self._used[key] = self._kept[key]
                yield text, *self._kept[key]

    def save(self) -> None:
        """Keep the texts of this pass; a folder that cannot be written costs time later, nothing else."""
        if self._path is None or not self._changed:
            return
        arrays = [tokens for tokens, _ in self._used.values()]
        tensors: dict[str, npt.NDArray[Any]] = {
            "keys": np.frombuffer(b"".join(self._used), np.uint8).reshape(-1, 16),
            "lengths": np.array([length for _, length in self._used.values()], np.int64),
            "sizes": np.array([len(array) for array in arrays], np.int64),
            "tokens": np.concatenate(arrays),
        }
        try:
            store.write_tensors(self._path, tensors, {"max_tokens": self._max_tokens})
        except StoreError as error:
            self.warnings.append(f"tokens were not kept for the next run: {error}")

    def _load(self) -> dict[bytes, tuple[Tokens, int]]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            tensors, _ = store.read_tensors(self._path)
        except StoreError as error:
            self.warnings.append(f"texts were tokenised again: {error}")
            return {}
        parts = np.split(tensors["tokens"], np.cumsum(tensors["sizes"])[:-1])
        keys = [bytes(key) for key in tensors["keys"]]
        return {
            key: (part, int(length))
            for key, part, length in zip(keys, parts, tensors["lengths"], strict=True)
        }
