"""`qkscope run`: units, resuming, what is said when something changed, and what happens when something is wrong."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from small_study import make_study, write_texts
from tiny import edit_config, save_checkpoint

from qkscope import run as running
from qkscope import store
from qkscope.errors import CorpusError, StoreError, StudyError
from qkscope.results import load_results
from qkscope.results.tables import QK_COLUMNS, qk_table
from qkscope.run import run, status
from qkscope.run.plan import needed, plan_study
from qkscope.run.status import UnitStatus, write_plan
from qkscope.run.units import UnitMeasurer
from qkscope.study import load_study, sources

NAMES = ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
SUMS = {"facts", "moments", "path", "scores", "attention", "repeats", "logits"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study's files, made once; tests copy them."""
    folder = tmp_path_factory.mktemp("study")
    make_study(folder)
    return folder


# Only the module's one whole run draws; it is made before this.
pytestmark = pytest.mark.usefixtures("no_drawing")


@pytest.fixture
def study(made, tmp_path):
    shutil.copytree(made, tmp_path / "study")
    return tmp_path / "study" / "study.yaml"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "results"


@pytest.fixture(scope="module")
def drawn(made, tmp_path_factory):
    """A whole run with figures and report."""
    folder = tmp_path_factory.mktemp("whole") / "results"
    return run(made / "study.yaml", out=folder)


@pytest.fixture
def done(drawn, study, out):
    """The folder of a finished run of `study`: units do not care where the study's files lie."""
    shutil.copytree(drawn.folder, out, ignore=shutil.ignore_patterns("figures", "report.html"))
    return out


@pytest.fixture
def loads(monkeypatch):
    """The names of the models loaded, in order."""
    from qkscope.checkpoints import loading

    seen: list[str] = []
    load = loading.load_model

    def counted(source):
        seen.append(Path(source.model).name)
        return load(source)

    monkeypatch.setattr(loading, "load_model", counted)
    return seen


def change(study: Path, **changes) -> None:
    data = yaml.safe_load(study.read_text())
    study.write_text(yaml.safe_dump(data | changes, sort_keys=False))


def units(out: Path) -> dict[str, int]:
    """When the files of each unit were written, the last of them; only of units that have all sums of `SUMS`."""
    found: dict[str, dict[str, int]] = {}
    for path in sorted(out.glob("units/*/*/*.safetensors")):
        found.setdefault(str(path.parent.relative_to(out)), {})[path.stem] = path.stat().st_mtime_ns
    return {unit: max(sums.values()) for unit, sums in found.items() if set(sums) >= SUMS}


def _status_of_plan(study: Path, out: Path) -> tuple[UnitStatus, ...]:
    """What `status` says of the units once the study file is planned again."""
    plan = plan_study(load_study(study), sources(load_study(study)))
    write_plan(out, "small", plan.jobs, {})
    return status(out).units


def test_everything_is_written(drawn):
    out = drawn.folder
    names = {path.name for path in out.iterdir()}
    assert names >= {
        *("study.yaml", "units", "measures.safetensors", "axes.safetensors", "qk.csv", "heads.csv"),
        *("causes.csv", "transitions.csv", "summary.json", "figures", "report.html"),
    }
    assert sorted(units(out)) == [f"units/{name}/{group}" for name in NAMES for group in range(4)]
    assert list(out.rglob("*.tmp")) == []
    assert list(out.rglob("*.running")) == []
    json.loads((out / "summary.json").read_text())


def test_tables_hold_each_checkpoint_at_its_own_and_at_the_matched_window(drawn):
    qk, matched = drawn.qk, qk_table(drawn.matched())
    assert list(pd.read_csv(drawn.folder / "qk.csv").columns) == list(QK_COLUMNS)
    heads = pd.read_csv(drawn.folder / "heads.csv")
    assert {"model", "window", "own", "matched", "layer", "head", "class", "r_q", "r_q_se"} <= set(heads)
    # The last checkpoint over both windows, the others over the only one they have.
    assert heads.groupby("model")["window"].unique().map(sorted).to_dict() == {
        "checkpoint-1": [16], "checkpoint-2": [16], "checkpoint-3": [16, 48],
    }  # fmt: skip
    assert list(dict.fromkeys(qk["model"])) == list(dict.fromkeys(matched["model"])) == NAMES
    tokens = {name: set(rows["n_q"]) for name, rows in qk.groupby("model")}
    assert tokens == {"checkpoint-1": {12 * 16}, "checkpoint-2": {12 * 16}, "checkpoint-3": {12 * 48}}
    assert set(matched["n_q"]) == {12 * 16}
    for name in NAMES[:2]:
        pd.testing.assert_frame_equal(qk[qk["model"] == name], matched[matched["model"] == name])
    assert len(qk) == 3 * 8 * 4
    assert [drawn.own().sizes[name] for name in ("checkpoint", "sample", "head")] == [3, 5, 8]


def test_numbers_are_those_of_scan_over_all_documents(drawn, made):
    """The run's tables against one direct measurement of one checkpoint."""
    from qkscope.capture import measure
    from qkscope.checkpoints import Source, load_model, load_tokenizer
    from qkscope.corpus import load_corpus
    from qkscope.measures import measure as axes_of
    from qkscope.sums.head_index import HeadIndex

    spec = load_study(made / "study.yaml").corpus
    source = Source(str(made / "checkpoint-3"), tokenizer=str(made / "tokenizer"), device="cpu")
    documents = load_corpus(spec, load_tokenizer(source), 48, None).documents
    heads = HeadIndex.of([(layer, head) for layer in range(2) for head in range(4)], 2, {0: True, 1: True})
    model = load_model(source)
    axes = axes_of([measure(model, documents[g::4], heads, (16, 48)) for g in range(4)], 48, 4)
    rows = drawn.qk[drawn.qk["model"] == "checkpoint-3"]
    for name in ("r_q", "r_k", "explained_variance", "r_q_null", "r_k_null"):
        np.testing.assert_allclose(rows[name], getattr(axes, name).reshape(-1), atol=2e-6, err_msg=name)


def test_tables_of_several_processes_are_the_same_bytes(drawn, study, done, monkeypatch, capsys):
    monkeypatch.setattr("qkscope.run.assemble.worth", lambda pieces, seconds: min(pieces, 2))
    used = []
    several = running.assemble.in_processes
    monkeypatch.setattr(
        "qkscope.run.assemble.in_processes",
        lambda work, tasks, count: used.append(count) or several(work, tasks, count),
    )
    shutil.rmtree(done / "cells")
    for path in done.iterdir():
        if path.suffix in (".csv", ".safetensors") or path.name == "manifest.json":
            path.unlink()
    run(study, done)
    assert used == [2]
    made = [p for p in drawn.folder.iterdir() if p.suffix in (".csv", ".safetensors")]
    assert len(made) >= 6
    for path in made:
        assert (done / path.name).read_bytes() == path.read_bytes(), path.name
    assert "checkpoint-3 (3 of 3)" in capsys.readouterr().err


def test_provenance_says_where_the_numbers_came_from(drawn):
    provenance = drawn.provenance
    facts = provenance["checkpoints"]["checkpoint-3"]
    assert facts["commit"].startswith("sha256:")
    assert (facts["num_layers"], facts["n_q_heads"], facts["n_kv_heads"], facts["head_dim"]) == (2, 4, 2, 8)
    assert facts["window"] == 48
    assert provenance["corpus"]["documents"] == 12
    assert provenance["corpus"]["filled"] == {16: 12, 48: 12}
    assert provenance["missing"] == {}
    assert {"qkscope", "torch", "transformers", "python"} <= set(provenance["versions"])


def test_each_model_is_loaded_once_and_a_second_run_loads_none(study, out, loads):
    run(study, out)
    assert loads == NAMES
    before, table = units(out), (out / "qk.csv").read_bytes()
    run(study, out)
    assert loads == NAMES
    assert units(out) == before
    assert (out / "qk.csv").read_bytes() == table


def test_one_model_at_a_time(study, out, monkeypatch):
    """When a model is loaded, the one before is gone from memory."""
    import weakref

    from qkscope.checkpoints import loading

    alive: list[weakref.ref] = []
    load = loading.load_model

    def watched(source):
        assert not any(ref() is not None for ref in alive)
        model = load(source)
        alive.append(weakref.ref(model))
        return model

    monkeypatch.setattr(loading, "load_model", watched)
    run(study, out)
    assert len(alive) == 3


def test_only_what_is_missing_is_done(study, done, loads, capsys):
    table = (done / "qk.csv").read_bytes()
    before = units(done)
    shutil.rmtree(done / "units" / "checkpoint-2" / "1")
    loads.clear()
    capsys.readouterr()
    run(study, done)
    assert loads == ["checkpoint-2"]
    changed = {name for name, when in units(done).items() if before[name] != when}
    assert changed == {"units/checkpoint-2/1"}
    assert (done / "qk.csv").read_bytes() == table
    said = capsys.readouterr().err
    assert "11 of 12 units are already done" in said
    assert "[1/1] checkpoint-2 group 1: 48 tokens" in said


@pytest.mark.parametrize(
    ("damage", "name"),
    [("truncated", "moments"), ("flipped", "facts"), ("empty", "path"), ("header", "scores")],
)
def test_a_damaged_unit_is_noticed_named_and_done_again(study, done, capsys, damage, name):
    table = (done / "qk.csv").read_bytes()
    path = done / "units" / "checkpoint-3" / "2" / f"{name}.safetensors"
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[-100] ^= 4
    if damage == "header":
        data[3] = 255
    size = {"truncated": len(data) // 2, "empty": 0}.get(damage, len(data))
    path.write_bytes(data[:size])
    run(study, done)
    assert (done / "qk.csv").read_bytes() == table
    said = capsys.readouterr().err
    assert str(path) in said
    assert "checkpoint-3, group 2: measuring again, because" in said


def test_one_more_sum_leaves_the_files_of_the_others_untouched(study, done, loads, capsys):
    def files():
        return {
            str(path.relative_to(done)): (path.stat().st_mtime_ns, path.stat().st_ino, path.read_bytes())
            for path in done.glob("units/*/*/*.safetensors")
        }

    before = files()
    loads.clear()
    change(study, measures=["rotation", "per_kind", "plasticity"])
    assert "keys" in next(unit.detail for unit in _status_of_plan(study, done))
    run(study, done)
    after = files()
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {
        f"units/{name}/{g}/keys.safetensors" for name in NAMES for g in range(4)
    }
    assert loads == NAMES
    assert (
        "checkpoint-1, all groups: measuring again, because keys was not measured" in capsys.readouterr().err
    )
    assert "plasticity" in load_results(done).data
    loads.clear()
    change(study, plasticity={"keys": 3}, measures=["rotation", "per_kind", "plasticity"])
    run(study, done, replace=True)
    again = files()
    changed = {name for name in again if again[name] != after[name]}
    assert changed == {name for name in again if name.endswith("keys.safetensors")}


def test_units_of_an_earlier_version_are_measured_again_and_kept(study, done):
    table = (done / "qk.csv").read_bytes()
    shutil.rmtree(done / "units")
    old = done / "moments" / "checkpoint-1" / "0.safetensors"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"as it was")
    (done / "moments" / "plan.json").write_text('{"study": "small", "units": [], "missing": {}}')
    with pytest.raises(StoreError, match=r"plan\.json: no such file.*of this version"):
        status(done)
    run(study, done)
    assert old.read_bytes() == b"as it was"
    assert (done / "qk.csv").read_bytes() == table
    assert status(done).count("done") == 12


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "bfloat16"}, "dtype was auto, is now bfloat16"),
        ({"batch_tokens": 64}, "batch_tokens was 4096, is now 64"),
        ({"windows": [8, 16, 48]}, "windows was [16], is now [8, 16]"),
        ({"groups": 3}, "groups was 4, is now 3"),
        ({"heads": {"sample": 5, "seed": 0}}, "the heads changed"),
        ({"tokenizer": "tokenizer-2"}, "its documents changed (the texts, their selection or the tokenizer)"),
        ({"corpus": {"source": "texts", "documents": 8}}, "its documents changed"),
    ],
)
def test_a_changed_study_never_reuses_units(study, done, changes, reason, capsys):
    """Every unit is to be done again, and it is said why."""
    tokenizer = study.parent / "tokenizer-2"
    shutil.copytree(study.parent / "tokenizer", tokenizer)
    text = (tokenizer / "tokenizer.json").read_text()
    (tokenizer / "tokenizer.json").write_text(text.replace('"cat": 7', '"cat": 33'))
    change(study, **changes)
    plan = plan_study(load_study(study), sources(load_study(study)))
    assert needed(plan, done, plan.jobs) == plan.jobs
    assert reason in capsys.readouterr().err


def test_a_changed_study_is_measured_again(study, done):
    before = units(done)
    change(study, batch_tokens=64)
    run(study, done, replace=True)
    assert all(when != before[name] for name, when in units(done).items())


def test_what_does_not_decide_a_unit_does_not_redo_it(study, done, loads):
    loads.clear()
    change(study, title="Another title", thresholds={"high": 0.5, "low": 0.2}, components=2)
    results = run(study, done)
    assert loads == []
    assert results.components == 2
    assert results.timeline.title == "Another title"


def test_a_changed_corpus_is_said_and_measured_again(study, done, capsys):
    write_texts(study.parent / "texts", seed=5)
    capsys.readouterr()
    run(study, done, replace=True)
    said = capsys.readouterr().err
    assert "checkpoint-1, all groups: measuring again, because its documents changed" in said


def test_one_more_text_redoes_only_its_group(study, done):
    before = units(done)
    (study.parent / "texts" / "999.txt").write_text("the cat sat on the mat " * 10)
    run(study, done, replace=True)
    changed = {name for name, when in units(done).items() if before[name] != when}
    assert changed == {f"units/{name}/0" for name in NAMES}


def test_changed_weights_are_said_and_measured_again(study, done, capsys):
    before = units(done)
    save_checkpoint(study.parent / "checkpoint-2", seed=9)
    capsys.readouterr()
    run(study, done, replace=True)
    changed = {name.split("/")[1] for name, when in units(done).items() if before[name] != when}
    assert changed == {"checkpoint-2"}
    assert "the checkpoint's files changed" in capsys.readouterr().err


def test_one_bad_checkpoint_does_not_stop_the_others(study, out):
    shutil.rmtree(study.parent / "checkpoint-2")
    with pytest.raises(StudyError, match="1 checkpoint is missing") as raised:
        run(study, out)
    assert "checkpoint-2" in str(raised.value)
    results = load_results(out)
    assert results.timeline.models == ["checkpoint-1", "checkpoint-3"]
    assert results.timeline.checkpoint("checkpoint-2").missing
    assert list(results.provenance["missing"]) == ["checkpoint-2"]
    moves = pd.read_csv(out / "transitions.csv")
    assert set(zip(moves["from_model"], moves["to_model"], strict=True)) == {("checkpoint-1", "checkpoint-3")}


def test_weights_that_do_not_load_are_reported_after_the_rest(study, out, capsys):
    (study.parent / "checkpoint-1" / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(StudyError, match="checkpoint-1"):
        run(study, out)
    assert set(pd.read_csv(out / "qk.csv")["model"]) == {"checkpoint-2", "checkpoint-3"}
    found = status(out)
    assert found.count("failed") == 1
    assert found.count("done") == 8
    assert "checkpoint-1 group 0: failed" in capsys.readouterr().err
    save_checkpoint(study.parent / "checkpoint-1", seed=1)
    run(study, out)
    assert status(out).count("done") == 12


def test_a_model_that_fails_in_mid_pass_is_reported(study, out, monkeypatch):
    measure = UnitMeasurer.measure

    def failing(self, job, documents, on_tokens):
        if job.name == "checkpoint-2" and job.group == 1:
            raise RuntimeError("the device\ncaught fire")
        return measure(self, job, documents, on_tokens)

    monkeypatch.setattr(UnitMeasurer, "measure", failing)
    with pytest.raises(StudyError, match="RuntimeError: the device caught fire"):
        run(study, out)
    unit = next(u for u in status(out).units if (u.checkpoint, u.group) == ("checkpoint-2", 1))
    assert (unit.state, unit.detail) == ("failed", "RuntimeError: the device caught fire")
    assert "Traceback" in (out / "units" / "checkpoint-2" / "1.failed").read_text()


def test_another_architecture_is_refused_by_name(study, out):
    save_checkpoint(study.parent / "checkpoint-3", seed=3, num_hidden_layers=3)
    with pytest.raises(StudyError, match=r"checkpoint-3: its architecture .*num_layers 3 instead of 2"):
        run(study, out)


def test_nothing_that_can_be_measured(study, out):
    change(study, heads={"sample": 99, "seed": 0})
    with pytest.raises(StudyError, match="a sample of 99 heads"):
        run(study, out)
    assert not (out / "qk.csv").exists()


def test_a_window_no_document_fills(study, out):
    change(study, windows=[16, 48, 4096])
    with pytest.raises(CorpusError, match="no document fills the window of 4096 tokens"):
        run(study, out)


def test_warnings_are_kept(study, out):
    (study.parent / "texts" / "000.txt").write_text("the cat " * 200)
    data = yaml.safe_load(study.read_text())
    data["phases"][1]["window"] = 200
    change(study, windows=[16, 200], phases=data["phases"])
    results = run(study, out)
    text = "\n".join(results.provenance["warnings"])
    assert "only 1 of 12 documents fill the window of 200 tokens" in text
    assert "128 positions" in text


def test_fewer_documents_than_groups(study, out):
    change(study, corpus={"source": "texts", "documents": 3})
    results = run(study, out)
    assert len(units(out)) == 9
    assert any("3 documents for 4 groups" in warning for warning in results.provenance["warnings"])


def test_unmeasured_heads_are_counted(study, out):
    from safetensors.torch import load_file, save_file

    path = study.parent / "checkpoint-2" / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.1.self_attn.q_proj.weight"][:8] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})
    results = run(study, out)
    assert results.provenance["unmeasured"]["checkpoint-2"] >= 1
    assert any("unmeasured" in warning for warning in results.provenance["warnings"])


def test_a_full_disk_loses_nothing(study, out, monkeypatch):
    write = store.write_bytes

    def full(path, data):
        if path.match("units/*/2/path.safetensors"):
            raise StoreError(f"{path}: {os.strerror(errno.ENOSPC)}")
        write(path, data)

    monkeypatch.setattr(store, "write_bytes", full)
    with pytest.raises(StoreError, match="No space left"):
        run(study, out)
    assert sorted(units(out)) == [f"units/checkpoint-1/{group}" for group in (0, 1)]
    monkeypatch.setattr(store, "write_bytes", write)
    before = units(out)
    run(study, out)
    assert all(units(out)[name] == when for name, when in before.items())


def test_an_interruption_says_how_to_go_on(study, out, monkeypatch):
    measure = UnitMeasurer.measure

    def interrupted(self, job, documents, on_tokens):
        if job.name == "checkpoint-2":
            raise KeyboardInterrupt
        return measure(self, job, documents, on_tokens)

    monkeypatch.setattr(UnitMeasurer, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt, match=f"qkscope run {study} --out {out}"):
        run(study, out)
    assert list(out.rglob("*.running")) == []
    assert list(out.rglob("*.failed")) == []
    assert len(units(out)) == 4


def test_status_from_the_files_alone(done):
    folder = done / "units"
    for group in range(3):
        shutil.rmtree(folder / "checkpoint-2" / str(group))
    mark = {"host": os.uname().nodename, "pid": os.getpid(), "since": 0}
    (folder / "checkpoint-2" / "0.running").write_text(json.dumps(mark))
    (folder / "checkpoint-2" / "1.running").write_text(json.dumps(mark | {"pid": 2**22 + 1}))
    (folder / "checkpoint-2" / "2.failed").write_text("it burnt\n\nTraceback")
    (folder / "checkpoint-3" / "0" / "moments.safetensors").write_bytes(b"x" * 100)
    found = status(done)
    states = {
        unit.group: (unit.state, unit.detail) for unit in found.units if unit.checkpoint == "checkpoint-2"
    }
    assert states[0][0] == "running"
    assert states[1][0] == "waiting"
    assert "has ended" in states[1][1]
    assert states[2] == ("failed", "it burnt")
    assert states[3] == ("done", "")
    assert [found.count(state) for state in ("done", "running", "failed", "waiting")] == [8, 1, 1, 2]
    from rich.console import Console

    console = Console(width=200, record=True, file=io.StringIO())
    console.print(found)
    assert "8 done, 1 running, 1 failed, 2 waiting of 12 units" in console.export_text()


def test_what_is_finished_stays_and_what_was_taken_away_comes_back(study, out, capsys):
    run(study, out)
    written = {path: path.stat().st_mtime_ns for path in out.glob("*.csv")}
    capsys.readouterr()
    run(study, out)
    assert "nothing changed" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.csv")} == written
    for spoil in (lambda: (out / "heads.csv").unlink(), lambda: (out / "qk.csv").write_text("model\n")):
        table = (out / "qk.csv").read_bytes()
        spoil()
        run(study, out)
        assert "merging 12 units" in capsys.readouterr().err
        assert (out / "heads.csv").exists()
        assert (out / "qk.csv").read_bytes() == table


def test_status_of_a_folder_that_is_none(tmp_path):
    with pytest.raises(StoreError, match="results folder"):
        status(tmp_path)


def test_litter_of_killed_runs_is_swept(study, out):
    folder = out / "units" / "checkpoint-1" / "0"
    folder.mkdir(parents=True)
    litter = folder / f".moments.safetensors.{store._machine()}-{2**22 + 1}.abc.tmp"
    litter.write_bytes(b"half")
    run(study, out)
    assert not litter.exists()


def test_the_default_folder_is_the_studys_name(study, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(study).folder == Path("results/small")


def test_models_of_different_shapes_make_one_study(tmp_path, out):
    make_study(tmp_path)
    save_checkpoint(tmp_path / "checkpoint-2", seed=2, num_hidden_layers=3, num_attention_heads=2)
    path = tmp_path / "models.yaml"
    path.write_text(
        "name: models\nwindows: [16]\ncorpus: texts\ntokenizer: tokenizer\ngroups: 2\nfamilies:\n"
        "  - {label: A, models: [checkpoint-1]}\n  - {label: B, models: [checkpoint-2]}\n"
    )
    results = run(path, out)
    assert results.timeline.kind == "models"
    assert results.heads.groupby("model").size().to_dict() == {"checkpoint-1": 8, "checkpoint-2": 6}


def test_a_revision_with_a_slash_becomes_one_folder(study, out):
    data = yaml.safe_load(study.read_text())
    data["phases"][0]["checkpoints"][0]["name"] = "a/b"
    change(study, phases=data["phases"])
    results = run(study, out)
    assert results.timeline.models[0] == "a/b"
    assert (out / "units" / "a--b" / "0" / "facts.safetensors").is_file()


def test_nonsense_configurations_are_one_bad_checkpoint(study, out):
    edit_config(study.parent / "checkpoint-2", num_attention_heads="many")
    with pytest.raises(StudyError, match="checkpoint-2"):
        run(study, out)


def test_the_module_says_what_it_offers():
    assert running.__all__ == ["run", "status"]


def test_marks_that_a_killed_process_left_beside_finished_units_go(study, done):
    folder = done / "units" / "checkpoint-1"
    (folder / "0.running").write_text('{"pid": 1, "host": "elsewhere", "since": 0}')
    (folder / "1.failed").write_text("it burnt")
    assert status(done).count("done") == 12
    run(study, done)
    assert not [*folder.glob("*.running"), *folder.glob("*.failed")]


@pytest.mark.parametrize("theta", [float("nan"), -1.0])
def test_a_rotation_without_a_base_is_refused(study, out, theta):
    path = study.parent / "checkpoint-2" / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"] = {"rope_theta": theta, "rope_type": "default"}
    path.write_text(json.dumps(config))
    with pytest.raises(StudyError, match=r"checkpoint-2.*rope_theta"):
        run(study, out)
