"""Roles of heads: a model that learns to repeat grows a previous-token head and an induction head, and says when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_capture import document
from transformers import LlamaConfig, LlamaForCausalLM

from qkscope.capture import measure
from qkscope.measures.attention import _of_sample
from qkscope.measures.jackknife import jackknife
from qkscope.results.aggregate import jackknife as over_documents
from qkscope.results.roles import BEYOND, ROLES, role_shares
from qkscope.scanning import ScanResult, scan
from qkscope.stats.significance import t_quantile
from qkscope.sums import AttentionSum, attention
from qkscope.sums.head_index import HeadIndex

pytestmark = pytest.mark.usefixtures("one_thread")
VOCABULARY, LENGTH = 24, 16


def repeated(count: int, generator: torch.Generator) -> torch.Tensor:
    """Sequences of distinct tokens, each followed by itself."""
    half = torch.stack([torch.randperm(VOCABULARY, generator=generator)[:LENGTH] for _ in range(count)])
    return torch.cat([half, half], dim=1)


@pytest.fixture(scope="module")
def snapshots() -> list[tuple[float, ScanResult]]:
    """Loss on the second half and a scan, every 20 steps of training two layers on repeated sequences."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = {"hidden_size": 48, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=64, rope_theta=100.0, **shape)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    generator = torch.Generator().manual_seed(1)
    texts = list(repeated(16, torch.Generator().manual_seed(2)).numpy())
    found = []
    for step in range(101):
        ids = repeated(64, generator)
        logits = model(ids).logits[:, LENGTH - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, LENGTH:].flatten())
        if step % 20 == 0:
            found.append((loss.item(), scan(model, texts=texts, max_length=2 * LENGTH, groups=8)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found


def heads_with(role: str, result: ScanResult) -> set[tuple[int, int]]:
    table = result.results.roles()
    table = table[table["named"] & (table["role"] == role)]
    return set(zip(table["layer"].tolist(), table["head"].tolist(), strict=True))


def test_an_untrained_model_has_neither(snapshots: list[tuple[float, ScanResult]]) -> None:
    loss, first = snapshots[0]
    assert loss > np.log(VOCABULARY) - 0.1
    for role in ("sink", "previous-token", "induction", "duplicate-token"):
        assert not heads_with(role, first)
    # Nothing was learned: attention is nearly uniform.
    assert len(heads_with("broad", first)) == 4


def test_training_on_repeats_grows_a_previous_token_head_and_an_induction_head(
    snapshots: list[tuple[float, ScanResult]],
) -> None:
    last = snapshots[-1][1]
    assert {layer for layer, _ in heads_with("previous-token", last)} == {0}
    assert {layer for layer, _ in heads_with("induction", last)} == {1}
    assert not heads_with("broad", last)


def test_roles_appear_when_the_model_learns_to_repeat(snapshots: list[tuple[float, ScanResult]]) -> None:
    before = [result for loss, result in snapshots if loss > 0.9 * np.log(VOCABULARY)]
    after = [result for loss, result in snapshots if loss < 0.2]
    assert before
    assert after
    assert not any(heads_with("induction", result) for result in before)
    assert all(heads_with("induction", result) for result in after)
    assert all(heads_with("previous-token", result) for result in after)


def test_a_name_needs_more_than_noise_and_is_in_the_table_of_heads(
    snapshots: list[tuple[float, ScanResult]],
) -> None:
    for _, result in (snapshots[0], snapshots[-1]):
        table, heads = result.results.roles(), result.heads
        known = table.dropna(subset=["score", "se"])
        assert (known["named"] == (known["score"] - BEYOND * known["se"] > known["threshold"])).all()
        for row in heads.itertuples():
            own = table[(table["layer"] == row.layer) & (table["head"] == row.head) & table["named"]]
            assert row.roles == ("; ".join(own["role"]) or "no role")
        assert (heads["role_induction"] == heads["induction_score"]).all()
        assert (heads["role_sink"] == heads["sink_score"]).all()


def test_the_sink_rate_is_the_share_of_heads_above_the_threshold(
    snapshots: list[tuple[float, ScanResult]],
) -> None:
    result = snapshots[-1][1]
    data = result.results.own()
    shares = role_shares(data, [result.model]).set_index("role")
    for role in ROLES:
        score = data[role.variable].to_numpy()[0]
        if np.isnan(score).all():
            assert shares.loc[role.name, "heads"] == 0
            continue
        above = (score > role.threshold).mean(axis=1)
        assert shares.loc[role.name, "share"] == pytest.approx(above[0])
        assert shares.loc[role.name, "se"] == pytest.approx(float(jackknife(above[1:])))
    assert float(over_documents(data["sink_score"]).max()) > 0


def test_sampled_queries_agree_with_all_queries_within_their_errors(monkeypatch: Any) -> None:
    """100 draws of eight documents: the estimate from strata against all queries of the same documents."""
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=97, **shape))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6.0)  # sharp attention, which differs from query to query
    heads = HeadIndex.of([(0, 0), (0, 1)], 1)
    documents = [document(i, 250) for i in range(64)]

    def alone() -> list[AttentionSum]:
        sums = {AttentionSum: {}}
        return [measure(model, [each], heads, (250,), sums=sums).get(AttentionSum) for each in documents]

    sampled = alone()
    monkeypatch.setattr(attention, "QUERIES", 250)
    whole = alone()
    assert all(np.array_equal(a.n, b.n) for a, b in zip(sampled, whole, strict=True))
    names = (
        "attn_first",
        "attn_prev",
        "attn_self",
        "entropy",
        "entropy_normalised",
        "attn_distance",
    )
    within: dict[str, list[Any]] = {name: [] for name in names}
    for seed in range(100):
        some = np.random.default_rng(seed).permutation(len(documents))[:8]
        left = [_of_sample(_merged([sampled[j] for j in some if j != i])) for i in some]
        found, expected = (_of_sample(_merged([each[i] for i in some])) for each in (sampled, whole))
        for name in names:
            se = jackknife(np.stack([each[name] for each in left]))
            within[name].append(np.abs(found[name] - expected[name]) <= t_quantile(0.975, 7) * se + 1e-9)
    for name, each in within.items():
        assert np.mean(each) >= 0.95, name  # over seeds, heads and bins


def _merged(parts: list[AttentionSum]) -> AttentionSum:
    found = parts[0]
    for each in parts[1:]:
        found = found.merge(each)
    return found
