"""The real SmolLM2-135M, from its GGUF file to qk.csv, against stored vectors, scikit-learn and scipy."""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import combined_pca_reference, eta_squared_reference
from synthetic import rope
from test_attention import expected_total, scores_of

from qkscope import checkpoints
from qkscope.capture import measure
from qkscope.corpus import Document, load_corpus
from qkscope.measures.anatomy import SHARES
from qkscope.results.tables import read_qk
from qkscope.scanning.scan import ScanResult, scan
from qkscope.study import CorpusSpec
from qkscope.sums import AttentionSum, LogitSum, LossSum
from qkscope.sums.attention_rows import COLUMNS
from qkscope.sums.head_index import HeadIndex

ROOT = Path(__file__).resolve().parents[2]
WINDOW, GROUPS = 512, 4
SOURCES = ("argparse", "ast", "calendar", "difflib", "inspect", "pickle", "tarfile", "textwrap")
DOCUMENTS = len(SOURCES)
LAYERS, QUERIES, KEYS, DIM, THETA = 30, 9, 3, 64, 100_000.0


@pytest.fixture(scope="module")
def gguf() -> Path:
    sys.path.insert(0, str(ROOT / "scripts"))
    from fetch_smollm2 import fetch_smollm2

    return fetch_smollm2()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Modules of the standard library that all fill the window."""
    folder = tmp_path_factory.mktemp("texts")
    for name in SOURCES:
        shutil.copy(Path(sysconfig.get_path("stdlib")) / f"{name}.py", folder)
    return folder


@pytest.fixture(scope="module")
def scanned(
    gguf: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, ScanResult, Path, Passes]:
    """The model, what `scan` made of the file, where it wrote, and the passes that it ran."""
    loaded: list[Any] = []
    passes = Passes()
    out = tmp_path_factory.mktemp("scan")

    def load(source: Any) -> Any:
        loaded.append(read(source))
        passes.watch(loaded[0])
        return loaded[0]

    with pytest.MonkeyPatch.context() as patch:
        read = checkpoints.load_model
        patch.setattr("qkscope.scanning.subject.load_model", load)
        options = {"max_length": WINDOW, "groups": GROUPS, "dtype": "float32", "device": "cpu", "out": out}
        result = scan(gguf, text_paths=[texts], **options)
    passes.end()
    return loaded[0], result, out, passes


def rotated(x: torch.Tensor) -> torch.Tensor:
    """(heads, tokens, dim) as projected -> as the score sees it: pairs (i, i + dim/2) turned by their angle."""
    half = DIM // 2
    angle = torch.arange(x.shape[1])[:, None].double() * THETA ** (-torch.arange(half).double() / half)
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half].double(), x[..., half:].double()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Passes:
    """Tokens and projections of every pass of a model, from hooks of torch: nothing of qkscope in between."""

    def __init__(self) -> None:
        self._tokens: list[torch.Tensor] = []  # of each pass: (documents, tokens)
        self._projected: list[dict[tuple[int, str], torch.Tensor]] = []  # (documents, tokens, heads * dim)
        self._hooks: list[Any] = []

    def watch(self, model: Any) -> None:
        def begin(_module: Any, inputs: tuple[torch.Tensor]) -> None:
            self._tokens.append(inputs[0])
            self._projected.append({})

        def keep(layer: int, kind: str) -> Any:
            def hook(_module: Any, _inputs: Any, out: torch.Tensor) -> None:
                self._projected[-1][layer, kind] = out.detach()

            return hook

        self._hooks.append(model.model.embed_tokens.register_forward_pre_hook(begin))
        for i, layer in enumerate(model.model.layers):
            self._hooks.append(layer.self_attn.q_proj.register_forward_hook(keep(i, "q")))
            self._hooks.append(layer.self_attn.k_proj.register_forward_hook(keep(i, "k")))

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def vectors(self, documents: list[Any]) -> dict[tuple[int, str], np.ndarray]:
        """(layer, kind) -> (heads, all tokens of the documents in their order, dim), as the score sees them."""
        kept: dict[tuple[int, str], list[np.ndarray]] = {}
        for document in documents:
            tokens = torch.tensor(document.tokens.astype(np.int64))
            at, row = self._place(tokens)
            for key, out in self._projected[at].items():
                x = out[row, : len(tokens)].unflatten(-1, (-1, DIM)).transpose(0, 1)
                kept.setdefault(key, []).append(rotated(x).numpy())
        return {key: np.concatenate(parts, axis=1) for key, parts in kept.items()}

    def _place(self, tokens: torch.Tensor) -> tuple[int, int]:
        """The pass, and the row in it, that begins with these tokens."""
        return next(
            (at, row)
            for at, ids in enumerate(self._tokens)
            for row in range(len(ids))
            if torch.equal(ids[row, : len(tokens)], tokens)
        )


Vectors = dict[tuple[int, str], np.ndarray]


@pytest.fixture(scope="module")
def vectors(gguf: Path, texts: Path, scanned: Any) -> Vectors:
    """The vectors of all documents by (layer, kind): (heads, documents, tokens, dim)."""
    tokenizer = checkpoints.load_tokenizer(checkpoints.Source(str(gguf)))
    documents = load_corpus(CorpusSpec(source=[str(texts)]), tokenizer, WINDOW).documents
    found = scanned[3].vectors(documents)
    return {key: x.reshape(len(x), DOCUMENTS, WINDOW, DIM) for key, x in found.items()}


@pytest.mark.slow
def test_qk_csv_agrees_with_the_slow_reference(scanned: Any, vectors: Vectors) -> None:
    _, _, out, _ = scanned
    t = np.tile(np.arange(WINDOW), DOCUMENTS)
    table = read_qk(out / "qk.csv").set_index(["layer", "head", "pc"])
    assert len(table) == LAYERS * QUERIES * 10
    assert (table["n_q"] == len(t)).all()
    assert (table["n_k"] == len(t)).all()
    found, expected = [], []
    for layer in range(LAYERS):
        for head in range(QUERIES):
            q, k = (vectors[layer, kind][h].reshape(-1, DIM) for kind, h in (("q", head), ("k", head // 3)))
            r_q, r_k, explained, _ = combined_pca_reference(q, t, k, t, components=2)
            expected.append((r_q[0], r_k[0], explained[0]))
            found.append(tuple(table.loc[(layer, head, 0)][["r_q", "r_k", "explained_variance"]]))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # The comparison says something only if the numbers differ from head to head.
    assert np.std(expected, axis=0).min() > 0.05


@pytest.mark.slow
def test_a_real_model_is_described(scanned: Any) -> None:
    _, result, out, _ = scanned
    a = result.architecture
    assert (a.family, a.num_layers, a.n_q_heads, a.n_kv_heads, a.head_dim) == ("llama", 30, 9, 3, 64)
    assert a.rope == (True,) * 30
    assert result.documents == result.filled == DOCUMENTS
    assert result.model == "SmolLM2-135M-Instruct.Q4_1"
    made = {"measures.safetensors", "qk.csv", "heads.csv", "transitions.csv", "scan.json", "manifest.json"}
    assert {path.name for path in out.iterdir()} == made
    assert result.heads["rope"].eq(1).all()
    assert len(result.heads) == 270


def some_heads(result: ScanResult) -> list[tuple[int, int]]:
    """Every third head, from all layers."""
    return list(zip(result.heads["layer"][::3], result.heads["head"][::3], strict=True))


@pytest.mark.slow
def test_parts_of_the_score_add_up_to_what_is_measured(scanned: Any, vectors: Vectors) -> None:
    """The sum of the four parts against the variance of every query's scores over its keys, pair by pair."""
    result = scanned[1]
    table = result.heads.set_index(["layer", "head"])
    rows, columns = np.arange(WINDOW)[:, None], np.arange(WINDOW)
    seen = (columns >= 4) & (columns < rows)
    predicted, measured = [], []
    for layer, head in some_heads(result):
        scores = vectors[layer, "q"][head] @ vectors[layer, "k"][head // 3].transpose(0, 2, 1) / np.sqrt(DIM)
        measured.append(float(scores[:, 6:].var(axis=2, where=seen[6:]).mean()))
        predicted.append(table.loc[(layer, head), "score_sd"] ** 2)
    ratio = np.array(predicted) / np.array(measured)
    assert ((ratio > 0.85) & (ratio < 1.15)).mean() >= 0.9
    assert np.corrcoef(np.log(predicted), np.log(measured))[0, 1] >= 0.98
    shares = list(SHARES)
    np.testing.assert_allclose(table[shares].sum(axis=1), 1, atol=1e-9)
    positional = table["share_position"] + table["share_query_position"]
    np.testing.assert_allclose(table["share_positional"], positional, atol=1e-9)
    # Each of the parts decides in some head.
    assert table[shares].max().drop("share_query_position").min() > 0.6


@pytest.mark.slow
def test_the_distance_curve_is_the_one_of_measured_scores(scanned: Any, vectors: Vectors) -> None:
    result = scanned[1]
    cell = result.data.isel(cell=0)
    lags = cell["distance"].to_numpy()
    found = []
    for layer, head in some_heads(result):
        scores = vectors[layer, "q"][head] @ vectors[layer, "k"][head // 3].transpose(0, 2, 1) / np.sqrt(DIM)
        curve = cell["distance_score"].sel(head=f"L{layer}H{head}").to_numpy()
        there = np.isfinite(curve)
        # Relative to each query's mean over its keys from position 4 on, averaged over third octaves.
        length = scores.shape[1]
        seen = np.tri(length, k=-1, dtype=bool) & (np.arange(length) >= 4)
        scores = (
            scores - (scores * seen).sum(axis=2, keepdims=True) / np.maximum(seen.sum(axis=1), 1)[:, None]
        )
        every = [np.diagonal(scores, -lag, 1, 2)[:, 4:].mean() for lag in range(length - 4)]
        ends = [(int(np.ceil(lag / 2 ** (1 / 3))), int(lag * 2 ** (1 / 3))) for lag in lags[there]]
        measured = [np.mean(every[a : b + 1]) for a, b in ends]
        found.append(np.corrcoef(curve[there], measured)[0, 1])
    assert np.median(found) >= 0.99


@pytest.mark.slow
def test_a_few_bins_know_as_much_of_position_as_one_a_position(scanned: Any, vectors: Vectors) -> None:
    """eta^2 from the path against products of group means at every single position."""
    result = scanned[1]
    table = result.heads.set_index(["layer", "head"])
    for layer, head in some_heads(result)[::3]:
        q, k = vectors[layer, "q"][head], vectors[layer, "k"][head // 3]
        flat = [x.reshape(-1, DIM) for x in (q, k)]
        axis = combined_pca_reference(flat[0], np.arange(len(flat[0])), flat[1], np.arange(len(flat[1])), 1)[
            3
        ][0]
        for name, x in (("q", q), ("k", k)):
            expected = eta_squared_reference([x[g::GROUPS] for g in range(GROUPS)], axis)
            assert table.loc[(layer, head), f"eta_{name}"] ** 2 == pytest.approx(expected, abs=0.02)


@pytest.mark.slow
def test_r_is_a_rotated_constant_and_a_rest(scanned: Any, vectors: Vectors) -> None:
    result = scanned[1]
    assert result.heads["r_q_const"].notna().all()
    assert np.corrcoef(result.heads["r_q_const"], result.heads["r_q"])[0, 1] > 0.7
    t = np.tile(np.arange(WINDOW), DOCUMENTS).astype(float)
    turn = rope(DIM, THETA)
    for layer, head in some_heads(result)[::15]:
        q, k = (vectors[layer, kind][h].reshape(-1, DIM) for kind, h in (("q", head), ("k", head // 3)))
        axis = combined_pca_reference(q, t, k, t, 1)[3][0]
        dt = t - t.mean()
        spread = np.sqrt((((q - q.mean(axis=0)) @ axis) ** 2).sum() * (dt**2).sum())
        constant = turn.rotate(turn.derotate(q, t).mean(axis=0)[None], t)
        r, r_const, r_rest = ((x @ axis) @ dt / spread for x in (q, constant, q - constant))
        assert r == pytest.approx(r_const + r_rest, abs=1e-9)
        found = result.heads.set_index(["layer", "head"]).loc[(layer, head), "r_q_const"]
        assert abs(found) == pytest.approx(abs(r_const), abs=1e-6)


def test_attention_rows_are_those_of_eager_attention(
    scanned: tuple[Any, ScanResult, Path, Passes],
) -> None:
    model = scanned[0]
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    documents = [
        Document(i, str(i), np.random.default_rng(i).integers(100, 40_000, 200).astype(np.int32))
        for i in (0, 1)
    ]
    heads = HeadIndex.of(
        [(layer, head) for layer in range(LAYERS) for head in range(QUERIES)], QUERIES // KEYS
    )
    unit = measure(model, documents, heads, (200,), sums={AttentionSum: {}, LogitSum: {}})
    found, expected = unit.get(AttentionSum), expected_total(model, unit, documents)
    norms = [COLUMNS.index(name) for name in ("q_norm", "k_norm")]
    np.testing.assert_allclose(
        np.delete(found.total / found.n[:, None, None], norms, axis=2),
        np.delete(expected / found.n[:, None, None], norms, axis=2),
        atol=1e-5,
    )
    largest = np.full(len(heads), -np.inf)
    for each in documents:
        vectors = scores_of(model, each, 200)
        for row, (layer, head) in enumerate(zip(heads.layer, heads.head, strict=True)):
            q, k = (x[head] for x in vectors[int(layer)])
            scores = np.where(np.tri(200, dtype=bool), q @ k.T / np.sqrt(DIM), -np.inf)
            largest[row] = max(largest[row], scores.max())
    np.testing.assert_allclose(unit.get(LogitSum).logit[0], largest, rtol=1e-5)
    model.set_attn_implementation(before)


def test_the_loss_is_the_models_own(scanned: tuple[Any, ScanResult, Path, Passes]) -> None:
    model = scanned[0]
    document = Document(0, "0", np.random.default_rng(0).integers(100, 40_000, 200).astype(np.int32))
    ids = torch.tensor(document.tokens.astype(np.int64))[None]
    with torch.no_grad():
        own = float(model(input_ids=ids, labels=ids).loss)
    unit = measure(
        model, [document], HeadIndex.of([(0, 0)], QUERIES // KEYS), (200,), sums={LossSum: {"every": 1}}
    )
    assert unit.get(LossSum).mean == pytest.approx(own, rel=1e-5)
