"""Which heads lose a part: chosen by name, layer, class or measure, and random heads of the same layers beside them.

all                     every measured head
L4H2,L5H0               a list
layer:3   layer:3-5     layers
class:positional        a class of the scores (positional, mixed, content) or a published one (content-focused, ...)
role:sink               a role, where roles were measured
top:27:share_position   the 27 with the largest value of a measure; bottom:27:... the smallest
class:positional&rope   both: terms joined by & ; rope and nope are the heads of such layers
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from qkscope.errors import TableError
from qkscope.results.roles import with_role
from qkscope.results.taxonomy import SCORE_CLASSES

if TYPE_CHECKING:
    import pandas as pd

Head = tuple[int, int]
_LIST = re.compile(r"L\d+H\d+(,L\d+H\d+)*", re.ASCII)
_LAYERS = re.compile(r"layer:(\d+)(?:-(\d+))?", re.ASCII)
_TOP = re.compile(r"(top|bottom):(\d+):(\w+)", re.ASCII)
_FORMS = (
    "all, L4H2,L5H0, layer:3, layer:3-5, class:NAME, role:NAME, top:N:MEASURE, bottom:N:MEASURE, rope or nope"
)


def choose(text: str, table: pd.DataFrame) -> list[Head]:
    """The heads of `table` (a row per head: layer, head, classes, measures) that a text names, in order."""
    chosen = _rows(text, table)
    if not chosen.any():
        raise TableError(f"--heads {text}: no head of the {len(table)} measured ones")
    return sorted(_all(table[chosen]))


def standard_sets(table: pd.DataFrame) -> list[str]:
    """Every class of scores that has heads, RoPE and NoPE heads apart."""
    if "score_class" not in table:
        return ["all"]
    populations = ["&rope", "&nope"] if _has_both(table) else [""]
    sets = [f"class:{kind}{which}" for which in populations for kind in SCORE_CLASSES]
    return [text for text in sets if _rows(text, table).any()] or ["all"]


def _has_both(table: pd.DataFrame) -> bool:
    """Whether some layers rotate and others do not."""
    return set(table["rope"].dropna()) == {0.0, 1.0}


def draw(chosen: Sequence[Head], table: pd.DataFrame, count: int, seed: int) -> list[list[Head]]:
    """`count` different random sets of other heads, or all sets if there are fewer; none where no head is left.

    A set has as many heads of each layer as were chosen, or all others of the layer if it has fewer.
    """
    rng, wanted = random.Random(seed), Counter(layer for layer, _ in chosen)
    left = sorted(set(_all(table)) - set(chosen))
    others = {layer: [head for head in left if head[0] == layer] for layer in sorted(wanted)}
    sizes = {layer: min(wanted[layer], len(heads)) for layer, heads in others.items()}
    possible = math.prod(math.comb(len(heads), sizes[layer]) for layer, heads in others.items())
    found: dict[tuple[Head, ...], None] = {}
    while any(sizes.values()) and len(found) < min(count, possible):
        drawn = [rng.sample(heads, sizes[layer]) for layer, heads in others.items()]
        found[tuple(head for heads in drawn for head in sorted(heads))] = None
    return [list(drawn) for drawn in found]


def population(chosen: Sequence[Head], table: pd.DataFrame) -> str:
    """RoPE or NoPE where the model has both kinds of layers and all heads are of one; else all, or both."""
    if not _has_both(table):
        return "all"
    flags = table.set_index(["layer", "head"])["rope"].loc[list(chosen)]
    return "RoPE" if (flags == 1).all() else "NoPE" if (flags == 0).all() else "both"


def _rows(text: str, table: pd.DataFrame) -> pd.Series:
    """Which rows of the table a text names."""
    return reduce(and_, [_term(term.strip(), table) for term in text.split("&")])


def _term(term: str, table: pd.DataFrame) -> pd.Series:
    """Which rows of the table a term names."""
    if term == "all":
        return table["layer"] >= 0
    if term in ("rope", "nope"):
        return table["rope"] == float(term == "rope")
    if _LIST.fullmatch(term):
        return _listed(term, table)
    if found := _LAYERS.fullmatch(term):
        return table["layer"].between(int(found[1]), int(found[2] or found[1]))
    if found := _TOP.fullmatch(term):
        return _extreme(found[1] == "top", int(found[2]), found[3], table)
    kind, _, name = term.partition(":")
    if kind == "role" and name:
        return _of_role(name, table)
    if kind == "class" and name:
        return table[_class_column(name, table)] == name
    raise TableError(f"--heads: found {term!r}; expected {_FORMS}")


def _listed(term: str, table: pd.DataFrame) -> pd.Series:
    measured = "L" + table["layer"].astype(str) + "H" + table["head"].astype(str)
    named = {f"L{int(layer)}H{int(head)}" for layer, head in re.findall(r"L(\d+)H(\d+)", term)}
    if missing := sorted(named - set(measured)):
        raise TableError(
            f"--heads: {missing[0]} was not measured; there are layers {table['layer'].min()} to "
            f"{table['layer'].max()} with heads {table['head'].min()} to {table['head'].max()}"
        )
    return measured.isin(named)


def _extreme(largest: bool, count: int, name: str, table: pd.DataFrame) -> pd.Series:
    bare = name.removeprefix("abs_")
    if bare not in table or table[bare].dtype.kind != "f":
        known = [str(c) for c in table if table[c].dtype.kind == "f" and not str(c).endswith("_se")]
        raise TableError(f"--heads: {name!r} was not measured; measured are {', '.join(known)}")
    values = table[bare].abs() if bare != name else table[bare]
    return values.rank(method="first", ascending=not largest) <= count


def _of_role(name: str, table: pd.DataFrame) -> pd.Series:
    if "roles" not in table:
        raise TableError(f"--heads: role:{name}: roles of heads were not measured")
    here = with_role(table, name)
    if not here.any():
        there = sorted(set(table["roles"].str.split("; ").explode()) - {""})
        raise TableError(f"--heads: no head of role {name!r}; there are {', '.join(there) or 'none'}")
    return here


def _class_column(name: str, table: pd.DataFrame) -> str:
    """The column that has such a class."""
    columns = [c for c in ("score_class", "class") if c in table]
    if not columns:
        raise TableError(f"--heads: class:{name}: classes of heads were not measured")
    for column in columns:
        if name in set(table[column]) or (column == "score_class" and name in SCORE_CLASSES):
            return column
    there = sorted({str(each) for column in columns for each in table[column]})
    raise TableError(f"--heads: no head of class {name!r}; there are {', '.join(there)}")


def _all(table: pd.DataFrame) -> list[Head]:
    return list(zip(table["layer"].tolist(), table["head"].tolist(), strict=True))
