"""Loss of the model over the window, in nats per token: the scale on which changes of heads matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.registry import MeasureGroup, Variable
from qkscope.sums import LossSum

if TYPE_CHECKING:
    from qkscope.measures.cell import Cell

Array = NDArray[np.float64]


def compute(cell: Cell) -> Mapping[str, Array]:
    """The loss of each sample (1 + G,), and by bin of position (1 + G, bins)."""
    samples = cell.sums_of(LossSum)
    return {
        "loss": np.array([each.mean for each in samples]),
        "loss_by_position": np.stack([each.by_position for each in samples]),
    }


GROUP = MeasureGroup(
    name="loss",
    needs=(LossSum.name,),
    compute=None,
    compute_cell=compute,
    optional=True,
    variables=(
        Variable("loss", "loss", "nats per token", "mean of -log p of the next token", per_head=False),
        Variable(
            "loss_by_position",
            "loss by position",
            "nats per token",
            "the same by position of the predicted token, in bins that begin at the coordinate position_bin",
            dims=("position_bin",),
            per_head=False,
        ),
    ),
)
