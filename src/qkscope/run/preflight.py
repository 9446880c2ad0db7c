"""All that can be known of a study before a model is loaded: what will fail, what to beware of, what it costs.

On this machine configurations, names of weights files, tokenizers and texts are looked at; on the hub names of files
and configurations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from qkscope.capture.architecture import read_architecture
from qkscope.capture.probe_rotation import check_windows
from qkscope.errors import QkscopeError, UnreachableError
from qkscope.measures.registry import optional_names
from qkscope.run.controls import controls_and_gaps
from qkscope.run.cost import Looked, cost
from qkscope.run.doctor import inspect_study, other_tokenizers, other_vocabulary
from qkscope.run.hub_look import look_at_hub
from qkscope.run.plan import corpus_warnings, heads_of
from qkscope.study import Checkpoint, Study, left_out_of, sources
from qkscope.study.load import missing_files, read_study, rendered
from qkscope.study.yaml_lines import Loc, Mistake

if TYPE_CHECKING:
    from qkscope.checkpoints.doctor import Finding
    from qkscope.corpus import Corpus


@dataclass(frozen=True)
class Preflight:
    """Mistakes as `file:line: field: what`, warnings, and the cost in words (empty where a mistake is in the way).

    `findings` are checkpoints that are probably not what they seem.
    """

    mistakes: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    cost: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass
class _Found:
    mistakes: list[Mistake] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    looked: dict[str, Looked] = field(default_factory=dict)
    corpus: Corpus | None = None


def preflight(path: Path | str) -> Preflight:
    """Check the study at `path` as far as that needs no model."""
    path = Path(path)
    study, wrong = read_study(path, optional_names())
    if study is None:
        return Preflight(tuple(wrong))
    found = _Found(warnings=[f"left out: {name}: {why}" for name, why in _left_out(path, wrong).items()])
    if find_spec("transformers") is None:
        found.warnings.append("models were not checked: that needs pip install 'qkscope[capture]'")
    elif not wrong:
        whole = sources(study)
        here, there = [each for each in whole if Path(each.source.model).exists()], look_at_hub(study, whole)
        found.mistakes += there.mistakes
        found.warnings += there.warnings
        course = [each for each in whole if each in here or each in there.course]
        _look_at_checkpoints(study, course, found)
        found.warnings += controls_and_gaps(study, course if len(course) == len(whole) else here)[1]
        _look_at_texts(study, here, found)
        readable = [each for each in whole if each.name in found.looked or each in there.present]
        found.findings += inspect_study(
            study, readable, [each for each in readable if each.name in found.looked]
        )
    mistakes = (*wrong, *missing_files(path, study), *rendered(path, _each_once(found.mistakes)))
    price = "" if mistakes else cost(study, found.looked, found.corpus)
    return Preflight(mistakes, tuple(found.warnings), price, tuple(found.findings))


def _left_out(path: Path, wrong: list[str]) -> dict[str, str]:
    return {} if wrong else left_out_of(path)


def _look_at_checkpoints(study: Study, course: Sequence[Checkpoint], found: _Found) -> None:
    from qkscope.checkpoints import load_config
    from qkscope.checkpoints.files import require_files

    for each in course:
        try:
            require_files(each.source, "model")
            config = load_config(each.source)
            architecture = read_architecture(config)
            heads = heads_of(study, each, architecture)
            check_windows(config, each.rings(study.windows))
        except UnreachableError as error:
            found.warnings.append(f"not checked: {each.name} ({error})")
            continue
        except QkscopeError as error:
            found.mistakes.append(Mistake(each.loc, str(error)))
            continue
        found.looked[each.name] = Looked(each, config, architecture, heads)
        warning = architecture.window_warning(each.window)
        if warning and warning not in found.warnings:
            found.warnings.append(warning)


def _look_at_texts(study: Study, course: Iterable[Checkpoint], found: _Found) -> None:
    """The texts in the tokens of every tokenizer on this machine."""
    from qkscope.checkpoints import load_tokenizer
    from qkscope.corpus import load_corpus, token_file

    tokens = token_file(study.corpus)
    places: dict[str, Checkpoint] = {}
    for each in course:
        place = str(tokens) if tokens else each.source.tokenizer or each.source.model
        # A name with an owner is a hub's.
        if Path(place).exists() or "/" not in place:
            places.setdefault(place, each)
    of_hub = any(source.startswith("hub:") for source in study.corpus.source)
    vocabularies: dict[str, Mapping[str, int]] = {}
    for each in places.values():
        loc: Loc = ("tokenizer",) if study.tokenizer else each.loc
        try:
            tokenizer = None if tokens else load_tokenizer(each.source)
            if tokenizer is not None:
                vocabularies[each.name] = tokenizer.get_vocab()
                if each.name in found.looked:
                    found.findings += other_vocabulary(each.name, tokenizer, found.looked[each.name].config)
            if of_hub or found.corpus is not None or not _there(study):
                continue
            loc = ("corpus",)
            found.corpus = load_corpus(study.corpus, tokenizer, max(study.windows))
        except QkscopeError as error:
            found.mistakes.append(Mistake(loc, str(error)))
            continue
        found.warnings += corpus_warnings(study, found.corpus)
        found.mistakes += _unfilled(study, found.corpus)
    if study.kind == "training":
        found.findings += other_tokenizers(vocabularies)


def _there(study: Study) -> bool:
    """Texts that are not there have been told of."""
    return all(source == "stdlib" or Path(source).exists() for source in study.corpus.source)


def _unfilled(study: Study, corpus: Corpus) -> Iterable[Mistake]:
    longest = max((len(document.tokens) for document in corpus.documents), default=0)
    for i, window in enumerate(study.windows):
        if corpus.filled(window) == 0:
            yield Mistake(
                ("windows", i),
                f"no document fills the window of {window:,} tokens: the longest of {len(corpus.documents):,} has "
                f"{longest:,}; give longer texts or remove this window",
            )


def _each_once(mistakes: Iterable[Mistake]) -> list[Mistake]:
    """What is wrong with every checkpoint alike is said of the first."""
    first: dict[str, Mistake] = {}
    for mistake in mistakes:
        first.setdefault(mistake.what, mistake)
    return list(first.values())
