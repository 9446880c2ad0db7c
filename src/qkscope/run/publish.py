"""Results on the hub: a dataset of tables, figures and the report, with a card; read back like a folder.

No weights and no texts leave the machine: only what `PUBLISHED` names is sent.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import yaml

from qkscope.checkpoints import hub
from qkscope.checkpoints.address import on_hub, split_address
from qkscope.errors import HubError, StoreError
from qkscope.typeset import escape_markdown

PUBLISHED = (
    "*.csv",
    "*.parquet",
    "axes.safetensors",
    "study.yaml",
    "summary.json",
    "report.html",
    "figures/**/*",
)
PICTURE = "figures/01_position_signal/figure.png"


def push(results: Path | str, place: str, *, private: bool = False) -> str:
    """Publish a results folder as the dataset `hub:owner/name`; the address of the commit."""
    folder, repo = Path(results), repository(place)
    names = published_files(folder)
    if "qk.csv" not in names:
        raise StoreError(f"{folder}: no qk.csv, so there is nothing to publish; expected a results folder")
    with tempfile.TemporaryDirectory() as temporary:
        staged = Path(temporary)
        for name in names:
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, staged / name)
        (staged / "README.md").write_text(card(folder, repo), encoding="utf-8")
        return hub.upload(repo, staged, f"Results of {folder.name}", private=private)


def fetch_results(place: str, into: Path | str = "results") -> Path:
    """A folder with the published results at `hub:owner/name`, under `into`."""
    repo = repository(place)
    listing = hub.list_files(repo, kind="dataset")
    names = [name for name in listing.files if any(Path(name).match(p) for p in (*PUBLISHED, "figures/*/*"))]
    if "qk.csv" not in names:
        raise HubError(
            f"{place}: no qk.csv among its {len(listing.files)} files; expected what `qkscope push` makes"
        )
    source, folder = hub.fetch(listing, names), Path(into) / repo.replace("/", "--")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, folder / name)
    return folder


def local(place: Path | str) -> Path:
    """A results folder or table as it is, or a copy of the one on the hub."""
    return fetch_results(str(place)) if on_hub(place) else Path(place)


def repository(place: str) -> str:
    """`owner/name` of `hub:owner/name`."""
    repo, folder = split_address(place)
    if folder:
        raise HubError(f"{place!r}: expected hub:owner/name")
    return repo


def published_files(folder: Path) -> list[str]:
    """What of a results folder is published, by name; nothing through links that lead out of it."""
    home = folder.resolve()
    found = {path for pattern in PUBLISHED for path in folder.glob(pattern) if path.is_file()}
    inside = (path for path in found if path.resolve().is_relative_to(home))
    return sorted(path.relative_to(folder).as_posix() for path in inside)


def card(folder: Path, repo: str) -> str:
    """The dataset's README: what it is, its strongest sentences, its files."""
    summary = _summary(folder)
    meta = {"license": "apache-2.0", "tags": ["qkscope", "interpretability", "attention", "rope"]}
    lines = [
        "---",
        yaml.safe_dump(meta, sort_keys=False).strip(),
        "---",
        "",
        f"# {_line(summary.get('title') or folder.name)}",
        "",
    ]
    if (folder / PICTURE).is_file():
        lines += [f"![Position signal over training]({PICTURE})", ""]
    for finding in summary.get("findings", []):
        if finding.get("headline"):
            lines.append(f"- {_line(finding['headline'])}")
    lines += [
        "",
        "Measured with qkscope: query and key vectors of every head as the attention score sees them, correlated with",
        "token position. `report.html` has everything in one file; `qk.csv` is the table behind it. Read it back with",
        "",
        "```sh",
        f"qkscope report hub:{repo}",
        "```",
        "",
        "No weights and no texts are part of this dataset.",
    ]
    return "\n".join(lines) + "\n"


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise StoreError(
            f"{path}: not readable ({error}); run `qkscope run` again to have it rewritten"
        ) from error
    return found if isinstance(found, dict) else {}


def _line(text: object) -> str:
    """One line of plain Markdown: what a study calls itself must not become markup."""
    return escape_markdown(" ".join(str(text).split()))
