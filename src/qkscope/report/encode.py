"""Numbers for the page: 16-bit integers of ten-thousandths that show the same three decimals as the table.

A correlation, its standard error, its null level, a share and an explained variance all fit: |x| <= 3.2767. Rounding
to four decimals and then, on screen, to three may differ from rounding once (0.12346 -> 0.1235 -> 0.124), so values
that would are moved to the neighbouring ten-thousandth. A column with larger numbers has a scale of its own. Missing
is -32768 in arrays and null in lists; the page learns these numbers from `ENCODING`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

SCALE = 10_000
MISSING = -32768
BYTE_SCALE = 1000
NO_CODE = 255  # the byte for no value: a head that a checkpoint lacks, a missing small number
_LIMIT = 32767
ENCODING = {"scale": SCALE, "missing": MISSING, "byteScale": BYTE_SCALE, "noCode": NO_CODE}


def quantise(values: ArrayLike) -> NDArray[np.int16]:
    """float (any shape) -> int16 ten-thousandths; `format(q / 10000, ".3f") == format(x, ".3f")` for |x| < 3.27."""
    x = np.asarray(values, dtype=np.float64)
    known = np.isfinite(x)
    scaled = np.where(known, x, 0.0) * SCALE
    q = np.clip(np.rint(scaled), -_LIMIT, _LIMIT).astype(np.int32)
    # Only a last digit of 5 can be rounded to the other side by the second rounding.
    doubtful = known & (np.abs(q) % 10 == 5) & ~_shows_itself(x, q)
    for index in zip(*np.nonzero(doubtful), strict=True):
        q[index] = _settle(float(x[index]), int(q[index]))
    return np.where(known, q, MISSING).astype(np.int16)


def _shows_itself(x: NDArray[np.float64], q: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Where x has four decimals to begin with and is no binary tie, which browsers round away from zero."""
    return np.asarray((x == q / SCALE) & (q.astype(np.int64) * 16 % SCALE != 0))


def _settle(x: float, q: int) -> int:
    """The neighbour of q (whose last digit is 5) that rounds to what x rounds to."""
    shown = round(abs(float(f"{x:.3f}")) * 1000)
    away = 1 if shown > abs(q) // 10 else -1
    return q + away if q > 0 else q - away


def pack(values: NDArray[Any]) -> str:
    """An array of any shape as base64 of its little-endian bytes, rows first."""
    order = values.astype(values.dtype.newbyteorder("<"))
    return base64.b64encode(np.ascontiguousarray(order).tobytes()).decode("ascii")


def pack_numbers(values: ArrayLike) -> str | None:
    """Quantised and packed; None when every value is missing, so that the page can say so."""
    x = np.asarray(values, dtype=np.float64)
    return pack(quantise(x)) if np.isfinite(x).any() else None


def pack_column(values: ArrayLike) -> dict[str, Any] | None:
    """A column with its scale: the largest power of ten, SCALE at most, at which its numbers fit 16 bits."""
    x = np.asarray(values, dtype=np.float64)
    known = x[np.isfinite(x)]
    if not len(known):
        return None
    most = float(np.abs(known).max())
    scale = float(SCALE)
    while most * scale > _LIMIT:
        scale /= 10
    if scale == SCALE:
        return {"values": pack(quantise(x)), "scale": SCALE}
    whole = np.rint(np.where(np.isfinite(x), x, 0.0) * scale)
    return {"values": pack(np.where(np.isfinite(x), whole, MISSING).astype(np.int16)), "scale": scale}


def pack_thousandths(values: ArrayLike) -> str | None:
    """Small numbers, 0 to 0.254, as one byte of thousandths each (255 is missing); None when one is larger.

    Half the size of `pack_numbers`, and all that three decimals show of a standard error.
    """
    x = np.asarray(values, dtype=np.float64)
    known = np.isfinite(x)
    if not known.any() or np.min(x[known]) < 0 or np.max(x[known]) > (NO_CODE - 1) / BYTE_SCALE:
        return None
    return pack(np.where(known, np.rint(np.where(known, x, 0.0) * BYTE_SCALE), NO_CODE).astype(np.uint8))


def listed(values: ArrayLike) -> list[float | None]:
    """The same numbers as a flat list, for the short columns; large ones are rounded to four decimals."""
    x = np.asarray(values, dtype=np.float64).ravel()
    q = quantise(x).tolist()
    large = np.abs(np.nan_to_num(x, posinf=0, neginf=0)) * SCALE > _LIMIT
    return [
        None if n == MISSING else round(float(v), 4) if big else n / SCALE
        for v, n, big in zip(x, q, large, strict=True)
    ]


def counted(values: Sequence[Any]) -> list[int | None]:
    """Whole numbers as a list; missing ones are None."""
    x = np.asarray(values, dtype=np.float64)
    return [int(v) if np.isfinite(v) else None for v in x]
