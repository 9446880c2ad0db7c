"""The real SmolLM2-135M, from its GGUF file to qk.csv, against stored vectors, scikit-learn and scipy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import combined_pca_reference

from qkscope import checkpoints
from qkscope.corpus import load_corpus
from qkscope.scanning import ScanResult, scan
from qkscope.study import CorpusSpec
from qkscope.table import read_qk

ROOT = Path(__file__).resolve().parents[2]
WINDOW = 256
LAYERS, QUERIES, KEYS, DIM, THETA = 30, 9, 3, 64, 100_000.0


@pytest.fixture(scope="module")
def gguf() -> Path:
    sys.path.insert(0, str(ROOT / "scripts"))
    from fetch_smollm2 import fetch_smollm2

    return fetch_smollm2()


@pytest.fixture(scope="module")
def scanned(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ScanResult, Path, list[Any]]:
    """The model, what `scan` made of the file, where it wrote, and the documents it read."""
    loaded: list[Any] = []
    out = tmp_path_factory.mktemp("scan")
    with pytest.MonkeyPatch.context() as patch:
        read = checkpoints.load_model
        patch.setattr(checkpoints, "load_model", lambda source: loaded.append(read(source)) or loaded[0])
        result = scan(gguf, max_length=WINDOW, documents=6, groups=3, dtype="float32", device="cpu", out=out)
    tokenizer = checkpoints.load_tokenizer(checkpoints.Source(str(gguf)))
    corpus = load_corpus(CorpusSpec(documents=6), tokenizer, WINDOW)
    return loaded[0], result, out, corpus.documents


def rotated(x: torch.Tensor) -> torch.Tensor:
    """(heads, tokens, dim) as projected -> as the score sees it: pairs (i, i + dim/2) turned by their angle."""
    half = DIM // 2
    angle = torch.arange(x.shape[1])[:, None].double() * THETA ** (-torch.arange(half).double() / half)
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half].double(), x[..., half:].double()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def stored_vectors(model: Any, documents: list[Any]) -> dict[tuple[int, str], np.ndarray]:
    """(layer, kind) -> (heads, all tokens, dim), from hooks on the projections: nothing of qkscope in between."""
    kept: dict[tuple[int, str], list[np.ndarray]] = {}

    def keep(layer: int, kind: str, heads: int) -> Any:
        def hook(_module: Any, _inputs: Any, out: torch.Tensor) -> None:
            x = out[0].unflatten(-1, (heads, DIM)).transpose(0, 1)
            kept.setdefault((layer, kind), []).append(rotated(x).numpy())

        return hook

    hooks = []
    for i, layer in enumerate(model.model.layers):
        hooks.append(layer.self_attn.q_proj.register_forward_hook(keep(i, "q", QUERIES)))
        hooks.append(layer.self_attn.k_proj.register_forward_hook(keep(i, "k", KEYS)))
    with torch.no_grad():
        for document in documents:
            model(torch.tensor(document.tokens.astype(np.int64))[None])
    for hook in hooks:
        hook.remove()
    return {key: np.concatenate(parts, axis=1) for key, parts in kept.items()}


@pytest.mark.slow
def test_qk_csv_agrees_with_the_slow_reference(scanned: Any) -> None:
    model, _, out, documents = scanned
    vectors = stored_vectors(model, documents)
    t = np.concatenate([np.arange(len(document.tokens)) for document in documents])
    table = read_qk(out / "qk.csv").set_index(["layer", "head", "pc"])
    assert len(table) == LAYERS * QUERIES * 10
    assert (table["n_q"] == len(t)).all()
    assert (table["n_k"] == len(t)).all()
    found, expected = [], []
    for layer in range(LAYERS):
        for head in range(QUERIES):
            q, k = vectors[layer, "q"][head], vectors[layer, "k"][head // 3]
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
    assert result.documents == 6
    assert result.model == "SmolLM2-135M-Instruct.Q4_1"
    assert {path.name for path in out.iterdir()} == {"qk.csv", "heads.csv", "scan.json"}
    assert result.heads["rope"].eq(1).all()
    assert len(result.heads) == 270
