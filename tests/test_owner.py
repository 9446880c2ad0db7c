"""Whose a results folder is: each way to lose finished results, or files that are not ours, is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from pathlib import Path

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from families import build, tokens
from small_study import make_study, run_undrawn, undrawn, write_texts
from test_nano import SMALL
from tiny import save_checkpoint

from qkscope.cli import main
from qkscope.errors import StoreError, StudyError
from qkscope.figures import CATALOGUE, draw_all
from qkscope.nano import demo
from qkscope.report import write_report
from qkscope.results import load_results, lock, manifest, owner
from qkscope.run import run, status
from qkscope.scanning.analyze import analyze
from qkscope.scanning.scan import scan

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = [tokens(1, 40, seed=n)[0].tolist() for n in range(4)]
SCAN = {"texts": TEXTS, "max_length": 40, "groups": 2, "components": 2, "measures": []}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the cache of tokens, and what a process that is suspended prepares."""
    found = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {
        str(name): path.read_bytes()
        for name, path in found.items()
        if name.parts[0] != "tokens" and not name.parts[0].startswith(".")
    }


def change(study: Path, **changes) -> None:
    data = yaml.safe_load(study.read_text())
    study.write_text(yaml.safe_dump(data | changes, sort_keys=False))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study and the folder of its run, made once; tests copy them."""
    folder = tmp_path_factory.mktemp("made")
    study = make_study(folder / "study", groups=2, count=4)
    run_undrawn(study, folder / "out")
    return folder


@pytest.fixture
def study(made, tmp_path, no_drawing):
    shutil.copytree(made / "study", tmp_path / "study")
    shutil.copytree(made / "out", tmp_path / "out")
    return tmp_path / "study" / "study.yaml"


@pytest.fixture
def out(study, tmp_path):
    return tmp_path / "out"


@pytest.fixture(scope="module")
def scanned(tmp_path_factory, one_thread):
    folder = tmp_path_factory.mktemp("scanned") / "scan"
    scan(build("llama"), out=folder, save_vectors=1.0, **SCAN)
    return folder


# --- the demo ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown(tmp_path_factory, one_thread):
    """A finished demo, made once."""
    folder = tmp_path_factory.mktemp("shown")
    with pytest.MonkeyPatch.context() as patch:
        undrawn(patch)
        demo(folder, 0, SMALL)
    return folder


@pytest.fixture
def demonstrated(shown, tmp_path, no_drawing):
    """The finished demo, where it was made: its tables name that folder. Put back after the test."""
    shutil.copytree(shown, tmp_path / "kept")
    yield shown
    shutil.rmtree(shown)
    shutil.copytree(tmp_path / "kept", shown)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(
    "theirs", ["corpus/mine.txt", "checkpoints/stage1-step-2/model.safetensors", "nano.yaml", "report.html"]
)
def test_the_demo_leaves_a_users_files_alone(tmp_path, theirs, replace):
    path = tmp_path / theirs
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("years of work")
    with pytest.raises(StoreError, match=r"(?s)--out") as raised:
        demo(tmp_path, 0, SMALL, replace=replace)
    assert path.name in str(raised.value) or path.parent.name in str(raised.value)
    assert contents(tmp_path) == {theirs: b"years of work"}


def test_another_seed_does_not_take_the_place_of_a_finished_demo(demonstrated):
    (demonstrated / "corpus" / ".hidden").write_text("mine")
    before = contents(demonstrated)
    with pytest.raises(StoreError, match=r"(?s)seed 0.*--replace"):
        demo(demonstrated, 1, SMALL)
    assert contents(demonstrated) == before
    demo(demonstrated, 0, SMALL)
    assert contents(demonstrated) == before, "the same demo has nothing to do"
    mine = demonstrated / "checkpoints" / "stage1-step-0" / "notes.txt"
    mine.write_text("mine")
    with pytest.raises(StoreError, match=r"notes\.txt"):
        demo(demonstrated, 1, SMALL, replace=True)
    mine.unlink()
    assert contents(demonstrated) == before
    demo(demonstrated, 1, SMALL, replace=True)
    after = contents(demonstrated)
    assert after["qk.csv"] != before["qk.csv"]
    assert after["corpus/.hidden"] == b"mine"
    assert sum(name.startswith("corpus/") for name in after) == SMALL.held_out + 1


def test_a_demo_that_an_earlier_version_made_goes_on(demonstrated):
    record = demonstrated / "training.json"
    log = json.loads(record.read_text())
    del log["corpus"]
    record.write_text(json.dumps(log))
    made_by_older(demonstrated)
    before = contents(demonstrated)
    demo(demonstrated, 0, SMALL)
    assert {name: data for name, data in contents(demonstrated).items() if name.endswith(".csv")} == {
        name: data for name, data in before.items() if name.endswith(".csv")
    }
    assert json.loads(record.read_text())["checkpoints"] == log["checkpoints"]


# --- runs ----------------------------------------------------------------------------------------------------------


def other_weights(study):
    save_checkpoint(study.parent / "checkpoint-2", seed=9)


def without_a_checkpoint(study):
    data = yaml.safe_load(study.read_text())
    data["phases"][0]["checkpoints"] = [{"folder": "checkpoint-1"}]
    change(study, phases=data["phases"])


def another_study(study):
    for number in (1, 2, 3):
        save_checkpoint(study.parent / f"other-{number}", seed=number + 10)
    write_texts(study.parent / "other-texts", count=5, seed=3)
    phases = [{"window": 16, "checkpoints": [{"folder": f"other-{n}"} for n in (1, 2, 3)]}]
    change(study, corpus="other-texts", phases=phases)


LESS = {
    "another study of this name": (another_study, "checkpoint-1"),
    "a checkpoint left out": (without_a_checkpoint, "checkpoint-2"),
    "other weights": (other_weights, "checkpoint-2"),
    "other texts": (lambda study: write_texts(study.parent / "texts", count=4, seed=5), "texts"),
    "one more text": (lambda study: write_texts(study.parent / "texts", count=5), "texts"),
    "fewer heads": (lambda study: change(study, heads={"sample": 3, "seed": 0}), "heads"),
    "a window left out": (lambda study: change(study, windows=[16], phases=one_window(study)), "48"),
    "fewer measures": (lambda study: change(study, measures=["rotation"]), "per_kind"),
    "other groups": (lambda study: change(study, groups=3), "groups"),
    "another type": (lambda study: change(study, dtype="bfloat16"), "dtype"),
}


def one_window(study):
    data = yaml.safe_load(study.read_text())
    return [phase | {"window": 16} for phase in data["phases"]]


def made_by_older(folder: Path) -> None:
    """The folder as a version before these records left it: with a manifest of files alone."""
    found = json.loads((folder / "manifest.json").read_text())
    old = {name: found[name] for name in ("made_from", "finished", "tables")}
    drawn = {name: entry[:2] for name, entry in found["drawn"].items()}
    (folder / "manifest.json").write_text(json.dumps(old | {"format": 1, "drawn": drawn}))


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("what", LESS)
def test_a_study_that_would_lose_finished_numbers_is_refused(study, out, what, older):
    edit, named = LESS[what]
    if older:
        made_by_older(out)
    before = contents(out)
    edit(study)
    with pytest.raises(StoreError, match=r"(?s)--out.*--replace") as raised:
        run(study, out)
    assert named in str(raised.value)
    assert contents(out) == before
    with pytest.raises(StoreError, match=named):
        run(study, out, shard="1/1")
    assert contents(out) == before


@pytest.mark.parametrize(
    ("part", "value"), [("heads", "x"), ("window", "long"), ("weights", None), ("colour", "red")]
)
def test_a_damaged_record_is_a_sentence(study, out, part, value):
    path = out / "manifest.json"
    found = json.loads(path.read_text())
    found["holds"]["checkpoints"]["checkpoint-1"][part] = value
    path.write_text(json.dumps(found))
    with pytest.raises(StoreError, match=r"manifest\.json: damaged"):
        run(study, out)


def test_replace_says_so_explicitly(study, out):
    another_study(study)
    (out / "qk_mine.csv").write_text("mine")
    before = set(contents(out))
    done = CliRunner().invoke(main, ["run", str(study), "--out", str(out), "--replace"])
    assert done.exit_code == 0, done.output
    assert set(load_results(out).qk["model"]) == {"other-1", "other-2", "other-3"}
    assert "measures.safetensors" in before
    assert (out / "qk_mine.csv").read_text() == "mine"
    assert status(out, verify=True).damage == ()


@pytest.mark.parametrize("older", [False, True])
def test_a_study_may_grow(study, out, older):
    """More checkpoints, windows, measures: the same study; finished units that still hold are not done again."""
    if older:
        made_by_older(out)
    save_checkpoint(study.parent / "checkpoint-4", seed=4)
    data = yaml.safe_load(study.read_text())
    data["phases"][1]["checkpoints"].append({"folder": "checkpoint-4"})
    change(
        study, phases=data["phases"], title="Another title", measures=["rotation", "per_kind", "plasticity"]
    )
    rows = load_results(out).qk
    results = run(study, out)
    kept = results.qk[results.qk["model"] != "checkpoint-4"].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, rows)
    assert "plasticity" in results.data


def test_a_longer_window_is_the_same_study(study, out):
    change(study, windows=[16, 32, 48])
    assert run(study, out).timeline.matched_window == 16


def test_more_heads_are_the_same_study(study, tmp_path):
    change(study, heads={"sample": 3, "seed": 0})
    run(study, tmp_path / "few")
    change(study, heads="all")
    assert len(run(study, tmp_path / "few").heads) == 24


def test_a_checkpoint_that_never_was_measured_may_go(study, tmp_path):
    shutil.rmtree(study.parent / "checkpoint-2")
    with pytest.raises(StudyError, match="checkpoint-2"):
        run(study, tmp_path / "fresh")
    without_a_checkpoint(study)
    assert run(study, tmp_path / "fresh").timeline.models == ["checkpoint-1", "checkpoint-3"]


def test_a_measured_checkpoint_that_is_gone_leaves_its_numbers_in_the_tables(study, out):
    before = {name: data for name, data in contents(out).items() if name.endswith(".csv")}
    shutil.rmtree(study.parent / "checkpoint-2")
    with pytest.raises(StoreError, match=r"checkpoint-2 was measured"):
        run(study, out)
    assert {name: data for name, data in contents(out).items() if name.endswith(".csv")} == before


def test_a_folder_without_finished_tables_goes_on_with_an_edited_study(study, tmp_path, monkeypatch):
    from qkscope.run import pipeline

    fresh = tmp_path / "fresh"
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "_put_together", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(study, fresh)
    assert owner.held(fresh) == owner.Holding("run", "small", {}, [], [])
    with pytest.raises(StoreError, match="'small'"):
        scan(build("llama"), out=fresh, **SCAN)
    without_a_checkpoint(study)
    assert run(study, fresh).timeline.models == ["checkpoint-1", "checkpoint-3"]


def test_files_of_others_in_folders_of_our_names_stay(study, tmp_path):
    folder = tmp_path / "data"
    for name in ("shards/index.json", "figures/mine.png"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("mine")
    run(study, folder)
    assert (folder / "shards" / "index.json").read_text() == "mine"
    assert (folder / "figures" / "mine.png").read_text() == "mine"


def test_a_file_where_a_table_would_be_is_not_overwritten(study, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    mine = folder / "measures.safetensors"
    mine.write_text("mine")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"measures\.safetensors"):
            run(study, folder)
    assert mine.read_text() == "mine"
    mine.unlink()
    run(study, folder)


def test_another_programs_manifest_is_left_alone(study, tmp_path):
    (tmp_path / "site").mkdir()
    path = tmp_path / "site" / "manifest.json"
    path.write_text('{"name": "a web page", "icons": []}')
    for replace in (False, True):
        with pytest.raises(StoreError, match=r"manifest\.json"):
            run(study, tmp_path / "site", replace=replace)
    assert "a web page" in path.read_text()


def test_a_users_own_study_file_is_never_overwritten(study):
    text = study.read_text()
    for replace in (False, True):
        with pytest.raises(StoreError, match=r"study\.yaml"):
            run(study, study.parent, replace=replace)
    assert study.read_text() == text


# --- scans and analyses --------------------------------------------------------------------------------------------


def test_a_scan_of_fewer_heads_does_not_take_the_place_of_one_of_all(scanned):
    before = contents(scanned)
    with pytest.raises(StoreError, match=r"(?s)heads.*--replace"):
        scan(build("llama"), out=scanned, heads=3, **SCAN)
    with pytest.raises(StoreError, match="window"):
        scan(build("llama"), out=scanned, **SCAN | {"max_length": 20})
    with pytest.raises(StoreError, match="texts"):
        scan(build("llama"), out=scanned, **SCAN | {"texts": TEXTS[::-1]})
    with pytest.raises(StoreError, match="files changed"):
        scan(build("llama", seed=7), out=scanned, **SCAN)
    assert contents(scanned) == before
    scan(build("llama"), out=scanned, **SCAN)
    assert {name: data for name, data in contents(scanned).items() if not name.startswith("vectors")} == {
        name: data for name, data in before.items() if not name.startswith("vectors")
    }


def test_saved_vectors_are_not_replaced_by_others(scanned, tmp_path):
    with pytest.raises(StoreError, match="vectors"):
        scan(build("llama"), out=scanned, save_vectors=0.1, **SCAN)
    (tmp_path / "vectors").mkdir()
    for replace in (False, True):
        with pytest.raises(StoreError, match="vectors"):
            scan(build("llama"), out=tmp_path, save_vectors=0.1, replace=replace, **SCAN)


def test_kinds_of_results_do_not_take_each_others_place(scanned, study, out, tmp_path):
    analysis = tmp_path / "analysis"
    analyze(scanned / "vectors", analysis, measures=[], groups=2)
    before = [contents(folder) for folder in (scanned, analysis, out)]
    with pytest.raises(StoreError, match="the scan of"):
        analyze(scanned / "vectors", scanned, measures=[], groups=2)
    with pytest.raises(StoreError, match="the analysis of"):
        run(study, analysis)
    with pytest.raises(StoreError, match="the study 'small'"):
        scan(build("llama"), out=out, **SCAN)
    with pytest.raises(StoreError, match="components"):
        analyze(scanned / "vectors", analysis, measures=[], groups=2, components=1)
    assert [contents(folder) for folder in (scanned, analysis, out)] == before
    analyze(scanned / "vectors", analysis, measures=[], groups=2)
    assert contents(analysis) == before[1]
    run(study, analysis, replace=True)
    assert status(analysis, verify=True).damage == ()


def test_a_table_of_another_program_is_never_overwritten(tmp_path):
    (tmp_path / "qk.csv").write_text("model,layer,head,pc,r_q,r_k\nstep1,0,0,0,0.5,0.5\n")
    before = contents(tmp_path)
    for replace in (False, True):
        with pytest.raises(StoreError, match=r"qk\.csv"):
            scan(build("llama"), out=tmp_path, replace=replace, **SCAN)
    assert contents(tmp_path) == before


# --- figures and report --------------------------------------------------------------------------------------------


def test_figures_and_report_do_not_land_in_the_results_of_another(study, out, tmp_path):
    shutil.copytree(out, tmp_path / "other")
    for draw, place in ((draw_all, "figures"), (write_report, "report.html"), (write_report, "")):
        with pytest.raises(StoreError, match="belongs to the results"):
            draw(out, tmp_path / "other" / place)
    assert contents(tmp_path / "other") == contents(out)


def test_figures_drawn_again_are_recorded_and_what_is_not_ours_stays(out, monkeypatch):
    monkeypatch.setattr("qkscope.figures.drawing.CATALOGUE", CATALOGUE[:2])
    mine = out / "figures" / "01_position_signal" / "mine.png"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    draw_all(out)
    write_report(out)
    assert status(out, verify=True).damage == ()
    drawn = manifest.read_manifest(out).drawn
    assert {"report.html", "figures/01_position_signal/figure.png"} <= set(drawn)
    assert mine.read_text() == "mine"
    (out / "report.html").write_text("edited")
    assert any("report.html" in line for line in status(out, verify=True).damage)


def test_figures_are_not_put_into_a_folder_where_a_run_is_at_work(out, monkeypatch):
    from qkscope.errors import EngineError

    before = contents(out)
    with lock.locked(out, "small"):
        for draw in (draw_all, write_report):
            with pytest.raises(EngineError, match="is running"):
                draw(out)
    assert contents(out) == before


def marked_drawing(patch: pytest.MonkeyPatch, between=lambda: None) -> None:
    """Figures and a report that say nothing but the study's title; `between` is called in the middle of drawing."""

    def figures(results, out=None):
        for name in ("01_first", "02_second"):
            folder = (out or results.folder / "figures") / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "figure.png").write_text(results.timeline.title)
            if name == "01_first":
                between()

    def report(results, out=None):
        (out or results.folder / "report.html").write_text(results.timeline.title)

    patch.setattr("qkscope.figures.draw_all", figures)
    patch.setattr("qkscope.report.write_report", report)


def suspended_run(study: Path, out: Path, said: Path) -> None:
    """In a forked process: a run that stops itself in the middle of drawing, as a closed laptop would."""
    try:
        lock.LEASE_SECONDS = 1.0
        marked_drawing(pytest.MonkeyPatch(), lambda: os.kill(os.getpid(), signal.SIGSTOP))
        run(study, out)
    except Exception as error:
        said.write_text(str(error))
    finally:
        os._exit(0)


def test_a_run_that_is_overtaken_while_it_draws_leaves_one_studys_products(study, tmp_path, monkeypatch):
    out, said = tmp_path / "fresh", tmp_path / "said"
    change(study, title="First")
    first = os.fork()
    if first == 0:
        suspended_run(study, out, said)
    try:
        assert os.WIFSTOPPED(os.waitpid(first, os.WUNTRACED)[1])
        change(study, title="Second", thresholds={"high": 0.5, "low": 0.2})
        monkeypatch.setattr(lock, "LEASE_SECONDS", 1.0)
        monkeypatch.setattr(socket, "gethostname", lambda: "another-node")
        marked_drawing(monkeypatch)
        run(study, out)
        after = contents(out)
        os.kill(first, signal.SIGCONT)
        ended, _ = os.waitpid(first, 0)
    except BaseException:
        os.kill(first, signal.SIGKILL)
        raise
    assert ended == first
    assert "lost its lock" in said.read_text()
    assert contents(out) == after
    assert status(out, verify=True).damage == ()
    drawn = [out / "report.html", *out.glob("figures/*/figure.png")]
    assert {path.read_text() for path in drawn} == {"Second"}


def test_a_mixture_of_two_sets_is_found(study, out, monkeypatch):
    """The tables were made anew, and drawing failed: the figures are those of the tables before."""
    marked_drawing(monkeypatch)
    change(study, title="First")
    run(study, out)
    assert status(out, verify=True).damage == ()

    def broken(*_):
        raise RuntimeError("no ink")

    monkeypatch.setattr("qkscope.report.write_report", broken)
    change(study, title="Second", thresholds={"high": 0.5, "low": 0.2})
    with pytest.raises(RuntimeError):
        run(study, out)
    found = status(out, verify=True)
    assert any("report.html: drawn from other tables" in line for line in found.damage)
    assert found.state == "failed"
    assert any("no ink" in line for line in found.failures)
    marked_drawing(monkeypatch)
    run(study, out)
    assert status(out, verify=True).damage == ()
    assert status(out).state == "finished"


# --- what status says of it ----------------------------------------------------------------------------------------


def exit_status(out: Path) -> int:
    return CliRunner().invoke(main, ["status", str(out)]).exit_code


def test_status_says_that_a_run_failed_with_an_exit_status_for_scripts(study, out, tmp_path, monkeypatch):
    assert exit_status(out) == 0
    fresh = tmp_path / "fresh"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "qkscope.run.pipeline._put_together", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            run(study, fresh)
    assert exit_status(fresh) == 4
    run(study, fresh)
    assert exit_status(fresh) == 0
    shutil.move(study.parent / "checkpoint-2", study.parent / "away")
    with pytest.raises(StudyError):
        run(study, tmp_path / "partly")
    assert exit_status(tmp_path / "partly") == 3
    done = CliRunner().invoke(main, ["status", str(tmp_path / "partly"), "--json"])
    assert json.loads(done.stdout)["state"] == "failed"
    assert "checkpoint-2" in " ".join(json.loads(done.stdout)["failures"])


def test_status_says_that_too_many_heads_are_unmeasured(study, tmp_path):
    from safetensors.torch import load_file, save_file

    path = study.parent / "checkpoint-2" / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.1.self_attn.q_proj.weight"][:] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(StudyError):
        run(study, tmp_path / "fresh")
    assert exit_status(tmp_path / "fresh") == 3
