"""The reference pages and the schema for editors: as the code is, and every example of them runs."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path

import jsonschema
import pytest
import yaml
from frames import write_example

from qkscope.measures.registry import groups
from qkscope.study import load_study, validate
from scripts import generate_reference as made

ROOT = Path(__file__).parent.parent
AGAIN = "run scripts/generate_reference.py"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.S)


def test_the_pages_and_the_schema_are_as_the_code_is():
    assert made.STUDY_PAGE.read_text() == made.study_page(), AGAIN
    assert made.API_PAGE.read_text() == made.api_page(), AGAIN
    assert made.MEASURES_PAGE.read_text() == made.measures_page(), AGAIN
    assert json.loads(made.SCHEMA.read_text()) == made.study_schema(), AGAIN


def test_every_key_says_what_it_means():
    schema = made.study_schema()
    parts = {"Study": schema, **schema["$defs"]}
    silent = [
        f"{name}.{key}"
        for name, part in parts.items()
        for key in part["properties"]
        if f"| `{key}` |" not in made.STUDY_PAGE.read_text()
    ]
    assert silent == []
    assert "| None |" not in made.STUDY_PAGE.read_text()


def test_every_measure_of_the_package_is_on_its_page():
    page = made.MEASURES_PAGE.read_text()
    for group in groups().values():
        assert f"## {group.name}\n" in page
        for variable in group.variables:
            assert variable.description
            assert f"| `{variable.name}` |" in page


@pytest.fixture
def folder(tmp_path):
    """What the examples name: runs with two checkpoints each, and texts."""
    for run, step in product(("last-night", "base", "long"), (500, 1000)):
        place = tmp_path / "runs" / run / f"checkpoint-{step}"
        place.mkdir(parents=True)
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            (place / name).write_text("{}")
    (tmp_path / "held-out").mkdir()
    return tmp_path


@pytest.mark.parametrize("number", range(4))
def test_each_study_on_the_page_is_right_for_qkscope_and_for_editors(folder, number):
    text = blocks(made.STUDY_PAGE, "yaml")[number]
    (folder / "study.yaml").write_text(text)
    assert validate(folder / "study.yaml") == []
    jsonschema.validate(yaml.safe_load(text), made.study_schema())


def test_the_studies_of_the_repository_are_right_for_editors():
    for path in (ROOT / "studies").glob("*.yaml"):
        jsonschema.validate(yaml.safe_load(path.read_text()), made.study_schema())
        assert load_study(path)


@pytest.mark.parametrize("wrong", ["windws: [4]", "groups: 1", "corpus: 7", "heads: some", "dtype: float8"])
def test_editors_refuse_what_qkscope_refuses(wrong):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(f"name: a\ncheckpoints: b\n{wrong}"), made.study_schema())


def test_every_example_of_the_python_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("nano", "again"):
        write_example(tmp_path / "results" / name, name)
    names: dict[str, object] = {}
    for block in blocks(made.API_PAGE, "python"):
        exec(compile(block, str(made.API_PAGE), "exec"), names)  # noqa: S102
    assert (tmp_path / "signal.pdf").is_file()
    assert len(names["moved"]) == 10
    assert len(names["both"].timeline.models) == 2 * len(names["results"].timeline.models)
