"""Seeds -> damaged and hostile variants of them, by a seeded generator: flips, cuts, splices and nasty words."""

from __future__ import annotations

import random
import re

# What breaks readers: extremes of numbers, ends of text, other encodings, other syntaxes.
WORDS = [
    *(
        b"0",
        b"-1",
        b"1",
        b"9" * 20,
        b"9" * 400,
        b"1e309",
        b"-1e309",
        b"1e-320",
        b"NaN",
        b"Infinity",
        b"nan",
        b"inf",
    ),
    *(
        b"\x00",
        b"\xff",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\\ud800",
        b"\\u0000",
        b"\xc2\xb2",
        b"\xd9\xa3",
    ),
    *(
        b"null",
        b"true",
        b"[]",
        b"{}",
        b'""',
        b"[" * 2000,
        b'{"a":' * 2000,
        b"'",
        b'"',
        b",",
        b"\n",
        b"\r",
        b"\t",
        b":",
    ),
    *(
        b"../",
        b"/",
        b"~nosuchuser",
        b"=1+1",
        b"\x1b[2J",
        b"</script>",
        b"$\\frac{",
        b"a" * 300,
        b"!!python/object:os.system",
    ),
    *(b"&a [*a]", b"&a", b"*a", b"<<: *a", b"- ", b"  ", b"%YAML 1.1", b"---", b"..."),
    *((255).to_bytes(8, "little"), (2**63).to_bytes(8, "little"), (2**31 - 1).to_bytes(4, "little")),
]
NUMBER = re.compile(rb"-?\d+(\.\d+)?")


def mutate(draw: random.Random, seeds: list[bytes]) -> bytes:
    """One to four changes to one of the seeds."""
    data = draw.choice(seeds)
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 4))):
        data = draw.choice(CHANGES)(draw, data, seeds)
    return data[:2_000_000]


def flip(draw: random.Random, data: bytes, seeds: list[bytes]) -> bytes:
    if not data:
        return data
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]


def set_byte(draw: random.Random, data: bytes, seeds: list[bytes]) -> bytes:
    if not data:
        return data
    place = draw.randrange(min(len(data), draw.choice((16, 4096, len(data)))))
    return data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :]


def cut(draw: random.Random, data: bytes, seeds: list[bytes]) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def drop(draw: random.Random, data: bytes, seeds: list[bytes]) -> bytes:
    start = draw.randrange(len(data) + 1)
    return data[:start] + data[start + draw.choice((1, 2, 8, 64)) :]


def repeat(draw: random.Random, data: bytes, seeds: list[bytes]) -> bytes:
    start = draw.randrange(len(data) + 1)
    part = data[start : start + draw.choice((1, 8, 64, 512))]
    return data[:start] + part * draw.choice((2, 3, 20)) + data[start:]


def insert(draw: random.Random, data: bytes, seeds: list[bytes]) -> bytes:
    place = draw.randrange(len(data) + 1)
    return data[:place] + draw.choice(WORDS) + data[place:]


def number(draw: random.Random, data: bytes, seeds: list[bytes]) -> bytes:
    """Another number, or no number, where one stands."""
    found = list(NUMBER.finditer(data[:100_000]))
    if not found:
        return insert(draw, data, seeds)
    match = draw.choice(found)
    return data[: match.start()] + draw.choice(WORDS) + data[match.end() :]


def splice(draw: random.Random, data: bytes, seeds: list[bytes]) -> bytes:
    other = draw.choice(seeds)
    return data[: draw.randrange(len(data) + 1)] + other[draw.randrange(len(other) + 1) :]


CHANGES = [flip, flip, set_byte, cut, drop, repeat, insert, number, number, splice]
