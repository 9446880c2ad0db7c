"""Format numbers, lists and sentences for readers: every number in a text is formatted here.

One rule of precision: an error has one significant digit and its value as many decimals. One minus sign, U+2212.
A window is always `1,024 tokens`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal

MINUS = "\u2212"
# What a number is counted in; `r` is a correlation, or another number without a unit.
Unit = Literal["r", "share", "heads", "logits", "nats per token"]
# Decimals of a number whose error is not known, and the most any number gets.
DECIMALS, MOST_DECIMALS = 2, 3
# HTML's own signs as entities: not every Markdown renderer accepts a backslash before them.
_MARKDOWN = {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {sign: f"\\{sign}" for sign in "\\`*_{}[]#|!~$"}
_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def decimals(se: float, digits: int = 1) -> int:
    """Decimals that show `digits` significant digits of an error; DECIMALS where there is none."""
    if not math.isfinite(se) or se <= 0.0:
        return DECIMALS + digits - 1
    places = max(0, -math.floor(math.log10(se)))
    # 0.096 is written 0.1: rounding up may take a decimal away
    if round(se, places) >= 10.0 ** (1 - places):
        places = max(0, places - 1)
    return min(MOST_DECIMALS, places) + digits - 1


def bare(value: float, places: int = DECIMALS, signed: bool = False) -> str:
    """`0.45`, `+0.05`, `−0.05`; nothing but zeros is `0`; a number that is not known is `unknown`."""
    if not math.isfinite(value):
        return "unknown"
    text = f"{value:+.{places}f}" if signed else f"{value:.{places}f}"
    return "0" if float(text) == 0.0 else text.replace("-", MINUS)


def number(value: float, se: float = math.nan, signed: bool = False, digits: int = 1) -> str:
    """`0.673 ± 0.004`; without the error where none is known or it is zero. `digits` are those of the error."""
    places = decimals(se, digits)
    if not (math.isfinite(se) and se > 0.0 and math.isfinite(value)):
        return bare(value, places, signed)
    zero = f"{0.0:.{places}f}"  # with an error, a zero shows its decimals
    text = bare(value, places, signed)
    return f"{zero if text == '0' else text} ± {_error(se, places)}"


def _error(se: float, places: int) -> str:
    """`0.004`; `<0.001` where rounding would leave nothing."""
    text = f"{se:.{places}f}"
    return text if float(text) > 0.0 else f"<{10.0**-places:.{places}f}"


def percent(share: float, se: float = math.nan) -> str:
    """`34%`, or `34 ± 2%`; a decimal more where the error or the share is below one percent."""
    if not math.isfinite(share):
        return "unknown"
    if math.isfinite(se) and se > 0.0:
        places = 1 if 100 * se < 0.95 else 0
        return f"{100 * share:.{places}f} ± {_error(100 * se, places)}%"
    places = 1 if 0.0005 <= share < 0.0095 else 0
    return f"{100 * share:.{places}f}%"


def points(difference: float, se: float = math.nan) -> str:
    """A difference of shares: `−23 ± 2 points`."""
    known = math.isfinite(se) and se > 0.0
    places = 1 if known and 100 * se < 0.95 else 0
    error = f" ± {_error(100 * se, places)}" if known else ""
    text = bare(100 * difference, places, signed=True) + error
    return f"{text} point" + ("" if text.lstrip(f"+{MINUS}") == "1" else "s")


def measured(value: float, se: float, unit: Unit, signed: bool) -> str:
    """A number in its unit: `0.45 ± 0.01`, `38 ± 3%`, `12 heads`, `+1.3 ± 0.2 logits`; a difference is `signed`."""
    if unit == "share":
        return points(value, se) if signed else percent(value, se)
    if unit == "heads":
        return f"{bare(value, 0, signed)} {'head' if abs(value) == 1 else 'heads'}"
    return number(value, se, signed) + (f" {unit}" if unit != "r" else "")


def count(n: int, noun: str, plural: str | None = None) -> str:
    """`one head`, `12 heads`, `no head`."""
    return f"{in_words(n)} {noun if n in (0, 1) else plural or noun + 's'}"


def in_words(n: int) -> str:
    """`five`, `12`."""
    return _COUNTS[n] if n < len(_COUNTS) else f"{n:,}"


def listing(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return "".join(parts) if len(parts) < 2 else ", ".join(parts[:-1]) + " and " + parts[-1]


def some(names: Sequence[str], most: int = 3) -> str:
    """The first of many: `a, b, c and 4 more`."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def tokens(window: int) -> str:
    """`1,024 tokens`, `1 token`."""
    return f"{window:,} token{'' if window == 1 else 's'}"


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def capital(text: str) -> str:
    """To begin a sentence. Symbols such as `r_q` stay as they are."""
    return text if text[1:2] in ("_", "") else text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """With a capital and a full stop; an empty text stays empty."""
    return f"{capital(text)}." if text and not text.endswith((".", "?")) else capital(text)


def once(texts: Iterable[str]) -> list[str]:
    """Texts without sentences that an earlier text has; texts that become empty are dropped."""
    said: set[str] = set()
    found = []
    for text in texts:
        fresh = [each for each in re.split(r"(?<=[.?]) (?=[A-Z±])", text) if each not in said]
        said.update(fresh)
        found.append(" ".join(fresh))
    return list(filter(None, found))


def joined(*parts: str) -> str:
    """Sentences in a row, without the empty ones."""
    return " ".join(part for part in parts if part)


def escape_markdown(text: str) -> str:
    """The text as Markdown that is shown literally: no markup, no HTML, no formulas."""
    return "".join(_MARKDOWN.get(sign, sign) for sign in text)
