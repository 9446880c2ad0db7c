"""The benchmarks' arithmetic and pages: what is kept is what is shown."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import kept
from benchmarks.harness import Row, Side, Size, exponent, interleave, to_base
from benchmarks.render import DOCS, page, plot, render, with_tables
from benchmarks.studies import GOALS, Measured, goals
from qkscope.measures.cell import measure_cell
from qkscope.results import load_results

MACHINE = {"cpu": "a processor", "cores": 2, "memory_gb": 8, "date": "2026-01-01 12:00"}
RECORD = {
    "note": "How.",
    "seconds": 3.0,
    "load": [0.1, 0.2],
    "machine": MACHINE | {"versions": {"numpy": "2"}},
}
TIMED = [
    Row("Speed", "theirs", "peer", [2.0, 4.0, 3.0], [4.0, 4.0, 4.0]),
    Row("Speed", "ours", "ours", [1.0, 1.0, 1.5], [2.0, 3.0, 1.0], {"peak MB": 1234.5678}),
]
GROWN = [
    Row("Growth with heads", "time", "ours", facts={"exponent": "1.0"}, curve=[[1, 2.0], [2, 4.0], [4, 8.0]])
]


def test_a_ratio_is_to_the_first_row_in_the_same_round():
    assert to_base(TIMED[1], TIMED[0]) == [0.5, 0.25, 0.5]
    line = next(line for line in page({"speed": _record(TIMED)}).splitlines() if line.startswith("| ours"))
    assert line == "| ours | ours | 1 | 0.5 | 0.25 to 0.5 | 2 | 0.5 | 0.25 to 0.75 | 1,235 |"


def test_rounds_have_another_order_each_time_and_the_first_does_not_count(monkeypatch):
    order: list[str] = []
    now = 0.0

    def work(name: str) -> None:
        nonlocal now
        order.append(name)
        now += len(order)

    monkeypatch.setattr("time.perf_counter", lambda: now)
    sides = [
        Side(name, "ours", lambda name=name: work(name), count=2, turns=1 + (name < "c")) for name in "abcd"
    ]
    rows = interleave("Order", sides, rounds=5)
    rounds = ["".join(order[i : i + 6]) for i in range(0, len(order), 6)]
    assert len(rounds) == 6
    assert all(sorted(each) == list("aabbcd") for each in rounds)
    assert len(set(rounds)) > 3
    # What comes later takes longer here: of two turns, the first is the shorter.
    first = {name: [6 * i + rounds[i].index(name) + 1 for i in range(1, 6)] for name in "abcd"}
    assert {row.name: [2 * seconds for seconds in row.wall] for row in rows} == first


def test_an_exponent_is_the_slope_of_logarithms_with_its_error():
    x = np.array([8.0, 16, 32, 64, 128])
    y = 3 * x**0.7 * np.array([1.01, 0.98, 1.0, 1.03, 0.99])
    columns = np.stack([np.log(x), np.ones(5)], 1)
    (slope, _), (left,), *_ = np.linalg.lstsq(columns, np.log(y), rcond=None)
    error = np.sqrt(left / 3 * np.linalg.inv(columns.T @ columns)[0, 0])
    assert exponent(np.stack([x, y], 1).tolist()) == pytest.approx((slope, error), rel=1e-10)


def test_a_part_done_again_takes_its_own_place_and_leaves_the_others(tmp_path):
    order = ["one", "two"]
    kept.keep(tmp_path, "two", RECORD, TIMED, order)
    kept.keep(tmp_path, "one", RECORD, GROWN, order)
    found = kept.keep(tmp_path, "two", RECORD, TIMED[:1], order)
    assert found == kept.read(tmp_path) == json.loads((tmp_path / "results.json").read_text())
    assert list(found) == order
    assert kept.rows_of(found["one"]) == GROWN
    assert len(found["two"]["rows"]) == 1


def test_everything_kept_is_on_the_page_and_in_the_plot(tmp_path):
    found = {"speed": _record(TIMED), "growth": _record(GROWN)}
    render(found, tmp_path)
    text = (tmp_path / "RESULTS.md").read_text()
    for word in (
        "## Speed",
        "## Growth with heads",
        "2 cores of a processor",
        "numpy 2",
        "How.",
        "load 0.1 before",
    ):
        assert word in text
    assert (tmp_path / "RESULTS.png").read_bytes().startswith(b"\x89PNG")
    plot(GROWN, tmp_path / "growth.png")


def test_tables_in_a_page_are_replaced_between_their_marks_alone():
    text = "before\n<!-- benchmarks: speed, gone -->\nold\n<!-- end -->\nafter\n"
    made = with_tables(text, {"speed": _record(TIMED)})
    assert made.startswith("before\n<!-- benchmarks: speed, gone -->\n\n**Speed**\n")
    assert made.endswith("<!-- end -->\nafter\n")
    assert "old" not in made
    assert with_tables(made, {"speed": _record(TIMED)}) == made


def test_goals_say_what_was_not_measured(tmp_path):
    kept.keep(
        tmp_path,
        "reading",
        RECORD,
        [Row("Reading", "load_results", "ours", [0.2, 0.6, 0.3], [1, 1, 1])],
        ["reading"],
    )
    rows = {row.name: row.facts for row in goals(Size(tmp_path))}
    assert len(rows) == len(GOALS)
    assert rows["load_results of 100,000 rows, s"] == {
        "goal": "at most 0.5",
        "measured": 0.3,
        "reached": "yes",
    }
    assert rows["file of that unit, MB"] == {"goal": "at most 19", "reached": "not measured: unit"}


def test_the_repository_shows_what_it_keeps():
    found = kept.read()
    assert (kept.HERE / "RESULTS.md").read_text() == page(found)
    assert with_tables(DOCS.read_text(), found) == DOCS.read_text()


def test_the_cost_of_a_study_rests_on_the_measured_share():
    """`validate` says how long passes take from the share of the machine's matrix product that was measured here."""
    from benchmarks.capture import BACKBONE, OF_PRODUCT
    from qkscope.run.preflight import REACHED

    found = kept.read()
    if "capture-2048" in found:
        share = Measured(found).fact("capture-2048", BACKBONE, OF_PRODUCT)
        assert 0.5 < share / REACHED < 2


def test_units_made_for_timing_are_put_together_as_those_of_a_run(tmp_path):
    from benchmarks.made import study_of_units
    from benchmarks.tables import write_study

    write_study(*study_of_units(tmp_path, 3, 1, 8, (16, 64), groups=2), str(tmp_path))
    results = load_results(tmp_path / "out")
    assert len(results.qk) == 3 * 16 * 8
    assert results.qk["r_q"].notna().all()


def test_adding_a_checkpoint_costs_that_checkpoint(tmp_path, monkeypatch):
    from benchmarks.made import study_of_units
    from qkscope.run import assemble

    measured: list[int] = []

    def counted(cell, groups):
        measured.append(cell.width)
        return measure_cell(cell, groups)

    monkeypatch.setattr(assemble, "measure_cell", counted)
    study, planned = study_of_units(tmp_path, 4, 1, 8, (16, 64), groups=2, growing=False)
    assert len(assemble.assemble(study, planned[:3], tmp_path).cells) == 6
    assert sorted(measured) == [16, 16, 16, 64, 64, 64]
    measured.clear()
    assert len(assemble.assemble(study, planned, tmp_path).cells) == 8
    assert sorted(measured) == [16, 64]


def _record(rows: list[Row]) -> dict[str, object]:
    return RECORD | {"rows": [kept._plain(row) for row in rows]}
