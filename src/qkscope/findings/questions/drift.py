"""The axis along which queries and keys drift with position: is it PC0, and which keys does it favour?"""

from __future__ import annotations

import numpy as np

from qkscope.anatomy_means import Measured, asked_for
from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL, Row
from qkscope.inference.contrast import exceeds
from qkscope.inference.levels import SMALLEST, rule_of_axis, rule_of_bias
from qkscope.measures.jackknife import jackknife
from qkscope.measures.pca import SAME
from qkscope.words import bare, count, number, sentence


def of_course(s: Asked, measure: str) -> list[Measured]:
    """A measure at every checkpoint, over the window that verdicts rest on; nothing where it was not asked for."""
    models = [stop.model for stop in s.best.stops]
    found = asked_for(s.results, measure, models, matched=s.matched is not None)
    return found if len(found) == len(models) else []


def levels_of(s: Asked, found: list[Measured], name: str, what: str) -> tuple[Row, ...]:
    """The mean over heads at every checkpoint, as rows."""
    rows = []
    for each in found:
        means = each.mean(name)
        rows.append(
            Row(what, each.model, float(means[0]), se=float(jackknife(means[1:])), window=s.best.name)
        )
    return tuple(rows)


@question(
    "drift_axis", "Is PC0 the axis along which heads drift with position?", view="head", place=36, of="any",
    rule=rule_of_axis(),
)  # fmt: skip
def drift_axis(s: Asked) -> Answer | None:
    """The mean overlap of the drift axis with PC0 at the last checkpoint."""
    found = of_course(s, "rotation")
    if not found:
        return None
    last = found[-1]
    means = last.mean("pc0_overlap")
    if not np.isfinite(means[0]):
        return None
    value, se = float(means[0]), float(jackknife(means[1:]))
    verdict = exceeds(value, se, SAME, len(means) - 2)
    near = int((last.heads["pc0_overlap"] >= SAME).sum())
    words = {
        "yes": "The drift axis is PC0 in the mean of heads",
        "no": "The drift axis is not PC0 in the mean of heads",
        CANNOT_TELL: "Whether the drift axis is PC0 cannot be told",
    }
    detail = (
        f"{s.over}at {s.best.label(-1)} the two overlap by {number(value, se)}, and by at least {bare(SAME, 1)} in "
        f"{count(near, 'head')} of {len(last.heads)}"
    )
    rows = levels_of(s, found, "pc0_overlap", "mean overlap of drift axis and PC0")
    return Answer(verdict, f"{words[verdict]}: overlap {bare(value)}", sentence(detail), rows)


@question(
    "near_or_far", "Does the drift favour keys near the query?", view="head", place=37, of="any", rule=rule_of_bias()
)  # fmt: skip
def near_or_far(s: Asked) -> Answer | None:
    """The mean query's score from the first position of the window to the last, by the keys' drift, in logits."""
    found = of_course(s, "rotation")
    if not found:
        return None
    last = found[-1]
    means = last.mean("bias_logits")
    if not np.isfinite(means[0]):
        return None
    value, se, df = float(means[0]), float(jackknife(means[1:])), len(means) - 2
    verdict = "yes" if exceeds(value, se, SMALLEST, df) == "yes" else CANNOT_TELL
    if exceeds(value, se, -SMALLEST, df) == "no":
        verdict = "no"
    words = {
        "yes": "Drift favours near keys",
        "no": "Drift favours far keys",
        CANNOT_TELL: "Whether drift favours near or far keys cannot be told",
    }
    near = int((last.heads["bias_logits"] > 0).sum())
    wide = int(last.heads["window"].iloc[0])
    detail = (
        f"{s.over}at {s.best.label(-1)} a key at the end of {wide:,} tokens scores {number(value, se, signed=True)} "
        f"logits more than one at their beginning, for the mean query, in the mean of heads; near keys are favoured "
        f"in {count(near, 'head')} of {len(last.heads)}"
    )
    rows = levels_of(s, found, "bias_logits", "mean bias over the window, in logits")
    headline = f"{words[verdict]}: {bare(value, signed=True)} logits over the window"
    return Answer(verdict, headline, sentence(detail), rows)
