"""Which claim stands where: the opening over the picture, the causes second, the rest as cards by subject."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qkscope.claims import Claim

# How a verdict is marked, by what it says.
_TONES = {
    "rises": "up",
    "falls": "down",
    "rises and falls": "both",
    "flat": "still",
    "higher": "up",
    "lower": "down",
    "unclear": "unknown",
}

# The claim that the picture at the top shows, and the one about causes: the first of these that a study has.
_OPENING = ("position",)
_CAUSES = ("long_context",)

# What the views are about, in the order of the page.
SUBJECTS = {
    "signal": "Position signal",
    "emergence": "Layers",
    "scores": "Scores",
    "spectrum": "Wavelengths",
    "distance": "Distance",
    "causes": "Causes",
    "classes": "Classes",
    "portrait": "Heads",
}


@dataclass(frozen=True)
class Story:
    """The claims of a study in the order of the page; `cards` are the rest by subject."""

    opening: Claim | None
    causes: Claim | None
    cards: dict[str, list[Claim]]


def arrange(claims: Sequence[Claim]) -> Story:
    """Every claim stands once; what cannot be told comes last among its subject's cards."""
    opening, causes = _first(claims, _OPENING), _first(claims, _CAUSES)
    rest = [claim for claim in claims if claim is not opening and claim is not causes]
    rest.sort(key=lambda claim: claim.verdict == "unclear")
    cards = {name: [claim for claim in rest if claim.see.view == view] for view, name in SUBJECTS.items()}
    return Story(opening, causes, {name: members for name, members in cards.items() if members})


def _first(claims: Sequence[Claim], ids: Sequence[str]) -> Claim | None:
    by_id = {claim.id: claim for claim in claims}
    return next((by_id[name] for name in ids if name in by_id), None)


# The part of today's page that shows each view.
SECTIONS = {
    "signal": "signal",
    "emergence": "depth",
    "scores": "head",
    "spectrum": "head",
    "distance": "head",
    "causes": "causes",
    "classes": "taxonomy",
    "portrait": "portrait",
}


def section(claim: Claim) -> str:
    """Where the page shows a claim."""
    return SECTIONS[claim.see.view]


def tone(verdict: str) -> str:
    """How a verdict is coloured and marked."""
    return _TONES.get(verdict, "yes")
