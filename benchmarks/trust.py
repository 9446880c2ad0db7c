"""What measuring costs: capture with everything on against the backbone's own passes, as a ratio.

    python benchmarks/trust.py [--tokens 2048] [--documents 8] [--rounds 2]

The model has the shape of SmolLM2-135M (30 layers, 9 query and 3 key heads of 64) and random weights: time does not
depend on them. Both sides run in this process, alternating, on the same documents; the ratio of their total processor
times is what is claimed, which a shared machine disturbs less than the time on the clock.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from qkscope.capture import measure
from qkscope.capture.architecture import read_architecture
from qkscope.corpus import Document
from qkscope.heads import HeadIndex, sample_heads
from qkscope.moments import Unit

ALLOWED = 1.10
GROUPS = 8


def build_model() -> Any:
    """A Llama of SmolLM2-135M's shape, but for a small vocabulary (the language-model head is never called)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
    )
    return LlamaForCausalLM(config).eval()


def capture_groups(model: Any, documents: list[Document], window: int) -> list[Unit]:
    """One unit for each of eight groups, documents dealt by their index, as a run does it."""
    architecture = read_architecture(model.config)
    pairs = sample_heads(range(architecture.num_layers), architecture.n_q_heads, None)
    heads = HeadIndex.of(pairs, architecture.gqa_ratio, architecture.rope_by_layer())
    dealt = [documents[g::GROUPS] for g in range(GROUPS)]
    return [measure(model, group, heads, [window], batch_tokens=window) for group in dealt if group]


def backbone_only(model: Any, documents: list[Document], window: int) -> None:
    """The same passes and nothing else."""
    import torch

    with torch.no_grad():
        for document in documents:
            model.model(
                input_ids=torch.from_numpy(document.tokens[:window].astype(np.int64))[None], use_cache=False
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--documents", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    documents = [
        Document(i, str(i), rng.integers(0, 1000, options.tokens).astype(np.int32))
        for i in range(options.documents)
    ]
    model = build_model()
    sides: dict[str, Callable[..., Any]] = {"backbone only": backbone_only, "capture": capture_groups}
    spent = {name: [0.0, 0.0] for name in sides}
    for i in range(options.rounds + 1):
        # There and back again: a machine that slows down over the run slows both sides. The first round warms up.
        for name, work in list(sides.items())[:: 1 if i % 2 == 0 else -1]:
            wall, processor = time.perf_counter(), time.process_time()
            work(model, documents if i else documents[:1], options.tokens)
            if i:
                spent[name][0] += time.perf_counter() - wall
                spent[name][1] += time.process_time() - processor
    passes = options.rounds * options.documents
    for name, (wall, processor) in spent.items():
        print(f"{name}: {wall / passes:.2f} s, {processor / passes:.2f} processor seconds a document")
    bare, full = spent.values()
    ratios = [b / a for a, b in zip(bare, full, strict=True)]
    verdict = "within" if ratios[1] <= ALLOWED else "above"
    print(
        f"  ratio {ratios[0]:.3f} on the clock, {ratios[1]:.3f} of the processor, {verdict} the {ALLOWED:.2f} allowed"
    )


if __name__ == "__main__":
    main()
