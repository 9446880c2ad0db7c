from __future__ import annotations

import pytest

from qkscope.errors import TableError
from qkscope.study.timeline import Timeline, TimelineCheckpoint, timeline_from_names

SMOLLM3 = [
    "lc-32k-to-64k-step-4000",
    "stage1-step-1200000",
    "lc-4k-to-32k-step-20000",
    "stage2-step-4200000",
    "stage1-step-40000",
    "lc-4k-to-32k-step-4000",
]


def test_order_and_phases_come_from_the_names():
    line = timeline_from_names(SMOLLM3)
    assert line.kind == "training"
    assert [checkpoint.label for checkpoint in line.checkpoints] == [
        "S1-40K",
        "S1-1.2M",
        "S2-4.2M",
        "LC1-4K",
        "LC1-20K",
        "LC2-4K",
    ]
    assert [(first, last) for _, first, last in line.phases] == [(0, 1), (2, 2), (3, 4), (5, 5)]


def test_names_that_tell_of_no_step_are_models():
    line = timeline_from_names(["llama", "qwen"])
    assert line.kind == "models"
    assert line.models == ["llama", "qwen"]


def test_names_beside_a_training_run_come_last():
    assert timeline_from_names(["main", "step10", "step2"]).models == ["step2", "step10", "main"]


def test_gaps_and_changes_of_window():
    checkpoints = (
        TimelineCheckpoint("a", "a", "one", 256),
        TimelineCheckpoint("b", "b", "one", 256, missing="no such revision"),
        TimelineCheckpoint("c", "c", "two", 1024),
        TimelineCheckpoint("d", "d", "two", 1024),
        TimelineCheckpoint("e", "e", "three", None),
    )
    line = Timeline("s", "S", checkpoints)
    assert line.models == ["a", "c", "d", "e"]
    assert line.phases == [("one", 0, 0), ("two", 1, 2), ("three", 3, 3)]
    assert line.window_changes == [1]
    assert line.checkpoint("b").missing == "no such revision"
    with pytest.raises(TableError, match="'x' is not in the study"):
        line.checkpoint("x")
