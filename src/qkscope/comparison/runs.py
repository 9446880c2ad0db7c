"""Two runs side by side, a run beside the published numbers, or two arms of several seeds with errors over seeds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkscope.comparison.matching import (
    Matched,
    head_keys,
    match,
    nothing_in_common,
    only_heads,
    part,
    run_name,
)
from qkscope.comparison.outcome import (
    CELLS,
    Comparison,
    Numbers,
    Quantity,
    Row,
    by_head,
    depth_cell,
    measured,
    numbers_of,
    rows_of,
    text_notes,
    threshold_note,
)
from qkscope.errors import TableError
from qkscope.results import Results, aggregate, as_results
from qkscope.results.taxonomy import Thresholds
from qkscope.stats.contrast import ArmDifference, arm_difference, clear_differences
from qkscope.stats.levels import rule_of_agreement, rule_of_arms
from qkscope.study.timeline import Timeline
from qkscope.sums.head_index import sample_heads
from qkscope.words import tokens

if TYPE_CHECKING:
    import xarray as xr

Run = Path | str | Results

# How far a mean read off a published plot may be from the one plotted.
READ_OFF = 0.002
# How far a number printed with two decimals may be from the one meant.
PRINTED = 0.005
# Half a unit of the last of three printed decimals.
PRINTED_3 = 0.0005
# Its column in our table, and its name among the published numbers.
PLASTICITY = {
    "mean plasticity": ("plasticity", "plasticity"),
    "mean plasticity, first less last": ("plasticity_drop", "plasticity_drop"),
}

OVER_DOCUMENTS = "Errors are over documents and do not include variation between training seeds."


def compare(results_dir: Run | Sequence[Run], with_: Run | Sequence[Run]) -> Comparison:
    """Compare a results folder (or qk.csv) with another one, or with `"published"`, the published SmolLM3-3B numbers.

    If both sides are lists of runs (several seeds of two training setups), their means are compared, with errors over
    runs instead of documents.
    """
    ours = _loaded(results_dir)
    if with_ == "published":
        if len(ours) > 1:
            raise TableError("the published numbers are from one run: compare exactly one run with them")
        return with_published(ours[0])
    theirs = _loaded(with_)
    if len(ours) == len(theirs) == 1:
        return compare_matched(match(ours[0], theirs[0]))
    return compare_arms(ours, theirs)


def _loaded(runs: Run | Sequence[Run]) -> list[Results]:
    return [as_results(run) for run in ([runs] if isinstance(runs, Run) else runs)]


def compare_matched(found: Matched) -> Comparison:
    """Every number that two matched runs have."""
    ours, theirs = found.ours, found.theirs
    our_name = {their: our for our, their in found.pairs.items()}
    # Where a checkpoint's matched window is its own on both sides, both numbers would be the same.
    rematched = [
        model
        for model, their in found.pairs.items()
        if not _is_matched(ours.timeline, model) or not _is_matched(theirs.timeline, their)
    ]
    mine = numbers_of(ours, rematched)
    others = numbers_of(theirs, [found.pairs[model] for model in rematched])
    notes = [*found.notes, *text_notes(ours, theirs), *_window_notes(found)]
    notes += threshold_note(ours.thresholds, theirs.thresholds)
    renamed = {(name, our_name[model]): value for (name, model), value in others.items()}
    return Comparison(
        *found.names,
        rows=rows_of(mine, renamed, len(head_keys(ours.heads))),
        only_ours=found.only_ours,
        only_theirs=found.only_theirs,
        notes=(*notes, rule_of_agreement(), OVER_DOCUMENTS),
        heads=by_head(ours.heads, theirs.heads.assign(model=theirs.heads["model"].map(our_name))),
    )


def _is_matched(timeline: Timeline, model: str) -> bool:
    return timeline.checkpoint(model).window == timeline.matched_window


def _window_notes(found: Matched) -> list[str]:
    notes = []
    for model, their in found.pairs.items():
        mine = found.ours.timeline.checkpoint(model).window
        other = found.theirs.timeline.checkpoint(their).window
        if mine is not None and other is not None and mine != other:
            notes.append(
                f"{model} was measured over {tokens(mine)} in one run and {tokens(other)} in the other: its "
                "training-context numbers may differ for that reason alone."
            )
    return notes


IN_SUM = "all checkpoints"
OVER_SEEDS = "Errors are over seeds: each run counts as one value, and ± is one standard error of their mean."
NO_HEADS = "Heads do not correspond between seeds, so only averages and shares over many heads are compared."


def compare_arms(ours: Sequence[Results], theirs: Sequence[Results]) -> Comparison:
    """Every number that all runs of both arms have, at each checkpoint and averaged over all of them."""
    _check(ours, theirs)
    numbers, notes = _aligned([*ours, *theirs])
    shared = [key for key in numbers[0] if all(np.isfinite(each.get(key, (np.nan,))[0]) for each in numbers)]
    quantities = list(dict.fromkeys(quantity for quantity, _ in shared))
    shared.sort(key=lambda key: quantities.index(key[0]))
    judged = {}
    for key in shared:
        values = np.array([each[key][0] for each in numbers])
        judged[key] = arm_difference(values[: len(ours)], values[len(ours) :])
    sums = [key for key in shared if key[1] == IN_SUM]
    clear = clear_differences([judged[key] for key in sums])
    return Comparison(
        *_arm_names(ours, theirs),
        rows=tuple(_row(key, judged[key]) for key in shared),
        only_ours=(),
        only_theirs=(),
        notes=(*notes, NO_HEADS, rule_of_arms(), OVER_SEEDS),
        seeds=(len(ours), len(theirs)),
        clear=tuple(_row(key, judged[key]) for key, counts in zip(sums, clear, strict=True) if counts),
    )


def _aligned(runs: Sequence[Results]) -> tuple[list[Numbers], list[str]]:
    """Each run's numbers at the checkpoints and over the heads that all have, under the first one's names; notes."""
    first = runs[0]
    found = [match(first, run) for run in runs]
    order = [model for model in first.timeline.models if all(model in each.pairs for each in found)]
    if not order:
        raise TableError(
            f"{', '.join(map(run_name, runs))} have no checkpoint in common: none is in all of these runs"
        )
    heads = set.intersection(*(head_keys(each.ours.heads) for each in found))
    numbers = [
        _numbers(part(run, [each.pairs[model] for model in order], heads), each.pairs, order)
        for run, each in zip(runs, found, strict=True)
    ]
    left_out = [model for model in first.timeline.models if model not in order]
    notes = [note for each in found for note in each.notes]
    notes += [note for run in runs for note in threshold_note(first.thresholds, run.thresholds)]
    notes += [note for run in runs[1:] for note in text_notes(first, run)]
    notes += [f"Not in every run: {', '.join(left_out)}."] if left_out else []
    return numbers, list(dict.fromkeys(notes))


def _check(ours: Sequence[Results], theirs: Sequence[Results]) -> None:
    if min(len(ours), len(theirs)) < 2:
        raise TableError(
            f"{len(ours)} and {len(theirs)} runs: errors over seeds need at least two runs on each side; "
            "give one run on each side to compare them with errors over documents"
        )
    folders = [run.folder.resolve() for run in (*ours, *theirs)]
    twice = [str(folder) for folder in folders if folders.count(folder) > 1]
    if twice:
        raise TableError(f"{twice[0]} is given twice: each run counts once, on one side")


def _numbers(side: Results, pairs: Mapping[str, str], order: Sequence[str]) -> Numbers:
    """A run's numbers under the first run's names; and the average over checkpoints of those not of a single depth."""
    first = {their: our for our, their in pairs.items()}
    other = [pairs[model] for model in order if not _is_matched(side.timeline, pairs[model])]
    found = {(name, first[model]): value for (name, model), value in numbers_of(side, other).items()}
    for quantity in dict.fromkeys(quantity for quantity, _ in found):
        values = [found[quantity, model][0] for model in order if (quantity, model) in found]
        if len(values) == len(order) and quantity.kind not in CELLS:
            found[quantity, IN_SUM] = float(np.mean(values)), np.nan
    return found


def _row(key: tuple[Quantity, str], found: ArmDifference) -> Row:
    quantity, checkpoint = key
    sides = (found.ours, found.our_se, found.theirs, found.their_se)
    return Row(quantity.name, checkpoint, *sides, found.difference, found.agrees, quantity.kind)


def _arm_names(ours: Sequence[Results], theirs: Sequence[Results]) -> tuple[str, str]:
    """The common beginning of the names of an arm's runs if it differs between the arms, else all names.

    It ends where a part of a name ends: `wide` of `wide-10` and `wide-11`.
    """
    for name in (run_name, lambda run: run.folder.name):
        begins = []
        for names in ([name(run) for run in arm] for arm in (ours, theirs)):
            alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
            same = "".join(letters[0] for letters in alike)
            whole = re.match(r"(.*)[-_. /]", same)
            begins.append(same if same in names or whole is None else whole[1])
        if all(begins) and begins[0] != begins[1]:
            return begins[0], begins[1]
    return ", ".join(run.folder.name for run in ours), ", ".join(run.folder.name for run in theirs)


# --- the numbers published for SmolLM3-3B -----------------------------------------------------------------------------


def published() -> dict[str, Any]:
    """The published SmolLM3-3B numbers, with where they come from."""
    text = (files("qkscope") / "published" / "smollm3.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def with_published(ours: Results) -> Comparison:
    """Results beside the published numbers: the same checkpoints by name, the same 300 heads."""
    data, own = published(), ours.timeline.models
    order = [model for model in own if model in data["checkpoints"]]
    if not order:
        raise nothing_in_common(own, data["checkpoints"], run_name(ours), "published")
    sample = set(sample_heads(range(36), 16, 300, seed=0))
    shared = only_heads(aggregate.ordered(ours.own(), order), sample)
    if (aggregate.present(shared).sum("head") != len(sample)).any():
        raise TableError(
            f"{ours.folder}: the published numbers cover 300 heads, sampled with seed 0 from 36 layers of 16, but "
            f"these results do not have all of them; measure with `heads: {{sample: 300, seed: 0}}` or all heads"
        )
    mine = measured(shared, order, ours.thresholds) | _plasticity(shared, order)
    rows = rows_of(mine, _published_numbers(data), len(sample))
    notes = (
        f"Published: {data['source']}",
        "The published numbers have no standard errors over documents; the errors shown for them come from "
        "rounding and reading off plots.",
        *_slope_note(ours, data),
        *threshold_note(ours.thresholds, Thresholds()),
    )
    only_ours, only_theirs = (
        tuple(model for model in side if model not in order) for side in (own, data["checkpoints"])
    )
    return Comparison(run_name(ours), "published", rows, only_ours, only_theirs, notes)


def _plasticity(data: xr.Dataset, order: Sequence[str]) -> Numbers:
    """Mean plasticity and its drop along the window, where the study measured it."""
    found: Numbers = {}
    for name, (column, _) in PLASTICITY.items():
        if column in data:
            for row in aggregate.means(data, order, (column,), of=column).to_dict("records"):
                found[Quantity(name, "mean"), row["model"]] = row[f"mean_{column}"], row[f"se_{column}"]
    return found


def _slope_note(ours: Results, data: dict[str, Any]) -> list[str]:
    """Slopes are not compared number by number: the published ones are quoted, over the window too."""
    if not {"slope_k", "plasticity"} & set(map(str, ours.data)):
        return []
    slopes = data["rotation_and_plasticity"]["alpha_k_by_window"].items()
    quoted = [
        f"{slope:g} per token over {tokens(int(w))} ({slope * int(w):.1f} per window)" for w, slope in slopes
    ]
    return [
        f"Published slope of keys along the drift axis: {'; '.join(quoted)}. Windows differ between checkpoints, and a "
        "slope per token shrinks with the window: compare slope_k, over the window."
    ]


def _published_numbers(data: dict[str, Any]) -> Numbers:
    found: Numbers = {}
    for i, model in enumerate(data["checkpoints"]):
        for name in ("r_q", "r_k", "explained_variance"):
            quantity = Quantity(f"mean {name.replace('explained_', 'explained ')}", "mean")
            found[quantity, model] = data[f"mean_{name}"][i], READ_OFF
        counts = {name: column[i] for name, column in data["taxonomy_head_counts"].items()}
        for name, heads in counts.items():
            found[Quantity(f"share {name}", "share"), model] = heads / sum(counts.values()), 0.0
        for name, (_, key) in PLASTICITY.items():
            found[Quantity(name, "mean"), model] = data["rotation_and_plasticity"][key][i], PRINTED_3
        for kind, key in zip(CELLS, ("depth_heatmap_r_q", "depth_heatmap_r_k"), strict=True):
            for depth_bin, value in enumerate(data[key][i]):
                found[depth_cell(kind, depth_bin), model] = value, PRINTED
    return found
