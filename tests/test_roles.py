"""Roles of heads: a model that learns to repeat grows a previous-token head and an induction head, and says when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_capture import document
from transformers import LlamaConfig, LlamaForCausalLM

from qkscope.corpus import Document
from qkscope.measures.attention import _of_sample
from qkscope.measures.samples import jackknife
from qkscope.results.aggregate import SINK_HEAD, scalars
from qkscope.results.aggregate import jackknife as over_documents
from qkscope.results.dataset import dataset
from qkscope.results.results_folder import results_of
from qkscope.results.roles import BEYOND, ROLES, role_shares
from qkscope.scanning.scan import ScanResult, scan
from qkscope.stats.behaviour import RoleEmergence, role_emergence
from qkscope.stats.evidence import own_evidence
from qkscope.stats.levels import margin
from qkscope.sums import AttentionSum, Batch, LayerFacts, Request, Softmax, Unrotated, attention_rows
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.rotation import Rotation

pytestmark = pytest.mark.usefixtures("one_thread")
VOCABULARY, LENGTH = 24, 16


def repeated(count: int, generator: torch.Generator) -> torch.Tensor:
    """Sequences of distinct tokens, each followed by itself."""
    half = torch.stack([torch.randperm(VOCABULARY, generator=generator)[:LENGTH] for _ in range(count)])
    return torch.cat([half, half], dim=1)


def true_scores(model: Any) -> dict[str, np.ndarray]:
    """By role: the scores of all heads (layers, heads) on 256 other texts, from the eager model's own weights."""
    generator = torch.Generator().manual_seed(3)
    texts = repeated(256, generator)
    first = torch.randint(VOCABULARY, (256, 1), generator=generator)
    random = torch.cat([first, texts[:, : LENGTH - 1], texts[:, : LENGTH - 1]], dim=1)
    with torch.no_grad():
        on_texts, on_random = (
            torch.stack(model(ids, output_attentions=True).attentions) for ids in (texts, random)
        )
    back = LENGTH - 2  # from a query of the second copy to the token after the first copy
    return {
        "previous-token": on_texts.diagonal(-1, 3, 4).mean(dim=(1, 3)).numpy(),
        "induction": on_random.diagonal(-back, 3, 4)[..., LENGTH - back :].mean(dim=(1, 3)).numpy(),
    }


@pytest.fixture(scope="module")
def training() -> tuple[list[tuple[float, ScanResult]], dict[int, dict[str, np.ndarray]]]:
    """Two layers trained on repeats: loss of the second half and a scan every 20 steps, true scores every 2."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = {"hidden_size": 48, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=64, rope_theta=100.0, **shape)
    model = LlamaForCausalLM._from_config(config, attn_implementation="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    generator = torch.Generator().manual_seed(1)
    texts = list(repeated(16, torch.Generator().manual_seed(2)).numpy())
    found, dense = [], {}
    for step in range(101):
        ids = repeated(64, generator)
        logits = model(ids).logits[:, LENGTH - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, LENGTH:].flatten())
        if step % 20 == 0:
            found.append((loss.item(), scan(model, texts=texts, max_length=2 * LENGTH, groups=8)))
        if step % 2 == 0:
            dense[step] = true_scores(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found, dense


@pytest.fixture(scope="module")
def snapshots(training: Any) -> list[tuple[float, ScanResult]]:
    return training[0]


def heads_with(role: str, result: ScanResult) -> set[tuple[int, int]]:
    table = result.results.roles()
    table = table[table["named"] & (table["role"] == role)]
    return set(zip(table["layer"].tolist(), table["head"].tolist(), strict=True))


def test_an_untrained_model_has_neither(snapshots: list[tuple[float, ScanResult]]) -> None:
    loss, first = snapshots[0]
    assert loss > np.log(VOCABULARY) - 0.1
    for role in ("sink", "previous-token", "induction", "duplicate-token", "local", "long-range"):
        assert not heads_with(role, first)
        found = emergence([first], role)
        assert found.counts == (0,)
        assert not found.acquired
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


def emergence(scans: list[ScanResult], role: str) -> RoleEmergence:
    """Of checkpoints 20 steps apart."""
    cells = [
        replace(each.cells[0], info=replace(each.cells[0].info, checkpoint=f"step-{20 * i}"))
        for i, each in enumerate(scans)
    ]
    found = results_of(dataset(cells), Path("training"), "training")
    return role_emergence(own_evidence(found), next(each for each in ROLES if each.name == role), "RoPE")


@pytest.mark.parametrize("role", ["previous-token", "induction"])
def test_a_role_is_acquired_in_the_interval_in_which_its_true_score_crosses_the_threshold(
    training: Any, role: str
) -> None:
    scans, dense = training
    found = emergence([scan for _, scan in scans], role)
    assert found.acquired
    for each in found.acquired:
        above = [step for step, scores in dense.items() if scores[role][each.layer, each.head] > 0.3]
        below = [step for step, scores in dense.items() if scores[role][each.layer, each.head] <= 0.3]
        assert each.after is not None
        # The step from which on it stays above.
        crossing = min(step for step in above if step > max(below))
        assert 20 * each.after <= crossing <= 20 * each.by
    assert found.counts[0] == 0


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
    above = (data["sink_score"] > SINK_HEAD).to_numpy()[0].mean(axis=1)
    np.testing.assert_allclose(scalars(data)["sink_rate"][0], above)
    assert float(over_documents(data["sink_score"]).max()) > 0


def rows_of(each: Document, u: np.ndarray, scale: float, known: bool = True) -> AttentionSum:
    """Rows of heads whose queries and keys before rotation are u (2, heads, tokens, dim)."""
    _, heads, tokens, dim = u.shape
    rotation = Rotation.plain(dim, 100.0)
    q, k = (torch.tensor(rotation.rotate(x, np.arange(tokens)))[None] for x in u)
    before = [Unrotated(torch.tensor(x)[None], np.arange(dim)) for x in u]
    sums = AttentionSum.start(Request(HeadIndex.of([(0, i) for i in range(heads)], 1), (tokens,), dim))
    sums.begin(Batch((each,), (tokens,)))
    facts = (rotation, "", *before) if known else (None, "not looked for")
    sums.layer(0, q, k, LayerFacts(scale, *facts, softmax=Softmax()))
    return sums.done()


def test_position_reproduces_the_attention_of_a_position_head_and_not_of_a_content_head() -> None:
    """Heads: the same query and key at every token; random queries and keys; nothing at all, which is uniform."""
    rng = np.random.default_rng(0)
    u = np.zeros((2, 3, 200, 8))
    u[:, 0] = rng.normal(0.0, 1.0, (2, 1, 8))
    u[:, 1] = rng.normal(0.0, 1.0, (2, 200, 8))
    found = _of_sample(rows_of(document(0, 200), u, 3.0))
    position, content, uniform = found["attn_by_position"]
    assert position == pytest.approx(1.0, abs=1e-5)
    assert found["entropy_normalised"][0] < 0.9
    assert abs(content) < 0.1
    assert np.isnan(uniform)  # there is nothing to predict
    assert found["attn_position_overlap"][2] == pytest.approx(1.0, abs=1e-6)
    unknown = _of_sample(rows_of(document(0, 200), u, 3.0, known=False))
    assert np.isnan(unknown["attn_by_position"]).all()
    np.testing.assert_array_equal(unknown["entropy"], found["entropy"])


def test_sampled_queries_agree_with_all_queries_within_their_errors(monkeypatch: Any) -> None:
    """100 times eight documents: a value from sampled queries differs from that of all their queries by at most
    t(0.975, 7 degrees of freedom) = 2.36 jackknife errors, at least 95 times."""
    tables = np.random.default_rng(0).normal(0.3, 1.0, (2, 2, 97, 8))  # vectors follow from tokens
    documents = [document(i, 200) for i in range(800)]
    sampled = [rows_of(each, tables[:, :, each.tokens], 0.5) for each in documents]
    monkeypatch.setattr(attention_rows, "QUERIES", 200)
    whole = [rows_of(each, tables[:, :, each.tokens], 0.5) for each in documents]
    assert all(np.array_equal(a.n, b.n) for a, b in zip(sampled, whole, strict=True))
    names = ("attn_first", "attn_prev", "attn_self", "attn_distance", "entropy", "entropy_normalised")
    names += ("duplicate", "induction", "attn_by_position", "attn_position_overlap")
    within: dict[str, list[Any]] = {name: [] for name in names}
    for start in range(0, 800, 8):
        some = range(start, start + 8)
        left = [_of_sample(_merged([sampled[j] for j in some if j != i])) for i in some]
        found, expected = (_of_sample(_merged([each[i] for i in some])) for each in (sampled, whole))
        for name in names:
            se = jackknife(np.stack([each[name] for each in left]))
            within[name].append(np.abs(found[name] - expected[name]) <= margin(se, 7) + 1e-9)
    for name, each in within.items():
        assert (np.mean(each, axis=0) >= 0.95).all(), name  # of every head and bin


def _merged(parts: list[AttentionSum]) -> AttentionSum:
    found = parts[0]
    for each in parts[1:]:
        found = found.merge(each)
    return found
