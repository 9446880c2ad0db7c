"""The few checkpoints that stand for a study where not all can be shown, and the colours of families of models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qkscope.figures.tools.style import FAMILY_COLOURS
from qkscope.figures.view import View

SIX, MOST_MODELS = 6, 12


def representatives(view: View) -> list[str]:
    """The checkpoints shown: those the study names; else first, early, ends of phases, last, in all six."""
    named = [model for model in view.results.timeline.portraits if model in view.order]
    if named:
        return sorted(named, key=view.order.index)
    order = view.order
    if view.of_models:
        places = np.unique(np.linspace(0, len(order) - 1, min(MOST_MODELS, len(order))).round().astype(int))
        return [order[i] for i in places]
    phases = {stop.model: stop.phase for stop in view.stops}
    ends = [i for i, model in enumerate(order[:-1]) if phases[model] != phases[order[i + 1]]]
    return [order[i] for i in _six(sorted({0, min(1, len(order) - 1), *ends, len(order) - 1}), len(order))]


def _six(chosen: Sequence[int], count: int) -> list[int]:
    """Six places: the most crowded inner ones dropped, or the widest gaps halved."""
    kept = list(chosen)
    while len(kept) > SIX:
        crowd = [kept[i + 1] - kept[i - 1] for i in range(2, len(kept) - 1)]
        del kept[2 + int(np.argmin(crowd))]
    while len(kept) < min(SIX, count):
        gaps = np.diff(kept)
        widest = int(np.argmax(gaps))
        kept.insert(widest + 1, kept[widest] + int(gaps[widest]) // 2)
    return kept


def family_colours(view: View) -> dict[str, str]:
    """A colour per family, in the order of the study."""
    families = list(dict.fromkeys(stop.phase for stop in view.stops))
    return {family: FAMILY_COLOURS[i % len(FAMILY_COLOURS)] for i, family in enumerate(families)}
