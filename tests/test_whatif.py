"""What-if: the same numbers as editing config.json by hand, with paired errors; predictions; refusals."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import tiny
import torch
from click.testing import CliRunner
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

import qkscope
from qkscope.checkpoints import Source, load_config
from qkscope.checkpoints.rope import first_negative, frequencies, parse_candidate, parse_layers
from qkscope.cli import main
from qkscope.errors import EngineError, QkscopeError, StoreError
from qkscope.results import manifest
from qkscope.results.lock import locked
from qkscope.scanning.whatif import _pair_curve, _third_octaves
from qkscope.sums.path import Path
from qkscope.sums.rotation import Rotation

WINDOWS = (16, 48)
BY_HAND = {
    "theta=5e5": {"rope_type": "default", "rope_theta": 5e5},
    "linear:factor=4": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "yarn:factor=4,original=32": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "llama3:factor=8,original=32": {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "dynamic:factor=4": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
}
SOME = "theta=5e5@1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose heads look at position: untrained ones hardly do."""
    torch.set_num_threads(1)
    place = tmp_path_factory.mktemp("model") / "tiny"
    model = tiny.tiny_model(3, max_position_embeddings=32, attention_bias=True)
    with torch.no_grad():
        for layer in model.model.layers:
            for part in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                part.weight *= 12
                part.bias.normal_(0, 2)
            layer.self_attn.o_proj.weight *= 10
        model.lm_head.weight *= 10
    model.save_pretrained(place)
    tiny.tiny_tokenizer().save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def texts():
    draw = np.random.default_rng(0)
    return [draw.integers(3, 64, size=48).tolist() for _ in range(4)]


@pytest.fixture(scope="module")
def found(folder, texts):
    return qkscope.whatif(folder, [*BY_HAND, SOME], windows=WINDOWS, texts=texts, groups=4)


def losses(model, texts, window):
    """Nats of each predicted token, (documents, window - 1)."""
    ids = torch.tensor(texts)[:, :window]
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[:, :-1].double()
    return cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").numpy()


def by_hand(folder, name, place):
    """The model with an edited config.json; of some layers, with their cosine and sine written out."""
    shutil.copytree(folder, place)
    if name in BY_HAND:
        tiny.edit_config(place, rope_parameters=BY_HAND[name])
    model = AutoModelForCausalLM.from_pretrained(place)
    if name == SOME:
        layer = model.model.layers[1]
        plain = layer.forward

        def turned(*args, position_ids, position_embeddings, **kwargs):
            angle = position_ids[..., None] * 5e5 ** (-torch.arange(0, 8, 2) / 8)
            angle = torch.cat([angle, angle], dim=-1)
            return plain(
                *args, position_ids=position_ids, position_embeddings=(angle.cos(), angle.sin()), **kwargs
            )

        layer.forward = turned
    return model


@pytest.mark.parametrize("name", [*BY_HAND, SOME])
def test_a_candidate_is_what_editing_config_json_by_hand_gives(found, folder, texts, tmp_path, name):
    model, own = by_hand(folder, name, tmp_path / "a"), by_hand(folder, "", tmp_path / "b")
    table = found.table[found.table["candidate"] == name]
    for window in WINDOWS:
        theirs, current = losses(model, texts, window), losses(own, texts, window)
        row = table[(table["window"] == window) & (table["part"] == "window")].iloc[0]
        assert row["nats"] == pytest.approx(theirs.mean(), abs=1e-6)
        assert row["difference"] == pytest.approx((theirs - current).mean(), abs=1e-6)
        each = [x.mean(axis=1) for x in (theirs, current)]
        paired, alone = (np.std(x, ddof=1) / 2 for x in (each[0] - each[1], each[0]))
        assert row["difference_se"] == pytest.approx(paired, abs=1e-6)
        assert row["nats_se"] == pytest.approx(alone, abs=1e-6)
        assert row["difference_se_unpaired"] == pytest.approx(
            np.hypot(alone, np.std(each[1], ddof=1) / 2), abs=1e-6
        )
        bins = table[(table["window"] == window) & (table["part"] == "position")]
        for b in bins.itertuples():
            some = theirs[:, b.position_from - 1 : b.position_to]
            assert b.nats == pytest.approx(some.mean(), abs=1e-6)
    assert abs(table["difference"]).max() > 1e-4  # a setting that changes nothing would pass all of this


def test_the_ranking_names_the_best_and_how_to_use_it(found):
    ranking = found.ranking
    assert ranking["nats"].is_monotonic_increasing
    assert len(ranking) == len(BY_HAND) + 2
    for name, parameters in BY_HAND.items():
        assert json.loads(found.snippets[name])["rope_parameters"] == parameters
    assert "config.json" in found.snippets[SOME]
    for name in ranking["candidate"]:
        assert name in str(found)


def test_distance_curves_of_the_first_layer_are_predicted_from_vectors_before_rotation(found):
    heads = found.heads[(found.heads["window"] == 48) & (found.heads["candidate"] != "current")]
    first = heads[(heads["layer"] == 0) & heads["candidate"].isin(["theta=5e5", "linear:factor=4"])]
    assert (first["prediction"] == "exact").all()
    assert (first["curve_change"] > 1e-3).all()
    np.testing.assert_allclose(first["curve_change_predicted"], first["curve_change"], rtol=0.05)
    # Settings of layer 1 alone change nothing in layer 0.
    alone = heads[(heads["candidate"] == SOME) & (heads["layer"] == 0)]
    assert alone["curve_change"].abs().max() < 1e-6
    assert alone["curve_change_predicted"].abs().max() == 0
    assert set(heads[heads["layer"] == 1]["prediction"]) == {"estimate"}
    shares = found.wavelengths.groupby("candidate")["share_of_change"].sum()
    np.testing.assert_allclose(shares, 1, atol=1e-9)


def test_a_pair_s_curve_is_that_of_all_pairs_of_tokens(rng):
    width, edges = 24, np.array([0, 1, 4, 14, 24])
    n = np.array([1, 3, 10, 10])
    u = rng.normal(size=(2, 1, 4, 2))
    paths = [Path(edges, n, x * n[None, :, None]) for x in u]
    rotation = Rotation(2, np.array([[0, 1]]), np.array([0.7]), 1.3)
    m = [path.at(rotation, np.arange(width))[0] for path in paths]
    found = _pair_curve(*paths, rotation, 0, width)[0]
    for lag in range(1, width - 4):
        scores = [
            m[0][i] @ m[1][i - lag] - np.mean([m[0][i] @ m[1][j] for j in range(4, i)])
            for i in range(max(lag + 4, 5), width)
        ]
        assert found[lag] == pytest.approx(np.mean(scores), abs=1e-12)
    smooth = _third_octaves(found[None], np.array([1, 8]))[0]
    assert smooth == pytest.approx([found[1], found[7:11].mean()])


@pytest.mark.parametrize(("dim", "theta", "first"), [(128, 5e4, 5306), (128, 2e6, 48415), (64, 1e5, 3616)])
def test_the_bound_of_men_et_al(dim, theta, first):
    assert first_negative(Rotation.plain(dim, theta).frequency) == first


def test_frequencies_are_those_of_the_model(folder):
    for name in list(BY_HAND)[:4]:
        source = Source(str(folder))
        settings = parse_candidate(name).settings(load_config(source))
        config = load_config(Source(str(folder), rotation=settings))
        found, scale = frequencies(config)
        rotary = AutoModelForCausalLM.from_config(config).model.rotary_emb
        np.testing.assert_allclose(found, rotary.inv_freq.numpy(), rtol=1e-6)
        assert scale == pytest.approx(rotary.attention_scaling)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("spiral:factor=2", "spiral"),
        ("linear:theta=2", "factor"),
        ("linear:factor=x", "factor"),
        ("linear:factor=-1", "factor"),
        ("yarn:factor=2,orignal=4", "orignal"),
        ("theta", "theta"),
        ("theta=2e6@4-2", "4-2"),
    ],
)
def test_a_candidate_that_cannot_be_read(text, names):
    with pytest.raises(QkscopeError, match=names):
        parse_candidate(text)


def test_layers():
    assert parse_layers("0-2, 5") == (0, 1, 2, 5)


def test_settings_of_some_layers_are_refused_where_they_cannot_be_given(folder, texts, tmp_path):
    with pytest.raises(QkscopeError, match="layers are 0 to 1"):
        qkscope.whatif(folder, ["theta=5e5@7"], windows=(16,), texts=texts)
    with pytest.raises(QkscopeError, match="folder"):
        qkscope.whatif(object(), ["theta=5e5"])
    from transformers import GPT2Config, GPT2LMHeadModel

    small = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=64, n_positions=64)
    GPT2LMHeadModel(small).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(QkscopeError, match="rope_parameters"):
        qkscope.whatif(tmp_path / "gpt2", ["theta=5e5"], windows=(16,), texts=texts)


def test_the_command_writes_tables_figure_and_snippets(folder, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(" ".join(np.random.default_rng(0).choice(tiny.WORDS, 400)))
    out = tmp_path / "out"
    asked = ["whatif", str(folder), "--rope", "theta=5e5", "--rope", "linear:factor=2", "--layers", "1"]
    asked += ["--windows", "16,48", "--text", str(text), "--out", str(out)]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0, done.output
    assert "nats per token" in done.stdout
    assert "theta=5e5" in done.stdout
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert names >= {"whatif.csv", "whatif_heads.csv", "whatif_wavelengths.csv", "candidates.json"}
    assert names >= {
        f"figure/{name}" for name in ("figure.png", "figure.svg", "figure.pdf", "data.csv", "README.md")
    }
    recorded = manifest.read_manifest(out)
    assert recorded.finished
    assert {*recorded.tables, manifest.NAME} == names - {name for name in names if name.startswith(".")}
    wrong = CliRunner().invoke(main, [*asked[:3], "theta=x", *asked[4:]])
    assert wrong.exit_code == 1
    assert "Traceback" not in wrong.output


def test_a_folder_keeps_its_results_until_they_are_replaced(found, folder, texts, tmp_path):
    out = tmp_path / "out"

    def attempt(*candidates, documents=texts, **options):
        return qkscope.whatif(
            folder, candidates, windows=(16,), heads=[(0, 0)], texts=documents, groups=2, out=out, **options
        )

    attempt("theta=5e5")
    first = (out / "whatif.csv").read_bytes()
    with pytest.raises(StoreError, match=r"(?s)theta=5e5.*--replace"):
        attempt("linear:factor=2")
    with pytest.raises(StoreError, match=r"(?s)texts.*--replace"):
        attempt("theta=5e5", documents=texts[:2])
    with pytest.raises(StoreError, match=r"(?s)the scan of.*--replace"):
        qkscope.scan(folder, texts=texts, max_length=16, out=out)
    assert (out / "whatif.csv").read_bytes() == first
    attempt("theta=5e5", "linear:factor=2")  # more candidates lose nothing
    attempt("linear:factor=2", replace=True)
    assert list(manifest.read_manifest(out).holds["checkpoints"]) == [f"{folder.name} with linear:factor=2"]
    (out / manifest.NAME).unlink()
    with pytest.raises(StoreError, match=r"whatif\.csv"):
        attempt("linear:factor=2")
    with locked(tmp_path / "busy", "another"), pytest.raises(EngineError, match="another"):
        found.save(tmp_path / "busy")
