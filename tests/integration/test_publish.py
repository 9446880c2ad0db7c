"""Results on the hub and back, through the real client and a hub on this machine."""

from __future__ import annotations

import json
import re
import shutil

import huggingface_hub
import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from frames import cells_of
from hub_server import serve
from huggingface_hub import metadata_load
from report_browser import PHASES, SMALL
from report_data import write_results
from test_hub import point_at

from qkscope import analyze
from qkscope.checkpoints import hub
from qkscope.cli import main
from qkscope.errors import HubError, StoreError, VectorsError
from qkscope.report import render
from qkscope.results import load_results, manifest
from qkscope.results.dataset import NAME, write_dataset
from qkscope.run import publish
from qkscope.run.publish import card, fetch_results, push, repository
from qkscope.vectors import write_vectors

QK = "model,layer,head,pc,r_q,r_k\nstep-1,0,0,0,0.5,0.25\nstep-2,0,0,0,0.75,-0.5\n"


@pytest.fixture
def server(tmp_path, monkeypatch):
    (tmp_path / "hub").mkdir()
    with serve(tmp_path / "hub") as hub:
        point_at(monkeypatch, hub.url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_local")
        yield hub


STUDY = """\
name: mine
title: A *run*
windows: [16]
corpus: {source: ["/home/me/private texts"]}
phases:
  - label: Start
    checkpoints: [{folder: /home/me/runs/step-1}, {folder: /home/me/runs/step-2}]
provenance:
  corpus: {origin: /home/me/private texts, documents: 2}
  warnings: ["/home/me/private texts/a.txt: short", "step-1: see /var/lib/models/step-1/config.json, or not"]
"""
SUMMARY = '{"title": "A *run*", "findings": [{"headline": "Queries <b>rise</b>"}]}'
FIGURE = "figures/01_position_signal"
TABLES = {"qk.csv": QK, "study.yaml": STUDY}
DRAWN = {
    "summary.json": SUMMARY,
    "report.html": "<p>/home/me/runs/step-1 </p>",
    f"{FIGURE}/figure.png": "png",
    f"{FIGURE}/README.md": "texts in /home/me/private texts.",
}
SENT = {"README.md", "manifest.json", *TABLES, *DRAWN}


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def finished(folder, tables=TABLES, drawn=DRAWN):
    """A results folder with a set in it, as a run leaves it."""
    with manifest.replacing_set(folder, "ab" * 20) as staged:
        write(staged, tables)
    with manifest.replacing_drawn(folder, "ab" * 20, ("summary.json", "report.html", "figures")) as staged:
        write(staged, drawn)
    manifest.note_finished(folder)
    return folder


@pytest.fixture
def results(tmp_path):
    """A finished run, with files in its folder that do not belong to it."""
    stray = {
        "units/step-1/0/moments.safetensors": "secret",
        "corpus/a.txt": "secret",
        "mine.csv": "secret",
        "notes.parquet": "secret",
        ".secret.csv": "secret",
        "figures/notes.csv": "secret",
        f"{FIGURE}/notes.txt": "secret",
        "figures/.env": "secret",
    }
    folder = tmp_path / "results" / "mine"
    write(folder, stray)
    # Earlier versions put everything below figures/ into the manifest.
    return finished(folder, drawn=DRAWN | {"figures/.env": "secret", "figures/notes.csv": "secret"})


def files_of(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def fetched(server):
    """Names of the files that were asked for."""
    return {
        path.partition("/resolve/")[2].partition("/")[2]
        for _, path, _ in server.requests()
        if "/resolve/" in path
    }


def commits(server):
    return sum("/commit/" in path for _, path, _ in server.requests())


def test_what_is_pushed_comes_back_and_nothing_else_was_sent(server, results, tmp_path, monkeypatch):
    address = push(results, "hub:lab/mine")
    assert "lab/mine" in address
    there = server.root / "datasets/lab/mine/main"
    assert files_of(there) == SENT
    found = manifest.read_manifest(there)
    assert not list(manifest.problems(there, {**found.tables, **found.drawn}))
    assert {*found.tables, *found.drawn} == {*TABLES, *DRAWN}
    back = fetch_results("hub:lab/mine", tmp_path / "elsewhere")
    assert (back / "qk.csv").read_text() == QK
    assert files_of(back) == SENT - {"README.md"}
    loaded = load_results(back)
    assert [checkpoint.model for checkpoint in loaded.timeline.checkpoints] == ["step-1", "step-2"]
    assert loaded.timeline.title == "A *run*"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert fetch_results("hub:lab/mine", tmp_path / "elsewhere") == back


def test_no_local_path_travels(server, results):
    push(results, "hub:lab/mine")
    there = server.root / "datasets/lab/mine/main"
    for name in files_of(there):
        text = (there / name).read_text()
        assert not re.search(r"/home|/var|/tmp|secret", text), name
    study = yaml.safe_load((there / "study.yaml").read_text())
    assert study["phases"][0]["checkpoints"] == [{"folder": "./step-1"}, {"folder": "./step-2"}]
    assert study["corpus"]["source"] == ["./private texts"]
    assert "step-1: see config.json, or not" in study["provenance"]["warnings"]
    # The folder itself stays as it was.
    assert (results / "study.yaml").read_text() == STUDY


@pytest.mark.parametrize(
    ("name", "text"), [("qk.csv", QK.replace("0.75", "0.76")), ("report.html", "<p>"), ("summary.json", None)]
)
def test_what_is_not_what_was_written_is_not_pushed(server, results, name, text):
    (results / name).unlink()
    if text is not None:
        (results / name).write_text(text)
    with pytest.raises(StoreError, match=name):
        push(results, "hub:lab/mine")
    assert commits(server) == 0


@pytest.mark.parametrize("name", ["measures.safetensors", "axes.safetensors"])
def test_what_readers_refuse_is_not_pushed(server, tmp_path, name):
    finished(tmp_path / "mine", TABLES | {name: "whatever"})
    with pytest.raises(StoreError, match=name):
        push(tmp_path / "mine", "hub:lab/mine")
    assert commits(server) == 0


def test_every_array_is_read_and_checked_before_it_is_pushed(server, tmp_path):
    with manifest.replacing_set(tmp_path / "mine", "ab" * 20) as staged:
        write(staged, TABLES)
        write_dataset(staged / NAME, cells_of(pd.read_csv(staged / "qk.csv"), layers=2, window=16))
        whole = (staged / NAME).read_bytes()
        (staged / NAME).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    manifest.note_finished(tmp_path / "mine")
    load_results(tmp_path / "mine")  # reads an array when it is used
    with pytest.raises(StoreError, match=NAME):
        push(tmp_path / "mine", "hub:lab/mine")
    assert commits(server) == 0


def test_a_link_that_leads_out_is_not_followed(server, results, tmp_path):
    (tmp_path / "private.csv").write_text(QK)
    (results / "qk.csv").unlink()
    (results / "qk.csv").symlink_to(tmp_path / "private.csv")
    with pytest.raises(StoreError, match=r"qk\.csv"):
        push(results, "hub:lab/mine")
    assert commits(server) == 0


def test_a_set_that_a_run_replaces_meanwhile_is_not_pushed(server, results, monkeypatch):
    read_all = publish._read_all

    def overtaken(folder):
        read_all(folder)
        if folder == results:
            finished(results, TABLES | {"qk.csv": QK.replace("0.75", "0.85")})

    monkeypatch.setattr(publish, "_read_all", overtaken)
    with pytest.raises(StoreError, match="mine"):
        push(results, "hub:lab/mine")
    assert commits(server) == 0


def test_a_folder_without_a_manifest_is_refused(server, tmp_path):
    write(tmp_path / "mine", TABLES)
    with pytest.raises(StoreError, match=r"manifest\.json"):
        push(tmp_path / "mine", "hub:lab/mine")
    assert commits(server) == 0


def test_a_push_replaces_the_set_before_in_one_commit_and_leaves_other_files_alone(server, tmp_path):
    figure = "figures/02_polarity/figure.png"
    push(finished(tmp_path / "a", TABLES | {"qk_16.csv": QK}, DRAWN | {figure: "of a"}), "hub:lab/mine")
    there = server.root / "datasets/lab/mine/main"
    write(there, {"notes.txt": "by hand", "figures/mine.png": "by hand"})
    before = fetch_results("hub:lab/mine", tmp_path / "here")
    assert (before / figure).read_text() == "of a"
    server.fault()
    push(finished(tmp_path / "b"), "hub:lab/mine")
    assert commits(server) == 1
    assert files_of(there) == {*SENT, "notes.txt", "figures/mine.png"}
    after = fetch_results("hub:lab/mine", tmp_path / "here")
    assert after != before
    assert files_of(after) == SENT - {"README.md"}


def test_a_push_over_a_damaged_manifest_deletes_nothing(server, results):
    push(results, "hub:lab/mine")
    there = server.root / "datasets/lab/mine/main"
    write(there, {"manifest.json": "{", "old.csv": "old"})
    push(results, "hub:lab/mine")
    assert files_of(there) == {*SENT, "old.csv"}
    assert manifest.read_manifest(there) is not None


def test_a_dataset_that_somebody_else_changes_meanwhile_is_not_overwritten(server, results):
    push(results, "hub:lab/mine")
    before = hub.list_files("lab/mine", kind="dataset")
    write(server.root / "datasets/lab/mine/main", {"new.txt": "theirs"})
    with pytest.raises(HubError, match="lab/mine"):
        hub.upload(before, results / "figures", "late")


def test_only_what_the_manifest_names_is_fetched(server, results, tmp_path):
    push(results, "hub:lab/mine")
    stray = {"deep/down/x.parquet": "x", "stray.csv": "x", "figures/.env": "x", "heads.parquet": "x"}
    write(server.root / "datasets/lab/mine/main", stray)
    server.fault()
    folder = fetch_results("hub:lab/mine", tmp_path / "here")
    assert files_of(folder) == fetched(server) == SENT - {"README.md"}


def test_a_set_that_is_pushed_again_while_it_is_fetched_is_not_mixed(server, results, tmp_path, monkeypatch):
    push(results, "hub:lab/mine")
    fetch = hub.fetch

    def overtaken(listing, files):
        if "qk.csv" in files:
            push(finished(tmp_path / "other", {"qk.csv": QK.replace("0.75", "0.85")}, {}), "hub:lab/mine")
        return fetch(listing, files)

    monkeypatch.setattr(hub, "fetch", overtaken)
    with pytest.raises(HubError, match="lab/mine"):
        fetch_results("hub:lab/mine", tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_of_a_dataset_without_a_manifest_only_known_tables_are_fetched(server, tmp_path):
    known = {"qk.csv": QK, "heads.csv": "x"}
    stray = {"deep/qk.csv": QK, "other.csv": "x", "report.html": "x", "heads.txt": "x", "x.parquet": "x"}
    write(server.root / "datasets/lab/old/main", known | stray)
    folder = fetch_results("hub:lab/old", tmp_path / "here")
    assert files_of(folder) == fetched(server) == set(known)
    assert len(load_results(folder).heads) == 2


@pytest.mark.parametrize(
    "command", [["compare", "hub:lab/mine", "--with", "mine"], ["report", "hub:lab/mine"]]
)
def test_a_users_own_results_are_never_overwritten(server, results, tmp_path, monkeypatch, command):
    push(results, "hub:lab/mine")
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "results" / "lab--mine"
    write(own, {"qk.csv": "my own", "report.html": "my own"})
    done = CliRunner().invoke(
        main, [part.replace("mine", str(results)) if part == "mine" else part for part in command]
    )
    assert done.exit_code == 0, done.output
    assert {name: (own / name).read_text() for name in files_of(own)} == {
        "qk.csv": "my own",
        "report.html": "my own",
    }


def test_a_damaged_copy_is_mended_and_what_was_drawn_in_it_stays(server, results, tmp_path):
    push(results, "hub:lab/mine")
    folder = fetch_results("hub:lab/mine", tmp_path / "here")
    write(folder, {"qk.csv": "damaged", "report.html": "drawn here"})
    (folder / "summary.json").unlink()
    assert fetch_results("hub:lab/mine", tmp_path / "here") == folder
    assert (folder / "qk.csv").read_text() == QK
    assert (folder / "report.html").read_text() == "drawn here"
    assert (folder / "summary.json").is_file()


@pytest.mark.parametrize(
    "name",
    [
        "../up.csv",
        "figures/../../up.csv",
        "/tmp/up.csv",
        "a\\b.csv",
        "a\nb.csv",
        "a\0b",
        "a//b",
        "./a",
        "\ud800",
        "",
    ],
)
def test_a_listing_that_leads_out_is_an_error_in_words(server, tmp_path, monkeypatch, name):
    write(server.root / "datasets/lab/bad/main", {"qk.csv": QK})
    write(server.root, {"listing.json": json.dumps([{"rfilename": "qk.csv"}, {"rfilename": name}])})
    monkeypatch.chdir(tmp_path)
    before = files_of(tmp_path)
    done = CliRunner().invoke(main, ["report", "hub:lab/bad"])
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    assert "lab/bad" in done.output
    assert files_of(tmp_path) == before
    with pytest.raises(HubError):
        analyze("hub:lab/bad")


def test_a_listing_of_more_than_any_study_has_is_refused_before_a_download(server, tmp_path):
    write(server.root / "datasets/lab/big/main", {"qk.csv": QK})
    write(server.root, {"listing.json": json.dumps([{"rfilename": "qk.csv", "size": 10**13}])})
    with pytest.raises(HubError, match="lab/big"):
        fetch_results("hub:lab/big", tmp_path / "here")
    assert not fetched(server)


def test_a_manifest_of_more_files_than_any_study_has_is_refused(server, tmp_path):
    names = [f"{i}.csv" for i in range(publish.MOST_FILES)]
    finished(server.root / "datasets/lab/big/main", {"qk.csv": QK} | dict.fromkeys(names, "x"), {})
    with pytest.raises(HubError, match="lab/big"):
        fetch_results("hub:lab/big", tmp_path / "here")
    assert fetched(server) == {"manifest.json"}


@pytest.mark.parametrize(
    "name", ["../up.csv", "/tmp/up.csv", ".env", "figures/.env", "*", "a\\b", "gone.csv"]
)
def test_a_published_manifest_that_leads_elsewhere_is_refused(server, tmp_path, name):
    there = finished(server.root / "datasets/lab/bad/main", {"qk.csv": QK}, {})
    write(there, {"figures/.env": "x", ".env": "x", "private.csv": "x"})
    about = json.loads((there / "manifest.json").read_text())
    about["tables"][name] = about["tables"]["qk.csv"]
    write(there, {"manifest.json": json.dumps(about)})
    with pytest.raises(HubError, match="lab/bad"):
        fetch_results("hub:lab/bad", tmp_path / "here")
    assert fetched(server) == {"manifest.json"}
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("text", [QK + " ", QK.replace("0.75", "0.85")], ids=["size", "bytes"])
def test_a_published_file_that_is_not_the_manifests_is_refused(server, results, tmp_path, text):
    push(results, "hub:lab/mine")
    write(server.root / "datasets/lab/mine/main", {"qk.csv": text})
    with pytest.raises(HubError, match=r"qk\.csv"):
        fetch_results("hub:lab/mine", tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_a_space_shows_the_report_and_nothing_else_is_sent_or_deleted(server, results):
    command = ["push", str(results), "hub:lab/page", "--space"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    there = server.root / "spaces/lab/page/main"
    assert files_of(there) == {"README.md", "index.html"}
    assert (there / "index.html").read_text() == "<p>step-1 </p>"  # without the folder it was in
    meta = metadata_load(there / "README.md")
    assert (meta["title"], meta["sdk"], meta["app_file"]) == ("A *run*", "static", "index.html")
    assert "license" not in meta
    text = (there / "README.md").read_text()
    assert "- Queries &lt;b&gt;rise&lt;/b&gt;" in text
    assert not re.search(r"/home|/var|/tmp|secret", text)
    write(there, {"notes.txt": "by hand"})
    server.fault()
    assert CliRunner().invoke(main, command).exit_code == 0
    assert commits(server) == 1
    assert files_of(there) == {"README.md", "index.html", "notes.txt"}
    assert not (server.root / "datasets").exists()


@pytest.mark.parametrize("name", ["report.html", "qk.csv"])
def test_a_damaged_report_or_table_becomes_no_space(server, results, name):
    (results / name).write_text("edited")
    with pytest.raises(StoreError, match=name):
        push(results, "hub:lab/page", space=True)
    assert commits(server) == 0


def test_a_report_of_earlier_tables_or_none_becomes_no_space(server, results, tmp_path):
    with manifest.replacing_set(results, "cd" * 20) as staged:
        write(staged, TABLES | {"qk.csv": QK.replace("0.75", "0.85")})
    with pytest.raises(StoreError, match="other tables"):
        push(results, "hub:lab/page", space=True)
    with pytest.raises(StoreError, match=r"qkscope report"):
        push(finished(tmp_path / "bare", drawn={"summary.json": SUMMARY}), "hub:lab/page", space=True)
    assert commits(server) == 0


def test_a_space_that_runs_an_application_is_not_overwritten(server, results):
    app = {"README.md": "---\nsdk: gradio\n---\n", "app.py": "print()"}
    write(server.root / "spaces/lab/app/main", app)
    with pytest.raises(HubError, match="gradio"):
        push(results, "hub:lab/app", space=True)
    assert commits(server) == 0


def test_a_card_quotes_the_findings_as_plain_text(results):
    text = card(results, "lab/mine")
    assert text.startswith("---\nlicense: apache-2.0")
    assert r"# A \*run\*" in text
    assert "- Queries &lt;b&gt;rise&lt;/b&gt;" in text
    assert "figures/01_position_signal/figure.png" in text


@pytest.mark.parametrize("place", ["lab/mine", "hub:mine", "hub:a/b/c", "hub:/x", "hub:"])
def test_a_place_on_the_hub_is_owner_and_name(place):
    with pytest.raises(HubError, match="expected hub:owner/name"):
        repository(place)


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(StoreError, match=r"no qk\.csv"):
        push(tmp_path, "hub:lab/mine")


def test_a_hub_that_refuses_says_so_in_words(server, results):
    server.fault({"match": "POST /api/repos/create", "action": "status", "status": 403})
    with pytest.raises(HubError, match="lab/mine"):
        push(results, "hub:lab/mine")


def test_commands_read_results_from_the_hub(server, results, tmp_path, monkeypatch):
    push(results, "hub:lab/mine")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["compare", "hub:lab/mine", "--with", str(results)])
    assert done.exit_code == 0, done.output
    (copy,) = (tmp_path / "results" / ".hub").iterdir()
    assert (copy / "qk.csv").read_text() == QK
    done = CliRunner().invoke(main, ["report", str(results), "hub:lab/mine", "--out", "both.html"])
    assert done.exit_code == 0, done.output
    assert "have exactly the same numbers" in (tmp_path / "both.html").read_text()


def some_vectors(root):
    """Two models, two query heads and a key head each."""
    rng = np.random.default_rng(3)
    position = np.tile(np.arange(40), 6)
    for model in ("step-1", "step-2"):
        for head, kind in ((0, "q"), (1, "q"), (0, "k")):
            vector = rng.standard_normal((240, 8)) + 0.1 * position[:, None] * rng.standard_normal(8)
            write_vectors(
                root,
                model,
                0,
                head,
                kind,
                example_id=np.repeat(np.arange(6), 40),
                position=position,
                vector=vector.astype(np.float32),
                window=48,
                sliding_window=None,
            )


def test_vectors_on_the_hub_are_analysed_as_those_on_disk(server, tmp_path, monkeypatch):
    there = server.root / "datasets/lab/vectors/main"
    some_vectors(there / "deep")
    (there / "weights.bin").write_bytes(b"not these")
    (there / "deep" / "step-1" / "notes.parquet").write_bytes(b"nor these")
    done = CliRunner().invoke(main, ["analyze", "hub:lab/vectors/deep", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    expected = analyze(there / "deep")
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / "out" / "qk.csv"), expected.qk, check_dtype=False, rtol=1e-12
    )
    assert set(expected.qk["model"]) == {"step-1", "step-2"}
    asked = {path for _, path, _ in server.requests() if "resolve" in path}
    assert asked
    assert all(path.endswith("data.parquet") for path in asked)
    bare = analyze("hub:lab/vectors/deep/step-2")
    assert set(bare.qk["model"]) == {"step-2"}
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert analyze("hub:lab/vectors/deep").qk.equals(expected.qk)


def test_a_dataset_without_vectors_says_what_was_expected(server):
    (server.root / "datasets/lab/none/main").mkdir(parents=True)
    (server.root / "datasets/lab/none/main/a.parquet").write_bytes(b"")
    with pytest.raises(VectorsError, match=r"none of its 1 files are vectors; expected <model>/l00h00q"):
        analyze("hub:lab/none")
    with pytest.raises(HubError, match="no such dataset on the hub"):
        analyze("hub:lab/nowhere")


def test_texts_stay_here_unless_asked_for(server, tmp_path):
    """Neither the file of excerpts nor the report that is published has a word of the texts."""
    made, folder = (
        write_results(tmp_path / "made", SMALL, PHASES, everything=True),
        tmp_path / "results" / "t",
    )
    with manifest.replacing_set(folder, "ab" * 20) as staged:
        shutil.copytree(made, staged, dirs_exist_ok=True)
    with manifest.replacing_drawn(folder, "ab" * 20, ("report.html",)) as staged:
        (staged / "report.html").write_text(render(load_results(folder)))
    manifest.note_finished(folder)

    def with_text(place):
        return {path.name for path in place.rglob("*") if path.is_file() and b"word12" in path.read_bytes()}

    assert with_text(folder) == {"examples.safetensors", "report.html"}
    assert CliRunner().invoke(main, ["push", str(folder), "hub:me/t"], catch_exceptions=False).exit_code == 0
    there = fetch_results("hub:me/t", tmp_path)
    assert with_text(there) == set()
    assert load_results(there).examples is None
    assert "<h1>" in (there / "report.html").read_text()
    push(folder, "hub:me/page", space=True)
    assert with_text(tmp_path / "hub") == set()
    push(folder, "hub:me/t", examples=True)
    assert with_text(fetch_results("hub:me/t", tmp_path)) == {"examples.safetensors", "report.html"}
    push(folder, "hub:me/t")
    assert with_text(fetch_results("hub:me/t", tmp_path)) == set()
