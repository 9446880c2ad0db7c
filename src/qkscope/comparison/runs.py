"""Two runs side by side, or a run beside the published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qkscope.comparison.arms import compare_arms
from qkscope.comparison.differences import by_head, numbers_of, rows_of, text_notes, threshold_note
from qkscope.comparison.matching import Matched, head_keys, match
from qkscope.comparison.outcome import Comparison
from qkscope.comparison.published import with_published
from qkscope.errors import TableError
from qkscope.results import Results, as_results
from qkscope.stats.levels import rule_of_difference
from qkscope.words import tokens

Run = Path | str | Results

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
    rematched = _rematched(found)
    mine = numbers_of(ours, rematched)
    others = numbers_of(theirs, [found.pairs[model] for model in rematched])
    notes = [*found.notes, *text_notes(ours, theirs), *_window_notes(found)]
    notes += threshold_note(ours.thresholds, theirs.thresholds)
    return Comparison(
        *found.names,
        rows=rows_of(
            mine,
            {(name, our_name[model]): value for (name, model), value in others.items()},
            len(head_keys(ours.heads)),
        ),
        only_ours=found.only_ours,
        only_theirs=found.only_theirs,
        notes=(*notes, rule_of_difference(), OVER_DOCUMENTS),
        heads=by_head(ours.heads, theirs.heads.assign(model=theirs.heads["model"].map(our_name))),
    )


def _rematched(found: Matched) -> list[str]:
    """Checkpoints whose matched window is not their own on one side: elsewhere both numbers would be the same."""
    sides = [found.ours.timeline, found.theirs.timeline]
    return [
        pair[0]
        for pair in found.pairs.items()
        if any(
            side.stop(model).window != side.matched_window for side, model in zip(sides, pair, strict=True)
        )
    ]


def _window_notes(found: Matched) -> list[str]:
    notes = []
    for model, their in found.pairs.items():
        mine, other = found.ours.timeline.stop(model).window, found.theirs.timeline.stop(their).window
        if mine is not None and other is not None and mine != other:
            notes.append(
                f"{model} was measured over {tokens(mine)} in one run and {tokens(other)} in the other: its "
                "training-context numbers may differ for that reason alone."
            )
    return notes
