from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from qkscope.errors import TableError
from qkscope.results.taxonomy import (
    CLASSES,
    UNMEASURED,
    Thresholds,
    classify,
    periodic,
    polarity,
    score_class,
    transitions,
)


@pytest.mark.parametrize(
    ("r_q", "r_k", "expected"),
    [
        (0.71, 0.71, "position-dominated"),
        (0.71, -0.71, "position-dominated"),
        (0.71, 0.29, "Q-positional"),
        (0.71, -0.29, "Q-positional"),
        (0.29, 0.71, "K-positional"),
        (-0.04, -0.71, "K-positional"),
        (0.29, -0.29, "content-focused"),
        (0.5, 0.5, "mixed"),
        (0.7, 0.9, "mixed"),  # strict: a threshold itself is on neither side
        (0.9, 0.7, "mixed"),
        (0.9, 0.3, "mixed"),
        (0.3, 0.1, "mixed"),
        (np.nan, 0.9, UNMEASURED),
        (0.9, np.nan, UNMEASURED),
    ],
)
def test_classes(r_q, r_k, expected):
    assert classify([r_q], [r_k])[0] == expected


def test_other_thresholds():
    assert classify([0.6], [0.6], Thresholds(high=0.5))[0] == "position-dominated"
    with pytest.raises(TableError, match="low <= high"):
        Thresholds(high=0.2, low=0.3)


def test_score_classes_are_by_the_share_of_position():
    found = score_class([0.61, 0.6, 0.5, 0.4, 0.39, np.nan])
    assert found.tolist() == ["positional", "mixed", "mixed", "mixed", "content", UNMEASURED]


def test_periodic_vectors_follow_position_but_no_line():
    eta, r = [0.8, 0.7, 0.8, 0.8, np.nan, 0.8], [-0.29, 0.0, 0.3, -0.6, 0.0, np.nan]
    assert periodic(eta, r).tolist() == [True, False, False, False, False, False]


def test_polarity_is_the_sign_of_r_k():
    assert polarity([0.31, 0.3, 0, -0.3, -0.31, np.nan]).tolist() == [
        "concordant",
        "neutral",
        "neutral",
        "neutral",
        "discordant",
        UNMEASURED,
    ]


def test_transitions_count_head_by_head():
    """Totals stay the same while two heads trade places: only a head-by-head count shows it."""
    heads = pd.DataFrame(
        {
            "model": ["a"] * 3 + ["b"] * 4 + ["c"] * 1,
            "layer": [0, 0, 1, 0, 0, 1, 2, 0],
            "head": [0, 1, 0, 0, 1, 0, 0, 0],
            "class": [
                *("mixed", "content-focused", "mixed"),
                *("content-focused", "mixed", "mixed", "mixed"),
                "mixed",
            ],
        }
    )
    found = transitions(heads, ["a", "b", "c"])
    assert list(found.columns) == ["from_model", "to_model", "from_class", "to_class", "heads", "same_axis"]
    assert found["same_axis"].isna().all()
    rows = [tuple(row)[:5] for row in found.itertuples(index=False)]
    assert rows == [
        ("a", "b", "content-focused", "mixed", 1),
        ("a", "b", "mixed", "content-focused", 1),
        ("a", "b", "mixed", "mixed", 1),
        ("b", "c", "content-focused", "mixed", 1),
    ]
    assert set(found["from_class"]) <= {*CLASSES, UNMEASURED}
    known = transitions(heads.assign(same_axis=[np.nan] * 3 + [1, 0, 1, 1, np.nan]), ["a", "b", "c"])
    np.testing.assert_array_equal(known["same_axis"], [0, 1, 1, np.nan])


def test_one_checkpoint_has_no_transitions():
    heads = pd.DataFrame({"model": ["a"], "layer": [0], "head": [0], "class": ["mixed"]})
    assert transitions(heads, ["a"]).empty
