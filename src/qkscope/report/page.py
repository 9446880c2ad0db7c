"""The interactive report: one HTML file with its data, its script and its style inside, and no network.

    Results -> data.payload + methods.methods + claims.claims -> template.html -> report.html

The script is plain JavaScript in js/, one file per view, over the vendored D3 and Observable Plot; there is no build
step. A content security policy allows exactly these scripts, by their hashes, and no network access.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from qkscope.claims import Claim, claims
from qkscope.comparison import match
from qkscope.comparison.matching import run_names
from qkscope.report import pair, palette
from qkscope.report.data import payload
from qkscope.report.methods import methods
from qkscope.results import Results, as_results
from qkscope.results.owner import redrawing, refuse_drawing_into_other
from qkscope.store import write_text
from qkscope.study import folder_name
from qkscope.study.timeline import Timeline, TimelineCheckpoint

# In the order they run: the libraries, the page's own files from data to views, the start.
VENDORED = ("vendor/d3.min.js", "vendor/plot.umd.min.js")
SCRIPTS = (
    *("js/data.js", "js/text.js", "js/elements.js", "js/paint.js", "js/state.js"),
    *("js/marks.js", "js/sheet.js", "js/axes.js", "js/save.js"),
    *("js/roles.js", "js/raster.js", "js/signal.js", "js/causes.js"),
    *("js/scores.js", "js/ablation.js", "js/spectrum.js", "js/explorer.js", "js/distance.js"),
    *("js/classes.js", "js/portrait_frame.js", "js/portrait.js", "js/examples.js"),
    *("js/head_charts.js", "js/head.js"),
    *("js/table.js", "js/numbers.js", "js/tools.js", "js/main.js"),
)
# The claims that open the page.
OPENING = ("position", "long_context", "queries_keys")
# The claims that answer in one sentence what a reader asks first.
ANSWERS = (
    ("roles", "What do heads do?"),
    ("emergence", "When did it emerge?"),
    ("causes", "Why?"),
    ("ablation", "Does it matter?"),
)
# The views that a claim may stand beside.
VIEWS = (
    *("signal", "roles", "emergence", "causes", "scores", "ablation"),
    *("spectrum", "distance", "classes", "portrait"),
)


def write_report(
    results: Results | str | Path,
    out: str | Path | None = None,
    *,
    beside: Results | str | Path | None = None,
) -> Path:
    """Write the report of a results folder (or loaded results) and return its path.

    `out` is a file or an existing folder (default: the results folder). The report of a bare table in a study's folder
    is named `table_report.html`, so that it does not replace the study's report. With `beside`, the report shows both
    runs, matched as in `compare`, and is named `report_with_<other>.html`.
    """
    loaded = as_results(results)
    name = loaded.beside_study("report.html") if out is None else "report.html"
    if beside is None:
        text = render(loaded)
    else:
        other = as_results(beside)
        text = render_pair(loaded, other)
        name = f"report_with_{folder_name(run_names(loaded, other)[1])}.html"
    path = Path(out) if out is not None else Path(loaded.folder)
    path = path / name if path.is_dir() else path
    refuse_drawing_into_other(path, loaded.folder)
    if path.resolve() == (loaded.folder / "report.html").resolve():
        with redrawing(loaded.folder, loaded.made_from, ["report.html"]) as staged:
            write_text(staged / "report.html", text)
    else:
        write_text(path, text)
    return path


def render(results: Results, found: Sequence[Claim] | None = None) -> str:
    """The whole page as text; `found` are its claims where they are known already."""
    found = claims(results) if found is None else found
    return _filled("template.html", results, payload(results), found, methods=methods(results))


def render_pair(ours: Results, theirs: Results) -> str:
    """The page of two runs as text: both measured where they match, each with its own methods."""
    found = pair.same_windows(match(ours, theirs))
    return _filled(
        "two_runs.html",
        found.ours,
        pair.pair_payload(found),
        (),
        difference=pair.difference(found),
        alone=[(letter, claims(side)) for letter, side in zip(pair.LETTERS, (ours, theirs), strict=True)],
        names=found.names,
        methods=methods(ours),
        runs=[
            {"letter": letter, "name": name, "timeline": side.timeline, "methods": methods(side)}
            for letter, name, side in zip(pair.LETTERS, found.names, (ours, theirs), strict=True)
        ],
    )


def _filled(
    template: str, results: Results, data: dict[str, Any], found: Sequence[Claim], **parts: Any
) -> str:
    """A template with its data, scripts and style inside."""
    own = "\n".join(_read(name) for name in SCRIPTS)
    # Comments that declare types are for the checker alone; without them the page is 5% smaller.
    scripts = [
        *map(_read, VENDORED),
        re.sub(r"^ */\*\*(?:(?!\*/).)*\*/\n", "", own, flags=re.MULTILINE | re.DOTALL),
    ]
    has = present(data)
    ranked = sorted(found, key=lambda claim: OPENING.index(claim.id) if claim.id in OPENING else len(OPENING))
    return (
        _environment(results.timeline)
        .get_template(template)
        .render(
            data=data,
            has=has,
            sections=_sections(has),
            # The claims beside each picture as they are ranked; the page opens with position itself.
            claims_of={view: [claim for claim in ranked if claim.see.view == view] for view in VIEWS},
            answers=[(question, claim) for name, question in ANSWERS for claim in found if claim.id == name],
            json=json_for_html(data),
            labels=labels(results.timeline),
            two_windows=results.matched() is not None,
            timeline=results.timeline,
            folder=results.folder.name,
            heads=len(data["heads"]["layer"]),
            scripts=scripts,
            style=palette.properties() + "\n" + _read("style.css"),
            policy=policy(scripts),
            licences=[_read("vendor/LICENSE-d3"), _read("vendor/LICENSE-plot")],
            **parts,
        )
    )


def present(data: dict[str, Any]) -> dict[str, bool]:
    """Which of the optional views the data fills."""
    runs = [data, *([data["other"]] if "other" in data else [])]
    windows = [run[name] for run in runs for name in ("own", "matched") if run[name]]
    has = {
        "causes": data["kind"] == "training" and any(run["causes"] for run in runs),
        "roles": bool(data["roles"]),
        "scores": bool(data["parts"]),
        "ablation": any(run["ablation"] for run in runs),
        "spectrum": any(one["wavelengths"] for one in windows),
        "explorer": any(run["rotary"] for run in runs),
        "distance": any(one["distances"] for one in windows),
        "examples": any(run["examples"] for run in runs),
    }
    return has | {"how": any(has[view] for view in ("scores", "spectrum", "distance", "examples"))}


def _sections(has: dict[str, bool]) -> list[tuple[str, str]]:
    """Entries of the menu: the first view of each part of the page, and its name."""
    how = next((view for view in ("scores", "spectrum", "distance", "examples") if has[view]), None)
    names = {"signal": "Overview", "roles": "What", "emergence": "When", "causes": "Why", how: "How"}
    names |= {"classes": "Explore", "head": "Head", "methods": "Methods"}
    return [(view, name) for view, name in names.items() if view and has.get(view, True)]


def _environment(timeline: Timeline) -> Environment:
    environment = Environment(
        loader=PackageLoader("qkscope.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    known = {checkpoint.model: checkpoint.label for checkpoint in timeline.checkpoints}
    short = sorted(
        {str(escape(label)) for label in known.values() if len(label) <= 16}, key=len, reverse=True
    )
    any_label = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, short)) or '(?!)'})(?![\w-])")

    def unbroken(text: str) -> Markup:
        """The text with no line break inside short labels of checkpoints, such as S1-50."""
        return Markup(any_label.sub(r'<span class="label">\1</span>', str(escape(text))))

    environment.filters |= {
        "unbroken": unbroken,
        "label": lambda model: known.get(model, model),
        "window": lambda name: window_name(name, timeline),
        "number": lambda n: f"{n:,}",
    }
    return environment


def window_name(window: str, timeline: Timeline) -> str:
    """What a reader calls a window: `first 256 tokens` or `training context`."""
    if window == "own":
        return "training context"
    return f"first {timeline.matched_window:,} tokens" if timeline.matched_window else "same first tokens"


def labels(timeline: Timeline) -> list[TimelineCheckpoint]:
    """One checkpoint of each phase whose label abbreviates its phase and step, to explain the labels."""
    short = [each for each in timeline.measured if each.step is not None and each.label != each.model]
    return list({each.phase: each for each in reversed(short)}.values())[::-1]


def policy(scripts: list[str]) -> str:
    """The content security policy: these scripts by hash, styles and images of the page, nothing else."""
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def json_for_html(value: Any) -> str:
    """JSON that cannot leave a <script> element: every `<`, `>` and `&` is written as its escape."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read(name: str) -> str:
    return resources.files("qkscope.report").joinpath(name).read_text(encoding="utf-8")
