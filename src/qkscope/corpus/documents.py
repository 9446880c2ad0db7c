"""Documents and their tokens.

A document is as many tokens of one text as the largest window takes, tokenised as its tokenizer does by default. A
longer text is read from a random position, drawn once from a seed: the openings of files are unlike what follows, and
would tie content to position. `start: beginning` takes first tokens instead, and `chunk` cuts texts into consecutive
documents; a source of a single text, which would make a single document, is always cut unless that is forbidden.
Which documents a study measures is fixed by its file: the first `documents` in the source's order that have
`min_tokens` tokens or more.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qkscope import store
from qkscope.corpus.texts import Notes, Text, read_texts
from qkscope.errors import CorpusError, StoreError
from qkscope.progress import progress
from qkscope.study import CorpusSpec

log = logging.getLogger(__name__)

# The name of a file of token ids ends so.
TOKEN_FILE = ".tokens.safetensors"
BATCH = 32  # texts per call of the tokenizer, which works on them in parallel
# Fewer documents than this, of texts of which less than this share is used: cutting them is suggested.
FEW, MOST_UNUSED = 32, 0.5
Tokens = npt.NDArray[np.int32]
Piece = tuple[str, Tokens, int]  # name, tokens that are read, number of tokens in all


@dataclass(frozen=True)
class Document:
    """One document: its running number after selection, which decides its group, its name and tokens (n,)."""

    index: int
    name: str
    tokens: Tokens


@dataclass
class Corpus:
    """The selected documents, with notes about the selection."""

    documents: list[Document]
    digest: str
    """Of all tokens in order: two corpora with the same digest measure the same."""
    notes: list[str] = field(default_factory=list)
    """What was left out, and what is unusual about the documents."""
    origin: str = ""
    """Where the texts came from exactly: paths, a dataset's commit, Python's version."""
    available: int = 0
    """Tokens of the texts that were read, used or not."""
    requested: int = 0
    """How many documents were requested; 0 for all there are."""
    possible: int = 0
    """About how many documents there would be if the texts were cut; 0 if they are, or no more are needed."""
    texts: str = ""
    """Digest of the texts, their tokenizer and how documents are selected, independent of the length of documents."""

    @property
    def warnings(self) -> list[str]:
        """The notes, and that there are fewer documents than requested."""
        found = len(self.documents)
        fewer = [f"{self.requested} documents requested, {found} found"] if found < self.requested else []
        return [*self.notes, *fewer]

    def filled(self, window: int) -> int:
        """How many documents have at least `window` tokens."""
        return sum(len(document.tokens) >= window for document in self.documents)

    def tokens(self, window: int) -> int:
        """Tokens in all when each document counts with its first `window`."""
        return sum(min(len(document.tokens), window) for document in self.documents)

    def chunk_hint(self, setting: str) -> str | None:
        """The hint about few documents that use little of long texts; `setting` is what cuts the texts."""
        used, count = sum(len(document.tokens) for document in self.documents), len(self.documents)
        if count >= FEW or used >= MOST_UNUSED * self.available or self.possible <= count:
            return None
        return (
            f"only {used:,} of {self.available:,} tokens are used, one document per text: {setting} splits the "
            f"texts into about {self.possible:,} documents, which reduces standard errors"
        )

    def usage(self, window: int) -> str:
        """How much of the text is measured, as a sentence."""
        return f"{len(self.documents):,} documents, {self.tokens(window):,} of {self.available:,} tokens"


@dataclass(frozen=True)
class Excerpt:
    """Which tokens of a text are read: `size` of them, or all where `size` is None."""

    size: int | None
    start: str = "beginning"
    seed: int = 0

    def offset(self, key: bytes, length: int) -> int:
        """The first token read of a text of `length` tokens; it depends on the text's `key`, not on other texts."""
        if self.size is None or self.start == "beginning" or length <= self.size:
            return 0
        drawn = hashlib.blake2b(key + self.seed.to_bytes(8, "little"), digest_size=8).digest()
        return int.from_bytes(drawn, "little") % (length - self.size + 1)

    def of(self, ids: Tokens, key: bytes, lead: int) -> Tokens:
        """The tokens read. The first `lead`, which the tokenizer puts before every text, are always among them."""
        offset = self.offset(key, len(ids))
        stop = None if self.size is None else offset + self.size
        return np.concatenate([ids[:lead], ids[offset + lead : stop]])[: self.size]


def token_file(spec: CorpusSpec) -> Path | None:
    """The file of token ids that a specification names instead of texts; no tokenizer is needed then."""
    alone = len(spec.source) == 1 and spec.source[0].endswith(TOKEN_FILE)
    return Path(spec.source[0]) if alone else None


def write_tokens(path: Path, documents: Sequence[Document]) -> None:
    """Documents as a file of token ids, which a study can name as its corpus."""
    arrays = {f"{document.index:06d}": document.tokens for document in documents}
    store.write_tensors(path, arrays, {"documents": len(documents)})


def _read_tokens(path: Path, spec: CorpusSpec, max_tokens: int) -> Corpus:
    """The first tokens of the documents in a file of token ids, as they are there."""
    arrays, _ = store.read_tensors(path)
    listed = list(islice((arrays[name] for name in sorted(arrays)), spec.documents))
    try:
        documents = documents_from(listed, max_tokens=max_tokens)
    except CorpusError as error:
        raise CorpusError(f"{path}: {error}") from error
    return Corpus(
        documents,
        digest(documents),
        origin=str(path),
        available=sum(map(len, listed)),
        requested=spec.documents or 0,
        texts=store.short_digest([[array.tolist() for array in listed], spec.documents]),
    )


def load_corpus(spec: CorpusSpec, tokenizer: Any, max_tokens: int, cache: Path | None = None) -> Corpus:
    """Read, tokenise and select. With a `cache` folder, a text is tokenised once per tokenizer."""
    if path := token_file(spec):
        return _read_tokens(path, spec, max_tokens)
    notes = Notes()
    documents: list[Document] = []
    read = short = 0
    with (
        progress("Tokenising", spec.documents, unit="documents") as bar,
        closing(read_texts(spec, notes)) as texts,
    ):
        first = list(islice(texts, 2))
        wanted = len(first) == 1 if spec.chunk is None else spec.chunk
        # Tokens of each document; None: not cut.
        chunk = (max_tokens if wanted is True else int(wanted)) or None
        excerpt = Excerpt(None) if chunk else Excerpt(max_tokens, spec.start, spec.seed)
        token_cache = _TokenCache(cache, spec, tokenizer, excerpt)
        with (
            closing(token_cache.tokenised(chain(first, texts), spec.documents)) as tokenised,
            closing(_pieces(tokenised, chunk)) as pieces,
        ):
            for name, tokens, length in pieces:
                read += 1
                if length < max(1, spec.min_tokens):
                    short += 1
                    continue
                documents.append(Document(len(documents), name, tokens[:max_tokens]))
                bar.advance(1)
                if len(documents) == spec.documents:
                    break
    _check_selection(spec, read, short, documents, notes)
    token_cache.save()
    cut = chunk is not None or spec.chunk is not None or len(documents) == spec.documents
    possible = 0 if cut else token_cache.available // max_tokens
    selection = [spec.documents, spec.min_tokens, spec.chunk, spec.start, spec.seed]
    texts_digest = store.short_digest([token_cache.texts, token_cache.tokenizer_identity, selection])
    return Corpus(
        documents,
        digest(documents),
        notes=notes.warnings + token_cache.warnings,
        origin="; ".join(notes.origins),
        available=token_cache.available,
        requested=spec.documents or 0,
        possible=possible,
        texts=texts_digest,
    )


def _pieces(texts: Iterator[Piece], chunk: int | None) -> Generator[Piece]:
    """(name, tokens, length) of each document: one a text, or one for every `chunk` tokens of it."""
    for name, tokens, length in texts:
        if chunk is None or length <= chunk:
            yield name, tokens, length
            continue
        for start in range(0, length, chunk):
            piece = tokens[start : start + chunk]
            yield f"{name}[{start}:{start + len(piece)}]", piece, len(piece)


def documents_from(
    texts_or_ids: Iterable[Any], tokenizer: Any = None, max_tokens: int | None = None
) -> list[Document]:
    """Documents of texts, or of token ids (lists, arrays or tensors of shape (n,) or (1, n)), in memory."""
    if isinstance(texts_or_ids, str | bytes):
        raise CorpusError("found a single text; expected a list of texts or of token ids, such as [text]")
    if not isinstance(texts_or_ids, Iterable):
        raise CorpusError(f"found {texts_or_ids!r}; expected a list of texts or of token ids")
    documents = []
    for index, item in enumerate(texts_or_ids):
        if isinstance(item, str):
            if tokenizer is None:
                raise CorpusError(f"document {index} is text; give a tokenizer, or token ids instead")
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
    flags = ["add_bos_token", "add_eos_token"]
    if backend is not None:
        # Truncation and padding are set by earlier calls; a corpus uses neither.
        state = {k: v for k, v in json.loads(backend.to_str()).items() if k not in ("truncation", "padding")}
        parts = [json.dumps(state, sort_keys=True)]
    else:
        vocabulary = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
        parts = [type(tokenizer).__name__, json.dumps(vocabulary, sort_keys=True)]
        flags.append("name_or_path")
    parts += [str(getattr(tokenizer, name, None)) for name in flags]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=20).hexdigest()


def _check_selection(
    spec: CorpusSpec, read: int, short: int, documents: list[Document], notes: Notes
) -> None:
    where = ", ".join(notes.origins) or str(spec.source)
    if read == 0:
        raise CorpusError(f"{where}: contains no texts")
    limit = f"at least {spec.min_tokens} tokens (min_tokens)" if spec.min_tokens else "at least one token"
    if not documents:
        what = f"none of its {read} texts has {limit}; lower min_tokens or give longer texts"
        raise CorpusError(f"{where}: {what}")
    if repeats := len(documents) - len({document.tokens.tobytes() for document in documents}):
        notes.warnings.append(
            f"{repeats} of {len(documents)} documents {'is an exact copy' if repeats == 1 else 'are exact copies'} of "
            "another: standard errors assume "
            "independent documents and are too small"
        )
    if short:
        notes.warnings.append(f"{short} of {read} texts were left out: they do not have {limit}")


def _as_ids(item: Any, index: int) -> Tokens:
    try:
        ids = np.asarray(item.detach().cpu() if hasattr(item, "detach") else item)
    except (ValueError, TypeError) as error:
        raise CorpusError(f"document {index}: neither text nor token ids ({error})") from error
    if ids.ndim == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.size and (ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.min() < 0):
        expected = "text or token ids (whole numbers from 0)"
        raise CorpusError(f"document {index}: shape {ids.shape}, {ids.dtype}; expected {expected}")
    return ids.astype(np.int32)


def _encode(tokenizer: Any, texts: list[str]) -> list[Tokens]:
    """Token ids as the tokenizer gives them by default, without its warning about long texts."""
    return [np.asarray(ids, np.int32) for ids in tokenizer(texts, verbose=False)["input_ids"]]


def _lead(tokenizer: Any, ids: Tokens) -> int:
    """How many tokens the tokenizer put before the text, such as one for its beginning."""
    special = set(getattr(tokenizer, "all_special_ids", ())) - {getattr(tokenizer, "unk_token_id", None)}
    return next((i for i, token in enumerate(ids.tolist()) if token not in special), len(ids))


class _TokenCache:
    """A cache of tokenised texts: one file per source, tokenizer and excerpt."""

    def __init__(self, folder: Path | None, spec: CorpusSpec, tokenizer: Any, excerpt: Excerpt) -> None:
        self._tokenizer, self._excerpt = tokenizer, excerpt
        self.tokenizer_identity = tokenizer_identity(tokenizer)
        self._used: dict[bytes, tuple[Tokens, int]] = {}
        self._cached: dict[bytes, tuple[Tokens, int]] = {}
        self._path: Path | None = None
        self._changed = False
        self.available = 0
        self.warnings: list[str] = []
        if folder is not None:
            source = [str(spec.source), spec.split, spec.text_column, str(spec.revision)]
            key = "\0".join([*source, self.tokenizer_identity, str(excerpt)])
            name = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
            self._path = Path(folder) / f"tokens-{name}.safetensors"
            self._cached = self._load()

    def tokenised(self, texts: Iterator[Text], wanted: int | None) -> Generator[Piece]:
        """Each text's name with the range that is read, its tokens (n,) and the number it has in all."""
        # At most as many at once as are wanted, so that texts beyond the selection are not tokenised.
        while batch := list(islice(texts, min(BATCH, wanted or BATCH))):
            keys = [hashlib.blake2b(text.text.encode(), digest_size=16).digest() for text in batch]
            new = {key: text.text for key, text in zip(keys, batch, strict=True) if key not in self._cached}
            encoded = _encode(self._tokenizer, list(new.values())) if new else []
            for key, ids in zip(new, encoded, strict=True):
                tokens = self._excerpt.of(ids, key, _lead(self._tokenizer, ids))
                self._cached[key] = tokens, len(ids)
                self._changed = True
            for key, text in zip(keys, batch, strict=True):
                self._used[key] = tokens, length = self._cached[key]
                self.available += length
                offset = self._excerpt.offset(key, length)
                where = f"[{offset}:{offset + len(tokens)}]" if offset else ""
                yield text.name + where, tokens, length

    @property
    def texts(self) -> list[str]:
        """Digests of the texts that were read, in order."""
        return [key.hex() for key in self._used]

    def save(self) -> None:
        """Write the texts of this pass; a folder that cannot be written only costs time later."""
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
            store.write_tensors(self._path, tensors, {"excerpt": str(self._excerpt)})
        except StoreError as error:
            self.warnings.append(f"tokens could not be cached for the next run: {error}")

    def _load(self) -> dict[bytes, tuple[Tokens, int]]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            tensors, _ = store.read_tensors(self._path)
        except StoreError as error:
            # This only costs time: it does not belong in the warnings of the results.
            log.warning("cached tokens cannot be used, tokenising the texts again: %s", error)
            return {}
        parts = np.split(tensors["tokens"], np.cumsum(tensors["sizes"])[:-1])
        rows = zip(tensors["keys"], parts, tensors["lengths"], strict=True)
        return {bytes(key): (part, int(length)) for key, part, length in rows}
