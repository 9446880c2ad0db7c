"""Which files make a checkpoint, and where: a source -> a local folder that holds them all.

Weights are safetensors or GGUF, or pickles where the source allows them. What a hub repository or a folder lacks
is noticed here, before anything large is fetched or read.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from qkscope import store
from qkscope.checkpoints import hub
from qkscope.checkpoints.revisions import split_revisions
from qkscope.errors import CheckpointError
from qkscope.words import some

log = logging.getLogger(__name__)

SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
LIVE = "live.json"
WEIGHTS = (".safetensors", ".bin", ".gguf")
# The part of a file that distinguishes most weights.
SAMPLED_BLOCKS, SAMPLED_BYTES = 8, 1 << 16
_TOKENIZER_FILE = re.compile(
    r"(.*token.*|vocab.*|merges.*|spiece.*|.*\.tiktoken|chat_template.*|config\.json)"
)
_DAMAGED = (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError)
Part = Literal["config", "tokenizer", "model"]
Dtype = Literal["auto", "float32", "bfloat16", "float16", "float64"]
FileMarks = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Source:
    """Where a model is and how to read it."""

    model: str
    """`owner/name` on the hub, a folder, or a .gguf file."""
    revision: str | None = None
    tokenizer: str | None = None
    """Where the tokenizer is, if not with the model."""
    dtype: str = "auto"
    device: str | None = None
    """`cuda` where there is one, else `cpu`, unless given."""
    device_map: str | Mapping[str, Any] | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False
    gguf_file: str | None = None
    rotation: str | None = None
    """Rotation settings that take the place of its own (`rope.rotation_settings` of another checkpoint)."""
    settings_in: Literal["study", "scan"] = "study"
    """Where its settings are given, so that advice names them as they are written there."""

    def setting(self, name: str, value: str = "true") -> str:
        """A setting as the person who gave this source writes it."""
        if self.settings_in == "study":
            return f"`{name}: {value}` in the study"
        return f"--{name.replace('_', '-')}" + ("" if value == "true" else f" {value}")

    @property
    def path(self) -> Path | None:
        """The folder or file on this machine; None for the hub. A folder's revisions are the folders in it."""
        path = Path(self.model).expanduser()
        if not path.exists():
            return None
        return path / self.revision if self.revision else path

    def __str__(self) -> str:
        return self.model + (f"@{self.revision}" if self.revision else "")


def local_files(source: Source, part: Part) -> tuple[Path, str]:
    """A local folder with all files of one part, complete, and the hub's commit (empty for local folders)."""
    if path := local_path(source):
        if path.is_file() and path.suffix != ".gguf":
            raise CheckpointError(
                f"{path}: not a model; expected a folder, a .gguf file or a name on the hub"
            )
        folder = path if path.is_dir() else path.parent
        names = _file_names(folder)
        if path.is_dir() and part != "tokenizer" and "config.json" not in names:
            _refuse_many(folder)
        chosen = _choose(source, names, part)
        _check_whole(folder, [*chosen, *_shards(source, folder, chosen, names)])
        return folder, ""
    listing = hub.list_files(source.model, source.revision)
    folder = hub.fetch(listing, chosen := _choose(source, listing.files, part))
    if shards := _shards(source, folder, chosen, listing.files):
        folder = hub.fetch(listing, [*chosen, *shards])
    _check_whole(folder, [*chosen, *shards])
    return folder, folder.name  # the cache names a snapshot's folder by its commit


def _check_whole(folder: Path, names: Iterable[str]) -> None:
    """Raise if a safetensors file among these is truncated or invalid; only headers are read."""
    from safetensors import SafetensorError, safe_open

    for path in (folder / name for name in names if name.endswith(".safetensors")):
        try:
            with safe_open(path, framework="np"):
                pass
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{path}: truncated or damaged weights file ({error}); was saving or downloading it interrupted? Save "
                "or download it again, or leave this checkpoint out"
            ) from error


def _refuse_many(folder: Path) -> None:
    """Raise if a folder contains checkpoints but is not one: name them, and the commands that take it."""
    inside = [folder]
    with contextlib.suppress(CheckpointError):
        inside = discover(folder)
    if inside == [folder]:
        return
    names = inside[0].name if len(inside) == 1 else f"{inside[0].name} to {inside[-1].name}"
    raise CheckpointError(
        f"{folder}: contains {len(inside)} checkpoints ({names}) but is not a checkpoint itself; use `qkscope "
        f"scan {inside[-1]}` to measure one, `qkscope init {folder}` to write a study of all, `qkscope ls "
        f"{folder}` to list them"
    )


@dataclass(frozen=True)
class LiveRecord:
    """A folder that represents weights of a training run, which may be deleted: config.json and this record.

    saved   the checkpoint folder that has the same weights, if they were saved; empty otherwise
    """

    commit: str
    saved: str = ""

    def weights(self, source: Source) -> Path | None:
        """The folder of the weights, if they were saved and are still the same."""
        folder = Path(self.saved)
        there = self.saved and folder.is_dir() and _is_checkpoint(folder)
        return folder if there and digest(folder, source) == self.commit else None


def live_record(source: Source) -> LiveRecord | None:
    """The record of weights of a training run; None for any other checkpoint."""
    path = source.path
    if path is None or not (path / LIVE).is_file():
        return None
    try:
        found = json.loads((path / LIVE).read_text("utf-8"))
        return LiveRecord(str(found["commit"]), str(found["saved"]))
    except _DAMAGED as error:
        raise CheckpointError(f"{path / LIVE}: damaged ({error!r}); delete {path} to leave it out") from error


def write_live(source: Source, folder: Path, commit: str, about: Mapping[str, Any]) -> None:
    """Make `folder` represent a local checkpoint with this digest, which may be deleted later.

    `about` joins the record. Only what planning reads is copied: configuration, tokenizer and trusted code.
    """
    path, _ = local_files(source, "config")
    names = _names(path)
    for name in {*_choose(source, names, "config"), *_choose(source, names, "tokenizer")}:
        store.write_bytes(folder / name, (path / name).read_bytes())
    # Last, so that a folder with a record is whole.
    store.write_json(folder / LIVE, {"commit": commit, "saved": str(path.resolve()), **about})


def require_files(source: Source, part: Part) -> None:
    """Raise if a part is incomplete; on the hub only names are checked, not shards."""
    if part == "model" and live_record(source):
        return  # only needed where a unit is missing
    if local_path(source):
        local_files(source, part)
    else:
        _choose(source, hub.list_files(source.model, source.revision).files, part)


def file_names(source: Source) -> Sequence[str]:
    """Names of the files next to a model, on this machine or on the hub."""
    path = local_path(source)
    if path is None:
        return hub.list_files(source.model, source.revision).files
    return _names(path if path.is_dir() else path.parent)


def local_path(source: Source) -> Path | None:
    """The local folder or file; None for a hub name; an error for a path that is not there."""
    if path := source.path:
        if not path.exists():
            parent = path.parent if path.parent.is_dir() else path.parent.parent
            close = difflib.get_close_matches(path.name, inside := _names(parent), n=3) or inside[:3]
            hint = f"did you mean {' or '.join(close)}?" if close else "it is empty"
            raise CheckpointError(f"{source.model}: this folder has no {source.revision!r}; {hint}")
        return path
    looks_local = source.model.startswith((".", "/", "~", "\\")) or source.model.endswith(".gguf")
    if looks_local or source.model.count("/") > 1:
        raise CheckpointError(f"{source.model}: no such file or folder")
    return None


def gguf_name(source: Source) -> str | None:
    """The name of the GGUF file, if that is what the source is."""
    path = source.path
    return path.name if path and path.is_file() else source.gguf_file


def discover(folder: str | Path) -> list[Path]:
    """The checkpoint folders directly below `folder` (Trainer's `checkpoint-N` and the like), in training order.

    If some names contain a step, the others (`tmp-checkpoint-500`, `best`) are left out. A folder that is a
    checkpoint itself and contains none counts as itself.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; expected a folder of checkpoint folders")
    paths = [folder / name for name in _names(folder)]
    found = {path.name: path for path in paths if path.is_dir() and _is_checkpoint(path)}
    ordered, other = split_revisions(found)
    if ordered:
        return [found[revision.name] for revision in ordered]
    if other:
        return [found[name] for name in sorted(other, key=_natural)]
    if _is_checkpoint(folder):
        return [folder]
    inside = some(_names(folder)) or "nothing"
    raise CheckpointError(
        f"{folder}: no checkpoints found; expected folders like checkpoint-500, each with a config.json, found "
        f"{inside}"
    )


def left_out(folder: str | Path) -> dict[str, str]:
    """Folders below `folder` that look like checkpoints of a run but are not measured, and why each is not."""
    folder = Path(folder).expanduser()
    chosen = {path.name for path in discover(folder)}
    return {
        name: _why_no_checkpoint(folder / name)
        for name in _names(folder)
        if name not in chosen and (folder / name).is_dir() and split_revisions([name])[0]
    }


def _why_no_checkpoint(folder: Path) -> str:
    """What a folder contains instead of a model's configuration and weights, and what to do."""
    names = _names(folder)
    if not names:
        return "the folder is empty; was saving it interrupted?"
    if "adapter_config.json" in names:
        return (
            "an adapter (LoRA) without its model; merge it with PEFT's merge_and_unload and save the result"
        )
    nested = next((n for n in names if (folder / n).is_dir() and _is_checkpoint(folder / n)), None)
    if nested:
        return f"the model is one folder deeper, in {nested}; use {folder / nested} in the study"
    if any("fsdp" in n or n.endswith(".distcp") for n in names):
        return "sharded FSDP weights; merge them with accelerate merge-weights and save a whole model"
    if any(n.startswith("global_step") or n == "zero_to_fp32.py" for n in names):
        return "sharded DeepSpeed weights; merge them with zero_to_fp32.py and save a whole model"
    if "config.json" not in names:
        return f"config.json is missing, found {some(names)}; save it with save_pretrained"
    return f"weights are missing, found {some(names)}; save them with save_pretrained"


def digest(path: Path, source: Source | None = None) -> str:
    """`sha256:` and a digest over the names and bytes of all files that a local model is read from."""
    files = _read_by(path, source)
    if not files:
        raise CheckpointError(f"{path}: has neither config.json nor weights; expected a checkpoint folder")
    total = hashlib.sha256()
    with ThreadPoolExecutor(max_workers=4) as pool:
        for (name, _), sha in zip(files.items(), pool.map(_sha256, files.values()), strict=True):
            total.update(f"{name}\0{sha}\0".encode())
    return f"sha256:{total.hexdigest()}"


def file_marks(path: Path, source: Source | None = None) -> FileMarks:
    """Names, sizes and times of what `digest` reads: unchanged until a file is written."""
    files = _read_by(path, source)
    with _reading(path):
        states = {name: file.stat() for name, file in files.items()}
    return tuple((name, state.st_size, state.st_mtime_ns) for name, state in states.items())


def _read_by(path: Path, source: Source | None) -> dict[str, Path]:
    """The files that a local model is read from, by name: itself, or its configuration, weights and trusted code."""
    if path.is_file():
        return {path.name: path}
    names = _weights_and_config(path, source.gguf_file if source else None)
    if source and source.trust_remote_code:
        names += [file.relative_to(path).as_posix() for file in sorted(path.rglob("*.py")) if file.is_file()]
    return {name: path / name for name in names}


def weights_digest(path: Path, source: Source, *, whole: bool) -> str:
    """A digest of a local model's weights alone, independent of file names.

    Not `whole`: of their sizes and a few blocks of each. It differs for almost all weights that differ, at any size.
    """
    weights = [file for name, file in _read_by(path, source).items() if name.endswith(WEIGHTS)]
    if not weights:
        raise CheckpointError(f"{path}: no weights found")
    total = hashlib.sha256()
    for file in weights:
        size = file.stat().st_size
        total.update(f"{size}|{_sha256(file) if whole else _sampled(file, size)}|".encode())
    return total.hexdigest()


def _sampled(path: Path, size: int) -> str:
    total = hashlib.sha256()
    with _reading(path), path.open("rb") as file:
        for part in range(SAMPLED_BLOCKS):
            file.seek(max(0, size - SAMPLED_BYTES) * part // (SAMPLED_BLOCKS - 1))
            total.update(file.read(SAMPLED_BYTES))
    return total.hexdigest()


def _names(folder: Path) -> list[str]:
    """What is in a folder, sorted."""
    with _reading(folder):
        return sorted(path.name for path in folder.iterdir())


def _file_names(folder: Path) -> list[str]:
    return [name for name in _names(folder) if (folder / name).is_file()]


def _sha256(path: Path) -> str:
    with _reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error


def _weights_and_config(folder: Path, gguf: str | None) -> list[str]:
    """Configuration, weights and the shards that an index of weights names, as far as they are in the folder."""
    names = _file_names(folder)
    if gguf:
        return [gguf] if gguf in names else []
    weights = [n for n in names if re.fullmatch(r"model.*\.safetensors(\.index\.json)?", n)]
    weights = weights or [n for n in names if re.fullmatch(r"pytorch_model.*\.bin(\.index\.json)?", n)]
    named: set[str] = set()
    for index in (n for n in weights if n.endswith(".index.json")):
        # A damaged index is reported when the model is loaded.
        with contextlib.suppress(*_DAMAGED):
            named.update(_named_by(folder / index))
    shards = sorted((named & set(names)) - set(weights))
    return [n for n in ["config.json", *weights, *shards] if n in names]


def _is_checkpoint(folder: Path) -> bool:
    return bool(_weights_and_config(folder, None))


def _choose(source: Source, names: Sequence[str], part: Part) -> list[str]:
    """The files a part needs, of those there are."""
    code = [name for name in names if name.endswith(".py")] if source.trust_remote_code else []
    gguf = gguf_name(source)
    if part != "tokenizer" and "adapter_config.json" in names and (gguf or "config.json" in names):
        raise CheckpointError(
            f"{source}: contains a full model and an adapter (adapter_config.json), and whether the adapter is "
            "applied depends on whether PEFT is installed. Merge it with PEFT's merge_and_unload and save the "
            "result, or copy the model without adapter_config.json to measure it without the adapter"
        )
    if gguf:
        if gguf not in names:
            found = some([n for n in names if n.endswith(".gguf")]) or "none"
            raise CheckpointError(f"{source}: file {gguf} not found; GGUF files found: {found}")
        return [gguf]
    if part == "tokenizer":
        return [name for name in names if _TOKENIZER_FILE.fullmatch(name)] + code
    if "config.json" not in names:
        what = f"not a checkpoint: config.json is missing, found {some(names) or 'nothing'}"
        if ggufs := [name for name in names if name.endswith(".gguf")]:
            what = f"config.json is missing; choose one of its GGUF files: {some(ggufs)}"
        if "adapter_config.json" in names:
            what = "an adapter without its model (adapter_config.json); merge it into the model first"
        raise CheckpointError(f"{source}: {what}")
    config = [name for name in ("config.json", "generation_config.json") if name in names] + code
    return config if part == "config" else config + _weights(source, names)


def _weights(source: Source, names: Sequence[str]) -> list[str]:
    """The weights file, or the index of its shards: safetensors, or pickles where the source allows them."""
    if safe := next((name for name in SAFETENSORS if name in names), None):
        return [safe]
    pickle = next((name for name in PICKLES if name in names), None)
    if pickle and source.allow_pickle:
        log.warning("%s: reading pickled weights, which can run arbitrary code (allow_pickle)", source)
        return [pickle]
    if pickle:
        raise CheckpointError(
            f"{source}: its weights are pickled ({pickle}), which can run arbitrary code, so only safetensors "
            f"and GGUF are read. If you trust the source: {source.setting('allow_pickle')}"
        )
    shards = [name for name in names if name.endswith(".safetensors")]
    found = f"an incomplete set of shards ({some(shards)})" if shards else some(names)
    raise CheckpointError(f"{source}: no weights found; expected {' or '.join(SAFETENSORS)}, found {found}")


def _shards(source: Source, folder: Path, chosen: Sequence[str], names: Sequence[str]) -> list[str]:
    """The files that a chosen index names; an error if one of them is not among `names`."""
    index = next((name for name in chosen if name.endswith(".index.json")), None)
    if index is None:
        return []
    try:
        shards = sorted(_named_by(folder / index))
    except _DAMAGED as error:
        raise CheckpointError(f"{source}: {index} is damaged ({error!r})") from error
    if missing := sorted(set(shards) - set(names)):
        raise CheckpointError(
            f"{source}: incomplete: {index} lists {len(shards)} weight files, but {some(missing)} "
            "is missing; download or save it again, or leave this checkpoint out"
        )
    return shards


def _named_by(index: Path) -> set[str]:
    """The files of weights that an index names; one of the `_DAMAGED` errors if it is not an index."""
    return set(json.loads(index.read_text("utf-8"))["weight_map"].values())


def has_tokenizer(names: Iterable[str]) -> bool:
    known = r"tokenizer\.(json|model)|vocab\.(json|txt)|spiece\.model|tokenizer_config\.json|.*\.tiktoken|tekken\.json"
    return any(re.fullmatch(known, name) for name in names)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts `run2` before `run10`."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d{1,18})", name)]
