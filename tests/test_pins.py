"""Versions: everything that is installed for development is pinned, and every way to install it uses the pins."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import warnings
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts.freeze_constraints import frozen

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """The pinned version of each package; every line that is no comment pins one exactly."""
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#")]
    found = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines]
    assert all(found), lines
    pinned = {plain(each[1]): each[2] for each in found if each}
    assert len(pinned) == len(lines)
    return pinned


def needed(name: str, extras: frozenset[str]) -> list[Requirement]:
    """What a package needs here. Of the package itself as pyproject.toml says it."""
    if name == "qkscope":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        own = project["project"]
        lists = [own["dependencies"], project["build-system"]["requires"]]
        lists += [own["optional-dependencies"][extra] for extra in extras]
        return [Requirement(text) for each in lists for text in each]
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return []
    # What a newer release needs besides is not our business before it is pinned.
    if found.version.partition("+")[0] != pins().get(name):
        return []
    every = [Requirement(text) for text in found.requires or ()]
    return [
        each
        for each in every
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


def test_everything_that_development_installs_is_pinned() -> None:
    pinned, seen = pins(), set()
    waiting = [("qkscope", frozenset({"dev"}))]
    while waiting:
        if (one := waiting.pop()) not in seen:
            seen.add(one)
            waiting += [(plain(each.name), frozenset(each.extras)) for each in needed(*one)]
    names = {name for name, _ in seen} - {"qkscope"}
    assert len(names) > 100
    assert sorted(names - set(pinned)) == []


def test_a_deprecation_in_a_dependency_is_no_error_and_other_warnings_are() -> None:
    for kind in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
        with warnings.catch_warnings(record=True) as told:
            warnings.warn("will change", kind, stacklevel=2)
        assert [each.category for each in told] == [kind]
    with pytest.raises(UserWarning, match="look out"):
        warnings.warn("look out", UserWarning, stacklevel=2)


def test_freezing_takes_installed_versions_and_keeps_other_pins() -> None:
    text = "# First.\n# Second.\nappnope==0.1.4\nJinja2==3.0\ntorch==2.12.0\n"
    installed = {"jinja2": "3.1.6", "torch": "2.13.0+cpu", "new_one": "1.0", "pip": "26", "qkscope": "0.2"}
    assert frozen(text, installed) == (
        "# First.\n# Second.\nappnope==0.1.4\njinja2==3.1.6\nnew_one==1.0\ntorch==2.13.0\n"
    )


def setup(repository: Path, what: str, *, reachable: bool) -> tuple[str, str]:
    """What `setup.sh` gives to pip, and the constraints it sets, where PyTorch's index can be reached or not."""
    (repository / "scripts").mkdir()
    for name in ("scripts/setup.sh", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, repository / name)
    for place in (".venv", ".venv-bench", ".venv-latest", ".venv-lowest"):
        programs = repository / place / "bin"
        programs.mkdir(parents=True)
        pip = 'echo "$@" >>said.txt; cat "$PIP_CONSTRAINT" >pinned.txt; cmp "$PIP_CONSTRAINT" "$PIP_BUILD_CONSTRAINT"'
        # Started without a program, it is asked for the oldest versions; else whether the index answers.
        python = f'if [ "$1" = - ]; then exec {sys.executable} "$@"; fi; exit {int(not reachable)}'
        for name, code in (("pip", pip), ("python", python)):
            (programs / name).write_text(f"#!/bin/sh\n{code}\n")
            (programs / name).chmod(0o755)
    done = subprocess.run(
        ["sh", "scripts/setup.sh", what, sys.executable],
        cwd=repository,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return (repository / "said.txt").read_text(), (repository / "pinned.txt").read_text()


@pytest.mark.parametrize(
    ("what", "extras"), [("demo", "[capture]"), ("environment", "[dev]"), ("peers", "[dev,bench]")]
)
def test_every_environment_is_installed_with_the_pins(tmp_path: Path, what: str, extras: str) -> None:
    said, pinned = setup(tmp_path, what, reachable=False)
    assert f"-e .{extras}" in said
    assert pinned == CONSTRAINTS.read_text()


def test_the_newest_releases_are_tried_with_the_pinned_torch(tmp_path: Path) -> None:
    said, pinned = setup(tmp_path, "latest", reachable=False)
    assert "--upgrade" in said
    assert pinned == f"torch=={pins()['torch']}\n"


def test_the_oldest_versions_are_tried_with_the_pinned_tools(tmp_path: Path) -> None:
    _, pinned = setup(tmp_path, "lowest", reachable=False)
    assert "\nnumpy==" in pinned
    assert f"numpy=={pins()['numpy']}" not in pinned
    assert f"pytest=={pins()['pytest']}\n" in pinned


@pytest.mark.parametrize("reachable", [True, False])
def test_the_cpu_build_of_torch_where_its_index_answers(tmp_path: Path, reachable: bool) -> None:
    said, _ = setup(tmp_path, "demo", reachable=reachable)
    wanted = reachable and sys.platform == "linux" and not Path("/dev/nvidia0").exists()
    assert (CPU_INDEX in said) == wanted
