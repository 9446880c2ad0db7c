"""A results folder of version 0.1.0, made before anatomy, causes and manifests: it still loads, draws and reports."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from qkscope.claims import claims, summary
from qkscope.figures import draw
from qkscope.report import write_report
from qkscope.results import Results, load_results

FOLDER = Path(__file__).parent / "old_results"


@pytest.fixture(scope="module")
def old() -> Results:
    return load_results(FOLDER)


def test_it_loads_with_its_record_and_without_what_did_not_exist(old):
    assert [checkpoint.label for checkpoint in old.timeline.measured] == [
        "S1-0",
        "S1-180",
        "S3-760",
        "LC1-80",
    ]
    assert [checkpoint.window for checkpoint in old.timeline.measured] == [256, 256, 256, 1024]
    assert old.timeline.matched_window == 256
    assert len(old.heads) == 4 * 48
    assert old.components == 3
    assert old.matched() is old.axes is old.causes is None
    assert not {"share_key", "signal_q", "distance_score", "slope_k"} & set(map(str, old.data))
    assert old.heads["r_q_se"].notna().any()
    assert sum("earlier version" in warning for warning in old.record.warnings) == 1


def test_it_has_claims_without_those_that_need_errors_of_means(old):
    found = {claim.id for claim in claims(old)}
    assert "classes" in found
    assert found <= {"position", "emergence", "classes", "queries_keys", "long_context"}
    json.dumps(summary(old), allow_nan=False)


def test_it_is_drawn(old):
    drawing = draw("explained_variance", old, width=3.3)
    assert (drawing.data["population"] == "all").sum() == 4
    assert drawing.figure.axes


def test_it_is_reported(old, tmp_path):
    page = html.unescape(re.sub("</?span.*?>", "", write_report(old, tmp_path).read_text()))
    for claim in claims(old):
        assert claim.headline in page
    assert "A nano SmolLM3" in page
