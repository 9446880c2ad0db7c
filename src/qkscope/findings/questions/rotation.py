"""Layers with rotary position embedding against layers without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL, Row
from qkscope.findings.phrases import course, rows_of
from qkscope.inference.contrast import contrast
from qkscope.inference.evidence import LEAD_ABS_R_K, LEAD_R_Q, Evidence, average, rope_of, spoken
from qkscope.inference.levels import rule_of_change, rule_of_contrast
from qkscope.words import bare, listing, number, sentence


@question(
    "rope",
    "Do layers without RoPE differ from those with it?",
    view="depth",
    place=90,
    of="any",
    rule=rule_of_contrast(),
)
def rope(s: Asked) -> Answer | None:
    """At the last checkpoint, or in every model that has both."""
    e = s.best
    chosen = e.samples if e.timeline.kind == "models" else e.samples[-1:]
    if all((rope_of(sample) == 1).all() for sample in chosen):
        return None
    both = [x for x in chosen if (rope_of(x) == 1).any() and (rope_of(x) == 0).any()]
    if not both:
        known = any(np.isfinite(rope_of(x)).any() for x in chosen)
        why = "All measured layers are of one kind" if known else "The table does not say which layers rotate"
        return Answer(CANNOT_TELL, f"{why}, so layers with and without RoPE cannot be compared")
    rows, sure = [], []
    for sample in both:
        masks = rope_of(sample) == 1, rope_of(sample) == 0
        for value, name in (("r_q", "mean r_q"), ("abs_r_k", "mean |r_k|")):
            with_it, without = (average(sample.value(value)[:, mask]) for mask in masks)
            c = contrast(with_it, without, looks=2)
            sure.append(c.sure)
            what = f"{name}, layers with RoPE minus layers without"
            rows.append(Row(what, sample.model, c.difference, se=c.se, window=e.name, verdict=c.verdict))
            if value == "r_q":
                first = c
    if all(x in ("more", "less") for x in sure):
        verdict = "yes"
    else:
        verdict = (
            "no" if set(sure) == {"same"} else "in part" if {"more", "less"} & set(sure) else CANNOT_TELL
        )
    headline = (
        f"Mean r_q is {bare(first.first)} in layers with RoPE and {bare(first.second)} in layers without"
    )
    if len(both) > 1:
        headline = f"{headline} of {spoken(e.timeline.stop(both[-1].model))}"
    detail = [
        f"{number(row.value, row.se, signed=True)} in {row.what.partition(',')[0]}" for row in rows[-2:]
    ]
    where = spoken(e.timeline.stop(both[-1].model))
    return Answer(
        verdict, headline, sentence(f"{s.over}the difference at {where} is {listing(detail)}"), tuple(rows)
    )


@question(
    "rope_lead",
    "Does the lead of RoPE layers change over training?",
    view="depth",
    place=91,
    rule=rule_of_change(),
)
def rope_lead(s: Asked) -> Answer | None:
    """How far layers with rotation are ahead of those without, in r_q."""
    e: Evidence = s.best
    if LEAD_R_Q not in e.series:
        return None
    says = {
        "rises": "Layers with RoPE draw ahead",
        "falls": "Layers with RoPE lose their lead",
        "rises and falls": "The lead of layers with RoPE grows at times and shrinks at others",
        "no change": "The lead of layers with RoPE stays as it is",
        CANNOT_TELL: "Whether layers with RoPE draw ahead cannot be told",
    }
    found = course(s, LEAD_R_Q, says, short="lead in mean r_q")
    return replace(found, rows=found.rows + rows_of(s, LEAD_ABS_R_K))
