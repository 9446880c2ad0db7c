"""Questions about a checkpoint as it stands: is there signal, where in the model, and does rotation matter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from qkscope.aggregate import Sample, above_null, column, positional_below_null
from qkscope.findings.changes import SMALLEST
from qkscope.findings.evidence import FAILS, HOLDS, UNKNOWN, Evidence, Reading, spoken
from qkscope.findings.significance import t_quantile, two_sided_p
from qkscope.findings.wording import count, listing, number, percent
from qkscope.measures.jackknife import jackknife
from qkscope.measures.null import LEVEL as NULL_LEVEL

# One false alarm in a hundred for a single comparison within a checkpoint.
LEVEL = 0.01
# Of models compared, so many are named in a sentence.
NAMED = 6


def contrast(sample: Sample, name: str, first: NDArray[Any], second: NDArray[Any]) -> dict[str, Any]:
    """Mean of r_q or abs_r_k over the heads `first` (mask) against `second`, from the same documents.

    `sure` is "more", "less", "same" (a difference of 0.02 is excluded) or None.
    """
    values = sample.value(name)
    a, b = values[:, first].mean(axis=1), values[:, second].mean(axis=1)
    gap, se = float(a[0] - b[0]), float(jackknife(a[1:] - b[1:]))
    found = {"first": float(a[0]), "second": float(b[0]), "difference": gap, "se": se}
    return found | {"sure": _sure(gap, se, sample.groups - 1)}


def _sure(gap: float, se: float, df: int, level: float = LEVEL) -> str | None:
    if math.isnan(se):  # size alone decides; the answer says that there are no errors
        return "same" if abs(gap) < SMALLEST else "more" if gap > 0 else "less"
    p = two_sided_p(gap / se, df) if se > 0 else float(gap == 0)
    if p < level and abs(gap) >= SMALLEST:
        return "more" if gap > 0 else "less"
    return "same" if abs(gap) + t_quantile(0.975, df) * se < SMALLEST else None


def signal(e: Evidence) -> Reading:
    """The share of heads that follow position more closely than chance reaches."""
    heads = pd.concat([sample.heads for sample in e.samples])
    table = above_null(heads, [stop.model for stop in e.stops])
    chance = NULL_LEVEL
    numbers: dict[str, Any] = {"chance": chance, "checkpoints": table.to_dict("records")}
    if not table["heads"].any():
        return Reading(
            UNKNOWN, "The table has no null values, so a signal cannot be told from none.", numbers
        )
    last = table.iloc[-1]
    text = f"At {e.label(-1)} {_above(last)} more closely than chance reaches between groups of documents"
    text += f" (by chance alone {percent(chance)} would)"
    if len(table) > 1:
        first = table.iloc[0]
        text += f"; at {e.label(0)} it is {percent(first['share_q'])} and {percent(first['share_k'])}"
    below = int(positional_below_null(e.samples[-1].heads, e.thresholds).sum())
    if below:
        text += f"; {count(below, 'head')} classed as positional by size of r alone do not pass this test"
    numbers["classed_positional_below_null"] = below
    # Heads share documents and so pass together: three times the chance, and three binomial deviations, is asked.
    limit = 3 * chance + 3 * math.sqrt(chance * (1 - chance) / max(int(last["heads"]), 1))
    best = max(last["share_q"], last["share_k"])
    nothing = best <= chance + (limit - 3 * chance)
    verdict = HOLDS if best > limit else FAILS if nothing else UNKNOWN
    brief = f"the queries of {percent(last['share_q'])} and the keys of {percent(last['share_k'])} at {e.label(-1)}"
    return Reading(verdict, text + ".", numbers, brief)


def _above(row: Any) -> str:
    return (
        f"the queries of {percent(row['share_q'])} of {int(row['heads'])} heads and the keys of "
        f"{percent(row['share_k'])} follow position"
    )


def early_layers(e: Evidence) -> Reading:
    """r_q and |r_k| in the first third of the depth against the last third, at the last checkpoint."""
    chosen = e.samples if e.timeline.kind == "models" else e.samples[-1:]
    texts, verdicts, numbers = [], [], {}
    for sample in chosen:
        found = _thirds(sample)
        numbers[sample.model] = found
        if found is None:
            texts.append(f"{spoken(e.timeline.stop(sample.model))} has no heads in both thirds of its depth")
            verdicts.append(UNKNOWN)
            continue
        texts.append(f"at {spoken(e.timeline.stop(sample.model))} {_thirds_text(found)}")
        verdicts.append(_thirds_verdict(found))
    verdict = HOLDS if set(verdicts) == {HOLDS} else FAILS if FAILS in verdicts else UNKNOWN
    more = f"; and {len(texts) - NAMED} more models" if len(texts) > NAMED else ""
    text = "; ".join(texts[:NAMED]) + more
    return Reading(verdict, text[:1].upper() + text[1:] + ".", numbers, _differences(numbers))


def _thirds(sample: Sample) -> dict[str, Any] | None:
    """Within rotating layers alone where the table tells: layers without rotation lie at fixed depths."""
    depth = sample.heads["depth"].to_numpy(np.float64)
    rope = _rope(sample)
    rotating = rope == 1 if (rope == 1).any() else np.ones(len(rope), dtype=bool)
    early, late = rotating & (depth <= 1 / 3), rotating & (depth >= 2 / 3)
    if not early.any() or not late.any():
        return None
    names = ("r_q", "abs_r_k")
    found: dict[str, Any] = {name: contrast(sample, name, early, late) for name in names}
    return found | {"rope_layers_only": bool(rotating.sum() < len(rotating))}


def _thirds_text(found: dict[str, Any]) -> str:
    q, k = found["r_q"], found["abs_r_k"]
    where = " (layers with RoPE only)" if found["rope_layers_only"] else ""
    return (
        f"the first third of the layers has mean r_q {q['first']:.2f} and the last third {q['second']:.2f} "
        f"({number(q['difference'], q['se'], signed=True)}), mean |r_k| {k['first']:.2f} and {k['second']:.2f} "
        f"({number(k['difference'], k['se'], signed=True)}){where}"
    )


def _thirds_verdict(found: dict[str, Any]) -> str:
    sure = {found["r_q"]["sure"], found["abs_r_k"]["sure"]}
    if sure == {"more"}:
        return HOLDS
    return FAILS if sure & {"less", "same"} else UNKNOWN


def rotation(e: Evidence) -> Reading:
    """Layers with rotary embedding against layers without, at the last checkpoint (or in every model with both)."""
    chosen = e.samples if e.timeline.kind == "models" else e.samples[-1:]
    both = [s for s in chosen if (_rope(s) == 1).any() and (_rope(s) == 0).any()]
    if not both:
        known = any(np.isfinite(_rope(s)).any() for s in chosen)
        why = "All measured layers are of one kind" if known else "The table does not say which layers rotate"
        return Reading(UNKNOWN, f"{why}, so layers with and without RoPE cannot be compared.")
    texts, sure, numbers = [], [], {}
    for sample in both:
        masks = _rope(sample) == 1, _rope(sample) == 0
        found = {name: contrast(sample, name, *masks) for name in ("r_q", "abs_r_k")}
        numbers[sample.model] = found
        sure.append({each["sure"] for each in found.values()})
        parts = [
            f"mean {symbol} is {each['first']:.2f} with RoPE and {each['second']:.2f} without "
            f"({number(each['difference'], each['se'], signed=True)})"
            for symbol, each in zip(("r_q", "|r_k|"), found.values(), strict=True)
        ]
        texts.append(f"at {spoken(e.timeline.stop(sample.model))} {listing(parts)}")
    if all(each & {"more", "less"} for each in sure):
        verdict = HOLDS
    else:
        verdict = FAILS if all(each == {"same"} for each in sure) else UNKNOWN
    text = "; ".join(texts[:NAMED])
    return Reading(verdict, text[:1].upper() + text[1:] + ".", numbers, _differences(numbers))


def _differences(numbers: dict[str, Any]) -> str:
    """`a difference of +0.09 ± 0.01 in mean r_q and +0.05 ± 0.01 in mean |r_k|`, of one checkpoint only."""
    found = next(iter(numbers.values()))
    if len(numbers) > 1 or found is None:
        return ""
    q, k = (number(found[name]["difference"], found[name]["se"], signed=True) for name in ("r_q", "abs_r_k"))
    return f"a difference of {q} in mean r_q and {k} in mean |r_k|"


def _rope(sample: Sample) -> NDArray[Any]:
    """(H,) 1 where the layer rotates, 0 where it does not, NaN where the table does not say."""
    return column(sample.heads, "rope")


def models_differ(e: Evidence) -> Reading:
    """The models with the highest and the lowest mean r_q, against each other."""
    means = [sample.r_q.mean(axis=1) for sample in e.samples]
    ranked = sorted(range(len(means)), key=lambda i: -means[i][0])
    top, low = ranked[0], ranked[-1]
    errors = [float(jackknife(mean[1:])) for mean in means]
    numbers = {
        e.stops[i].model: {"mean_r_q": float(means[i][0]), "se": errors[i], "heads": len(e.samples[i].heads)}
        for i in ranked
    }
    gap, se = float(means[top][0] - means[low][0]), math.hypot(errors[top], errors[low])
    # Different models have different heads and tokens: the two errors add, nothing cancels.
    # The two were chosen out of all pairs for being far apart.
    level = LEVEL / (len(means) * (len(means) - 1) / 2)
    sure = _sure(gap, se, min(e.samples[top].groups, e.samples[low].groups) - 1, level)
    text = (
        f"Mean r_q is highest in {e.label(top)}, {number(float(means[top][0]), errors[top])}, and lowest in "
        f"{e.label(low)}, {number(float(means[low][0]), errors[low])}: a difference of {number(gap, se)}."
    )
    verdict = HOLDS if sure == "more" else FAILS if sure == "same" else UNKNOWN
    return Reading(verdict, text, numbers)
