"""Where the numbers of a results folder came from."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any

from qkscope.checkpoints.doctor import Finding
from qkscope.run.plan import Plan, Planned

PACKAGES = ("qkscope", "numpy", "pandas", "safetensors", "torch", "transformers", "huggingface_hub", "ray")


def provenance(
    plan: Plan, measured: Sequence[Planned], unmeasured: Mapping[str, int], findings: Sequence[Finding]
) -> dict[str, Any]:
    """Where the numbers came from: versions, commits, texts, what is missing and what to beware of."""
    planned = [each for each in measured if not each.checkpoint.counterfactual]
    facts = ("family", "num_layers", "n_q_heads", "n_kv_heads", "head_dim", "rope_theta", "max_positions")
    corpora = {each.corpus.digest: each.corpus for each in planned}
    first = next(iter(corpora.values()))
    return {
        "versions": versions(),
        "checkpoints": {
            each.checkpoint.name: {
                "commit": each.commit,
                **{fact: getattr(each.architecture, fact) for fact in facts},
                "rope": json.loads(each.rotation),
                "window": each.checkpoint.window,
                "corpus": each.corpus.digest,
            }
            for each in planned
        },
        "counterfactual": {
            each.checkpoint.name: {
                "commit": each.commit,
                "weights_of": each.checkpoint.weights_of,
                "rotation_of": each.checkpoint.rotation_of,
                "rope_theta": each.architecture.rope_theta,
                "rope": json.loads(each.rotation),
                "window": each.checkpoint.window,
            }
            for each in measured
            if each.checkpoint.counterfactual
        },
        "corpus": {
            "documents": len(first.documents),
            "digest": first.digest,
            "origin": first.origin,
            "tokens": first.tokens(max(plan.study.windows)),
            "available": first.available,
            "start": plan.study.corpus.start,
            "seed": plan.study.corpus.seed,
            "filled": {window: first.filled(window) for window in plan.study.windows},
        },
        "warnings": list(plan.warnings),
        "findings": [asdict(finding) | {"checkpoints": list(finding.checkpoints)} for finding in findings],
        "missing": dict(plan.missing),
        "unmeasured": dict(unmeasured),
    }


def versions() -> dict[str, str]:
    """Of Python and the packages that decide the numbers, without importing them."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
