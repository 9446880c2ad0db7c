"""Models whose queries are doubled and keys halved: the same attention, other coordinates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from families import build, tokens
from tiny import tiny_model

from qkscope.scanning.scan import scan

pytestmark = pytest.mark.usefixtures("one_thread")

INVARIANT = ("r_q_balanced", "r_k_balanced", "explained_variance_balanced", "score_sd", "sink")
SHARES = ("share_positional", "share_position", "share_key", "share_match", "share_query_position")
# What is special: they rotate a part of each head, turn neighbouring dimensions, normalise q and k, have NoPE layers
# and grouped keys, or sliding layers.
FAMILIES = ("gpt_neox", "cohere", "glm", "qwen3", "smollm3", "gemma2")


@torch.no_grad()
def rescale(model: Any) -> None:
    """Double all queries and halve all keys."""
    found = 0
    for name, module in model.named_modules():
        kind = name.rpartition(".")[2]
        normed = any(
            part.startswith(name.rpartition(".")[0] + ".q_norm") for part, _ in model.named_parameters()
        )
        for parameter in module.parameters(recurse=False):
            if kind in ("q_norm", "k_norm") or (kind in ("q_proj", "k_proj") and not normed):
                parameter.mul_(2.0 if kind[0] == "q" else 0.5)
                found += 1
            elif kind == "query_key_value":  # GPT-NeoX: head by head its queries, keys and values
                heads = model.config.num_attention_heads
                q, k, _ = parameter.view(heads, 3, -1).unbind(1)
                q.mul_(2.0)
                k.mul_(0.5)
                found += 1
    assert found


def heads_of(model: Any, **options: Any) -> pd.DataFrame:
    """The table of all heads on eight documents of random tokens."""
    texts = [tokens(1, 48, seed=i)[0].tolist() for i in range(8)]
    return scan(model, texts=texts, max_length=48, groups=4, include_sliding=True, **options).heads


def assert_same_attention(before: pd.DataFrame, after: pd.DataFrame) -> None:
    for name in (*INVARIANT, *SHARES):
        assert np.isfinite(before[name]).all(), name
        np.testing.assert_allclose(after[name], before[name], rtol=1e-6, atol=1e-6, err_msg=name)
    for name in ("score_class", "class_balanced"):
        assert after[name].tolist() == before[name].tolist()
    assert np.abs(after["r_q"] - before["r_q"]).max() > 0.01  # the published r is another one


@pytest.mark.parametrize("family", FAMILIES)
def test_balanced_r_and_shares_are_those_of_the_same_attention(family: str) -> None:
    model = build(family)
    logits = model(tokens(1, 24)).logits
    before = heads_of(model)
    rescale(model)
    torch.testing.assert_close(model(tokens(1, 24)).logits, logits)
    assert_same_attention(before, heads_of(model))


def test_a_rescaled_checkpoint_from_its_folder(tmp_path: Path) -> None:
    tables = []
    for name in ("plain", "rescaled"):
        model = tiny_model(vocab_size=128)
        if name == "rescaled":
            rescale(model)
        model.save_pretrained(tmp_path / name)
        tables.append(heads_of(tmp_path / name))
    assert_same_attention(*tables)
