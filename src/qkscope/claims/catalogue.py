"""All claims, and those that a study allows, ranked: `all_claims`, and `claims`, the first of them."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from qkscope.claims.attention_scores import distance, scores, wavelengths
from qkscope.claims.causes import causes
from qkscope.claims.claim import Claim
from qkscope.claims.classes import classes, linearity, queries_keys
from qkscope.claims.context import Context
from qkscope.claims.dependence import ablation
from qkscope.claims.trends import between_models, emergence, long_context, plasticity, position
from qkscope.claims.what_heads_do import behaviour, roles
from qkscope.results import Results

# Each gives its claim, or None where the study was not measured for it.
CLAIMS: tuple[Callable[[Context], Claim | None], ...] = (
    position,
    between_models,
    emergence,
    roles,
    scores,
    behaviour,
    wavelengths,
    classes,
    queries_keys,
    long_context,
    causes,
    linearity,
    distance,
    plasticity,
    ablation,
)

MOST_CLAIMS = 10  # claims that a study has

# By the identity of the study: a Results is frozen, and its tables cannot be hashed.
_KNOWN: dict[int, tuple[Claim, ...]] = {}


def claims(results: Results) -> tuple[Claim, ...]:
    """The claims about a study, most surprising first; the least surprising beyond MOST_CLAIMS are left out."""
    return all_claims(results)[:MOST_CLAIMS]


def all_claims(results: Results) -> tuple[Claim, ...]:
    """Every claim that a study allows, most surprising first: a figure quotes its own, however many there are."""
    key = id(results)
    if key not in _KNOWN:
        context = Context(results)
        answers = [answer(context) for answer in CLAIMS] if len(context.best) else []
        _KNOWN[key] = tuple(sorted(filter(None, answers), key=lambda claim: -claim.surprise))
        weakref.finalize(results, _KNOWN.pop, key, None)
    return _KNOWN[key]
