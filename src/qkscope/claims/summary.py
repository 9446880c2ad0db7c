"""summary.json: the headline numbers of every checkpoint and the findings, machine readable."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from qkscope.claims.catalogue import claims
from qkscope.results import Results, aggregate
from qkscope.results.taxonomy import UNMEASURED
from qkscope.stats.transitions import transition_noise
from qkscope.store import for_json
from qkscope.words import tokens

if TYPE_CHECKING:
    import xarray as xr


def summary(results: Results) -> dict[str, Any]:
    """Study, checkpoints with their own-window and matched-window numbers, transitions, findings, warnings."""
    timeline = results.timeline
    same = results.matched()
    own, matched = _windows(results, results.own()), {} if same is None else _windows(results, same)
    facts = ("model", "label", "phase", "step", "window", "missing")
    checkpoints = [
        {name: getattr(checkpoint, name) for name in facts}
        | {"own": own.get(checkpoint.model), "matched": matched.get(checkpoint.model)}
        for checkpoint in timeline.checkpoints
    ]
    found_noise = transition_noise(results.own(), timeline.models, results.thresholds)
    result: dict[str, Any] = for_json(
        {
            "study": {name: getattr(timeline, name) for name in ("name", "title", "kind", "matched_window")}
            | {"thresholds": asdict(results.thresholds)},
            "checkpoints": checkpoints,
            "transitions": found_noise.to_dict("records") if timeline.kind == "training" else [],
            "findings": [claim.record() for claim in claims(results)],
            "warnings": warnings(results),
        }
    )
    return result


def _windows(results: Results, data: xr.Dataset) -> dict[str, dict[str, Any]]:
    """By checkpoint: numbers of each population, the loss, and the published protocol's numbers, which pool all heads.

    A model without NoPE layers has one population, `all`.
    """
    tables: dict[str, dict[str, Any]] = {}
    for population in aggregate.populations(data):
        for model, numbers in _headlines(results, data, population).items():
            tables.setdefault(model, {"populations": {}})["populations"][population] = numbers
    for model, numbers in _headlines(results, data, "all").items():
        tables[model]["published_protocol"] = numbers
    if "loss" in data:
        errors = aggregate.jackknife(data["loss"]).to_numpy().tolist()
        found = data["loss"].isel(sample=0).to_numpy().tolist()
        for model, loss, se in zip(data["checkpoint"].to_numpy().tolist(), found, errors, strict=True):
            tables[model] |= {"loss": loss, "se_loss": se}
    return tables


def _headlines(results: Results, data: xr.Dataset, population: str) -> dict[str, dict[str, Any]]:
    """By checkpoint: means with errors, class and polarity shares, heads above the null, unmeasured heads."""
    order = results.timeline.models
    tables: dict[str, dict[str, Any]] = {}
    for row in aggregate.position_signal(data, order, population).to_dict("records"):
        tables[row.pop("model")] = row
    for row in aggregate.explained_variance(data, order, population).to_dict("records"):
        tables[row["model"]] |= {"mean_explained_variance": row["mean"], "se_explained_variance": row["se"]}
    for row in aggregate.above_null(data, order, population).to_dict("records"):
        tables[row["model"]] |= {"above_null_q": row["share_q"], "above_null_k": row["share_k"]}
    classes = aggregate.class_shares(data, order, results.thresholds, population)
    polarities = aggregate.polarity_shares(data, order, results.thresholds, population)
    for key, table in (("class", classes), ("polarity", polarities)):
        for row in table.to_dict("records"):
            if row[key] == UNMEASURED:
                tables[row["model"]]["unmeasured"] = row["heads"]
                continue
            numbers = {name: value for name, value in row.items() if name not in ("model", key)}
            tables[row["model"]].setdefault(key, {})[row[key]] = numbers
    return tables


def warnings(results: Results) -> list[str]:
    """What a reader must know before comparing: the run's own warnings, gaps, windows, heads to leave aside."""
    timeline = results.timeline
    found = list(results.record.warnings)
    found += [
        f"{checkpoint.model} was not measured: {checkpoint.missing}"
        for checkpoint in timeline.checkpoints
        if checkpoint.missing
    ]
    for i in timeline.window_changes:
        before, after = timeline.measured[i - 1], timeline.measured[i]
        windows = f"{tokens(before.window or 0)} and {after.label} over {tokens(after.window or 0)}"
        found.append(f"{before.label} was measured over {windows}: compare them over the same first tokens")
    data = results.own()
    here, known = aggregate.present(data).to_numpy(), aggregate.measured(data).to_numpy()
    below = aggregate.positional_below_null(data, results.thresholds)
    for i, model in enumerate(data["checkpoint"].to_numpy()):
        if lost := int((here[i] & ~known[i]).sum()):
            found.append(f"{model}: {lost} of {here[i].sum()} heads could not be measured and are left out")
        if count := int(below[i].sum()):
            found.append(f"{model}: {count} heads of a positional class do not exceed their null")
    return list(dict.fromkeys(found))
