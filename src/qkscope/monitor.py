"""Measure a model while it trains; the folder it writes is an ordinary study.

    monitor = qkscope.Monitor(model, texts, tokenizer=tokenizer, out="results/live")
    for step, batch in enumerate(batches):
        if step % 100 == 0:
            print(monitor.measure(step))     # about thirty numbers; training goes on as if nothing had happened
        ...
    monitor.close()                          # writes tables and report

    live.yaml                       the study; study.yaml is the same, resolved and with provenance
    held_out.tokens.safetensors     the documents
    checkpoints/checkpoint-<step>/  configuration, digest of the weights, numbers; the weights are not copied
    units/, cells/, tables, report  as `qkscope run` writes them

Units are measured by the code of `qkscope run`, on the model in memory. Tables and report are written by a process of
low priority, at most every few minutes and at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from qkscope import store
from qkscope.capture.architecture import read_architecture
from qkscope.capture.live import (
    Ranks,
    WholeModel,
    is_sharded,
    undisturbed,
    unwrapped,
    was_saved_in,
    weights_digest,
)
from qkscope.capture.probe import Probing
from qkscope.checkpoints import Resolved
from qkscope.checkpoints.files import LIVE, digest
from qkscope.corpus.documents import Document, documents_from, write_tokens
from qkscope.corpus.documents import digest as tokens_digest
from qkscope.errors import CorpusError, EngineError, StoreError, StudyError
from qkscope.measures.registry import optional_names
from qkscope.progress import quiet
from qkscope.results.aggregate import scalars, values
from qkscope.results.dataset import dataset
from qkscope.results.tables import select
from qkscope.run.assemble import assemble
from qkscope.run.plan import needed, plan_study
from qkscope.run.units import Job, UnitMeasurer, write_sums
from qkscope.stats.alarms import Alarm, alarms
from qkscope.study import Study, load_study, sources

if TYPE_CHECKING:
    from filelock import FileLock

STUDY, TOKENS, NUMBERS = "live.yaml", "held_out.tokens.safetensors", "numbers.json"
# The study with the step in it that is being measured, for `plan_study`.
PLANNING = ".planning.yaml"
# Measures that are kept for every head of every step, beside the tables.
BY_HEAD = (
    *("rope", "share_positional", "share_position", "share_key", "share_match", "r_q", "r_k"),
    *("sink_score", "attn_prev", "induction_score", "q_norm", "k_norm", "max_logit"),
)
WINDOW, DOCUMENTS, GROUPS = 512, 16, 4
REPORT_MINUTES = 10.0


class Monitor:
    """Measures a model while it trains.

    model           a transformers causal model; inside torch.compile, DDP or FSDP2 as well
    texts           held-out texts, or lists of token ids
    tokenizer       of the texts; not needed for token ids
    out             results folder; the same folder continues a resumed run
    window          tokens of each document (default: 512, or the model's positions if it has fewer); shorter ones are
                    left out
    documents       how many documents are measured, in `groups` groups of equal size for jackknife errors
    measures        optional measures, as in a study
    loss            measure the loss on the documents as well
    alarms          limits, as in a study; None for none
    report_minutes  tables and report are written at most this often, and by `close`
    replace         discard what another training run measured in `out`

    In a distributed run every rank makes a monitor and calls `measure` at the same steps; rank 0 writes.
    """

    def __init__(
        self,
        model: Any,
        texts: Iterable[Any],
        tokenizer: Any = None,
        out: Path | str = "results/live",
        *,
        window: int | None = None,
        documents: int = DOCUMENTS,
        groups: int = GROUPS,
        measures: Sequence[str] = (),
        loss: bool = True,
        alarms: Mapping[str, Any] | None = None,
        report_minutes: float = REPORT_MINUTES,
        replace: bool = False,
    ) -> None:
        self._model = unwrapped(model)
        self.out = Path(out).resolve()
        self._ranks = Ranks()
        config = self._model.config
        most = read_architecture(config.get_text_config()).max_positions or WINDOW
        window = min(WINDOW, most) if window is None else window
        chosen = _chosen(documents_from(texts, tokenizer, window), window, documents, groups)
        self._settings: dict[str, Any] = {
            "name": self.out.name,
            "title": f"{self.out.name}: measured while it trains",
            "corpus": str(self.out / TOKENS),
            "windows": [window],
            "groups": min(groups, len(chosen)),
            "measures": list(measures),
            "loss": loss,
            # Other RoPE settings need weights, which may not be saved.
            "controls": {"rotation": False},
        } | ({} if alarms is None else {"alarms": dict(alarms)})
        self.alarms: list[Alarm] = []
        self._first = True
        self._report_seconds, self._reported = 60 * report_minutes, time.monotonic()
        self._report: subprocess.Popen[bytes] | None = None
        self._lock: FileLock | None = None
        self._ranks.first(lambda: self._open(chosen, replace))

    def measure(self, step: int, saved: Path | str | None = None) -> dict[str, float]:
        """Measure the model as it is now and return its main numbers.

        `saved` is the folder where these very weights were saved as safetensors, if they were: units then have the
        keys that `qkscope run` gives them for this folder.
        """
        began = time.perf_counter()
        with undisturbed(self._model), quiet():
            parts = self._ranks.each(lambda: weights_digest(self._model))
            self._measure_units(*self._ranks.first(lambda: self._prepare(step, parts, saved)))
            numbers = self._ranks.first(lambda: self._finish(step))
        if self._ranks.rank == 0 and time.monotonic() - self._reported > self._report_seconds:
            self.report()
        return numbers | {"seconds": time.perf_counter() - began}

    def resume(self, step: int) -> None:
        """Training begins or continues at this step: what was measured later belongs to a run that ended.

        At step 0 nothing is forgotten yet: the first measurement tells whether it is the same run again.
        """
        if step > 0:
            self._first = False
            self._ranks.first(lambda: self._forget_after(step))

    def report(self, wait: bool = False) -> None:
        """Write tables and report of all steps in another process; with `wait`, return when it is done."""
        if self._ranks.rank != 0 or not self.steps:
            return
        if self._report is not None and self._report.poll() is None:
            if not wait:
                return
            self._report.wait()
        self._reported = time.monotonic()
        self._report = _refreshing(self.out / STUDY, self.out, low_priority=not wait)
        if wait and self._report.wait():
            last = (self.out / "report.log").read_text(errors="replace").strip().splitlines()[-1:]
            raise EngineError(f"{self.out}: tables and report were not written: {''.join(last)}")

    def close(self) -> None:
        """Write tables and report a last time."""
        try:
            self.report(wait=True)
        finally:
            if self._lock is not None:
                self._lock.release()

    @property
    def steps(self) -> list[int]:
        """The steps that are measured."""
        found = (path.parent.name for path in (self.out / "checkpoints").glob(f"checkpoint-*/{NUMBERS}"))
        return sorted(int(name.removeprefix("checkpoint-")) for name in found)

    def heads(self, step: int) -> dict[str, np.ndarray[Any, Any]]:
        """Layer, head and the main measures of every head at a measured step, each (heads,)."""
        record = store.read_json(self._folder(step) / NUMBERS)
        layer, head = np.array(record["heads"], dtype=np.int64).T
        numbers = {name: np.array(each, dtype=np.float64) for name, each in record["by_head"].items()}
        return {"layer": layer, "head": head, **numbers}

    # --- on the first rank ----------------------------------------------------------------------------------------

    def _open(self, documents: Sequence[Document], replace: bool) -> None:
        from filelock import FileLock, Timeout

        with store.clear_errors(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.out / ".live.lock")
        try:
            self._lock.acquire(blocking=False)
        except Timeout as error:
            raise EngineError(
                f"{self.out}: another process measures a training run into this folder; choose another `out`"
            ) from error
        tokens, study = self.out / TOKENS, self.out / STUDY
        if replace and study.exists():
            for folder in ("checkpoints", "units", "cells"):
                shutil.rmtree(self.out / folder, ignore_errors=True)
        elif any(self.out.glob("*.safetensors")) and not study.exists():
            raise StoreError(
                f"{self.out} has results that are not of a monitored training run; choose another `out`"
            )
        elif self.steps and tokens.exists():
            arrays, _ = store.read_tensors(tokens)
            before = documents_from([arrays[name] for name in sorted(arrays)])
            if tokens_digest(before) != tokens_digest(documents):
                raise StoreError(
                    f"{self.out} has measurements on other documents; choose another `out`, or pass replace=True"
                )
        store.sweep(self.out)
        write_tokens(tokens, documents)
        self._write_study(self.steps or [0])  # finds mistakes in the settings now

    def _forget_after(self, step: int) -> None:
        for later in [each for each in self.steps if each > step]:
            (self._folder(later) / NUMBERS).unlink()

    def _check_same_run(self, step: int, commit: str) -> None:
        """A folder with measurements is continued after its last step, or from the same weights at an earlier one."""
        if not self.steps or step > self.steps[-1]:
            return
        if step not in self.steps or store.read_json(self._folder(step) / LIVE)["commit"] != commit:
            raise StoreError(
                f"{self.out} has measurements of another training run, at steps {self.steps[0]} to {self.steps[-1]}; "
                "choose another `out`, or pass replace=True to discard them"
            )
        self._forget_after(step)

    def _prepare(
        self, step: int, parts: list[str], saved: Path | str | None
    ) -> tuple[list[Job], dict[int, list[Document]]]:
        """What is to be measured at a step: units and their documents by group."""
        if step < 0:
            raise StudyError(f"step is {step}; expected 0 or more")
        folder = self._folder(step)
        source = None if saved is None else Path(saved).resolve()
        if source is not None and not is_sharded(self._model) and was_saved_in(self._model, source):
            commit, config = digest(source), (source / "config.json").read_bytes()
        else:
            commit, source = f"live:{parts[0] if len(set(parts)) == 1 else store.short_digest(parts)}", None
            config = self._model.config.to_json_string().encode()
        if self._first:
            self._check_same_run(step, commit)
            self._first = False
        folder.mkdir(parents=True, exist_ok=True)
        store.write_bytes(folder / "config.json", config)
        store.write_json(folder / LIVE, {"commit": commit, "saved": str(source or "")})
        self._study = self._write_study(sorted({*self.steps, step}), PLANNING)
        this = [each for each in sources(self._study) if each.name == folder.name]
        plan = plan_study(self._study, this)
        self._planned = plan.planned[0]
        todo = needed(plan, self.out, plan.jobs)
        return todo, {job.group: plan.documents(job) for job in todo}

    def _finish(self, step: int) -> dict[str, float]:
        """The numbers of a step, and the study with this step in it."""
        own = select(dataset(assemble(self._study, [self._planned], self.out).cells), "own")
        found = {name: each[0] for name, each in scalars(own).items()}
        record = {
            "numbers": {name: _plain(each) for name, each in found.items()},
            "heads": np.stack([own["layer"], own["number"]], axis=1).tolist(),
            "by_head": {name: _plain(values(own, name)[0, 0].to_numpy()) for name in BY_HEAD if name in own},
        }
        store.write_json(self._folder(step) / NUMBERS, record)
        self._write_study(self.steps)
        self._find_alarms(step)
        return {name: float(each[0]) for name, each in found.items()}

    def _find_alarms(self, step: int) -> None:
        """Alarms of this step, given all earlier ones."""
        self.alarms = []
        if self._study.alarms is None:
            return
        steps = [each for each in self.steps if each <= step]
        records = [store.read_json(self._folder(each) / NUMBERS)["numbers"] for each in steps]
        shared = [name for name in records[-1] if all(name in record for record in records)]
        history = {name: np.array([record[name] for record in records], dtype=np.float64) for name in shared}
        names = [self._folder(each).name for each in steps]
        found = alarms(self._study.alarms, names, history)
        self.alarms = [alarm for alarm in found if alarm.checkpoint == names[-1]]

    def _write_study(self, steps: Sequence[int], name: str = STUDY) -> Study:
        entries = [{"folder": str(self._folder(step)), "step": step} for step in steps]
        text = yaml.safe_dump({**self._settings, "checkpoints": entries}, sort_keys=False, width=110)
        store.write_text(self.out / name, text)
        return load_study(self.out / name, optional_names())

    def _folder(self, step: int) -> Path:
        return self.out / "checkpoints" / f"checkpoint-{step}"

    # --- on all ranks ---------------------------------------------------------------------------------------------

    def _measure_units(self, todo: Sequence[Job], texts: Mapping[int, Sequence[Document]]) -> None:
        """Measure units, each rank another one, and write them on the first rank.

        All ranks make the same number of passes, because FSDP gathers weights in every pass: a rank without a unit in
        the last round measures the last unit again.
        """
        measurer = _LiveMeasurer(WholeModel(self._model) if is_sharded(self._model) else self._model)
        for start in range(0, len(todo), self._ranks.count):
            job = todo[min(start + self._ranks.rank, len(todo) - 1)]
            work = partial(measurer.unit_bytes, job, texts[job.group], lambda tokens: None)
            for each, files in zip(todo[start:], self._ranks.each(work), strict=False):
                if self._ranks.rank == 0:
                    write_sums(each.path(self.out), files)


class _LiveMeasurer(UnitMeasurer):
    """Measures units with a model that is in memory, whatever they say where its weights are."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model, self._probe = model, Probing(model)

    def _load(self, source: Resolved) -> None:
        """It is loaded."""


def _refreshing(study: Path, out: Path, low_priority: bool) -> subprocess.Popen[bytes]:
    """Write tables and report in another process, on one thread; its output goes to report.log."""
    call = f"from qkscope.run import run; run({str(study)!r}, {str(out)!r}, replace=True, figures=False)"
    path = os.pathsep.join(each or "." for each in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with (out / "report.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", call], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    if low_priority:
        with suppress(AttributeError, OSError):  # not on every system, and it may have ended
            os.setpriority(os.PRIO_PROCESS, process.pid, 19)
    return process


def _chosen(found: Sequence[Document], window: int, count: int, groups: int) -> list[Document]:
    """The first documents that fill the window, equally many for each group."""
    if groups < 2 or count < 2:
        raise CorpusError(f"{count} documents in {groups} groups; expected at least 2 of each")
    long = [document for document in found if len(document.tokens) >= window][:count]
    if len(long) < 2:
        longest = max(len(document.tokens) for document in found)
        raise CorpusError(
            f"{len(long)} of {len(found)} documents have {window} tokens, the longest has {longest}; expected at least "
            "2: give longer texts, or a shorter `window`"
        )
    kept = long[: len(long) - len(long) % min(groups, len(long))]
    return [Document(index, document.name, document.tokens) for index, document in enumerate(kept)]


def _plain(values: np.ndarray[Any, Any]) -> list[float | None]:
    """For JSON, which has no NaN."""
    return [float(x) if np.isfinite(x) else None for x in values]
