"""Numbers and lists as they stand in a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def decimals(se: float) -> int:
    """As many decimals as the error makes meaningful: two, or three where it is below 0.005."""
    return 3 if se < 0.005 else 2


def number(value: float, se: float, signed: bool = False, places: int | None = None) -> str:
    """`0.67 ± 0.01`, or the bare number where no error is known or there is none."""
    places = decimals(se) if places is None else places
    text = f"{value:+.{places}f}" if signed else f"{value:.{places}f}"
    if float(text) == 0.0:
        text = text.replace("-", "").replace("+", "")
    text = text.replace("-", "\u2212")
    return text if math.isnan(se) or se == 0.0 else f"{text} ± {max(se, 10.0**-places):.{places}f}"


def percent(share: float, se: float = math.nan) -> str:
    """`34%`, or `34% ± 2`."""
    text = f"{100 * share:.0f}%"
    return text if math.isnan(se) or se == 0.0 else f"{text} ± {max(100 * se, 1):.0f}"


def count(n: int, noun: str, plural: str | None = None) -> str:
    """`one head`, `12 heads`, `no head`."""
    word = _WORDS[n] if n < len(_WORDS) else str(n)
    return f"{word} {noun if n in (0, 1) else plural or noun + 's'}"


def about(expected: float) -> str:
    """An expected count: `3` or, below ten, `0.4`."""
    return f"{expected:.0f}" if expected >= 10 else f"{expected:.1f}"


def listing(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    if len(parts) < 2:
        return "".join(parts)
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def lower_first(text: str) -> str:
    """To follow a colon or a comma. Symbols such as `RoPE` keep their capitals."""
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def tokens(window: int) -> str:
    """`4,096 tokens`."""
    return f"{window:,} tokens"
