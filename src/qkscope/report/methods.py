"""What the page says about how the numbers came to be: plain tables of text for the template.

Study and provenance may lack anything, as they do when the results are a foreign qk.csv alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from qkscope.checkpoints.rope import describe_rotation
from qkscope.defaults import GROUPS
from qkscope.measures.pca import FAINT
from qkscope.measures.pca import LEVEL as NULL_LEVEL

if TYPE_CHECKING:
    from qkscope.results import Results
    from qkscope.results.provenance import CheckpointRecord, CorpusRecord

# Shown in their own place on the page, or of no interest to a reader of the results.
_NOT_SETTINGS = {"provenance", "phases", "families", "checkpoints", "name", "title", "portraits"}
_NOT_SETTINGS |= {"thresholds", "retries", "keep_weights", "gpus", "cpus", "device", "device_map"}


def methods(results: Results) -> dict[str, Any]:
    """The template's `methods`: settings, corpus, versions, checkpoints, warnings, gaps."""
    record = results.record
    return {
        "settings": settings(results.study or {}),
        "corpus": corpus(record.corpus),
        "versions": record.versions,
        "checkpoints": checkpoints(results),
        "missing": missing(results),
        "unmeasured": unmeasured(results),
        "warnings": [*record.warnings, *map(str, record.findings)],
        "windows": windows(results),
        "thresholds": results.thresholds,
        "matched_window": results.timeline.matched_window,
        "has_matched": results.matched() is not None,
        "has_errors": bool(np.isfinite(results.heads["r_q_se"]).any()),
        "has_null": bool(np.isfinite(results.heads["r_q_null"]).any()),
        "faint": FAINT,
        "level": level(results.study or {}),
    }


def settings(study: Mapping[str, Any]) -> dict[str, str]:
    """The study's remaining settings, one line each, in its own order."""
    found = {}
    for name, value in study.items():
        if name not in _NOT_SETTINGS and value is not None:
            everything = name == "heads" and isinstance(value, Mapping) and value.get("sample") is None
            found[str(name).replace("_", " ")] = "all" if everything else plain(value)
    return found


def level(study: Mapping[str, Any]) -> str:
    """The level of the test against chance, in words."""
    return f"{NULL_LEVEL:.0%} over {study.get('groups') or GROUPS} groups of documents"


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


def windows(results: Results) -> list[tuple[str, int]]:
    """(phase, context window) in order, each once."""
    checkpoints = results.timeline.checkpoints
    return list(
        dict.fromkeys(
            (checkpoint.phase, checkpoint.window)
            for checkpoint in checkpoints
            if checkpoint.window is not None
        )
    )


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


def missing(results: Results) -> dict[str, str]:
    """Checkpoints of the study that were not measured, with the reason."""
    found = {
        checkpoint.model: checkpoint.missing
        for checkpoint in results.timeline.checkpoints
        if checkpoint.missing
    }
    return results.record.missing | found


def unmeasured(results: Results) -> dict[str, int]:
    """Checkpoint -> heads whose correlations are not defined."""
    lacking = results.heads[results.heads["class"] == "unmeasured"]
    return {str(model): len(rows) for model, rows in lacking.groupby("model", sort=False)}
