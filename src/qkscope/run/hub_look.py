"""What the hub holds of a study, before it is run: asked for names and, later, configurations, never for weights.

A hub that cannot be reached is told of once, at once, and is no mistake of the study.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from qkscope.checkpoints import hub
from qkscope.checkpoints.address import on_hub
from qkscope.errors import QkscopeError, UnreachableError
from qkscope.study import Checkpoint, Study
from qkscope.study.yaml_lines import Loc, Mistake
from qkscope.words import count, listing

# So many checkpoints are looked into one by one; of more, the first and the last of every phase.
MOST_LOOKED = 12


@dataclass
class HubLook:
    """What was found; `present` are the checkpoints there, `course` those whose configurations can be looked into."""

    mistakes: list[Mistake] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    present: list[Checkpoint] = field(default_factory=list)
    course: list[Checkpoint] = field(default_factory=list)

    def told(self, loc: Loc, look: Callable[[], object]) -> bool:
        """Whether looking went well; what is wrong otherwise is kept, at its place in the study."""
        try:
            look()
        except UnreachableError:
            raise
        except QkscopeError as error:
            self.mistakes.append(Mistake(loc, str(error)))
            return False
        return True


def look_at_hub(study: Study, course: Sequence[Checkpoint]) -> HubLook:
    """Repositories, revisions, tokenizers and texts of a study that are on the hub: are they there?"""
    found = HubLook()
    there = [each for each in course if _is_hubs(each.source.model) and each.source.path is None]
    texts = [source for source in study.corpus.source if on_hub(source)]
    try:
        found.course = [each for repo in _repositories(there) for each in _present(repo, there, found)]
        _tokenizers(study, [*found.course, *(each for each in course if each not in there)], found)
        _texts(study, texts, found)
    except UnreachableError as error:
        what = [count(len(there), "checkpoint")] if there else []
        what += [count(len(texts), "text source")] if texts else []
        found.warnings.append(f"not checked: {listing(what) or 'the tokenizer'} on the hub ({error})")
        found.course = []
    found.present = found.course
    if len(found.course) > MOST_LOOKED:
        found.course = list(_ends(found.course))
    return found


def _is_hubs(name: str) -> bool:
    """Written as `owner/name`: what is written like a path and not there is told of elsewhere."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))


def _repositories(there: Sequence[Checkpoint]) -> list[str]:
    return list(dict.fromkeys(each.source.model for each in there))


def _present(repo: str, there: Sequence[Checkpoint], found: HubLook) -> Iterator[Checkpoint]:
    """The checkpoints of a repository whose revisions are there. One question tells of all branches and tags."""
    members = [each for each in there if each.source.model == repo]
    known: set[str | None] = {None}
    if not found.told(members[0].loc, lambda: known.update(hub.list_refs(repo, attempts=1))):
        return
    for each in members:
        revision = each.source.revision
        # What is no name of a branch or tag is a commit, or an error that names the nearest.
        if revision in known or found.told(each.loc, partial(hub.list_files, repo, revision)):
            yield each


def _tokenizers(study: Study, course: Sequence[Checkpoint], found: HubLook) -> None:
    """Is there a tokenizer at every place on the hub where one is to come from?"""
    from qkscope.checkpoints import find_tokenizer

    places = {each.source.tokenizer or each.source.model: each for each in reversed(course)}
    for place, each in reversed(places.items()):
        if _is_hubs(place) and (each.source.tokenizer or each.source.path is None):
            loc: Loc = ("tokenizer",) if study.tokenizer else each.loc
            found.told(loc, partial(find_tokenizer, each.source))


def _texts(study: Study, sources: Sequence[str], found: HubLook) -> None:
    from qkscope.corpus.texts import files_on_hub

    for source in sources:
        found.told(("corpus",), partial(files_on_hub, source, study.corpus))


def _ends(course: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
    for _, members in groupby(course, key=lambda each: (each.source.model, each.phase)):
        phase = list(members)
        yield from phase[:: max(1, len(phase) - 1)][:2]
