"""What a study costs as it grows, and what the engines add.

    .venv/bin/python benchmarks/scale.py                    # all parts, about five minutes on two cores
    .venv/bin/python benchmarks/scale.py doubling ray       # some of them

    doubling   twice the documents: capture time doubles; memory, file sizes and PCA time stay
    shapes     a unit of SmolLM3's and of Pythia's shape: bytes, seconds to write, read and merge
    ray        the same units locally and on Ray with one and two workers: overhead a unit, speed-up
    memory     peak memory of a worker beside that of `scan` on the same model
    estimate   the SmolLM3 and Pythia studies on 1, 8 and 64 GPUs, from stated rates and the dealing of units

Models are random and of real classes: what they say does not matter to the clock. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SMALL = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 6, "num_attention_heads": 8}
LARGE = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 6, "num_attention_heads": 16}
Rows = list[tuple[str, str]]


def make_study(folder: Path, documents: int, checkpoints: int, window: int = 1024, **shape: Any) -> Path:
    """Random Llamas with a byte tokenizer, and a study of them over the standard library's sources."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder / "tokenizer")
    for number in range(1, checkpoints + 1):
        torch.manual_seed(number)
        config = LlamaConfig(
            vocab_size=256, num_key_value_heads=2, max_position_embeddings=window, **(SMALL | shape)
        )
        LlamaForCausalLM(config).save_pretrained(folder / "runs" / f"checkpoint-{number}")
    study = (
        f"name: scale\ncheckpoints: runs\nwindows: [{window}]\ntokenizer: tokenizer\ngroups: 4\ndevice: cpu\ncpus: 1\n"
        f"corpus: {{source: stdlib, documents: {documents}, min_tokens: {window}}}\n"
    )
    (folder / "study.yaml").write_text(study)
    return folder / "study.yaml"


def child(study_path: Path, out: Path) -> dict[str, float]:
    """Measure and put together in this process, one thread; seconds are the processor's."""
    import torch

    from qkscope.progress import progress
    from qkscope.run.assemble import tables
    from qkscope.run.cluster import peak_bytes
    from qkscope.run.engines import LocalEngine
    from qkscope.run.plan import plan_study
    from qkscope.study import load_study, sources

    torch.set_num_threads(1)
    study = load_study(study_path)
    plan = plan_study(study, sources(study), out / "tokens")
    started, wall = time.process_time(), time.monotonic()
    with progress("measuring", None) as bar:
        LocalEngine().run(plan.jobs, plan.documents, out, bar)
    captured, peak = time.process_time(), peak_bytes()
    took = time.monotonic() - wall
    tables(study, plan.planned, out)
    return {
        "tokens": sum(job.tokens for job in plan.jobs),
        "capture": captured - started,
        "wall": took,
        "pca": time.process_time() - captured,
        "peak": peak,
        "bytes": float(np.mean([job.path(out).stat().st_size for job in plan.jobs])),
    }


def doubling(folder: Path) -> Rows:
    found = []
    for documents in (32, 64):
        study = make_study(folder / str(documents), documents, checkpoints=1)
        command = [sys.executable, __file__, "--child", str(study), str(folder / str(documents) / "out")]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        found.append(json.loads(done.stdout))
    one, two = found

    def row(name: str, key: str, unit: str, scale: float = 1.0) -> tuple[str, str]:
        a, b = one[key] / scale, two[key] / scale
        return name, f"{a:,.2f} -> {b:,.2f} {unit} (x {b / a:.2f})"

    return [
        ("documents of 1024 tokens", "32 -> 64"),
        row("capture and moments, processor", "capture", "s"),
        row("PCA and tables, processor", "pca", "s"),
        row("peak memory", "peak", "MB", 1e6),
        row("bytes a unit", "bytes", "kB", 1e3),
        ("tokens a processor second (5 M parameters)", f"{two['tokens'] / two['capture']:,.0f}"),
    ]


def random_unit(
    layers: int, q_heads: int, kv_heads: int, dim: int, count: int | None, rings: int, seed: int
) -> Any:
    """A unit of the right shape with moments of random vectors."""
    from qkscope.heads import HeadIndex, sample_heads
    from qkscope.moments import Moments, Unit
    from qkscope.path import Path as BinSums
    from qkscope.path import bin_edges
    from qkscope.rotation import Rotation

    rng = np.random.default_rng(seed)
    heads = HeadIndex.of(sample_heads(range(layers), q_heads, count), q_heads // kv_heads)

    def moments(rows: int) -> Moments:
        x = rng.standard_normal((rows, dim, 2 * dim))
        return Moments(
            n=np.full(rows, 2 * dim),
            mean_x=x.mean(axis=2),
            mean_t=np.full(rows, 5.0),
            M=x @ x.transpose(0, 2, 1),
            C=rng.standard_normal((rows, dim)),
            T=np.full(rows, 1e3),
            bad=np.zeros(rows, dtype=np.int64),
        )

    edges = tuple(4096 * 8**i for i in range(rings))
    bins = bin_edges(edges)

    def path(rows: int) -> BinSums:
        return BinSums(bins, 62 * np.diff(bins), rng.standard_normal((rows, len(bins) - 1, dim)))

    return Unit(
        heads=heads,
        windows=edges,
        q=tuple(moments(len(heads)) for _ in range(rings)),
        k=tuple(moments(len(heads.keys)) for _ in range(rings)),
        sink_q=moments(len(heads)),
        sink_k=moments(len(heads.keys)),
        path_q=path(len(heads)),
        path_k=path(len(heads.keys)),
        rotations=dict.fromkeys(range(layers), Rotation.none(dim)),
        scales=dict.fromkeys(range(layers), dim**-0.5),
        lengths=(edges[-1],) * 62,
    )


def shapes(folder: Path) -> Rows:
    from qkscope.measures.pca import measure
    from qkscope.store import read_tensors, write_tensors

    rows: Rows = []
    kinds = {
        "SmolLM3-3B, 300 heads, 3 windows": (36, 16, 4, 128, 300, 3),
        "SmolLM3-3B, 300 heads, 1 window": (36, 16, 4, 128, 300, 1),
        "Pythia-1.4B, 384 heads, 1 window": (24, 16, 16, 128, None, 1),
    }
    for name, shape in kinds.items():
        groups = 8 if shape[-1] == 1 else 4  # 8 groups of 3 windows need more memory than a laptop has free
        units = [random_unit(*shape, seed=seed) for seed in range(groups)]
        path = folder / "unit.safetensors"
        started = time.monotonic()
        write_tensors(path, *units[0].to_tensors())
        written = time.monotonic()
        read_tensors(path)
        read = time.monotonic()
        processor = time.process_time()
        measure(units, units[0].windows[-1])
        merged = time.process_time() - processor
        rows.append((f"{name}: bytes a unit", f"{path.stat().st_size / 1e6:,.0f} MB"))
        rows.append((f"{name}: write, read a unit", f"{written - started:.2f} s, {read - written:.2f} s"))
        rows.append(
            (f"{name}: merge and PCA of {groups} groups at one window", f"{merged:.1f} s of processor")
        )
    return rows


def timed_run(study_path: Path, out: Path, engine_name: str) -> dict[str, float]:
    """Seconds from the start to the first finished unit, from there to the last, and what workers say of themselves."""
    from qkscope.progress import Bar
    from qkscope.run.engines import open_engine
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
        engine.run(plan.jobs, plan.documents, out, Clock("", None, "tokens"))
    finally:
        engine.close()
    return {
        "first": times[1] - times[0],
        "rest": times[-1] - times[1],
        "units": len(times) - 2,
        "busy": busy[-1] - busy[1],
        "peak": getattr(engine, "peak_bytes", 0),
    }


def ray_part(folder: Path) -> Rows:
    """One checkpoint for the overhead, so that models are loaded once; two for the speed-up."""
    import ray
    import torch

    torch.set_num_threads(1)
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", OMP_NUM_THREADS="1")
    single, pair = (make_study(folder / str(count), 32, checkpoints=count) for count in (1, 2))
    for study in (single, pair):
        study.write_text(study.read_text().replace("groups: 4", "groups: 16"))
    local = timed_run(single, folder / "local", "local")
    found = {}
    for workers in (1, 2):
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        if workers == 1:
            remote = timed_run(single, folder / "ray", "ray")
        found[workers] = timed_run(pair, folder / f"ray-{workers}", "ray")["rest"]
        ray.shutdown()
    # On a machine that does other things too, the wall clocks of two runs do not compare; a run's own parts do.
    overhead = (remote["rest"] - remote["busy"]) / remote["units"]
    return [
        ("a unit of 2048 tokens, locally", f"{local['rest'] / local['units'] * 1e3:.0f} ms"),
        ("the same on one Ray worker", f"{remote['rest'] / remote['units'] * 1e3:.0f} ms"),
        ("of which the worker is not at work (overhead of Ray a unit)", f"{overhead * 1e3:.0f} ms"),
        ("until the first unit is done (worker, imports, model)", f"{remote['first']:.1f} s"),
        ("32 units of two checkpoints, one worker, two", f"{found[1]:.1f} s, {found[2]:.1f} s"),
        ("speed-up of two workers over one", f"x {found[1] / found[2]:.2f}"),
    ]


def memory(folder: Path) -> Rows:
    """A model of 1.2 GB, so that the weights and not the libraries are what is compared."""
    study = make_study(folder, 4, checkpoints=2, window=512, **LARGE)
    worker = timed_run(study, folder / "out", "ray")["peak"]
    code = (
        "import sys; from qkscope.scanning import scan; from qkscope.run.cluster import peak_bytes\n"
        "scan(sys.argv[1], tokenizer=sys.argv[2], documents=4, max_length=512, groups=4, device='cpu')\n"
        "print(peak_bytes())"
    )
    arguments = [str(folder / "runs" / "checkpoint-1"), str(folder / "tokenizer")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, check=True, text=True
    )
    alone = int(done.stdout.split()[-1])
    return [
        ("peak memory of `scan`, one model of 1.2 GB", f"{alone / 1e9:.2f} GB"),
        (
            "peak memory of a Ray worker that did two such checkpoints",
            f"{worker / 1e9:.2f} GB (x {worker / alone:.2f})",
        ),
    ]


# Stated, not measured: an A100's bfloat16 rate at 40% use, weights from a fast disk.
GPU_FLOPS = 0.4 * 312e12
LOAD_BYTES_PER_SECOND = 1e9
START_SECONDS = 15.0
OVERHEAD_SECONDS = 0.1


def pass_seconds(tokens: float, window: int, parameters: float, layers: int, width: int) -> float:
    """A forward pass without the head: two operations a parameter, and attention over half the window on average."""
    flops = 2 * parameters + layers * 4 * width * window / 2
    return tokens * flops / GPU_FLOPS


def makespan(units: dict[str, list[float]], load: float, workers: int) -> float:
    """Hours until the last unit is done when units are dealt as the Ray engine deals them."""
    from qkscope.run.unit_queue import UnitQueue
    from qkscope.run.units import Job

    blank: Any = None
    seconds = {(name, g): s for name, groups in units.items() for g, s in enumerate(groups)}
    queue = UnitQueue([Job(n, n, g, blank, {}, blank, (1,), 1, 1) for n, g in seconds], retries=0)
    clock = [(START_SECONDS, worker, "") for worker in range(workers)]
    heapq.heapify(clock)
    last = 0.0
    while True:
        now, worker, held = heapq.heappop(clock)
        job = queue.take(worker)
        if job is None:
            return last / 3600
        end = now + (load if job.name != held else 0.0) + seconds[job.name, job.group] + OVERHEAD_SECONDS
        last = max(last, end)
        heapq.heappush(clock, (end, worker, job.name))


def estimate(folder: Path) -> Rows:
    windows = [4096] * 6 + [32768] * 2 + [65536] * 2
    smollm3 = {f"{i}": [pass_seconds(500 / 8 * w, w, 2.8e9, 36, 2048)] * 8 for i, w in enumerate(windows)}
    studies = {
        "SmolLM3-3B, 10 checkpoints, 500 documents of up to 64K": (smollm3, 6.2e9, 500 * sum(windows)),
    }
    for name, parameters, layers, width, size in (
        ("Pythia-160M", 0.085e9, 12, 768, 0.33e9),
        ("Pythia-1.4B", 1.21e9, 24, 2048, 2.9e9),
        ("Pythia-6.9B", 6.44e9, 32, 4096, 13.8e9),
    ):
        units = {
            f"{i}": [pass_seconds(500 / 8 * 2048, 2048, parameters, layers, width)] * 8 for i in range(154)
        }
        studies[f"{name}, 154 checkpoints, 500 documents of 2048"] = (units, size, 154 * 500 * 2048)
    rows: Rows = []
    for name, (units, size, tokens) in studies.items():
        hours = [makespan(units, size / LOAD_BYTES_PER_SECOND, gpus) for gpus in (1, 8, 64)]
        text = ", ".join(f"{gpus} GPUs {h:.2f} h" for gpus, h in zip((1, 8, 64), hours, strict=True))
        rows.append((f"{name} ({tokens / 1e6:,.0f} M tokens)", text))
    return rows


PARTS: dict[str, Callable[[Path], Rows]] = {
    "doubling": doubling,
    "shapes": shapes,
    "ray": ray_part,
    "memory": memory,
    "estimate": estimate,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--child", nargs=2, type=Path, metavar=("STUDY", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(*options.child)))
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for part in options.parts or PARTS:
        print(f"\n{part}")
        with tempfile.TemporaryDirectory() as folder:
            for name, value in PARTS[part](Path(folder)):
                print(f"  {name:<72} {value}")


if __name__ == "__main__":
    main()
