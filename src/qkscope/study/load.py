"""Every mistake in a study file at once, each with its line.

The file is parsed with its lines, shorthands are written out, pydantic checks the shape of each part, and `together`
checks parts against each other. Parts that pydantic refuses are set aside so that the rest is still checked in the same
run.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from qkscope.checkpoints import discover
from qkscope.checkpoints.files import left_out
from qkscope.errors import QkscopeError, StudyError
from qkscope.study.schema import (
    AlarmsSpec,
    Checkpoint,
    ControlsSpec,
    CorpusSpec,
    Entry,
    Family,
    HeadsSpec,
    Phase,
    PlasticitySpec,
    Study,
    ThresholdsSpec,
    folder_name,
    sources,
)
from qkscope.study.yaml_lines import Loc, LocatedYaml, Mistake, did_you_mean, found_in_short

# The parts of a study by the key that contains them.
PARTS: dict[str, type[BaseModel]] = {
    "": Study,
    "corpus": CorpusSpec,
    "heads": HeadsSpec,
    "thresholds": ThresholdsSpec,
    "controls": ControlsSpec,
    "plasticity": PlasticitySpec,
    "alarms": AlarmsSpec,
    "phases": Phase,
    "families": Family,
    "checkpoints": Entry,
    "models": Entry,
}
_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
}


def load_study(path: Path | str, measures: Collection[str] | None = None) -> Study:
    """Read the study file at `path`. Raises a StudyError that lists every mistake.

    `measures` are the names that its `measures:` may have (default: any, as of results that are already there).
    """
    study, mistakes = read_study(Path(path), measures)
    if study is None or mistakes:
        raise StudyError("\n".join(mistakes))
    return study


def validate(path: Path | str, measures: Collection[str] | None = None) -> list[str]:
    """Every mistake in the study at `path`, as `file:line: field: what is wrong`; also files that are not there."""
    study, mistakes = read_study(Path(path), measures)
    return mistakes if study is None else mistakes + missing_files(Path(path), study)


def read_study(path: Path, measures: Collection[str] | None = None) -> tuple[Study | None, list[str]]:
    """The study at `path` (None if it cannot be understood) and every mistake in it."""
    try:
        located = LocatedYaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        return None, [f"{path}: cannot be read ({error.strerror}); expected a study file"]
    except UnicodeDecodeError as error:
        return None, [f"{path}: is not UTF-8 text (byte {error.start}); expected a study file"]
    if located.data is None:
        empty = Mistake((), "the file is empty; a study needs at least name and checkpoints")
        return None, rendered(path, located.mistakes or [empty], located)
    if not isinstance(located.data, dict):
        what = f"expected keys and values such as `name: my-run`, found {found_in_short(located.data)}"
        return None, rendered(path, [*located.mistakes, Mistake((), what)], located)
    data, mistakes = expand(located.data, path.resolve().parent)
    study, shape = _parsed(data)
    refused = [m.loc for m in [*mistakes, *shape] if not m.unknown_key]
    between = list(together(study, refused)) if study else []
    for i, name in enumerate(study.measures if study else ()):
        if measures is not None and name not in measures:
            what = f"expected one of {', '.join(measures)}, found {found_in_short(name)}"
            between.append(Mistake(("measures", i), what + did_you_mean(name, measures)))
    return study, rendered(path, [*located.mistakes, *mistakes, *shape, *between], located)


def missing_files(path: Path, study: Study) -> list[str]:
    """Texts and checkpoint folders that a study names by path and that are not there.

    A folder of checkpoints that is not there is a mistake of `read_study` and not repeated.
    """
    mistakes = [
        Mistake(("corpus", "source"), f"no file or folder at {source}")
        for source in study.corpus.source
        if Path(source).is_absolute() and not _exists(source)
    ]
    base = path.resolve().parent
    folders = {absolute(folder, base) for folder in _folders_of_checkpoints(path) if folder is not None}
    for checkpoint in sources(study):
        model = checkpoint.source.model
        if Path(model).is_absolute() and not _exists(model) and model not in folders:
            mistakes.append(Mistake(checkpoint.loc, f"no folder at {model}"))
    return rendered(path, mistakes)


def left_out_of(path: Path | str) -> dict[str, str]:
    """Folders that `checkpoints: FOLDER` of the study at `path`, or of its phases, does not measure, and why."""
    base = Path(path).resolve().parent
    folder, *phases = _folders_of_checkpoints(Path(path))
    if folder is not None:
        return left_out(absolute(folder, base))
    found = {phase: left_out(absolute(phase, base)) for phase in phases if phase is not None}
    return {f"{phase}/{name}": why for phase, each in found.items() for name, why in each.items()}


def _folders_of_checkpoints(path: Path) -> list[str | None]:
    """`checkpoints: FOLDER` of the study at `path` (None if that is no folder), then of its phases."""
    data = LocatedYaml(path.read_text(encoding="utf-8")).data
    if not isinstance(data, dict):
        return [None]
    folder = data.get("checkpoints")
    phases = [phase["checkpoints"] for _, phase in _phase_folders(data)]
    return [folder if isinstance(folder, str) else None, *phases]


def expand(data: dict[Any, Any], base: Path) -> tuple[dict[Any, Any], list[Mistake]]:
    """Write shorthands out and make paths absolute; what has the wrong shape is left for pydantic to refuse."""
    mistakes: list[Mistake] = []
    data = copy.deepcopy(data)
    for key in ("model", "tokenizer"):
        if isinstance(data.get(key), str):
            data[key] = _model_path(data[key], base)
    if isinstance(data.get("checkpoints"), str):
        data["checkpoints"], mistakes = _discovered(data["checkpoints"], base, ("checkpoints",))
    for i, phase in _phase_folders(data):
        folder = phase["checkpoints"]
        found, wrong = _discovered(folder, base, ("phases", i, "checkpoints"))
        label = phase["label"] = phase.get("label") or Path(absolute(folder, base)).name
        # Two folders may both hold a checkpoint-500: the phase distinguishes them in every table.
        phase["checkpoints"] = [each | {"name": f"{label}/{Path(each['folder']).name}"} for each in found]
        mistakes += wrong
    for entries in _entry_lists(data):
        entries[:] = [_entry(item, base, has_model=bool(data.get("model"))) for item in entries]
    if isinstance(data.get("corpus"), str | list):
        data["corpus"] = {"source": data["corpus"]}
    corpus = data.get("corpus")
    if isinstance(corpus, dict) and "cut" in corpus:  # what `chunk` was called before it took a number
        corpus.setdefault("chunk", corpus.pop("cut"))
    if isinstance(corpus, dict) and isinstance(corpus.get("source"), str | list):
        listed = [corpus["source"]] if isinstance(corpus["source"], str) else corpus["source"]
        corpus["source"] = [absolute(each, base) if _is_text_path(each) else each for each in listed]
    if not data.get("windows") and isinstance(data.get("phases"), list):
        named = {p["window"] for p in data["phases"] if isinstance(p, dict) and type(p.get("window")) is int}
        data["windows"] = sorted(named)
    return data, mistakes


def _phase_folders(data: dict[Any, Any]) -> list[tuple[int, dict[Any, Any]]]:
    """Phases whose checkpoints are a folder's, with their numbers."""
    phases = data.get("phases")
    return [
        (i, phase)
        for i, phase in enumerate(phases if isinstance(phases, list) else [])
        if isinstance(phase, dict) and isinstance(phase.get("checkpoints"), str)
    ]


def _discovered(folder: str, base: Path, loc: Loc) -> tuple[list[dict[str, str]], list[Mistake]]:
    """The checkpoint folders below `folder`, in training order."""
    path = absolute(folder, base)
    try:
        return [{"folder": str(found)} for found in discover(Path(path))], []
    except QkscopeError as error:
        return [{"folder": path}], [Mistake(loc, str(error))]
    except OSError as error:
        return [{"folder": path}], [Mistake(loc, f"{path}: cannot be read ({error.strerror})")]


def _entry_lists(data: dict[Any, Any]) -> Iterator[list[Any]]:
    if isinstance(data.get("checkpoints"), list):
        yield data["checkpoints"]
    for part, key in (("phases", "checkpoints"), ("families", "models")):
        listed = data.get(part)
        for item in listed if isinstance(listed, list) else []:
            if isinstance(item, dict) and isinstance(item.get(key), list):
                yield item[key]


def _entry(item: object, base: Path, has_model: bool) -> object:
    """A bare name is a revision where the study names a model, otherwise a folder or `model[@revision]`."""
    if isinstance(item, str):
        if has_model:
            return {"revision": item}
        path = _model_path(item, base)
        if not Path(path).is_absolute() and "@" in path:
            model, _, revision = path.partition("@")
            return {"model": model, "revision": revision}
        return {"model": path}
    if isinstance(item, dict):
        item = dict(item)
        for key, resolved in (("folder", absolute), ("model", _model_path), ("tokenizer", _model_path)):
            if isinstance(item.get(key), str):
                item[key] = resolved(item[key], base)
    return item


def _model_path(text: str, base: Path) -> str:
    """A model as a path if it is one (it exists, or it is written like one), otherwise as a hub's name."""
    local = text.startswith((".", "/", "~")) or _exists(base / text)
    return absolute(text, base) if local and text else text


def _is_text_path(source: object) -> bool:
    return isinstance(source, str) and source != "stdlib" and not source.startswith("hub:")


def absolute(text: str, base: Path) -> str:
    """A path of the study as an absolute one; an impossible one stays unresolved and is not found later."""
    try:
        return str((base / Path(text).expanduser()).resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links, no such user, a name too long
        return str(base / text)


def _exists(path: Path | str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def _parsed(data: dict[Any, Any]) -> tuple[Study | None, list[Mistake]]:
    """The study, with what pydantic refuses set aside and reported."""
    mistakes: list[Mistake] = []
    for _ in range(4):  # setting a part aside may uncover another, never more than the nesting's depth
        try:
            return Study.model_validate(data), mistakes
        except ValidationError as error:
            for detail in error.errors():
                loc = tuple(part for part in detail["loc"] if part not in ("str", "dict[str,any]"))
                what = _explained(detail, loc)
                if not any(m.loc == loc for m in mistakes):
                    mistakes.append(Mistake(loc, what, unknown_key=detail["type"] == "extra_forbidden"))
                _set_aside(data, loc, detail["type"])
    return None, mistakes


def _set_aside(data: Any, loc: Loc, kind: str) -> None:
    """Remove the value at `loc`, so that the rest can be read; a refused entry of a list becomes a neutral one."""
    parents = [data]
    try:
        for part in loc[:-1]:
            parents.append(parents[-1][part])
    except (KeyError, IndexError, TypeError):
        return
    last = loc[-1] if loc else None
    if kind == "missing":
        fill: Any = {"checkpoints": [{"revision": "-"}], "models": [{"model": "-"}]}.get(str(last), "unnamed")
        parents[-1][last] = fill
    elif isinstance(parents[-1], dict):
        parents[-1].pop(last, None)
    elif isinstance(parents[-1], list) and isinstance(last, int):
        if loc[-2] in ("checkpoints", "models"):
            parents[-1][last] = {"revision": f"-{last}"}
        else:
            parents[-2].pop(loc[-2], None)


def _explained(detail: Any, loc: Loc) -> str:
    """A pydantic error as a message: what was found, what was expected, a suggestion."""
    kind, value = detail["type"], detail.get("input")
    if kind == "extra_forbidden":
        part = next((part for part in reversed(loc[:-1]) if isinstance(part, str)), "")
        known = list(PARTS.get(part, Study).model_fields)
        return "unknown key" + did_you_mean(loc[-1], known, otherwise=known)
    if kind == "missing":
        return "missing"
    if kind == "too_short":
        return "expected at least one, found none"
    if loc == ("heads",):
        return f"expected `all` or {{sample: 300, seed: 0}}, found {found_in_short(value)}"
    if kind == "literal_error":
        options = str(detail["ctx"]["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        what = f"expected one of {', '.join(options)}, found {found_in_short(value)}"
        return what + did_you_mean(value, options)
    if kind in _EXPECTED:
        hint = "; put it in quotes" if kind == "string_type" and isinstance(value, int | float) else ""
        return f"expected {_EXPECTED[kind]}, found {found_in_short(value)}{hint}"
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    message = str(detail["msg"])
    return message[0].lower() + message[1:] + f", found {found_in_short(value)}"


def rendered(path: Path, mistakes: list[Mistake], located: LocatedYaml | None = None) -> list[str]:
    """Mistakes in the study at `path` as `file:line: field: what`, by line."""
    located = located or LocatedYaml(path.read_text(encoding="utf-8"))
    rows = []
    for mistake in mistakes:
        line = mistake.line or located.line(mistake.loc)
        field = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in mistake.loc).lstrip(".")
        rows.append((line, f"{path}:{line}: " + (f"{field}: " if field else "") + mistake.what))
    return list(dict.fromkeys(text for _, text in sorted(rows, key=lambda row: row[0])))


_WHICH_MODEL = "no model given: set model or folder here, or model for the whole study"


def together(study: Study, refused: list[Loc]) -> Iterator[Mistake]:
    """Mistakes between parts, except about parts that were already refused."""
    found = sources(study)
    checks = [*_what(study, found), *_duplicates(found), *_steps(study, found)]
    names = [checkpoint.name for checkpoint in found]
    for i, name in enumerate(study.portraits):
        if name not in names:
            what = f"no checkpoint is named {name!r}" + did_you_mean(name, names)
            checks.append(Mistake(("portraits", i), what))
    if (limits := study.thresholds).low > limits.high:
        checks.append(Mistake(("thresholds", "low"), f"low ({limits.low}) is above high ({limits.high})"))
    if ("model",) in refused:  # then every bare name was read as something else than a revision
        checks = [mistake for mistake in checks if mistake.what != _WHICH_MODEL]
    if not any(loc[:1] == ("windows",) for loc in refused):
        checks += [*_windows(study, found), *_shrinking(study)]
    for mistake in checks:
        overlaps = (loc[: len(mistake.loc)] == mistake.loc[: len(loc)] for loc in refused)
        if not mistake.loc or not any(overlaps):
            yield mistake


def _what(study: Study, found: list[Checkpoint]) -> Iterator[Mistake]:
    """Names that cannot be folders, and studies without checkpoints or without models."""
    if not study.name.strip() or folder_name(study.name) != study.name:
        what = f"{study.name!r} is used as a folder name: use only letters, digits, - _ and ."
        yield Mistake(("name",), what)
    ways = [way for way in ("phases", "families", "checkpoints") if getattr(study, way)]
    if not ways:
        yield Mistake((), "nothing to measure: give one of phases, families, checkpoints")
    if len(ways) > 1:
        what = f"found both {' and '.join(ways)}; a study has only one of them: remove the other"
        yield Mistake((ways[1],), what)
    for checkpoint in found:
        name = f"the name {found_in_short(checkpoint.name)}"
        if not checkpoint.source.model:
            yield Mistake(checkpoint.loc, _WHICH_MODEL)
        elif not checkpoint.name.strip() or len(checkpoint.folder.encode()) > 200:
            yield Mistake(checkpoint.loc, f"{name} cannot be used as a folder name: give a shorter name")
        elif re.search("~(rotation|window)-of-", checkpoint.name):
            yield Mistake(checkpoint.loc, f"{name} is reserved for counterfactual checkpoints: rename it")


def _duplicates(found: list[Checkpoint]) -> Iterator[Mistake]:
    """Two checkpoints that share a name would share a row; two that share a folder would share files."""
    names: dict[str, Checkpoint] = {}
    for checkpoint in found:
        # File systems that ignore case would give both the same folder.
        first = names.setdefault(checkpoint.folder.casefold(), checkpoint)
        if first is checkpoint:
            continue
        if first.name == checkpoint.name:
            what = f"the checkpoint {checkpoint.name} is listed twice; remove one or give it another name"
        else:
            what = f"{checkpoint.name} and {first.name} would share one folder: give one of them another name"
        yield Mistake(checkpoint.loc, what)


def _steps(study: Study, found: list[Checkpoint]) -> Iterator[Mistake]:
    """Within a phase training only goes on: steps ascend. Between phases they may restart."""
    if study.kind != "training":
        return
    for before, after in pairwise(found):
        same_phase = (before.loc[:-1], before.phase) == (after.loc[:-1], after.phase)
        if not same_phase or before.name == after.name or before.step is None or after.step is None:
            continue
        if after.step <= before.step:
            what = f"step {after.step} comes after step {before.step}: list checkpoints in training order"
            yield Mistake(after.loc, what)


def _windows(study: Study, found: list[Checkpoint]) -> Iterator[Mistake]:
    """Windows ascend, and every checkpoint's own window is one of them: rings are cut at their edges."""
    if not study.windows:
        yield Mistake(("windows",), "missing: give the context windows to measure, such as [1024]")
        return
    if study.windows[0] < 2:
        yield Mistake(("windows", 0), "a window of 1 token has a single position: the smallest window is 2")
    for i, (smaller, larger) in enumerate(pairwise(study.windows), start=1):
        if larger <= smaller:
            what = f"{larger} comes after {smaller}: list windows in ascending order"
            yield Mistake(("windows", i), what)
    reported: set[Loc] = set()
    for checkpoint in found:
        loc = checkpoint.loc[:2] if len(checkpoint.loc) > 2 else checkpoint.loc
        if checkpoint.window not in study.windows and loc not in reported:
            reported.add(loc)
            what = f"{checkpoint.window} is not one of windows {study.windows}: add it there"
            yield Mistake((*loc, "window"), what)


def _shrinking(study: Study) -> Iterator[Mistake]:
    """Phases come in training order, in which the context window never shrinks."""
    labels: set[str] = set()
    largest = 0
    for i, phase in enumerate(study.phases or []):
        if phase.label and phase.label in labels:
            yield Mistake(("phases", i, "label"), f"two phases are labelled {phase.label!r}")
        labels.add(phase.label)
        window = phase.window or largest
        if window < largest:
            what = f"phases out of order: the window decreases from {largest} to {window}"
            yield Mistake(("phases", i, "window"), what)
        largest = max(largest, window)
