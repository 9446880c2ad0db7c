"""README.md of a figure: what it shows, what happened, how it was produced, the key takeaway.

Sentences come from the study's claims and the figure's caption; nothing is judged here. All text is escaped for
Markdown here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from qkscope.checkpoints.rope import describe_rotation
from qkscope.claims import Claim
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.style import drawable
from qkscope.figures.view import View
from qkscope.results.dataset import NAME
from qkscope.results.tables import ABLATION
from qkscope.study.timeline import TimelineCheckpoint
from qkscope.words import escape_markdown, joined, listing, once, sentence, tokens

MOST_EVENTS = 3
WORDS = 450  # of a README with several events
MOST_NAMED = 8  # checkpoints of a phase that are listed one by one


def md(name: object) -> str:
    """Plain text on one line of Markdown."""
    return escape_markdown(drawable(name))


def code(text: object) -> str:
    """A path or name in a code span, with enough backticks around it."""
    clean = drawable(text)
    longest = max((len(run) for run in re.findall("`+", clean)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{clean}{pad}{fence}"


def readme(picture: Picture, view: View, drawing: Drawing, said: Sequence[Claim]) -> str:
    """The whole file, in Markdown: as many of the figure's claims, as fully, as make it no longer than WORDS."""
    by_id = {claim.id: claim for claim in said}
    chosen = [by_id[each] for each in picture.claims if each in by_id]
    events = drawing.caption.events
    fewest = min(1 if events else 2, len(chosen))  # claims in any case
    choices = [chosen[:most] for most in (max(MOST_EVENTS - len(events), 1), 2, 1)]
    for some in choices:
        for brief in (False, True):
            if len(some) >= fewest:
                text = _text(picture, view, drawing.caption, some, brief)
                if len(text.split()) <= WORDS:
                    return text
    return text


def _text(picture: Picture, view: View, caption: Caption, chosen: Sequence[Claim], brief: bool) -> str:
    """The file with some claims: the first in full and the others shortened, or without details if `brief`.

    Where the caption has events of its own, `brief` leaves out the first claim's detail too.
    """
    title = md(plain(caption.title))
    events, meanings = list(caption.events), []
    for i, claim in enumerate(chosen):
        detail = claim.detail if i == 0 else first_sentence(claim.detail)
        events.append((claim.headline, "" if brief and (i or caption.events) else detail))
        meanings.append(first_sentence(claim.meaning) if i else claim.meaning)
    takeaway = once([*meanings, caption.takeaway])
    care = once([*(claim.caveat for claim in chosen[:1]), caption.care])
    over = f", {view.matched_text} of every text" if view.rematched and caption.window == "matched" else ""
    blocks = [
        f"# {title}",
        f"{md(view.results.timeline.title)}{over}. Numbers: [data.csv](data.csv).",
        f"![{title}](figure.png)",
        "## What this figure shows",
        md(caption.shows),
        "## What happened" if events and view.training else "## What it says" if events else "",
        *(joined(f"**{md(sentence(headline))}**", md(detail)) for headline, detail in events),
        "## How it was produced",
        _steps(view, caption, picture),
        "## Key takeaway" if takeaway else "",
        md(joined(*takeaway)),
        f"**Read with care:** {md(joined(*care))}" if care else "",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def first_sentence(text: str) -> str:
    return re.split(r"(?<=[.?]) (?=[A-Z])", text, maxsplit=1)[0]


def plain(text: str) -> str:
    """A title without mathematics: `$r_q$` is `r_q`."""
    return text.replace("$", "")


def _steps(view: View, caption: Caption, picture: Picture) -> str:
    folder = _folder(view)
    steps = [
        ("Data source", _data(view, caption)),
        ("Model" + ("s" if view.of_models else ""), _model(view)),
        ("Models" if view.of_models else "Checkpoints", _checkpoints(view)),
        ("Classification" if "taxonomy" in picture.name else "Aggregation", md(caption.made)),
        ("Visualization", md(caption.drawn)),
        ("Command", f"{code(f'qkscope figures {folder}')}; rules and formulas: docs/methods.md."),
    ]
    known = [(name, text) for name, text in steps if text]
    return "\n".join(f"{i}. **{name}**: {text}" for i, (name, text) in enumerate(known, 1))


def _folder(view: View) -> Path:
    """The results folder; of an absolute path only its name, because figures are sent to others."""
    folder = view.results.folder
    return Path(folder.name) if folder.is_absolute() else folder


def _data(view: View, caption: Caption) -> str:
    """The file and variables that the numbers come from, with the heads and documents behind them."""
    results = view.results
    named = ", ".join(map(code, caption.variables))
    text = code(_folder(view) / caption.table)
    text += f" ({named}{', rows with `pc == 0`' if caption.table == 'qk.csv' else ''})" if named else ""
    if view.rematched and caption.window == "both":
        more = "" if caption.table == NAME else f" from {code(NAME)}"
        text += f" over training contexts, and over the {view.matched_text}{more}"
    elif view.rematched and caption.window == "matched":
        text += f" over the {view.matched_text}"
    if caption.table == ABLATION:  # of heads and documents of its own
        return f"{text}."
    text += f"; {view.heads_text}{view.each}"
    sample = results.study.get("heads")
    if isinstance(sample, Mapping) and sample.get("sample"):
        text += f", sampled with seed {md(sample.get('seed', 0))}"
    documents, groups = results.record.corpus.documents, results.study.get("groups")
    if documents:
        text += f"; {documents:,} documents"
        text += f" in {md(groups)} groups for standard errors" if groups else ""
    return text + "."


def _model(view: View) -> str:
    """The model's name and shape, as far as the run recorded them."""
    facts, name = view.results.record.checkpoints, view.results.study.get("model")
    shapes = {facts[model].shape for model in view.order if model in facts}
    parts = [code(name)] if name and not view.of_models else []
    parts += [f"{shape}; numbers of heads are those of a layer" for shape in shapes if len(shapes) == 1]
    return (": ".join(parts) + ".") if parts else ""


def _checkpoints(view: View) -> str:
    """Labels by phase, with windows and RoPE settings; those not measured with the reason."""
    by_note: dict[str, list[str]] = {}
    for phase, checkpoints in groupby(view.checkpoints, key=lambda checkpoint: checkpoint.phase):
        here = [checkpoint for checkpoint in checkpoints if not checkpoint.missing]
        if here:
            labels = [md(view.labels[checkpoint.model]) for checkpoint in here]
            many = len(labels) > MOST_NAMED
            names = f"{len(labels)} from {labels[0]} to {labels[-1]}" if many else ", ".join(labels)
            by_note.setdefault(_note(view, here), []).append(f"{md(phase)} ({names})")
    lines = [f"   - {'; '.join(phases)}{': ' if note else ''}{note}" for note, phases in by_note.items()]
    gone = [
        f"{md(view.labels[checkpoint.model])} ({md(checkpoint.missing)})"
        for checkpoint in view.checkpoints
        if checkpoint.missing
    ]
    if gone:
        lines.append(f"   - not measured: {listing(gone)}")
    order = "" if view.of_models or len(view.order) < 2 else ", in the order of training"
    return f"{len(view.order)}{order}\n" + "\n".join(lines)


def _note(view: View, checkpoints: Sequence[TimelineCheckpoint]) -> str:
    """Windows and RoPE settings of a phase."""
    notes = [f"window {tokens(checkpoint.window)}" for checkpoint in checkpoints if checkpoint.window]
    for facts in (view.results.record.checkpoints.get(checkpoint.model) for checkpoint in checkpoints):
        if facts is not None and facts.rope:
            notes.append(md(describe_rotation(facts.rope)))
        elif facts is not None and facts.rope_theta is not None:
            notes.append(f"rope theta {facts.rope_theta:,.0f}")
    return ", ".join(dict.fromkeys(notes))
