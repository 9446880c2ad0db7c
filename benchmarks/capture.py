"""Capture + moments beside its peers, on the real SmolLM2-135M in one interleaved run.

Every peer does the same work on the same 2048 tokens in float32: the plain `model(ids)` call that a user would make,
qkscope (moments of every token and head), nnsight (rotated q and k of every layer saved), TransformerLens
(`run_with_cache` of rot_q and rot_k). Rounds are interleaved and start with another peer each time, so that whatever
else the machine does meets them all. A unit of one document is the worst case: what a unit costs once counts in full.
"""

from __future__ import annotations

import copy
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import Row

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

TOKENS = 2048
Peer = Callable[[Any], object]


def load_model() -> Any:
    import torch
    from fetch_smollm2 import fetch_smollm2
    from transformers import AutoModelForCausalLM

    path = fetch_smollm2()
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return model.eval().requires_grad_(False)


def documents(count: int) -> list[Any]:
    """Token ids drawn at random: what they say does not matter to the clock."""
    from qkscope.corpus import Document

    rng = np.random.default_rng(0)
    draw = rng.integers(100, 40_000, (count, TOKENS), dtype=np.int32)
    return [Document(i, f"document {i}", row) for i, row in enumerate(draw)]


def qkscope_peer(model: Any) -> Peer:
    from qkscope.capture import measure
    from qkscope.capture.architecture import read_architecture
    from qkscope.heads import HeadIndex, sample_heads

    a = read_architecture(model.config)
    heads = HeadIndex.of(sample_heads(a.full_attention_layers, a.n_q_heads, None), a.gqa_ratio)
    return lambda document: measure(model, [document], heads, (TOKENS,), batch_tokens=TOKENS)


def plain_peer(model: Any) -> Peer:
    return lambda document: model(ids_of(document))


def backbone_peer(model: Any) -> Peer:
    return lambda document: model.model(input_ids=ids_of(document), use_cache=False)


def seam_peer(model: Any) -> Peer:
    from qkscope.capture import capture

    def run(document: Any) -> object:
        with capture(model, lambda layer, q, k: None) as backbone:
            return backbone(input_ids=ids_of(document), use_cache=False)

    return run


def nnsight_peer(model: Any) -> Peer:
    """q and k of every layer as the rotation returns them, saved."""
    import nnsight

    # A copy, because nnsight leaves hooks and a rewritten attention behind that would slow the others.
    wrapped = nnsight.NNsight(copy.deepcopy(model))
    layers = range(model.config.num_hidden_layers)

    def run(document: Any) -> object:
        with wrapped.trace(ids_of(document)):
            attentions = [wrapped.model.layers[i].self_attn for i in layers]
            kept = nnsight.save([each.source.apply_rotary_pos_emb_0.output for each in attentions])
        return kept

    return run


def transformer_lens_peer(model: Any) -> Peer:
    """`run_with_cache` of the rotated queries and keys, on a copy of the model: the bridge rebuilds its attention."""
    from fetch_smollm2 import fetch_smollm2
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer

    path = fetch_smollm2()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    lens = TransformerBridge.boot_transformers(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        hf_model=copy.deepcopy(model),
        tokenizer=tokenizer,
        device="cpu",
    )
    wanted = {name for name in lens.hook_dict if name.endswith(("hook_rot_q", "hook_rot_k"))}

    def run(document: Any) -> object:
        _, cache = lens.run_with_cache(ids_of(document), names_filter=lambda name: name in wanted)
        if len(cache) != 2 * model.config.num_hidden_layers:
            raise RuntimeError(f"TransformerLens kept {len(cache)} tensors, expected two a layer")
        return cache

    return run


def ids_of(document: Any) -> Any:
    import torch

    return torch.from_numpy(document.tokens.astype(np.int64))[None]


def time_peers(peers: dict[str, Peer], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """(wall, processor) seconds of each peer in each round; a round before the first warms up and is dropped."""
    import torch

    texts = documents(rounds + 1)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in peers}
    names = list(peers)
    with torch.no_grad():
        for number, document in enumerate(texts):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                wall, processor = time.perf_counter(), time.process_time()
                peers[name](document)
                if number:
                    taken[name].append((time.perf_counter() - wall, time.process_time() - processor))
    return taken


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_memory(counts: tuple[int, ...]) -> None:
    """Peak memory of this process after the first few and after all documents of one measurement."""
    from qkscope.capture import measure
    from qkscope.capture.architecture import read_architecture
    from qkscope.heads import HeadIndex, sample_heads

    model = load_model()
    a = read_architecture(model.config)
    heads = HeadIndex.of(sample_heads(a.full_attention_layers, a.n_q_heads, None), a.gqa_ratio)
    loaded = peak_megabytes()
    done, peaks = [0], {}

    def note(tokens: int) -> None:
        done[0] += tokens // TOKENS
        if done[0] in counts:
            peaks[done[0]] = peak_megabytes()

    measure(model, documents(max(counts)), heads, (TOKENS,), batch_tokens=TOKENS, on_tokens=note)
    print(json.dumps({"loaded": loaded, "peaks": peaks}))


def memory_line() -> str:
    """Peak memory after 4 and after 40 documents, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.capture"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    found = json.loads(answer.stdout.splitlines()[-1])
    few, many = (found["peaks"][key] for key in ("4", "40"))
    return (
        f"peak memory of capture: model loaded {found['loaded']:,.0f} MB; after 4 documents {few:,.0f} MB, "
        f"after 40 {many:,.0f} MB (ratio {many / few:.3f})"
    )


def rows(rounds: int) -> list[Row]:
    """Plain, backbone, seam, everything, and the peers, interleaved."""
    model = load_model()
    peers = {
        "model(ids)": plain_peer(model),
        "backbone only (limit)": backbone_peer(model),
        "our seam, nothing summed": seam_peer(model),
        "qkscope, everything on": qkscope_peer(model),
        "nnsight, q and k saved": nnsight_peer(model),
        "TransformerLens, rot_q and rot_k cached": transformer_lens_peer(model),
    }
    taken = time_peers(peers, rounds)
    part = f"Capture, SmolLM2-135M, {TOKENS} tokens, float32"
    return [Row(part, name, seconds, taken["model(ids)"]) for name, seconds in taken.items()]


if __name__ == "__main__":
    measure_memory((4, 40))
