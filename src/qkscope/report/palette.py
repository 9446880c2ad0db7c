"""The page's colours: the figures' own on light paper, the same hues lighter on dark, as custom properties of CSS.

Nothing in js/ or style.css names a colour of a class, a population or a series: they read `--class-scores-0`,
`--role-0`, `--RoPE`, `--share_key`, `--r_q` and so on; classes and roles are numbered in the order of the page's lists.
"""

from __future__ import annotations

from collections.abc import Iterator

from qkscope.figures import style
from qkscope.report.columns import TAXONOMIES
from qkscope.results.taxonomy import CONTENT, POSITIONAL

DARK_PAPER = "#191b1f"
_LEAST_CONTRAST = 5.0  # of a colour on dark paper, as WCAG measures it: marks and the words beside them

# Ramps of a heat map: away from the paper for what grows from zero, orange to blue for what has a sign; of r_k (keys)
# red, teal to red.
RAMPS = {
    "light": {
        "sequential": style.SEQUENTIAL,
        "diverging": style.DIVERGING,
        "sequential_keys": style.DIVERGING_KEYS[2:],
        "diverging_keys": style.DIVERGING_KEYS,
    },
    "dark": {
        "sequential": ("#24282e", "#1d4a63", "#2a77a1", "#6cb3c6", "#dff3ee"),
        "diverging": ("#ffb27a", "#a35a24", "#24282e", "#2f6f9f", "#8fcbf5"),
        "sequential_keys": ("#24282e", "#6b2a2c", "#ff9d8c"),
        "diverging_keys": ("#8fe3dd", "#2a6f6c", "#24282e", "#a3453f", "#ff9d8c"),
    },
}
# Colours of classes by scores: positional heads have that of the scores' part, the others those of the published class
# that means the same.
_CLASS_COLOURS = style.CLASS_COLOURS | {
    POSITIONAL: style.PART_COLOURS["share_position"],
    CONTENT: style.CLASS_COLOURS["content-focused"],
}


def properties() -> str:
    """`:root { --class-published-0: light-dark(#1f77b4, #…); … }`, for the head of the page."""
    lines = [f"  --{name}: light-dark({light}, {dark});" for name, light, dark in _colours()]
    return "\n".join([":root {", *lines, "}"])


def _colours() -> Iterator[tuple[str, str, str]]:
    """(property, on light paper, on dark paper) of every colour that has a meaning."""
    yield "paper", style.PAPER, DARK_PAPER
    series = {
        "r_q": style.R_Q,
        "r_k": style.R_K,
        "variance": style.VARIANCE,
        "axis": style.AXIS,
        "sink": style.SINK,
    }
    roles = {f"role-{i}": colour for i, colour in enumerate(style.ROLE_COLOURS)}
    for name, colour in (
        series | style.CAUSE_COLOURS | style.ROPE_COLOURS | style.PART_COLOURS | roles
    ).items():
        yield name, colour, on_dark(colour)
    for taxonomy, names in TAXONOMIES.items():
        for code, name in enumerate(names):
            colour = _CLASS_COLOURS[name]
            # Unmeasured heads are hatched paper in both schemes.
            dark = DARK_PAPER if colour == style.PAPER else on_dark(colour)
            yield f"class-{taxonomy}-{code}", colour, dark
            yield f"on-class-{taxonomy}-{code}", style.ink_on(colour), style.ink_on(dark)


def on_dark(colour: str) -> str:
    """The colour mixed with as little white as makes it stand out on dark paper."""
    for part in range(0, 100, 2):
        mixed = style.pale(colour, part / 100)
        if contrast(mixed, DARK_PAPER) >= _LEAST_CONTRAST:
            return mixed
    return style.PAPER


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio of two colours, 1 to 21."""
    light, dark = sorted((style.luminance(one), style.luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
