"""Advice names only what exists: options of the commands that can give it, keys of a study, commands."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
import torch
from click.testing import CliRunner

import qkscope
from qkscope.checkpoints import Source
from qkscope.cli import main
from qkscope.scanning.scan import scan
from qkscope.study import Study

SOURCE = Path(qkscope.__file__).parent
# Which commands can say what a file says: a file that names an option has its line here.
SAID_BY = {
    "scanning/head_sets.py": ["ablate"],
    "checkpoints/rope.py": ["whatif"],
    "results/lock.py": ["run", "demo", "scan", "whatif", "analyze", "figures", "report"],
    "results/manifest.py": ["run", "demo", "scan", "whatif", "analyze", "figures", "report"],
    "nano/recipe.py": ["demo"],
    "nano/training.py": ["demo"],
    "results/owner.py": ["run", "demo", "scan", "whatif", "analyze"],
    "run/pipeline.py": ["run"],
    "run/status.py": ["run"],
    "run/watch.py": ["watch"],
    "scanning/scan.py": ["scan"],
    "scanning/subject.py": ["scan"],
    "scanning/analyze.py": ["analyze"],
    "study/init.py": ["init"],
    "vectors.py": ["analyze"],
}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def options(command: str) -> set[str]:
    return {name for parameter in main.commands[command].params for name in parameter.opts}


def texts(tree: ast.AST) -> Iterator[str]:
    """The strings of a file but its docstrings."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def said(path: Path) -> str:
    """All that a file can say of this program: what it says of others' commands stands in backticks."""
    whole = "\n".join(texts(ast.parse(path.read_text())))
    return re.sub(r"`(?!qkscope\b)[^`\n]* --[^`\n]*`", "", whole)


FILES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}


def test_options_in_advice_exist_in_every_command_that_gives_it():
    naming = {name: set(OPTION.findall(said(path))) for name, path in FILES.items() if name != "cli.py"}
    naming = {name: found for name, found in naming.items() if found}
    assert set(naming) == set(SAID_BY), "say in SAID_BY which commands can say it"
    for name, found in naming.items():
        for command in SAID_BY[name]:
            assert found <= options(command), f"{name} names {found - options(command)}, not of {command}"


def test_options_in_a_commands_own_advice_are_its_own():
    tree = ast.parse((SOURCE / "cli.py").read_text())
    found = 0
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        for raised in (node for node in ast.walk(function) if isinstance(node, ast.Raise)):
            named = set(OPTION.findall("\n".join(texts(raised))))
            assert named <= (options(function.name) if function.name in main.commands else set())
            found += len(named)
    assert found


def test_commands_in_advice_exist():
    named = {
        match
        for path in FILES.values()
        for match in re.findall(r"`qkscope ([a-z]+)", "\n".join(texts(ast.parse(path.read_text()))))
    }
    assert named
    assert named <= set(main.commands)


def test_settings_of_a_source_are_keys_of_a_study_and_options_of_a_scan():
    names = {
        node.args[0].value
        for path in FILES.values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setting"
    }
    assert names >= {"allow_pickle", "trust_remote_code", "tokenizer"}
    for name in names:
        assert name in Study.model_fields
        assert Source("m", settings_in="scan").setting(name) in options("scan")
        assert name in inspect.signature(scan).parameters


@pytest.fixture
def pickled(tmp_path):
    folder = tiny.save_checkpoint(tmp_path / "pickled" / "checkpoint-1")
    tiny.tiny_tokenizer().save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(tiny.tiny_model(0).state_dict(), folder / "pytorch_model.bin")
    return folder


@pytest.mark.parametrize("command", ["run", "validate"])
def test_a_study_is_told_its_key(pickled, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("the cat sat " * 60)
    study = tmp_path / "study.yaml"
    study.write_text(f"name: s\ncheckpoints: {pickled.parent}\ncorpus: a.txt\nwindows: [16]\n")
    done = CliRunner().invoke(main, [command, str(study)])
    assert done.exit_code == 1
    assert "`allow_pickle: true` in the study" in done.output
    assert "--allow-pickle" not in done.output


def test_a_scan_is_told_its_option(pickled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("the cat sat " * 60)
    done = CliRunner().invoke(main, ["scan", str(pickled), "--text", "a.txt", "--max-length", "16"])
    assert done.exit_code == 1
    assert "If you trust the source: --allow-pickle" in done.output
    assert "in the study" not in done.output
