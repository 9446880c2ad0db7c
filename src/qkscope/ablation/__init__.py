"""What a model loses without a part of its attention: `ablate`."""

from qkscope.ablation.run import Ablated, ablate

__all__ = ["Ablated", "ablate"]
