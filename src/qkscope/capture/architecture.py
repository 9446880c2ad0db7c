"""What a configuration says of a model's attention: layers, heads, which layers rotate, which see it all.

It reads the configuration only and needs neither torch nor a loaded model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qkscope.errors import CaptureError

# Hugging Face's names first, then those of older configuration files.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
Q_HEADS = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
HIDDEN = ("hidden_size", "n_embd", "d_model")
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")

# Families that rotate their sliding-window layers only, whatever the other layers do.
ROTATES_SLIDING_ONLY = {"cohere2", "cohere2_moe", "afmoe", "flint"}
# Families that leave the full-attention layers unrotated as soon as the model has sliding-window layers.
ROTATES_SLIDING_IF_ANY = {"exaone4", "exaone4_5", "exaone4_5_text", "exaone_moe", "kolibri1"}
# Families without any rotation: learned or no positions.
NEVER_ROTATES = {
    "gpt2",
    "gpt_bigcode",
    "opt",
    "biogpt",
    "xglm",
    "jamba",
    "imagegpt",
    "openai-gpt",
    "kimi_linear",
}


@dataclass(frozen=True)
class Architecture:
    """The attention of one model. Tuples have one entry per layer.

    attention  the layer computes softmax attention (hybrid models have layers that do not)
    sliding    it sees only a window or chunk of the tokens before it
    rope       it rotates queries and keys; None where the configuration does not tell
    """

    family: str
    num_layers: int
    n_q_heads: int
    n_kv_heads: int
    head_dim: int
    max_positions: int | None
    rope_theta: float | None
    rope: tuple[bool | None, ...]
    sliding: tuple[bool, ...]
    attention: tuple[bool, ...]
    sliding_window: int | None = None

    @property
    def gqa_ratio(self) -> int:
        """Query heads per key head."""
        return self.n_q_heads // self.n_kv_heads

    @property
    def attention_layers(self) -> list[int]:
        return [layer for layer in range(self.num_layers) if self.attention[layer]]

    @property
    def full_attention_layers(self) -> list[int]:
        return [layer for layer in self.attention_layers if not self.sliding[layer]]

    def measured_layers(self, include_sliding: bool = False) -> list[int]:
        """The layers a measurement is about: full attention, and the sliding ones only if asked for."""
        layers = self.attention_layers if include_sliding else self.full_attention_layers
        if not layers:
            why = "attends within a sliding window" if self.attention_layers else "is not softmax attention"
            raise CaptureError(
                f"no full-attention layer to measure in this {self.family} model: each of its "
                f"{self.num_layers} layers {why}"
                + (" (--sliding, include_sliding=True, measures them too)" if self.attention_layers else "")
            )
        return layers

    def rope_by_layer(self) -> dict[int, bool | None]:
        return dict(enumerate(self.rope))

    def window_warning(self, window: int) -> str | None:
        """What to tell a person who asks for more tokens than the model was made for."""
        if self.max_positions is None or window <= self.max_positions:
            return None
        return (
            f"a window of {window:,} tokens goes beyond the {self.max_positions:,} positions this "
            f"{self.family} model was made for: what is measured there is extrapolation"
        )


def read_architecture(config: Any) -> Architecture:
    """The architecture a transformers configuration (an object, or its JSON as a dict) describes.

    Of a model with several parts (vision, audio, text) it is the text part's.
    """
    fields = _Fields(config).text_part()
    num_layers = fields.positive(LAYERS, "number of layers")
    n_q_heads = fields.positive(Q_HEADS, "number of query heads")
    n_kv_heads = fields.first(KV_HEADS) or n_q_heads
    if n_q_heads % n_kv_heads:
        raise CaptureError(
            f"this {fields.family} model has {n_q_heads} query heads and {n_kv_heads} key heads: expected a "
            "multiple"
        )
    attention, sliding = _layer_kinds(fields, num_layers)
    return Architecture(
        family=fields.family,
        num_layers=num_layers,
        n_q_heads=n_q_heads,
        n_kv_heads=int(n_kv_heads),
        head_dim=_head_dim(fields, n_q_heads),
        max_positions=fields.first(POSITIONS),
        rope_theta=_rope_theta(fields),
        rope=_rope(fields, num_layers, sliding),
        sliding=sliding,
        attention=attention,
        sliding_window=fields.first(("sliding_window", "attention_chunk_size")) if any(sliding) else None,
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
                f"the configuration of this {self.family} model gives no {what}: expected a positive integer "
                f"under {names[0]!r}, found {found}"
            )
        return value

    @property
    def family(self) -> str:
        return str(self.get("model_type") or type(self.config).__name__)

    def text_part(self) -> _Fields:
        part = self.get("text_config")
        return self if part is None else _Fields(part)


def _head_dim(fields: _Fields, n_q_heads: int) -> int:
    """Dimensions of one query or key vector: multi-head latent attention joins two parts."""
    parts = fields.get("qk_nope_head_dim"), fields.get("qk_rope_head_dim")
    if all(isinstance(part, int) for part in parts):
        return int(sum(parts))
    declared = fields.first(("head_dim", "attention_head_dim"))
    return int(declared) if declared else fields.positive(HIDDEN, "hidden size") // n_q_heads


def _layer_kinds(fields: _Fields, num_layers: int) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """(attention, sliding) of each layer, from the declared layer types or from one window for all layers."""
    kinds = fields.get("layer_types") or fields.get("layers_block_type")
    if not kinds:
        crossing = fields.get("cross_attention_layers") or ()
        window = fields.get("sliding_window") if fields.get("use_sliding_window") is not False else None
        attention = tuple(layer not in crossing for layer in range(num_layers))
        return attention, (window is not None,) * num_layers
    if len(kinds) != num_layers:
        raise CaptureError(
            f"the configuration of this {fields.family} model names the kind of {len(kinds)} layers but says "
            f"it has {num_layers}"
        )
    attention = tuple(("attention" in kind and "linear" not in kind) or kind == "hybrid" for kind in kinds)
    sliding = tuple("sliding" in kind or "chunked" in kind for kind in kinds)
    return attention, sliding


def _rope(fields: _Fields, num_layers: int, sliding: tuple[bool, ...]) -> tuple[bool | None, ...]:
    """Whether each layer rotates its queries and keys, as far as the configuration tells."""
    # Despite its name a 1 here means that the layer DOES rotate (SmolLM3, Llama 4).
    flags = fields.get("no_rope_layers")
    if flags:
        return tuple(bool(flag) for flag in flags[:num_layers])
    if fields.family in NEVER_ROTATES or _opts_out(fields):
        return (False,) * num_layers
    if fields.family in ROTATES_SLIDING_ONLY:
        return sliding
    if fields.family in ROTATES_SLIDING_IF_ANY and any(sliding):
        return sliding
    return (True if _declares_rope(fields) else None,) * num_layers


def _opts_out(fields: _Fields) -> bool:
    """Some configurations carry a rotation's base and a switch that leaves it unused."""
    kind = fields.get("position_embedding_type")
    return kind in ("nope", "absolute", "learned") or (fields.family == "granitemoehybrid" and kind != "rope")


def _declares_rope(fields: _Fields) -> bool:
    names = ("rope_parameters", "rope_theta", "rotary_emb_base", "rotary_pct", "rotary_dim", "rope_scaling")
    return any(fields.get(name) for name in names)


def _rope_theta(fields: _Fields) -> float | None:
    """The rotation's base; of a model with two, that of its full-attention layers."""
    parameters = fields.get("rope_parameters") or {}
    parameters = parameters.get("full_attention", parameters)
    theta = parameters.get("rope_theta") or fields.first(("rope_theta", "rotary_emb_base"))
    return None if theta is None else float(theta)
