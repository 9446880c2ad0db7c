"""What trust costs: capture with document groups and the shift null against capture with neither, as a ratio.

    python benchmarks/trust.py [--tokens 2048] [--documents 16] [--rounds 1]

The model has the shape of SmolLM2-135M (30 layers, 9 query and 3 key heads of 64) and random weights: time does not
depend on them. Both sides run in this process, alternating, on the same documents; the ratio of their total processor
times is what is claimed, which a shared machine disturbs less than the time on the clock.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from qkscope.capture import measure
from qkscope.capture.architecture import read_architecture
from qkscope.corpus import Document
from qkscope.heads import HeadIndex, sample_heads
from qkscope.measures.pca import measure as axes_of
from qkscope.moments import Unit

ALLOWED = 1.10


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


def capture_groups(
    model: Any, documents: list[Document], window: int, groups: int, shifts: int
) -> list[Unit]:
    """One unit per group, documents dealt by their index, as a run does it."""
    architecture = read_architecture(model.config)
    pairs = sample_heads(range(architecture.num_layers), architecture.n_q_heads, None)
    heads = HeadIndex.of(pairs, architecture.gqa_ratio)
    dealt = [[d for d in documents if d.index % groups == g] for g in range(groups)]
    return [measure(model, group, heads, [window], shifts=shifts) for group in dealt]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    documents = [
        Document(i, str(i), rng.integers(0, 1000, options.tokens).astype(np.int32))
        for i in range(options.documents)
    ]
    model = build_model()
    sides = {"groups=1, shifts=0": (1, 0), "groups=8, shifts=19": (8, 19)}
    capture_groups(model, documents[:1], options.tokens, 1, 0)  # warm up
    spent = dict.fromkeys(sides, 0.0)
    units: dict[str, list[Unit]] = {}
    for i in range(options.rounds):
        # There and back again: a machine that slows down over the run slows both sides.
        for name, (groups, shifts) in list(sides.items())[:: 1 if i % 2 == 0 else -1]:
            start = time.process_time()
            units[name] = capture_groups(model, documents, options.tokens, groups, shifts)
            spent[name] += time.process_time() - start
    passes = options.rounds * options.documents
    for name, seconds in spent.items():
        print(
            f"capture, {name}: {seconds / passes:.2f} processor seconds a document of {options.tokens} tokens"
        )
    bare, full = spent.values()
    verdict = "within" if full / bare <= ALLOWED else "above"
    print(f"  ratio {full / bare:.3f}, {verdict} the {ALLOWED:.2f} allowed")
    a, b = (axes_of(each, options.tokens, 1) for each in units.values())
    print(f"  largest difference of r between the two: {np.nanmax(np.abs(a.r_q - b.r_q)):.1e}")


if __name__ == "__main__":
    main()
