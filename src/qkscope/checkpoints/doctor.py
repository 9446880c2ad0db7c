"""Are checkpoints what they claim to be? Checks of files and configurations, without loading a model.

Each check is a function that returns findings: what was seen, why it matters, what to do. `qkscope.run.inspection` has
the checks of a study and of measured results.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from qkscope.checkpoints import hub
from qkscope.checkpoints.files import WEIGHTS, Source, gguf_name, local_files, local_path, weights_digest
from qkscope.checkpoints.loading import list_revisions, load_config
from qkscope.errors import QkscopeError
from qkscope.words import count, some

# Requests to the hub at a time.
PARALLEL_REQUESTS = 8
# Names listed in a finding; `checkpoints` has all of them.
NAMED = 4


@dataclass(frozen=True)
class Finding:
    """Something about checkpoints that is probably not as intended.

    kind         identical, order, rope, tokenizer, nan, constant, equal_heads, loss, unchecked
    severity     error: numbers of these checkpoints are wrong or belong to another one; warning: may be intended; note
    """

    kind: str
    severity: Literal["error", "warning", "note"]
    checkpoints: tuple[str, ...]
    seen: str
    why: str
    action: str

    def repeats(self, other: Finding) -> bool:
        """Whether the other finding says the same about these checkpoints, and perhaps about more."""
        return self.kind == other.kind and set(self.checkpoints) <= set(other.checkpoints)

    def __str__(self) -> str:
        return f"{self.severity}: {self.seen}. {self.why}. {self.action}"


def names_of(names: Sequence[str]) -> str:
    """`a, b, c, d and 72 others`"""
    more = len(names) - NAMED
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:NAMED])} and {more} others"


def inspect_model(model: str) -> list[Finding]:
    """What is suspicious about the checkpoints of a hub model or in a folder."""
    found = list_revisions(model)
    if len(found) < 2:  # nothing to compare
        return []
    sources = {each.name: Source(model, each.name) for each in found if each.step is not None}
    aliases = {each.name: Source(model, each.name) for each in found if each.step is None}
    return identical_weights(sources, aliases)


def identical_weights(
    sources: Mapping[str, Source], aliases: Mapping[str, Source] | None = None
) -> list[Finding]:
    """Checkpoints of different names with the same weights, by digests: the hub's own, or of local files.

    `aliases` (main, a tag) may be equal to one checkpoint; they are only named beside those that are.
    """
    digests, problems = weights_digests({**(aliases or {}), **sources})
    same: dict[str, list[str]] = defaultdict(list)
    for name in sources:
        if name in digests:
            same[digests[name]].append(name)
    found = []
    for digest, names in same.items():
        if len(names) == 1:
            continue
        also = some([alias for alias in aliases or () if digests.get(alias) == digest])
        also = f", also found as {also}" if also else ""
        number = count(len(names), "checkpoint")
        found.append(
            Finding(
                "identical",
                "error",
                tuple(names),
                f"{names_of(names)} have identical weights ({number}, sha256 {digest[:12]}{also})",
                "At most one of them is the checkpoint its name says, so trends and dates over the others are wrong",
                "Leave out all but the right one, or ask the publisher for the right files",
            )
        )
    if problems:
        seen = f"the weights of {names_of(list(problems))} were not compared with others"
        why = f"Their files could not be listed or read ({next(iter(problems.values()))})"
        action = "Run this again when they can be read"
        found.append(Finding("unchecked", "note", tuple(problems), seen, why, action))
    return found


def weights_digests(sources: Mapping[str, Source]) -> tuple[dict[str, str], dict[str, str]]:
    """A digest of the weights by name, and why others have none. Nothing is downloaded.

    Local files are read whole only where sizes and a few blocks of them agree with another's.
    """
    digests: dict[str, str] = {}
    problems: dict[str, str] = {}

    def digest(name: str, whole: bool) -> None:
        source = sources[name]
        try:
            path = local_path(source)
            digests[name] = _on_hub(source) if path is None else weights_digest(path, source, whole=whole)
        except (QkscopeError, OSError) as error:
            digests.pop(name, None)
            problems[name] = str(error).splitlines()[0]

    with ThreadPoolExecutor(max_workers=PARALLEL_REQUESTS) as pool:
        list(pool.map(lambda name: digest(name, False), sources))
    times = Counter(digests.values())
    for name in [name for name, value in digests.items() if times[value] > 1]:
        if sources[name].path is not None:
            digest(name, whole=True)
    return digests, problems


def _on_hub(source: Source) -> str:
    """The digest of a revision's weights: of the only file its own, of shards all of theirs."""
    listing = hub.list_files(source.model, source.revision, sizes=True)
    top = sorted(n for n in listing.digests if "/" not in n and gguf_name(source) in (None, n))
    for ending in WEIGHTS:
        if names := [name for name in top if name.endswith(ending)]:
            return "+".join(listing.digests[name] for name in names)
    raise QkscopeError(f"{source}: the hub gives no digest of weights")


def contradicting_configs(sources: Mapping[str, Source]) -> list[Finding]:
    """RoPE entries of a config.json that the model is not built with."""
    seen: dict[str, list[str]] = defaultdict(list)
    for name, source in sources.items():
        if gguf_name(source) or source.rotation is not None:
            continue
        folder, _ = local_files(source, "config")
        raw = json.loads((folder / "config.json").read_text("utf-8"))
        for text in _contradictions(raw.get("text_config") or raw, load_config(source).get_text_config()):
            seen[text].append(name)
    return [
        Finding(
            "rope",
            "error",
            tuple(names),
            f"{names_of(names)}: {text}",
            "Positions are not encoded as this entry says, in qkscope or anywhere else that uses transformers",
            "Correct config.json: change the entry that is read, and delete the other",
        )
        for text, names in seen.items()
    ]


def _contradictions(raw: Mapping[str, Any], config: Any) -> Iterable[str]:
    used = (getattr(config, "rope_parameters", None) or {}).get("rope_theta")
    stated = raw.get("rope_theta")
    if used is not None and stated is not None and float(used) != float(stated):
        yield (
            f"config.json has rope_theta {float(stated):,.0f}, but the model is built with {float(used):,.0f} from "
            "rope_parameters"
        )
    if raw.get("no_rope_layers") and not hasattr(type(config), "no_rope_layers"):
        yield (
            f"config.json has no_rope_layers, which {config.model_type} models do not read: all layers rotate"
        )
