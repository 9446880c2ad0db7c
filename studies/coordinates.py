"""Draws docs/figures/coordinates.png: queries scaled by c and keys by 1/c, which changes no attention weight.

python studies/coordinates.py results/nano/checkpoints/lc-512-to-1k-step-80 results/nano/corpus
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from qkscope import scan
from qkscope.checkpoints import Source, load_model, load_tokenizer
from qkscope.figures import style

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
PICTURE = Path(__file__).resolve().parent.parent / "docs" / "figures" / "coordinates.png"
LINES = {
    "r_q": ("published mean |r_q|", style.R_Q, "o-"),
    "r_k": ("published mean |r_k|", style.R_K, "s-"),
    "r_q_balanced": ("balanced mean |r_q|", style.R_Q, "o--"),
    "share_positional": ("position's share of score variance", style.INK, "^-"),
}


def scaled(model: Any, factor: float) -> None:
    """Queries times `factor`, keys divided by it: for models without norms or biases of queries and keys."""
    for name, module in model.named_modules():
        if name.endswith(("q_proj", "k_proj")):
            module.weight.data.mul_(factor if name.endswith("q_proj") else 1 / factor)


def main(checkpoint: str, texts: str) -> None:
    source = Source(checkpoint, device="cpu")
    found = {}
    for factor in FACTORS:
        model = load_model(source)
        scaled(model, factor)
        table = scan(
            model, tokenizer=load_tokenizer(source), text_paths=[texts], max_length=256, documents=16
        ).heads
        found[factor] = table[table["rope"] == 1].reset_index(drop=True)
    means = pd.DataFrame({c: heads[list(LINES)].abs().mean() for c, heads in found.items()}).T
    plain = found[1.0]
    moved = pd.DataFrame(
        {c: [(h[name] != plain[name]).sum() for name in ("class", "score_class")] for c, h in found.items()},
        index=["published class", "score class"],
    ).T
    print(means.round(3), moved, sep="\n")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), dpi=150, layout="constrained")
    for name, (label, colour, line) in LINES.items():
        face = style.PAPER if "--" in line else colour
        left.plot(means.index, means[name], line, color=colour, markerfacecolor=face, label=label)
    places = range(len(FACTORS))
    for shift, (name, colour) in enumerate(
        (("published class", style.SEPARATOR), ("score class", style.INK))
    ):
        bars = right.bar([x + 0.4 * shift - 0.2 for x in places], moved[name], 0.38, color=colour, label=name)
        right.bar_label(bars)
    left.set_xscale("log", base=2)
    left.set(xlabel="c", ylim=(0, 1), title=f"Mean over {len(plain)} RoPE heads")
    left.set_xticks(FACTORS, [f"{c:g}" for c in FACTORS])
    right.set(xlabel="c", title=f"Heads of {len(plain)} whose class differs from c = 1")
    right.set_xticks(list(places), [f"{c:g}" for c in FACTORS])
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Queries times c, keys divided by c: the same attention", fontsize=11)
    figure.savefig(PICTURE)
    print(f"written: {PICTURE}")


if __name__ == "__main__":
    main(*sys.argv[1:])
