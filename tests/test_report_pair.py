"""Two runs on one page: the second one's numbers where the first one's stand, and what the page says of both."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from frames import with_heads, with_values
from report_data import Shape, column, make_results, page_data, write_results

from qkscope.claims import claims
from qkscope.cli import main
from qkscope.comparison import compare, match
from qkscope.errors import TableError
from qkscope.report import render, write_report
from qkscope.report.data import payload
from qkscope.report.page import render_pair
from qkscope.report.pair import OF_A_RUN, heads_differ, pair_payload, same_windows
from qkscope.results import Results, load_results

SHAPE = Shape(layers=4, heads=3, group=1, components=3)
NAMES = ["step1", "step2", "step3"]
HOSTILE = "</script><img src=x onerror=alert(1)>"


def words(page: str) -> str:
    """A page without the elements that keep labels of checkpoints in one piece."""
    return html.unescape(re.sub("</?span.*?>", "", page))


def run(folder: Path, names: list[str] = NAMES, *, name: str = "first", shift: float = 0.0) -> Results:
    results = make_results(folder, names, SHAPE, loo=True)
    moved = with_values(results, r_q=np.clip(results.own()["r_q"].to_numpy() + shift, 0, 0.999))
    return replace(moved, timeline=replace(results.timeline, name=name))


@pytest.fixture
def two(tmp_path: Path) -> tuple[Results, Results]:
    return run(tmp_path / "a"), run(tmp_path / "b", name="second", shift=0.1)


def test_the_first_run_is_on_the_page_as_it_is_alone(two):
    data = pair_payload(match(*two))
    alone = payload(two[0])
    assert {name: data[name] for name in alone} == alone
    assert data["runs"] == ["first", "second"]
    assert set(data["other"]) == set(OF_A_RUN)


def test_the_second_run_stands_row_by_row_beside_the_first(two, tmp_path):
    """Checkpoints under other names, in another order, one of them alone, and a head less in the first run."""
    ours = with_heads(two[0], lambda layer, head: layer > 0 or head > 0)
    theirs = run(tmp_path / "b", ["c", "b", "a"], name="second", shift=0.05)
    checkpoints = tuple(
        replace(s, step=n, phase="x") for s, n in zip(theirs.timeline.checkpoints, (2, 9, 0), strict=True)
    )
    theirs = replace(theirs, timeline=replace(theirs.timeline, checkpoints=checkpoints))
    same = tuple(replace(s, phase="x") for s in ours.timeline.checkpoints)
    ours = replace(ours, timeline=replace(ours.timeline, checkpoints=same))
    data = pair_payload(match(ours, theirs))
    assert data["checkpoints"]["model"] == ["step1", "step3"]
    assert data["other"]["checkpoints"]["model"] == ["a", "c"]
    expected = theirs.heads.set_index(["model", "layer", "head"])["r_q"]
    keys = list(zip(data["heads"]["layer"], data["heads"]["head"], strict=True))
    assert len(keys) == 11
    shown = column(data["other"]["own"], "r_q").reshape(2, 11)
    for row, model in enumerate(("a", "c")):
        wanted = [expected[model, layer, head] for layer, head in keys]
        assert shown[row] == pytest.approx(wanted, abs=1.5e-4)
    mean = data["other"]["own"]["averages"]["means"]["RoPE"]["r_q"]["mean"]
    kept = theirs.heads.query("(layer > 0 or head > 0) and rope == 1").groupby("model")["r_q"].mean()
    assert mean == pytest.approx([kept["a"], kept["c"]], abs=1.5e-4)


def test_a_matched_window_is_shown_where_both_have_the_same(tmp_path):
    folders = [write_results(tmp_path / name, SHAPE, (("S", 256, NAMES[:2]),)) for name in ("a", "b")]
    ours, theirs = map(load_results, folders)
    assert same_windows(match(ours, theirs)).theirs.matched() is not None
    longer = replace(theirs, timeline=replace(theirs.timeline, matched_window=512))
    assert same_windows(match(ours, longer)).ours.matched() is None
    none = ("cell", np.zeros(theirs.data.sizes["cell"], dtype=bool))
    alone = replace(theirs, data=theirs.data.assign_coords(matched=none))
    assert same_windows(match(ours, alone)).ours.matched() is None


def test_the_page_says_what_compare_says(two):
    page = words(render_pair(*two))
    found = compare(*two)
    assert found.sentence() in page
    rows = re.findall(r'<tr><th scope="row">mean r_q</th>', page)
    assert len(rows) >= 3
    listed = page.split("All numbers that differ")[1].split("</details>")[0]
    assert "mean r_k" not in listed.split("</table>")[0]


def test_the_first_sentence_counts_the_heads_that_differ(two):
    """Against numpy: heads whose r_q differs by more than two standard errors, RoPE and NoPE apart."""
    ours, theirs = (side.heads[side.heads["model"] == NAMES[-1]].reset_index() for side in two)
    change = np.abs(ours["r_q"] - theirs["r_q"])
    clear = change > 2 * np.hypot(ours["r_q_se"], theirs["r_q_se"])
    rope = ours["rope"] == 1
    said = heads_differ(match(*two))
    assert f"{clear[rope].sum()} of {rope.sum()} RoPE heads" in said
    assert f"{clear[~rope].sum()} of {(~rope).sum()} NoPE heads" in said
    assert f"{change.median():.3f}" in said
    opening = re.search(r'<h2 id="signal-title"[^>]*>(.*)</h2>', render_pair(*two))
    assert words(opening[1]) == said


def test_heads_that_moved_against_each_other_are_not_called_equal(two, tmp_path):
    """The averages agree while every head differs: the sentence is about the heads."""
    r_q = two[0].own()["r_q"].to_numpy()
    theirs = with_values(two[0], r_q=r_q + np.where(np.arange(r_q.shape[2]) % 2, 0.2, -0.2))
    said = heads_differ(match(two[0], theirs))
    assert "9 of 9 RoPE heads" in said
    assert "0.200" in said


def test_without_errors_the_sentence_counts_heads_that_are_not_equal(two):
    bare = [replace(side, data=side.data.assign(pc_r_q_se=side.data["pc_r_q_se"] * np.nan)) for side in two]
    last = [side.heads[side.heads["model"] == NAMES[-1]]["r_q"].to_numpy() for side in two]
    said = heads_differ(match(*bare))
    assert f"{(last[0] != last[1]).sum()} of {len(last[0])} heads" in said
    assert "error" not in said


def test_the_same_run_twice_has_the_same_heads(two):
    said = heads_differ(match(two[0], two[0]))
    assert "same" in said
    assert " of " in said
    assert not re.search(r"\d+ of \d+", said)


def test_each_run_has_its_claims_once(two):
    page = words(render_pair(*two))
    listed = page.split("What each run says by itself")[1].split("</details>")[0]
    for side in two:
        for one in claims(side):
            assert one.headline in listed


def test_names_of_both_runs_are_text(tmp_path):
    ours = run(tmp_path / "a", name=HOSTILE)
    theirs = run(tmp_path / "b", name=HOSTILE + "2", shift=0.1)
    page = render_pair(ours, theirs)
    assert HOSTILE not in page
    assert html.escape(HOSTILE) in page or "&lt;/script&gt;" in page
    assert page_data(page)["runs"] == [HOSTILE, HOSTILE + "2"]


def test_the_command_writes_beside_the_first_and_leaves_its_report(tmp_path):
    for name in ("a", "b"):
        write_results(tmp_path / name, SHAPE, (("S", 256, NAMES[:2]),))
    alone = write_report(tmp_path / "a").read_text()
    done = CliRunner().invoke(main, ["report", str(tmp_path / "a"), str(tmp_path / "b")])
    assert done.exit_code == 0, done.output
    written = Path(done.output.strip())
    assert written == tmp_path / "a" / "report_with_b.html"
    assert page_data(written.read_text())["runs"] == ["a", "b"]
    assert (tmp_path / "a" / "report.html").read_text() == alone == render(load_results(tmp_path / "a"))
    out = CliRunner().invoke(
        main, ["report", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "both.html")]
    )
    assert out.output.strip() == str(tmp_path / "both.html")


def test_runs_with_nothing_in_common_are_refused(two, tmp_path):
    other = run(tmp_path / "c", ["x", "y"])
    checkpoints = tuple(replace(s, step=None) for s in other.timeline.checkpoints)
    with pytest.raises(TableError, match="no checkpoint in common"):
        render_pair(two[0], replace(other, timeline=replace(other.timeline, checkpoints=checkpoints)))
