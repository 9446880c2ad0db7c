"""README.md of a figure: what it shows, what happened, how it was produced, the key takeaway.

Sentences come from the study's claims and the figure's caption; nothing is judged here. All text is escaped for
Markdown here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from qkscope.claims import Claim
from qkscope.figures.picture import Caption, Drawing, Picture
from qkscope.figures.tools.style import drawable
from qkscope.figures.view import View
from qkscope.words import joined, listing, once, sentence, tokens

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$!])")

MOST_STORIES = 3
MOST_NAMED = 8  # checkpoints of a phase that are listed one by one


def md(name: object) -> str:
    """A name as Markdown shows it, letter by letter."""
    return _SPECIAL.sub(r"\\\1", drawable(name).replace("&", "&amp;"))


def code(text: object) -> str:
    """A path or name in a code span, with enough backticks around it."""
    clean = drawable(text)
    longest = max((len(run) for run in re.findall("`+", clean)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{clean}{pad}{fence}"


def readme(picture: Picture, view: View, drawing: Drawing, said: Sequence[Claim]) -> str:
    """The whole file, in Markdown."""
    caption = drawing.caption
    title = md(plain(caption.title))
    by_id = {claim.id: claim for claim in said}
    told = [by_id[each] for each in picture.claims if each in by_id][:MOST_STORIES]
    stories = [(claim.headline, claim.detail) for claim in told] + list(caption.stories)
    takeaway = once([*(claim.meaning for claim in told), caption.takeaway]) or [caption.shows]
    care = once([*(claim.caveat for claim in told), caption.care])
    blocks = [
        f"# {title}",
        f"{md(view.results.timeline.title)}: `figure.png`, also as `figure.svg` and `figure.pdf`; all numbers are in "
        "[data.csv](data.csv).",
        f"![{title}](figure.png)",
        "## What this figure shows",
        md(caption.shows),
        "## What happened" if stories and view.training else "## What it says" if stories else "",
        *(joined(f"**{md(sentence(headline))}**", md(detail)) for headline, detail in stories[:MOST_STORIES]),
        "## How it was produced",
        _steps(view, caption, picture),
        "## Key takeaway",
        md(joined(*takeaway)),
        f"**Read with care:** {md(joined(*care))}" if care else "",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def plain(text: str) -> str:
    """A title without mathematics: `$r_q$` is `r_q`."""
    return text.replace("$", "")


def _steps(view: View, caption: Caption, picture: Picture) -> str:
    folder = view.results.folder
    steps = [
        ("Data source", _data(view, caption)),
        ("Model" + ("s" if view.of_models else ""), _model(view)),
        ("Models" if view.of_models else "Checkpoints", _checkpoints(view)),
        ("Text", _text(view)),
        (
            "Classification" if "class" in picture.name or "taxonomy" in picture.name else "Aggregation",
            md(caption.made),
        ),
        ("Visualization", md(caption.drawn)),
        ("Command", f"{code(f'qkscope figures {folder}')}; formulas and rules are in `docs/methods.md`."),
    ]
    kept = [(name, text) for name, text in steps if text]
    return "\n".join(f"{i}. **{name}**: {text}" for i, (name, text) in enumerate(kept, 1))


def _data(view: View, caption: Caption) -> str:
    results, table = view.results, Path(caption.table)
    components = caption.components or ("PC0 (`pc == 0`)" if table.stem == "qk" else "")
    text = code(results.folder / table) + (
        f", {md(components) if caption.components else components}" if components else ""
    )
    if view.rematched and caption.window == "both":
        other = code(f"{table.stem}_matched{table.suffix}")
        text += f" (over the {view.matched_text}: {other})"
    text += f"; {view.heads_text} per {view.noun}"
    sample = results.study.get("heads")
    if isinstance(sample, Mapping) and sample.get("sample"):
        text += f", sampled with seed {md(sample.get('seed', 0))}"
    return text + "."


def _model(view: View) -> str:
    """The model's name and shape, as far as the run recorded them."""
    facts, name = view.results.record.checkpoints, view.results.study.get("model")
    shapes = {facts[model].shape for model in view.order if model in facts}
    parts = [code(name)] if name and not view.of_models else []
    parts += shapes if len(shapes) == 1 else []
    return (": ".join(parts) + ".") if parts else ""


def _checkpoints(view: View) -> str:
    """Labels by phase, with windows and rope theta; those not measured with the reason."""
    lines, facts = [], view.results.record.checkpoints
    for phase, stops in groupby(view.stops, key=lambda stop: stop.phase):
        here = [stop for stop in stops if not stop.missing]
        labels = [md(view.labels[stop.model]) for stop in here]
        names = ", ".join(labels)
        if len(labels) > MOST_NAMED:
            names = f"{len(labels)} from {labels[0]} to {labels[-1]}"
        notes = [f"window {tokens(stop.window)}" for stop in here if stop.window]
        thetas = [facts[stop.model].rope_theta for stop in here if stop.model in facts]
        notes += [f"rope theta {theta:,.0f}" for theta in thetas if theta is not None]
        if names:
            noted = f" ({', '.join(dict.fromkeys(notes))})" if notes else ""
            lines.append(f"   - {md(phase)}: {names}{noted}")
    gone = [f"{md(view.labels[stop.model])} ({md(stop.missing)})" for stop in view.stops if stop.missing]
    if gone:
        lines.append(f"   - not measured: {listing(gone)}")
    order = "" if view.of_models or len(view.order) < 2 else ", in the order of training"
    return f"{len(view.order)}{order}\n" + "\n".join(lines)


def _text(view: View) -> str:
    """The documents, as far as the run recorded them."""
    corpus = view.results.record.corpus
    if not corpus.documents:
        return ""
    groups = view.results.study.get("groups")
    dealt = f" in {groups} groups, whose differences give the standard errors" if groups else ""
    return f"{corpus.documents} documents{dealt}."
