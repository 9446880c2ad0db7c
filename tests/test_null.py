"""The null: heads that know nothing of position pass it as often as its level says, whatever goes on in documents."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from simulated import ar1

from qkscope.measures.pca import LEVEL, Axes, measure_batch
from qkscope.sums.moments import Moments, merge_all

TOKENS, DIM = 256, 3
SPREAD = np.array([2.0, 1.5, 0.7], dtype=np.float32)
# (heads, documents) -> vectors (heads, documents, tokens, dim)
Make = Callable[[np.random.Generator, int, int], np.ndarray]


def noise(phi: float) -> Make:
    return lambda rng, heads, documents: (
        ar1(rng, (heads, documents, DIM, TOKENS), phi).swapaxes(2, 3) * SPREAD
    )


def walk(rng: np.random.Generator, heads: int, documents: int) -> np.ndarray:
    return rng.standard_normal((heads, documents, TOKENS, DIM)).cumsum(axis=2) * SPREAD


def scalars_of_bytes(rng: np.random.Generator, heads: int, documents: int) -> np.ndarray:
    """A random vector for each byte: queries and keys that are a function of the text alone, from a random place on."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts = [path.read_bytes() for path in sorted(folder.glob("*.py")) if path.stat().st_size > 4000]
    rows = []
    for i in rng.choice(len(texts), documents, replace=False):
        start = rng.integers(0, len(texts[i]) - TOKENS)
        rows.append(np.frombuffer(texts[i], dtype=np.uint8)[start : start + TOKENS])
    table = rng.standard_normal((heads, 256, DIM)) * SPREAD
    return np.asarray(table[:, np.stack(rows)])


def moments(x: np.ndarray) -> Moments:
    """Of x (heads, documents, tokens, dim), positions from 0 in every document."""
    heads, documents, tokens, dim = x.shape
    t = np.tile(np.arange(tokens, dtype=np.float64), documents)
    flat = x.reshape(heads, -1, dim)
    mean = flat.mean(axis=1)
    y, s = flat - mean[:, None], t - t.mean()
    return Moments(
        n=np.full(heads, len(t)),
        mean_x=mean,
        mean_t=np.full(heads, t.mean()),
        M=y.transpose(0, 2, 1) @ y,
        C=s @ y,
        T=np.full(heads, s @ s),
        bad=np.zeros(heads, dtype=np.int64),
    )


def measured(q: np.ndarray, k: np.ndarray, per_group: int) -> Axes:
    groups = [
        (moments(q[:, i : i + per_group]), moments(k[:, i : i + per_group]))
        for i in range(0, q.shape[1], per_group)
    ]
    return measure_batch(groups, 2)


def passing(make: Make, documents: int, sizes: Sequence[int], blocks: int, heads: int) -> list[float]:
    """The share of heads above their null with so many documents a group, of the same vectors for all sizes.

    Each block of heads has documents of its own.
    """
    rng = np.random.default_rng(documents)
    above: list[list[float]] = [[] for _ in sizes]
    for _ in range(blocks):
        single = [
            [moments(x[:, i : i + 1]) for i in range(documents)]
            for x in (make(rng, heads, documents), make(rng, heads, documents))
        ]
        for shares, size in zip(above, sizes, strict=True):
            q, k = ([merge_all(one[i : i + size]) for i in range(0, documents, size)] for one in single)
            found = measure_batch(list(zip(q, k, strict=True)), 2)
            shares += [float((np.abs(found.r_q) > found.r_q_null).mean())]
            shares += [float((np.abs(found.r_k) > found.r_k_null).mean())]
    return [float(np.mean(shares)) for shares in above]


KINDS: dict[str, Make] = {
    "white noise": noise(0.0),
    "AR(1) 0.9": noise(0.9),
    "AR(1) 0.99": noise(0.99),
    "random walk": walk,
    "scalars of bytes": scalars_of_bytes,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_level_is_the_true_size(kind: str) -> None:
    """8 documents, each a group."""
    blocks = 60 if kind == "scalars of bytes" else 6
    (share,) = passing(KINDS[kind], 8, [1], blocks, 1200 // blocks)
    assert 0.03 <= share <= 0.07


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_level_is_the_true_size_of_many_documents(kind: str) -> None:
    """64 documents, in groups of one, two, four and eight."""
    blocks = 60 if kind == "scalars of bytes" else 12
    for share in passing(KINDS[kind], 64, [1, 2, 4, 8], blocks, 1200 // blocks):
        assert 0.03 <= share <= 0.07


def test_documents_of_unequal_spread_pass_less_often_than_the_level() -> None:
    """One document in four ten times as loud: the test stays on the safe side."""

    def uneven(rng: np.random.Generator, heads: int, documents: int) -> np.ndarray:
        loud = np.where(np.arange(documents) % 4 == 0, 10.0, 1.0)
        return np.asarray(noise(0.9)(rng, heads, documents) * loud[:, None, None])

    assert max(passing(uneven, 8, [1], 4, 300)) <= LEVEL + 0.01


@pytest.mark.parametrize("phi", [0.0, 0.9])
def test_a_faint_but_real_signal_is_found(phi: float) -> None:
    """|r| = 0.2 in 64 documents of 256 tokens, in eight groups."""
    rng = np.random.default_rng(5)
    t = (np.arange(TOKENS) - (TOKENS - 1) / 2) / np.arange(TOKENS).std()
    q, k = (noise(phi)(rng, 40, 64) for _ in range(2))
    q[..., 0] += 0.2041 * SPREAD[0] * t
    found = measured(q, k, 8)
    assert np.abs(found.r_q[:, 0]).mean() == pytest.approx(0.2, abs=0.03)
    assert (np.abs(found.r_q[:, 0]) > found.r_q_null[:, 0]).mean() >= 0.95


@pytest.mark.parametrize("per_group", [4, 8])
def test_fewer_than_three_groups_cannot_tell(per_group: int) -> None:
    rng = np.random.default_rng(0)
    found = measured(walk(rng, 3, 8), walk(rng, 3, 8), per_group)
    assert np.isnan(found.r_q_null).all()
    assert np.isnan(found.r_k_null).all()
