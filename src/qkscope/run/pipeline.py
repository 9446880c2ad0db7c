"""The pipeline: a study file in, a results folder out.

Plan the units, measure those that are missing, assemble the tables, draw figures and report. A run that was stopped,
for any reason, continues when it is started again; only complete and current unit files count.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from qkscope import store
from qkscope.errors import EngineError, QkscopeError, StoreError, StudyError
from qkscope.measures.registry import chosen, optional_names
from qkscope.progress import progress, quiet, say
from qkscope.results import Results, examples, load_results, manifest, owner
from qkscope.results.aggregate import scalars
from qkscope.results.dataset import NAME, read_dataset
from qkscope.results.lock import FolderLock, locked
from qkscope.results.tables import ABLATION, select, write_tables
from qkscope.results.taxonomy import Thresholds, non_finite_heads, too_few_measured, unmeasured_warnings
from qkscope.run.assemble import (
    AssembledCells,
    assemble,
    made_from,
    provenance,
    versions,
    write_axes,
    write_excerpts,
)
from qkscope.run.engines import Engine, Tally, open_engine
from qkscope.run.inspection import inspect_results, inspect_study
from qkscope.run.plan import (
    Plan,
    PlannedCheckpoint,
    controls,
    holding,
    needed,
    pinned,
    plan_study,
    without_counterfactual,
)
from qkscope.run.status import Shard, Status, parse_shard, shard_plans, split, status, write_plan
from qkscope.run.units import UNITS, Job, clear_marks, error_line
from qkscope.study import Checkpoint, Study, dump_study, left_out_of, load_study, sources

if TYPE_CHECKING:
    import pandas as pd

# Tokenised texts, kept because the next run needs them too.
TOKENS = "tokens"
# While units are measured, tables and report of what is finished are written this often, after a checkpoint.
REFRESH_SECONDS = 60.0


def run(
    study_path: Path | str,
    out: Path | str | None = None,
    engine: str = "local",
    shard: str | None = None,
    replace: bool = False,
    figures: bool = True,
) -> Results | Status:
    """Measure a study and write its results folder (default: `results/<study name>`).

    With `shard` (`"1/8"`), only that part of the units is measured, and their status is returned. A run without `shard`
    measures the units that are missing and writes tables, figures and report. If a checkpoint could not be measured,
    everything else is finished first, then an error is raised. While it runs, tables and report of the checkpoints
    measured so far are refreshed every minute. `figures=False` leaves figures out.

    A folder with finished results accepts the same study again, also with more checkpoints, windows, heads or measures.
    Anything else needs `replace=True`.
    """
    part = parse_shard(shard) if shard is not None else None
    if part and engine != "local":
        raise EngineError(
            f"--shard cannot be combined with --engine {engine}, which distributes the units itself: use one of them"
        )
    study = load_study(study_path, optional_names())
    if not study.keep_weights and (part or engine != "local"):
        raise EngineError(
            "keep_weights: false does not work with workers or shards, which share the hub cache: one would "
            "delete weights that another still reads. Remove the line"
        )
    results = Path(out) if out is not None else Path("results") / study.name
    names = [checkpoint.name for checkpoint in sources(study)]
    owner.refuse_other(results, owner.study_holding(study), replace=replace, named=names)
    for name, why in left_out_of(study_path).items():
        say(f"left out: {name}: {why}")
    try:
        with store.clear_errors(results), locked(results, study.name, str(part) if part else None) as lock:
            opened = open_engine(engine, study)
            try:
                if part is not None:
                    return _run_shard(study, results, opened, part, replace)
                loaded, problem = run_locked(study, results, opened, lock, replace, figures)
                if problem:
                    raise StudyError(problem)
                return loaded
            finally:
                opened.close()
    except KeyboardInterrupt:
        again = f"qkscope run {study_path}"
        again += f" --out {out}" if out else ""
        again += f" --shard {shard}" if shard else ""
        again += " --replace" if replace else ""
        message = f"interrupted; finished units are kept in {results / UNITS}. To continue: {again}"
        raise KeyboardInterrupt(message) from None


def run_locked(
    study: Study, results: Path, engine: Engine, lock: FolderLock, replace: bool = False, figures: bool = True
) -> tuple[Results, str]:
    """Run a study in a folder that this process has locked: its results, and why it did not succeed (or "")."""
    checkpoints, gaps = _checkpoints(study, results)
    plan = plan_study(study, checkpoints, results / TOKENS)
    plan.warnings.extend(gaps)
    plan.findings.extend(
        inspect_study(study, [each.checkpoint for each in without_counterfactual(plan.planned)])
    )
    # What was measured and cannot be read now is judged when the tables are assembled: other units are done first.
    _own(plan, results, replace, plan.missing)
    todo = needed(plan, results, plan.jobs)
    if count := max(shard_plans(results).values(), default=0):
        shards = split(checkpoints, study.groups, count)
        unfinished: dict[int, list[str]] = {}
        for job in todo:
            unfinished.setdefault(shards[job.name, job.group], []).append(job.name)
        for number, units in sorted(unfinished.items()):
            names = ", ".join(dict.fromkeys(units))
            say(f"shard {number}/{count} is unfinished: measuring its {len(units)} missing units ({names})")
    if extra := [each.name for each in checkpoints if each.counterfactual]:
        names = ", ".join(extra)
        say(f"RoPE settings change, so {len(extra)} counterfactual checkpoints are measured as well: {names}")
    write_plan(results, study.name, plan.jobs, plan.missing)
    _measure(plan, todo, results, engine, _partial_reports(plan, todo, results, lock, replace))
    measured = [each for each in plan.planned if each.checkpoint.name not in plan.missing]
    if not without_counterfactual(measured):
        raise StudyError(_what_is_missing(plan.missing, results))
    lock.require()
    clear_marks(job.path(results) for each in measured for job in each.jobs)
    loaded = _put_together(plan, measured, results, lock, replace, figures)
    for name, warning in unmeasured_warnings(loaded.heads).items():
        say(f"warning: {name}: {warning}")
    return loaded, _problem(plan, loaded)


def _checkpoints(study: Study, results: Path) -> tuple[list[Checkpoint], list[str]]:
    """The checkpoints to measure, counterfactual ones included, and what cannot be separated without others."""
    store.sweep(results)
    checkpoints = pinned(sources(study))
    counterfactual, gaps = controls(study, checkpoints)
    return checkpoints + counterfactual, gaps


def _partial_reports(
    plan: Plan, todo: Sequence[Job], results: Path, lock: FolderLock, replace: bool
) -> Callable[[str], None]:
    """A function to call when a checkpoint is measured: it writes tables and report of those that are."""
    waiting = dict.fromkeys(job.name for job in todo)
    written = time.monotonic()

    def on_checkpoint(name: str) -> None:
        nonlocal written
        del waiting[name]
        ready = [each for each in plan.planned if each.checkpoint.name not in waiting]
        if not waiting or not without_counterfactual(ready) or time.monotonic() - written < REFRESH_SECONDS:
            return
        missing = dict.fromkeys(waiting, "not measured yet")
        done, every = len(without_counterfactual(ready)), len(without_counterfactual(plan.planned))
        note = f"partial: {done} of {every} checkpoints are measured so far"
        part = Plan(plan.study, plan.planned, {**plan.missing, **missing}, [note, *plan.warnings])
        try:
            with quiet():
                _put_together(part, ready, results, lock, replace, figures=False, finished=False)
        except QkscopeError as error:  # such as finished numbers that are being measured again
            say(f"no partial report: {error_line(error)}")
        written = time.monotonic()

    return on_checkpoint


def _own(plan: Plan, results: Path, replace: bool, unplanned: Collection[str]) -> None:
    """Refuse a folder with results of another study; else record that it is this study's."""
    planned = holding(plan.study, plan.planned)
    owner.refuse_other(results, planned, replace=replace, named=unplanned)
    if owner.held(results) is None:
        manifest.begin(results, owner.Holding("run", plan.study.name).record())


def _problem(plan: Plan, results: Results) -> str:
    """Why a finished run did not succeed; empty if it did."""
    if plan.missing:
        return _what_is_missing(plan.missing, results.folder)
    problem = too_few_measured(results.heads, "dtype: float32 in the study")
    return f"{results.folder}: {problem}" if problem else ""


def _run_shard(study: Study, results: Path, engine: Engine, shard: Shard, replace: bool) -> Status:
    checkpoints, _ = _checkpoints(study, results)
    shards = split(checkpoints, study.groups, shard.count)
    mine = {unit for unit, number in shards.items() if number == shard.number}
    names = {name for name, _ in mine}
    plan = plan_study(study, [each for each in checkpoints if each.name in names], results / TOKENS)
    _own(plan, results, replace, [checkpoint.name for checkpoint in checkpoints])
    jobs = [job for job in plan.jobs if (job.name, job.group) in mine]
    every = [(each.name, each.folder, group) for each in checkpoints for group in range(study.groups)]
    write_plan(results, study.name, jobs, plan.missing, shard, every)
    todo = needed(plan, results, jobs)
    if not todo:
        why = "" if mine else f" ({len(checkpoints)} checkpoints are too few)"
        say(f"shard {shard}: nothing to do{why}")
    _measure(plan, todo, results, engine)
    if plan.missing:
        raise StudyError(_what_is_missing(plan.missing, results))
    return status(results)


def _measure(
    plan: Plan,
    todo: Sequence[Job],
    results: Path,
    engine: Engine,
    on_checkpoint: Callable[[str], None] = lambda name: None,
) -> None:
    """Measure units. Checkpoints that fail are added to `plan.missing`."""
    for corpus in {each.corpus.digest: each.corpus for each in plan.planned}.values():
        say(corpus.usage(max(plan.study.windows)))
    for warning in plan.warnings:
        say(f"warning: {warning}")
    for finding in plan.findings:
        say(str(finding))
    for name, why in plan.missing.items():
        say(f"warning: {name}: cannot be measured: {why}")
    done = len(plan.jobs) - len(todo)
    if done and todo:
        say(f"{done} of {len(plan.jobs)} units are already done")
    if todo:
        with progress("measuring", sum(job.tokens for job in todo)) as bar:
            tally = Tally(todo, bar, on_checkpoint)
            plan.missing.update(engine.run(todo, plan.documents, results, tally))


def _put_together(
    plan: Plan,
    measured: Sequence[PlannedCheckpoint],
    results: Path,
    lock: FolderLock,
    replace: bool,
    figures: bool,
    finished: bool = True,
) -> Results:
    """Write dataset, tables, figures and report, unless they are there and nothing has changed since."""
    computed = [[group.name, group.version, *group.needs] for group in chosen(plan.study.optional_measures)]
    notes = [plan.warnings, plan.findings, plan.missing, versions(), computed]
    digest = made_from(plan.study, measured, results, notes if figures else [*notes, "without figures"])
    if manifest.is_finished(results, digest):
        say(f"nothing changed: {results} is up to date")
        return load_results(results)
    holds = holding(plan.study, measured)
    owner.refuse_other(results, holds, replace=replace, unread=plan.missing)
    say(f"merging {sum(len(each.jobs) for each in measured)} units")
    assembled = assemble(plan.study, measured, results)
    for warning in assembled.warnings:
        say(f"warning: {warning}")
    plan.warnings += assembled.warnings
    with manifest.replacing_set(results, digest, holds.record(), lock.require) as folder:
        _write(plan, measured, assembled, results, folder)
    loaded = load_results(results)
    try:
        with manifest.replacing_drawn(results, digest, owner.DRAWN, lock.require) as folder:
            _summarize_and_draw(loaded, folder, figures)
    except Exception as error:
        with suppress(StoreError):
            if lock.holds():
                manifest.note_failed(results, f"figures and report were not drawn: {error_line(error)}")
        raise
    if finished:
        manifest.note_finished(results, _problem(plan, loaded), lock.require)
    return loaded


def _write(
    plan: Plan, measured: Sequence[PlannedCheckpoint], assembled: AssembledCells, results: Path, folder: Path
) -> None:
    """The dataset and the tables made from it, into an empty folder."""
    # Late, because they import pandas.
    from qkscope.stats.alarms import alarms
    from qkscope.stats.attribution import causes

    study = plan.study
    order = [each.checkpoint.name for each in without_counterfactual(measured)]
    limits = Thresholds(study.thresholds.high, study.thresholds.low)
    heads = write_tables(folder, assembled.cells, order, limits)
    steps = order if study.kind == "training" else []
    data = read_dataset(folder / NAME)
    seen = inspect_results(measured, results, data)
    new = [finding for finding in seen if not any(finding.repeats(other) for other in plan.findings)]
    for finding in new:
        say(str(finding))
    store.write_csv(folder / "causes.csv", causes(data, steps, limits, assembled.same_axis))
    write_axes(assembled, folder / "axes.safetensors")
    write_excerpts(study, measured, data, results, folder / examples.NAME)
    plan.warnings += [f"{name}: {why}" for name, why in unmeasured_warnings(heads).items()]
    record = provenance(plan, measured, non_finite_heads(heads), [*plan.findings, *new])
    if study.alarms is not None:
        found = alarms(study.alarms, order, scalars(select(data, "own").sel(checkpoint=order)))
        record["alarms"] = [str(alarm) for alarm in found]
        record["warnings"] = [*(f"alarm: {alarm}" for alarm in found), *record["warnings"]]
    store.write_text(folder / "study.yaml", dump_study(study, record))


def redraw(results: Results, ablation: pd.DataFrame) -> None:
    """Put a table of ablations into a results folder, and draw summary, figures and report anew with it."""
    with owner.redrawing(results.folder, results.made_from, owner.DRAWN) as staged:
        _summarize_and_draw(dataclasses.replace(results, ablation=ablation), staged, figures=True)


def _summarize_and_draw(results: Results, folder: Path, figures: bool) -> None:
    """Summary, figures and report of results, into another folder; ablations of the same weights are kept."""
    from qkscope.claims import summary
    from qkscope.figures import draw_all
    from qkscope.report import write_report

    if results.ablation is not None:
        store.write_csv(folder / ABLATION, results.ablation)
    store.write_json(folder / "summary.json", summary(results))
    if figures:
        draw_all(results, folder / "figures")
    write_report(results, folder / "report.html")


def _what_is_missing(missing: dict[str, str], results: Path) -> str:
    lines = [f"  {name}: {why}" for name, why in missing.items()]
    many = "1 checkpoint is" if len(missing) == 1 else f"{len(missing)} checkpoints are"
    kept = "What was measured is kept: fix the cause and run again."
    return "\n".join([f"{many} missing from {results}:", *lines, kept])
