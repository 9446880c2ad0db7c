"""Layers with rotary position embedding against layers without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qkscope.aggregate import Sample
from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL
from qkscope.findings.phrases import contrast_row, course, rows_of
from qkscope.inference.contrast import Contrast, contrast
from qkscope.inference.evidence import LEAD_ABS_R_K, LEAD_R_Q, average, rope_of, spoken
from qkscope.inference.levels import rule_of_contrast
from qkscope.words import bare, capital, listing, number, sentence

NAMES = {"r_q": "mean r_q", "abs_r_k": "mean |r_k|"}


@question(
    "rope", "Do layers without RoPE differ from those with it?", view="depth", place=90, of="any",
    rule=rule_of_contrast(),
)  # fmt: skip
def rope(s: Asked) -> Answer | None:
    """At the last checkpoint, or in every model that has both."""
    e = s.best
    if all((rope_of(sample) == 1).all() for sample in s.final):
        return None
    both = [x for x in s.final if (rope_of(x) == 1).any() and (rope_of(x) == 0).any()]
    if not both:
        known = any(np.isfinite(rope_of(x)).any() for x in s.final)
        why = "All measured layers are of one kind" if known else "The table does not say which layers rotate"
        return Answer(CANNOT_TELL, f"{why}, so layers with and without RoPE cannot be compared")
    found = {(x.model, value): _split(x, value) for x in both for value in NAMES}
    what = "{}, layers with RoPE minus layers without".format
    rows = tuple(contrast_row(e, what(NAMES[value]), model, c) for (model, value), c in found.items())
    last = {value: found[both[-1].model, value] for value in NAMES}
    q, where = last["r_q"], spoken(e.timeline.stop(both[-1].model))
    headline = f"mean r_q is {bare(q.first)} in layers with RoPE and {bare(q.second)} in layers without"
    parts = [f"{number(c.difference, c.se, signed=True)} in {NAMES[value]}" for value, c in last.items()]
    detail = f"{s.over}the difference at {where} is {listing(parts)}"
    lead = f"In {where}, {headline}" if len(both) > 1 else capital(headline)
    return Answer(_verdict({c.sure for c in found.values()}), lead, sentence(detail), rows)


def _split(sample: Sample, value: str) -> Contrast:
    """Layers that rotate against layers that do not."""
    values, rotates = sample.value(value), rope_of(sample)
    return contrast(average(values[:, rotates == 1]), average(values[:, rotates == 0]), looks=len(NAMES))


def _verdict(sure: set[str]) -> str:
    if sure <= {"more", "less"}:
        return "yes"
    return "no" if sure == {"same"} else "in part" if sure & {"more", "less"} else CANNOT_TELL


@question("rope_lead", "Does the lead of RoPE layers change over training?", view="depth", place=91)
def rope_lead(s: Asked) -> Answer | None:
    """How far layers with rotation are ahead of those without, in r_q."""
    if LEAD_R_Q not in s.best.series:
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
