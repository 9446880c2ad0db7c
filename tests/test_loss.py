"""Loss in nats per token: that of the model itself, by position, in the dataset, in causes and in the summary."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from families import build
from small_study import make_study, run_undrawn
from tiny import tiny_model

from qkscope.capture import measure
from qkscope.capture.head import LanguageHead
from qkscope.claims import summary
from qkscope.corpus import documents_from
from qkscope.errors import CaptureError
from qkscope.results import load_results
from qkscope.sums import FactSum, LossSum
from qkscope.sums.head_index import HeadIndex
from qkscope.sums.token_loss import position_bins
from qkscope.sums.unit import samples_of


def _texts(vocabulary: int, lengths=(40, 33, 25, 17)):
    rng = np.random.default_rng(0)
    return documents_from([rng.integers(5, vocabulary, n).tolist() for n in lengths])


def _measured(model, texts, windows=(16, 40), layer=0, **parameters):
    heads = HeadIndex.of([(layer, 0)], 1)
    return measure(model, texts, heads, windows, sums={LossSum: parameters}).get(LossSum)


def _own(model, tokens) -> tuple[float, np.ndarray]:
    """The model's own loss of a document, and -log p of each of its tokens by way of its logits."""
    ids = torch.tensor(np.asarray(tokens, dtype=np.int64))[None]
    with torch.no_grad():
        out = model.eval()(input_ids=ids, labels=ids)
    logits = out.logits[0, :-1].double().numpy()
    top = logits.max(axis=1)
    norm = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
    return float(out.loss), norm - logits[np.arange(len(tokens) - 1), ids[0, 1:].numpy()]


# gemma2 caps its logits, cohere and granite scale them, gpt_neo's attention goes through score products.
@pytest.mark.parametrize(
    ("family", "layer"), [("smollm3", 0), ("gemma2", 1), ("cohere", 0), ("granite", 0), ("gpt_neo", 0)]
)
def test_the_loss_of_a_document_is_the_models_own(family, layer):
    torch.manual_seed(1)
    model = build(family).eval()
    for weight in model.parameters():
        weight.data.mul_(1.5)  # so that logits differ enough for caps and scales to matter
    texts = _texts(60)
    for document in texts:
        own, nats = _own(model, document.tokens)
        found = _measured(model, [document], layer=layer, every=1)
        assert found.mean == pytest.approx(own, abs=1e-5)
        assert found.window(16).mean == pytest.approx(nats[:15].mean(), abs=1e-5)
    every = np.concatenate([_own(model, document.tokens)[1] for document in texts])
    assert _measured(model, texts, layer=layer, every=1).mean == pytest.approx(every.mean(), abs=1e-5)


def test_bins_hold_the_positions_of_the_predicted_tokens():
    assert position_bins(33).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32]
    model, texts = tiny_model().eval(), _texts(60)
    found = _measured(model, texts, every=1)
    nats = [_own(model, document.tokens)[1] for document in texts]
    starts = [*position_bins(40).tolist(), 40]
    for b, (start, stop) in enumerate(pairwise(starts)):
        here = np.concatenate([each[start - 1 : stop - 1] for each in nats])
        assert found.n.sum(axis=0)[b] == len(here)
        assert found.by_position[b] == pytest.approx(here.mean(), abs=1e-6)
    assert found.window(16).n.shape == (1, len(position_bins(16)))


def test_every_kth_token_is_predicted_in_turn():
    model, texts = tiny_model().eval(), _texts(60)
    found = _measured(model, texts, every=3)
    nats = [
        _own(model, document.tokens)[1][t - 1]
        for document in texts
        for t in range(1, len(document.tokens))
        if (t + document.index) % 3 == 0
    ]
    assert int(found.n.sum()) == len(nats)
    assert found.mean == pytest.approx(np.mean(nats), abs=1e-6)


def test_sums_merge_and_survive_their_file():
    model, texts = tiny_model().eval(), _texts(60)
    heads = HeadIndex.of([(0, 0)], 1)
    units = [measure(model, texts[i::2], heads, (16, 40), sums={LossSum: {"every": 1}}) for i in (0, 1)]
    whole = samples_of(units, LossSum, 40)[0]
    assert whole.mean == pytest.approx(_measured(model, texts, every=1).mean, abs=1e-7)
    sums, facts = units[0].get(LossSum), units[0].get(FactSum)
    arrays, meta = sums.to_arrays()
    again = LossSum.from_arrays(arrays, meta, facts)
    np.testing.assert_array_equal(again.total, sums.total)
    with pytest.raises(ValueError, match="shape"):
        LossSum.from_arrays({**arrays, "loss.n": sums.n[:1]}, meta, facts)


def test_the_head_is_run_alone_and_the_model_stays_as_it_was():
    model = tiny_model().eval()
    ids = torch.tensor([[3, 4, 5, 6]])
    before = model(ids).logits
    head = LanguageHead(model)
    assert torch.equal(head(model.model(ids)[0][0]), before[0])
    assert type(model.model).__name__ == "LlamaModel"
    assert torch.equal(model(ids).logits, before)
    with pytest.raises(CaptureError, match="no language-model head"):
        LanguageHead(model.model)


def test_a_large_vocabulary_is_predicted_in_parts():
    assert LanguageHead(tiny_model()).every == 1
    head = LanguageHead(tiny_model(vocab_size=4096)).every
    assert head == int(np.ceil(4096 * 32 / (2 * (32 * 32 * 3 + 3 * 32 * 48 + 64) + 32) / 0.15))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Neighbours with different RoPE settings, so that there are counterfactual checkpoints."""
    folder = tmp_path_factory.mktemp("loss")
    path = make_study(folder)
    config = folder / "checkpoint-3" / "config.json"
    settings = json.loads(config.read_text())
    settings["rope_parameters"]["rope_theta"] = 500.0
    config.write_text(json.dumps(settings))
    path.write_text(path.read_text() + "loss: true\n")
    run_undrawn(path, folder / "results")
    return folder / "results"


def test_results_have_the_loss_of_every_checkpoint(study):
    results = load_results(study)
    own = results.own()
    assert own["loss"].dims == ("checkpoint", "sample")
    assert own["loss_by_position"].dims == ("checkpoint", "position_bin")
    assert own["position_bin"].to_numpy().tolist()[:3] == [1, 2, 3]
    assert np.isfinite(own["loss"].to_numpy()).all()
    assert (own["loss_by_position_se"].isel(position_bin=0) > 0).all()
    assert np.isnan(own["loss_by_position"].isel(checkpoint=0, position_bin=-1))
    assert "loss" not in results.heads
    found = [each["own"]["loss"] for each in summary(results)["checkpoints"]]
    assert found == pytest.approx(own["loss"].isel(sample=0).to_numpy().tolist())


def test_causes_split_the_change_of_the_loss(study):
    table = load_results(study).causes
    row = table[(table["number"] == "loss") & (table["to_model"] == "checkpoint-3")].iloc[0]
    assert row["population"] == "all"
    own = load_results(study).own()["loss"].isel(sample=0)
    change = float(own.sel(checkpoint="checkpoint-3") - own.sel(checkpoint="checkpoint-2"))
    assert row["total"] == pytest.approx(change)
    assert row["rotation_first"] + row["weights_first"] + row["window"] == pytest.approx(change)
    assert row["rotation_first"] != 0
    assert row["total_se"] > 0


def test_results_without_the_loss_have_none(tmp_path):
    folder = tmp_path / "plain"
    path = make_study(folder)
    run_undrawn(path, folder / "results")
    results = load_results(folder / "results")
    assert "loss" not in results.own()
    assert "loss" not in set(results.causes["number"])
    assert "loss" not in summary(results)["checkpoints"][0]["own"]
