"""Layers with rotary position embedding against layers without, over the checkpoints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from qkscope.aggregate import rope_split
from qkscope.figures import ledger
from qkscope.figures.axis import CheckpointAxis
from qkscope.figures.course import Statistic, mean_of
from qkscope.figures.lines import Look, correlation_scale, draw_quantity, error_key, read_limits, value_rows
from qkscope.figures.prose import Story, Words, certainty, joined, md, story, with_error
from qkscope.figures.style import ROPE_COLOURS, Key, name_axis, sheet
from qkscope.figures.view import OWN, Drawing, View, look
from qkscope.results import Results

NAME = "09_rope_vs_nope"
QUANTITIES = (("r_q", "mean r_q, PC0"), ("abs_r_k", "mean |r_k|, PC0"))
LOOKS = {
    "RoPE": Look("layers with RoPE", ROPE_COLOURS["RoPE"], "o"),
    "NoPE": Look("layers without (NoPE)", ROPE_COLOURS["NoPE"], "D", hollow=True),
}


def why_not(view: View) -> str | None:
    """Why there is nothing to draw, if so."""
    if view.why_no_course:
        return view.why_no_course
    kinds = set(rope_split(view.results.heads, None, view.order)["rope"])
    if not kinds:
        return "the table does not say which layers use RoPE"
    if len(kinds) == 1:
        return f"all measured heads are in {kinds.pop()} layers: there is nothing to compare"
    return None


def draw(results: Results) -> Drawing:
    """Left or above: mean r_q; below: mean |r_k|. Filled circles: RoPE; open diamonds: NoPE."""
    view = look(results)
    columns = ["rope", "heads", "mean_r_q", "se_r_q", "mean_abs_r_k", "se_abs_r_k"]
    data = view.both_windows(rope_split)[["model", "label", "window", "tokens", *columns]]
    rows = _rows(view, data)
    axis = CheckpointAxis(view, left=ledger.room(rows))
    height, gap, table = 2.5, 0.25, ledger.height(rows)
    body = axis.above + 2 * height + gap + axis.below + table
    page = sheet(title(view), view.subtitle, axis.sheet_width, body, _keys(data))
    for i, (name, text) in enumerate(QUANTITIES):
        axes = page.axes(axis.left, axis.above + i * (height + gap), axis.width, height)
        axis.draw(axes, names=i == 1, phases=i == 0)
        axis.mark_missing(axes)
        _panel(axes, view, data, name)
        name_axis(axes, y=text)
    below = page.axes(axis.left, axis.above + 2 * height + gap + axis.below, axis.width, table)
    ledger.draw_ledger(below, rows, axis)
    return Drawing(page.figure, data)


def _panel(axes: Axes, view: View, data: pd.DataFrame, name: str) -> None:
    mean, se = f"mean_{name}", f"se_{name}"
    correlation_scale(axes, *read_limits(data, [(mean, se)]))
    for kind, look_of in LOOKS.items():
        draw_quantity(axes, view, data[data["rope"] == kind], look_of, mean, se)


def _rows(view: View, data: pd.DataFrame) -> list[ledger.Row]:
    """The values of both panels, named by quantity and kind of layer."""
    found = []
    for name, text in QUANTITIES:
        for kind, look_of in LOOKS.items():
            named = replace(look_of, name=f"{text.partition(',')[0]}, {kind}")
            found += value_rows(view, data[data["rope"] == kind], {named: f"mean_{name}"})
    return found


def title(view: View) -> str:
    return "Layers with and without rotary embedding" + (" over training" if view.training else "")


def _keys(data: pd.DataFrame) -> list[Key]:
    known = data[["se_r_q", "se_abs_r_k"]].notna().any(axis=None)
    return [error_key()] if known else []


def describe(view: View, data: pd.DataFrame) -> Words:
    """In words: each kind of layer, and the gap between them."""
    told = [
        story(view, f"mean {name} in {kind} layers", _mean(value, kind))
        for value, name in (("r_q", "r_q"), ("abs_r_k", "|r_k|"))
        for kind in LOOKS
    ]
    gaps = [
        story(view, f"the lead of RoPE over NoPE layers in {name}", _gap(value))
        for value, name in (("r_q", "mean r_q"), ("abs_r_k", "mean |r_k|"))
    ]
    known = [each for each in told if each]
    own = data[(data["window"] == OWN) & (data["model"] == view.order[-1])].set_index("rope")["heads"]
    counts = " and ".join(f"{own[kind]} heads of {kind} layers" for kind in LOOKS if kind in own)
    return Words(
        shows="Means over the heads of layers with rotary position embedding (RoPE, filled circles) and of layers "
        "without (NoPE, open diamonds): r_q above, |r_k| below."
        + (f" Dotted with hollow marks: over the {view.matched_text}." if view.rematched else ""),
        says=(*(each.text for each in known), *(each.text for each in gaps if each)),
        made=f"For each checkpoint, the means over the measured heads of either kind of layer; at "
        f"{md(view.labels[view.order[-1]])}, {counts}.",
        takeaway=joined(*(joined(_now(each), each.short if view.training else "") for each in gaps if each)),
        certainty=certainty(known[0].own if known else None),
    )


def _now(gap: Story) -> str:
    """The lead at the last checkpoint."""
    last = len(gap.own) - 1
    return f"At {md(gap.own.labels[last])}, {gap.own.name} is {with_error(gap.own, last)}."


def _mean(value: str, kind: str) -> Statistic:
    code = 1.0 if kind == "RoPE" else 0.0
    return mean_of(value, lambda sample: sample.heads["rope"].to_numpy(np.float64) == code)


def _gap(value: str) -> Statistic:
    """RoPE minus NoPE, in the same checkpoint."""
    rope, nope = _mean(value, "RoPE"), _mean(value, "NoPE")
    return lambda sample: rope(sample) - nope(sample)
