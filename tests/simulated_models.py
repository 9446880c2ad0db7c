"""Pairs of tiny models that differ in one known way, measured as a study measures two checkpoints.

The heads of these models follow position through the biases of their queries and keys, which RoPE rotates, and content
through their weights. What changed between the two is known because the second is made from the first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
import xarray as xr
from tiny import tiny_model

from qkscope.capture import Probing, measure
from qkscope.checkpoints.rope import rotation_settings, same_rotation
from qkscope.corpus import Document
from qkscope.measures.cell import Cell, measure_cell
from qkscope.measures.registry import chosen
from qkscope.results.dataset import CellData, CellInfo, dataset
from qkscope.sums.head_index import HeadIndex

LAYERS, HEADS, GROUPS, SHORT, LONG, VOCABULARY = 3, 8, 8, 32, 64, 64
THETA = 100.0
# Size of the biases of each rotary pair, fast pairs first: queries follow position mostly through the slowest pair.
QUERIES, KEYS = (0.6, 0.6, 0.8, 1.6), (0.4, 0.4, 0.4, 0.4)
Change = Callable[[Any, np.random.Generator], None]


def first_model(seed: int, **changes: Any) -> Any:
    model = tiny_model(
        seed,
        vocab_size=VOCABULARY,
        hidden_size=64,
        head_dim=8,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        **changes,
    )
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for layer in model.model.layers:
            for name, content, position in (("q_proj", 0.5, QUERIES), ("k_proj", 0.7, KEYS)):
                projection = getattr(layer.self_attn, name)
                projection.weight.copy_(_normal(rng, projection.weight.shape, content / 8))
                size = torch.tensor(np.tile(position, 2 * HEADS), dtype=torch.float32)
                projection.bias.copy_(size * _normal(rng, projection.bias.shape, 1.0))
    return model.eval()


def _normal(rng: np.random.Generator, shape: Any, size: float) -> torch.Tensor:
    return torch.from_numpy(rng.normal(0, size, tuple(shape)).astype(np.float32))


def documents(seed: int, words: int = VOCABULARY, count: int = 16 * GROUPS) -> list[Document]:
    """Random tokens, of the first `words` of the vocabulary."""
    rng = np.random.default_rng([seed, words])
    return [Document(i, f"{words}-{i}", rng.integers(3, words, LONG)) for i in range(count)]


# --- what changes from the first model to the second ------------------------------------------------------------------


def new_weights(model: Any, rng: np.random.Generator, by: float = 1.0) -> None:
    """New projections of queries and keys, of larger size: content gains."""
    for layer in model.model.layers:
        for name, size in (("q_proj", 0.9), ("k_proj", 1.2)):
            weight = getattr(layer.self_attn, name).weight
            weight.copy_(_normal(rng, weight.shape, by * size / 8))


def new_mlp(model: Any, rng: np.random.Generator) -> None:
    """The first layer's MLP adds much of one direction to every token; queries and keys read less of the token."""
    mlp = model.model.layers[0].mlp
    mlp.gate_proj.weight.copy_(_normal(rng, mlp.gate_proj.weight.shape, 1 / 8))
    mlp.up_proj.weight.copy_(mlp.gate_proj.weight)  # silu(x) x is positive for most x
    mlp.down_proj.weight.copy_(
        _normal(rng, (mlp.down_proj.weight.shape[0], 1), 1).expand_as(mlp.down_proj.weight)
    )
    mlp.down_proj.weight.mul_(0.002)


def rescaled(model: Any, rng: np.random.Generator, factor: float = 4.0) -> None:
    for layer in model.model.layers:
        for name, by in (("q_proj", factor), ("k_proj", 1 / factor)):
            projection = getattr(layer.self_attn, name)
            projection.weight.mul_(by)
            projection.bias.mul_(by)


def slightly(model: Any, rng: np.random.Generator) -> None:
    """All weights change by a thousandth."""
    for parameter in model.parameters():
        parameter.mul_(1 + _normal(rng, parameter.shape, 1e-3))


def rope(model: Any, rng: np.random.Generator, **settings: Any) -> None:
    """Other RoPE settings, from which the model is built anew; the weights hardly change."""
    slightly(model, rng)
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": THETA} | settings


def both(model: Any, rng: np.random.Generator) -> None:
    """Each changes the position share by more than the two points that make a cause worth naming."""
    rope(model, rng, rope_theta=1e4)
    new_weights(model, rng, 2.0)


def trained_and_rescaled(model: Any, rng: np.random.Generator) -> None:
    new_weights(model, rng)
    rescaled(model, rng, 2.0)


by_theta = partial(rope, rope_theta=1e4)
by_yarn = partial(rope, rope_type="yarn", factor=8.0, original_max_position_embeddings=16)
by_linear = partial(rope, rope_type="linear", factor=8.0)

# What changed: the change, whether the window and the text change too, and the right verdicts.
MODELS: dict[str, tuple[Change | None, bool, bool, tuple[str, ...]]] = {
    "weights of queries and keys": (new_weights, False, False, ("training",)),
    "MLP of an earlier layer": (new_mlp, False, False, ("training",)),
    "RoPE theta": (by_theta, False, False, ("RoPE settings",)),
    "YaRN": (by_yarn, False, False, ("RoPE settings",)),
    "linear scaling": (by_linear, False, False, ("RoPE settings",)),
    "window": (slightly, True, False, ("window",)),
    "text": (None, False, True, ("training and text",)),
    "rescaling of q and k": (rescaled, False, False, ("coordinates only",)),
    "nothing": (slightly, False, False, ("flat", "unclear")),
    "theta and weights": (both, False, False, ("several causes",)),
}


def two_models(seed: int, change: Change | None) -> tuple[Any, Any]:
    a = first_model(seed)
    b = copy.deepcopy(a)
    if change is not None:
        with torch.no_grad():
            change(b, np.random.default_rng([seed, 1]))
    return a, b


def pair(seed: int, change: Change | None, longer: bool = False, other_text: bool = False) -> xr.Dataset:
    """The cells of a study of the two models: their own, and with exchanged RoPE settings where these differ."""
    models = dict(zip("ab", two_models(seed, change), strict=True))
    texts = {"a": documents(seed), "b": documents(seed, 12) if other_text else documents(seed)}
    settings = {name: rotation_settings(model.config) for name, model in models.items()}
    exchanged = not same_rotation(*settings.values())
    cells = []
    for weights, turned in (("a", "a"), ("b", "b"), *((("a", "b"), ("b", "a")) if exchanged else ())):
        units = _units(_built(models[weights], models[turned]), texts[weights])
        own = LONG if longer and weights == "b" else SHORT
        for window in {SHORT, own} if weights == turned else {SHORT}:
            numbers = measure_cell(Cell.of(units, window, num_layers=LAYERS), chosen(()))
            real = weights == turned
            info = CellInfo(
                checkpoint=weights if real else f"{weights}~{turned}",
                window=window,
                own=real and window == own,
                matched=real and window == SHORT,
                groups=GROUPS,
                weights_of=weights,
                rotation_of=turned,
                settings=settings[turned],
                texts=f"{len(set(np.concatenate([d.tokens for d in texts[weights]])))} words",
            )
            cells.append(CellData.of(info, numbers))
    return dataset(cells)


def _built(weights: Any, turned: Any) -> Any:
    """A model with the weights of one and the RoPE settings of the other."""
    config = copy.deepcopy(weights.config)
    config.rope_parameters = copy.deepcopy(turned.config.rope_parameters)
    model = type(weights)(config)
    model.load_state_dict(weights.state_dict())
    return model.eval()


def _units(model: Any, texts: list[Document]) -> list[Any]:
    heads, probe = HeadIndex.of(product(range(LAYERS), range(HEADS)), 1), Probing(model)
    return [measure(model, texts[g::GROUPS], heads, (SHORT, LONG), probe=probe) for g in range(GROUPS)]
