"""What remains of a change when every checkpoint is measured over the same tokens.

Own windows compare measurements. What is left over the same tokens may come from the weights or from the rotation
settings: this file does not say from which.
"""

from __future__ import annotations

import math

from qkscope.inference.levels import REMAINS, SAME, SMALLEST
from qkscope.inference.series import Change


def remains(own: Change, matched: Change) -> str:
    """What a change over own windows is over the same tokens.

    `same`, `altered` (another size), `opposite`, `hidden` (only the same tokens show it), `gone`, `unclear`, or ""
    where neither shows a change.
    """
    if not own.clear and not matched.clear:
        return ""
    if matched.clear and not own.clear:
        return "hidden"
    if matched.clear:
        if own.delta * matched.delta < 0:
            return "opposite"
        return "same" if abs(own.delta - matched.delta) < max(SMALLEST, SAME * abs(own.delta)) else "altered"
    bound = abs(matched.delta) + matched.margin
    return "gone" if math.isfinite(bound) and bound < max(SMALLEST, REMAINS * abs(own.delta)) else "unclear"
