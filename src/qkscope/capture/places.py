"""Where a module stands in a model."""

from __future__ import annotations

from typing import Any


def layer_numbers(backbone: Any) -> dict[int, int]:
    """id of each module inside a layer -> that layer's number: its own word, else the first number of its path.

    A block that several layers share says -1; its path tells where it stands.
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
