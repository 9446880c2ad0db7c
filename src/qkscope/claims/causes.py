"""The claim about causes: what RoPE settings, training and window each changed at one step of the run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qkscope.claims.claim import Claim, Population, Row, See, Window
from qkscope.claims.context import COORDINATES, Context, name_of, published_r, small, unit_of
from qkscope.claims.templates import CHANGED, LEVEL, OPPOSED, UNCLEAR, rank, rule
from qkscope.results.tables import ROTATION, WEIGHTS, WINDOW
from qkscope.stats.attribution import NUMBERS
from qkscope.stats.levels import rule_of_cause
from qkscope.stats.series import Change
from qkscope.stats.steps import UNDIVIDED, Step, interacts, steps
from qkscope.words import Unit, joined, listing, measured, sentence, tokens

_VERDICT = {ROTATION: "RoPE settings", WEIGHTS: "training", WINDOW: "window", UNDIVIDED: "not separable"}


def causes(c: Context) -> Claim | None:
    """Each cause's effect at the long-context onset, or at the step with the largest clear effect."""
    if not c.training or c.results.causes is None:
        return None
    measures = list(dict.fromkeys((c.lead, "r_q")))
    found = steps(c.results.causes, measures, c.populations)
    step = _chosen(c, [each for each in found if (c.lead, c.main) in each.rows])
    if step is None:
        return None
    verdict, measure = _verdict(c, step, measures)
    shown = [m for m in (measure, *measures) if (m, c.main) in step.rows]
    pairs = [(m, p) for p in c.populations for m in dict.fromkeys(shown) if (m, p) in step.rows]
    rows = [_row(c, step, m, p, factor) for m, p in pairs for factor in step.columns]
    if verdict == "coordinates only":
        rows.sort(key=lambda row: row.effect not in (step.columns.get(WEIGHTS), UNDIVIDED))
    if len(step.columns.keys() - {WINDOW}) > 1:
        rows += [
            _interaction(c, step, m, p) for m, p in pairs if math.isfinite(step.rows[m, p]["interaction"])
        ]
    rows += [row for m, p in pairs for row in _same_axis(c, step, m, p)]
    detail = joined(
        *(_parts(c, step, m, p) for m, p in pairs),
        _coordinates(c, step, verdict),
        _interacting(c, step, pairs),
        _axes(c, step),
    )
    meaning = (
        "Effects are given in the order of training: settings first, then training, then window. In another order the "
        "same causes may have other effects."
        if len(step.columns) > 1
        else "Nothing else changed between the two checkpoints."
    )
    text = (_headline(c, step, measure, verdict), detail, meaning, _caveat(c, step), verdict)
    effects = [step.effects[measure, c.main, factor] for factor in step.clear(measure, c.main)]
    size = max((abs(effect.delta) for effect in effects), default=0.0)
    opposed = len({effect.verdict for effect in effects}) > 1
    tier = UNCLEAR if verdict == "unclear" else OPPOSED if opposed else CHANGED if effects else LEVEL
    tier = LEVEL if len(step.columns) == 1 and tier == CHANGED else tier
    see = See("causes", NUMBERS[measure], step.after, c.main)
    question = "What caused the change?"
    return Claim(
        "causes",
        question,
        *text,
        tuple(rows),
        rows[0].window,
        rule(c, rule_of_cause()),
        see,
        rank(tier, size),
    )


def _chosen(c: Context, found: Sequence[Step]) -> Step | None:
    onset = c.best.onset
    at = [each for each in found if onset is not None and each.after == c.model(onset)]

    def size(step: Step) -> tuple[bool, float]:
        effects = [step.effects[c.lead, c.main, factor] for factor in step.columns]
        return any(e.clear for e in effects), max((abs(e.delta) for e in effects if e.clear), default=0.0)

    return max(at or found, key=size, default=None)


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
    effects = [step.effects[m, c.main, factor].verdict for m in measures for factor in step.columns]
    return "flat" if set(effects) == {"flat"} else "unclear", measures[0]


def _name(c: Context, step: Step, factor: str) -> str:
    """A cause as the subject of a sentence."""
    text = "" if step.same_text else " and text (not separable)"
    window = step.rows[c.lead, c.main]["window_tokens"]
    stop = next(stop for stop in c.own.stops if stop.model == step.after)
    longer = "longer" if (stop.window or 0) > window else "shorter"
    return {
        ROTATION: f"switching to {_label(c, step.after)}'s RoPE settings",
        WEIGHTS: f"training{text}",
        WINDOW: f"the {longer} window",
        UNDIVIDED: f"training{'' if step.same_text else ', text'} and RoPE settings (not separable) together",
    }[factor]


def _label(c: Context, model: str) -> str:
    return c.labels[[stop.model for stop in c.best.stops].index(model)]


def _headline(c: Context, step: Step, measure: str, verdict: str) -> str:
    ends = f"in this run, from {_label(c, step.before)} to {_label(c, step.after)}, "
    if verdict == "coordinates only":
        effect = step.effects[measure, c.main, WEIGHTS if WEIGHTS in step.columns else UNDIVIDED]
        size = _size(effect, unit_of(measure))
        return sentence(f"{ends}{name_of(measure)}{c.heads()} {effect.verdict} by {size} {COORDINATES}")
    said = []
    for i, factor in enumerate(step.columns):
        what = f"{name_of(measure)}{c.heads()}" if i == 0 else "it"
        subject = _name(c, step, factor) + (" alone" if i == 0 and factor == ROTATION else "")
        then = " then" if i > 0 and factor in (WEIGHTS, ROTATION) else ""
        several = factor == UNDIVIDED or (factor == WEIGHTS and not step.same_text)
        does = _does(step.effects[measure, c.main, factor], what, measure, "" if several else "s")
        said.append(f"{subject}{then} {does}")
    return sentence(f"{ends}{listing(said)}")


def _size(effect: Change, unit: Unit) -> str:
    text = measured(abs(effect.delta), math.nan, unit, signed=True).lstrip("+")
    return "1 point" if text == "1 points" else text


def _does(effect: Change, what: str, measure: str, s: str) -> str:
    unit = unit_of(measure)
    size = _size(effect, unit)
    return {
        "rises": f"raise{s} {what} by {size}",
        "falls": f"lower{s} {what} by {size}",
        "flat": f"change{s} {what} by less than {small(unit)}",
        "unclear": f"change{s} {what} by {size} (not clear of noise)",
    }[effect.verdict]


def _short(step: Step, factor: str, measure: str, population: Population) -> str:
    """A cause in a list. New weights that changed no attention are not called training."""
    text = "" if step.same_text else " and text"
    if factor == WEIGHTS and step.only_coordinates(measure, population):
        return f"new weights{text} (only in coordinates)"
    return {ROTATION: "RoPE settings", WEIGHTS: f"training{text}", WINDOW: "window"}.get(
        factor, f"training{text} and RoPE settings (not separable)"
    )


def _parts(c: Context, step: Step, measure: str, population: Population) -> str:
    """`Position's share ... in RoPE heads: RoPE settings −8.7 ± 0.1 points, training ..., together ...`."""
    row, unit = step.rows[measure, population], unit_of(measure)
    said = [
        f"{_short(step, factor, measure, population)} {measured(row[column], row[f'{column}_se'], unit, signed=True)}"
        for factor, column in step.columns.items()
    ]
    total = (
        f", together {measured(row['total'], row['total_se'], unit, signed=True)}" if len(said) > 1 else ""
    )
    return sentence(f"{name_of(measure)}{c.heads(population)}: {', '.join(said)}{total}")


def _coordinates(c: Context, step: Step, verdict: str) -> str:
    """Whether training's effect on published r is one on attention, where the headline does not say it."""
    changed = step.training_changed(c.main)
    if verdict == "coordinates only" or not {WEIGHTS, UNDIVIDED} & set(step.clear("r_q", c.main)):
        return ""
    return published_r(changed, f"training's effect on mean r_q{c.heads()}")


def _interacting(c: Context, step: Step, pairs: Sequence[tuple[str, Population]]) -> str:
    """Where training would have had another effect before the change of settings."""
    said = []
    for m, p in pairs:
        row = step.rows[m, p]
        acts = {ROTATION, WEIGHTS} & set(step.clear(m, p))
        if len(step.columns.keys() - {WINDOW}) > 1 and acts and interacts(row):
            values = [
                measured(row[name], row[f"{name}_se"], unit_of(m), signed=True)
                for name in ("weights_other_order", "weights_first", "interaction")
            ]
            said.append(
                f"{name_of(m)}{c.heads(p)} by {values[0]} under the old settings and by {values[1]} under the new ones "
                f"(difference {values[2]})"
            )
    return sentence(f"the causes interact: training changes {listing(said)}") if said else ""


def _axes(c: Context, step: Step) -> str:
    """How much of each effect on r_q comes from heads whose first axis stayed along that edge."""
    if ("r_q", c.main) not in step.rows:
        return ""
    row, said = step.rows["r_q", c.main], []
    for factor, column in step.columns.items():
        kept = row.get(f"{factor}_same_axis", math.nan)
        if column.endswith("_first") and math.isfinite(kept) and step.effects["r_q", c.main, factor].clear:
            stayed, changed = (measured(x, math.nan, "r", signed=True) for x in (kept, row[column] - kept))
            cause = _short(step, factor, "r_q", c.main)
            said.append(
                f"{cause}, {stayed} from heads that kept their first axis and {changed} from heads in which another "
                "axis became the first"
            )
    return sentence(f"of the effects on mean r_q{c.heads()}: {'; '.join(said)}") if said else ""


def _row(c: Context, step: Step, measure: str, p: Population, factor: str) -> Row:
    effect = step.effects[measure, p, factor]
    what = f"effect of {_short(step, factor, measure, p)} on {name_of(measure)}{c.heads(p)}"
    return _as_row(c, step, what, measure, p, step.columns[factor], effect.verdict)


def _interaction(c: Context, step: Step, measure: str, p: Population) -> Row:
    row = step.rows[measure, p]
    what = f"interaction of training and RoPE settings on {name_of(measure)}{c.heads(p)}"
    verdict = ("higher" if row["interaction"] > 0 else "lower") if interacts(row) else "unclear"
    return _as_row(c, step, what, measure, p, "interaction", verdict)


def _same_axis(c: Context, step: Step, measure: str, p: Population) -> list[Row]:
    found = []
    for factor, column in step.columns.items():
        name = f"{factor}_same_axis"
        if measure == "r_q" and column.endswith("_first") and math.isfinite(step.rows[measure, p][name]):
            what = f"{_row(c, step, measure, p, factor).what} from heads that kept their axis"
            found.append(_as_row(c, step, what, measure, p, name, "level"))
    return found


def _as_row(c: Context, step: Step, what: str, measure: str, p: Population, column: str, verdict: str) -> Row:
    row = step.rows[measure, p]
    window: Window = "matched" if step.window == c.best.window and column != "window" else "own"
    ends = (step.after, row[column], row[f"{column}_se"], step.before)
    return Row(what, measure, p, *ends, window, unit_of(measure), verdict, effect=column)


def _caveat(c: Context, step: Step) -> str:
    """What could not be separated and why, and what the effects depend on."""
    said = [c.caveat]
    if UNDIVIDED in step.columns:
        start = f"from {step.before} to {step.after}, "
        reasons = [text for text in c.results.record.warnings if text.startswith(start)]
        why = (
            reasons[0].partition("because ")[2]
            if reasons
            else "no checkpoint with exchanged settings was measured"
        )
        said.append(sentence(f"training and RoPE settings are not separable: {why}"))
    if not step.same_text:
        said.append(
            "The two checkpoints were measured on different documents: training and text are not separable."
        )
    if {ROTATION, WEIGHTS} <= step.columns.keys() and next(iter(step.columns)) == WEIGHTS:
        said.append("Only the order training first, then RoPE settings, could be measured.")
    if WINDOW in step.columns:
        said.append(f"Training and settings are compared over {tokens(step.window)}.")
    return joined(*said)
