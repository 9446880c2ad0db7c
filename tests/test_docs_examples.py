"""Commands and Python blocks of three pages of the documentation, run on a tiny study under the names they use."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from small_study import make_study, run_undrawn, undrawn
from tiny import save_checkpoint

from qkscope.cli import main

DOCS = Path(__file__).parent.parent / "docs"
# What a model of two layers, and a test, can afford.
SMALLER = (
    (r"--windows \S+", "--windows 16,48"),
    (r"windows=\([^)]*\)", "windows=(16, 48)"),
    (r"top:\d+:", "top:2:"),
    (r"--max-length \d+", "--max-length 48"),
    (r"@0-5\b", "@0"),
    (r"SmolLM2-135M-Instruct\.Q4_1\.gguf", "gguf"),
)
MODELS = (
    "MODEL",
    "gguf",
    "HuggingFaceTB/SmolLM2-135M",
    "checkpoints/stage3-step-760",
    "checkpoints/step-1000",
)
DEMO = ("stage1-step-360", "stage2-step-650")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A working directory with everything that the pages name."""
    folder = tmp_path_factory.mktemp("docs")
    study = make_study(folder, groups=2, count=8)
    run_undrawn(study, folder / "results" / "nano")
    for name in MODELS:
        save_checkpoint(folder / name, seed=1, tokenizer=True)
    for seed, name in enumerate(DEMO):
        save_checkpoint(folder / "checkpoints" / name, seed=seed)
        save_checkpoint(folder / "EleutherAI/pythia-2.8b" / f"step{seed}", seed=seed)
    plan = yaml.safe_load(study.read_text()) | {"phases": None, "windows": [16]}
    plan["checkpoints"] = [{"folder": f"checkpoints/{name}"} for name in DEMO]
    (folder / "nano.yaml").write_text(yaml.safe_dump(plan))
    for name in ("long_texts", "corpus", "books"):
        shutil.copytree(folder / "texts", folder / name)
    return folder


def blocks(page: str) -> list[tuple[str, str]]:
    """(kind, text) of the blocks of a page that can be run, in the sizes of this test."""
    text = (DOCS / f"{page}.md").read_text()
    for pattern, smaller in SMALLER:
        text = re.sub(pattern, smaller, text)
    return re.findall(r"```(sh|console|python)\n(.*?)```", text, flags=re.S)


def commands(kind: str, text: str) -> list[list[str]]:
    lines = text.replace("\\\n", " ").splitlines()
    typed = [line.removeprefix("$ ") for line in lines if kind == "sh" or line.startswith("$ ")]
    return [shlex.split(line, comments=True) for line in typed]


@pytest.fixture
def outputs(place, monkeypatch, request, capsys):
    """What the blocks of a page print, one after the other."""
    monkeypatch.chdir(place)
    undrawn(monkeypatch)
    printed = []
    for kind, text in blocks(request.param):
        if kind == "python":
            exec(compile(text, request.param, "exec"), {})  # noqa: S102 (our own page)
            printed.append(capsys.readouterr().out)
            continue
        for program, *arguments in commands(kind, text):
            if program == "cp":
                shutil.copy(*arguments)
                continue
            assert program == "qkscope"
            done = CliRunner().invoke(main, arguments)
            assert done.exit_code == 0, (arguments, done.output)
            printed.append(done.output)
    return printed


@pytest.mark.parametrize("outputs", ["whatif"], indirect=True)
def test_the_what_if_page(outputs, place):
    assert len(outputs) == 4
    section = (DOCS / "whatif.md").read_text().partition("## What it writes")[2].partition("\n## ")[0]
    names = re.findall(r"^\| `([^`]+)` \|", section, flags=re.M)
    assert names
    for model in ("MODEL", "gguf", "stage3-step-760"):
        assert [name for name in names if not (place / f"results/{model}-whatif" / name).exists()] == []
    for text in outputs[:3]:
        assert "nats per token" in text


@pytest.mark.parametrize("outputs", ["ablation"], indirect=True)
def test_the_ablation_page(outputs, place):
    assert len(outputs) == 5
    section = (DOCS / "ablation.md").read_text().partition("## What comes out")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+`) \|", section, flags=re.M)
    names = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    for table in ("ablated/ablation.csv", "results/nano/ablation.csv"):
        assert set(pd.read_csv(place / table).columns) == set(names)


@pytest.mark.parametrize("outputs", ["doctor"], indirect=True)
def test_the_doctor_page(outputs):
    listed, as_json, validated, _ = outputs
    assert "step1" in listed
    assert '"findings"' in as_json
    assert "identical" in validated
    assert all(name in validated for name in DEMO)
