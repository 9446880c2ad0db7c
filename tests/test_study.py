"""The study file: what it means, and every mistake at once with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from qkscope.errors import StudyError
from qkscope.study import CorpusSpec, dump_study, folder_name, load_study, sources, validate
from qkscope.study.timeline import timeline_of

STUDIES = Path(__file__).parent.parent / "studies"

TRAINING = """\
name: run
model: owner/model
windows: [128, 512]
phases:
  - label: Stage 1
    window: 128
    checkpoints: [stage1-step-100, stage1-step-200]
  - label: Long
    window: 512
    checkpoints:
      - {revision: lc-1k-to-2k-step-10, label: end}
"""


@pytest.fixture
def write(tmp_path):
    def written(text: str) -> Path:
        path = tmp_path / "study.yaml"
        path.write_text(text)
        return path

    return written


def mistakes(path: Path) -> list[str]:
    """Without the file's name, which all lines start with."""
    lines = validate(path)
    assert all(line.startswith(f"{path}:") for line in lines)
    return [line.removeprefix(f"{path}:") for line in lines]


def test_phases_become_checkpoints_in_order(write):
    study = load_study(write(TRAINING))
    found = sources(study)
    assert [(c.name, c.label, c.phase, c.window, c.step) for c in found] == [
        ("stage1-step-100", "S1-100", "Stage 1", 128, 100),
        ("stage1-step-200", "S1-200", "Stage 1", 128, 200),
        ("lc-1k-to-2k-step-10", "end", "Long", 512, 10),
    ]
    assert {(c.source.model, c.source.revision) for c in found} == {("owner/model", c.name) for c in found}
    assert [c.rings(study.windows) for c in found] == [(128,), (128,), (128, 512)]
    assert study.kind == "training"
    assert study.matched_window == 128


def test_the_published_study_is_exact():
    study = load_study(STUDIES / "smollm3.yaml")
    found = sources(study)
    assert [c.name for c in found] == [
        *(f"stage1-step-{step}" for step in (40000, 1200000, 2400000, 3440000)),
        *("stage2-step-4200000", "stage3-step-4720000"),
        *("lc-4k-to-32k-step-4000", "lc-4k-to-32k-step-20000"),
        *("lc-32k-to-64k-step-4000", "lc-32k-to-64k-step-20000"),
    ]
    labels = "S1-40K S1-1.2M S1-2.4M S1-3.4M S2-4.2M S3-4.7M LC1-4K LC1-20K LC2-4K LC2-20K"
    assert [c.label for c in found] == labels.split()
    assert [c.window for c in found] == [4096] * 6 + [32768] * 2 + [65536] * 2
    assert {c.source.model for c in found} == {"HuggingFaceTB/SmolLM3-3B-checkpoints"}
    assert {c.source.tokenizer for c in found} == {"HuggingFaceTB/SmolLM3-3B"}
    assert {c.source.dtype for c in found} == {"bfloat16"}
    assert (study.heads.sample, study.heads.seed, study.components) == (300, 0, 10)
    assert study.windows == [4096, 32768, 65536]
    corpus = study.corpus
    assert (corpus.source, corpus.split, corpus.documents) == (
        ["hub:viktoroo/longbench-pro-128k-plus"],
        "test",
        500,
    )
    assert (corpus.id_column, corpus.text_column) == ("id", "text")
    assert study.name == "smollm3_training_progress"


def test_five_lines_suffice_for_a_run_of_ones_own(write, tmp_path):
    for step in (1000, 500, 20):
        folder = tmp_path / "runs" / "last-night" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"")
    (tmp_path / "held-out.txt").write_text("the cat sat on the mat")
    path = write(
        "name: mine\ncheckpoints: runs/last-night\ncorpus: held-out.txt\nwindows: [1024]\nheads: all\n"
    )
    assert validate(path) == []
    study = load_study(path)
    found = sources(study)
    assert [(c.name, c.label, c.step, c.window) for c in found] == [
        ("checkpoint-20", "20", 20, 1024),
        ("checkpoint-500", "500", 500, 1024),
        ("checkpoint-1000", "1K", 1000, 1024),
    ]
    assert found[0].source.model == str(tmp_path / "runs" / "last-night" / "checkpoint-20")
    assert study.corpus == CorpusSpec(source=[str(tmp_path / "held-out.txt")])
    assert study.heads.sample is None


def test_families_of_models(write, tmp_path):
    (tmp_path / "local-model").mkdir()
    path = write("""\
name: zoo
windows: [256]
families:
  - label: Pythia
    models: [EleutherAI/pythia-70m, EleutherAI/pythia-70m@step512]
  - label: Own
    models: [local-model, {model: owner/other, label: the other, dtype: float32}]
""")
    study = load_study(path)
    found = sources(study)
    assert study.kind == "models"
    assert [(c.name, c.label, c.phase) for c in found] == [
        ("EleutherAI/pythia-70m", "pythia-70m", "Pythia"),
        ("EleutherAI/pythia-70m@step512", "pythia-70m@step512", "Pythia"),
        ("local-model", "local-model", "Own"),
        ("owner/other", "the other", "Own"),
    ]
    assert found[1].source.revision == "step512"
    assert found[2].source.model == str(tmp_path / "local-model")
    assert [c.source.dtype for c in found] == ["auto", "auto", "auto", "float32"]
    assert [c.folder for c in found][:2] == ["EleutherAI--pythia-70m", "EleutherAI--pythia-70m@step512"]


def test_the_resolved_study_reads_back(write, tmp_path):
    study = load_study(write(TRAINING))
    path = tmp_path / "elsewhere" / "study.yaml"
    path.parent.mkdir()
    path.write_text(dump_study(study, {"missing": {"stage1-step-200": "gone"}}))
    again = load_study(path)
    assert sources(again) == sources(study)
    assert again.provenance == {"missing": {"stage1-step-200": "gone"}}
    assert again.model_dump() == study.model_dump()


def test_timeline_shows_gaps(write):
    study = load_study(write(TRAINING))
    line = timeline_of(study, {"missing": {"stage1-step-200": "gone"}})
    assert [checkpoint.missing for checkpoint in line.checkpoints] == [None, "gone", None]
    assert (line.kind, line.matched_window, line.title) == ("training", 128, "run")
    assert line.models == ["stage1-step-100", "lc-1k-to-2k-step-10"]


def test_every_mistake_at_once_with_its_line(write):
    found = mistakes(
        write("""\
name: a/b
modle: x/y
model: owner/model
groups: "8"
heads: al
windows: [1024, 512]
title: x
title: y
thresholds: {high: 0.2, low: 0.3, hihg: 3}
dtype: bfloat61
portraits: [step-1]
phases:
  - label: A
    window: 2048
    checkpoints: [step-1, step-2, {revision: step-2, lable: x}]
  - label: B
    window: 1024
    checkpoints:
      - {revision: step-5, step: x}
      - 7
      - {revision: step-4, step: 4}
      - {revision: step-3, step: 3}
  - label: B
    checkpoints: []
""")
    )
    expected = {
        1: ["name: 'a/b' "],
        2: ["modle: unknown key (did you mean model?)"],
        4: ["groups: expected a whole number, found '8'"],
        5: ["heads: expected `all`"],
        6: ["windows[1]: 512 comes after 1024"],
        8: ["title: the key is given twice (first on line 7)"],
        9: [
            "thresholds.hihg: unknown key (did you mean high?)",
            "thresholds.low: low (0.3) is above high (0.2)",
        ],
        10: ["dtype: expected one of auto"],
        14: ["phases[0].window: 2048 is not one of windows"],
        15: [
            "phases[0].checkpoints[2].lable: unknown key (did you mean label?)",
            "phases[0].checkpoints[2]: the checkpoint step-2 is listed twice",
        ],
        17: ["phases[1].window: phases out of order: the window decreases from 2048 to 1024"],
        19: ["phases[1].checkpoints[0].step: expected a whole number, found 'x'"],
        20: ["phases[1].checkpoints[1]: expected keys and values, found 7"],
        22: ["phases[1].checkpoints[3]: step 3 comes after step 4"],
        23: ["phases[2].label: two phases are labelled 'B'"],
        24: ["phases[2].checkpoints: expected at least one, found none"],
    }
    wanted = [f"{line}: {text}" for line, texts in expected.items() for text in texts]
    assert len(found) == len(wanted)
    assert all(line.startswith(start) for line, start in zip(found, wanted, strict=True)), found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1: the file is empty"),
        ("# only words\n", "1: the file is empty"),
        ("[1, 2]", "1: expected keys and values"),
        ("just text", "1: expected keys and values"),
        ("a: [", "1: not valid YAML"),
        ("a: b\n\tc: d", "2: not valid YAML"),
        ("name: x\n---\nname: y\n", "2: not valid YAML"),
        ("name: *nowhere\n", "1: not valid YAML"),
        ("name: x\nwindows: [8]\n", "1: nothing to measure"),
        ("name: x\nmodel: a/b\ncheckpoints: [c]\n", "1: windows: missing"),
        ("name: x\nwindows: [8]\ncheckpoints: [{step: 3}]\n", "3: checkpoints[0]: no model given"),
        (
            "name: x\nwindows: [8]\nmodel: a/b\ncheckpoints: [x/y, x--y]\n",
            "4: checkpoints[1]: x--y and x/y would share",
        ),
        (
            "name: x\nwindows: [8]\nmodel: a/b\ncheckpoints: [A, a]\n",
            "4: checkpoints[1]: a and A would share",
        ),
        ("name: x\nwindows: [8]\nmodel: a/b\ncheckpoints: [c]\n1: 3\n", "5: [1]: keys should be strings"),
        (
            "name: x\nwindows: [8]\nmodel: a/b\ncheckpoints: [c]\nportraits: [d]\n",
            "5: portraits[0]: no checkpoint",
        ),
        ("name: x\nwindows: [8]\ncheckpoints: nowhere\n", "3: checkpoints: "),
        ("name: x\nwindows: [8]\nmodel: a/b\ncheckpoints: [c]\ngroups: 1\n", "5: groups: "),
        (
            "name: x\nwindows: [true]\nmodel: a/b\ncheckpoints: [c]\n",
            "2: windows[0]: expected a whole number, found True",
        ),
        (
            "name: 5\nwindows: [8]\nmodel: a/b\ncheckpoints: [c]\n",
            "1: name: expected text, found 5; put it in quotes",
        ),
        ("name: ..\nwindows: [8]\nmodel: a/b\ncheckpoints: [c]\n", "1: name: '..' "),
        (
            "name: x\nwindows: [8]\nmodel: a/b\ncheckpoints: [c]\nfamilies: [{models: [a/b]}]\n",
            "4: checkpoints: found both families and checkpoints",
        ),
        (
            "name: x\nwindows: [8]\nmodel: a/b\ncheckpoints: [{folder: f, revision: r}]\n",
            "4: checkpoints[0]: folder",
        ),
    ],
)
def test_mistakes(write, text, message):
    found = mistakes(write(text))
    assert any(line.startswith(message) for line in found), found


def test_files_that_are_not_there_are_named(write):
    found = mistakes(write("name: x\nwindows: [8]\ncheckpoints: [./gone]\ncorpus: gone.txt\n"))
    assert [line.split(":")[0] for line in found] == ["3", "4"]
    assert "no folder at" in found[0]
    assert "no file or folder at" in found[1]


def test_unreadable_study_files(tmp_path):
    assert "cannot be read" in validate(tmp_path / "none.yaml")[0]
    assert "cannot be read" in validate(tmp_path)[0]
    (tmp_path / "bytes.yaml").write_bytes(b"name: \xff\xfe")
    assert "is not UTF-8" in validate(tmp_path / "bytes.yaml")[0]
    with pytest.raises(StudyError, match="cannot be read"):
        load_study(tmp_path / "none.yaml")


def test_names_as_folders():
    assert folder_name("a/b") == "a--b"
    assert folder_name("stage1-step-40000") == "stage1-step-40000"
    for name in ("..", ".", "a:b", "c*", ".hidden", "x\ny", "a/../b", "end."):
        folder = folder_name(name)
        assert folder not in ("", ".", "..")
        assert not set(folder) & set('/\\:*?"<>|\n')
        assert not folder.startswith(".")


def test_yaml_that_contains_itself_ends(write):
    found = mistakes(write("name: x\nwindows: [8]\nmodel: a/b\ncheckpoints: [c]\nx: &a [*a]\n"))
    assert "an alias that contains itself" in found[0]


def test_dump_is_plain_yaml(write):
    text = dump_study(load_study(write(TRAINING)), {})
    assert yaml.safe_load(text)["phases"][1]["checkpoints"] == [
        {"revision": "lc-1k-to-2k-step-10", "label": "end"}
    ]
