"""What the page says about how the numbers came to be: plain tables of text for the template.

Study and provenance may lack anything, as they do when the results are a foreign qk.csv alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from qkscope.checkpoints.rope import describe_rotation
from qkscope.defaults import GROUPS
from qkscope.measures.pca import FAINT, LEVEL
from qkscope.results.taxonomy import UNMEASURED

if TYPE_CHECKING:
    from qkscope.results import Results
    from qkscope.results.provenance import CheckpointRecord, CorpusRecord

# Shown in their own place on the page, or of no interest to a reader of the results.
_NOT_SETTINGS = {"provenance", "phases", "families", "checkpoints", "name", "title", "portraits"}
_NOT_SETTINGS |= {"thresholds", "retries", "keep_weights", "gpus", "cpus", "device", "device_map"}


def methods(results: Results) -> dict[str, Any]:
    """The template's `methods`: settings, corpus, versions, checkpoints, warnings, gaps."""
    record, study, timeline = results.record, results.study or {}, results.timeline
    lacking = results.heads.loc[results.heads["class"] == UNMEASURED, "model"]
    windows = ((each.phase, each.window) for each in timeline.checkpoints if each.window is not None)
    return {
        "settings": settings(study),
        "corpus": corpus(record.corpus),
        "versions": record.versions,
        "checkpoints": checkpoints(results),
        "missing": record.missing
        | {each.model: each.missing for each in timeline.checkpoints if each.missing},
        # Checkpoint -> heads whose correlations are not defined.
        "unmeasured": {str(model): len(rows) for model, rows in lacking.groupby(lacking, sort=False)},
        "warnings": [*record.warnings, *map(str, record.findings)],
        "windows": list(dict.fromkeys(windows)),
        "thresholds": results.thresholds,
        "has_matched": results.matched() is not None,
        "has_errors": bool(np.isfinite(results.heads["r_q_se"]).any()),
        "has_null": bool(np.isfinite(results.heads["r_q_null"]).any()),
        "faint": FAINT,
        # Of the test against chance.
        "level": f"{LEVEL:.0%} over {study.get('groups') or GROUPS} groups of documents",
    }


def settings(study: Mapping[str, Any]) -> dict[str, str]:
    """The study's remaining settings, one line each, in its own order."""
    found = {}
    for name, value in study.items():
        if name not in _NOT_SETTINGS and value is not None:
            everything = name == "heads" and isinstance(value, Mapping) and value.get("sample") is None
            found[str(name).replace("_", " ")] = "all" if everything else plain(value)
    return found


def plain(value: object) -> str:
    """A setting as one line of text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {plain(v)}" for k, v in value.items() if v is not None)
    if isinstance(value, list | tuple):
        return ", ".join(plain(v) for v in value)
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def corpus(found: CorpusRecord) -> dict[str, str]:
    """Documents, tokens and how many documents filled each window."""
    lines: dict[str, str] = {}
    if found.documents is not None:
        lines["documents"] = f"{found.documents:,}"
    if isinstance(found.tokens, dict):
        lines["tokens"] = ", ".join(f"{n:,} in windows of {w:,}" for w, n in found.tokens.items())
    elif found.tokens is not None:
        lines["tokens"] = f"{found.tokens:,}"
    for window, count in found.filled.items():
        lines[f"documents that fill {window:,} tokens"] = f"{count:,}"
    return lines | ({"digest": found.digest} if found.digest else {})


def checkpoints(results: Results) -> list[dict[str, str]]:
    """A row per measured checkpoint: label, name, window, vectors a head, architecture, commit."""
    counts = _vectors(results)
    rows = []
    for model in results.timeline.models:
        checkpoint, facts = results.timeline.checkpoint(model), results.record.checkpoints.get(model)
        rows.append(
            {
                "label": checkpoint.label,
                "name": model,
                "phase": checkpoint.phase,
                "window": f"{checkpoint.window:,}" if checkpoint.window else "",
                "vectors": counts.get(model, ""),
                "architecture": _architecture(facts) if facts else "",
                "commit": facts.commit if facts else "",
            }
        )
    return rows


def _vectors(results: Results) -> dict[str, str]:
    """Query and key vectors each head was measured on: one number, or a range."""
    found = {}
    for model, rows in results.heads.groupby("model", sort=False):
        n = rows[["n_q", "n_k"]].to_numpy()
        n = n[np.isfinite(n)]
        if len(n):
            low, high = int(n.min()), int(n.max())
            found[str(model)] = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return found


def _architecture(facts: CheckpointRecord) -> str:
    parts = [facts.family, f"{facts.num_layers} layers"]
    if facts.n_q_heads and facts.n_kv_heads:
        parts.append(f"{facts.n_q_heads} query / {facts.n_kv_heads} key heads of {facts.head_dim or '?'}")
    if facts.rope:
        parts.append(describe_rotation(facts.rope))
    elif facts.rope_theta:
        parts.append(f"θ {facts.rope_theta:,.0f}")
    return ", ".join(part for part in parts if part)
