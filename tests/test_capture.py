"""The hooks, and the moments of what they see."""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy as np
import pytest
import torch
from families import SPARSE, build
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, GPT2Config, GPT2LMHeadModel

from qkscope.capture import Probing, capture, find_backbone, measure
from qkscope.capture.architecture import read_architecture
from qkscope.capture.measure import batches
from qkscope.capture.memory import check_memory, moments_bytes, weights_bytes
from qkscope.capture.vector_sample import VectorSample, sampled_positions
from qkscope.corpus import Document
from qkscope.errors import CaptureError
from qkscope.measures import measure as measure_axes
from qkscope.scanning.analyze import analyze
from qkscope.sums import Batch
from qkscope.sums.head_index import HeadIndex, sample_heads
from qkscope.sums.unit import Unit, rings

VOCABULARY = 97
pytestmark = pytest.mark.usefixtures("one_thread")


def document(index: int, length: int) -> Document:
    ids = np.random.default_rng([9, index]).integers(3, VOCABULARY, length).astype(np.int32)
    return Document(index, f"document {index}", ids)


def every_head(model: Any, include_sliding: bool = False) -> HeadIndex:
    a = read_architecture(model.config)
    pairs = sample_heads(a.measured_layers(include_sliding), a.n_q_heads, None)
    return HeadIndex.of(pairs, a.gqa_ratios, a.rope_by_layer())


def state(model: Any) -> tuple[Any, ...]:
    """Everything that capture touches."""
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    registered = set(AttentionInterface._global_mapping), set(AttentionMaskInterface._global_mapping)
    return model.config._attn_implementation, copy.deepcopy(model.config.to_dict()), hooks, registered


def vectors_one_by_one(model: Any, documents: list[Document], window: int) -> dict[tuple[int, int], Any]:
    """(document, layer) -> q (heads, tokens, dim), k: each document alone in a pass, unpadded."""
    kept: dict[tuple[int, int], Any] = {}
    for each in documents:
        ids = torch.tensor(each.tokens[:window].astype(np.int64))[None]
        with (
            torch.no_grad(),
            capture(
                model, lambda layer, q, k, i=each.index: kept.update({(i, layer): (q[0], k[0])})
            ) as backbone,
        ):
            backbone(input_ids=ids, use_cache=False)
    return kept


def assert_moments_of(unit: Unit, kept: dict[tuple[int, int], Any], documents: list[Document]) -> None:
    """Each head's moments against sums over its stored vectors, in float64."""
    edges = (0, *unit.windows)
    for kind, sums in ((0, unit.q), (1, unit.k)):
        rows = (
            list(zip(unit.heads.layer, unit.heads.head, strict=True))
            if kind == 0
            else unit.heads.keys.tolist()
        )
        for ring, moments in enumerate(sums):
            for row, (layer, head) in enumerate(rows):
                xs, ts = [], []
                for each in documents:
                    length = min(len(each.tokens), unit.windows[-1])
                    for start, stop in rings(length, unit.windows):
                        if start == edges[ring]:
                            xs.append(
                                kept[each.index, int(layer)][kind][int(head), start:stop].double().numpy()
                            )
                            ts.append(np.arange(start, stop))
                x, t = np.concatenate(xs), np.concatenate(ts)
                x, t = x - x.mean(0), t - t.mean(0)
                assert moments.n[row] == len(x)
                np.testing.assert_allclose(
                    moments.M[row], x.T @ x, rtol=1e-4, atol=1e-4 * (x**2).sum() / len(x.T)
                )
                np.testing.assert_allclose(
                    moments.C[row], x.T @ t, rtol=1e-4, atol=1e-4 * np.abs(x.T @ t).max()
                )
                np.testing.assert_allclose(moments.T[row], (t**2).sum(0))


@pytest.mark.parametrize("batch_tokens", [1, 40, 100, 1000])
def test_moments_of_every_token_once_whatever_the_batches(batch_tokens: int) -> None:
    model = build("smollm3")
    documents = [document(i, n) for i, n in enumerate((30, 7, 1, 45, 30))]
    unit = measure(model, documents, every_head(model), (12, 40), batch_tokens=batch_tokens)
    assert (unit.documents, unit.tokens, unit.filled) == (5, 30 + 7 + 1 + 40 + 30, (3, 1))
    assert unit.q[0].n[0] == 12 + 7 + 1 + 12 + 12
    assert unit.heads.rope.reshape(4, 4)[:, 0].tolist() == [1, 1, 1, 0]
    assert_moments_of(unit, vectors_one_by_one(model, documents, 40), documents)


def test_only_the_heads_asked_for() -> None:
    model = build("llama")
    documents = [document(i, 25) for i in range(3)]
    everything = measure(model, documents, every_head(model), (25,))
    chosen = HeadIndex.of([(2, 3), (0, 1), (2, 0)], 2)
    part = measure(model, documents, chosen, (25,))
    rows = [
        int(np.flatnonzero((everything.heads.layer == i) & (everything.heads.head == h))[0])
        for i, h in zip(chosen.layer, chosen.head, strict=True)
    ]
    # Products run in float32, and those of fewer heads may round differently.
    np.testing.assert_allclose(part.q[0].M, everything.q[0].M[rows], atol=1e-5 * part.q[0].M.max())
    keys = [int(np.flatnonzero((everything.heads.keys == key).all(axis=1))[0]) for key in chosen.keys]
    np.testing.assert_allclose(part.k[0].C, everything.k[0].C[keys], atol=1e-5 * np.abs(part.k[0].C).max())


def test_sliding_layers_enter_only_if_asked_for() -> None:
    model = build("gemma2")
    documents = [document(0, 20)]
    assert set(every_head(model).layer) == {1, 3}
    with pytest.raises(CaptureError, match=r"layers \[0, 2\] .*include_sliding"):
        measure(model, documents, every_head(model, include_sliding=True), (20,))
    unit = measure(model, documents, every_head(model, include_sliding=True), (20,), include_sliding=True)
    assert len(unit.q[0].n) == 16


def test_a_group_without_documents_is_an_empty_unit() -> None:
    model = build("llama")
    unit = measure(model, [], every_head(model), (8, 16))
    assert unit.tokens == 0
    assert [m.C.shape for m in unit.q] == [(16, 16), (16, 16)]
    assert unit.path_q is not None
    assert unit.path_q.n.sum() == 0
    assert [m.n.sum() for m in unit.k] == [0, 0]


def test_half_precision_vectors_are_summed_in_full_precision() -> None:
    """The moments of a bfloat16 model are those of its bfloat16 vectors, as float64 would sum them."""
    model = build("llama").to(torch.bfloat16)
    documents = [document(i, 200) for i in range(4)]
    unit = measure(model, documents, every_head(model), (200,), batch_tokens=200)
    assert_moments_of(unit, vectors_one_by_one(model, documents, 200), documents)
    axes = measure_axes([unit], 200)
    kept = vectors_one_by_one(model, documents, 200)
    t = np.tile(np.arange(200.0), 4)
    for row in range(0, 16, 5):
        layer, head, kv = (int(a[row]) for a in (unit.heads.layer, unit.heads.head, unit.heads.kv_head))
        q = np.concatenate([kept[i, layer][0][head].double().numpy() for i in range(4)])
        k = np.concatenate([kept[i, layer][1][kv].double().numpy() for i in range(4)])
        pooled = np.concatenate([q, k])
        v = np.linalg.eigh(np.cov(pooled.T))[1][:, -1]
        assert (
            axes.r_q[row, 0] == pytest.approx(abs(np.corrcoef(q @ v, t)[0, 1]), abs=1e-5)
            or abs(axes.r_q[row, 0]) < 0.05
        )
        assert abs(axes.r_k[row, 0]) == pytest.approx(abs(np.corrcoef(k @ v, t)[0, 1]), abs=1e-5)


def test_everything_is_as_before_also_after_an_exception() -> None:
    model = build("gemma3_text")
    before, before_name = state(model), model.config._attn_implementation
    with capture(model, lambda layer, q, k: None) as backbone:
        assert model.config._attn_implementation == before_name
        backbone(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False)
    assert state(model) == before

    def stumble(layer: int, q: Any, k: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), capture(model, stumble) as backbone:
        backbone(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False)
    assert state(model) == before


def test_measuring_leaves_training_mode_and_gradients_alone() -> None:
    model = build("llama").train()
    model.model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    measure(model, [document(0, 9)], every_head(model), (9,))
    assert [module.training for module in model.modules()] == modes
    model(torch.tensor([[5, 6, 7]])).logits.sum().backward()
    assert all(p.grad is not None for p in model.model.layers.parameters())


def test_an_attention_of_the_users_own_is_answered_under_its_name() -> None:
    """Flash attention reads its version off the configuration, so the configuration must name it when it is called."""
    model = build("llama")
    names: list[str] = []

    def own(module: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(module.config._attn_implementation)
        return AttentionInterface._global_mapping["sdpa"](module, *args, **kwargs)

    AttentionInterface.register("users_own", own)
    try:
        model.set_attn_implementation("users_own")
        measure(model, [document(0, 9)], every_head(model), (9,))
        assert set(names) == {"users_own"}
        assert model.config._attn_implementation == "users_own"
    finally:
        AttentionInterface._global_mapping.pop("users_own")


def test_two_captures_at_once_do_not_meet() -> None:
    outer, inner = build("llama"), build("qwen3")
    seen: list[str] = []
    ids = torch.tensor([[5, 6, 7]])
    with (
        torch.no_grad(),
        capture(outer, lambda layer, q, k: seen.append(f"outer {layer}")) as a,
        capture(inner, lambda layer, q, k: seen.append(f"inner {layer}")) as b,
    ):
        b(input_ids=ids, use_cache=False)
        a(input_ids=ids, use_cache=False)
    assert seen == [f"{name} {layer}" for name in ("inner", "outer") for layer in range(4)]


def test_nothing_is_registered_by_importing() -> None:
    names = [*AttentionInterface._global_mapping, *AttentionMaskInterface._global_mapping]
    assert not [name for name in names if "qkscope" in name]


def test_cross_attention_never_enters() -> None:
    config = GPT2Config(
        vocab_size=97, n_embd=32, n_layer=2, n_head=2, add_cross_attention=True, is_decoder=True
    )
    model = GPT2LMHeadModel(config).eval()
    seen: list[int] = []
    same_length = torch.randn(1, 6, 32)
    with torch.no_grad(), capture(model, lambda layer, q, k: seen.append(layer)) as backbone:
        backbone(input_ids=torch.arange(6)[None], encoder_hidden_states=same_length, use_cache=False)
    assert seen == [0, 1]


def test_a_pass_with_a_cache_is_refused() -> None:
    """Keys of earlier tokens come along then: they are not this pass's tokens."""
    model = build("llama")
    with torch.no_grad():
        past = model(torch.tensor([[5, 6, 7]]), use_cache=True).past_key_values
        with (
            pytest.raises(CaptureError, match="0 of its 4 attention layers"),
            capture(model, lambda layer, q, k: None) as backbone,
        ):
            backbone(input_ids=torch.tensor([[8]]), past_key_values=past)


def test_a_layer_that_runs_twice_is_refused() -> None:
    model = build("llama")
    model.model.layers[1] = model.model.layers[0]
    with pytest.raises(CaptureError, match=r"ran layers \[0\] more than once"):
        measure(model, [document(0, 5)], every_head(model), (5,))


def test_heads_that_differ_from_the_configuration_are_refused() -> None:
    model = build("llama")
    model.config.num_key_value_heads = 4
    with pytest.raises(
        CaptureError, match=r"layer 0 of this llama model has 4 query heads.* and 2 key heads"
    ):
        measure(model, [document(0, 5)], HeadIndex.of([(0, 0)], 1), (5,))


def test_a_backbone_alone_will_do_and_other_things_will_not() -> None:
    model = build("qwen2")
    backbone = AutoModel.from_config(model.config)
    assert find_backbone(backbone) is backbone
    assert measure(backbone, [document(0, 5)], every_head(model), (5,)).tokens == 5
    with pytest.raises(CaptureError, match=r"expected a transformers model.*found Linear"):
        find_backbone(torch.nn.Linear(2, 2))


def test_a_model_that_returns_nan_marks_its_heads() -> None:
    model = build("llama")
    with torch.no_grad():
        model.model.layers[2].self_attn.q_proj.weight[:16] = float("nan")
    unit = measure(model, [document(i, 20) for i in range(2)], every_head(model), (20,))
    axes = measure_axes([unit], 20)
    broken = np.isnan(axes.r_q[:, 0])
    # One query head of layer 2; its NaN then reaches every head of the layer above.
    assert [
        (int(layer), int(head))
        for layer, head in zip(unit.heads.layer[broken], unit.heads.head[broken], strict=True)
    ] == [
        (2, 0),
        (3, 0),
        (3, 1),
        (3, 2),
        (3, 3),
    ]


def test_tokens_of_another_tokenizer_are_refused() -> None:
    model = build("llama")
    wrong = Document(0, "notes.txt", np.array([5, 97], dtype=np.int32))
    with pytest.raises(CaptureError, match=r"notes.txt .*token 97.* 0 to 96"):
        measure(model, [wrong], every_head(model), (5,))


def test_more_tokens_than_learned_positions() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=2, n_positions=16))
    with pytest.raises(CaptureError, match=r"gpt2 model .* 20 tokens"):
        measure(model, [document(0, 20)], every_head(model), (20,))


@pytest.mark.parametrize("pairs", [[], [(0, 4)], [(9, 0)]])
def test_heads_that_do_not_exist(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(CaptureError, match="requested"):
        measure(build("llama"), [document(0, 5)], HeadIndex.of(pairs, 2), (5,))


def test_too_little_memory_is_said_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    calls: list[int] = []
    module = sys.modules["qkscope.capture.measure"]
    monkeypatch.setattr(module, "available_bytes", lambda: 50_000)
    with pytest.raises(CaptureError, match=r"measuring 16 heads of 16 dimensions needs about .* GiB"):
        measure(model, [document(0, 5)], every_head(model), (5,), on_tokens=calls.append)
    assert calls == []
    monkeypatch.setattr(module, "available_bytes", lambda: 500_000)
    eager = build("gemma2")
    with pytest.raises(CaptureError, match="the eager attention of this gemma2 model over 1 x 300 tokens"):
        measure(eager, [document(0, 300)], every_head(eager), (300,))


def test_memory_estimate() -> None:
    assert moments_bytes(1, 128, 1) == 8 * (2 * (128 * 128 + 2 * 128) + 18 * 128)
    assert moments_bytes(2, 4, 2) == 2 * 8 * (3 * (16 + 8) + 34 * 4)
    model = build("llama")
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    estimate = weights_bytes(model.config, read_architecture(model.config), "float32")
    assert 0.6 * weights < estimate <= weights
    check_memory(10, None, "anything")


def test_batches_are_full_deterministic_and_lightly_padded() -> None:
    lengths = np.random.default_rng(0).integers(1, 300, 200).tolist()
    documents = [document(i, n) for i, n in enumerate(lengths)]
    found = batches(documents, longest=250, batch_tokens=1000)
    assert found == batches(documents[::-1], longest=250, batch_tokens=1000)
    assert sorted(d.index for batch in found for d in batch.documents) == list(range(200))
    assert all(batch.ids().size <= 1000 for batch in found)
    assert sum(batch.ids().size for batch in found) < 1.1 * sum(batch.tokens for batch in found)
    assert [len(batch.lengths) for batch in batches(documents[:3], longest=250, batch_tokens=1)] == [1, 1, 1]


def test_documents_of_one_length_share_a_batch_where_lengths_must_not_mix() -> None:
    documents = [document(i, n) for i, n in enumerate((9, 7, 9, 300, 9, 7, 260, 5))]
    found = batches(documents, longest=250, batch_tokens=18, mixed=False)
    assert [batch.lengths for batch in found] == [(250,), (250,), (9, 9), (9,), (7, 7), (5,)]


@pytest.mark.parametrize("family", SPARSE)
def test_documents_of_different_lengths_give_the_moments_of_each_alone(family: str) -> None:
    """These families choose their keys, and other ones in a longer pass."""
    model = build(family, index_topk=16)
    documents = [document(i, n) for i, n in enumerate((41, 31, 23, 31))]
    together, alone = (measure(model, documents, every_head(model), (41,), batch_tokens=n) for n in (1000, 1))
    for mine, theirs in zip(together.q + together.k, alone.q + alone.k, strict=True):
        np.testing.assert_allclose(mine.M, theirs.M, atol=1e-4 * np.abs(theirs.M).max())
        np.testing.assert_allclose(mine.C, theirs.C, atol=1e-4 * np.abs(theirs.C).max())


def test_documents_whose_rotation_depends_on_their_length_are_not_padded() -> None:
    """In one pass, the short document would be rotated like the long one."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    model = build("llama", rope_parameters=rope, max_position_embeddings=32)
    with pytest.raises(CaptureError, match="31 tokens differently from one of 41"):
        measure(model, [document(0, 41), document(1, 31)], every_head(model), (41,))


def test_padding_is_probed_once_and_only_where_lengths_differ() -> None:
    model, passes = build("llama"), []
    model.model.register_forward_pre_hook(
        lambda _, args, kwargs: passes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    probe, heads = Probing(model), every_head(model)
    probe(tuple(np.unique(heads.layer).tolist()))
    for lengths, expected in (
        ((40, 40), [(2, 40)]),
        ((40, 30, 20), [(3, 30), (3, 40), (3, 40)]),
        ((41, 25), [(2, 41)]),
    ):
        passes.clear()
        measure(model, [document(i, n) for i, n in enumerate(lengths)], heads, (41,), probe=probe)
        assert passes == expected


def test_padding_holds_valid_ids() -> None:
    batch = Batch((document(0, 5), document(1, 3)), (5, 3))
    assert batch.ids().shape == (2, 5)
    assert (batch.ids()[1, 3:] == document(1, 3).tokens[-1]).all()


def test_saved_vectors_are_a_deterministic_sample_that_others_can_check(tmp_path: Any) -> None:
    model = build("smollm3")
    documents = [document(i, n) for i, n in enumerate((60, 20, 45))]
    heads = HeadIndex.of([(0, 1), (3, 2)], 2)
    for rate, batch_tokens in ((0.4, 1000), (0.4, 10)):
        sample = VectorSample(heads, rate, 50, seed=5)
        measure(model, documents, heads, (50,), batch_tokens=batch_tokens, save=sample)
        sample.write(tmp_path / str(batch_tokens), "m", read_architecture(model.config))
    import pyarrow.parquet as pq

    kept = vectors_one_by_one(model, documents, 50)
    names = sorted(path.parent.name for path in tmp_path.glob("1000/m/*/data.parquet"))
    assert names == ["l00h00k", "l00h01q", "l03h01k", "l03h02q"]
    for name in names:
        tables = [pq.read_table(tmp_path / folder / "m" / name / "data.parquet") for folder in ("1000", "10")]
        first, second = (table.to_pydict() for table in tables)
        assert first["position"] == second["position"]
        labels = [
            (i, t) for i, n in enumerate((50, 20, 45)) for t in sampled_positions(i, n, 0.4, 5).tolist()
        ]
        assert list(zip(first["example_id"], first["position"], strict=True)) == labels
        layer, head, kind = int(name[1:3]), int(name[4:6]), "qk".index(name[6])
        expected = np.stack([kept[i, layer][kind][head, t].numpy() for i, t in labels])
        np.testing.assert_allclose(first["vector"], expected, atol=1e-4)
        assert first["sliding_window"] == [None] * len(labels)


def test_all_vectors_saved_analyse_to_the_moments_result(tmp_path: Any) -> None:
    model = build("llama")
    documents = [document(i, 40) for i in range(6)]
    heads = every_head(model)
    sample = VectorSample(heads, 1.0, 40)
    unit = measure(model, documents, heads, (40,), save=sample)
    sample.write(tmp_path, "m", read_architecture(model.config))
    table = analyze(tmp_path).qk
    axes = measure_axes([unit], 40)
    np.testing.assert_allclose(
        table["r_q"].to_numpy().reshape(axes.r_q.shape)[:, 0], axes.r_q[:, 0], atol=1e-5
    )
    np.testing.assert_allclose(
        table["r_k"].to_numpy().reshape(axes.r_k.shape)[:, 0], axes.r_k[:, 0], atol=1e-5
    )


def test_a_longer_document_keeps_the_positions_of_the_shorter() -> None:
    short, long = sampled_positions(7, 100, 0.3, 0), sampled_positions(7, 1000, 0.3, 0)
    assert short.tolist() == [t for t in long.tolist() if t < 100]
    assert 250 < len(long) < 350
    assert sampled_positions(8, 100, 0.3, 0).tolist() != short.tolist()
