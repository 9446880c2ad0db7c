"""README.md of a figure: a caption, what the study's claims say of it, how it was produced, the key takeaway.

Nothing is judged or worded here: a claim is quoted as it is. Pictures, claims and studies give plain text, all of which
is escaped here: a name in it can never become markup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import pandas as pd

from qkscope.claims import Claim, Row
from qkscope.figures.picture import Caption, Picture
from qkscope.figures.tools.style import drawable
from qkscope.figures.view import View
from qkscope.typeset import escape_markdown
from qkscope.words import joined, listing, once, sentence, tokens

MOST_ROWS = 6  # of a claim's table


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


def readme(picture: Picture, view: View, data: pd.DataFrame, said: Sequence[Claim]) -> str:
    """The whole file, in Markdown."""
    title, caption = md(picture.title(view)), picture.caption(view, data)
    shows = md(caption.shows)
    by_id = {claim.id: claim for claim in said}
    quoted = [by_id[each] for each in picture.claims if each in by_id]
    files = "Also: [figure.svg](figure.svg), [figure.pdf](figure.pdf), and the numbers drawn in [data.csv](data.csv)."
    blocks = [
        f"# {title}",
        md(view.results.timeline.title),
        f"![{title}](figure.png)",
        files,
        "## What this figure shows",
        joined(shows, _other_window(view, caption, quoted)),
        *(_quote(view, claim) for claim in quoted),
        "\n\n".join(md(rule) for rule in once(claim.rule for claim in quoted)),
        "## How it was produced",
        _steps(view, caption, picture),
        "## Key takeaway",
        _takeaway(quoted) or shows,
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _other_window(view: View, caption: Caption, quoted: Sequence[Claim]) -> str:
    """Said where the picture and what is told of it are over different windows."""
    if caption.window != "own" or not view.rematched or all(claim.window == "own" for claim in quoted):
        return ""
    return (
        f"The picture is over each {view.noun}'s own window; numbers below are over the one that they name."
    )


def _quote(view: View, claim: Claim) -> str:
    """A claim as it is: headline, question, verdict, detail, doubt, numbers."""
    said = " ".join(md(part) for part in (claim.detail, claim.caveat) if part)
    lead = f"**{md(sentence(claim.headline))}** *{md(claim.question)}* {md(claim.verdict)}."
    return "\n\n".join(part for part in (lead, said, _table(view, claim.rows)) if part)


def _table(view: View, rows: Sequence[Row]) -> str:
    """The numbers a claim rests on: those judged before those not, a few of them, in their own order."""
    if not rows:
        return ""

    def cells(row: Row) -> list[str]:
        start, end = (view.labels.get(model, model) for model in (row.from_model or "", row.model))
        window = "own" if row.window == "own" else view.matched_text
        return [md(cell) for cell in (row.what, start, end, row.text, window, row.verdict)]

    telling = sorted(range(len(rows)), key=lambda i: rows[i].verdict in ("level", "flat", "unclear"))
    shown = [rows[i] for i in sorted(telling[:MOST_ROWS])]
    head = ["what", "from", "at", "value", "window", "verdict"]
    lines = [head, ["---"] * len(head), *(cells(row) for row in shown)]
    more = f"\n\nThe table shows {len(shown)} of {len(rows)} numbers." if len(rows) > MOST_ROWS else ""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + more


def _takeaway(quoted: Sequence[Claim]) -> str:
    """The most telling claim that says something, and what casts doubt on it."""
    told = [claim for claim in quoted if claim.verdict not in ("unclear", "flat")] or list(quoted)
    return " ".join(md(sentence(part)) for part in (told[0].headline, told[0].caveat) if part) if told else ""


def _steps(view: View, caption: Caption, picture: Picture) -> str:
    folder = _folder(view)
    call = f"qkscope.figures.draw({picture.name.partition('_')[2]!r}, {str(folder)!r}, width=3.3)"
    steps = [
        ("Data", _data(view, caption)),
        ("Model" + ("s" if view.of_models else ""), _model(view)),
        ("Models" if view.of_models else "Checkpoints", _checkpoints(view)),
        ("Text", _text(view)),
        ("Aggregation", md(caption.made)),
        ("Command", f"{code(f'qkscope figures {folder}')}, or in Python {code(call)}."),
    ]
    kept = [(name, text) for name, text in steps if text]
    return "\n".join(f"{i}. **{name}**: {text}" for i, (name, text) in enumerate(kept, 1))


def _folder(view: View) -> Path:
    """The results folder; of an absolute path only its name, because figures are sent to others."""
    folder = view.results.folder
    return Path(folder.name) if folder.is_absolute() else folder


def _data(view: View, caption: Caption) -> str:
    results, table = view.results, Path(caption.table)
    components = md(caption.components) or (
        "first principal component (`pc == 0`)" if table.stem == "qk" else ""
    )
    text = code(_folder(view) / table) + (f", {components}" if components else "")
    text += f"; {view.heads_text} per {view.noun}"
    sample = results.study.get("heads")
    if isinstance(sample, Mapping) and sample.get("sample"):
        text += f", sampled with seed {sample.get('seed', 0)}"
    unmeasured = int((results.heads["class"] == "unmeasured").sum())
    if unmeasured:
        text += f"; {unmeasured} head measurements are not finite and left out"
    if view.rematched and caption.window == "both":
        again = _folder(view) / f"{table.stem}_matched{table.suffix}"
        text += f". Over the {view.matched_text}: {code(again)}"
    return text + "."


def _model(view: View) -> str:
    """The model's name and shape, as far as the run recorded them."""
    facts, name = view.results.record.checkpoints, view.results.study.get("model")
    shapes = {facts[model].shape for model in view.order if model in facts}
    parts = [code(name)] if name and not view.of_models else []
    parts += shapes if len(shapes) == 1 else []
    return (": ".join(parts) + ".") if parts else ""


def _checkpoints(view: View) -> str:
    """All stops by phase, with their windows; those not measured with the reason."""
    lines, facts = [], view.results.record.checkpoints
    for phase, stops in groupby(view.stops, key=lambda stop: stop.phase):
        here = [stop for stop in stops if not stop.missing]
        names = listing([f"{md(view.labels[stop.model])} ({code(stop.model)})" for stop in here])
        notes = [f"window {tokens(stop.window)}" for stop in here if stop.window]
        thetas = [facts[stop.model].rope_theta for stop in here if stop.model in facts]
        notes += [f"rope theta {theta:,.0f}" for theta in thetas if theta is not None]
        if names:
            noted = "; " + ", ".join(dict.fromkeys(notes)) if notes else ""
            lines.append(f"   - {md(phase)}: {names}{noted}")
    gone = [f"{md(stop.label)} ({md(stop.missing)})" for stop in view.stops if stop.missing]
    if gone:
        lines.append(f"   - not measured: {listing(gone)}")
    order = "" if view.of_models or len(view.order) < 2 else " in the order of training"
    return f"{len(view.order)} measured{order}\n" + "\n".join(lines)


def _text(view: View) -> str:
    """The documents, as far as the run recorded them."""
    corpus = view.results.record.corpus
    if not corpus.documents:
        return ""
    filled = ", ".join(f"{n} fill {tokens(w)}" for w, n in corpus.filled.items())
    groups = view.results.study.get("groups")
    dealt = f", dealt into {groups} groups for the standard errors" if groups else ""
    return f"{corpus.documents} documents" + (f" ({filled})" if filled else "") + f"{dealt}."
