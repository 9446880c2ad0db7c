"""A model's attention as its configuration describes it: layers, heads, which layers rotate or slide.

It reads the configuration only and needs neither torch nor a loaded model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from qkscope.errors import CaptureError

# Hugging Face's names first, then those of older configuration files.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
Q_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
# In the configuration of an encoder-decoder family the names above mean the encoder.
DECODER_LAYERS = ("decoder_layers", "num_decoder_layers")
DECODER_HEADS = ("decoder_attention_heads", "num_decoder_attention_heads")
HEAD_DIM = ("head_dim", "attention_head_dim")
# Some families give their sliding-window layers a shape of their own.
SLIDING_SHAPE = (
    ("swa_num_attention_heads", *Q_HEADS),
    ("swa_num_key_value_heads", *KV_HEADS),
    ("swa_head_dim", *HEAD_DIM),
)
HIDDEN = ("hidden_size", "n_embd", "d_model", "emb_dim")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")
WINDOW = (
    *("sliding_window", "attention_chunk_size", "attention_window_size", "sliding_window_size"),
    "window_size",
)

# What configurations do not say, and a probe confirms (`capture.probe`).
# Families that rotate their sliding-window layers only, whatever the other layers do.
ROTATES_SLIDING_ONLY = {"cohere2", "cohere2_moe", "afmoe", "flint"}
# Families that leave the full-attention layers unrotated as soon as the model has sliding-window layers.
ROTATES_SLIDING_IF_ANY = {"exaone4", "exaone4_5", "exaone4_5_text", "exaone_moe", "kolibri1"}
# Families that repeat key heads in turn (0, 1, 0, 1), so that each query head's key counts separately.
REPEATS_IN_TURN = {"jetmoe"}
# Families that always add a bias by distance to the score.
ALWAYS_ALIBI = {"bloom"}


@dataclass(frozen=True)
class Architecture:
    """The attention of one model. Tuples have one entry per layer; a layer without attention has 0 heads.

    attention  the layer computes softmax attention (hybrid models have layers that do not)
    sliding    it sees only a window or chunk of the tokens before it
    rope       it rotates queries and keys; None where the configuration does not tell
    bias       what is added to every score for its distance ("alibi"), or None
    """

    family: str
    num_layers: int
    q_heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    head_dims: tuple[int, ...]
    max_positions: int | None
    rope_theta: float | None
    rope: tuple[bool | None, ...]
    sliding: tuple[bool, ...]
    attention: tuple[bool, ...]
    sliding_window: int | None = None
    bias: str | None = None

    @property
    def n_q_heads(self) -> int:
        """Query heads of the layers a measurement is about; the most of them where layers differ."""
        return max(self.q_heads[layer] for layer in self._main_layers)

    @property
    def n_kv_heads(self) -> int:
        return max(self.kv_heads[layer] for layer in self._main_layers)

    @property
    def head_dim(self) -> int:
        return max(self.head_dims[layer] for layer in self._main_layers)

    @property
    def gqa_ratios(self) -> tuple[int, ...]:
        """Query heads per key head, of each layer."""
        return tuple(q // max(k, 1) for q, k in zip(self.q_heads, self.kv_heads, strict=True))

    @property
    def attention_layers(self) -> list[int]:
        return [layer for layer in range(self.num_layers) if self.attention[layer]]

    @property
    def full_attention_layers(self) -> list[int]:
        return [layer for layer in self.attention_layers if not self.sliding[layer]]

    @property
    def _main_layers(self) -> list[int]:
        return self.full_attention_layers or self.attention_layers or list(range(self.num_layers))

    def measured_layers(
        self, include_sliding: bool = False, longest: int | None = None, remedy: str = ""
    ) -> list[int]:
        """The layers a measurement is about: full attention, and the sliding ones only on request.

        Where every layer slides within one window and no document is longer than it (`longest`), all of them see
        everything. `remedy` ends the error's sentence: what else the caller can do.
        """
        if not self.attention_layers:
            raise CaptureError(
                f"this {self.family} model has no full-attention layer to measure: none of its "
                f"{self.num_layers} layers uses softmax attention"
            )
        if include_sliding:
            return self.attention_layers
        if self.full_attention_layers:
            return self.full_attention_layers
        if self.sliding_window and longest is not None and longest <= self.sliding_window:
            return self.attention_layers
        limit = self.sliding_window
        shorter = f": measure documents of at most {limit:,} tokens" if limit else ""
        raise CaptureError(
            f"this {self.family} model has no full-attention layer to measure: all {self.num_layers} layers use "
            f"sliding-window attention{shorter}{remedy}"
        )

    def rope_by_layer(self) -> dict[int, bool | None]:
        return dict(enumerate(self.rope))

    def window_warning(self, window: int) -> str | None:
        """The warning about a window longer than the model's positions; None if it is not."""
        if self.max_positions is None or window <= self.max_positions:
            return None
        return (
            f"the window of {window:,} tokens is longer than the {self.max_positions:,} positions this "
            f"{self.family} model supports: numbers beyond them are extrapolation"
        )


def read_architecture(config: Any) -> Architecture:
    """The architecture a transformers configuration (an object, or its JSON as a dict) describes.

    Of a model with several parts (vision, audio, text) it is the text part's.
    """
    fields = _Fields(config)
    if (part := fields.get("text_config")) is not None:
        fields = _Fields(part)
    _check_numbers(fields)
    num_layers = fields.first(DECODER_LAYERS) or fields.positive(LAYERS, "number of layers")
    attention, sliding = _layer_kinds(fields, num_layers)
    heads = [
        _heads(fields.layer(layer), layer, sliding[layer]) if attention[layer] else (0, 0, 0)
        for layer in range(num_layers)
    ]
    q_heads, kv_heads, head_dims = (tuple(part) for part in zip(*heads, strict=True))
    positions = fields.first(POSITIONS)
    limited = isinstance(positions, int) and positions > 0  # some write -1 for any number
    return Architecture(
        family=fields.family,
        num_layers=num_layers,
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dims=head_dims,
        max_positions=positions if limited else None,
        rope_theta=_rope_theta(fields),
        rope=_rope(fields, num_layers, sliding),
        sliding=sliding,
        attention=attention,
        sliding_window=fields.first(WINDOW) if any(sliding) else None,
        bias="alibi" if _alibi(fields) else None,
    )


class _Fields:
    """Reads a configuration that may be an object or a dict."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def get(self, name: str) -> Any:
        if isinstance(self.config, Mapping):
            return self.config.get(name)
        return getattr(self.config, name, None)

    def first(self, names: tuple[str, ...]) -> Any:
        """The first of several spellings that is present; a list of equal numbers counts as that number."""
        for name in names:
            value = self.get(name)
            if isinstance(value, list) and len(set(value)) == 1:
                value = value[0]
            if value is not None:
                return value
        return None

    def positive(self, names: tuple[str, ...], what: str) -> int:
        value = self.first(names)
        if not isinstance(value, int) or value < 1:
            found = "nothing" if value is None else repr(value)
            raise CaptureError(
                f"the configuration of this {self.family} model does not give the {what}: expected a positive "
                f"integer under {names[0]!r}, found {found}"
            )
        return value

    @property
    def family(self) -> str:
        return str(self.get("model_type") or type(self.config).__name__)

    def layer(self, layer: int) -> _Fields:
        """The configuration as one layer sees it: some models override a few values there."""
        if isinstance(self.config, Mapping):
            changes = self.config.get("per_layer_config") or {}
            own = changes.get(str(layer)) or changes.get(f"{layer:02}") or {}
            return _Fields({**self.config, **own}) if own else self
        if getattr(self.config, "is_heterogeneous", False):
            return _Fields(self.config.per_layer_config[layer])
        return self


def _heads(fields: _Fields, layer: int, sliding: bool) -> tuple[int, int, int]:
    """(query heads, key heads, dimensions of a vector) of one layer."""
    if decoder := fields.first(DECODER_HEADS):
        return decoder, decoder, _head_dim(fields, HEAD_DIM, decoder)
    q_names, kv_names, dim_names = SLIDING_SHAPE if sliding else (Q_HEADS, KV_HEADS, HEAD_DIM)
    listed = fields.get("num_attention_heads_per_layer")
    n_q_heads = listed[layer] if listed else fields.positive(q_names, "number of query heads")
    if fields.family in REPEATS_IN_TURN:
        n_kv_heads = n_q_heads
    elif fields.get("multi_query") is True and not fields.get("new_decoder_architecture"):
        n_kv_heads = 1  # Falcon's first architecture shares one, whatever its number of key heads says
    else:
        n_kv_heads = int(fields.first(kv_names) or n_q_heads)
    if n_q_heads % n_kv_heads:
        raise CaptureError(
            f"this {fields.family} model has {n_q_heads} query heads and {n_kv_heads} key heads: expected "
            "the number of query heads to be a multiple of the number of key heads"
        )
    return n_q_heads, n_kv_heads, _head_dim(fields, dim_names, n_q_heads)


def _head_dim(fields: _Fields, names: tuple[str, ...], n_q_heads: int) -> int:
    """Dimensions of one query or key vector: multi-head latent attention joins two parts."""
    parts = fields.get("qk_nope_head_dim"), fields.get("qk_rope_head_dim")
    if all(isinstance(part, int) for part in parts):
        return int(sum(parts))
    declared = fields.first(names)
    return int(declared) if declared else fields.positive(HIDDEN, "hidden size") // n_q_heads


def _layer_kinds(fields: _Fields, num_layers: int) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """(attention, sliding) of each layer, from the declared layer types or from one window for all layers."""
    kinds = fields.get("layer_types") or fields.get("layers_block_type") or fields.get("attention_layers")
    if not kinds:
        crossing = fields.get("cross_attention_layers") or ()
        window = fields.get("sliding_window") if fields.get("use_sliding_window") is not False else None
        attention = tuple(layer not in crossing for layer in range(num_layers))
        return attention, (window is not None,) * num_layers
    if len(kinds) != num_layers:
        raise CaptureError(
            f"the configuration of this {fields.family} model lists types for {len(kinds)} layers but has "
            f"{num_layers} layers"
        )
    attention = tuple(_attends(kind) for kind in kinds)
    slides = ("sliding", "chunked", "compressed")
    local = fields.get("attention_window_size") is not None
    sliding = tuple(local or kind == "local" or any(word in kind for word in slides) for kind in kinds)
    return attention, tuple(a and s for a, s in zip(attention, sliding, strict=True))


def _attends(kind: str) -> bool:
    """Whether a layer type computes a softmax over scores of queries and keys, alone or next to something else."""
    softmax = "attention" in kind and "linear" not in kind
    return softmax or kind.startswith("hybrid") or kind in ("minimax_m3_sparse", "global", "local")


def _rope(fields: _Fields, num_layers: int, sliding: tuple[bool, ...]) -> tuple[bool | None, ...]:
    """Whether each layer rotates its queries and keys; None where the configuration does not say."""
    # Despite its name a 1 here means that the layer DOES rotate (SmolLM3, Llama 4).
    flags = fields.get("no_rope_layers")
    if flags:
        return tuple(bool(flag) for flag in flags[:num_layers])
    if _opts_out(fields):
        return (False,) * num_layers
    if fields.family in ROTATES_SLIDING_ONLY or (fields.family in ROTATES_SLIDING_IF_ANY and any(sliding)):
        return sliding
    kinds, by_kind = fields.get("layer_types"), fields.get("rope_parameters")
    if kinds and by_kind and set(kinds) <= set(by_kind):
        return tuple(bool(by_kind[kind]) for kind in kinds)
    names = ("rope_parameters", "rope_theta", "rotary_emb_base", "rotary_pct", "rotary_dim", "rope_scaling")
    return (True if any(fields.get(name) for name in names) else None,) * num_layers


def _opts_out(fields: _Fields) -> bool:
    """Some configurations carry a rotation's base and a switch that leaves it unused."""
    kind = fields.get("position_embedding_type")
    parameters = fields.get("rope_parameters")
    unset = isinstance(parameters, Mapping) and parameters.get("rope_theta", 0.0) is None
    return (
        _alibi(fields)
        or unset
        or fields.get("use_mem_rope") is False
        or kind in ("nope", "absolute", "learned")
        or (fields.family == "granitemoehybrid" and kind != "rope")
    )


def _alibi(fields: _Fields) -> bool:
    inner = _Fields(fields.get("attn_config") or {})
    return bool(fields.get("alibi") or inner.get("alibi") or fields.family in ALWAYS_ALIBI)


def _rope_theta(fields: _Fields) -> float | None:
    """The base of the rotation; of a model with several, that of its full-attention layers."""
    parameters = fields.get("rope_parameters") or {}
    parameters = parameters.get("full_attention", parameters) or {}
    theta = parameters.get("rope_theta") or fields.first(("rope_theta", "rotary_emb_base"))
    return None if theta is None else float(theta)


# Of a rotation, at the top of the configuration or in rope_parameters: numbers, or lists of them, above 0.
_ABOVE_ZERO = (
    *("rope_theta", "factor", "short_factor", "long_factor", "low_freq_factor", "high_freq_factor"),
    *("attention_factor", "original_max_position_embeddings", "rotary_emb_base"),
)
_NOT_NEGATIVE = (
    *("partial_rotary_factor", "rotary_pct", "rotary_dim"),
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
)


def _check_numbers(fields: _Fields) -> None:
    """Refuse settings with which no model computes anything, such as a rope_theta of 0."""
    parts = [fields]
    if isinstance(parameters := fields.get("rope_parameters"), Mapping):
        nested = (parameters, *parameters.values())
        parts += [_Fields(part) for part in nested if isinstance(part, Mapping)]
    above_zero = () if _opts_out(fields) else _ABOVE_ZERO
    for part, name in product(parts, (*above_zero, *_NOT_NEGATIVE)):
        value, zero = part.get(name), name in _NOT_NEGATIVE
        for each in value if isinstance(value, list | tuple) else [value]:
            number = isinstance(each, int | float) and not isinstance(each, bool) and math.isfinite(each)
            if each is None or (number and (each > 0 or (zero and each == 0))):
                continue
            expected = "a number of 0 or more" if zero else "a number greater than 0"
            raise CaptureError(
                f"its config.json has {name} = {each!r}, which is not valid; expected {expected}. Correct it, or "
                "leave this checkpoint out"
            )


def layer_numbers(backbone: Any) -> dict[int, int]:
    """id of each module inside a layer -> the layer's number: its `layer_idx`, else the first number in its path.

    A block that several layers share has `layer_idx` -1; then its path has the number.
    """
    found: dict[int, int] = {}
    for name, module in backbone.named_modules():
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        own = getattr(module, "layer_idx", None)
        if isinstance(own, int) and own >= 0:
            found[id(module)] = own
        elif numbers:
            found[id(module)] = numbers[0]
    return found
