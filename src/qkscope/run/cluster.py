"""Units on a Ray cluster: one long-lived worker per GPU, or per slot of CPUs if there are no GPUs.

The driver plans, assigns units and puts results together. A worker keeps its model for the units of one checkpoint.
Tokens go once through Ray's object store, 4 bytes each. Workers that see the driver's results folder write units
themselves; from others the bytes come back through the object store and the driver writes them.

Ray's own retries (`max_restarts`, `max_task_retries`) and `ActorPool` do not suffice: a retry here may be in smaller
passes, alone, or on a node whose versions have to be checked first, and every retry is reported.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from qkscope import store
from qkscope.corpus import Document
from qkscope.errors import EngineError, StoreError
from qkscope.run.assemble import versions
from qkscope.run.engines import DocumentsOf, Tally, UnitQueue, do_unit, too_long
from qkscope.run.units import (
    CAPTURE_VERSION,
    UNITS,
    Job,
    SumFiles,
    UnitMeasurer,
    error_line,
    import_libraries,
    mark_failed,
    mark_running,
    unmark,
    write_sums,
)
from qkscope.study import Study

# A cluster that has room starts a worker in seconds; importing torch on a cold network disk takes longest.
PLACEMENT_SECONDS = 120.0
REACH_SECONDS = 5.0
# Packages that must agree between driver and workers: they decide the numbers.
AGREED = ("qkscope", "python", "numpy", "torch", "transformers")


@dataclass(frozen=True)
class WorkerFacts:
    """What the driver needs to know about a new worker."""

    host: str
    versions: dict[str, str]
    shared: bool
    """Whether it sees the driver's results folder."""


@dataclass(frozen=True)
class UnitOutcome:
    """The result of a unit. `data` are the bytes of its files if the worker could not write them itself."""

    seconds: float
    error: str = ""
    disk: bool = False
    data: SumFiles | None = None


class Worker:
    """A Ray actor that measures one unit after the other with one model in memory."""

    def __init__(self) -> None:
        self._measurer = UnitMeasurer()

    def facts(self, token: str, timed: bool) -> WorkerFacts:
        if timed:
            import_libraries()
        return WorkerFacts(socket.gethostname(), agreed_versions(), Path(token).is_file())

    def do(self, job: Job, documents: Sequence[Document], results: str | None) -> UnitOutcome:
        """Measure a unit and write it below `results`, or return its bytes if `results` is None."""
        started = time.monotonic()
        data, error, disk = None, "", False
        try:
            if results is None:
                data = self._measurer.unit_bytes(job, documents, lambda _: None)
            else:
                do_unit(self._measurer, job, documents, Path(results), lambda _: None)
        except StoreError as raised:
            error, disk = f"{socket.gethostname()}: {raised}", True
        except Exception as raised:
            error = error_line(raised)
        return UnitOutcome(time.monotonic() - started, error, disk, data)


@dataclass
class WorkerHandle:
    """A worker as the driver sees it: its actor, its facts once they are known, and the unit it measures."""

    number: int
    actor: Any
    facts: WorkerFacts | None = None
    job: Job | None = None
    began: float = 0.0


class RayEngine:
    """Assigns units to workers and collects the results."""

    def __init__(self, study: Study) -> None:
        self._ray = _import_ray()
        self._retries, self._timeout = study.retries, study.timeout
        self._owned = _connect(self._ray)
        try:
            self._gpus, self._cpus = _slot(self._ray.nodes(), study.gpus, study.cpus)
        except EngineError:
            self.close()
            raise
        self.busy_seconds = 0.0
        """Time that workers spent on units; the rest is overhead of the engine."""

    def run(self, jobs: Sequence[Job], documents: DocumentsOf, results: Path, tally: Tally) -> dict[str, str]:
        self._results = Path(results).resolve()
        self._queue = UnitQueue(jobs, self._retries)
        self._tally = tally
        self._busy: dict[Any, WorkerHandle] = {}
        self._idle: list[WorkerHandle] = []
        self._started = self._starts_lost = 0
        self._placed = time.monotonic()
        texts: dict[str, Any] = {}
        token = self._results / UNITS / f".seen-{uuid.uuid4().hex}"
        store.write_text(token, "")
        try:
            while self._queue.unfinished:
                self._start_workers(token)
                self._assign(documents, texts)
                self._collect()
                self._stop_timed_out()
                tally.bar.describe(f"measuring on {sum(1 for each in self._all() if each.facts)} workers")
        finally:
            token.unlink(missing_ok=True)
            for worker in self._all():
                self._end(worker)
        return self._queue.failures

    def close(self) -> None:
        if self._owned:
            self._ray.shutdown()

    def _all(self) -> list[WorkerHandle]:
        return [*self._busy.values(), *self._idle]

    def _start_workers(self, token: Path) -> None:
        """Start workers for the work that is left, as many as fit on the nodes that are there now."""
        room = sum(_slots_of(node, self._gpus, self._cpus) for node in self._ray.nodes() if node["Alive"])
        workers = self._all()
        for _ in range(min(room, self._queue.unfinished) - len(workers)):
            actor = self._ray.remote(Worker).options(num_gpus=self._gpus, num_cpus=self._cpus).remote()
            self._started += 1
            self._placed = time.monotonic()
            facts = actor.facts.remote(str(token), self._timeout is not None)
            self._busy[facts] = WorkerHandle(self._started, actor)
        if any(worker.facts for worker in workers):
            self._placed = time.monotonic()
        elif time.monotonic() - self._placed > PLACEMENT_SECONDS:
            raise EngineError(
                f"the cluster could not place a worker with {self._gpus} GPUs and {self._cpus} CPUs within "
                f"{PLACEMENT_SECONDS:.0f} s; free some, or lower gpus and cpus in the study"
            )

    def _assign(self, documents: DocumentsOf, texts: dict[str, Any]) -> None:
        """Give each idle worker a unit. `texts` are documents in Ray's object store, by their digest."""
        for worker in list(self._idle):
            job = self._queue.take(worker.number)
            if job is None:
                continue
            digest = job.key["documents"]
            if digest not in texts:
                texts[digest] = self._ray.put(documents(job))
            shared = bool(worker.facts and worker.facts.shared)
            if not shared:
                mark_running(job.path(self._results))
            self._idle.remove(worker)
            worker.job, worker.began = job, time.monotonic()
            ref = worker.actor.do.remote(job, texts[digest], str(self._results) if shared else None)
            self._busy[ref] = worker

    def _collect(self) -> None:
        """Wait up to a second and handle finished units, new workers and lost ones."""
        if not self._busy:
            time.sleep(0.5)
            return
        ready, _ = self._ray.wait(list(self._busy), num_returns=1, timeout=1.0)
        for ref in ready:
            worker = self._busy.pop(ref)
            try:
                answer = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                self._lost(worker, error)
                continue
            if isinstance(answer, WorkerFacts):
                check_versions(agreed_versions(), answer)
                worker.facts = answer
            elif worker.job is not None:
                job, worker.job = worker.job, None
                self._finished(job, answer)
            self._idle.append(worker)

    def _stop_timed_out(self) -> None:
        """End workers whose unit takes longer than the study's timeout; new ones replace them."""
        if self._timeout is None:
            return
        for ref, worker in list(self._busy.items()):
            if worker.job is not None and time.monotonic() - worker.began > self._timeout:
                del self._busy[ref]
                self._end(worker)
                self._queue.fail(worker.job, why := too_long(worker.job, self._timeout))
                self._report_failed(worker.job, why)

    def _finished(self, job: Job, outcome: UnitOutcome) -> None:
        if outcome.data is not None:
            write_sums(job.path(self._results), outcome.data)
        unmark(job.path(self._results))
        if outcome.disk:
            raise StoreError(outcome.error)
        if outcome.error:
            self._queue.fail(job, outcome.error)
            self._report_failed(job, outcome.error)
            return
        self.busy_seconds += outcome.seconds
        self._queue.finish()
        self._tally.bar.advance(job.tokens)
        self._tally.finished(job, outcome.seconds)

    def _lost(self, worker: WorkerHandle, error: Exception) -> None:
        """A worker or its node died: only the unit it was measuring has to be repeated."""
        self._end(worker)
        where = f"on {worker.facts.host}" if worker.facts else "before it started"
        short = isinstance(error, self._ray.exceptions.OutOfMemoryError)
        if worker.job is None:
            self._starts_lost += 1
            if self._starts_lost > self._retries and not any(each.facts for each in self._all()):
                raise EngineError(f"workers end before they start: {_cause(error, short)}") from error
        elif why := self._queue.lose(worker.job, where, short_of_memory=short):
            self._report_failed(worker.job, why)
        else:
            how = " alone and in smaller passes, because memory ran out" if short else ""
            self._tally.bar.done(f"{worker.job}: its worker {where} was lost; measuring it again{how}")

    def _end(self, worker: WorkerHandle) -> None:
        self._ray.kill(worker.actor)
        if worker.job is not None:
            unmark(worker.job.path(self._results))

    def _report_failed(self, job: Job, why: str) -> None:
        mark_failed(job.path(self._results), why)
        self._tally.failed(job, why)


def agreed_versions() -> dict[str, str]:
    """Versions that must be the same on driver and workers."""
    # "+cpu" and "+cu128" are builds of one release: a driver without a GPU may plan for workers with one.
    found = {name: version.partition("+")[0] for name, version in versions().items() if name in AGREED}
    return {**found, "python": ".".join(found["python"].split(".")[:2]), "capture": str(CAPTURE_VERSION)}


def check_versions(driver: dict[str, str], worker: WorkerFacts) -> None:
    differ = [
        f"{name} {worker.versions.get(name, 'missing')} instead of {driver.get(name, 'none')}"
        for name in sorted({*driver, *worker.versions})
        if worker.versions.get(name) != driver.get(name)
    ]
    if differ:
        raise EngineError(
            f"the worker on {worker.host} has {', '.join(differ)}; install the same versions on every node, "
            "otherwise the numbers would come from different code"
        )


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        missing = "the ray engine needs Ray, which is not installed: pip install 'qkscope[dist]'"
        raise EngineError(missing) from error
    return ray


def _connect(ray: Any) -> bool:
    """Connect to the cluster at RAY_ADDRESS, or start one here. Returns whether we have to shut it down."""
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS", "")
    options = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address and address != "local":
            _reach(address)
            ray.init(address=address, **options)
        else:
            ray.init(address="local", include_dashboard=False, **options)
    except (RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        at = f"no Ray cluster responds at RAY_ADDRESS={address}"
        what = f"{at if address else 'Ray cannot be started on this machine'}: {error_line(error)}"
        raise EngineError(f"{what}; start one with `ray start --head`, or unset RAY_ADDRESS") from error
    return True


def _reach(address: str) -> None:
    """Raise OSError soon if nothing listens at the address; Ray itself would try for minutes."""
    parts = urlsplit(address if "://" in address else f"ray://{address}")
    if parts.hostname and parts.port:
        socket.create_connection((parts.hostname, parts.port), timeout=REACH_SECONDS).close()


def _slot(nodes: Sequence[Any], gpus: int | None, cpus: int | None) -> tuple[int, int]:
    """(GPUs, CPUs) of one worker: as in the study; by default one GPU, or all CPUs of the smallest node."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    most = max((int(node.get("GPU", 0)) for node in alive), default=0)
    wanted = gpus if gpus is not None else min(1, most)
    smallest = min((int(node["CPU"]) for node in alive if node.get("CPU", 0) >= 1), default=1)
    slot = wanted, cpus or (1 if wanted else smallest)
    if not any(_slots_of(node, *slot) for node in nodes if node["Alive"]):
        largest = max((int(node.get("CPU", 0)) for node in alive), default=0)
        raise EngineError(
            f"a unit needs {slot[0]} GPUs and {slot[1]} CPUs on one node; the {len(alive)} nodes of this cluster "
            f"have at most {most} GPUs and {largest} CPUs: change gpus and cpus in the study, or add nodes"
        )
    return slot


def _slots_of(node: Any, gpus: int, cpus: int) -> int:
    room = [node["Resources"].get("CPU", 0) // cpus]
    if gpus:
        room.append(node["Resources"].get("GPU", 0) // gpus)
    return int(min(room))


def _cause(error: Exception, short_of_memory: bool) -> str:
    """Why workers die while they start, and what to do."""
    if short_of_memory:
        return "Ray ended them because their node is out of memory; stop other programs there, or use another node"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    version = agreed_versions()["qkscope"]
    return f"{lines[-1].strip()}; is qkscope {version} with the extra `capture` installed on every node?"
