"""Checkpoint names -> training order, phases and short labels.

Knows the naming schemes of public training runs and nothing of hubs, files or models:

    SmolLM3     stage1-step-40000, lc-4k-to-32k-step-4000
    SmolLM2     step-240000
    Pythia      step0, step512, step143000
    OLMo        step1000-tokens4B, stage1-step150-tokens1B, stage2-ingredient3-step12000-tokens26B
    Amber       ckpt_000
    FineWeb     step-001000-2BT
    Trainer     checkpoint-500 (also stanford-crfm)

The order is by phase, then by step: the steps of long-context phases restart at zero.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import yaml

PLAIN, STAGE, LONG_CONTEXT = range(3)  # the kinds of phase, in the order they are trained

_PHASE = r"""
    (?: stage[-_]?(?P<stage>\d{1,6}) (?: [-_]ingredient[-_]?(?P<ingredient>\d{1,6}) )? [-_]
      | lc [-_] (?P<from>\d{1,9}k?) [-_]to[-_] (?P<to>\d{1,9}k?) [-_]
    )?
"""
_STEP = r"(?: (?:global[-_]?)?step | checkpoint | ckpt | iter ) [-_]? (?P<step>\d{1,15})"
_TOKENS = r"(?: [-_] (?: tokens (?P<tokens>\d{1,15}(?:\.\d{1,15})?[kmbt]) | (?P<bt>\d{1,15}(?:\.\d{1,15})?[kmb])t ) )?"
_NAME = re.compile(
    rf"{_PHASE} {_STEP} {_TOKENS} (?: [-_](?:unsharded|hf) )?", re.VERBOSE | re.IGNORECASE | re.ASCII
)
_UNITS = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


@dataclass(frozen=True)
class Revision:
    """One checkpoint of a training run, as its name describes it."""

    name: str
    phase_key: tuple[int, int, int]
    """Sorts phases in training order: (kind, stage or first context, ingredient or last context)."""
    phase_label: str
    step: int | None
    tokens: int | None
    """Tokens seen in training, if the name contains them."""
    label: str
    """Short, for axes. Long-context phases are numbered and labels made unique by `order_revisions`."""


def parse_revision(name: str) -> Revision | None:
    """Read one name (of `owner/model@name` and of paths, the last part); None if it is no checkpoint's."""
    match = _NAME.fullmatch(re.split(r"[/@\\]", name)[-1])
    if match is None:
        return None
    if match["stage"]:
        key = STAGE, int(match["stage"]), int(match["ingredient"] or 0)
    elif match["from"]:
        key = LONG_CONTEXT, _context(match["from"]), _context(match["to"])
    else:
        key = PLAIN, 0, 0
    size = match["tokens"] or match["bt"]
    tokens = round(float(size[:-1]) * _UNITS[size[-1].lower()]) if size else None
    step = int(match["step"])
    return Revision(name, key, _phase_label(key), step, tokens, _prefix(key, None) + short_number(step))


def split_revisions(names: Iterable[str]) -> tuple[list[Revision], list[str]]:
    """Checkpoints in training order with their final labels, and the other names, as given."""
    unique = list(dict.fromkeys(names))
    parsed = {name: parse_revision(name) for name in unique}
    revisions = [revision for revision in parsed.values() if revision is not None]
    # Phase, then step; the rest only breaks ties.
    revisions.sort(key=lambda r: (r.phase_key, r.step or 0, r.tokens or 0, r.name))
    return _labelled(revisions), [name for name in unique if parsed[name] is None]


def order_revisions(names: Iterable[str]) -> list[Revision]:
    """Every name once: checkpoints in training order, then the other names, in the given order.

    A name that is no checkpoint has neither step nor phase: its label is the name itself.
    """
    ordered, other = split_revisions(names)
    return ordered + [Revision(name, (LONG_CONTEXT + 1, 0, 0), "", None, None, name) for name in other]


def phase_labels(found: Sequence[tuple[str, str, int | None]], short: Mapping[str, str]) -> dict[str, str]:
    """Labels of checkpoints (name, phase, step) in training order, where steps restart with a phase.

    They carry the phase and, after a restart, the steps of all phases so far: `base-400`, then `long-40 (440)`. A phase
    is taken to go on from the last checkpoint of the phase before it. `short` are the labels without that. Names that
    tell their phase themselves (stage1-step-40) are left alone; where no step restarts, so are all.
    """
    totals: dict[str, tuple[str, int, int]] = {}  # name -> phase, step, steps of all phases so far
    before, done = ("", 0, 0), 0
    for name, phase, step in found:
        known = parse_revision(name)
        if not phase or step is None or known is None or known.phase_key[0] != PLAIN:
            continue
        if totals and before[0] != phase and step <= before[1]:
            done = before[2]
        before = totals[name] = (phase, step, done + step)
    if not done:
        return {}
    return {
        name: f"{phase}-{short[name]}" + (f" ({short_number(total)})" if total != step else "")
        for name, (phase, step, total) in totals.items()
    }


def short_number(value: int, decimals: int = 1) -> str:
    """40000 -> 40K, 3440000 -> 3.4M, 512 -> 512."""
    size, unit = (10**6, "M") if round(value / 10**3, decimals) >= 1000 else (10**3, "K")
    if value < 1000:
        return str(value)
    text = f"{value / size:.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + unit


def phases_yaml(revisions: Sequence[Revision], key_name: str = "revision", parent: str = "") -> str:
    """The `phases:` of a study, to paste: one entry a checkpoint, as `key_name: parent + name`.

    Long-context names contain windows: the phase's own, and that of all phases before it.
    """
    long_context = [r.phase_key for r in revisions if r.phase_key[0] == LONG_CONTEXT]
    before = min((first for _, first, _ in long_context), default=None)
    lines = ["phases:"]
    for key, members in groupby(revisions, key=lambda r: r.phase_key):
        window = key[2] if key[0] == LONG_CONTEXT else before
        lines += [
            f"  - label: {_phase_label(key)}",
            *([f"    window: {window}"] if window else []),
            "    checkpoints:",
        ]
        for revision in members:
            entry = {key_name: parent + revision.name, "step": revision.step, "label": revision.label}
            text = yaml.safe_dump(
                entry, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True
            )
            lines.append(f"      - {text.strip()}")
    return "\n".join(lines)


def _phase_label(key: tuple[int, int, int]) -> str:
    kind, first, second = key
    if kind == STAGE:
        return f"Stage {first}" + (f" ingredient {second}" if second else "")
    if kind == LONG_CONTEXT:
        return f"LC {_context_label(first)}→{_context_label(second)}"
    return "Training"


def _prefix(key: tuple[int, int, int], number: int | None) -> str:
    """The phase's part of a label: `S1-`, `S2i3-`, `LC1-` (with its number), nothing in plain runs."""
    kind, stage, ingredient = key
    if kind == STAGE:
        return f"S{stage}" + (f"i{ingredient}" if ingredient else "") + "-"
    if kind == LONG_CONTEXT:
        return f"LC{number or ''}-"
    return ""


def _labelled(revisions: Sequence[Revision]) -> list[Revision]:
    """Number the long-context phases, and add decimals to steps until the labels of a phase differ."""
    long_context = sorted({r.phase_key for r in revisions if r.phase_key[0] == LONG_CONTEXT})
    labels: dict[str, str] = {}
    for key in {r.phase_key for r in revisions}:
        number = long_context.index(key) + 1 if key in long_context else None
        members = [r for r in revisions if r.phase_key == key]
        for revision, text in zip(members, _distinct([r.step or 0 for r in members]), strict=True):
            labels[revision.name] = _prefix(key, number) + text
    return [replace(r, label=labels[r.name]) for r in revisions]


def _distinct(steps: Sequence[int]) -> list[str]:
    """Short numbers with enough decimals that different steps have different labels."""
    texts = [short_number(step) for step in steps]
    for decimals in (2, 3, 6):
        # How many steps share a text.
        times = Counter(text for _, text in set(zip(steps, texts, strict=True)))
        texts = [
            short_number(step, decimals) if times[text] > 1 else text
            for step, text in zip(steps, texts, strict=True)
        ]
    return texts


def _context(text: str) -> int:
    """A context length: `4k` is 4096 tokens, `256` is 256."""
    return int(text[:-1]) * 1024 if text[-1] in "kK" else int(text)


def _context_label(context: int) -> str:
    return f"{context // 1024}K" if context % 1024 == 0 else str(context)
