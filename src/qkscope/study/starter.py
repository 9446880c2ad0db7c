"""A first study file for what is found at a place: checkpoints, tokenizer, window, text; and what to look at in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from qkscope import store
from qkscope.checkpoints.files import discover, has_tokenizer, left_out
from qkscope.checkpoints.hub import fetch, list_files
from qkscope.checkpoints.loading import list_revisions
from qkscope.checkpoints.revisions import LONG_CONTEXT, Revision, phases_yaml, split_revisions
from qkscope.errors import StudyError
from qkscope.study.schema import folder_name

# Where nothing says how long the model's training sequences were.
WINDOW = 1024
# The largest window that is proposed unasked: a laptop reads 64 such documents in minutes.
LONGEST = 4096
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")


@dataclass(frozen=True)
class Starter:
    """A study file's name and text, and what a person should check before running it."""

    name: str
    text: str
    check: tuple[str, ...]


def init(place: str, out: Path | str | None = None) -> tuple[Path, Starter]:
    """Write a commented study file for a folder of checkpoints or a model on the hub; never over another file."""
    folder = Path(place).expanduser()
    made = _of_folder(folder) if folder.is_dir() else _of_model(place)
    path = Path(out) if out is not None else Path(f"{made.name}.yaml")
    if path.exists():
        raise StudyError(f"{path} is there already; give another name with --out, or edit it")
    store.write_text(path, made.text)
    return path, made


def _of_folder(folder: Path) -> Starter:
    found = discover(folder)
    window, why = _window(found[-1] / "config.json")
    check = [f"left out: {name}: {reason}" for name, reason in left_out(folder).items()]
    tokenizer = []
    if not has_tokenizer(path.name for path in found[-1].iterdir()):
        beside = has_tokenizer(path.name for path in folder.iterdir())
        tokenizer = [
            f"tokenizer: {_scalar(str(folder)) if beside else 'CHANGE-ME'}   # not in {found[-1].name}"
        ]
        check += (
            [] if beside else ["tokenizer: there is none beside the weights; name a folder or a hub model"]
        )
    ordered, _ = split_revisions(path.name for path in found)
    if len({revision.phase_key for revision in ordered}) > 1:
        where = phases_yaml(ordered, "folder", f"{folder}/")
        windows = _phase_windows(ordered, window)
    else:
        where = f"checkpoints: {_scalar(str(folder))}   # {_span([path.name for path in found])}"
        windows = [window]
    return _starter(folder.resolve().name, [where], tokenizer, windows, why, check)


def _of_model(model: str) -> Starter:
    listed = list_revisions(model)
    ordered, other = split_revisions(revision.name for revision in listed)
    listing = list_files(model, ordered[-1].name if ordered else None)
    config = fetch(listing, ["config.json"]) / "config.json" if "config.json" in listing.files else None
    window, why = _window(config)
    if ordered:
        lines = [f"model: {_scalar(model)}", phases_yaml(ordered, "revision")]
    else:
        lines = [
            "checkpoints:",
            f"  - {_scalar(model)}   # its main branch alone: no revision is named like a checkpoint",
        ]
    check = [
        f"left out: {name}: no training step in its name" for name in other if ordered and name != "main"
    ]
    return _starter(model.split("/")[-1], lines, [], _phase_windows(ordered, window), why, check)


def _starter(
    name: str, where: list[str], tokenizer: list[str], windows: list[int], why: str, check: list[str]
) -> Starter:
    """The file itself. Every line that a person may want to change says what it does."""
    title = folder_name(name) or "my-study"
    lines = [
        f"name: {_scalar(title)}",
        *where,
        *tokenizer,
        "",
        "# The text that heads are measured on: a file, a folder, .jsonl, .parquet, hub:owner/dataset, or stdlib (the",
        "# sources of Python). Held-out text of the kind the model was trained on is best; 64 documents or more.",
        "corpus: stdlib",
        "",
        f"# Context windows in tokens: {why}.",
        f"windows: {windows}",
        "",
        "heads: all   # or {sample: 300, seed: 0} for a large model",
    ]
    check = [*check, "corpus: stdlib is Python code; give text of the kind the model was trained on"]
    return Starter(title, "\n".join(lines) + "\n", (*check, f"windows: {windows}, because {why}"))


def _phase_windows(revisions: Sequence[Revision], window: int) -> list[int]:
    """The windows that the names of long-context phases tell, or the one given."""
    spans = [r.phase_key[1:] for r in revisions if r.phase_key[0] == LONG_CONTEXT]
    return sorted({min(first for first, _ in spans)} | {last for _, last in spans}) if spans else [window]


def _window(config: Path | None) -> tuple[int, str]:
    """A window to propose, and the reason."""
    known = _positions(config) if config is not None and config.is_file() else None
    if known is None:
        return WINDOW, f"{WINDOW:,}, because the configuration does not say what the model was made for"
    if known > LONGEST:
        return LONGEST, f"the first {LONGEST:,} of the {known:,} positions that the configuration allows"
    return known, f"the {known:,} positions that the configuration allows"


def _positions(config: Path) -> int | None:
    try:
        fields = json.loads(config.read_text(encoding="utf-8"))
        fields = fields.get("text_config", fields)
    except (OSError, ValueError, AttributeError) as error:
        raise StudyError(f"{config}: cannot be read ({error}); expected a model's configuration") from error
    found = next((fields[name] for name in POSITIONS if isinstance(fields.get(name), int)), None)
    return found if found and found > 1 else None


def _scalar(text: str) -> str:
    """As YAML reads it back, whatever stands in it."""
    return str(yaml.safe_dump(text, width=10**6, allow_unicode=True)).removesuffix("...\n").strip()


def _span(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} of them, {names[0]} to {names[-1]}"
