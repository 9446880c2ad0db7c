"""A model's name -> its configuration, weights and tokenizer, from the hub, a folder or a GGUF file.

Files come first and models second: the files are downloaded and checked to be complete, then transformers reads a
local folder without the network. Remote code is never executed, and weights are read from
safetensors or GGUF alone, unless the source says otherwise.
"""

from __future__ import annotations

import copy
import difflib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from qkscope.checkpoints import hub
from qkscope.checkpoints.files import (
    Dtype,
    FileMarks,
    Source,
    digest,
    discover,
    file_marks,
    file_names,
    gguf_name,
    has_tokenizer,
    live_record,
    local_files,
    local_path,
)
from qkscope.checkpoints.hub_errors import line
from qkscope.checkpoints.revisions import Revision, order_revisions, phases_yaml, split_revisions
from qkscope.checkpoints.rope import with_rotation
from qkscope.errors import CheckpointError, out_of_memory
from qkscope.words import some

log = logging.getLogger(__name__)

# Tensors of a layer that older versions saved and no model reads: masks, rotation tables, scales of a quantised cache.
_UNUSED = re.compile(
    r"(attn|attention)\.bias$|\b(rotary_emb|inv_freq|masked_bias|causal_mask|embed_positions|position_ids|"
    r"cos_cached|sin_cached|[qkv]{1,2}_scale)\b"
)
DTYPES: tuple[str, ...] = get_args(Dtype)


@dataclass(frozen=True)
class Resolved:
    """A source and the exact bytes it resolves to now."""

    source: Source
    commit: str
    """The hub's commit hash, or `sha256:` and a digest of the configuration and weights of a folder or file."""
    files: FileMarks = ()
    """Of a folder or file: by which to notice that somebody writes there."""


def resolve(source: Source) -> Resolved:
    """What the source resolves to now. Reads a local model's files whole; downloads a hub model's config only."""
    if path := local_path(source):
        if live := live_record(source):
            return Resolved(source, live.commit)
        files = file_marks(path, source)
        commit = digest(path, source)
        if file_marks(path, source) != files:
            raise CheckpointError(f"{source}: is still being written; run again once it is complete")
        return Resolved(source, commit, files)
    commit = local_files(source, "config")[1]
    # A branch may move: everything else is read at this commit.
    return Resolved(replace(source, revision=commit), commit)


def load_resolved(resolved: Resolved) -> Any:
    """The model of exactly those bytes. A folder that was replaced since, or is while it is read, is an error."""
    if live_record(resolved.source):
        return load_model(resolved.source)
    _check_unchanged(resolved)
    model = load_model(resolved.source)
    _check_unchanged(resolved)
    return model


def _saved(source: Source) -> Source:
    """The checkpoint that a record of a training run points to; any other source unchanged."""
    live = live_record(source)
    if live is None:
        return source
    if weights := live.weights(source):
        return replace(source, model=str(weights), revision=None)
    gone = f"were deleted from {live.saved}, or changed" if live.saved else "were not saved"
    raise CheckpointError(
        f"{source}: was measured while it trained, and its weights {gone}, so nothing more can be measured; leave it "
        "out, or use the version of qkscope that measured it"
    )


def _check_unchanged(resolved: Resolved) -> None:
    path, source = local_path(resolved.source), resolved.source
    if path is None or file_marks(path, source) == resolved.files:
        return
    if digest(path, source) != resolved.commit:
        raise CheckpointError(
            f"{source}: its files were replaced while the study ran; run again to measure the new files"
        )


def load_config(source: Source) -> Any:
    """The transformers configuration, without the weights; with the source's rotation settings if it has some."""
    folder, _ = local_files(source, "config")
    if gguf := gguf_name(source):
        state = (folder / gguf).stat()
        cached = _gguf_config(replace(source, device_map=None), folder, state.st_mtime_ns, state.st_size)
        config = copy.deepcopy(cached)
    else:
        config = _read_config(source, folder)
    return config if source.rotation is None else with_rotation(config, source.rotation)


@lru_cache(maxsize=8)
def _gguf_config(source: Source, folder: Path, mtime_ns: int, size: int) -> Any:
    """Cached while the file is the same: transformers takes seconds to read a configuration from a GGUF file."""
    return _read_config(source, folder)


def _read_config(source: Source, folder: Path) -> Any:
    auto = hub.need("transformers").AutoConfig
    with _clear_words(source, "configuration"):
        return auto.from_pretrained(folder, **_options(source))


def load_model(source: Source) -> Any:
    """The causal language model: weights complete, in evaluation mode, without gradients, on its device."""
    auto = hub.need("transformers").AutoModelForCausalLM
    source = _saved(source)
    gguf = gguf_name(source)
    dtype, device = _dtype(source), _device(source)
    folder, _ = local_files(source, "model")
    options = _options(source) | {"output_loading_info": True, "ignore_mismatched_sizes": True}
    options["dtype"] = dtype
    if source.device_map is not None:
        options["device_map"] = source.device_map
    if gguf or source.rotation is not None:
        options["config"] = load_config(source)
    if not gguf:
        # A state saved from torch.compile: its prefix is no module of any model.
        options["key_mapping"] = {r"^_orig_mod\.": ""}
        if not source.allow_pickle:
            options["use_safetensors"] = True
    with _clear_words(source, "model"):
        model, info = auto.from_pretrained(folder, **options)
        _check_weights(source, info)
        _check_unexpected(source, model, info)
        if source.device_map is None:
            model = model.to(device)
    return model.eval().requires_grad_(False)


def load_tokenizer(source: Source) -> Any:
    """The tokenizer named by the source, or else the one stored with the model."""
    auto = hub.need("transformers").AutoTokenizer
    origin = find_tokenizer(source)
    folder, _ = local_files(origin, "tokenizer")
    with _clear_words(origin, "tokenizer"):
        return auto.from_pretrained(folder, **_options(origin))


def find_tokenizer(source: Source) -> Source:
    """Where the tokenizer is. Raises where there is none; of the hub only file names are read."""
    origin = source
    if source.tokenizer and source.tokenizer != source.model:
        trust = source.trust_remote_code
        origin = Source(source.tokenizer, trust_remote_code=trust, settings_in=source.settings_in)
        if origin.path is None and "/" not in source.tokenizer:
            raise CheckpointError(
                f"tokenizer {source.tokenizer!r}: no such local folder, and tokenizers on the hub are named "
                "owner/name (gpt2 is openai-community/gpt2)"
            )
    if not gguf_name(origin) and not has_tokenizer(file_names(origin)):
        raise CheckpointError(
            f"{origin}: no tokenizer found (neither tokenizer.json nor another vocabulary); give the model's "
            f"tokenizer: {source.setting('tokenizer', 'FOLDER')}"
        )
    return origin


def list_revisions(model: str) -> list[Revision]:
    """All revisions of a hub model, or checkpoints in a folder, in training order; those without a step last."""
    if (path := Path(model).expanduser()).is_dir():
        return order_revisions(folder.name for folder in discover(path.resolve()))
    local_path(Source(model))
    return order_revisions(hub.list_refs(model))


def checkpoints_yaml(model: str) -> str:
    """What `list_revisions` finds, as the part of a study to paste; names without a step as comments."""
    ordered, other = split_revisions(revision.name for revision in list_revisions(model))
    if not ordered:
        raise CheckpointError(
            f"{model}: no revision is named like a checkpoint (step-1000, checkpoint-500, ...); it has "
            f"{some(other, 10) or 'none'}"
        )
    path = Path(model).expanduser()
    lines = [f"# {len(ordered)} checkpoint{'s' * (len(ordered) > 1)} of {model}, in training order."]
    lines += [f"# Left out (no step in its name): {name}" for name in other]
    if path.is_dir():
        itself = path.resolve().name == ordered[0].name
        folder = path.resolve().parent if itself else path
        return "\n".join([*lines, phases_yaml(ordered, "folder", f"{folder}/")])
    return "\n".join([*lines, f"model: {model}", phases_yaml(ordered)])


def _options(source: Source) -> dict[str, Any]:
    """What every `from_pretrained` gets: no network, and remote code only where the source trusts it."""
    if source.trust_remote_code:
        log.warning("%s: running the model's own Python code (trust_remote_code)", source)
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": source.trust_remote_code}
    return options | ({"gguf_file": gguf} if (gguf := gguf_name(source)) else {})


def _dtype(source: Source) -> Any:
    """A torch dtype, or "auto": as the weights were saved."""
    if source.dtype not in DTYPES:
        close = difflib.get_close_matches(source.dtype, DTYPES, n=1, cutoff=0.4)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise CheckpointError(f"unknown dtype {source.dtype!r}; expected one of {', '.join(DTYPES)}{hint}")
    return "auto" if source.dtype == "auto" else getattr(hub.need("torch"), source.dtype)


def _device(source: Source) -> Any:
    torch = hub.need("torch")
    if source.device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.zeros(1, device=source.device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        there = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        there += ["mps"] if torch.backends.mps.is_available() else []
        raise CheckpointError(
            f"device {source.device!r} is not available ({line(error)}); available: {', '.join(there)}"
        ) from error


def _check_weights(source: Source, info: Mapping[str, Any]) -> None:
    """Weights that a file lacks would be random numbers. The output head alone is not needed."""
    faults = {
        "have a different shape in its weights": [key[0] for key in info["mismatched_keys"]],
        "are missing from its weights": [
            key for key in info["missing_keys"] if not re.match(r"(lm_head|embed_out|output)\b", key)
        ],
    }
    for fault, keys in faults.items():
        if keys:
            raise CheckpointError(
                f"{source}: {len(keys)} of the model's tensors {fault} ({some(sorted(keys))}) and would be "
                "random numbers. The weights do not match this config.json, or were not saved completely"
            )


def _check_unexpected(source: Source, model: Any, info: Mapping[str, Any]) -> None:
    """Tensors of layers that the configuration does not describe would be left out silently."""
    described: dict[str, int] = {}
    for stack, layer, _ in _in_layers(model, model.state_dict()):
        described[stack] = max(described.get(stack, 0), layer + 1)
    # Layers that predict further tokens come after the others and are not part of the model.
    further = getattr(model.config.get_text_config(), "num_nextn_predict_layers", None) or 0
    found = [each for each in _in_layers(model, info["unexpected_keys"]) if each[0] in described]
    layers, stack = max(((layer + 1, stack) for stack, layer, _ in found), default=(0, ""))
    if stack and layers > described[stack] + further:
        raise CheckpointError(
            f"{source}: its weights have {layers} layers, but its config.json describes {described[stack]}. Use the "
            "config.json saved with these weights"
        )
    tensors = [f"{s}.{i}.{name}" for s, i, name in found if i < described[s] and not _UNUSED.search(name)]
    if tensors:
        raise CheckpointError(
            f"{source}: {len(tensors)} tensors of its weights are not part of the model in its config.json "
            f"({some(sorted(tensors))}) and would be ignored. Use the config.json saved with these weights"
        )


def _in_layers(model: Any, keys: Iterable[str]) -> Iterator[tuple[str, int, str]]:
    """(`model.layers`, 3, `self_attn.q_proj.weight`) of each tensor that is in a numbered layer."""
    prefix = f"{model.base_model_prefix}."
    for key in keys:
        if found := re.fullmatch(r"(.*?)\.(\d{1,6})\.(.+)", key.removeprefix(prefix)):
            yield found[1], int(found[2]), found[3]


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without bars, and with no messages of transformers but errors, while the block runs."""
    reports = hub.need("transformers").utils.logging
    verbosity, bars = reports.get_verbosity(), reports.is_progress_bar_enabled()
    reports.set_verbosity_error()
    reports.disable_progress_bar()
    try:
        yield
    finally:
        reports.set_verbosity(verbosity)
        if bars:
            reports.enable_progress_bar()


@contextmanager
def _clear_words(source: Source, what: str) -> Iterator[None]:
    """Errors of transformers, safetensors and torch as a CheckpointError: which checkpoint, and what to do."""
    try:
        with quiet_transformers():
            yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{source}: {_explain(error, what, source)}") from error


def _explain(error: Exception, what: str, source: Source) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return (
            f"its {what} needs its own Python code, which is not run by default. If you trust the source: "
            f"{source.setting('trust_remote_code')}"
        )
    if found := re.search(r"model type `?'?([\w.-]+)`?'?.{0,80}not recognize", text, re.DOTALL):
        from transformers import __version__

        return f"model type {found[1]!r} is unknown to the installed transformers {__version__}; try a newer version"
    if type(error).__name__ == "SafetensorError":
        return f"a weights file is damaged ({line(error)}); download or save it again"
    if out_of_memory(error):
        smaller = source.setting("dtype", "bfloat16")
        return f"not enough memory to load it ({line(error)}); try {smaller}, or a larger machine"
    if isinstance(error, ImportError):
        return f"reading the {what} needs a package that is not installed: {line(error)}"
    where, wrong = "in config.json or a file next to it", line(error)
    if isinstance(error, ArithmeticError):
        wrong = f"an invalid number {where}, such as 0 heads ({wrong})"
    elif isinstance(error, KeyError):
        wrong = f"an entry {where} is missing: {wrong}"
    elif isinstance(error, AttributeError | TypeError | IndexError):
        wrong = f"an entry {where} has the wrong type ({wrong})"
    elif isinstance(error, RecursionError):
        wrong = f"JSON {where} is nested too deeply"
    return f"the {what} cannot be read: {wrong}"
