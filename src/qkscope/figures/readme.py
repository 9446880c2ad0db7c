"""README.md of a figure: what it shows, how it was produced, the key takeaway."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from qkscope.figures.prose import Words, code, listing, md
from qkscope.figures.style import tokens
from qkscope.figures.view import View
from qkscope.findings import Claim


def readme(view: View, title: str, words: Words, function: str, findings: Sequence[Claim]) -> str:
    """The whole file, in Markdown."""
    says = "\n".join(f"- {sentence}" for sentence in words.says if sentence)
    blocks = [
        f"# {md(title)}",
        md(view.results.timeline.title),
        f"![{md(title)}](figure.png)",
        "Also: [figure.svg](figure.svg), and the numbers drawn in [data.csv](data.csv).",
        "## What this figure shows",
        words.shows,
        says,
        _questions(findings),
        "## How it was produced",
        _steps(view, words, function),
        "## Key takeaway",
        f"{words.takeaway or words.shows}\n\n{words.certainty}",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _questions(findings: Sequence[Claim]) -> str:
    """What the study's findings say on the matter, with their verdicts."""
    if not findings:
        return ""
    lines = [f"- *{md(each.question)}* **{each.verdict}.** {md(each.answer)}" for each in findings]
    return "Questions asked of the whole study:\n\n" + "\n".join(lines)


def _steps(view: View, words: Words, function: str) -> str:
    steps = [
        ("Data", _data(view, words)),
        ("Model" + ("s" if view.of_models else ""), _model(view)),
        ("Models" if view.of_models else "Checkpoints", _checkpoints(view)),
        ("Text", _text(view)),
        ("Aggregation", words.made),
        ("Command", f"{code(f'qkscope figures {view.results.folder}')}, function {code(function)}."),
    ]
    kept = [(name, text) for name, text in steps if text]
    return "\n".join(f"{i}. **{name}**: {text}" for i, (name, text) in enumerate(kept, 1))


def _data(view: View, words: Words) -> str:
    results = view.results
    text = f"{code(results.folder / 'qk.csv')}, {words.components}"
    text += f"; {view.heads_text} per {view.noun}"
    sample = results.study.get("heads")
    if isinstance(sample, Mapping) and sample.get("sample"):
        text += f", sampled with seed {sample.get('seed', 0)}"
    unmeasured = int((results.heads["class"] == "unmeasured").sum())
    if unmeasured:
        text += f"; {unmeasured} head measurements are not finite and left out"
    if view.rematched:
        text += f". Over the {view.matched_text}: {code(results.folder / 'qk_matched.csv')}"
    return text + "."


def _model(view: View) -> str:
    """The model's name and shape, as far as the run recorded them."""
    results = view.results
    facts = results.provenance.get("checkpoints") or {}
    shapes = dict.fromkeys(_shape(facts[model]) for model in view.order if model in facts)
    name = results.study.get("model")
    parts = [code(name)] if name and not view.of_models else []
    if len(shapes) == 1:
        parts.append(next(iter(shapes)))
    return (": ".join(parts) + ".") if parts else ""


def _shape(facts: Mapping[str, Any]) -> str:
    words = {"num_layers": "layers", "n_q_heads": "query heads", "n_kv_heads": "key heads"}
    parts = [f"{facts[key]} {word}" for key, word in words.items() if facts.get(key) is not None]
    if facts.get("head_dim") is not None:
        parts.append(f"head dimension {facts['head_dim']}")
    return ", ".join(parts)


def _checkpoints(view: View) -> str:
    """All stops by phase, with their windows; those not measured with the reason."""
    lines = []
    facts = view.results.provenance.get("checkpoints") or {}
    for phase, stops in groupby(view.stops, key=lambda stop: stop.phase):
        here = [stop for stop in stops if not stop.missing]
        names = listing([f"{md(view.labels[stop.model])} ({code(stop.model)})" for stop in here])
        if not names:
            continue
        notes = [
            f"window {text} tokens" for text in _each(tokens(stop.window) for stop in here if stop.window)
        ]
        notes += [f"rope theta {text}" for text in _each(_theta(facts.get(stop.model)) for stop in here)]
        lines.append(f"   - {md(phase)}: {names}" + (f"; {', '.join(notes)}" if notes else ""))
    gone = [f"{md(stop.label)} ({md(stop.missing)})" for stop in view.stops if stop.missing]
    if gone:
        lines.append(f"   - not measured: {listing(gone)}")
    order = "" if view.of_models or len(view.order) < 2 else " in the order of training"
    return f"{len(view.order)} measured{order}\n" + "\n".join(lines)


def _each(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]


def _theta(facts: Mapping[str, Any] | None) -> str:
    theta = (facts or {}).get("rope_theta")
    return f"{theta:g}" if isinstance(theta, int | float) else ""


def _text(view: View) -> str:
    """The documents, as far as the run recorded them."""
    corpus = view.results.provenance.get("corpus") or {}
    if not corpus.get("documents"):
        return ""
    filled = ", ".join(f"{n} fill {tokens(int(w))}" for w, n in (corpus.get("filled") or {}).items())
    text = f"{corpus['documents']} documents" + (f" ({filled} tokens)" if filled else "")
    groups = view.results.study.get("groups")
    return text + (f", dealt into {groups} groups for the standard errors." if groups else ".")
