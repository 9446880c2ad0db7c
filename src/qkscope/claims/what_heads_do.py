"""Claims about what heads do: which roles they take on and when, and which measures predict it."""

from __future__ import annotations

from collections import Counter

from qkscope.claims.claim import Claim, Row
from qkscope.claims.context import CHANGED, DIFFERENT, LEVEL, UNCLEAR, Context, name_of, rank
from qkscope.results.roles import ROLES
from qkscope.stats.behaviour import BEHAVIOUR, RoleEmergence, rank_correlations, role_emergence
from qkscope.stats.contrast import contrast, exceeds
from qkscope.stats.levels import rule_of_contrast, rule_of_roles
from qkscope.words import bare, count, in_words, joined, listing, number, sentence, some

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
    # Roles acquired during training first, then by their number of heads.
    main = sorted(
        (each for each in found[c.main] if each.counts[-1]),
        key=lambda each: (all(one.after is None for one in each.acquired), -each.counts[-1]),
    )
    rows = [
        c.counted(f"{each.role.name} heads among {c.kind(p)}", each.role.variable, p, c.last, each.counts[-1])
        for p in c.populations
        for each in (main if p == c.main else found[p])
    ]
    shown, heads = main[:MOST_ROLES], found[c.main][0].heads
    headline = f"No {c.kind()[:-1]} clearly has one of the known roles{c.at(c.last)}"
    if shown:
        numbers = [(each.counts[-1], f"{each.role.name}{_when(c, each)}") for each in shown]
        parts = [f"{n} {'is' if n == 1 else 'are'} {role}" for n, role in numbers]
        headline = f"Of {heads} {c.kind()}{c.at(c.last)}, {listing(parts)}"
        if len(shown) > 1:
            headline += "; a head can be several of these"
    acquired = any(each.acquired and each.first[0].after is not None for each in main)
    verdict = "rises" if acquired else "level"
    rest = {p: [each for each in found[p] if each not in shown] for p in c.populations}
    detail = joined(
        *(_detail(c, each) for each in shown),
        *(sentence(f"{c.kind(p)}: {_others(some)}") for p, some in rest.items() if some),
    )
    meaning = (
        "A head can have several roles. A role is named only where its score is clear of its threshold; a head that "
        "attends to some tokens may still do anything with what it reads there."
    )
    see = c.see("roles", (shown or found[c.main])[0].role.variable)
    surprise = rank(CHANGED if verdict == "rises" else LEVEL, rows[0].value / max(1, heads))
    text = ("What do heads do, and since when?", sentence(headline), detail, meaning, c.caveat, verdict)
    return Claim("roles", *text, tuple(rows), c.best.name, c.rule(rule_of_roles()), see, surprise)


def _when(c: Context, found: RoleEmergence) -> str:
    """Between which checkpoints the first heads acquired a role."""
    if not c.training or not found.acquired:
        return ""
    first = found.first[0]
    if first.by == 0:
        return f" (since {c.labels[0]})"
    if first.after is None:
        return f" (the first by {c.labels[first.by]})"
    return f" (the first between {c.labels[first.after]} and {c.labels[first.by]})"


def _detail(c: Context, found: RoleEmergence) -> str:
    """Where the heads with a role are, and from which checkpoint on they have it."""
    if not found.acquired:
        return ""
    layers = [str(layer) for layer in sorted({each.layer for each in found.acquired})]
    named = listing(layers) if len(layers) <= MOST_LAYERS else some(layers, MOST_LAYERS)
    where = f"{found.role.name} heads are in layer{'s' if len(layers) > 1 else ''} {named}"
    if not c.training:
        return sentence(where)
    groups = Counter(each.by for each in found.acquired)
    times = ", ".join(f"{n} from {c.labels[by]}" for by, n in sorted(groups.items()))
    lost = f"; {count(len(found.lost), 'other head')} had the role earlier and lost it" if found.lost else ""
    faded = len(found.acquired) - found.counts[-1]  # acquired, but now close to the threshold
    unsure = f"; the role of {in_words(faded)} of them is no longer clear" if faded else ""
    return sentence(f"{where} ({times}){unsure}{lost}")


def _others(found: list[RoleEmergence]) -> str:
    """`1 broad head and 22 local heads; no sink or induction heads`."""
    numbers = [(each.counts[-1], each.role.name) for each in found]
    there = listing([f"{n} {role} head{'' if n == 1 else 's'}" for n, role in numbers if n])
    absent = [role for n, role in numbers if not n]
    last = [", ".join(absent[:-1]), *absent[-1:]]
    none = f"no {' or '.join(filter(None, last))} heads" if absent else ""
    return "; ".join(filter(None, (there, none)))


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
    what, where = WHAT_HEADS_DO[target], f"{c.heads()}{c.at(c.last)}"
    first, second = (name_of(each.geometry).removeprefix("mean ") for each in (best, last))
    values = bare(best.value), bare(last.value)
    verdict = gap.verdict
    if verdict == "higher" and not exceeds(best.value, best.se, abs(last.value), c.best.groups - 1):
        verdict = "unclear"  # the other correlation is negative, which predicts as well
    if verdict == "higher":
        headline = (
            f"{first} predicts where heads look better than {second}{where}: rank correlation {values[0]} against "
            f"{values[1]} with {what}"
        )
    else:
        headline = (
            f"It is not clear which measure best predicts {what}{where}: rank correlation {values[0]} for {first}, "
            f"{values[1]} for {second}"
        )
    chosen = (best, last)
    pairs = [(c.main, each) for each in chosen]
    pairs += [(p, each) for p in c.populations for each in found[p] if each not in chosen]
    rows = [
        Row(
            f"rank correlation of {each.geometry} with {each.behaviour}{c.heads(p)}",
            f"{each.geometry}~{each.behaviour}", p, c.model(c.last), each.value, each.se, window=c.best.name,
        )
        for p, each in pairs
    ]  # fmt: skip
    parts = []
    for y in dict.fromkeys(each.behaviour for each in found[c.main]):
        numbers = [f"{x.geometry} {number(x.value, x.se)}" for x in found[c.main] if x.behaviour == y]
        parts.append(f"with {WHAT_HEADS_DO[y]}: {', '.join(numbers)}")
    detail = sentence(f"{c.over}{c.kind()} ({best.heads}), {'; '.join(parts)}")
    meaning = (
        "Spearman's rank correlation over heads, between what a measure of queries and keys says and what the head's "
        "attention weights do. Errors are over documents; with other heads the correlations may differ more."
    )
    question = "Which measure predicts what heads do?"
    text = (question, sentence(headline), detail, meaning, c.caveat, verdict)
    how, see = c.rule(rule_of_contrast()), c.see("portrait", best.geometry)
    surprise = rank(DIFFERENT if verdict == "higher" else UNCLEAR, gap.difference)
    return Claim("behaviour", *text, tuple(rows), c.best.name, how, see, surprise)
