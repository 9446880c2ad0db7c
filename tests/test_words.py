"""Numbers, lists and sentences as they are printed."""

from __future__ import annotations

import math

import pytest

from qkscope.words import (
    bare,
    capital,
    count,
    duration,
    escape_markdown,
    joined,
    listing,
    number,
    once,
    percent,
    points,
    sentence,
    some,
    tokens,
)


@pytest.mark.parametrize(
    ("value", "se", "text"),
    [
        (0.6734, 0.012, "0.67 ± 0.01"),
        (-0.4342, 0.0031, "−0.434 ± 0.003"),
        (-0.3142, 0.0096, "−0.31 ± 0.01"),
        (0.4142, 0.096, "0.4 ± 0.1"),
        (0.5, math.nan, "0.50"),
        (0.5, 0.0, "0.50"),
        (0.28221, 0.00068, "0.282 ± 0.001"),
        (0.28221, 0.0000001, "0.282 ± <0.001"),
        (12.34, 2.0, "12 ± 2"),
        (-0.0001, 0.001, "0.000 ± 0.001"),
        (0.002, 0.01, "0.00 ± 0.01"),
        (math.nan, math.nan, "unknown"),
    ],
)
def test_an_error_has_one_digit_and_its_value_as_many_decimals(value, se, text):
    assert number(value, se) == text


def test_differences_have_a_sign_and_nothing_has_none():
    assert number(0.1263, 0.0051, signed=True) == "+0.126 ± 0.005"
    assert number(-0.055, 0.003, signed=True) == "−0.055 ± 0.003"
    assert bare(-0.0004, signed=True) == "0"
    assert points(-0.2291, 0.021) == "−23 ± 2 points"
    assert points(0.002, 0.0) == "0 points"


def test_shares():
    assert percent(0.344, 0.021) == "34 ± 2%"
    assert percent(0.344, 0.0001) == "34.4 ± <0.1%"
    assert percent(0.344) == "34%"
    assert percent(math.nan) == "unknown"


def test_counts_lists_windows_and_sentences():
    assert [count(n, "head") for n in (0, 1, 2, 12, 1200)] == [
        "no head",
        "one head",
        "two heads",
        "12 heads",
        "1,200 heads",
    ]
    assert listing(["a", "b", "c"]) == "a, b and c"
    assert listing(["a"]) == "a"
    assert [some(list(names)) for names in ("", "ab", "abc", "abcde")] == [
        "",
        "a, b",
        "a, b, c",
        "a, b, c and 2 more",
    ]
    assert tokens(1024) == "1,024 tokens"
    assert [duration(s) for s in (4.6, 89, 90, 5000, 12600)] == ["5 s", "89 s", "2 min", "83 min", "3.5 h"]
    assert sentence("mean r_q rises") == "Mean r_q rises."
    assert sentence("r_q rises.") == "r_q rises."
    assert sentence("") == ""
    assert capital("r_q") == "r_q"
    assert joined("A.", "", "B.") == "A. B."
    assert once(["± is so. A.", "± is so. B at 1.5 times. C.", "A. C."]) == [
        "± is so. A.",
        "B at 1.5 times. C.",
    ]


def test_names_in_markdown_are_shown_literally():
    assert escape_markdown("a_b | <i>x</i> & [y](z)") == r"a\_b \| &lt;i&gt;x&lt;/i&gt; &amp; \[y\](z)"
