"""Where in the model the signal is, and where it changes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkscope.aggregate import DEPTH_BINS, Sample
from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL, Row
from qkscope.inference.contrast import Contrast, contrast
from qkscope.inference.evidence import Evidence, average, rope_of, spoken
from qkscope.inference.levels import rule_of_change, rule_of_contrast
from qkscope.inference.series import Change, Series, judged
from qkscope.words import bare, count, joined, listing, number, sentence

Array = NDArray[np.float64]
NAMES = {"r_q": "r_q", "r_k": "r_k", "abs_r_k": "|r_k|"}


def _depth(b: int) -> str:
    return f"{b / DEPTH_BINS:.1f}–{(b + 1) / DEPTH_BINS:.1f}"


def _bin_means(sample: Sample, value: str) -> dict[int, Array]:
    """By depth bin that has heads, (1 + G,)."""
    bins = sample.heads["depth_bin"].to_numpy()
    return {int(b): average(sample.value(value)[:, bins == b]) for b in np.unique(bins)}


def bin_changes(e: Evidence, value: str) -> dict[int, Change]:
    """The change of each depth bin from first to last, judged together."""
    first, last = (_bin_means(e.samples[i], value) for i in (0, -1))
    series = [Series(f"mean {NAMES[value]} at depth {_depth(b)}", (first[b], last[b])) for b in first]
    return dict(zip(first, judged(series), strict=True))


def _where_changed(s: Asked, value: str) -> Answer:
    e, name = s.best, NAMES[value]
    found = bin_changes(e, value)
    verdicts = [c.verdict if e.sure else CANNOT_TELL for c in found.values()]
    seen = {v for v in verdicts if v in ("rises", "falls")}
    if len(seen) == 2:
        verdict = "rises and falls"
    else:
        verdict = seen.pop() if seen else verdicts[0] if len(set(verdicts)) == 1 else CANNOT_TELL
    up, down = verdicts.count("rises"), verdicts.count("falls")
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
    unclear = "" if verdicts[list(found).index(most)] in ("rises", "falls") else ", not clear of noise"
    rows = tuple(
        Row(c.series, e.stops[-1].model, c.delta, e.stops[0].model, c.se, e.name, v)
        for c, v in zip(found.values(), verdicts, strict=True)
    )
    return Answer(
        verdict, words[verdict], joined(sentence(f"{s.over}{ends}{unclear}"), _extremes(e, value)), rows
    )


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
        part = int((rope[bins == low] == 0).sum())
        return (
            f", where {part} of {int((bins == low).sum())} heads are in layers without RoPE" if part else ""
        )
    weakest = sorted(means, key=means.__getitem__)[: len(still)]
    if set(weakest) == still and len(still) > 1:
        return "; the lowest depths are exactly those whose layers have no RoPE"
    return ", where no layer has RoPE"


@question("depth_r_q", "At which depths does r_q change?", view="depth", place=80, rule=rule_of_change())
def depth_r_q(s: Asked) -> Answer:
    """Queries, by depth."""
    return _where_changed(s, "r_q")


@question("depth_r_k", "At which depths does r_k change?", view="depth", place=81, rule=rule_of_change())
def depth_r_k(s: Asked) -> Answer:
    """Keys with their sign, by depth."""
    return _where_changed(s, "r_k")


def _chosen(e: Evidence) -> tuple[Sample, ...]:
    """Every model, or the last checkpoint."""
    return e.samples if e.timeline.kind == "models" else e.samples[-1:]


@question(
    "depths", "Do some depths follow position more closely than others?", view="depth", place=82, of="any",
    rule=rule_of_contrast(),
)  # fmt: skip
def depths(s: Asked) -> Answer | None:
    """The strongest depth against the weakest, among layers that rotate where the table tells."""
    e = s.best
    tops, found, rows = [], [], []
    for sample in _chosen(e):
        part = sample.select(_rotating(sample))
        means = _bin_means(part, "r_q")
        if len(means) < 2:
            continue
        high, low = max(means, key=lambda b: means[b][0]), min(means, key=lambda b: means[b][0])
        tops.append(high)
        found.append(contrast(means[high], means[low], looks=math.comb(len(means), 2)))
        rows += [
            Row(f"mean r_q at depth {_depth(b)}", sample.model, float(v[0]), window=e.name)
            for b, v in means.items()
        ]
    if not found:
        return None
    return Answer(*_strongest(s, tops, found), rows=tuple(rows))


def _strongest(s: Asked, tops: list[int], found: list[Contrast]) -> tuple[str, str, str]:
    sure = {c.sure for c in found}
    verdict = "yes" if sure == {"more"} else "no" if sure == {"same"} else CANNOT_TELL
    top, last = max(tops, key=tops.count), found[-1]
    words = {
        "yes": f"r_q is strongest at depth {_depth(top)}",
        "no": "r_q is the same at all depths",
        CANNOT_TELL: "Which depth is strongest in r_q cannot be told",
    }
    if len(tops) > 1:
        return (
            verdict,
            f"r_q is strongest at depth {_depth(top)} in {tops.count(top)} of {len(tops)} models",
            "",
        )
    only = "among layers with RoPE, " if _mixed(s.best.samples[-1]) else ""
    apart = (
        f"depth {_depth(top)} is {number(last.difference, last.se)} above the weakest at {s.best.label(-1)}"
    )
    return verdict, words[verdict], sentence(f"{s.over}{only}{apart}")


def _rotating(sample: Sample) -> NDArray[Any]:
    """(H,) heads of rotating layers where the table tells: layers without rotation lie at fixed depths."""
    rope = rope_of(sample)
    return rope == 1 if (rope == 1).any() else np.ones(len(rope), dtype=bool)


def _mixed(sample: Sample) -> bool:
    return bool(0 < _rotating(sample).sum() < len(sample.heads))


@question(
    "early_layers", "Are early layers more positional than late ones?", view="depth", place=83, of="any",
    rule=rule_of_contrast(),
)  # fmt: skip
def early_layers(s: Asked) -> Answer | None:
    """r_q and |r_k| in the first third of the depth against the last third."""
    e = s.best
    found = {sample.model: thirds for sample in _chosen(e) if (thirds := _thirds(sample)) is not None}
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
        Row(f"mean {NAMES[value]}, first third minus last third of the depth", model, c.difference, se=c.se,
            window=e.name, verdict=c.verdict)
        for model, each in found.items() for value, c in each.items()
    )  # fmt: skip
    model, last = list(found.items())[-1]
    return Answer(verdict, _thirds_headline(verdict, found), _thirds_detail(s, e, model, last), rows)


def _thirds(sample: Sample) -> dict[str, Contrast] | None:
    depth, rotating = sample.heads["depth"].to_numpy(np.float64), _rotating(sample)
    early, late = rotating & (depth <= 1 / 3), rotating & (depth >= 2 / 3)
    if not early.any() or not late.any():
        return None
    return {
        value: contrast(
            average(sample.value(value)[:, early]), average(sample.value(value)[:, late]), looks=2
        )
        for value in ("r_q", "abs_r_k")
    }


def _thirds_headline(verdict: str, found: dict[str, dict[str, Contrast]]) -> str:
    if len(found) > 1:
        more = sum({c.sure for c in each.values()} == {"more"} for each in found.values())
        return f"Early layers are clearly more positional than late ones in {more} of {len(found)} models"
    (last,) = found.values()
    q = last["r_q"]
    words = {
        "yes": "Early layers are more positional than late ones",
        "no": "Early layers are not more positional than late ones",
        "in part": "Early layers are more positional in one of queries and keys only",
        CANNOT_TELL: "Early and late layers cannot be told apart",
    }
    late = {c.sure for c in last.values()} == {"less"}
    said = "Late layers are more positional than early ones" if late else words[verdict]
    return f"{said}: mean r_q {bare(q.first)} early, {bare(q.second)} late"


def _thirds_detail(s: Asked, e: Evidence, model: str, found: dict[str, Contrast]) -> str:
    only = "among layers with RoPE, " if _mixed(next(x for x in e.samples if x.model == model)) else ""
    parts = [
        f"{number(c.difference, c.se, signed=True)} in mean {NAMES[value]}" for value, c in found.items()
    ]
    return sentence(
        f"{s.over}{only}the first third of the depth differs from the last by {listing(parts)} at "
        f"{spoken(e.timeline.stop(model))}"
    )
