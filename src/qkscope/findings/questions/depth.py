"""Where in the model the signal is, and where it changes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkscope.aggregate import DEPTH_BINS, Sample
from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL, Row
from qkscope.findings.phrases import contrast_row, row
from qkscope.inference.contrast import Contrast, contrast
from qkscope.inference.evidence import Evidence, average, rope_of, spoken
from qkscope.inference.levels import rule_of_contrast
from qkscope.inference.series import Change, Series, judged
from qkscope.words import bare, capital, count, joined, listing, number, sentence

Array = NDArray[np.float64]
NAMES = {"r_q": "r_q", "r_k": "r_k", "abs_r_k": "|r_k|"}


def _depth(b: int) -> str:
    return f"{b / DEPTH_BINS:.1f}–{(b + 1) / DEPTH_BINS:.1f}"


def _at_depth(value: str, b: int) -> str:
    return f"mean {NAMES[value]} at depth {_depth(b)}"


def _bin_means(sample: Sample, value: str) -> dict[int, Array]:
    """By depth bin that has heads, (1 + G,)."""
    bins = sample.heads["depth_bin"].to_numpy()
    return {int(b): average(sample.value(value)[:, bins == b]) for b in np.unique(bins)}


def bin_changes(e: Evidence, value: str) -> dict[int, Change]:
    """The change of each depth bin from first to last, judged together."""
    first, last = (_bin_means(e.samples[i], value) for i in (0, -1))
    found = judged([Series(_at_depth(value, b), (first[b], last[b])) for b in first])
    told = found if e.sure else [replace(c, clear=False, excluded=False) for c in found]
    # of a series of two checkpoints: the first and the last of all
    return dict(zip(first, (replace(c, stop=len(e.stops) - 1) for c in told), strict=True))


def _where_changed(s: Asked, value: str) -> Answer:
    e, name = s.best, NAMES[value]
    found = bin_changes(e, value)
    verdicts = [c.verdict for c in found.values()]
    up, down = verdicts.count("rises"), verdicts.count("falls")
    if up or down:
        verdict = "rises and falls" if up and down else "rises" if up else "falls"
    else:
        verdict = "no change" if set(verdicts) == {"no change"} else CANNOT_TELL
    words = {
        "rises": f"Mean {name} rises at {up} of {len(found)} depths and falls at none",
        "falls": f"Mean {name} falls at {down} of {len(found)} depths and rises at none",
        "rises and falls": f"Mean {name} rises at {count(up, 'depth')} and falls at {count(down, 'depth')}",
        "no change": f"Mean {name} changes at no depth",
        CANNOT_TELL: f"Mean {name} changes clearly at no depth",
    }
    most = max(found, key=lambda b: abs(found[b].delta))
    largest = f"{number(found[most].delta, found[most].se, signed=True)} at depth {_depth(most)}"
    ends = f"from {e.label(0)} to {e.label(-1)} the largest change is {largest}"
    unclear = "" if found[most].clear else ", not clear of noise"
    detail = joined(sentence(f"{s.over}{ends}{unclear}"), _extremes(e, value))
    return Answer(verdict, words[verdict], detail, tuple(row(e, c) for c in found.values()))


def _extremes(e: Evidence, value: str) -> str:
    """Strongest and weakest depth of the last checkpoint, and whether the weakest is where nothing rotates."""
    sample, name = e.samples[-1], NAMES[value]
    means = {b: float(v[0]) for b, v in _bin_means(sample, value).items()}
    high, low = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    if high == low:
        return ""
    top = f"highest at depth {_depth(high)} ({bare(means[high])})"
    bottom = f"lowest at {_depth(low)} ({bare(means[low])}){_still(sample, low, means)}"
    return f"At {e.label(-1)} mean {name} is {top} and {bottom}."


def _still(sample: Sample, low: int, means: dict[int, float]) -> str:
    """`, which only layers without RoPE make up`, or nothing where the layers of a depth rotate or it is not known."""
    rope, bins = rope_of(sample), sample.heads["depth_bin"].to_numpy()
    still = {int(b) for b in np.unique(bins) if (rope[bins == b] == 0).all()}
    if low not in still:
        part, heads = int((rope[bins == low] == 0).sum()), int((bins == low).sum())
        return f", where {part} of {heads} heads are in layers without RoPE" if part else ""
    weakest = sorted(means, key=means.__getitem__)[: len(still)]
    if set(weakest) == still and len(still) > 1:
        return "; the lowest depths are exactly those whose layers have no RoPE"
    return ", where no layer has RoPE"


@question("depth_r_q", "At which depths does r_q change?", view="depth", place=80)
def depth_r_q(s: Asked) -> Answer:
    """Queries, by depth."""
    return _where_changed(s, "r_q")


@question("depth_r_k", "At which depths does r_k change?", view="depth", place=81)
def depth_r_k(s: Asked) -> Answer:
    """Keys with their sign, by depth."""
    return _where_changed(s, "r_k")


@question(
    "depths", "Do some depths follow position more closely than others?", view="depth", place=82, of="any",
    rule=rule_of_contrast(),
)  # fmt: skip
def depths(s: Asked) -> Answer | None:
    """The strongest depth against the weakest, among layers that rotate where the table tells."""
    found: list[tuple[int, int, Contrast]] = []
    rows: list[Row] = []
    for sample in s.final:
        means = _bin_means(sample.select(_rotating(sample)), "r_q")
        if len(means) < 2:
            continue
        high, low = max(means, key=lambda b: means[b][0]), min(means, key=lambda b: means[b][0])
        found.append((high, low, contrast(means[high], means[low], looks=math.comb(len(means), 2))))
        rows += [Row(_at_depth("r_q", b), sample.model, v[0], window=s.best.name) for b, v in means.items()]
    return Answer(*_strongest(s, found), rows=tuple(rows)) if found else None


def _strongest(s: Asked, found: list[tuple[int, int, Contrast]]) -> tuple[str, str, str]:
    sure = {c.sure for _, _, c in found}
    verdict = "yes" if sure == {"more"} else "no" if sure == {"same"} else CANNOT_TELL
    tops = [high for high, _, _ in found]
    if len(tops) > 1:
        top = max(tops, key=tops.count)
        return (
            verdict,
            f"r_q is highest at depth {_depth(top)} in {tops.count(top)} of {len(tops)} models",
            "",
        )
    ((high, low, c),) = found
    words = {
        "yes": f"r_q is highest at depth {_depth(high)} and lowest at depth {_depth(low)}",
        "no": "r_q is about the same at all depths",
        CANNOT_TELL: "whether depths differ in r_q cannot be told",
    }
    only = _among(s.best.samples[-1])
    apart = f"mean r_q at depth {_depth(high)} is {number(c.difference, c.se)} above that at {_depth(low)}"
    return verdict, capital(only + words[verdict]), sentence(f"{s.over}{only}{apart} at {s.best.label(-1)}")


def _rotating(sample: Sample) -> NDArray[Any]:
    """(H,) heads of rotating layers where the table tells: layers without rotation lie at fixed depths."""
    rope = rope_of(sample)
    return rope == 1 if (rope == 1).any() else np.ones(len(rope), dtype=bool)


def _among(sample: Sample) -> str:
    """Said where only some of the layers rotate, and only they are compared."""
    return "among layers with RoPE, " if not _rotating(sample).all() else ""


@question(
    "early_layers", "Are early layers more positional than late ones?", view="depth", place=83, of="any",
    rule=rule_of_contrast(),
)  # fmt: skip
def early_layers(s: Asked) -> Answer | None:
    """r_q and |r_k| in the first third of the depth against the last third."""
    e = s.best
    found = {sample.model: thirds for sample in s.final if (thirds := _thirds(sample)) is not None}
    if not found:
        return None
    sure = [{c.sure for c in each.values()} for each in found.values()]
    if all(each == {"more"} for each in sure):
        verdict = "yes"
    elif all(each & {"less", "same"} and "more" not in each for each in sure):
        verdict = "no"
    else:
        verdict = "in part" if any("more" in each for each in sure) else CANNOT_TELL
    rows = tuple(
        contrast_row(e, f"mean {NAMES[value]}, first third minus last third of the depth", model, c)
        for model, each in found.items() for value, c in each.items()
    )  # fmt: skip
    return Answer(
        verdict, _thirds_headline(verdict, found), _thirds_detail(s, *list(found.items())[-1]), rows
    )


def _thirds(sample: Sample) -> dict[str, Contrast] | None:
    depth, rotating = sample.heads["depth"].to_numpy(np.float64), _rotating(sample)
    early, late = rotating & (depth <= 1 / 3), rotating & (depth >= 2 / 3)
    if not early.any() or not late.any():
        return None

    def compared(values: Array) -> Contrast:
        return contrast(average(values[:, early]), average(values[:, late]), looks=2)

    return {"r_q": compared(sample.r_q), "abs_r_k": compared(sample.abs_r_k)}


def _thirds_headline(verdict: str, found: dict[str, dict[str, Contrast]]) -> str:
    if len(found) > 1:
        more = sum({c.sure for c in each.values()} == {"more"} for each in found.values())
        return f"Early layers are clearly more positional than late ones in {more} of {len(found)} models"
    (last,) = found.values()
    q = last["r_q"]
    words = {
        "yes": "Early layers are more positional than late ones",
        "no": "Early layers are not more positional than late ones",
        "in part": f"Early layers are more positional in {'queries' if q.sure == 'more' else 'keys'} only",
        CANNOT_TELL: "Early and late layers cannot be told apart",
    }
    late = {c.sure for c in last.values()} == {"less"}
    said = "Late layers are more positional than early ones" if late else words[verdict]
    return f"{said}: mean r_q {bare(q.first)} early, {bare(q.second)} late"


def _thirds_detail(s: Asked, model: str, found: dict[str, Contrast]) -> str:
    only = _among(next(x for x in s.final if x.model == model))
    parts = [
        f"{number(c.difference, c.se, signed=True)} in mean {NAMES[value]}" for value, c in found.items()
    ]
    at = spoken(s.results.timeline.stop(model))
    return sentence(
        f"{s.over}{only}the first third of the depth differs from the last by {listing(parts)} at {at}"
    )
