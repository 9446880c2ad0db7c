"""What kind of head it is, computed from thresholds whenever a table is read:

class        published taxonomy: five classes by the strength of r_q and r_k
score_class  whether position or content determines the head's scores, by the share of their variance
polarity     the sign of r_k

Also heads without numbers, and when there are too many of them for a result to be of use. Knows nothing of files,
figures or models: arrays and tables in, names out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qkscope.defaults import HIGH, LOW, MOST_UNMEASURED
from qkscope.errors import TableError
from qkscope.words import capital, some

if TYPE_CHECKING:
    import pandas as pd

CLASSES = ("position-dominated", "Q-positional", "K-positional", "content-focused", "mixed")
SCORE_CLASSES = POSITIONAL, MIXED, CONTENT = ("positional", "mixed", "content")
# share_positional above which a head is positional, and below which it is a content head.
SCORE_HIGH, SCORE_LOW = 0.6, 0.4
# A kind of vectors is periodic in position if eta^2 is above the first and |r| below the second.
PERIODIC_ETA_SQUARED, PERIODIC_R = 0.5, 0.3
UNMEASURED = "unmeasured"
POLARITIES = ("concordant", "neutral", "discordant")


@dataclass(frozen=True)
class Thresholds:
    """Class thresholds: correlations above `high` are strong, below `low` weak. Defaults: the published 0.7 and 0.3."""

    high: float = HIGH
    low: float = LOW

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise TableError(f"thresholds low={self.low}, high={self.high}: expected 0 <= low <= high <= 1")


def classify(r_q: ArrayLike, r_k: ArrayLike, thresholds: Thresholds | None = None) -> NDArray[Any]:
    """The class of each head, by strict inequalities on r_q and |r_k|; `unmeasured` if either is NaN.

    position-dominated  r_q > high, |r_k| > high      Q-positional     r_q > high, |r_k| < low
    K-positional        r_q < low,  |r_k| > high      content-focused  r_q < low,  |r_k| < low
    mixed               everything else
    """
    limit = thresholds or Thresholds()
    q, k = np.asarray(r_q, dtype=float), np.abs(np.asarray(r_k, dtype=float))
    conditions = [
        np.isnan(q) | np.isnan(k),
        (q > limit.high) & (k > limit.high),
        (q > limit.high) & (k < limit.low),
        (q < limit.low) & (k > limit.high),
        (q < limit.low) & (k < limit.low),
    ]
    return np.select(conditions, [UNMEASURED, *CLASSES[:4]], default=CLASSES[4])


def score_class(share_positional: ArrayLike) -> NDArray[Any]:
    """`positional` where position explains more than 0.6 of the variance of scores, `content` below 0.4, else `mixed`.

    `unmeasured` where the share is NaN.
    """
    share = np.asarray(share_positional, dtype=float)
    conditions = [np.isnan(share), share > SCORE_HIGH, share < SCORE_LOW]
    return np.select(conditions, [UNMEASURED, POSITIONAL, CONTENT], MIXED)


def periodic(eta: ArrayLike, r: ArrayLike) -> NDArray[np.bool_]:
    """Whether vectors follow position, but not along a line: eta^2 > 0.5 and |r| < 0.3. False where either is NaN."""
    follows = np.square(np.asarray(eta, dtype=float)) > PERIODIC_ETA_SQUARED
    return np.asarray(follows & (np.abs(np.asarray(r, dtype=float)) < PERIODIC_R))


def polarity(r_k: ArrayLike, low: float = LOW) -> NDArray[Any]:
    """`concordant` where r_k > low, `discordant` where r_k < -low, else `neutral`; `unmeasured` where r_k is NaN."""
    k = np.asarray(r_k, dtype=float)
    return np.select(
        [np.isnan(k), k > low, k < -low], [UNMEASURED, POLARITIES[0], POLARITIES[2]], POLARITIES[1]
    )


def transitions(heads: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    """Number of heads that moved from one class to another between consecutive checkpoints of `order`.

    Counts heads that both checkpoints have, including those that stayed in their class. Rows without heads are left
    out. `same_axis` is the number of these heads whose first axis stayed the same, from the column of that name in
    `heads`; NaN without such a column.
    """
    import pandas as pd

    step = {model: i for i, model in enumerate(order)}
    here = heads[heads["model"].isin(order)]
    at = here["model"].map(step).astype(int)
    after = pd.DataFrame({"step": at, "layer": here["layer"], "head": here["head"]})
    before = after.assign(step=at + 1, from_model=here["model"], from_class=here["class"])
    same = here["same_axis"].astype(float) if "same_axis" in here else np.nan
    after = after.assign(to_model=here["model"], to_class=here["class"], same_axis=same)
    columns = ["from_model", "to_model", "from_class", "to_class"]
    both = before.merge(after, on=["step", "layer", "head"])
    moved = both.groupby(columns, sort=False, observed=True)["same_axis"]
    table = pd.DataFrame({"heads": moved.size(), "same_axis": moved.sum(min_count=1)}).reset_index()
    rank = {name: i for i, name in enumerate((*CLASSES, UNMEASURED))}
    keys = [table["from_model"].map(step), table["from_class"].map(rank), table["to_class"].map(rank)]
    return table.iloc[np.lexsort([key.to_numpy() for key in reversed(keys)])].reset_index(drop=True)


def non_finite_heads(heads: pd.DataFrame) -> dict[str, int]:
    """By model that has some: how many heads of a heads table met queries or keys that are not finite."""
    counts = (heads["bad_q"] + heads["bad_k"] > 0).groupby(heads["model"]).sum()
    return {str(model): int(count) for model, count in counts.items() if count}


def unmeasured_warnings(heads: pd.DataFrame) -> dict[str, str]:
    """By model that has some: how many heads of a heads table have no numbers, which they are, and why."""
    found, non_finite = {}, non_finite_heads(heads)
    for model, rows in heads.groupby("model", sort=False):
        lost = rows[rows["r_q"].isna() | rows["r_k"].isna()]
        if len(lost):
            bad = non_finite.get(str(model), 0)
            reasons = [f"{bad} with NaN or infinite values"] if bad else []
            if still := max(len(lost) - bad, 0):
                reasons.append(
                    f"{still} with queries or keys that do not vary or have no first principal component"
                )
            which = f"{len(lost)} of {len(rows)} heads are unmeasured ({_which(rows, lost)})"
            found[str(model)] = f"{which}: {'; '.join(reasons)}"
    return found


def too_few_measured(heads: pd.DataFrame, float32: str) -> str | None:
    """What is wrong with a result that lacks too many heads, and what to do; None if it has enough of them.

    `float32` means that the weights are to be read in that format.
    """
    lost = heads["r_q"].isna() | heads["r_k"].isna()
    shares = lost.groupby(heads["model"], sort=False).mean()
    models = [str(model) for model in shares[shares > MOST_UNMEASURED].index]
    if not models:
        return None
    warnings, non_finite = unmeasured_warnings(heads), non_finite_heads(heads)
    lines = [f"  {model}: {warnings[model]}" for model in models]
    remedies = []
    if any(non_finite.get(model) for model in models):
        remedies.append(f"where values are not finite, try {float32}")
    remedies.append("check that the checkpoint was saved completely, or leave it out")
    limit = f"more than {MOST_UNMEASURED:.0%} of the heads have no numbers:"
    return "\n".join([limit, *lines, f"All measured heads were written. {capital('; '.join(remedies))}"])


def _which(rows: pd.DataFrame, lost: pd.DataFrame) -> str:
    """`all`, or layer by layer: `layer 3 heads 0, 2; layer 5 all heads`."""
    if len(lost) == len(rows):
        return "all"
    whole = rows.groupby("layer").size()
    parts = []
    for layer, members in lost.groupby("layer"):
        every = len(members) == whole[layer]
        named = "all heads" if every else f"heads {', '.join(map(str, sorted(members['head'])))}"
        parts.append(f"layer {layer} {named}")
    return some(parts, 12)
