"""Which classes of heads gain and lose, and which heads move between them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qkscope.aggregate import borderline, positional_below_null
from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL
from qkscope.findings.phrases import (
    NO_HEAD_ERRORS,
    at_step,
    beside,
    by_noise,
    goes,
    level,
    level_row,
    moved_row,
    rows_of,
    span,
    without_errors,
)
from qkscope.inference import levels
from qkscope.inference.contrast import exceeds
from qkscope.inference.evidence import Evidence, share_of
from qkscope.inference.transitions import Moved, moved, pair, transitions_into
from qkscope.taxonomy import CLASSES
from qkscope.words import about, count, joined, listing, percent, sentence

DOMINATED, CONTENT = share_of("position-dominated"), share_of("content-focused")


@question(
    "majority",
    "Are most heads of one class?",
    view="taxonomy",
    place=50,
    of="any",
    rule=levels.rule_of_majority(),
)
def majority(s: Asked) -> Answer:
    """The largest class of the last checkpoint: most is more than half."""
    e = s.best
    last = len(e.stops) - 1
    kinds = {kind: e.series[share_of(kind)] for kind in CLASSES}
    top = max(kinds, key=lambda kind: kinds[kind].at(last))
    series = kinds[top]
    verdict = exceeds(series.at(last), series.se(last), 0.5, e.groups - 1) if e.sure else CANNOT_TELL
    heads = len(e.samples[last].heads)
    members = round(series.at(last) * heads)
    word = "Most heads are" if verdict == "yes" else "The largest class is"
    headline = f"{word} {top}: {members} of {heads} at {e.label(last)}"
    present = [f"{level(e, share_of(kind), last)} {kind}" for kind in CLASSES if kinds[kind].at(last) > 0]
    shares = f"{s.over}heads at {e.label(last)} are {listing(present)}"
    near = int(borderline(e.samples[last], e.thresholds).sum())
    be = "is" if near == 1 else "are"
    edge = f"{near} of {heads} {be} within one standard error of another class" if near else ""
    which = range(last + 1) if s.results.timeline.kind == "models" else [last]
    rows = tuple(level_row(e, share_of(kind), i) for i in which for kind in CLASSES)
    return Answer(verdict, headline, joined(sentence(shares), sentence(edge)), rows, _below_null(e))


def _below_null(e: Evidence) -> str:
    below = int(positional_below_null(e.samples[-1].heads, e.thresholds).sum())
    verb = "does not exceed its" if below == 1 else "do not exceed their"
    return sentence(f"{count(below, 'head')} of a positional class {verb} null") if below else ""


@question("classes", "Do the shares of the classes change?", view="taxonomy", place=51)
def classes(s: Asked) -> Answer:
    """The course of all five shares."""
    e = s.best
    verdicts = {kind: e.direction(share_of(kind)) for kind in CLASSES}
    changing = [kind for kind in CLASSES if verdicts[kind] in ("rises", "falls", "rises and falls")]
    rows = rows_of(s, *(share_of(kind) for kind in CLASSES))
    gains = net_gains(e)
    if not changing:
        same = set(verdicts.values()) == {"no change"}
        headline = "No class gains or loses heads" + ("" if same else " beyond noise")
        return Answer("no" if same else CANNOT_TELL, headline, gains, rows)
    top = max(changing, key=lambda kind: abs(e.overall(share_of(kind)).delta))
    verb = {"rises": "gains heads", "falls": "loses heads", "rises and falls": "gains and loses heads"}
    others = [f"{kind} {verb[verdicts[kind]]}" for kind in changing if kind != top]
    detail = f"{s.over}{goes(e, share_of(top))}" + (f"; {listing(others)}" if others else "")
    headline = f"The {top} class {verb[verdicts[top]]}: {span(e, share_of(top))}"
    return Answer("yes", headline, joined(sentence(detail), gains), rows)


def net_gains(e: Evidence) -> str:
    """Which classes gained from which between the first and the last checkpoint, head by head."""
    ends_of = pair(e.samples[0], e.samples[-1])
    first, last = ends_of.classes(e.thresholds)
    moves = Counter(zip(first.tolist(), last.tolist(), strict=True))
    net = {(a, b): moves[a, b] - moves[b, a] for a in CLASSES for b in CLASSES if moves[a, b] > moves[b, a]}
    best = sorted(net.items(), key=lambda item: -item[1])[:3]
    if not best:
        return "Head by head, no class gains from another from first to last."
    parts = [f"{b} gains {n} from {a}" for (a, b), n in best]
    return f"Head by head from first to last, less those that go the other way, {listing(parts)}."


@question(
    "content_vanishes", "Do content-focused heads vanish early?", view="taxonomy", place=52,
    rule=levels.rule_of_vanishing(),
)  # fmt: skip
def content_vanishes(s: Asked) -> Answer:
    """There at first, then below levels.VANISHED for good within the first third of the checkpoints."""
    e = s.best
    series, last = e.series[CONTENT], len(e.stops) - 1
    error = [series.se(i) if e.sure else math.inf for i in range(last + 1)]
    below = [series.at(i) + error[i] < levels.VANISHED for i in range(last + 1)]
    gone = next((i for i in range(last + 1) if all(below[i:])), None)
    detail = joined(sentence(f"{s.over}{goes(e, CONTENT)}"), beside(s, CONTENT))
    rows = rows_of(s, CONTENT)
    if not e.sure or series.at(0) - error[0] < levels.VANISHED:
        headline = "Too few heads are surely content-focused at first to speak of vanishing"
        return Answer(CANNOT_TELL, headline, detail, rows)
    if gone is None:
        stay = series.at(last) - 2 * error[last] > levels.VANISHED
        headline = f"Content-focused heads {'do not vanish' if stay else 'nearly vanish'}: {span(e, CONTENT)}"
        return Answer("no" if stay else CANNOT_TELL, headline, detail, rows)
    early = gone <= max(1, math.ceil(levels.EARLY * last))
    when = f"{'early' if early else 'late'}: below {percent(levels.VANISHED)} from {e.label(gone)} on"
    headline = f"Content-focused heads vanish {when}"
    return Answer("yes" if early else "no", headline, detail, rows)


@question(
    "feeds", "Which classes do position-dominated heads come from?", view="taxonomy", place=53,
    rule=levels.rule_of_noise(),
)  # fmt: skip
def feeds(s: Asked) -> Answer:
    """The classes whose heads become position-dominated more often than noise moves them."""
    e = s.best
    known = all(p.has_errors for p in e.pairs)
    doubt = without_errors(max(int((~p.judged).sum()) for p in e.pairs)) if known else NO_HEAD_ERRORS
    table = transitions_into(e.pairs, "position-dominated", e.thresholds)
    records, ends_of = table.to_dict("records"), (e.stops[0].model, e.stops[-1].model)
    verdicts = [CANNOT_TELL if not known else "yes" if r["feeds"] else "no" for r in records]
    rows = tuple(
        moved_row(e, f"heads that become position-dominated from {r['class']}",
                  Moved(*ends_of, r["entered"], r["expected"], verdict))
        for r, verdict in zip(records, verdicts, strict=True)
    )  # fmt: skip
    entered = int(table["entered"].sum())
    share = f"{s.over}{goes(e, DOMINATED)}"
    if not known:
        headline = f"Over all steps, a head becomes position-dominated {count(entered, 'time')}"
        return Answer(CANNOT_TELL, headline, sentence(share), rows, doubt)
    real = table[table["feeds"]].sort_values("entered", ascending=False).to_dict("records")
    if not real:
        detail = f"{share}; {entered} enter over all steps{by_noise(float(table['expected'].sum()))}"
        return Answer(
            "no", "No class feeds position-dominated heads beyond noise", sentence(detail), rows, doubt
        )
    parts = [
        f"{r['entered']} heads enter from {r['class']}{by_noise(r['expected'])} and {r['left'] or 'none'} return to it"
        for r in real
    ]
    top = real[0]
    headline = (
        f"{top['entered']} of {entered} entries into the position-dominated class are of {top['class']} heads"
    )
    detail = joined(
        sentence(f"{share}; over all steps {listing(parts)}"), _entered_by_axis(e, real[0]["class"])
    )
    return Answer("yes", headline, detail, rows, doubt)


def _entered_by_axis(e: Evidence, kind: str) -> str:
    """How many of those that enter do so because another axis became the first."""
    swapped = 0
    for p in e.pairs:
        first, then = p.classes(e.thresholds)
        came = (first == kind) & (then == "position-dominated") & (p.judged | (not p.has_errors))
        swapped += int((came & (p.same_axis == 0)).sum())
    return f"Of those from {kind}, {swapped} enter because another axis became the first." if swapped else ""


@question(
    "transitions",
    "Do heads change class beyond noise?",
    view="taxonomy",
    place=54,
    rule=levels.rule_of_noise(),
)
def transitions(s: Asked) -> Answer:
    """How many heads change class at each step, and how many would by noise alone."""
    found = [moved(p, s.best.thresholds) for p in s.best.pairs]
    return replace(_transitions(s, found), doubt=without_errors(max(m.unjudged for m in found)))


def _transitions(s: Asked, found: Sequence[Moved]) -> Answer:
    e = s.best
    rows = tuple(moved_row(e, "heads that change class", m) for m in found)
    most = max(found, key=lambda m: m.heads)
    clear = sum(m.verdict == "yes" for m in found)
    headline = f"{most.heads} of {e.heads} heads change class {at_step(e, most.from_model, most.to_model)}"
    if not most.known:
        return Answer(CANNOT_TELL, headline, joined(NO_HEAD_ERRORS, _largest(e), _by_axis(e)), rows)
    noise = f"{s.over}noise alone would move {about(most.expected)} there"
    if not clear:
        doubt = any(m.verdict == CANNOT_TELL for m in found)
        headline = (
            f"At most {headline}, no more than noise explains" if most.heads else "No head changes class"
        )
        return Answer(CANNOT_TELL if doubt else "no", headline, joined(sentence(noise), _by_axis(e)), rows)
    many = f"; at {clear} of {len(found)} steps more heads move than noise explains" if len(found) > 1 else ""
    return Answer("yes", headline, joined(sentence(noise + many), _largest(e), _by_axis(e)), rows)


def _by_axis(e: Evidence) -> str:
    """How many of all changes of class are another axis becoming the first."""
    if any(np.isnan(p.same_axis).any() for p in e.pairs):
        return ""
    changed = [np.not_equal(*p.classes(e.thresholds)) for p in e.pairs]
    total = sum(int(c.sum()) for c in changed)
    swapped = sum(int((c & (p.same_axis == 0)).sum()) for c, p in zip(changed, e.pairs, strict=True))
    if not total:
        return ""
    return (
        f"Over all steps, {total - swapped} of {total} changes of class are on the same axis; in the others another "
        "axis became the first."
    )


def _largest(e: Evidence) -> str:
    """The largest transitions between two classes at one step."""
    moves: Counter[tuple[str, str, str, str]] = Counter()
    for p in e.pairs:
        first, then = (kinds.tolist() for kinds in p.classes(e.thresholds))
        ends = p.from_model, p.to_model
        moves.update((a, b, *ends) for a, b in zip(first, then, strict=True) if a != b)
    if not moves:
        return ""
    (a, b, *step), n = moves.most_common(1)[0]
    return f"The largest transition is {count(n, 'head')} from {a} to {b}, {at_step(e, *step)}."
