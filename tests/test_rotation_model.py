"""The rotation model against its definitions on vectors, and what must hold of slopes over windows."""

from __future__ import annotations

import numpy as np
import pytest
from reference import jackknife_reference, rotation_model_reference
from synthetic import make_head
from tiny import tiny_model

from qkscope import scan
from qkscope.measures.drift import rotation_model
from qkscope.measures.eigen import leading
from qkscope.measures.pca import pooled, whole_and_without
from qkscope.measures.samples import jackknife
from qkscope.sums.moments import Accumulator


def model(q, k, window):
    return rotation_model(q, k, window, leading(pooled(q, k), 1)[1][:, :, 0])


def rotation_errors(groups, window):
    """The model of all document groups together, the jackknife errors, and the values without each group.

    The last is (G, numbers, H); with fewer than two groups it is empty and the errors are NaN.
    """
    kinds = [whole_and_without([group[i] for group in groups]) for i in (0, 1)]
    whole, *models = (model(q, k, window) for q, k in zip(*kinds, strict=True))
    shape = (len(models), len(whole), 1)
    values = np.array([list(m.values()) for m in models]).reshape(shape)
    return whole, dict(zip(whole, jackknife(values), strict=True)), values


def moments(x, t):
    sums = Accumulator()
    sums.update(x[None], np.asarray(t, dtype=np.float64))
    return sums.moments()


@pytest.mark.parametrize(("dim", "mean"), [(4, 0.0), (16, 3.0), (64, 100.0)])
def test_every_number_equals_its_definition(rng, dim, mean):
    q, t_q = make_head(rng, 3000, dim, mean=mean)
    k, t_k = make_head(rng, 2000, dim, follow=-0.6, mean=-mean / 2)
    found = model(moments(q, t_q), moments(k, t_k), window=4096)
    expected = rotation_model_reference(q, t_q, k, t_k, 4096)
    assert len(found) == len(expected)
    for name, value in found.items():
        assert value[0] == pytest.approx(expected[name.removeprefix("drift_")], rel=1e-9, abs=1e-9), name


def test_a_slope_over_the_window_does_not_shrink_with_it(rng):
    """Queries that run from 0 to 1 over whatever window: the slope per token falls fourfold, over the window not."""
    found = {}
    for window in (256, 1024):
        t = np.tile(np.arange(window), 40)
        q = rng.standard_normal((len(t), 8)) + np.outer(t / window, np.eye(8)[0])
        found[window] = model(moments(q, t), moments(q[:, ::-1].copy() - 5, t), window)
    assert found[256]["alpha_q"][0] / found[1024]["alpha_q"][0] == pytest.approx(4.0, rel=0.1)
    assert found[256]["slope_q"][0] == pytest.approx(found[1024]["slope_q"][0], rel=0.1)


def test_slopes_of_one_model_over_two_windows_agree_over_the_window_and_not_per_token(rng):
    """Constant queries and keys, spread evenly over wavelengths that grow fourfold every four pairs, plus words.

    A window four times as long meets the same turns four pairs further on. A trained head is as even only roughly.
    """
    import torch

    model = tiny_model(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=64,
        max_position_embeddings=256, attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 4.0**8},
    )  # fmt: skip
    with torch.no_grad():
        words, attention = model.model.embed_tokens.weight, model.model.layers[0].self_attn
        words -= words.mean(dim=0)
        for projection in (attention.q_proj, attention.k_proj):
            projection.weight *= 5
            projection.bias.fill_(1.0)
    texts = rng.integers(0, 64, (16, 256)).tolist()
    short, long = (scan(model, texts=texts, max_length=window).heads for window in (64, 256))
    for kind in "qk":
        error = np.hypot(short[f"slope_{kind}_se"], long[f"slope_{kind}_se"])
        assert (np.abs(short[f"slope_{kind}"] - long[f"slope_{kind}"]) < 2 * error).all()
        assert (error < 0.03 * short[f"slope_{kind}"]).all()
        assert (short[f"alpha_{kind}"] / long[f"alpha_{kind}"]).to_numpy() == pytest.approx(4.0, rel=0.1)


def test_errors_are_the_jackknife_over_groups(rng):
    groups, parts = [], []
    for _ in range(4):
        q, t_q = make_head(rng, 500, 6)
        k, t_k = make_head(rng, 500, 6, mean=2.0)
        groups.append((moments(q, t_q), moments(k, t_k)))
        parts.append((q, t_q, k, t_k))
    _, error, left = rotation_errors(groups, 4096)
    estimates = []
    for g in range(4):
        rest = [part for i, part in enumerate(parts) if i != g]
        joined = [np.concatenate([part[i] for part in rest]) for i in range(4)]
        estimates.append(rotation_model_reference(*joined, 4096)["alpha_k"])
    assert error["alpha_k"][0] == pytest.approx(jackknife_reference(estimates), rel=1e-9)
    assert left.shape == (4, len(error), 1)


def test_one_group_has_no_error(rng):
    q, t = make_head(rng, 500, 6)
    whole, error, left = rotation_errors([(moments(q, t), moments(q + 1, t))], 4096)
    assert np.isfinite(whole["drift_r_q"][0])
    assert np.isnan(error["drift_r_q"][0])
    assert len(left) == 0


def test_a_head_that_met_infinity_has_no_numbers(rng):
    q, t = make_head(rng, 100, 4)
    bad = q.copy()
    bad[3, 1] = np.inf
    found = model(moments(bad, t), moments(q, t), 4096)
    assert all(np.isnan(value[0]) for value in found.values())
