"""`qkscope init`: a first study file for the checkpoints in folders or of a hub model, and what to check in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import yaml

from qkscope import defaults, store
from qkscope.checkpoints.files import discover, has_tokenizer, left_out
from qkscope.checkpoints.hub import fetch, list_files
from qkscope.checkpoints.loading import list_revisions
from qkscope.checkpoints.revisions import LONG_CONTEXT, Revision, phases_yaml, split_revisions
from qkscope.errors import StudyError
from qkscope.study.schema import folder_name
from qkscope.study.yaml_lines import did_you_mean

# The window proposed if the configuration does not give the model's context length.
WINDOW = 1024
# The largest window that is proposed: a laptop reads 64 such documents in minutes.
LONGEST = 4096
# Placeholder for a tokenizer that was not found.
CHANGE_ME = "CHANGE-ME"
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")


@dataclass(frozen=True)
class Starter:
    """A study file's name and text, and what a person should check before running it."""

    name: str
    text: str
    check: tuple[str, ...]


def init(checkpoints: str | Sequence[str], out: Path | str | None = None) -> tuple[Path, Starter]:
    """Write a commented study file; never over another file.

    `checkpoints` is a folder of them or a model on the hub; or several folders, the phases of one training run in
    order, such as a base run and its long-context continuation.
    """
    given = [checkpoints] if isinstance(checkpoints, str) else list(checkpoints)
    folders = [Path(each).expanduser() for each in given]
    if out is not None and Path(out).resolve().parent != Path.cwd():
        folders = [folder.resolve() for folder in folders]  # a study's paths are relative to its file
    if len(given) > 1:
        starter = _of_folders(folders)
    elif folders[0].is_dir():
        starter = _of_folder(folders[0])
    else:
        starter = _of_model(given[0])
    path = Path(out) if out is not None else Path(f"{starter.name}.yaml")
    if path.exists():
        raise StudyError(f"{path} already exists; choose another name with --out, or edit it")
    store.write_text(path, starter.text)
    return path, starter


def _of_folder(folder: Path) -> Starter:
    found = discover(folder)
    window, why = _window(found[-1] / "config.json")
    check = [f"left out: {name}: {reason}" for name, reason in left_out(folder).items()]
    tokenizer, missing = _tokenizer([(folder, found)])
    ordered, _ = split_revisions(path.name for path in found)
    if len({revision.phase_key for revision in ordered}) > 1:
        where = phases_yaml(ordered, "folder", f"{folder}/")
        windows = _phase_windows(ordered, window)
    else:
        where = f"checkpoints: {_scalar(str(folder))}   # {_span([path.name for path in found])}"
        windows = [window]
    return _starter(folder.resolve().name, [where], tokenizer, windows, why, [*check, *missing])


def _of_folders(folders: Sequence[Path]) -> Starter:
    """A phase for each folder, in the order given."""
    for folder in folders:
        if not folder.is_dir():
            beside = [path.name for path in folder.parent.iterdir()] if folder.parent.is_dir() else []
            raise StudyError(
                f"{folder}: no such folder{did_you_mean(folder.name, beside)}; several arguments must be folders of "
                "checkpoints, the phases of one training run in order"
            )
    found = [discover(folder) for folder in folders]
    known = [_window(each[-1] / "config.json") for each in found]
    # The context of a training run does not shrink: no phase is measured beyond a later one's window.
    windows = [min(window for window, _ in known[i:]) for i in range(len(known))]
    parts = [folder.resolve().parts for folder in folders]
    if len(set(parts)) < len(parts):
        raise StudyError("a folder is given twice; each folder must be a separate phase")
    # The folders' names, with parents' names where that is needed to distinguish them.
    all_labels = (["/".join(each[-n:]).lstrip("/") for each in parts] for n in count(1))
    labels = next(labels for labels in all_labels if len(set(labels)) == len(labels))
    lines, check = ["phases:"], []
    for label, window, folder, inside in zip(labels, windows, folders, found, strict=True):
        names = [path.name for path in inside]
        lines += [
            f"  - label: {_scalar(label)}",
            f"    window: {window}",
            f"    checkpoints: {_scalar(str(folder))}   # {_span(names)}",
        ]
        check += [f"left out: {folder / name}: {reason}" for name, reason in left_out(folder).items()]
        inner = list(dict.fromkeys(revision.phase_label for revision in split_revisions(names)[0]))
        if len(inner) > 1:
            what = f"contains several phases ({', '.join(inner)})"
            check.append(f"{folder} {what}: `qkscope ls {folder}` prints them for pasting")
    tokenizer, missing = _tokenizer(list(zip(folders, found, strict=True)))
    why = "; ".join(f"{label}: {reason}" for label, (_, reason) in zip(labels, known, strict=True))
    phases = f"phases: {', then '.join(labels)}; each continues from the last checkpoint of the one before"
    check += [*missing, phases]
    return _starter("-".join(labels), lines, tokenizer, sorted(set(windows)), why, check)


def _tokenizer(phases: Sequence[tuple[Path, Sequence[Path]]]) -> tuple[list[str], list[str]]:
    """The study's line about its tokenizer, and what to check, if it is not next to all of the weights."""

    def there(folder: Path) -> bool:
        return has_tokenizer(path.name for path in folder.iterdir())

    without = [found[-1] for _, found in phases if not there(found[-1])]
    if not without:
        return [], []
    near = [each for folder, found in phases for each in (folder, found[-1]) if there(each)]
    line = f"tokenizer: {_scalar(str(near[0])) if near else CHANGE_ME}   # not in {without[0].name}"
    missing = "tokenizer: none found next to the weights; give a folder or a hub model"
    return [line], [] if near else [missing]


def _of_model(model: str) -> Starter:
    listed = list_revisions(model)
    ordered, other = split_revisions(revision.name for revision in listed)
    listing = list_files(model, ordered[-1].name if ordered else None)
    config = fetch(listing, ["config.json"]) / "config.json" if "config.json" in listing.files else None
    window, why = _window(config)
    lines = [f"model: {_scalar(model)}", phases_yaml(ordered)]
    check = [f"left out: {name}: no training step in its name" for name in other if name != "main"]
    if not ordered:
        why_main = "its main branch only: no revision is named like a checkpoint"
        lines, check = ["checkpoints:", f"  - {_scalar(model)}   # {why_main}"], []
    return _starter(model.split("/")[-1], lines, [], _phase_windows(ordered, window), why, check)


def _starter(
    name: str, where: list[str], tokenizer: list[str], windows: list[int], why: str, check: list[str]
) -> Starter:
    """The study file, with a comment on each line that is likely to be changed."""
    title = folder_name(name) or "my-study"
    lines = [
        f"name: {_scalar(title)}",
        *where,
        *tokenizer,
        "",
        "# The text that heads are measured on: a file, a folder, .jsonl, .parquet, hub:owner/dataset, or "
        "stdlib (the",
        "# sources of Python). Held-out text of the kind the model was trained on is best; 64 documents or more.",
        "corpus: stdlib",
        "",
        f"# Context windows in tokens: {why}.",
        f"windows: {windows}",
        "",
        "heads: all   # or {sample: 300, seed: 0} for a large model",
        "",
        "# Short excerpts of the text that the report shows, with the attention of a few heads; 0 shows no text.",
        f"examples: {defaults.EXAMPLES}",
    ]
    check = [*check, "corpus: stdlib is Python code; give text of the kind the model was trained on"]
    return Starter(title, "\n".join(lines) + "\n", (*check, f"windows: {windows}, because {why}"))


def _phase_windows(revisions: Sequence[Revision], window: int) -> list[int]:
    """The windows in the names of long-context phases, or `window`."""
    spans = [r.phase_key[1:] for r in revisions if r.phase_key[0] == LONG_CONTEXT]
    return sorted({min(first for first, _ in spans)} | {last for _, last in spans}) if spans else [window]


def _window(config: Path | None) -> tuple[int, str]:
    """A window to propose, and the reason."""
    known = None
    if config is not None and config.is_file():
        try:
            fields = json.loads(config.read_text(encoding="utf-8"))
            fields = fields.get("text_config", fields)
        except (OSError, ValueError, AttributeError) as error:
            raise StudyError(
                f"{config}: cannot be read ({error}); expected a model's configuration"
            ) from error
        known = next((fields[name] for name in POSITIONS if isinstance(fields.get(name), int)), None)
    if known is None or known <= 1:
        return WINDOW, "the configuration does not give the model's context length"
    if known > LONGEST:
        return LONGEST, f"the configuration allows {known:,} positions; the first {LONGEST:,} are read"
    return known, f"the configuration allows {known:,} positions"


def _scalar(text: str) -> str:
    """A text as a YAML scalar, quoted if needed."""
    return str(yaml.safe_dump(text, width=10**6, allow_unicode=True)).removesuffix("...\n").strip()


def _span(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} checkpoints, {names[0]} to {names[-1]}"
