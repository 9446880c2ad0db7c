"""The RoPE settings of a configuration: reading them, and putting another checkpoint's in their place.

A counterfactual checkpoint has one checkpoint's weights and another's RoPE settings. No weight depends on them, so it
is the same model built from the same files with a few entries of config.json exchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkscope.errors import CheckpointError
from qkscope.words import listing, some

# How a configuration describes its rotation: transformers 5 first, then configurations that bring their own code.
# Two configurations with different fields of this kind are read by different code, so they cannot be exchanged.
DESCRIBED_BY = ("rope_parameters", "rope_theta", "rotary_emb_base", "rotary_pct", "rotary_dim")
# May be there or not without changing which code reads the rest.
OPTIONAL = ("no_rope_layers", "rope_scaling", "partial_rotary_factor")
# The lengths a model supports, which these types of scaling use as well.
LENGTHS = ("max_position_embeddings", "original_max_position_embeddings")
BY_LENGTH = ("dynamic", "longrope", "yarn")
# Optional and required settings of a candidate, by type.
TYPES = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original", "beta_fast", "beta_slow", "attention_factor"),
    "llama3": ("factor", "low", "high", "original"),
}
SHORT = {
    "theta": "rope_theta",
    "original": "original_max_position_embeddings",
    "low": "low_freq_factor",
    "high": "high_freq_factor",
}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
# Men et al.'s bound is looked for up to this distance.
FARTHEST = 1 << 20


def rotation_settings(config: Any) -> str:
    """All that decides how queries and keys are rotated, as JSON; lengths only where the type of scaling uses them."""
    fields = config.get_text_config().to_dict()
    by_length = any(kind in json.dumps(fields.get("rope_parameters")) for kind in BY_LENGTH)
    names = (*DESCRIBED_BY, *OPTIONAL, *(LENGTHS if by_length else ()))
    return json.dumps({name: fields[name] for name in names if fields.get(name) is not None}, sort_keys=True)


def same_rotation(a: str | None, b: str | None) -> bool:
    """Whether two settings (None: a checkpoint's own) are the same: a base of 50000 is one of 50000.0."""
    return a == b or (a is not None and b is not None and json.loads(a) == json.loads(b))


def describe_rotation(settings: Mapping[str, Any]) -> str:
    """RoPE settings in words: `RoPE yarn, theta 10,000, factor 4, original max position embeddings 4,096`."""
    parameters = settings.get("rope_parameters")
    kinds = parameters if isinstance(parameters, Mapping) else {}
    if not kinds or not all(isinstance(each, Mapping) for each in kinds.values()):
        kinds = {"": kinds}
    parts = []
    for layers, fields in kinds.items():  # some models have one set for each kind of layer
        of = f"({str(layers).replace('_', ' ')})" if layers else ""
        parts.append(" ".join(filter(None, ("RoPE", str(fields.get("rope_type", "")), of))))
        ordered = sorted(fields.items(), key=lambda x: x[0] != "rope_theta")
        parts += [_field(name, value) for name, value in ordered if name != "rope_type"]
    named = ("rope_parameters", "no_rope_layers")
    parts += [_field(name, value) for name, value in settings.items() if name not in named]
    rotates = settings.get("no_rope_layers")
    still = [str(i) for i, here in enumerate(rotates) if not here] if isinstance(rotates, list) else []
    if still:
        parts.append(f"none in layer{'' if len(still) == 1 else 's'} {listing(still)}")
    return ", ".join(parts)


def _field(name: str, value: Any) -> str:
    words = name.removeprefix("rope_").replace("_", " ")
    if isinstance(value, list):
        return f"{words} [{some([_plain(each) for each in value], 4)}]"
    return f"{words} {_plain(value)}"


def _plain(value: Any) -> str:
    return f"{value:,.12g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def with_rotation(config: Any, settings: str) -> Any:
    """The configuration with these RoPE settings instead of its own, whatever their types; it is changed in place.

    Settings without lengths are of a type of scaling that does not use them: the model's own lengths then stay.
    """
    text = config.get_text_config()
    wanted, own = json.loads(settings), json.loads(rotation_settings(config))
    sides = [{name for name in DESCRIBED_BY if name in side} for side in (wanted, own)]
    unread = sorted(name for name in OPTIONAL if name in wanted and not hasattr(text, name))
    if sides[0] != sides[1] or unread:
        theirs, ours = (", ".join(sorted(side)) or "nothing" for side in sides)
        raise CheckpointError(
            f"one configuration describes RoPE with {theirs}, the other with {ours}"
            + (f" and without {', '.join(unread)}" if unread else "")
            + ": different code reads them, so neither model can be built with the other's settings"
        )
    for name in (*sides[0], *OPTIONAL, *LENGTHS):
        if name in wanted or (name in own and name not in LENGTHS):
            setattr(text, name, wanted.get(name))
    return config


def frequencies(config: Any, tokens: int | None = None) -> tuple[NDArray[np.float64], float] | None:
    """What a configuration describes: radians a token of each rotary pair (P,), and the factor of rotated vectors.

    `tokens` is the length of a pass, for types that depend on it. None where there are no RoPE settings, or several.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    text = config.get_text_config()
    parameters = getattr(text, "rope_parameters", None) or {}
    kind, theta = parameters.get("rope_type", "default"), parameters.get("rope_theta")
    if theta is None or (kind != "default" and kind not in ROPE_INIT_FUNCTIONS):
        return None
    if kind != "default":
        found, scale = ROPE_INIT_FUNCTIONS[kind](text, None, seq_len=tokens)
        return np.asarray(found, dtype=np.float64), float(scale)
    whole = getattr(text, "qk_rope_head_dim", None) or getattr(text, "head_dim", None)
    whole = whole or text.hidden_size // text.num_attention_heads
    turned = int(whole * parameters.get("partial_rotary_factor", 1.0))
    return float(theta) ** -(np.arange(0, turned, 2) / turned), 1.0


@dataclass(frozen=True)
class Candidate:
    """RoPE settings to try: `theta=2e6`, `linear:factor=4`, `yarn:factor=8,original=4096`, each perhaps `@0-11`.

    layers  the layers that get them; None for all
    """

    name: str
    kind: str
    values: dict[str, float]
    layers: tuple[int, ...] | None = None

    def parameters(self, config: Any) -> dict[str, Any]:
        """The `rope_parameters` of config.json: those of the configuration with this candidate's in their place."""
        text = config.get_text_config()
        own = getattr(text, "rope_parameters", None) or {}
        if "rope_theta" not in own:
            raise CheckpointError(
                f"this {text.model_type} model has no single set of rope_parameters in its configuration, so its "
                "settings cannot be exchanged"
            )
        found: dict[str, Any] = {n: own[n] for n in ("rope_theta", "partial_rotary_factor") if n in own}
        found["rope_type"] = self.kind
        if self.kind in ("yarn", "llama3"):
            found["original_max_position_embeddings"] = text.max_position_embeddings
        if self.kind == "llama3":
            found |= LLAMA3
        for name, value in self.values.items():
            found[SHORT.get(name, name)] = int(value) if name == "original" else float(value)
        return found

    def settings(self, config: Any) -> str:
        """As `rotation_settings` writes them: the configuration's, with this candidate's rope_parameters."""
        own = json.loads(rotation_settings(config))
        return json.dumps({**own, "rope_parameters": self.parameters(config)}, sort_keys=True)


def parse_candidate(text: str, layers: tuple[int, ...] | None = None) -> Candidate:
    """Parse a candidate; `layers` if it does not name any."""
    body, _, layer_text = text.partition("@")
    kind, _, rest = body.partition(":") if ":" in body else ("default", "", body)
    usage = "expected such as theta=2e6, linear:factor=4, yarn:factor=8,original=4096 or llama3:factor=8"
    if kind not in TYPES:
        raise CheckpointError(f"--rope {text}: unknown type {kind!r}; known: {', '.join(TYPES)}")
    values: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        name, _, value = part.partition("=")
        if name not in ("theta", *TYPES[kind]):
            raise CheckpointError(
                f"--rope {text}: {kind} has no setting {name!r}; it has {', '.join(('theta', *TYPES[kind]))}; {usage}"
            )
        try:
            values[name] = float(value)
        except ValueError:
            values[name] = 0.0
        if not 0 < values[name] < float("inf"):
            raise CheckpointError(f"--rope {text}: {name} is {value!r}, expected a number above 0; {usage}")
    if not values or (kind != "default" and "factor" not in values):
        raise CheckpointError(
            f"--rope {text}: {'a factor' if kind != 'default' else 'theta'} is missing; {usage}"
        )
    return Candidate(text, kind, values, parse_layers(layer_text) if layer_text else layers)


def parse_layers(text: str) -> tuple[int, ...]:
    """`0-11,14` -> 0, 1, ..., 11, 14."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise CheckpointError(f"layers {text!r}: expected such as 0-11 or 0-3,8")
        found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


def first_negative(found: NDArray[np.float64]) -> int | None:
    """The first distance m at which B(m) = sum_p cos(m f_p) is negative (Men et al. 2024); None below `FARTHEST`.

    A query prefers a key like itself to a random one, in the mean over directions, as long as B is positive.
    """
    for start in range(1, FARTHEST, 1 << 14):
        bound = np.cos(np.outer(np.arange(start, start + (1 << 14)), found)).sum(axis=1)
        if (bound < 0).any():
            return start + int(np.argmax(bound < 0))
    return None
