"""Claims about attention scores: what determines where heads look, which wavelengths carry r_q, scores by distance."""

from __future__ import annotations

import math

import numpy as np

from qkscope.claims.claim import Claim, Population, Row, See
from qkscope.claims.context import MOST_NAMED, Context, head_names
from qkscope.claims.templates import DIFFERENT, LEVEL, UNCLEAR, Largest, rank, rule
from qkscope.results.curves import carried_by, score_by_distance
from qkscope.results.taxonomy import SCORE_CLASSES, SCORE_HIGH, SCORE_LOW, score_class
from qkscope.stats.contrast import exceeds
from qkscope.stats.levels import MOST, rule_of_sign
from qkscope.words import bare, in_words, joined, listing, number, percent, sentence, tokens

LONG = 8  # windows: up to this length, wavelengths are counted together
NEAR = 16  # tokens: a key within these is near
PARTS = {"position": "share_positional", "key content": "share_key", "content match": "share_match"}


def _parts_detail(c: Context) -> str:
    said = []
    for p in c.populations:
        levels = [f"{name} {c.level(m, p, c.last)}" for name, m in PARTS.items()]
        said.append(f"{', '.join(levels)}{c.heads(p)}")
    query = c.level("share_query_position", c.main, c.last)
    return joined(
        sentence(f"{c.over}mean shares{c.at(c.last)} are {'; '.join(said)}"),
        sentence(f"position includes query-dependent position, {query}{c.heads()}"),
        _kinds(c),
    )


def _kinds(c: Context) -> str:
    """How many heads of each score class there are, and were at first."""

    def counts(p: Population, i: int) -> str:
        found = [(kind, int(_count(c, kind, p, i).value)) for kind in SCORE_CLASSES]
        return ", ".join(f"{count} {kind}" for kind, count in found if count)

    said = [f"{c.kind(p)}{c.at(c.last)}: {counts(p, c.last)}" for p in c.populations]
    before = f" ({c.labels[0]}: {counts(c.main, 0)})" if c.training and c.comparable else ""
    limits = f"positional above {percent(SCORE_HIGH)} of score variance, content below {percent(SCORE_LOW)}"
    return sentence(
        f"by score class ({limits}), {said[0]}{before}{''.join(f'; {rest}' for rest in said[1:])}"
    )


def _count(c: Context, kind: str, p: Population, i: int) -> Row:
    here = score_class(c.best.value("share_positional", i)[c.best.mask(i, p)]) == kind
    what = f"{kind} {c.kind(p)} (score class)"
    return Row(
        what, f"score_class {kind}", p, c.model(i), float(here.sum()), window=c.best.name, unit="heads"
    )


def _counts(c: Context) -> tuple[Row, ...]:
    ends = dict.fromkeys((c.last, 0) if c.training and c.comparable else (c.last,))
    return tuple(_count(c, kind, p, i) for i in ends for p in c.populations for kind in SCORE_CLASSES)


scores = Largest(
    id="scores",
    question="What determines where heads look?",
    parts=PARTS,
    verb=("explains", "explain"),
    whole="score variance",
    meaning="A query's scores vary over its keys with where a key is (position), what it is (key content) and how it "
    "matches the query (content match). The shares sum to 1.",
    detail=_parts_detail,
    more=_counts,
    view="scores",
)


def wavelengths(c: Context) -> Claim | None:
    """The rotary pair that carries most of r_q at the last checkpoint."""
    data = c.best.data
    if c.several_models or "signal_q" not in data:
        return None
    p: Population = "RoPE" if c.other else "all"
    model = c.model(c.last)
    if not _above_noise(c, p):
        return None
    found = carried_by(data, "q").dropna()
    now = found[found["model"] == model].sort_values("share", ascending=False, kind="stable")
    if len(now) < 2:
        return None
    window = int(now["window"].iloc[0])
    rows = [
        _wave(c, p, model, wave, share) for wave, share in zip(now["wavelength"], now["share"], strict=True)
    ]
    top, second = rows[0], rows[1]
    tie = percent(top.value) == percent(second.value)
    verdict = "tie" if tie else "majority" if top.value > MOST else "largest"
    waves = [tokens(round(row.at or 0)) for row in rows[:2]]
    where, size = f"r_q{c.heads(p)}{c.at(c.last)}", percent(top.value)
    part = "most" if verdict == "majority" else "the largest part"
    said = f"The rotary pair with a wavelength of {waves[0]} carries {part} of {where}: {size}"
    if verdict == "tie":
        said = f"Rotary pairs of {waves[0]} and {waves[1]} carry the largest parts of {where}, {size} each"
    length = now["wavelength"] / window
    some = [
        percent(float(now["share"][here].sum()))
        for here in (length.between(1, LONG), length < 1, length > LONG)
    ]
    detail = [
        f"that is {bare((top.at or 0) / window, 1)} times the {tokens(window)} measured; the next pair, {waves[1]}, "
        f"carries {percent(second.value)}",
        f"pairs of one to {in_words(LONG)} windows carry {some[0]} of r_q together, shorter ones {some[1]} and longer "
        f"ones {some[2]}",
    ]
    meaning = joined(
        "r_q rewards what rises or falls steadily, as a wave at least twice as long as the window can.",
        _constant(c, p),
    )
    how = (
        "A wavelength's share is the size of its part of r_q over the sum of these sizes, as a mean over heads "
        "weighted by |r_q|."
    )
    text = (sentence(said), joined(*map(sentence, detail)), meaning, "Shares of r_q have no standard error.")
    question, see = "Which wavelengths carry the position signal?", See("spectrum", "r_q", model, p)
    surprise = rank(LEVEL, top.value - second.value)
    return Claim("wavelengths", question, *text, verdict, tuple(rows), c.best.name, how, see, surprise)


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
    return sentence(
        f"rotating each head's mean query alone gives {bare(alone)} of mean r_q {bare(whole)}{most}"
    )


def _wave(c: Context, p: Population, model: str, wave: float, share: float) -> Row:
    what = f"share of r_q at a wavelength of {tokens(round(wave))}"
    return Row(what, "signal_q", p, model, float(share), window=c.best.name, unit="share", at=float(wave))


def _near(c: Context) -> str:
    """How many heads score highest within NEAR tokens, and which do not."""
    score = c.best.data["distance_score"].isel(checkpoint=c.last).to_numpy()
    here = c.best.mask(c.last, c.main) & np.isfinite(score).any(axis=1)
    top = c.best.data["distance"].to_numpy()[np.nanargmax(score[here], axis=1)]
    far = top > NEAR
    said = f"{int((~far).sum())} of {len(top)} {c.kind()} score highest within {tokens(NEAR)}"
    if 0 < far.sum() <= MOST_NAMED:
        names = np.array(head_names(c.best.heads(here)))[far]
        places = zip(names.tolist(), top[far].tolist(), strict=True)
        others = listing([f"{name} ({tokens(int(at))} back)" for name, at in places])
        said += f"; the other{'s are' if far.sum() > 1 else ' is'} {others}"
    return sentence(said)


def distance(c: Context) -> Claim | None:
    """The mean score of the key just before the query, above that of the average key."""
    if c.several_models or "distance_score" not in c.best.data:
        return None
    model, p = c.model(c.last), c.main
    curve = score_by_distance(c.best.data, model, c.best.where(p))
    if curve.empty:
        return None
    near = curve.iloc[0]
    value, se = float(near["score"]), float(near["se"])
    df = c.best.groups - 1
    above, below = exceeds(value, se, 0.0, df), exceeds(-value, se, 0.0, df)
    verdict = "higher" if above == "yes" else "lower" if below == "yes" else "unclear"
    lag = tokens(int(near["distance"]))
    says = {
        "higher": f"Position alone puts the key {lag} back {bare(value, 1)} logits above the average key",
        "lower": f"Position alone puts the key {lag} back {bare(-value, 1)} logits below the average key",
        "unclear": f"Position alone moves the key {lag} back by {bare(value, 1, signed=True)} logits, which is not "
        "clear of noise",
    }
    top, low = curve.loc[curve["score"].idxmax()], curve.loc[curve["score"].idxmin()]
    ends = [
        f"{tokens(int(e['distance']))} back ({number(float(e['score']), float(e['se']), signed=True)} logits)"
        for e in (top, low)
    ]
    rows = [
        Row(
            f"mean score {tokens(int(row['distance']))} back, relative to the average key",
            "score", p, model, float(row["score"]), float(row["se"]), None, c.best.name, "logits",
            verdict if i == 0 else "level", float(row["distance"]),
        )
        for i, row in enumerate(curve.to_dict("records"))
    ]  # fmt: skip
    meaning = joined(
        "Predicted from mean queries and keys at each position, so content plays no part.",
        _near(c),
    )
    bound = "The error shown is the mean of the heads' errors, an upper bound of that of their mean."
    curve_text = sentence(f"{c.over}the mean curve{c.heads()} is highest {ends[0]} and lowest {ends[1]}")
    text = (sentence(f"{says[verdict]}{c.heads()}{c.at(c.last)}"), curve_text, meaning, "", verdict)
    how, see = rule(c, joined(bound, rule_of_sign())), See("distance", "score", model, p)
    surprise = rank(UNCLEAR if verdict == "unclear" else DIFFERENT, math.tanh(value) / 2)
    return Claim(
        "distance", "Do heads prefer near keys?", *text, tuple(rows), c.best.name, how, see, surprise
    )
