"""Claims about attention scores: what determines where heads look, which wavelengths carry r_q, scores by distance."""

from __future__ import annotations

import math

from qkscope.anatomy_means import carried_by, score_by_distance
from qkscope.claims.claim import Claim, Population, Row, See
from qkscope.claims.context import Context
from qkscope.claims.templates import DIFFERENT, LEVEL, UNCLEAR, Largest, rank, rule
from qkscope.inference.contrast import exceeds
from qkscope.inference.levels import MOST, rule_of_sign
from qkscope.words import bare, joined, number, percent, sentence, tokens

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
    )


scores = Largest(
    id="scores",
    question="What determines where heads look?",
    parts=PARTS,
    verb=("explains", "explain"),
    whole="score variance",
    meaning="A query's scores vary over its keys with where a key is (position), what it is (key content) and how it "
    "matches the query (content match). The shares sum to 1 and do not depend on how queries and keys are scaled.",
    detail=_parts_detail,
    view="scores",
)


def wavelengths(c: Context) -> Claim | None:
    """The rotary pair that carries most of r_q at the last checkpoint."""
    table = c.results.spectrum_matched if c.matched else c.results.spectrum
    if c.several_models or table is None:
        return None
    model = c.model(c.last)
    found = carried_by(table, "q").dropna()
    now = found[found["model"] == model].sort_values("share", ascending=False, kind="stable")
    if len(now) < 2:
        return None
    p: Population = "RoPE" if c.other else "all"
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
    near = float(now[now["wavelength"].between(window, 5 * window)]["share"].sum())
    short = float(now[now["wavelength"] < window]["share"].sum())
    detail = [
        f"that is {bare((top.at or 0) / window, 1)} times the {tokens(window)} measured; the next pair, {waves[1]}, "
        f"carries {percent(second.value)}",
        f"pairs of one to five windows carry {percent(near)} together, shorter ones {percent(short)}",
    ]
    start = found[found["model"] == c.model(0)].sort_values("share", ascending=False, kind="stable")
    if c.training and len(start):
        wave, share = tokens(round(start["wavelength"].iloc[0])), percent(float(start["share"].iloc[0]))
        detail[1] += f"; at {c.labels[0]} the largest part, {share}, was at {wave}"
    meaning = (
        "A correlation with position rewards what grows steadily over the window. Rotary pairs that turn about once in "
        "one to five windows do; faster ones go up and down."
    )
    how = "A wavelength's share is the size of its part of r_q over the sum of these sizes, averaged over heads."
    text = (sentence(said), joined(*map(sentence, detail)), meaning, "Shares of r_q have no standard error.")
    question, see = "Which wavelengths carry the position signal?", See("spectrum", "r_q", model, p)
    surprise = rank(LEVEL, top.value - second.value)
    return Claim("wavelengths", question, *text, verdict, tuple(rows), c.best.name, how, see, surprise)


def _wave(c: Context, p: Population, model: str, wave: float, share: float) -> Row:
    what = f"share of r_q at a wavelength of {tokens(round(wave))}"
    return Row(what, "signal_q", p, model, float(share), window=c.best.name, unit="share", at=float(wave))


def distance(c: Context) -> Claim | None:
    """The mean score of the key just before the query, above that of the average key."""
    table = c.results.distance_matched if c.matched else c.results.distance
    if c.several_models or table is None:
        return None
    model, p = c.model(c.last), c.main
    cell, here = c.best.cells[c.last], c.best.mask(c.last, p)
    curve = score_by_distance(table[table["model"] == model], cell.heads[here])
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
    meaning = (
        "Predicted from mean queries and keys at each position, so content plays no part. The average over heads hides "
        "heads that prefer far keys: single heads have curves of their own."
    )
    bound = "The error shown is the mean of the heads' errors, an upper bound of that of their mean."
    curve_text = sentence(f"{c.over}the mean curve{c.heads()} is highest {ends[0]} and lowest {ends[1]}")
    text = (sentence(f"{says[verdict]}{c.heads()}{c.at(c.last)}"), curve_text, meaning, "", verdict)
    how, see = rule(c, joined(bound, rule_of_sign())), See("distance", "score", model, p)
    surprise = rank(UNCLEAR if verdict == "unclear" else DIFFERENT, math.tanh(value) / 2)
    return Claim(
        "distance", "Do heads prefer near keys?", *text, tuple(rows), c.best.name, how, see, surprise
    )
