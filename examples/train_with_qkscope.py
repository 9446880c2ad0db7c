"""Train a small Llama with Hugging Face Trainer and watch its heads.

    python examples/train_with_qkscope.py [STEPS] [FOLDER]

Writes FOLDER/live with report.html: which heads come to look by position, and when. One line, marked below, does
the same in any Trainer or TRL script.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from qkscope.integrations.transformers import QKScopeCallback

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
FOLDER = Path(sys.argv[2] if len(sys.argv) > 2 else "results/example")
CONTEXT = 128


def documents() -> list[list[int]]:
    """The standard library's sources as bytes, cut to the context."""
    library = Path(json.__file__).parent.parent
    texts = [path.read_bytes() for path in sorted(library.glob("*.py"))[:60]]
    pieces = [text[i : i + CONTEXT] for text in texts for i in range(0, len(text), CONTEXT)]
    return [list(piece) for piece in pieces if len(piece) == CONTEXT]


def main() -> None:
    every = documents()
    held_out, training = every[:16], every[16:]
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=CONTEXT,
    )  # fmt: skip
    arguments = TrainingArguments(
        str(FOLDER / "run"), max_steps=STEPS, per_device_train_batch_size=8, learning_rate=2e-3,
        report_to=[], save_steps=max(1, STEPS // 4), logging_steps=20, seed=0,
    )  # fmt: skip
    trainer = Trainer(
        LlamaForCausalLM(config),
        arguments,
        train_dataset=[{"input_ids": ids, "labels": ids} for ids in training],
        callbacks=[QKScopeCallback(held_out, every="saves", out=FOLDER / "live", alarms={})],  # the line
    )
    trainer.train()
    print(f"report: {FOLDER / 'live' / 'report.html'}")


if __name__ == "__main__":
    main()
