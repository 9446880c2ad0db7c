"""The interactive report: one HTML file with its data, its script and its style inside, and no network.

    Results -> data.payload + methods.methods + findings -> template.html -> report.html

The script is plain JavaScript in js/, one file a view, over the vendored D3 and Observable Plot; nothing is built.
A content security policy lets exactly these scripts run, by their hashes, and lets nothing out.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkscope.findings import Claim
    from qkscope.results import Results

__all__ = ["write_report"]

HEADLINE = 8

# In the order they run: the libraries, the page's own files from data to views, the start.
VENDORED = ("vendor/d3.min.js", "vendor/plot.umd.min.js")
SCRIPTS = (
    "js/data.js",
    "js/state.js",
    "js/elements.js",
    "js/marks.js",
    "js/axes.js",
    "js/signal.js",
    "js/taxonomy.js",
    "js/player.js",
    "js/portrait.js",
    "js/depth.js",
    "js/head_charts.js",
    "js/head.js",
    "js/csv.js",
    "js/filters.js",
    "js/table.js",
    "js/toolbar.js",
    "js/main.js",
)


def write_report(results: Results | str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a results folder (or loaded results) and return its path.

    `out` is a file, or an existing folder to put `report.html` in; by default the results folder itself.
    """
    from qkscope.results import Results as Loaded
    from qkscope.results import load_results
    from qkscope.store import write_text

    loaded = results if isinstance(results, Loaded) else load_results(results)
    path = Path(out) if out is not None else Path(loaded.folder)
    if path.is_dir():
        path = path / "report.html"
    write_text(path, render(loaded))
    return path


def render(results: Results) -> str:
    """The whole page as text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from qkscope.findings import claims
    from qkscope.report.data import payload
    from qkscope.report.methods import methods

    environment = Environment(
        loader=PackageLoader("qkscope.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["told"] = told
    environment.filters["number"] = lambda n: f"{n:,}"
    scripts = [_read(name) for name in VENDORED] + ["\n".join(_read(name) for name in SCRIPTS)]
    data = payload(results)
    return environment.get_template("template.html").render(
        data=data,
        json=json_for_html(data),
        headline=headline(claims(results)),
        methods=methods(results),
        timeline=results.timeline,
        heads=len(data["heads"]["layer"]),
        scripts=scripts,
        style=_read("style.css"),
        policy=policy(scripts),
        licences=[_read("vendor/LICENSE-d3"), _read("vendor/LICENSE-plot")],
    )


def headline(found: Sequence[Claim]) -> dict[str, list[Claim]]:
    """Up to eight claims to read first, and the rest: what cannot be told."""
    known = [claim for claim in found if claim.verdict != "cannot tell"]
    first = list((known or found)[:HEADLINE])
    return {"first": first, "more": [claim for claim in found if claim not in first]}


def told(claim: Claim) -> tuple[str, str]:
    """(what a card says, what it unfolds)."""
    return claim.headline, claim.detail


def policy(scripts: list[str]) -> str:
    """The content security policy: these scripts by hash, styles and images of the page, nothing else."""
    hashes = " ".join(f"'sha256-{_sha256(text)}'" for text in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def json_for_html(value: Any) -> str:
    """JSON that cannot leave a <script> element: every `<`, `>` and `&` is written as its escape."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _read(name: str) -> str:
    return resources.files("qkscope.report").joinpath(name).read_text(encoding="utf-8")
