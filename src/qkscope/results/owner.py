"""Which study, scan or analysis a results folder belongs to, so that no other overwrites finished results.

The manifest of a folder records what it holds (`Holding`): the kind of result, and for each measured checkpoint
digests of its weights and texts. Every command that writes compares this with what it is about to write. The same
study may grow (checkpoints, windows, heads, measures); anything that would drop or replace finished numbers is refused
unless `replace` says so. Folders of earlier versions are judged by their study.yaml.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import ConfigDict, Field, TypeAdapter

from qkscope import store
from qkscope.errors import QkscopeError, StoreError
from qkscope.results import manifest
from qkscope.results.lock import locked
from qkscope.results.provenance import read_provenance
from qkscope.study import Study, load_study, sources
from qkscope.words import some

if TYPE_CHECKING:
    import pandas as pd

# Files that a run, scan or analysis writes beside its units. Without a record in the folder they are not ours.
PRODUCTS = (
    *("study.yaml", "measures.safetensors", "axes.safetensors", "examples.safetensors", "qk.csv"),
    *("heads.csv", "heads.parquet", "transitions.csv", "causes.csv", "ablation.csv", "summary.json"),
    *("report.html", "scan.json", "whatif.csv", manifest.NAME),
)
DRAWN = ("summary.json", "report.html", "figures", "ablation.csv")
"""Files and folders that are made from the tables of a folder, or belong to them."""

_KINDS = {
    "run": "the study",
    "scan": "the scan of",
    "analysis": "the analysis of",
    "whatif": "the what-if of",
}


@dataclass(frozen=True)
class Part:
    """One measured checkpoint. An empty digest is not known, and not compared.

    weights   its commit on the hub, or a digest of its files
    texts     digest of the texts, their selection and the tokenizer, whatever the windows
    tokens    digest of the tokens, by which earlier versions knew the texts
    dtype     of the weights when they were measured
    window    tokens of its own window
    heads     which were measured, as `head_mask` writes them
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    weights: str = ""
    texts: str = ""
    tokens: str = ""
    dtype: str = ""
    window: int = 0
    heads: Annotated[str, Field(pattern=r"^([0-9a-f]+(\.[0-9a-f]+)*)?$")] = ""


@dataclass(frozen=True)
class Holding:
    """What a folder holds, or what is about to be written; `settings` are those that change finished numbers."""

    kind: Literal["run", "scan", "analysis", "whatif"]
    name: str
    checkpoints: Mapping[str, Part] = field(default_factory=dict)
    windows: Sequence[int] = ()
    measures: Sequence[str] = ()
    components: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    judged: bool = True
    """False where the folder does not say enough to compare."""

    def __str__(self) -> str:
        name = self.name if self.kind != "run" else repr(self.name)
        return f"{_KINDS[self.kind]} {name}"

    def record(self) -> dict[str, Any]:
        """As the manifest has it."""
        return {name: value for name, value in asdict(self).items() if name != "judged"}


def head_mask(pairs: Iterable[tuple[int, int]]) -> str:
    """(layer, head) pairs as a hexadecimal bit mask for each layer from 0 on: `f.f.0.3`."""
    masks: dict[int, int] = {}
    for layer, head in pairs:
        masks[layer] = masks.get(layer, 0) | 1 << head
    return ".".join(f"{masks.get(layer, 0):x}" for layer in range(max(masks, default=-1) + 1))


def _includes(now: str, before: str) -> bool:
    """Whether one mask has all heads of another."""
    wide, narrow = ([int(mask, 16) for mask in text.split(".") if mask] for text in (now, before))
    return all(not old & ~new for old, new in zip_longest(narrow, wide, fillvalue=0))


def held(folder: Path) -> Holding | None:
    """What a folder holds; None if nothing of ours is there."""
    found = manifest.readable_manifest(folder)
    if found is not None and found.holds is not None:
        try:
            return TypeAdapter(Holding).validate_json(json.dumps(found.holds), strict=True)
        except ValueError as error:
            raise StoreError(
                f"{folder / manifest.NAME}: damaged ({store.in_short(error)}); move it away and try again"
            ) from error
    study = _finished_study(folder)
    if study is not None:
        return _of_study(folder, study)
    try:
        if (folder / "scan.json").is_file():
            return Holding("scan", str(store.read_json(folder / "scan.json")["model"]), judged=False)
        # Earlier versions kept units in `moments`.
        plans = [folder / units / "plan.json" for units in ("units", "moments")]
        for path in (*plans, *sorted(folder.glob("shards/plan-*.json"))):
            if path.is_file():
                return Holding("run", str(store.read_json(path)["study"]))
    except (KeyError, TypeError, StoreError):
        return None
    return None


def _finished_study(folder: Path) -> Study | None:
    """The study.yaml that a run wrote; without provenance it is a user's study file."""
    path = folder / "study.yaml"
    try:
        study = load_study(path) if path.is_file() else None
    except (QkscopeError, OSError, yaml.YAMLError):
        return None
    return study if study is not None and study.provenance else None


def _of_study(folder: Path, study: Study) -> Holding:
    """What a run of an earlier version left, as far as its files tell."""
    found = read_provenance(study.provenance, folder / "study.yaml")
    try:
        table = store.read_csv(folder / "heads.csv", usecols=["model", "layer", "head"], dtype={"model": str})
        heads = {
            str(name): head_mask(rows[["layer", "head"]].to_numpy().tolist())
            for name, rows in table.groupby("model")
        }
    except (OSError, TypeError, ValueError):  # what is not known is not compared
        heads = {}
    dtypes = {checkpoint.name: checkpoint.source.dtype for checkpoint in sources(study)}
    parts = {}
    for name, each in found.checkpoints.items():
        tokens, dtype = each.corpus or found.corpus.digest, dtypes.get(name, "")
        parts[name] = Part(each.commit, "", tokens, dtype, each.window or 0, heads.get(name, ""))
    return replace(study_holding(study), checkpoints=parts)


def study_holding(study: Study) -> Holding:
    """What a study asks for, before its checkpoints and texts are read."""
    settings: dict[str, Any] = {"groups": study.groups, "batch_tokens": study.batch_tokens}
    if "plasticity" in study.measures:
        settings["plasticity"] = [study.plasticity.keys, study.plasticity.documents, study.seed]
    return Holding("run", study.name, {}, list(study.windows), study.optional_measures, 0, settings)


def refuse_other(
    folder: Path,
    now: Holding,
    *,
    replace: bool = False,
    named: Collection[str] = (),
    unread: Mapping[str, str] | None = None,
) -> None:
    """Raise if writing `now` to `folder` would overwrite finished results, or files that are not ours.

    named    checkpoints that are not read here, but are part of `now`
    unread   those that cannot be read now, and why: if they were measured before, their numbers would be lost
    """
    before = held(folder)
    if before is None:
        manifest.refuse_foreign(folder, PRODUCTS)
    if before is None or replace:
        return
    reasons = list(_differences(before, now, named, unread or {}))
    if reasons:
        there = "\n".join(f"  {reason}" for reason in reasons)
        other = ", give the study another `name:`" if now.kind == "run" else ""
        raise StoreError(
            f"{folder} contains {before}; writing {now} there would lose finished results:\n{there}\n"
            f"Choose another folder with --out{other}, or pass --replace to overwrite what is there"
        )


def _differences(
    before: Holding, now: Holding, named: Collection[str], unread: Mapping[str, str]
) -> Iterator[str]:
    """How `now` differs from what is there, or lacks a part of it."""
    if before.kind != now.kind or (before.kind == "run" and before.name != now.name):
        yield f"the new result is a different one: {now}"
        return
    if not (before.judged and now.judged):
        which = "the existing results" if now.judged else "the new results"
        yield f"it is not recorded which weights and texts were measured for {which}"
        return
    if not before.checkpoints:
        return
    gone = [name for name in before.checkpoints if name not in {*now.checkpoints, *named}]
    if left_out := [name for name in gone if name not in unread]:
        yield f"measured checkpoints left out: {some(left_out, 5)}"
    for name in unread:
        if name in gone:
            yield f"{name} was measured before but cannot be measured now: {unread[name]}"
    yield from _changed_parts(before, now)
    for what in ("windows", "measures"):
        wanted = getattr(now, what)
        if missing := [str(each) for each in getattr(before, what) if each not in wanted]:
            yield f"{what} left out: {', '.join(missing)}"
    if now.components < before.components:
        yield f"{now.components} components instead of {before.components}"
    for setting, value in before.settings.items():
        wanted = now.settings.get(setting)
        if wanted != value and not (setting == "plasticity" and setting not in now.measures):
            yield f"{setting} was {value}, is now {wanted}"


def _changed_parts(before: Holding, now: Holding) -> Iterator[str]:
    there = before.checkpoints
    both = [(name, there[name], part) for name, part in now.checkpoints.items() if name in there]
    if changed := [name for name, a, b in both if a.weights and b.weights and a.weights != b.weights]:
        yield f"the checkpoint's files changed: {some(changed, 5)}"
    if texts := [name for name, was, part in both if not _same_texts(was, part)]:
        yield f"texts, their selection or the tokenizer changed: {some(texts, 5)}"
    if fewer := [name for name, was, part in both if part.heads and not _includes(part.heads, was.heads)]:
        yield f"measured heads left out in {some(fewer, 5)}"
    for name, was, part in both:
        if was.dtype and part.dtype and was.dtype != part.dtype:
            yield f"{name}: dtype was {was.dtype}, is now {part.dtype}"
        if part.window < was.window:
            yield f"{name}: a window of {part.window} tokens instead of {was.window}"


def _same_texts(before: Part, now: Part) -> bool:
    if before.texts:
        return not now.texts or before.texts == now.texts
    return not (before.tokens and now.tokens) or before.tokens == now.tokens


@contextmanager
def writing(folder: Path, holds: Holding, numbers: pd.DataFrame, replace: bool) -> Iterator[Path]:
    """Yield an empty folder for the tables of one command; put them in place if the block succeeds.

    `numbers` identify this set of tables, with what it holds.
    """
    made_from = store.short_digest([holds.record(), numbers.to_csv()])
    with store.clear_errors(folder), locked(folder, holds.name) as lock:
        refuse_other(folder, holds, replace=replace)
        with manifest.replacing_set(folder, made_from, holds.record(), lock.require) as staged:
            yield staged
        if replace:  # figures and page show what was there before
            with manifest.replacing_drawn(folder, made_from, DRAWN, lock.require):
                pass
        manifest.note_finished(folder, require=lock.require)


@contextmanager
def redrawing(folder: Path, made_from: str | None, parts: Collection[str]) -> Iterator[Path]:
    """Yield an empty folder to draw `parts` of `DRAWN` in; put them in place and record them if the block succeeds."""
    with (
        store.clear_errors(folder),
        locked(folder, folder.name) as lock,
        manifest.replacing_drawn(folder, made_from, parts, lock.require) as staged,
    ):
        yield staged


def refuse_drawing_into_other(target: Path, folder: Path) -> None:
    """Raise if `target` is a figure or page of another results folder than the one that is drawn."""
    path = target.resolve()
    owners = (p for p in path.parents if manifest.readable_manifest(p) or _finished_study(p))
    owner = next(owners, None)
    if owner and owner != folder.resolve() and path.relative_to(owner).parts[0] in DRAWN:
        raise StoreError(
            f"{target} belongs to the results in {owner}, not to those in {folder}; choose another path with --out"
        )
