"""Claims about what heads do: which roles they take on and when, and which measures predict it."""

from __future__ import annotations

from qkscope.claims.claim import Claim, Population, Row, See
from qkscope.claims.context import Context, name_of
from qkscope.claims.templates import CHANGED, DIFFERENT, LEVEL, UNCLEAR, rank, rule
from qkscope.results.roles import ROLES
from qkscope.stats.behaviour import (
    BEHAVIOUR,
    RankCorrelation,
    RoleEmergence,
    rank_correlations,
    role_emergence,
)
from qkscope.stats.contrast import contrast
from qkscope.stats.levels import rule_of_contrast, rule_of_roles
from qkscope.words import bare, count, joined, listing, number, sentence, some

MOST_ROLES = 3  # that a headline names
MOST_LAYERS = 4  # that a sentence lists
WHAT_HEADS_DO = {
    "attn_by_position": "how much of a head's attention position alone reproduces",
    "role_local": "attention within 16 tokens",
    "sink_score": "attention to the first token",
}


def roles(c: Context) -> Claim | None:
    """Which roles heads have at the last checkpoint, and between which checkpoints they acquired them."""
    known = [role for role in ROLES if c.best.known(role.variable, c.main)]
    if not known or c.several_models or c.best.basis != "documents" or not c.comparable:
        return None
    found = {p: [role_emergence(c.best, role, p) for role in known] for p in c.populations}
    main = sorted((each for each in found[c.main] if each.counts[-1]), key=_rank)
    rows = [_row(c, p, each) for p in c.populations for each in (main if p == c.main else found[p])]
    shown = main[:MOST_ROLES]
    if shown:
        parts = [f"{_counted(each)}{_when(c, each)}" for each in shown]
        headline = f"Among {found[c.main][0].heads} {c.kind()}{c.at(c.last)} are {listing(parts)}"
    else:
        headline = f"No {c.kind()[:-1]} clearly has one of the known roles{c.at(c.last)}"
    verdict = "rises" if any(each.acquired and each.first[0].after is not None for each in main) else "level"
    rest = {p: [each for each in found[p] if each not in shown] for p in c.populations}
    detail = joined(
        *(_detail(c, each) for each in shown),
        *(sentence(f"{c.kind(p)}: {_others(c, some)}") for p, some in rest.items() if some),
    )
    meaning = (
        "A head can have several roles. A role is named only where its score is clear of its threshold; a head that "
        "attends to a place may still do something else with what it reads there."
    )
    see = See("roles", (shown or found[c.main])[0].role.variable, c.model(c.last), c.main)
    surprise = rank(CHANGED if verdict == "rises" else LEVEL, rows[0].value / max(1, found[c.main][0].heads))
    text = ("What do heads do, and since when?", sentence(headline), detail, meaning, c.caveat, verdict)
    return Claim("roles", *text, tuple(rows), c.best.name, rule(c, rule_of_roles()), see, surprise)


def _rank(found: RoleEmergence) -> tuple[bool, int]:
    """Roles acquired during training first, then by their number of heads."""
    acquired = any(each.after is not None for each in found.acquired)
    return not acquired, -found.counts[-1]


def _noun(found: RoleEmergence) -> str:
    return f"{found.role.name} heads"


def _counted(found: RoleEmergence) -> str:
    """`1 broad head`, `22 local heads`."""
    return f"{found.counts[-1]} {_noun(found)}" if found.counts[-1] != 1 else f"1 {found.role.name} head"


def _row(c: Context, p: Population, found: RoleEmergence) -> Row:
    what, value = f"{_noun(found)} among {c.kind(p)}", float(found.counts[-1])
    return Row(what, found.role.variable, p, c.model(c.last), value, window=c.best.name, unit="heads")


def _interval(c: Context, after: int | None, by: int) -> str:
    if after is None:
        return f"at {c.labels[by]} already" if by == 0 else f"by {c.labels[by]}"
    return f"between {c.labels[after]} and {c.labels[by]}"


def _when(c: Context, found: RoleEmergence) -> str:
    if not c.training or not found.acquired:
        return ""
    first = found.first[0]
    verb = "there" if first.by == 0 else "first acquired"
    return f" ({verb} {_interval(c, first.after, first.by)})"


def _detail(c: Context, found: RoleEmergence) -> str:
    """Where the first heads with a role are, and when the others followed."""
    if not found.acquired:
        return ""
    noun = _noun(found)
    layers = sorted({each.layer for each in found.acquired})
    where = f"layer{'s' if len(layers) > 1 else ''} {some([str(layer) for layer in layers], MOST_LAYERS)}"
    if not c.training:
        return sentence(f"{noun} are in {where}")
    groups: dict[int, int] = {}
    for each in found.acquired:
        groups[each.by] = groups.get(each.by, 0) + 1
    times = [f"{n} by {c.labels[by]}" for by, n in sorted(groups.items())]
    lost = f"; {count(len(found.lost), 'other head')} had the role earlier and lost it" if found.lost else ""
    return sentence(f"{noun} are in {where} ({', '.join(times)}){lost}")


def _others(c: Context, found: list[RoleEmergence]) -> str:
    there = [_counted(each) for each in found if each.counts[-1]]
    absent = [each.role.name for each in found if not each.counts[-1]]
    none = (
        f"no {', '.join(absent[:-1])} or {absent[-1]} heads"
        if len(absent) > 1
        else f"no {''.join(absent)} heads"
    )
    parts = ([listing(there)] if there else []) + ([none] if absent else [])
    return "; ".join(parts)


def behaviour(c: Context) -> Claim | None:
    """Which measure of geometry predicts best what heads do."""
    if c.several_models or c.best.basis != "documents":
        return None
    found = {p: rank_correlations(c.best, p, c.last) for p in c.populations}
    target = next((y for y in BEHAVIOUR if any(each.behaviour == y for each in found[c.main])), None)
    main = [each for each in found[c.main] if each.behaviour == target]
    if target is None or len(main) < 2:
        return None
    best, *others = sorted(main, key=lambda each: -each.value)
    last = next((each for each in others if each.geometry == "abs_r_q"), others[-1])
    gap = contrast(best.samples, last.samples, looks=len(others))
    what = WHAT_HEADS_DO[target]
    names = {each.geometry: name_of(each.geometry).removeprefix("mean ") for each in main}
    if gap.verdict == "higher":
        headline = (
            f"{names[best.geometry]} predicts {what} better than {names[last.geometry]}{c.heads()}{c.at(c.last)}: "
            f"rank correlation {bare(best.value)} against {bare(last.value)}"
        )
    else:
        headline = (
            f"No measure clearly predicts {what} best{c.heads()}{c.at(c.last)}: rank correlation {bare(best.value)} "
            f"for {names[best.geometry]}, {bare(last.value)} for {names[last.geometry]}"
        )
    chosen = (best, last)
    rows = [_correlation(c, c.main, each) for each in chosen]
    rows += [_correlation(c, p, each) for p in c.populations for each in found[p] if each not in chosen]
    detail = _table(c, c.main, found[c.main])
    meaning = (
        "Spearman's rank correlation over heads, between what a measure of queries and keys says and what the head's "
        "attention weights do. Errors are over documents; with other heads the correlations may differ more."
    )
    see = See("portrait", best.geometry, c.model(c.last), c.main)
    tier = DIFFERENT if gap.verdict == "higher" else UNCLEAR
    question = "Which measure predicts what heads do?"
    text = (question, sentence(headline), detail, meaning, c.caveat, gap.verdict)
    how = rule(c, rule_of_contrast())
    return Claim("behaviour", *text, tuple(rows), c.best.name, how, see, rank(tier, gap.difference))


def _correlation(c: Context, p: Population, each: RankCorrelation) -> Row:
    what = f"rank correlation of {each.geometry} with {each.behaviour}{c.heads(p)}"
    measure = f"{each.geometry}~{each.behaviour}"
    return Row(what, measure, p, c.model(c.last), each.value, each.se, window=c.best.name)


def _table(c: Context, p: Population, found: list[RankCorrelation]) -> str:
    """All correlations of one population."""
    parts = []
    for y in dict.fromkeys(each.behaviour for each in found):
        values = [f"{each.geometry} {number(each.value, each.se)}" for each in found if each.behaviour == y]
        parts.append(f"with {WHAT_HEADS_DO[y]}: {', '.join(values)}")
    return sentence(f"{c.over}{c.kind(p)} ({found[0].heads}), {'; '.join(parts)}")
