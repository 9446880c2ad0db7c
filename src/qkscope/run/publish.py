"""Publish results on the hub as a dataset or a static Space, and read a dataset back like a folder.

`push` sends the files that manifest.json of a results folder lists, after checking them, with a manifest and a card:
no weights, no texts, no local paths and no other files. To a Space it sends the report alone. `fetch_results`
downloads what the published manifest lists into `results/.hub/OWNER--NAME@COMMIT`.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PureWindowsPath
from typing import Any

import yaml

from qkscope import store
from qkscope.checkpoints import hub
from qkscope.checkpoints.hub import on_hub, split_address
from qkscope.errors import HubError, StoreError
from qkscope.progress import say
from qkscope.results import load_results, manifest
from qkscope.results.examples import NAME as EXAMPLES
from qkscope.results.manifest import Entries, Manifest
from qkscope.words import escape_markdown

CACHE = ".hub"
TAGS = ["qkscope", "interpretability", "attention", "rope"]
PICTURE = "figures/01_position_signal/figure.png"
# What a dataset may make us download, far beyond any study: files, bytes of all, bytes of manifest.json.
MOST_FILES, MOST_BYTES, MANIFEST_BYTES = 2000, 20_000_000_000, 10_000_000
# Of a dataset without a manifest (somebody else's, or of an early version) only these files are read.
KNOWN = re.compile(
    r"(qk|heads|transitions|causes)\.csv|heads\.parquet|(measures|axes)\.safetensors|study\.yaml"
)
# Parts of study.yaml that hold words, which may begin with a slash.
_WORDS = ("name", "title", "label")
_TEXTS = (".json", ".html", ".md")
_PATH = re.compile(r"(?<![\w.:/~-])(?:~|[A-Za-z]:)?/(?:[^\s/:'\",;()]+/)+([^\s/:'\",;()]+)")


def push(
    results: Path | str, address: str, *, private: bool = False, space: bool = False, examples: bool = False
) -> str:
    """Publish a results folder as the dataset `hub:owner/name`; the address of the commit.

    One commit replaces the whole set that was pushed there before. Other files of the dataset stay. With `space`, the
    report becomes the page of a static Space, in one commit that deletes nothing. Excerpts of the texts are left out,
    also of the report, unless `examples` is true.
    """
    folder, repo = Path(results), repository(address)
    found = checked_set(folder)
    if space and "report.html" not in found.drawn:
        raise StoreError(f"{folder}: no finished report.html", f"run `qkscope report {folder}`, then push")
    with tempfile.TemporaryDirectory() as temporary:
        staged, page = Path(temporary) / folder.resolve().name, Path(temporary) / ".space"
        staged.mkdir()
        stage(folder, found, staged, examples)
        if space:
            _copy(staged / "report.html", page / "index.html")
            store.write_text(page / "README.md", space_card(staged))
            hub.make_repository(repo, "space", private=private)
            there = hub.list_files(repo, kind="space")
            _refuse_application(there)
            return hub.upload(there, page, f"Report of {staged.name}")
        store.write_text(staged / "README.md", card(staged, repo))
        hub.make_repository(repo, "dataset", private=private)
        there = hub.list_files(repo, kind="dataset")
        gone = [name for name in _pushed_before(there) if not (staged / name).exists()]
        return hub.upload(there, staged, f"Results of {staged.name}", gone)


def _refuse_application(there: hub.Listing) -> None:
    """Raise if a Space runs a program (Gradio, Docker), which a static README.md would switch off."""
    if "README.md" not in there.files:
        return
    try:
        readme = hub.fetch(there, ["README.md"]) / "README.md"
        sdk = (hub.need("huggingface_hub").metadata_load(readme) or {}).get("sdk", "static")
    except (ValueError, yaml.YAMLError):  # no valid metadata, so the Space runs nothing
        return
    if sdk != "static":
        raise HubError(
            f"{there.place}: an application (sdk: {sdk}), expected a static Space or none; choose another name"
        )


def checked_set(folder: Path) -> Manifest:
    """What of a results folder is published, once everything was read and checked as `report` does it."""
    found = manifest.read_manifest(folder)
    if "qk.csv" not in (found.tables if found else [path.name for path in folder.glob("qk.csv")]):
        raise StoreError(f"{folder}: no qk.csv, so there is nothing to publish", "give a results folder")
    if found is None:
        raise StoreError(
            f"{folder}: no {manifest.NAME}, so it is unknown which files belong to it (results of an earlier version "
            "or of another program)",
            "run the study again (nothing is measured twice), then push",
        )
    found = replace(found, drawn={n: e for n, e in found.drawn.items() if _is_drawn(n)})
    for name in (*found.tables, *found.drawn):
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise StoreError(
                f"{folder / name}: a link that points outside the folder", "replace it with the file itself"
            )
    if wrong := next(manifest.all_problems(folder, found), None):
        raise StoreError(wrong, "run the study again to rewrite it, then push")
    _read_all(folder)
    if not found.drawn:
        say(
            f"warning: {folder}: figures and report are not recorded as finished; only the tables are uploaded"
        )
    return found


def stage(folder: Path, found: Manifest, staged: Path, examples: bool = False) -> None:
    """Put what is published, and a manifest of it, into an empty folder; excerpts of texts only with `examples`."""
    hidden = EXAMPLES in found.tables and not examples
    shared = {name: entry for name, entry in found.tables.items() if name != EXAMPLES or examples}
    paths = {str(each): staged.name for each in (folder, folder.resolve()) if each.is_absolute()}
    with manifest.replacing_set(staged, found.made_from, found.holds) as tables:
        _copy_set(folder, tables, shared)
        if (tables / "study.yaml").is_file():
            paths |= _without_local_paths(tables / "study.yaml")
    with manifest.replacing_drawn(staged, found.made_from, ()) as drawn:
        _copy_set(folder, drawn, found.drawn)
        if hidden and "report.html" in found.drawn:
            from qkscope.report import render

            without = replace(load_results(staged), ablation=load_results(folder).ablation)
            store.write_text(drawn / "report.html", render(without))
        for name in found.drawn:
            if name.endswith(_TEXTS):
                text = (drawn / name).read_text(encoding="utf-8")
                store.write_text(drawn / name, _replaced(text, paths))
    manifest.note_finished(staged)
    _read_all(staged)


def fetch_results(address: str, into: Path | str = "results") -> Path:
    """A folder with the published results at `hub:owner/name`: `into/.hub/OWNER--NAME@COMMIT`, for qkscope alone."""
    repo = repository(address)
    listing = hub.list_files(repo, kind="dataset", sizes=True)
    if not re.fullmatch(r"[0-9a-f]{40,64}", listing.commit):
        raise HubError(f"{address}: its commit is {listing.commit[:80]!r}, expected 40 hexadecimal digits")
    found = _published(address, listing)
    names = [*found.tables, *found.drawn] if found else [n for n in listing.files if KNOWN.fullmatch(n)]
    if "qk.csv" not in names:
        raise HubError(
            f"{address}: no qk.csv among its {len(listing.files)} files; expected a dataset written by `qkscope push`"
        )
    _check_amount(address, listing, names, found)
    source = hub.fetch(listing, [*names, *([manifest.NAME] if found else [])])
    if source.name != listing.commit:
        raise HubError(
            f"{address}: was pushed again while it was being downloaded; run the same command again"
        )
    if found:
        names.append(manifest.NAME)
        if wrong := next(manifest.all_problems(source, found), None):
            raise HubError(f"{address}: {wrong}; ask its owner to push it again")
    folder = Path(into) / CACHE / f"{repo.replace('/', '--')}@{listing.commit[:12]}"
    _put(source, names, folder, found)
    return folder


def local(address: Path | str) -> Path:
    """A results folder or table as it is, or a copy of the one on the hub."""
    return fetch_results(str(address)) if on_hub(address) else Path(address)


def repository(address: str) -> str:
    """`owner/name` of `hub:owner/name`."""
    repo, folder = split_address(address)
    if folder:
        raise HubError(f"{address!r}: expected hub:owner/name")
    return repo


def card(folder: Path, repo: str) -> str:
    """The dataset's README: what it is, its strongest sentences, its files."""
    picture = [f"![Position signal over training]({PICTURE})", ""] if (folder / PICTURE).is_file() else []
    return f"""{_card_head(folder, {"license": "apache-2.0", "tags": TAGS}, picture)}
Measured with qkscope: query and key vectors of every head, as used in attention scores, correlated with
token position. `report.html` has everything in one file; `measures.safetensors` and the tables made from it
(`heads.csv`, `qk.csv`) have the numbers. Open it with

```sh
qkscope report hub:{repo}
```

{_left_out(folder)}
"""


def space_card(folder: Path) -> str:
    """The README of a Space, whose metadata make the hub serve index.html."""
    title = " ".join(str(_summary(folder).get("title") or folder.name).split())
    meta = {"title": title, "emoji": "🔭", "sdk": "static", "app_file": "index.html", "tags": TAGS}
    return f"{_card_head(folder, meta)}\nThe report of a qkscope study in one file. {_left_out(folder)}\n"


def _left_out(folder: Path) -> str:
    if (folder / EXAMPLES).is_file():
        return "No weights are part of it, and of the texts only the short excerpts that the report shows."
    return "No weights and no texts are part of it."


def _card_head(folder: Path, meta: Mapping[str, Any], picture: Sequence[str] = ()) -> str:
    """Metadata, title and headlines of a README."""
    summary = _summary(folder)
    dumped = yaml.safe_dump(dict(meta), sort_keys=False, allow_unicode=True).strip()
    lines = ["---", dumped, "---", "", f"# {_line(summary.get('title') or folder.name)}", "", *picture]
    headlines = [finding.get("headline") for finding in summary.get("findings", [])]
    return "\n".join([*lines, *(f"- {_line(headline)}" for headline in headlines if headline), ""])


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    summary = store.read_json(path) if path.is_file() else {}
    return summary if isinstance(summary, dict) else {}


def _is_drawn(name: str) -> bool:
    """Whether a file is one that qkscope draws: summary, report, ablations, or one of the files of a figure."""
    from qkscope.figures.drawing import FILES

    first, *rest = name.split("/")
    return name in ("summary.json", "report.html", "ablation.csv") or (
        first == "figures" and len(rest) == 2 and rest[1] in FILES and not rest[0].startswith(".")
    )


def _read_all(folder: Path) -> None:
    """Read every number of a results folder, also those that are otherwise read when they are first used."""
    loaded = load_results(folder)
    for name in loaded.data.data_vars:
        loaded.data[name].copy().load()  # of the copy alone, so that memory holds one variable at a time
    _ = loaded.axes, loaded.examples


def _without_local_paths(path: Path) -> dict[str, str]:
    """Rewrite a study.yaml without the absolute paths of this machine; those that were in it, with their last parts."""
    paths: dict[str, str] = {}

    def collect(text: str, _: bool) -> str:
        if text.startswith(("/", "~")) or PureWindowsPath(text).is_absolute():
            paths[text] = re.split(r"[/\\]", text.rstrip("/\\"))[-1]
        return text

    def relative(text: str, in_provenance: bool) -> str:
        if in_provenance:
            return _PATH.sub(r"\1", paths.get(text) or _replaced(text, paths))
        return f"./{paths[text]}" if text in paths else text

    study = _mapped(yaml.safe_load(path.read_text(encoding="utf-8")), collect)
    text = yaml.safe_dump(_mapped(study, relative), sort_keys=False, allow_unicode=True, width=110)
    store.write_text(path, text)
    return paths


def _mapped(
    value: Any, change: Callable[[str, bool], str], key: str = "", in_provenance: bool = False
) -> Any:
    """The value with every text changed that may be a path; in the provenance, sentences contain paths too."""
    if isinstance(value, dict):
        return {k: _mapped(v, change, str(k), in_provenance or k == "provenance") for k, v in value.items()}
    if isinstance(value, list):
        return [_mapped(each, change, key, in_provenance) for each in value]
    return change(value, in_provenance) if isinstance(value, str) and key not in _WORDS else value


def _replaced(text: str, paths: Mapping[str, str]) -> str:
    """The text with paths of several parts replaced, longer ones first."""
    for path in sorted(paths, key=len, reverse=True):
        if len(re.findall(r"[/\\]", path)) > 1:
            last = paths[path].replace("\\", r"\\")
            text = re.sub(rf"(?<![\w./\\<-]){re.escape(path)}(?![\w-])", last, text)
    return text


def _pushed_before(there: hub.Listing) -> list[str]:
    """Files of a dataset that an earlier push put there, as its manifest says."""
    if manifest.NAME not in there.files:
        return []
    try:
        found = manifest.read_manifest(hub.fetch(there, [manifest.NAME]))
    except StoreError as error:
        say(f"warning: {there.place}: files from an earlier push were not deleted, because {error}")
        return []
    return sorted({*found.tables, *found.drawn} & set(there.files)) if found else []


def _published(address: str, listing: hub.Listing) -> Manifest | None:
    """The manifest of a dataset, with names that can be put into a folder; None if it has none."""
    if manifest.NAME not in listing.files:
        return None
    if listing.sizes.get(manifest.NAME, 0) > MANIFEST_BYTES:
        raise HubError(f"{address}: its {manifest.NAME} has more than {MANIFEST_BYTES:,} bytes")
    try:
        found = manifest.read_manifest(hub.fetch(listing, [manifest.NAME]))
    except StoreError as error:
        raise HubError(f"{address}: {error.found}; ask its owner to push it again") from error
    for name in (*found.tables, *found.drawn) if found else ():
        hidden = any(part.startswith(".") for part in name.split("/"))
        if hidden or not hub.is_safe(name) or name not in listing.files:
            raise HubError(
                f"{address}: its {manifest.NAME} lists {name!r}, which is missing from the dataset or not a "
                "valid file name; ask its owner to push it again"
            )
    return found


def _check_amount(address: str, listing: hub.Listing, names: Sequence[str], found: Manifest | None) -> None:
    """Refuse more files or bytes than any study has, and files of another size than the manifest says."""
    entries = {**found.tables, **found.drawn} if found else {}
    for name, entry in entries.items():
        if listing.sizes.get(name, entry.size) != entry.size:
            raise HubError(
                f"{address}: {name} has {listing.sizes[name]:,} bytes, but {manifest.NAME} says {entry.size:,}; ask "
                "its owner to push it again"
            )
    known = {**{name: entry.size for name, entry in entries.items()}, **listing.sizes}
    total = sum(known.get(name, 0) for name in names)
    if len(names) > MOST_FILES or total > MOST_BYTES:
        raise HubError(
            f"{address}: {len(names):,} files of {total:,} bytes, expected at most {MOST_FILES:,} of {MOST_BYTES:,}; "
            "nothing was downloaded"
        )


def _put(source: Path, names: Sequence[str], folder: Path, found: Manifest | None) -> None:
    """Copy what is missing or damaged into a folder of the cache.

    The folder belongs to one commit, so nothing of another set can be in it. What was drawn there since stays.
    """
    tables = found.tables if found else {}
    for name in names:
        wrong = name in tables and any(manifest.problems(folder, {name: tables[name]}))
        if wrong or not (folder / name).is_file():
            with store.replacing(folder / name) as temporary:
                _copy(source / name, temporary)


def _copy_set(source: Path, target: Path, files: Entries) -> None:
    """Copy files of a set; none of them may have changed since they were checked."""
    for name in files:
        _copy(source / name, target / name)
    if any(manifest.problems(target, files)):
        raise StoreError(
            f"{source}: was rewritten while it was being read", "push again once the run is done"
        )


def _copy(source: Path, target: Path) -> None:
    with store.clear_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _line(text: object) -> str:
    """One line of plain Markdown: what a study calls itself must not become markup."""
    return escape_markdown(" ".join(str(text).split()))
