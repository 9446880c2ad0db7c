"""The claim about causes: what RoPE settings, training and window each changed at one step of the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from qkscope.claims.claim import Claim, Population, Row, See, Window
from qkscope.claims.context import (
    CHANGED,
    COORDINATES,
    LEVEL,
    OPPOSED,
    UNCLEAR,
    Context,
    name_of,
    published_r,
    rank,
    small,
    unit_of,
)
from qkscope.results.tables import ROTATION, WEIGHTS, WINDOW
from qkscope.stats.attribution import NUMBERS, UNDIVIDED, Step, interacts, steps
from qkscope.stats.levels import rule_of_cause
from qkscope.stats.series import Change
from qkscope.words import Unit, joined, listing, measured, sentence, tokens

_VERDICT = {ROTATION: "RoPE settings", WEIGHTS: "training", WINDOW: "window", UNDIVIDED: "not separable"}


def causes(c: Context) -> Claim | None:
    """Each cause's effect at the long-context onset, or at the step with the largest clear effect."""
    if not c.training or c.results.causes is None:
        return None
    measures = list(dict.fromkeys((c.lead, "r_q")))
    found = steps(c.results.causes, measures, c.populations)
    found = [each for each in found if (c.lead, c.main) in each.rows]
    step = _chosen(c, found)
    if step is None:
        return None
    verdict, measure = _verdict(c, step, measures)
    shown = [m for m in dict.fromkeys((measure, *measures)) if (m, c.main) in step.rows]
    pairs = [(m, p) for p in c.populations for m in shown if (m, p) in step.rows]
    rows = []
    for m, p in pairs:
        for factor, column in step.columns.items():
            effect, judged = f"effect of {_short(step, factor, m, p)}", step.effects[m, p, factor].verdict
            rows.append(_row(c, step, m, p, column, effect, judged))
    if verdict == "coordinates only":
        rows.sort(key=lambda row: row.effect not in (step.columns.get(WEIGHTS), UNDIVIDED))
    crossed, interacting = _interactions(c, step, pairs)
    split, axes = _axes(c, step)
    rows += [*crossed, *split]
    trained = {WEIGHTS, UNDIVIDED} & set(step.clear("r_q", c.main)) and verdict != "coordinates only"
    changed = step.training_changed(c.main)
    detail = joined(
        *(_parts(c, step, m, p) for m, p in pairs),
        published_r(changed, f"training's effect on mean r_q{c.heads()}") if trained else "",
        interacting,
        axes,
    )
    meaning = (
        "Effects are in the order of training: settings, training, window. Another order may give other effects."
        if len(step.columns) > 1
        else "Nothing else changed between the two checkpoints."
    )
    effects = [step.effects[measure, c.main, factor] for factor in step.clear(measure, c.main)]
    size = max((abs(effect.delta) for effect in effects), default=0.0)
    opposed, several = len({effect.verdict for effect in effects}) > 1, effects and len(step.columns) > 1
    tier = UNCLEAR if verdict == "unclear" else OPPOSED if opposed else CHANGED if several else LEVEL
    headline = _headline(c, step, measure, verdict, _by_training_alone(c, step, found))
    text = (headline, detail, meaning, _caveat(c, step), verdict)
    how, see = c.rule(rule_of_cause()), See("causes", NUMBERS[measure], step.after, c.main)
    surprise = rank(tier, size)
    return Claim("causes", "What caused the change?", *text, tuple(rows), rows[0].window, how, see, surprise)


def _chosen(c: Context, found: Sequence[Step]) -> Step | None:
    onset = c.best.onset
    at = [each for each in found if onset is not None and each.after == c.model(onset)]

    def size(step: Step) -> tuple[bool, float]:
        clear = [abs(step.effects[c.lead, c.main, factor].delta) for factor in step.clear(c.lead, c.main)]
        return bool(clear), max(clear, default=0.0)

    return max(at or found, key=size, default=None)


def _by_training_alone(c: Context, step: Step, found: Sequence[Step]) -> str:
    """A clause about the largest change, where it is at another step at which nothing but the weights changed."""
    largest = max(found, key=lambda each: abs(each.rows[c.lead, c.main]["total"]))
    alone = list(largest.columns) == [WEIGHTS] and largest.same_text
    if largest is step or not alone or not largest.clear(c.lead, c.main):
        return ""
    ends = f"from {_label(c, largest.before)} to {_label(c, largest.after)}"
    return f"training alone made the largest change, {ends}; "


def _verdict(c: Context, step: Step, measures: Sequence[str]) -> tuple[str, str]:
    """The cause, and the mean that shows it: the leading one unless only published r changed clearly."""
    changed = step.training_changed(c.main)
    weights = {WEIGHTS, UNDIVIDED}
    coordinates = ""
    for m in measures:
        clear = step.clear(m, c.main)
        if m == "r_q" and changed in ("coordinates", "unclear"):
            coordinates = m if weights & set(clear) and changed == "coordinates" else ""
            clear = [factor for factor in clear if factor not in weights]
        if len(clear) > 1:
            return "several causes", m
        if clear:
            name = _VERDICT[clear[0]]
            return "training and text" if name == "training" and not step.same_text else name, m
    if coordinates:
        return "coordinates only", coordinates
    effects = {step.effects[m, c.main, factor].verdict for m in measures for factor in step.columns}
    return "flat" if effects == {"flat"} else "unclear", measures[0]


def _label(c: Context, model: str) -> str:
    return c.labels[[checkpoint.model for checkpoint in c.best.checkpoints].index(model)]


def _headline(c: Context, step: Step, measure: str, verdict: str, before: str) -> str:
    ends = f"in this run, {before}from {_label(c, step.before)} to {_label(c, step.after)}, "
    unit, what = unit_of(measure), f"{name_of(measure)}{c.heads()}"
    if verdict == "coordinates only":
        effect = step.effects[measure, c.main, WEIGHTS if WEIGHTS in step.columns else UNDIVIDED]
        return sentence(f"{ends}{what} {effect.verdict} by {_size(effect, unit)} {COORDINATES}")
    text = "" if step.same_text else " and text (not separable)"
    longer = "longer" if (c.results.timeline.checkpoint(step.after).window or 0) > step.window else "shorter"
    subjects = {
        ROTATION: f"switching to {_label(c, step.after)}'s RoPE settings",
        WEIGHTS: f"training{text}",
        WINDOW: f"measuring over the {longer} training context",
        UNDIVIDED: f"training{'' if step.same_text else ', text'} and RoPE settings (not separable) together",
    }
    said: list[str] = []
    for factor in step.columns:
        subject, effect = subjects[factor], step.effects[measure, c.main, factor]
        if said:
            what = "it"
            subject += " then" if factor != WINDOW else ""
        elif factor == ROTATION:
            subject += " alone"
        s = "" if factor == UNDIVIDED or (factor == WEIGHTS and not step.same_text) else "s"
        size = _size(effect, unit)
        does = {
            "rises": f"raise{s} {what} by {size}",
            "falls": f"lower{s} {what} by {size}",
            "flat": f"change{s} {what} by less than {small(unit)}",
            "unclear": f"change{s} {what} by {size} (not a clear effect)",
        }[effect.verdict]
        said.append(f"{subject} {does}")
    return sentence(f"{ends}{listing(said)}")


def _size(effect: Change, unit: Unit) -> str:
    return measured(abs(effect.delta), math.nan, unit, signed=True).lstrip("+")


def _short(step: Step, factor: str, measure: str, population: Population) -> str:
    """A cause in a list. New weights that changed no attention are not called training."""
    text = "" if step.same_text else " and text"
    if factor == WEIGHTS and measure == "r_q" and step.training_changed(population) == "coordinates":
        return f"new weights{text} (only in coordinates)"
    return {
        ROTATION: "RoPE settings",
        WEIGHTS: f"training{text}",
        WINDOW: "window",
        UNDIVIDED: f"training{text} and RoPE settings (not separable)",
    }[factor]


def _effect(step: Step, measure: str, population: Population, column: str) -> str:
    """`+14.1 ± 0.6 points`."""
    row = step.rows[measure, population]
    return measured(row[column], row[f"{column}_se"], unit_of(measure), signed=True)


def _parts(c: Context, step: Step, measure: str, population: Population) -> str:
    """`Position's share ... in RoPE heads: RoPE settings −8.7 ± 0.1 points, training ..., together ...`."""
    said = [
        f"{_short(step, factor, measure, population)} {_effect(step, measure, population, column)}"
        for factor, column in step.columns.items()
    ]
    said += [f"together {_effect(step, measure, population, 'total')}"] if len(said) > 1 else []
    return sentence(f"{name_of(measure)}{c.heads(population)}: {', '.join(said)}")


def _interactions(c: Context, step: Step, pairs: Sequence[tuple[str, Population]]) -> tuple[list[Row], str]:
    """Rows and a sentence: how far training's effects under the old and the new settings differ."""
    rows, said = [], []
    for m, p in pairs if {ROTATION, WEIGHTS} <= step.columns.keys() else ():
        value = step.rows[m, p]["interaction"]
        if not math.isfinite(value):
            continue
        clear = interacts(step.rows[m, p])
        verdict = "unclear" if not clear else "higher" if value > 0 else "lower"
        rows.append(_row(c, step, m, p, "interaction", "interaction of training and RoPE settings", verdict))
        if clear and {ROTATION, WEIGHTS} & set(step.clear(m, p)):
            columns = ("weights_other_order", "weights_first", "interaction")
            before, after, gap = (_effect(step, m, p, column) for column in columns)
            said.append(
                f"{name_of(m)}{c.heads(p)} by {before} under the old settings and by {after} under the new ones "
                f"(difference {gap})"
            )
    return rows, f"The causes interact: training changes {listing(said)}." if said else ""


def _axes(c: Context, step: Step) -> tuple[list[Row], str]:
    """Rows and a sentence: how much of each effect on r_q comes from heads whose first axis stayed along that edge."""
    rows, said = [], []
    for p in c.populations:
        row = step.rows.get(("r_q", p), {})
        for factor, column in step.columns.items():
            kept, name = row.get(f"{factor}_same_axis", math.nan), _short(step, factor, "r_q", p)
            if not column.endswith("_first") or not math.isfinite(kept):
                continue
            found = _row(c, step, "r_q", p, f"{factor}_same_axis", f"effect of {name}", "level")
            rows.append(replace(found, what=f"{found.what} from heads that kept their axis"))
            if p == c.main and step.effects["r_q", p, factor].clear:
                parts = (kept, row[column] - kept)
                stayed, changed = (measured(x, math.nan, "r", signed=True) for x in parts)
                said.append(
                    f"{name}, {stayed} from heads that kept their first axis and {changed} from heads in which "
                    "another axis became the first"
                )
    return rows, sentence(f"of the effects on mean r_q{c.heads()}: {'; '.join(said)}") if said else ""


def _row(c: Context, step: Step, m: str, p: Population, column: str, effect: str, verdict: str) -> Row:
    row = step.rows[m, p]
    window: Window = "matched" if step.window == c.best.window and column != "window" else "own"
    ends = (step.after, row[column], row[f"{column}_se"], step.before)
    what = f"{effect} on {name_of(m)}{c.heads(p)}"
    return Row(what, m, p, *ends, window, unit_of(m), verdict, effect=column)


def _caveat(c: Context, step: Step) -> str:
    """What could not be separated and why, and what the effects depend on."""
    said = [c.caveat]
    if UNDIVIDED in step.columns:
        start = f"from {step.before} to {step.after}, "
        reasons = [w.partition("because ")[2] for w in c.results.record.warnings if w.startswith(start)]
        why = reasons[0] if reasons else "no checkpoint with exchanged settings was measured"
        said.append(sentence(f"training and RoPE settings are not separable: {why}"))
    if not step.same_text:
        said.append(
            "The two checkpoints were measured on different documents: training and text are not separable."
        )
    if next(iter(step.columns)) == WEIGHTS and ROTATION in step.columns:
        said.append("Only the order training first, then RoPE settings, could be measured.")
    if WINDOW in step.columns:
        said.append(
            f"Training and settings are compared over the shorter of the two windows, here {tokens(step.window)}."
        )
    return joined(*said)
