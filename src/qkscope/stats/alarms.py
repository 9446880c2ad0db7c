"""Alarms: changes during training that need attention at once.

largest logit    above a limit: attention logits that grow without bound end in a diverged loss
norms            mean norm of queries or keys more than a multiple of that of the first checkpoint
share            a share of score variance, or of heads with a role, that fell since the checkpoint before by more than
                 a limit and by more than three standard errors of the difference
loss             held-out loss above that of the first checkpoint, the untrained one
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qkscope.measures.samples import jackknife

if TYPE_CHECKING:
    from qkscope.study.schema import AlarmsSpec

Array = NDArray[np.float64]
# A fall or a rise counts if it is larger than this many standard errors.
ERRORS = 3.0


@dataclass(frozen=True)
class Alarm:
    """One alarm of one checkpoint."""

    checkpoint: str
    number: str
    text: str

    def __str__(self) -> str:
        return f"{self.checkpoint}: {self.text}"


def alarms(limits: AlarmsSpec, names: Sequence[str], numbers: Mapping[str, Array]) -> list[Alarm]:
    """The alarms of checkpoints in training order, given their `scalars`, each (checkpoint, sample)."""
    found = []
    for number, values in numbers.items():
        rule = number.rpartition("/")[2]
        for i, name in enumerate(names):
            found += [Alarm(name, number, f"{number} {text}") for text in _texts(limits, rule, values, i)]
    return sorted(found, key=lambda alarm: names.index(alarm.checkpoint))


def _texts(limits: AlarmsSpec, rule: str, values: Array, i: int) -> Iterator[str]:
    first, now = values[0, 0], values[i, 0]
    if rule == "max_logit" and limits.max_logit and now > limits.max_logit:
        yield f"is {now:.1f}, above {limits.max_logit:g}"
    if rule in ("q_norm", "k_norm") and limits.norm_ratio and now > limits.norm_ratio * first:
        yield f"is {now:.3g}, {now / first:.1f} times the first checkpoint's {first:.3g}"
    above = values[i] - values[0]  # on the same documents, sample by sample
    clear = above[0] > 0 and not above[0] <= ERRORS * standard_error(above)
    if rule == "loss" and limits.loss_above_start and clear:
        yield f"is {now:.3f}, above the first checkpoint's {first:.3f}"
    if rule.startswith(("share_", "role_")) and limits.share_drop and i:
        change = values[i] - values[i - 1]  # on the same documents, sample by sample
        error = standard_error(change)
        if change[0] < -limits.share_drop and not -change[0] <= ERRORS * error:
            yield f"fell by {-change[0]:.3f} ± {error:.3f} since the checkpoint before, to {now:.3f}"


def standard_error(values: Array) -> float:
    """Jackknife standard error of one number, given (sample,): all documents, then without each group."""
    return float(jackknife(values[1:][np.isfinite(values[1:])]))
