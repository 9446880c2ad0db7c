"""What is measured: a real model, random tokens, units of any shape, studies of random models.

What weights, tokens and vectors say does not matter to the clock.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from qkscope.corpus import Document
from qkscope.run.plan import PlannedCheckpoint
from qkscope.run.units import Job, dump_unit, sum_settings, write_sums
from qkscope.store import dump_tensors
from qkscope.study import Study, load_study, sources
from qkscope.sums import FactSum, MomentSum, PathSum
from qkscope.sums.head_index import HeadIndex, sample_heads
from qkscope.sums.moments import Accumulator, Moments
from qkscope.sums.path import Path as BinSums
from qkscope.sums.path import bin_edges
from qkscope.sums.rotation import Rotation
from qkscope.sums.unit import Unit

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))


def smollm2(threads: int = 2) -> Any:
    """SmolLM2-135M in float32. Unpacked once: reading the packed file takes half a minute."""
    import torch
    from fetch_smollm2 import fetch_smollm2
    from transformers import AutoModelForCausalLM, logging

    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    unpacked = ROOT / "build" / "smollm2-float32"
    if not (unpacked / "model.safetensors").exists():
        path = fetch_smollm2()
        packed = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        del packed.config.quantization_config  # it is none any more, and would keep it from being saved
        packed.hf_quantizer = None
        packed.save_pretrained(unpacked)
    model = AutoModelForCausalLM.from_pretrained(unpacked, dtype=torch.float32)
    return model.eval().requires_grad_(False)


def all_heads(model: Any) -> HeadIndex:
    from qkscope.capture.architecture import read_architecture

    shape = read_architecture(model.config)
    return HeadIndex.of(sample_heads(shape.full_attention_layers, shape.n_q_heads, None), shape.gqa_ratios)


def documents(count: int, tokens: int, vocabulary: int = 40_000) -> list[Document]:
    draw = np.random.default_rng(0).integers(0, vocabulary, (count, tokens), dtype=np.int32)
    return [Document(i, f"document {i}", row) for i, row in enumerate(draw)]


def ids_of(document: Document) -> Any:
    import torch

    return torch.from_numpy(document.tokens.astype(np.int64))[None]


def llama(seed: int = 0, **shape: Any) -> Any:
    """A Llama with random weights that reads bytes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, logging

    logging.disable_progress_bar()
    torch.manual_seed(seed)
    small = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 6, "num_attention_heads": 8}
    small |= {"vocab_size": 256, "num_key_value_heads": 2, "max_position_embeddings": 8192}
    return LlamaForCausalLM(LlamaConfig(**(small | shape))).eval().requires_grad_(False)


def study_of_llamas(
    folder: Path, checkpoints: int, groups: int, count: int, window: int, **shape: Any
) -> Path:
    """Random Llamas with a tokenizer of bytes, and a study of them over the standard library's sources."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder / "tokenizer")
    for number in range(1, checkpoints + 1):
        llama(number, **shape).save_pretrained(folder / "runs" / f"checkpoint-{number}")
    study = folder / "study.yaml"
    study.write_text(
        f"name: bench\ncheckpoints: runs\nwindows: [{window}]\ntokenizer: tokenizer\ngroups: {groups}\ndevice: cpu\n"
        f"cpus: 1\ncorpus: {{source: stdlib, documents: {count}, min_tokens: {window}}}\n"
    )
    return study


def random_unit(
    group: int, heads: HeadIndex, dim: int, windows: Sequence[int], rotation: Rotation | None = None
) -> Unit:
    """Sums of four documents that fill the largest window; heads are the same in every group.

    Before rotation a head has a mean, a drift with position and noise whose variance falls from axis to axis, so that
    the first axis stands out as in trained models: 1 - lambda_1 / lambda_0 has a median of 0.6 to 0.8 here, 0.9 in
    SmolLM2-135M and 0.4 in the demo. Where it is below 0.1, left-out axes are solved exactly, which takes longer; with
    noise alone, it always is.
    """
    edges, rng = bin_edges(windows), np.random.default_rng([1, group])
    n = np.diff(edges) * 4
    rotation = rotation or Rotation.plain(dim, 2e6)

    def kind(count: int, seed: int) -> tuple[tuple[Moments, ...], Moments, BinSums]:
        same = np.random.default_rng(seed)
        mean, drift = 0.4 * same.standard_normal((2, count, 1, dim))
        falling = 2 * (1.0 + np.arange(dim))[:, None] ** -same.uniform(0.5, 1.0, (count, 1, 1))
        mix = falling * np.linalg.qr(same.standard_normal((count, dim, dim)))[0]

        def drawn(t: Any, noise: Any = 1.0) -> Any:
            x = noise * (rng.standard_normal((count, len(t), dim)) @ mix)
            return x + mean + drift * (t / windows[-1])[:, None]

        def moments(start: int, stop: int) -> Moments:
            t = np.linspace(start, stop - 1, 4 * dim)
            sums = Accumulator()
            sums.update(rotation.rotate(drawn(t), t), t)
            few, times = sums.moments(), (stop - start) / dim
            n = np.full(count, 4 * (stop - start))
            return replace(few, n=n, M=times * few.M, C=times * few.C, T=times * few.T)

        rings = tuple(moments(a, b) for a, b in zip((0, *windows), windows, strict=False))
        total = n[:, None] * drawn((edges[:-1] + edges[1:]) / 2, 4 / np.sqrt(n)[:, None])
        return rings, moments(0, 4), BinSums(edges, n, total)

    (q, sink_q, path_q), (k, sink_k, path_k) = kind(len(heads), 0), kind(len(heads.keys), 1)
    layers = np.unique(heads.layer).tolist()
    rotations: dict[int, Rotation | None] = dict.fromkeys(layers, rotation)
    scales, lengths = dict.fromkeys(layers, dim**-0.5), (windows[-1],) * 4
    return Unit.of(
        FactSum(heads, tuple(windows), lengths, rotations, scales),
        MomentSum(tuple(windows), q, k, sink_q, sink_k),
        PathSum(path_q, path_k),
    )


def dumped(unit: Unit) -> dict[str, bytes]:
    """The bytes of each sum of a unit."""
    return {name: dump_tensors(*each.to_arrays()) for name, each in unit.sums.items()}


def study_of_units(
    folder: Path,
    checkpoints: int,
    layers: int,
    dim: int,
    windows: Sequence[int],
    groups: int = 8,
    growing: bool = True,
) -> tuple[Study, list[PlannedCheckpoint]]:
    """Unit files of layers of 16 query and 4 key heads, as a run leaves them; all checkpoints link to the same.

    Where the window is not `growing`, every checkpoint has the longest.
    """
    heads = HeadIndex.of(sample_heads(range(layers), 16, None), 4)
    for number in range(checkpoints):
        (folder / f"step-{number}").mkdir(parents=True)
    # As SmolLM3's: most checkpoints have the shortest window, the last ones the longer.
    ends = [max(1, checkpoints - 2 * (len(windows) - 1 - i)) for i in range(len(windows))]
    ends = ends if growing else [0] * (len(windows) - 1) + [checkpoints]
    phases = ""
    for window, start, stop in zip(windows, [0, *ends], ends, strict=False):
        listed = ", ".join(f"{{folder: step-{number}}}" for number in range(start, stop))
        phases += f"  - {{label: to {window}, window: {window}, checkpoints: [{listed}]}}\n" if listed else ""
    text = f"name: bench\nwindows: {list(windows)}\ncorpus: stdlib\ngroups: {groups}\nphases:\n{phases}"
    (folder / "study.yaml").write_text(text)
    study = load_study(folder / "study.yaml")
    planned: list[PlannedCheckpoint] = []
    blank: Any = None
    for each in sources(study):
        sums = {kind.name: sum_settings(kind, {}) for kind in (FactSum, MomentSum, PathSum)}
        jobs = tuple(
            Job(each.name, each.folder, group, blank, {"batch_tokens": 1}, sums, heads, tuple(windows), 1, 1)
            for group in range(groups)
        )
        shape, corpus = SimpleNamespace(num_layers=layers), SimpleNamespace(digest="")
        planned.append(
            PlannedCheckpoint(each, "", cast("Any", shape), heads, cast("Any", corpus), jobs, "{}")
        )
        for job in jobs:
            path, first = job.path(folder), planned[0].jobs[job.group].path(folder)
            if path == first:
                write_sums(path, dump_unit(random_unit(job.group, heads, dim, windows), job))
            else:
                path.mkdir(parents=True)
                for file in first.iterdir():
                    (path / file.name).hardlink_to(file)
    return study, planned
