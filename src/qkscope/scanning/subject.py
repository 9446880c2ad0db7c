"""What a scan measures: a model in memory or one to be loaded, its heads, and whether there is room for them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkscope.capture import find_backbone
from qkscope.capture.architecture import Architecture, read_architecture
from qkscope.capture.memory import available_bytes, check_memory, moments_bytes, weights_bytes
from qkscope.corpus.documents import digest
from qkscope.errors import CaptureError
from qkscope.results.owner import Part, head_mask
from qkscope.sums.head_index import HeadIndex, sample_heads

if TYPE_CHECKING:
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
            asked_by="scan",
        )
        config = load_config(source)
        name = revision or Path(model).name.removesuffix(".gguf")
        origin = origin_of(model, revision)
        return cls(name, read_architecture(config), config, source=source, tokenizer=tokenizer, origin=origin)

    def find_tokenizer(self) -> Any:
        """The tokenizer given, or the one found where it was said to be, or beside the model; None if unknown."""
        from qkscope.checkpoints import Source, load_tokenizer

        if isinstance(self.tokenizer, str):
            return load_tokenizer(self.source or Source(self.tokenizer, asked_by="scan"))
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
    """A model's place in full, so that two of one name are told apart."""
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
    vectors = len(heads) + len(heads.keys)
    needed = (groups + 2) * moments_bytes(vectors, subject.architecture.head_dim, 1)
    what = f"measuring {len(heads)} heads of {subject.architecture.head_dim} dimensions in {groups} groups"
    if subject.source is not None and _goes_to_main_memory(subject.source):
        needed += weights_bytes(subject.config, subject.architecture, subject.source.dtype)
        what = f"loading {subject.name} and {what}"
    check_memory(needed, available_bytes(), what)


def _goes_to_main_memory(source: Source) -> bool:
    import torch

    return source.device == "cpu" or (source.device is None and not torch.cuda.is_available())
