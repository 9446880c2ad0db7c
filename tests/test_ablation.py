"""Parts of scores removed while a model runs: against scores of all pairs, and what they cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from families import build
from small_study import make_study, run_undrawn
from tiny import tiny_model

import qkscope
from qkscope.capture.ablation import (
    PARTS,
    Ablation,
    MeanVectors,
    ablating,
    check_ablation,
    document_nats,
    widened,
)
from qkscope.capture.architecture import read_architecture
from qkscope.capture.head import LanguageHead
from qkscope.capture.hooks import find_backbone, find_hook
from qkscope.capture.layer_calls import attention_interface
from qkscope.claims import claims
from qkscope.corpus import documents_from
from qkscope.errors import StudyError, TableError
from qkscope.results import load_results, manifest
from qkscope.scanning.head_sets import choose, draw
from studies import training

RNG = np.random.default_rng(0)
B, H, K, T, D = 2, 4, 2, 20, 8


def _vectors(*shape):
    return torch.tensor(RNG.normal(size=shape))


def _brute(part, q, k, m_q, m_k, window=T):
    """Scores of all visible pairs of one head without a part, pair by pair. (T, T), NaN elsewhere"""
    found = np.full((T, T), np.nan)
    x = {"position": m_q, "key": m_q}.get(part, q - m_q)
    y = {"position": m_k, "query_position": m_k}.get(part, k - m_k)
    for i in range(T):
        late = range(max(4, i - window + 1), i + 1)
        for j in range(max(0, i - window + 1), i + 1):
            found[i, j] = q[i] @ k[j]
            if part == "sink":
                if j == 0 and late:
                    found[i, j] = q[i] @ np.mean([m_k[n] for n in late], axis=0)
            elif part == "head":
                found[i, j] = 0.0
            elif j >= 4:
                found[i, j] -= x[i] @ y[j] - np.mean([x[i] @ y[n] for n in late])
    return found


@pytest.mark.parametrize("part", [part for part in PARTS if part != "head"])
@pytest.mark.parametrize(("repeated", "window"), [(False, T), (True, T), (False, 7), (False, 2)])
def test_widened_scores_are_those_of_all_pairs_without_the_part(part, repeated, window):
    q, k = _vectors(B, H, T, D), _vectors(B, K, T, D)
    m_q, m_k = _vectors(H, T, D), _vectors(K, T, D)
    chosen = torch.tensor([True, False, False, True])[:, None, None]
    keys = k.repeat_interleave(2, dim=1) if repeated else k
    wide_q, wide_k = widened(part, q, keys, m_q, m_k, chosen, window)
    assert wide_q.shape[3] == wide_k.shape[3]
    assert wide_q.shape[3] % 8 == 0
    wide_k = wide_k.repeat_interleave(H // wide_k.shape[1], dim=1)
    scores = (wide_q @ wide_k.transpose(-1, -2)).numpy()
    seen = np.tril(np.ones((T, T), dtype=bool)) & ~np.tril(np.ones((T, T), dtype=bool), -window)
    for b in range(B):
        for h in range(H):
            each = (q[b, h].numpy(), k[b, h // 2].numpy(), m_q[h].numpy(), m_k[h // 2].numpy())
            expected = _brute(part, *each, window) if chosen[h] else each[0] @ each[1].T
            np.testing.assert_allclose(scores[b, h][seen], expected[seen], rtol=0, atol=1e-9)


def _attention(scores, v):
    """softmax over visible keys, by hand."""
    out = np.zeros_like(v)
    for i in range(len(v)):
        p = np.exp(scores[i, : i + 1] - scores[i, : i + 1].max())
        out[i] = p / p.sum() @ v[: i + 1]
    return out


def _means(model, layers, seed=0, size=1.0):
    shape, rng = read_architecture(find_backbone(model).config), np.random.default_rng(seed)
    shapes = [(n[layers[0]], 64, shape.head_dim) for n in (shape.q_heads, shape.kv_heads)]
    return {
        layer: MeanVectors(*((size * rng.normal(size=shape)).astype(np.float32) for shape in shapes))
        for layer in layers
    }


@pytest.mark.parametrize("part", PARTS)
def test_a_models_heads_attend_without_the_part(part):
    """The output of an attention layer, head by head, against softmax over scores of all pairs."""
    torch.manual_seed(0)
    model = build("llama").eval()
    attention, means = model.model.layers[1].self_attn, _means(model, [1])
    heads, keys = model.config.num_attention_heads, model.config.num_key_value_heads
    caught = {}

    def keep(call):
        if call.layer == 1:
            caught["q"], caught["k"] = call.q[0].double().numpy(), call.k[0].double().numpy()

    def after(module, args, output):
        caught["joined"] = args[0][0].double().numpy()  # (tokens, heads x dim)

    def values(module, args, output):
        caught["v"] = output[0].double().numpy().reshape(T, keys, -1)

    hooks = [attention.o_proj.register_forward_hook(after), attention.v_proj.register_forward_hook(values)]
    ids = torch.tensor(RNG.integers(5, 60, (1, T)))
    ablation = Ablation(part, {1: [0, heads - 1]}, means)
    with torch.no_grad(), ablating(model, "interface", ablation), attention_interface(model.model, keep):
        model.model(input_ids=ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    dim = caught["q"].shape[-1]
    for h in range(heads):
        g = h // (heads // keys)
        q, k = caught["q"][h], caught["k"][g][:, :dim]
        m_q, m_k = means[1].q[h, :T].astype(float), means[1].k[g, :T].astype(float)
        scores = _brute(part, q, k, m_q, m_k) if h in (0, heads - 1) else q @ k.T
        expected = _attention(scores * attention.scaling, caught["v"][:, g])
        found = caught["joined"].reshape(T, heads, -1)[:, h]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


# gemma2 caps its scores and runs eager attention; falcon, bloom (ALiBi), gptj and gpt_neo have score products.
FAMILIES = ["llama", "smollm3", "gpt_neox", "gemma2", "gpt_oss", "falcon", "bloom", "gptj", "gpt_neo"]


def _texts(count=3, length=40):
    return documents_from([RNG.integers(5, 60, length - 3 * i).tolist() for i in range(count)])


@pytest.mark.parametrize("family", FAMILIES)
def test_zeros_change_nothing_and_no_head_changes_nothing_at_all(family):
    torch.manual_seed(0)
    model = build(family).eval()
    layer, texts, head = 1, _texts(), LanguageHead(model)
    through = find_hook(find_backbone(model))
    plain, counts = document_nats(model, head, texts, 40, 4096, through)
    assert counts.tolist() == [39, 36, 33]
    none, _ = document_nats(model, head, texts, 40, 4096, through, Ablation("position", {layer: []}, {}))
    np.testing.assert_array_equal(none, plain)
    zeros = _means(model, [layer], size=0.0)
    heads = {layer: range(len(zeros[layer].q))}
    found, _ = document_nats(model, head, texts, 40, 4096, through, Ablation("position", heads, zeros))
    np.testing.assert_allclose(found / counts, plain / counts, rtol=0, atol=1e-6)
    removed, _ = document_nats(model, head, texts, 40, 4096, through, Ablation("match", heads, zeros))
    assert abs(removed - plain).max() > 1e-4
    check_ablation(
        model, through, {layer: (len(zeros[layer].q), len(zeros[layer].k), zeros[layer].q.shape[2])}
    )


def _planted(kind):
    """One layer, two heads: head 0 looks at the token before (position) or at equal ones (match); head 1 does nothing.

    Hidden states are [one-hot token | 1 | 0 | what attention found]; the language-model head reads the last part.
    """
    tokens, dim = 8, 32
    config = transformers.LlamaConfig(
        vocab_size=tokens, hidden_size=2 * tokens + 2, intermediate_size=4, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=dim, max_position_embeddings=64, rope_theta=1e5, tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    for weight in model.parameters():
        weight.data.zero_()
    norm, layer = model.model.norm, model.model.layers[0]
    for each in (norm, layer.input_layernorm, layer.post_attention_layernorm):
        each.weight.data.fill_(1.0)
    eye = torch.eye(tokens)
    model.model.embed_tokens.weight.data[:, :tokens], model.model.embed_tokens.weight.data[:, tokens] = (
        eye,
        1.0,
    )
    q, k, attention = layer.self_attn.q_proj.weight.data, layer.self_attn.k_proj.weight.data, layer.self_attn
    if (
        kind == "position"
    ):  # the sum of cos(f (i - j - 1)) over pairs with frequencies f peaks one token before
        frequency = 1e5 ** -(torch.arange(8) / 16)
        k[:8, tokens] = 3.0
        q[:8, tokens], q[16:24, tokens] = 3.0 * frequency.cos(), -3.0 * frequency.sin()
    else:  # pairs that hardly turn
        q[8:16, :tokens] = k[8:16, :tokens] = 3.0 * eye.flip(0)
    attention.v_proj.weight.data[:tokens, :tokens] = eye
    attention.o_proj.weight.data[-tokens:, :tokens] = eye
    model.lm_head.weight.data[:, -tokens:] = 4.0 * eye
    return model


def _planted_texts(kind, count=12, length=40):
    """Two tokens in turn: the next is the one before. Or runs of equal tokens: the next is the same."""
    rng = np.random.default_rng(3)
    if kind == "position":
        return [np.resize(rng.choice(8, 2, replace=False), length).tolist() for _ in range(count)]
    return [np.concatenate([rng.permutation(8).repeat(5)])[:length].tolist() for _ in range(count)]


@pytest.mark.parametrize("kind", ["position", "match"])
def test_only_the_planted_part_costs_loss(kind):
    found = qkscope.ablate(_planted(kind), texts=_planted_texts(kind), heads=["L0H0"], max_length=40, draws=1)
    cost = found.table.set_index("part")
    assert cost.loc[kind, "delta"] > 0.3
    assert cost.loc["head", "delta"] > 0.3
    rest = cost.drop(index=[kind, "head"])
    assert (rest["delta"].abs() < 0.03).all(), rest["delta"]
    assert (cost["random"].abs() < 1e-6).all()
    assert cost.loc[kind, "above_random"] == pytest.approx(cost.loc[kind, "delta"], abs=1e-6)


TABLE = pd.DataFrame(
    {
        "layer": [0, 0, 0, 1, 1, 1],
        "head": [0, 1, 2, 0, 1, 2],
        "rope": [1.0, 1.0, 1.0, 0.0, 0.0, 0.0],
        "class": ["mixed", "content-focused", "mixed", "mixed", "content-focused", "mixed"],
        "score_class": ["positional", "content", "positional", "content", "content", "mixed"],
        "r_k": [-0.9, 0.1, 0.3, np.nan, 0.5, 0.0],
    }
)


@pytest.mark.parametrize(
    ("text", "heads"),
    [
        ("all", [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]),
        ("L1H2,L0H1", [(0, 1), (1, 2)]),
        ("layer:1", [(1, 0), (1, 1), (1, 2)]),
        ("layer:0-1&rope", [(0, 0), (0, 1), (0, 2)]),
        ("class:positional", [(0, 0), (0, 2)]),
        ("class:mixed", [(1, 2)]),
        ("class:content-focused&nope", [(1, 1)]),
        ("top:2:r_k", [(0, 2), (1, 1)]),
        ("top:2:abs_r_k", [(0, 0), (1, 1)]),
        ("bottom:1:r_k", [(0, 0)]),
    ],
)
def test_heads_are_chosen_by_name_class_layer_and_measure(text, heads):
    assert choose(text, TABLE) == heads


def test_heads_are_chosen_by_role():
    table = TABLE.assign(roles=["sink; local", "", "local", "", "sink", ""])
    assert choose("role:sink", table) == [(0, 0), (1, 1)]
    assert choose("role:local&rope", table) == [(0, 0), (0, 2)]
    with pytest.raises(TableError, match="induction"):
        choose("role:induction", table)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("L7H0", "L7H0 was not measured"),
        ("top:3:r_z", "'r_z' was not measured"),
        ("class:strange", "no head of class 'strange'"),
        ("role:sink", "roles of heads were not measured"),
        ("everything", "expected all"),
        ("class:positional&nope", "no head"),
    ],
)
def test_a_mistake_in_heads_is_named(text, problem):
    with pytest.raises(TableError, match=problem):
        choose(text, TABLE)


def test_random_heads_are_others_of_the_same_layers():
    chosen = [(0, 0), (0, 2), (1, 1)]
    sets = draw(chosen, TABLE, 20, seed=0)
    assert len(sets) == 2, "each set once, however many are asked for"
    for drawn in sets:
        assert not set(drawn) & set(chosen)
        assert [layer for layer, _ in drawn] == [0, 1], "layer 0 has one other head only"
    assert {drawn[1] for drawn in sets} == {(1, 0), (1, 2)}
    assert draw([(0, 0), (0, 1), (0, 2)], TABLE, 3, seed=0) == []


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ablated")
    run_undrawn(make_study(folder), folder / "results")
    return folder / "results"


def test_a_study_keeps_its_ablations(study, no_drawing):
    found = qkscope.ablate(study, heads=["top:2:r_q"], parts=["position", "head"], documents=4, draws=2).table
    results = load_results(study)
    assert results.ablation[["part", "n_heads"]].to_numpy().tolist() == [["position", 2], ["head", 2]]
    assert set(results.ablation["checkpoint"]) == {"checkpoint-3"}
    assert (found["documents"] == 4).all()
    qkscope.ablate(study, heads=["top:2:r_q"], parts=["head"], documents=2, draws=0)
    again = load_results(study).ablation
    assert again["part"].tolist() == ["position", "head"]
    assert again["documents"].tolist() == [4, 2]
    assert not list(manifest.all_problems(study, manifest.read_manifest(study)))
    with pytest.raises(StudyError, match="was not measured"):
        qkscope.ablate(study, checkpoint="checkpoint-9")


def _summed_loss(model, documents) -> float:
    with torch.no_grad():
        return sum(float(model(ids, labels=ids).loss) * (ids.shape[1] - 1) for ids in documents)


def test_the_table_is_that_of_passes_by_hand(tmp_path):
    """The cost of a whole head, from the model's own loss with the head's queries set to zero by hand."""
    model = tiny_model().eval()
    queries = model.model.layers[1].self_attn.q_proj.weight.data
    queries *= 50.0
    texts = np.random.default_rng(1).integers(3, 60, (6, 40)).tolist()
    found = qkscope.ablate(
        model, texts=texts, heads=["L1H3"], parts=["head"], max_length=40, draws=0, out=tmp_path
    )
    row = found.table.iloc[0]
    ids = [torch.tensor(text)[None] for text in texts[1::2]]
    before = _summed_loss(model, ids)
    queries[24:32] = 0.0
    after = _summed_loss(model, ids)
    assert row["tokens"] == 3 * 39
    assert row["loss"] == pytest.approx(before / row["tokens"], abs=1e-6)
    assert row["delta"] == pytest.approx((after - before) / row["tokens"], abs=1e-6)
    assert abs(row["delta"]) > 1e-4
    assert pd.read_csv(tmp_path / "ablation.csv")["heads"].tolist() == ["L1H3"]


def _ablation(rows):
    """An ablation table of the last checkpoint: (part, heads, delta, error, random, error of random)."""
    return pd.DataFrame(
        [
            {
                "checkpoint": "step-300", "part": part, "heads": heads, "population": "all", "n_heads": 8,
                "delta": delta, "delta_se": se, "random": random, "random_se": spread, "above_random": delta - random,
                "above_random_se": np.hypot(se, spread), "random_heads": 8, "draws": 3, "loss": 2.5, "documents": 16,
                "tokens": 8176, "window": 512, "weights": "x",
            }
            for part, heads, delta, se, random, spread in rows
        ]
    )  # fmt: skip


TOP = "top:8:share_position"


def test_the_claim_names_the_part_that_costs_most_above_random_heads():
    rows = [
        ("key", TOP, 0.9, 0.02, 0.88, 0.02),
        ("position", TOP, 0.8, 0.02, 0.1, 0.03),
        ("head", TOP, 3.0, 0.1, 1, 0.1),
    ]
    study = replace(training(3), ablation=_ablation(rows))
    said = next(claim for claim in claims(study) if claim.id == "ablation")
    assert said.verdict == "higher"
    assert [(row.value, row.verdict) for row in said.rows[:2]] == [(0.8, "higher"), (0.1, "level")]
    assert said.rows[2].verdict == "unclear"
    assert "the 8 heads with the largest share_position" in said.headline
    noise = replace(training(3), ablation=_ablation([("position", TOP, 0.1, 0.2, 0.05, 0.1)]))
    assert next(claim for claim in claims(noise) if claim.id == "ablation").verdict == "unclear"
    assert not [claim for claim in claims(training(3)) if claim.id == "ablation"]


def test_with_few_other_heads_the_claim_compares_parts_of_the_same_heads():
    rows = [
        (part, TOP, cost, 0.02, 0.0, 0.01) for part, cost in (("position", 0.8), ("key", 0.11), ("sink", 0.3))
    ]
    table = _ablation(rows).assign(random_heads=2)
    said = next(claim for claim in claims(replace(training(3), ablation=table)) if claim.id == "ablation")
    assert said.verdict == "higher"
    assert "+0.11 without their key content" in said.headline
    assert "+0.30 without their first token's advantage" in said.headline
    assert "two other heads" in said.caveat
    alone = next(
        claim for claim in claims(replace(training(3), ablation=table[:1])) if claim.id == "ablation"
    )
    assert "two other heads" in alone.headline


@pytest.mark.parametrize(
    ("rows", "verdict", "value"),
    [
        # A larger cost that may be noise comes before a clear one.
        ([("key", TOP, 0.9, 0.3, 0.1, 0.3), ("position", TOP, 0.5, 0.01, 0.1, 0.01)], "higher", 0.5),
        # Random heads gain more than the chosen ones: these are not needed for that.
        ([("position", TOP, -0.1, 0.005, -0.4, 0.005)], "equal", -0.1),
        # Three draws hardly know their spread: 4.9 errors are nothing at two degrees of freedom.
        ([("position", TOP, 0.5, 0.001, 0.1, 0.082)], "unclear", 0.5),
    ],
)
def test_the_ablation_claim_needs_a_clear_cost(rows, verdict, value):
    study = replace(training(3), ablation=_ablation(rows))
    said = next(claim for claim in claims(study) if claim.id == "ablation")
    assert (said.verdict, said.rows[0].value) == (verdict, value)
    assert "at step 300" in said.headline


@pytest.mark.parametrize("width", [None, 3.3, 6.9])
def test_the_figure_draws_every_row_of_the_last_checkpoint(width):
    rows = [(part, heads, 0.5, 0.1, 0.2, 0.1) for heads in (TOP, "class:content", "L0H1") for part in PARTS]
    table = _ablation(rows)
    older = table[:1].assign(checkpoint="step-100")
    study = replace(training(3), ablation=pd.concat([older, table], ignore_index=True))
    drawing = qkscope.figure("ablation", study, width)
    assert len(drawing.data) == len(rows)
    assert set(drawing.data["checkpoint"]) == {"step-300"}
    with pytest.raises(TableError, match="qkscope ablate"):
        qkscope.figure("ablation", training(3))
