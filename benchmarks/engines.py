"""The same units here and on Ray."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Row, Size, say
from benchmarks.made import study_of_llamas


def engines(size: Size) -> Iterator[Row]:
    """Units of two documents of 1024 tokens, a Llama of 5 M parameters, one thread per worker. Time per unit
    excludes the first, which waits for workers and models. Overhead is the time a worker was idle. The speed-up is
    of two workers over one, on two checkpoints.
    """
    import ray
    import torch

    torch.set_num_threads(1)
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", OMP_NUM_THREADS="1")
    groups, window = size.pick(16, 2), size.pick(1024, 64)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        single, pair = (study_of_llamas(folder / str(n), n, groups, 2 * groups, window) for n in (1, 2))
        local = _timed(single, folder / "local", "local")
        both = {}
        for workers in (1, 2):
            ray.init("local", num_cpus=workers, include_dashboard=False, logging_level="ERROR")
            if workers == 1:
                remote = _timed(single, folder / "ray", "ray")
            both[workers] = _timed(pair, folder / f"ray-{workers}", "ray")
            ray.shutdown()
    table = f"Units of {2 * window} tokens, locally and on Ray"
    found = {"local engine": local, "one Ray worker": remote, "two Ray workers": both[2]}
    for of, each in found.items():
        facts: dict[str, float | str] = {
            "s until first unit": each["first"],
            "ms per unit": 1e3 * each["rest"] / each["units"],
        }
        if of == "one Ray worker":
            facts["overhead, ms per unit"] = 1e3 * (each["rest"] - each["busy"]) / each["units"]
        if of == "two Ray workers":
            facts["speed-up over one worker"] = both[1]["rest"] / each["rest"]
        say(f"{table}: {of}: {facts}")
        yield Row(table, of, "limit" if of == "local engine" else "ours", facts=facts)


def _timed(study_path: Path, out: Path, engine_name: str) -> dict[str, float]:
    """Seconds from the start to the first finished unit, from there to the last, and what workers say of themselves."""
    from qkscope.progress import Bar
    from qkscope.run.engines import Tally, open_engine
    from qkscope.run.plan import plan_study
    from qkscope.study import load_study, sources

    class Clock(Bar):
        def done(self, line: str) -> None:
            times.append(time.monotonic())
            busy.append(getattr(engine, "busy_seconds", 0.0))

    study = load_study(study_path)
    plan = plan_study(study, sources(study), out / "tokens")
    engine = open_engine(engine_name, study)
    times, busy = [time.monotonic()], [0.0]
    try:
        engine.run(plan.jobs, plan.documents, out, Tally(plan.jobs, Clock("tokens")))
    finally:
        engine.close()
    return {
        "first": times[1] - times[0],
        "rest": times[-1] - times[1],
        "units": len(times) - 2,
        "busy": busy[-1] - busy[1],
    }
