"""Checks of a study before a model is loaded: mistakes, warnings, suspicious checkpoints and its cost.

On this machine configurations, names of weights files, tokenizers and texts are checked; on the hub names of files and
configurations. A hub that cannot be reached is reported once, at once, and is no mistake of the study.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from qkscope.capture.architecture import Architecture
from qkscope.capture.memory import moments_bytes, weights_bytes
from qkscope.checkpoints import find_tokenizer, hub, load_tokenizer
from qkscope.checkpoints.doctor import Finding
from qkscope.checkpoints.files import require_files
from qkscope.checkpoints.hub import on_hub
from qkscope.corpus import Corpus, load_corpus, token_file
from qkscope.corpus.texts import files_on_hub
from qkscope.errors import QkscopeError, UnreachableError
from qkscope.measures.registry import optional_names
from qkscope.run.inspection import different_tokens, inspect_study, other_vocabulary
from qkscope.run.plan import (
    ConfiguredCheckpoint,
    controls,
    corpus_warnings,
    read_configuration,
    unfilled_windows,
)
from qkscope.study import Checkpoint, Study, left_out_of, sources
from qkscope.study.load import missing_files, read_study, rendered
from qkscope.study.yaml_lines import Loc, Mistake
from qkscope.words import count, duration, listing


@dataclass(frozen=True)
class Preflight:
    """Mistakes as `file:line: field: what`, warnings, and the cost in words (empty where a mistake is in the way).

    `findings` are checkpoints that are probably mislabelled or damaged.
    """

    mistakes: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    cost: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass
class _Checks:
    mistakes: list[Mistake] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    configured: dict[str, ConfiguredCheckpoint] = field(default_factory=dict)
    corpus: Corpus | None = None

    def check(self, loc: Loc, look: Callable[[], object]) -> bool:
        """Whether `look` succeeds; its error becomes a mistake at this place of the study."""
        try:
            look()
        except UnreachableError:
            raise
        except QkscopeError as error:
            self.mistakes.append(Mistake(loc, str(error)))
            return False
        return True


def preflight(path: Path | str) -> Preflight:
    """Check the study at `path` as far as that needs no model."""
    path = Path(path)
    study, wrong = read_study(path, optional_names())
    if study is None:
        return Preflight(tuple(wrong))
    left_out = {} if wrong else left_out_of(path)
    found = _Checks(warnings=[f"left out: {name}: {why}" for name, why in left_out.items()])
    if find_spec("transformers") is None:
        found.warnings.append("models were not checked: that needs pip install 'qkscope[capture]'")
    elif not wrong:
        whole = sources(study)
        here = [each for each in whole if Path(each.source.model).exists()]
        there = _check_hub(study, whole, found)
        some = there if len(there) <= MOST_LOOKED else _ends(there)
        checkpoints = [each for each in whole if each in here or each in some]
        _check_checkpoints(study, checkpoints, found)
        found.warnings += controls(study, checkpoints if len(checkpoints) == len(whole) else here)[1]
        _check_texts(study, here, found)
        readable = [each for each in whole if each.name in found.configured or each in there]
        configured = [each for each in readable if each.name in found.configured]
        found.findings += inspect_study(study, readable, configured)
    # A mistake that several checkpoints share is reported for the first of them only.
    first = {mistake.what: mistake for mistake in reversed(found.mistakes)}
    mistakes = (*wrong, *missing_files(path, study), *rendered(path, [*first.values()][::-1]))
    price = "" if mistakes else cost(study, found.configured, found.corpus)
    return Preflight(mistakes, tuple(found.warnings), price, tuple(found.findings))


def _check_checkpoints(study: Study, checkpoints: Sequence[Checkpoint], found: _Checks) -> None:
    def look(checkpoint: Checkpoint) -> None:
        require_files(checkpoint.source, "model")
        own = found.configured[checkpoint.name] = read_configuration(study, checkpoint)
        warning = own.architecture.window_warning(checkpoint.window)
        if warning and warning not in found.warnings:
            found.warnings.append(warning)

    for each in checkpoints:
        try:
            found.check(each.loc, partial(look, each))
        except UnreachableError as error:
            found.warnings.append(f"not checked: {each.name} ({error})")


def _check_texts(study: Study, checkpoints: Iterable[Checkpoint], found: _Checks) -> None:
    """The texts in the tokens of every tokenizer on this machine."""
    tokens = token_file(study.corpus)
    users_of: dict[str, Checkpoint] = {}
    for each in checkpoints:
        tokenizer_name = str(tokens or each.source.tokenizer or each.source.model)
        # A name with an owner is a hub's.
        if Path(tokenizer_name).exists() or "/" not in tokenizer_name:
            users_of.setdefault(tokenizer_name, each)
    # Missing texts are reported elsewhere; those on the hub are not downloaded.
    readable = all(source == "stdlib" or Path(source).exists() for source in study.corpus.source)
    vocabularies: dict[str, Mapping[str, int]] = {}
    for each in users_of.values():
        loc: Loc = ("tokenizer",) if study.tokenizer else each.loc
        try:
            tokenizer = None if tokens else load_tokenizer(each.source)
            if tokenizer is not None:
                vocabularies[each.name] = tokenizer.get_vocab()
                if each.name in found.configured:
                    found.findings += other_vocabulary(
                        each.name, tokenizer, found.configured[each.name].config
                    )
            if found.corpus is not None or not readable:
                continue
            loc = ("corpus",)
            found.corpus = load_corpus(study.corpus, tokenizer, max(study.windows))
        except QkscopeError as error:
            found.mistakes.append(Mistake(loc, str(error)))
            continue
        found.warnings += corpus_warnings(study, found.corpus)
        unfilled = unfilled_windows(study, found.corpus)
        found.mistakes += [Mistake(("windows", i), what) for i, what in unfilled]
    if study.kind == "training":
        found.findings += different_tokens(vocabularies)


# Up to this many checkpoints are checked one by one; of more, the first and the last of every phase.
MOST_LOOKED = 12


def _check_hub(study: Study, checkpoints: Sequence[Checkpoint], found: _Checks) -> list[Checkpoint]:
    """Are the repositories, revisions, tokenizers and texts on the hub there? Returns the checkpoints that are."""
    there = [each for each in checkpoints if _is_hubs(each.source.model) and each.source.path is None]
    texts = [source for source in study.corpus.source if on_hub(source)]
    try:
        repositories = dict.fromkeys(each.source.model for each in there)
        present = [each for repo in repositories for each in _present(repo, there, found)]
        users = [*present, *(each for each in checkpoints if each not in there)]
        tokenizers = {each.source.tokenizer or each.source.model: each for each in reversed(users)}
        for tokenizer_name, each in reversed(tokenizers.items()):
            if _is_hubs(tokenizer_name) and (each.source.tokenizer or each.source.path is None):
                loc: Loc = ("tokenizer",) if study.tokenizer else each.loc
                found.check(loc, partial(find_tokenizer, each.source))
        for text in texts:
            found.check(("corpus",), partial(files_on_hub, text, study.corpus))
    except UnreachableError as error:
        what = [count(len(there), "checkpoint")] if there else []
        what += [count(len(texts), "text source")] if texts else []
        found.warnings.append(f"not checked: {listing(what) or 'the tokenizer'} on the hub ({error})")
        return []
    return present


def _is_hubs(name: str) -> bool:
    """Written as `owner/name`; a missing path is reported elsewhere."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def _present(repo: str, there: Sequence[Checkpoint], found: _Checks) -> Iterator[Checkpoint]:
    """The checkpoints of a repository whose revisions are there. One request lists all branches and tags."""
    members = [each for each in there if each.source.model == repo]
    known: set[str | None] = {None}
    if not found.check(members[0].loc, lambda: known.update(hub.list_refs(repo, attempts=1))):
        return
    for each in members:
        revision = each.source.revision
        # Any other revision is a commit, or does not exist: the error suggests the nearest names.
        if revision in known or found.check(each.loc, partial(hub.list_files, repo, revision)):
            yield each


def _ends(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The first and the last checkpoint of every phase."""
    phases = [
        list(members) for _, members in groupby(checkpoints, lambda each: (each.source.model, each.phase))
    ]
    return [each for phase in phases for each in (phase[0], phase[-1])]


# Of the speed of a large matrix product, what a pass reaches: 0.7 to 0.9 was measured with 135 M parameters
# (benchmarks/RESULTS.md), half with 5 M, a third with the demo's.
REACHED = 0.7
SIDE = 1024


def cost(
    study: Study, configured: Mapping[str, ConfiguredCheckpoint] | None = None, corpus: Corpus | None = None
) -> str:
    """As text. Only local files are read: the RoPE settings of a hub model are known when it is run."""
    checkpoints = sources(study)
    local = all(Path(each.source.model).exists() for each in checkpoints)
    extra = controls(study, checkpoints)[0] if local else []
    lines = [
        f"{len(checkpoints)} checkpoint{'s' * (len(checkpoints) > 1)}: {_amount(study, checkpoints, corpus)}"
    ]
    if extra:
        lines.append(
            f"{len(extra)} counterfactual checkpoint{'s' * (len(extra) > 1)}, because RoPE settings change: "
            f"{_amount(study, extra, corpus)} in addition (controls: {{rotation: false}} leaves them out)"
        )
    elif not local and study.kind == "training" and study.controls.rotation:
        lines.append(
            "plus 2 counterfactual checkpoints wherever RoPE settings change "
            "(controls: {rotation: false} leaves them out)"
        )
    if study.examples and study.kind == "training":
        excerpts = count(study.examples, "short excerpt")
        lines.append(f"the report will show {excerpts} of the texts (examples: 0 shows none)")
    known = configured or {}
    if corpus is not None and all(each.name in known for each in checkpoints):
        lines.append(_disk_and_time(study, [*checkpoints, *extra], known, corpus))
    return "\n".join(lines)


def _amount(study: Study, checkpoints: Iterable[Checkpoint], corpus: Corpus | None) -> str:
    windows = [each.window for each in checkpoints]
    if corpus is not None:
        tokens = f"{sum(corpus.tokens(window) for window in windows):,} tokens"
    elif study.corpus.documents:
        tokens = f"up to {sum(windows) * study.corpus.documents:,} tokens"
    else:
        tokens = f"up to {sum(windows):,} tokens per document"
    groups = filled_groups(study, corpus)
    few = f" in {groups} groups of documents" if groups < study.groups else ""
    return f"{len(windows) * groups} units{few}, {tokens}"


def filled_groups(study: Study, corpus: Corpus | None) -> int:
    """Groups that have a document; all of them where the documents are not known."""
    known = len(corpus.documents) if corpus is not None else study.corpus.documents or study.groups
    return min(study.groups, known)


def _disk_and_time(
    study: Study, checkpoints: Iterable[Checkpoint], known: Mapping[str, ConfiguredCheckpoint], corpus: Corpus
) -> str:
    size, operations = 0, 0.0
    groups = filled_groups(study, corpus)
    for each in checkpoints:
        of = known[each.weights_of or each.name]
        vectors = len(of.heads) + len(of.heads.keys)
        size += groups * moments_bytes(vectors, of.architecture.head_dim, len(each.rings(study.windows)))
        lengths = [min(len(document.tokens), each.window) for document in corpus.documents]
        operations += pass_operations(of.config, of.architecture, lengths)
    seconds = operations / (REACHED * matrix_speed())
    took = "under a minute" if seconds < 60 else f"about {duration(seconds)}"
    return f"about {size / 1e6:,.0f} MB on disk; {took} on this machine's CPU, less on a GPU"


def pass_operations(config: Any, architecture: Architecture, lengths: Iterable[int]) -> float:
    """Of passes over documents: two a weight and token, and attention of each token to those before it."""
    weights = weights_bytes(config, architecture, "float32") / 4
    width = architecture.num_layers * architecture.n_q_heads * architecture.head_dim
    return float(sum(2 * length * (weights + width * length) for length in lengths))


def matrix_speed() -> float:
    """Operations a second of a float32 matrix product here, from the best of three."""
    square = np.ones((SIDE, SIDE), dtype=np.float32)
    return 2 * SIDE**3 / min(timeit.repeat(lambda: square @ square, number=1, repeat=3))
