"""Generate docs/study.md, docs/api.md, docs/measures.md and schemas/study.schema.json from the code.

python scripts/generate_reference.py     # tests/test_reference.py checks that they are up to date
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import qkscope
from qkscope.measures.registry import MeasureGroup, Variable, groups
from qkscope.study.load import PARTS
from qkscope.study.schema import Study

ROOT = Path(__file__).parent.parent
STUDY_PAGE = ROOT / "docs" / "study.md"
API_PAGE = ROOT / "docs" / "api.md"
MEASURES_PAGE = ROOT / "docs" / "measures.md"
SCHEMA = ROOT / "schemas" / "study.schema.json"
EDITOR = "# yaml-language-server: $schema=schemas/study.schema.json"
# Sections of the study page, in order: key in the study file -> heading.
HEADINGS = {
    "": "A study",
    "corpus": "corpus",
    "heads": "heads",
    "thresholds": "thresholds",
    "controls": "controls",
    "plasticity": "plasticity",
    "alarms": "alarms",
    "phases": "phases",
    "families": "families",
    "checkpoints": "checkpoints and models",
}
# Shorthands are expanded before pydantic validates the file, so the editors' schema must allow them as well.
TEXT = {"type": "string"}


def study_schema() -> dict[str, Any]:
    """The JSON Schema of a study file, including shorthands."""
    schema = Study.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["properties"].pop("provenance")
    properties, parts = schema["properties"], schema["$defs"]
    texts = {"type": "array", "items": TEXT}
    properties["corpus"] = {"anyOf": [TEXT, texts, properties["corpus"]]}
    properties["heads"] = {"anyOf": [{"const": "all"}, properties["heads"]]}
    parts["CorpusSpec"]["properties"]["source"] = {
        "anyOf": [TEXT, parts["CorpusSpec"]["properties"]["source"]]
    }
    entries = {"type": "array", "minItems": 1, "items": {"anyOf": [TEXT, {"$ref": "#/$defs/Entry"}]}}
    listed = parts["Phase"]["properties"]["checkpoints"]
    parts["Phase"]["properties"]["checkpoints"] = {
        "anyOf": [TEXT, entries],
        **{name: listed[name] for name in ("title", "description") if name in listed},
    }
    parts["Family"]["properties"]["models"] |= {"items": entries["items"]}
    properties["checkpoints"] |= {"anyOf": [TEXT, entries, {"type": "null"}]}
    return schema


def study_page() -> str:
    """docs/study.md: an example of each kind of study, then every key with its default and meaning."""
    lines = [
        "# The study file",
        "",
        "A study file lists the checkpoints to measure, the texts to measure them on, and the settings.",
        "`qkscope init FOLDER|MODEL` writes one to start from; `qkscope validate` reports every mistake with its line.",
        "Paths are relative to the file. Editors can complete and check keys with `schemas/study.schema.json`.",
        f"With the YAML language server, start the file with `{EDITOR}`.",
        "",
        *EXAMPLES.strip().splitlines(),
    ]
    for key, heading in HEADINGS.items():
        part = PARTS[key]
        lines += ["", f"## {heading}", "", _opening(part), "", "| key | default | |", "|---|---|---|"]
        lines += [_row(name, field) for name, field in part.model_fields.items() if name != "provenance"]
    return "\n".join(lines) + "\n"


def _opening(part: type[BaseModel]) -> str:
    return " ".join((inspect.getdoc(part) or "").split())


def _row(name: str, field: Any) -> str:
    if field.is_required():
        default = "required"
    elif isinstance(field.default, BaseModel):
        default = "as below"
    else:
        default = "" if field.default in (None, "") else f"`{json.dumps(field.default)}`"
    return f"| `{name}` | {default} | {field.description} |"


EXAMPLES = """
One training run, from a folder of checkpoints:

```yaml
name: last-night
checkpoints: runs/last-night   # checkpoint-500, checkpoint-1000, ...
corpus: held-out/
windows: [1024]
```

A base run and its long-context continuation, each in its own folder (`qkscope init runs/base runs/long` writes this).
If step numbers restart, labels contain the phase and, in parentheses, the total step: `base-400`, `long-40 (440)`:

```yaml
name: base-long
corpus: held-out/
windows: [1024, 4096]
phases:
  - label: base
    window: 1024
    checkpoints: runs/base
  - label: long
    window: 4096
    checkpoints: runs/long
```

Phases of one run on the hub. If the context window grew, every checkpoint is also measured over the smallest window:

```yaml
name: smollm3-short
model: HuggingFaceTB/SmolLM3-3B-checkpoints
corpus: {source: "hub:HuggingFaceFW/fineweb", documents: 64}
windows: [4096, 32768]
heads: {sample: 300, seed: 0}
phases:
  - label: Stage 1
    window: 4096
    checkpoints: [stage1-step-40000, stage1-step-1200000]
  - label: Long context
    window: 32768
    checkpoints: [lc-4k-to-32k-step-20000]
```

Families: different models side by side, each measured over the same window:

```yaml
name: small-models
corpus: stdlib
windows: [2048]
families:
  - label: Pythia
    models: [EleutherAI/pythia-160m, EleutherAI/pythia-410m@step143000]
  - label: SmolLM2
    models:
      - {model: HuggingFaceTB/SmolLM2-135M, label: "135M"}
      - {model: HuggingFaceTB/SmolLM2-360M, label: "360M", dtype: bfloat16}
```
"""


def api_page() -> str:
    """docs/api.md: examples that a test executes, then every public name with its signature and docstring."""
    lines = ["# Python", "", *API_EXAMPLES.strip().splitlines()]
    for name in qkscope.__all__:
        thing = getattr(qkscope, name)
        kind = "class" if inspect.isclass(thing) else "def"
        lines += [
            "",
            f"## {name}",
            "",
            "```text",
            f"{kind} {_signature(name, thing)}",
            "```",
            "",
            *_words(thing),
        ]
        for member in (
            ("own", "matched", "to_dataframe", "head", "changed", "rethreshold") if name == "Results" else ()
        ):
            method = getattr(thing, member)
            lines += [
                "",
                f"### Results.{member}",
                "",
                "```text",
                f"def {_signature(member, method)}",
                "```",
                "",
            ]
            lines += _words(method)
    return "\n".join(lines) + "\n"


def _signature(name: str, thing: Any) -> str:
    """Name and signature of a function; a class by its name only, since its docstring describes its fields."""
    if inspect.isclass(thing):
        return name
    # Annotations are strings in modules with postponed evaluation: remove the quotes.
    return name + re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(thing)))


def _words(thing: Any) -> list[str]:
    """The docstring: first paragraph as text, the rest verbatim."""
    first, _, rest = (inspect.getdoc(thing) or "").partition("\n\n")
    words = [" ".join(first.split())]
    return [*words, "", "```text", *rest.splitlines(), "```"] if rest else words


def measures_page() -> str:
    """docs/measures.md: every variable of the dataset, by group, as its declaration describes it."""
    lines = ["# Measures", "", *MEASURES_TEXT.strip().splitlines()]
    for group in sorted(groups().values(), key=lambda group: group.optional):
        lines += ["", f"## {group.name}", "", _about(group), ""]
        lines += ["| variable | label | units | dimensions | error | |", "|---|---|---|---|---|---|"]
        lines += map(_variable_row, group.variables)
    return "\n".join(lines) + "\n"


def _about(group: MeasureGroup) -> str:
    asked = (
        f"Computed where a study has it in `measures: [{group.name}]`"
        if group.optional
        else "Always computed"
    )
    sums = ", ".join(f"`{name}`" for name in (*group.needs, *(kind.name for kind in group.sums)))
    optional = f" (and {', '.join(f'`{name}`' for name in group.uses)} where measured)" if group.uses else ""
    return (
        f"{asked}, from the sums {sums}{optional}."
        if "," in sums
        else f"{asked}, from the sum {sums}{optional}."
    )


def _variable_row(variable: Variable) -> str:
    error = ("if its axis is stable" if variable.along_axis else "yes") if variable.sampled else ""
    cells = (variable.label, variable.units, ", ".join(variable.dims), error, variable.description)
    return f"| `{variable.name}` | {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


MEASURES_TEXT = """
Every number of a study is a variable of `measures.safetensors` (`results.data` in Python). This page lists them as
declared in `qkscope/measures/`; [methods](methods.md) has the formulas. Labels, units and descriptions are also stored
with the data (`results.data["r_q"].attrs`).

A variable without further dimensions is one number per head and a column of `heads.csv`. If it has an error, the column
`<name>_se` follows it: the delete-one-group jackknife standard error over documents. *If its axis is stable*: the
number is along a first principal axis, and has no error in heads where leaving out a group changes that axis. A
variable with further dimensions is a curve, spectrum or map; its error is the variable `<name>_se`. `qk.csv` has the
variables over `pc`.

Measures of other installed packages ([extending](extending.md)) are in the results as well, but not on this page.
"""


API_EXAMPLES = """
Everything that the commands do is available from Python. `Results` is immutable; its numbers are one
[xarray](https://docs.xarray.dev) dataset, and tables made from it are pandas DataFrames.

```python
import qkscope

results = qkscope.load_results("results/nano")
print(results)  # summary per checkpoint
results.heads  # one row per checkpoint and head: every measure with its error, class
results.qk  # one row per checkpoint, head and principal component
```

The dataset has the dimensions `cell` (a checkpoint over a window), `sample` (0: all documents, g: without group g) and
`head`; curves and spectra have further ones ([all variables](measures.md)). `own()` and `matched()` select the cells of
the training contexts and of the first N tokens, by checkpoint. Variables are read from disk when they are used:

```python
r_q = results.own()["r_q"].isel(sample=0)  # (checkpoint, head)
r_q.attrs["description"]
r_q.sel(head="L4H2").to_series()
```

For means over heads, use the functions in `qkscope.results.aggregate`: they handle heads without a number and compute
errors over documents. RoPE and NoPE heads are different populations:

```python
from qkscope.results.aggregate import means

means(results.own(), results.timeline.models, ["r_q", "r_k"], population="RoPE")
```

One head over training, and the heads that changed most. Errors are standard errors over documents, paired for changes:

```python
first, last = results.timeline.models[0], results.timeline.models[-1]
one_head = results.head(layer=4, head=2)
moved = results.changed(first, last, n=10, by="r_q", matched=True)
```

Other class thresholds, the study's claims, a figure one paper column wide:

```python
strict = results.rethreshold(high=0.8, low=0.2)
for claim in qkscope.claims_of(strict):
    print(claim.headline)
drawing = qkscope.figure("position_signal", strict, width=3.3)  # a notebook displays it
drawing.figure.savefig("signal.pdf")
```

Compare two runs, and combine several runs into one `Results`:

```python
table = qkscope.compare("results/nano", "results/again").table()
both = qkscope.concat(["results/nano", "results/again"])
both.heads.groupby("model")["r_q"].mean()
```
"""


def main() -> None:
    STUDY_PAGE.write_text(study_page(), encoding="utf-8")
    API_PAGE.write_text(api_page(), encoding="utf-8")
    MEASURES_PAGE.write_text(measures_page(), encoding="utf-8")
    SCHEMA.parent.mkdir(exist_ok=True)
    SCHEMA.write_text(json.dumps(study_schema(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
