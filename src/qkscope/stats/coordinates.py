"""Is a change of published r a change of attention, or only of the coordinates of queries and keys?

Scaling queries up and keys down, or adding one vector to all keys, changes published r but no attention weight. It
changes neither balanced r nor the shares of score variance: where these stay, attention did not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from qkscope.stats.levels import CONTRAST_LEVEL
from qkscope.stats.series import Change, judge

# Measures of the attention function alone.
INVARIANT = ("r_q_balanced", "abs_r_k_balanced", "share_positional", "share_key", "share_match")
Changed = Literal["attention", "coordinates", "unclear", "unknown"]


def what_changed(invariant: Sequence[Change]) -> Changed:
    """`attention` if one of the INVARIANT means changed clearly, `coordinates` if a change worth a word is excluded in
    all of them, else `unclear`; `unknown` where some were not measured and the others do not tell."""
    verdicts = {c.verdict for c in judge(invariant, CONTRAST_LEVEL)}
    if verdicts & {"rises", "falls"}:
        return "attention"
    if len(invariant) < len(INVARIANT):
        return "unknown"
    return "coordinates" if verdicts == {"flat"} else "unclear"
