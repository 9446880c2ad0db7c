"""The house: what is public, what is imported when, what the command line says of itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import qkscope
from qkscope.cli import main

SOURCE = Path(qkscope.__file__).parent
# The only modules that may import torch, transformers or the hub's client, and only inside functions.
READ_MODELS = {"checkpoints", "corpus", "capture", "scanning", "nano", "integrations"}
HEAVY = {"torch", "transformers", "huggingface_hub", "tokenizers", "gguf", "accelerate"}


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", qkscope.__all__)
def test_every_public_name_is_there_and_documented(name):
    thing = getattr(qkscope, name)
    assert callable(thing)
    assert thing.__doc__


def test_public_names_are_sorted_and_others_are_refused():
    assert qkscope.__all__ == sorted(qkscope.__all__)
    assert set(qkscope.__all__) <= set(dir(qkscope))
    with pytest.raises(AttributeError, match="no attribute 'scna'"):
        qkscope.scna  # noqa: B018


def test_public_functions_survive_the_import_of_their_modules():
    """A submodule of the same name would take a function's place once it is imported."""
    python(
        "import importlib, pkgutil, qkscope\n"
        "for m in pkgutil.iter_modules(qkscope.__path__): importlib.import_module('qkscope.' + m.name)\n"
        "assert all(callable(getattr(qkscope, n)) for n in qkscope.__all__)"
    )


def test_importing_the_package_and_the_command_line_is_light():
    heavy = python(
        "import sys, qkscope, qkscope.cli\n"
        "print([m for m in ('torch', 'transformers', 'pandas', 'matplotlib', 'pyarrow', 'ray') if m in sys.modules])"
    )
    assert heavy.strip() == "[]"


def imports(path: Path) -> list[tuple[str, bool]]:
    """(top module, whether it is imported at module level) for every import outside TYPE_CHECKING blocks."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        found += [(name.split(".")[0], node in tree.body) for name in names]
    return found


def test_only_what_reads_models_imports_torch():
    for path in SOURCE.rglob("*.py"):
        used = {name for name, _ in imports(path)} & HEAVY
        if path.relative_to(SOURCE).parts[0] not in READ_MODELS:
            # These turn tensors they are handed into sums: they import torch only once a tensor has come in.
            assert used <= ({"torch"} if path.parent.name == "sums" else set()), f"{path} imports {used}"
        if "integrations" not in path.parts:  # a callback is a subclass of its framework's
            assert not {name for name, top in imports(path) if top} & HEAVY, f"{path} imports at module level"


def test_from_moments_on_nothing_needs_torch(tmp_path):
    """With torch and transformers unimportable, a foreign table still gives figures, findings and a report."""
    rows = ["model,layer,head,pc,r_q,r_k"]
    rows += [
        f"step{s},{layer},{h},0,{0.1 * s + 0.05 * h:.2f},{0.3 - 0.1 * h:.2f}"
        for s in (1, 5)
        for layer in range(4)
        for h in range(3)
    ]
    (tmp_path / "qk.csv").write_text("\n".join(rows) + "\n")
    python(
        "import sys\n"
        "for name in ('torch', 'transformers', 'huggingface_hub', 'ray'): sys.modules[name] = None\n"
        "import qkscope\n"
        f"results = qkscope.load_results({str(tmp_path)!r})\n"
        "qkscope.claims_of(results)\n"
        "qkscope.draw_all(results)\n"
        "qkscope.write_report(results)\n"
    )
    assert (tmp_path / "report.html").is_file()
    assert any((tmp_path / "figures").iterdir())


@pytest.mark.parametrize(
    "command",
    ["demo", "run", "watch", "validate", "ls", "scan", "analyze", "figures", "report", "compare", "status"],
)
def test_every_command_explains_itself(command):
    done = CliRunner().invoke(main, [command, "--help"])
    assert done.exit_code == 0
    assert len(done.output.splitlines()) > 4


@pytest.mark.parametrize("command", ["figures", "report", "status", "validate"])
def test_no_such_place_is_a_sentence(command, tmp_path):
    done = CliRunner().invoke(main, [command, str(tmp_path / "nowhere")])
    assert done.exit_code == 1
    assert "nowhere" in done.output
    assert "Traceback" not in done.output


# Data flows one way: each package may import those of its own line and of the lines before.
ORDER = [
    ["errors", "store", "progress", "words", "defaults", "workers"],
    ["checkpoints"],
    ["study"],
    ["corpus"],
    ["sums"],
    ["vectors"],
    ["capture"],
    ["measures"],
    ["results"],
    ["stats"],
    ["claims"],
    ["published", "comparison"],
    ["figures"],
    ["report"],
    ["run"],
    ["scanning"],
    ["monitor"],
    ["integrations"],
    ["nano"],
    ["cli", "__main__"],
]


def _imported(path: Path) -> set[str]:
    """The packages of qkscope that a file names in any import, also in a late one."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "qkscope" else [f"qkscope.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("qkscope.")}
    return found


def test_imports_follow_the_order_of_packages():
    rank = {name: i for i, line in enumerate(ORDER) for name in line}
    upward = []
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE)
        if place.name == "__init__.py" and len(place.parts) == 1:
            continue
        own = place.parts[0].removesuffix(".py")
        assert own in rank, f"{place}: say in ORDER where {own} stands"
        upward += [f"{place} imports {name}" for name in _imported(path) if rank.get(name, 0) > rank[own]]
    assert upward == []


def test_package_files_only_re_export():
    """Code lives in named files: an `__init__.py` has a docstring, imports and `__all__`, nothing else."""
    busy = []
    for path in sorted(SOURCE.rglob("__init__.py")):
        allowed = (ast.ImportFrom, ast.Import, ast.Expr, ast.Assign)
        if path.parent != SOURCE and not all(
            isinstance(n, allowed) for n in ast.parse(path.read_text()).body
        ):
            busy.append(str(path.relative_to(SOURCE)))
    assert busy == []
