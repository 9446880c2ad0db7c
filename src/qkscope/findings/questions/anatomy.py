"""What decides where heads look, and what the position signal is made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qkscope.anatomy_means import PARTS, Measured, carried_by, measured
from qkscope.findings.catalogue import Answer, Asked, question
from qkscope.findings.claim import CANNOT_TELL, Row, Window
from qkscope.inference.contrast import contrast, exceeds
from qkscope.inference.levels import MISSED, MOST, NEARLY_ALL, rule_of_contrast, rule_of_part
from qkscope.measures.jackknife import jackknife
from qkscope.taxonomy import CLASSES
from qkscope.words import bare, capital, count, joined, listing, number, percent, sentence

Array = NDArray[np.float64]


def _last(s: Asked) -> tuple[Measured, Window] | None:
    """The last checkpoint, over the window that verdicts rest on."""
    model = s.best.stops[-1].model
    found = measured(s.results, [model], matched=s.matched is not None)
    return (found[0], s.best.name) if found else None


def _where(s: Asked) -> str:
    return f"at {s.best.label(-1)}{', ' + s.over.removesuffix(', ') if s.over else ''}"


def _row(what: str, each: Measured, means: Array, window: Window, verdict: str = "") -> Row:
    return Row(what, each.model, float(means[0]), None, float(jackknife(means[1:])), window, verdict, "share")


@question(
    "what_decides", "What decides where heads look?", view="head", place=31, of="any", rule=rule_of_contrast()
)
def what_decides(s: Asked) -> Answer | None:
    """The mean share of each part at the last checkpoint; the largest against each of the others."""
    found = _last(s)
    if found is None:
        return None
    each, window = found
    means = {part: each.mean(column) for part, column in PARTS.items()}
    if not all(np.isfinite(mean[0]) for mean in means.values()):
        return None
    first, *others = sorted(means, key=lambda part: -means[part][0])
    level = [part for part in others if contrast(means[first], means[part], looks=3).sure != "more"]
    shares = ", ".join(f"{part} {percent(float(mean[0]))}" for part, mean in means.items())
    says = f"{_DECIDES[first]} decides most, {percent(float(means[first][0]))}, before {_NAMES[others[0]]}"
    if level:
        names = listing([_NAMES[part] for part in (first, *level)])
        low, high = (percent(float(means[part][0])) for part in (level[-1], first))
        says = f"{capital(names)} decide about equally, {low} to {high} each"
    detail = (
        f"{_where(s)}, the variance of a query's scores over its keys is, on average over heads, {shares}"
    )
    rows = tuple(_row(f"mean share of {part}", each, mean, window) for part, mean in means.items())
    return Answer(CANNOT_TELL if level else "yes", says, sentence(detail), rows, window=window)


@question(
    "what_decides_classes", "What decides in the heads of each class?", view="head", place=32, of="any",
    rule=rule_of_contrast(),
)  # fmt: skip
def what_decides_classes(s: Asked) -> Answer | None:
    """Whether position decides more in heads of the positional classes than in content-focused ones."""
    found = _last(s)
    if found is None:
        return None
    each, window = found
    by_class = {kind: (each.heads["class"] == kind).to_numpy() for kind in CLASSES}
    by_class = {kind: where for kind, where in by_class.items() if where.any()}
    content, positional = CLASSES[3], [kind for kind in CLASSES[:3] if kind in by_class]
    if content not in by_class or not positional:
        return None
    kind = positional[0]
    share = {name: each.mean(PARTS["position"], where) for name, where in by_class.items()}
    gap = contrast(share[kind], share[content])
    verdict = {"more": "yes", "less": "no", "same": "no", "": CANNOT_TELL}[gap.sure]
    words = (
        f"Position decides {percent(gap.first)} in {kind} heads and {percent(gap.second)} in {content} ones"
    )
    parts = [
        f"{name}: "
        + ", ".join(f"{part} {percent(float(each.mean(column, where)[0]))}" for part, column in PARTS.items())
        for name, where in by_class.items()
    ]
    detail = f"{_where(s)}, mean shares by class are, {'; '.join(parts)}"
    rows = tuple(_row(f"mean share of position, {name}", each, mean, window) for name, mean in share.items())
    return Answer(verdict, words, sentence(detail), rows, window=window)


@question(
    "rotating_constant", "Is the position signal one constant vector being rotated?", view="head", place=33, of="any",
    rule=rule_of_part(),
)  # fmt: skip
def rotating_constant(s: Asked) -> Answer | None:
    """sum r_q r_q_const / sum r_q^2 over heads of layers that rotate: the part of r_q that the constant makes."""
    found = _last(s)
    if found is None:
        return None
    each, window = found
    where = (each.heads["rope"] == 1).to_numpy() & each.heads["r_q_const"].notna().to_numpy()
    if not where.any():
        return None
    parts = {name: _constant_share(s, each, where, name) for name in ("q", "k")}
    q = parts["q"]
    df = len(q) - 2
    se = float(jackknife(q[1:]))
    nearly, most = (exceeds(float(q[0]), se, limit, df) for limit in (NEARLY_ALL, MOST))
    verdict = (
        "yes" if nearly == "yes" else "in part" if most == "yes" else "no" if most == "no" else CANNOT_TELL
    )
    words = {
        "yes": "Queries' position signal is nearly all one constant vector being rotated",
        "in part": "Most of queries' position signal is one constant vector being rotated",
        "no": "Queries' position signal is not one constant vector being rotated",
        CANNOT_TELL: "Whether queries' position signal is one rotated constant cannot be told",
    }
    detail = (
        f"{_where(s)}, rotating the mean vector alone makes {percent(float(q[0]))} of r_q and "
        f"{percent(float(parts['k'][0]))} of r_k in layers that rotate"
    )
    rows = tuple(
        _row(f"share of r_{name} from a rotated constant", each, mean, window) for name, mean in parts.items()
    )
    return Answer(verdict, f"{words[verdict]}: {percent(float(q[0]))}", sentence(detail), rows, window=window)


def _constant_share(s: Asked, each: Measured, where: NDArray[np.bool_], name: str) -> Array:
    """The slope through zero of r_const against r. (1 + G,)"""
    r, constant = _beside_r(s, each, where, name, f"r_{name}_const")
    return np.asarray((r * constant).sum(axis=1) / (r**2).sum(axis=1))


def _beside_r(
    s: Asked, each: Measured, where: NDArray[np.bool_], name: str, measure: str
) -> tuple[Array, Array]:
    """r and a measure of the same heads, (1 + G, heads) each."""
    sample = next(sample for sample in s.best.samples if sample.model == each.model)
    places = {head: i for i, head in enumerate(zip(sample.heads["layer"], sample.heads["head"], strict=True))}
    heads = list(zip(each.heads["layer"][where], each.heads["head"][where], strict=True))
    known = [i for i, head in enumerate(heads) if head in places]
    r, values = sample.value(f"r_{name}"), each.value(measure, where)
    rows = min(len(r), len(values))
    return r[:rows, [places[heads[i]] for i in known]], values[:rows, known]


@question(
    "keys_know_more", "Do keys know more of position than r_k says?", view="portrait", place=34, of="any",
    rule=rule_of_contrast(),
)  # fmt: skip
def keys_know_more(s: Asked) -> Answer | None:
    """Mean eta_k^2 against mean r_k^2: the variance that any function of position explains, and a straight line."""
    found = _last(s)
    if found is None or not found[0].heads["eta_k"].notna().any():
        return None
    each, window = found
    where = each.heads["eta_k"].notna().to_numpy()
    r, eta = (values**2 for values in _beside_r(s, each, where, "k", "eta_k"))
    gap = contrast(eta.mean(axis=1), r.mean(axis=1))
    verdict = {"more": "yes", "less": "no", "same": "no", "": CANNOT_TELL}[gap.sure]
    words = {
        "yes": f"Keys know more of position than r_k says: {percent(gap.first)} of PC0's variance, a straight line "
        f"{percent(gap.second)}",
        "no": f"A straight line tells what keys know of position: {percent(gap.second)} of PC0's variance",
        CANNOT_TELL: "Whether keys know more of position than r_k says cannot be told",
    }
    missed = count(int((eta[0] > r[0] + MISSED).sum()), "head")
    detail = joined(
        sentence(
            f"{_where(s)}, mean eta_k², what any function of position explains, is {number(gap.first)} and mean r_k² "
            f"{number(gap.second)}; they differ by more than {bare(MISSED)} in {missed}"
        ),
        _over_own(s, each.model) if window == "matched" else "",
    )
    rows = (
        _row("mean eta_k²", each, eta.mean(axis=1), window, gap.verdict),
        _row("mean r_k²", each, r.mean(axis=1), window),
    )
    return Answer(verdict, words[verdict], detail, rows, window=window)


def _over_own(s: Asked, model: str) -> str:
    """The same over the checkpoint's own window, which is what the picture shows."""
    heads = measured(s.results, [model])[0].heads.dropna(subset=["eta_k", "r_k"])
    eta, r = heads["eta_k"] ** 2, heads["r_k"] ** 2
    missed = count(int((eta > r + MISSED).sum()), "head")
    return f"Over its own window they are {number(eta.mean())} and {number(r.mean())}, and differ so in {missed}."


@question(
    "frequencies", "Which frequencies carry the position signal?", view="head", place=35, of="any", tested=False,
    rule="A wavelength's share is the size of its part of r on PC0 over the sum of these sizes, averaged over heads.",
)  # fmt: skip
def frequencies(s: Asked) -> Answer | None:
    """The wavelengths that carry most of r_q at the last checkpoint, against the window, over own windows."""
    table = s.results.spectrum
    if table is None or not (table["pair"] >= 0).any():
        return None
    model = s.own.stops[-1].model
    shares = carried_by(table[table["model"] == model], "q").dropna()
    if shares.empty:
        return None
    window = int(shares["window"].iloc[0])
    top = shares.loc[shares["share"].idxmax()]
    near = shares[shares["wavelength"].between(window / 2, window * 4)]["share"].sum()
    longer = shares[shares["wavelength"] > window]["share"].sum()
    wave = float(top["wavelength"])
    turn = f"{wave:,.0f} tokens, {bare(wave / window, 1)} windows"
    part = "Most" if top["share"] > MOST else "The largest part"
    words = f"{part} of r_q comes from the rotary pair that turns once in {turn}"
    detail = sentence(
        f"at {s.own.label(-1)}, over its own window of {window:,} tokens, that rotary pair makes "
        f"{percent(float(top['share']))} of r_q, pairs that turn once in half a window to four windows "
        f"{percent(float(near))}, and those that do not turn once within the window {percent(float(longer))}"
    )
    rows = tuple(
        Row(f"share of the pair that turns once in {wave:,.0f} tokens", model, float(share), unit="share")
        for wave, share in zip(shares["wavelength"], shares["share"], strict=True)
    )
    return Answer("yes", words, detail, rows, window="own")


_NAMES = {
    "position": "position",
    "key": "the key",
    "match": "the match",
    "query × position": "query × position",
}
_DECIDES = {
    "position": "Where the key stands",
    "key": "What the key is",
    "match": "How query and key match",
    "query × position": "Where, depending on the query,",
}
