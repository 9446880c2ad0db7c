"""Claims about attention scores: what determines where heads look, which wavelengths carry r_q, scores by distance."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from qkscope.claims.claim import Claim, Population, Row, See
from qkscope.claims.context import DIFFERENT, LEVEL, MOST_NAMED, UNCLEAR, Context, head_names, rank
from qkscope.results.aggregate import carried_by, score_by_distance
from qkscope.results.taxonomy import SCORE_CLASSES, SCORE_HIGH, SCORE_LOW, score_class
from qkscope.stats.contrast import exceeds
from qkscope.stats.levels import CONFIDENCE, MOST, rule_of_contrast
from qkscope.words import bare, in_words, joined, listing, number, percent, sentence, tokens

LONG = 8  # windows: up to this length, wavelengths are counted together
NEAR = 16  # tokens: a key within these is near
PARTS = {"position": "share_positional", "key content": "share_key", "content match": "share_match"}


def scores(c: Context) -> Claim | None:
    """The largest of the three parts of score variance, at the last checkpoint."""
    if c.several_models or not all(c.best.known(m, p) for m in PARTS.values() for p in c.populations):
        return None
    verdict, order = _ranked(c, c.main)
    rows = [c.row(PARTS[name], c.main, c.last) for name in order]
    top, second = (c.value(PARTS[name], c.main, c.last) for name in order[:2])
    whole = f"score variance{c.heads()}{c.at(c.last)}"
    lead = f"of the {whole}: {top}, ahead of {order[1]} with {second}"
    headline = {
        "majority": f"{order[0]} explains most {lead}",
        "largest": f"{order[0]} explains the largest part {lead}",
        "tie": f"{order[0]} and {order[1]} explain equal parts of the {whole}: {top} and {second}",
        "unclear": f"{order[0]} and {order[1]} explain parts of the {whole} that are equal within the errors: "
        f"{top} and {second}",
    }[verdict]
    differ = c.other is not None and _ranked(c, c.other)[1][0] != order[0]
    tier = {"unclear": UNCLEAR, "tie": LEVEL}.get(verdict, DIFFERENT)
    surprise = rank(tier, rows[0].value - rows[1].value + (0.5 if differ else 0.0))
    rows += [c.row(m, c.other, c.last) for m in PARTS.values()] if c.other else []
    ends = (c.last, 0) if c.follows else (c.last,)
    rows += [_count(c, kind, p, i) for i in ends for p in c.populations for kind in SCORE_CLASSES]
    shares = [
        ", ".join(f"{name} {c.level(m, p, c.last)}" for name, m in PARTS.items()) + c.heads(p)
        for p in c.populations
    ]
    query = c.level("share_query_position", c.main, c.last)
    detail = joined(
        sentence(f"{c.over}mean shares{c.at(c.last)} are {'; '.join(shares)}"),
        sentence(f"position includes query-dependent position, {query}{c.heads()}"),
        _classes(c),
    )
    meaning = (
        "A query's scores vary over its keys with where a key is (position), what it is (key content) and how it "
        "matches the query (content match). The shares sum to 1."
    )
    text = ("What determines where heads look?", sentence(headline), detail, meaning, c.caveat, verdict)
    how, see = c.rule(rule_of_contrast()), c.see("scores", PARTS[order[0]])
    return Claim("scores", *text, tuple(rows), c.best.name, how, see, surprise)


def _ranked(c: Context, population: Population) -> tuple[str, list[str]]:
    """The verdict on the parts of score variance, and the parts by falling share."""
    shares = {name: c.best.level(m, population, c.last) for name, m in PARTS.items()}
    order = sorted(PARTS, key=lambda name: shares[name][0], reverse=True)
    first, *rest = (PARTS[name] for name in order)
    verdicts = [c.best.compare(first, m, population, c.last, len(rest)).verdict for m in rest]
    if verdicts[0] == "equal":
        return "tie", order
    if set(verdicts) != {"higher"}:
        return "unclear", order
    return "majority" if exceeds(*shares[order[0]], MOST, c.best.groups - 1) else "largest", order


def _classes(c: Context) -> str:
    """How many heads of each score class there are, and were at first."""

    def counts(p: Population, i: int) -> str:
        found = [(kind, int(_count(c, kind, p, i).value)) for kind in SCORE_CLASSES]
        return ", ".join(f"{count} {kind}" for kind, count in found if count)

    said = [f"{c.kind(p)}{c.at(c.last)}: {counts(p, c.last)}" for p in c.populations]
    said[0] += f" ({c.labels[0]}: {counts(c.main, 0)})" if c.follows else ""
    limits = f"positional above {percent(SCORE_HIGH)} of score variance, content below {percent(SCORE_LOW)}"
    return sentence(f"by score class ({limits}), {'; '.join(said)}")


def _count(c: Context, kind: str, p: Population, i: int) -> Row:
    here = score_class(c.best.value("share_positional", i)[c.best.mask(i, p)]) == kind
    return c.counted(f"{kind} {c.kind(p)} (score class)", f"score_class {kind}", p, i, int(here.sum()))


def wavelengths(c: Context) -> Claim | None:
    """The rotary pair that carries most of r_q at the last checkpoint."""
    p: Population = "RoPE" if c.other else "all"
    if c.several_models or "signal_q" not in c.best.data or not _above_noise(c, p):
        return None
    found, model = carried_by(c.best.data, "q").dropna(), c.model(c.last)
    now = found[found["model"] == model].sort_values("share", ascending=False, kind="stable")
    if len(now) < 2:
        return None
    waves, shares = now["wavelength"].tolist(), now["share"].tolist()
    lengths = [tokens(round(wave)) for wave in waves]
    rows = [
        Row(
            f"share of r_q at a wavelength of {length}", "signal_q", p, model, share, window=c.best.name,
            unit="share", at=wave,
        )
        for length, wave, share in zip(lengths, waves, shares, strict=True)
    ]  # fmt: skip
    size, where = percent(shares[0]), f"r_q{c.heads(p)}{c.at(c.last)}"
    verdict = "tie" if size == percent(shares[1]) else "majority" if shares[0] > MOST else "largest"
    part = "most" if verdict == "majority" else "the largest part"
    headline = f"The rotary pair with a wavelength of {lengths[0]} carries {part} of {where}: {size}"
    if verdict == "tie":
        headline = (
            f"Rotary pairs of {lengths[0]} and {lengths[1]} carry the largest parts of {where}, {size} each"
        )
    window = int(now["window"].iloc[0])
    length = now["wavelength"] / window
    ranges = (length.between(1, LONG), length < 1, length > LONG)
    middle, short, long = (percent(float(now["share"][here].sum())) for here in ranges)
    detail = joined(
        f"That is {bare(waves[0] / window, 1)} times the {tokens(window)} measured; the next pair, {lengths[1]}, "
        f"carries {percent(shares[1])}.",
        f"Pairs of one to {in_words(LONG)} windows carry {middle} of r_q together, shorter ones {short} and longer "
        f"ones {long}.",
    )
    meaning = joined(
        "r_q is large for what rises or falls over the whole window, as a wave at least twice as long does.",
        _constant(c, p),
    )
    rule = (
        "A wavelength's share is the size of its part of r_q over the sum of these sizes, as a mean over heads "
        "weighted by |r_q|."
    )
    text = (f"{headline}.", detail, meaning, "Shares of r_q have no standard error.", verdict)
    question, see = "Which wavelengths carry the position signal?", See("spectrum", "r_q", model, p)
    surprise = rank(LEVEL, shares[0] - shares[1])
    return Claim("wavelengths", question, *text, tuple(rows), c.best.name, rule, see, surprise)


def _above_noise(c: Context, p: Population) -> bool:
    """Whether mean r_q, the sum of its parts, is above its error and its null: else the parts are noise too."""
    parts = c.best.data["signal_q"].isel(checkpoint=c.last).sel(pair=slice(0, None)).to_numpy()
    rotating = np.isfinite(parts).any(axis=1)
    if not rotating.any():
        return False
    value = np.nansum(parts[rotating], axis=1).mean()
    _, se = c.best.level("r_q", p, c.last)
    null, _ = c.best.level("r_q_null", p, c.last)
    return bool(abs(value) > np.nan_to_num([null, 2 * se]).max())


def _constant(c: Context, p: Population) -> str:
    """How much of mean r_q the rotation of each head's constant mean query gives by itself."""
    if not c.best.known("r_q_const", p):
        return ""
    alone, whole = (c.best.level(m, p, c.last)[0] for m in ("r_q_const", "r_q"))
    most = ": most of r_q is the rotation of a constant vector" if alone > whole / 2 else ""
    return f"Rotating each head's mean query alone gives {bare(alone)} of mean r_q {bare(whole)}{most}."


def distance(c: Context) -> Claim | None:
    """The mean score of the key just before the query, above that of the average key."""
    if c.several_models or "distance_score" not in c.best.data:
        return None
    model, p = c.model(c.last), c.main
    curve = score_by_distance(c.best.data, model, c.best.where(p))
    if curve.empty:
        return None
    lags = [tokens(int(lag)) for lag in curve["distance"]]
    values, errors = curve["score"].tolist(), curve["se"].tolist()
    value, se, df = values[0], errors[0], c.best.groups - 1
    above, below = exceeds(value, se, 0.0, df), exceeds(-value, se, 0.0, df)
    verdict = "higher" if above else "lower" if below else "unclear"
    said = f"Position alone {'moves' if verdict == 'unclear' else 'puts'} the key {lags[0]} back"
    where = f"{c.heads()}{c.at(c.last)}"
    says = {
        "higher": f"{bare(value, 1)} logits above the average key{where}",
        "lower": f"{bare(-value, 1)} logits below the average key{where}",
        "unclear": f"by {bare(value, 1, signed=True)} logits{where}, which is 0 within the errors",
    }
    rows = [
        Row(
            f"mean score {lag} back, relative to the average key", "score", p, model, score, error, None,
            c.best.name, "logits", "level", float(at),
        )
        for lag, score, error, at in zip(lags, values, errors, curve["distance"], strict=True)
    ]  # fmt: skip
    rows[0] = replace(rows[0], verdict=verdict)
    high, low = (
        f"{lags[i]} back ({number(values[i], errors[i], signed=True)} logits)"
        for i in (int(np.argmax(values)), int(np.argmin(values)))
    )
    detail = sentence(f"{c.over}the mean curve{c.heads()} is highest {high} and lowest {low}")
    meaning = joined(
        "Predicted from mean queries and keys at each position, so content plays no part.", _near(c)
    )
    bound = "The error shown is the mean of the heads' errors, an upper bound of that of their mean."
    sign = f"It is above or below 0 with {percent(CONFIDENCE)} confidence."
    headline = f"{said} {says[verdict]}."
    text = ("Do heads prefer near keys?", headline, detail, meaning, "", verdict)
    surprise = rank(UNCLEAR if verdict == "unclear" else DIFFERENT, math.tanh(value) / 2)
    how, see = c.rule(bound, sign), c.see("distance", "score")
    return Claim("distance", *text, tuple(rows), c.best.name, how, see, surprise)


def _near(c: Context) -> str:
    """How many heads score highest within NEAR tokens, and which do not."""
    score = c.best.data["distance_score"].isel(checkpoint=c.last).to_numpy()
    here = c.best.mask(c.last, c.main) & np.isfinite(score).any(axis=1)
    top = c.best.data["distance"].to_numpy()[np.nanargmax(score[here], axis=1)]
    far = top > NEAR
    said = f"{int((~far).sum())} of {len(top)} {c.kind()} score highest within {tokens(NEAR)}"
    if 0 < far.sum() <= MOST_NAMED:
        names = zip(np.array(head_names(c.best.heads(here)))[far], top[far], strict=True)
        others = listing([f"{name} ({tokens(int(at))} back)" for name, at in names])
        said += f"; the other{'s are' if far.sum() > 1 else ' is'} {others}"
    return sentence(said)
