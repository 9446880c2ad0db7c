"""docs/models.md: one row per causal family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
import transformers

from survey.build import FAMILIES
from survey.check import EXACT, LENGTHS, NOT_BUILT, REFUSED, SECOND, WRONG, Verdict

HEAD = """# Supported models

This page was generated with transformers {transformers} and torch {torch}, the versions pinned in constraints.txt.
A family that is not listed has not been surveyed; the checks that run before every measurement decide whether it
can be measured. `make families` repeats the survey and rewrites this page.

The survey builds every causal language-model family of that release from its real classes, small and with random
weights. It compares what qkscope captures with the operands of the attention product, recorded below all attention
functions in a run without capture. The model's outputs with and without capture must agree bit for bit. Documents
of {lengths} tokens measured in one batch must give the same moments as one by one.

| families | | |
|---:|---|---|
{counts}

**Exact**: the captured queries and keys are the operands of the score product, after rotation and norms, before key
heads are repeated, and the recorded scale is that of the scores. **Hook**: *interface* is the attention function
that the model gets from transformers; *product* is the score product itself, for families that do not use that
interface. **Layers**: the layers measured by default. Sliding-window layers are left out, unless all layers slide
and no document is longer than the window. **Rotates**: whether a test pass shows rotary embedding in the measured
layers; `alibi` is a bias by distance. **Lengths**: *together*: documents of different lengths share a batch;
*apart*: padding would change queries or keys (families with sparse key selection), so only documents of equal
length share one. Every model is tested for this again before it is measured.

For all models: a model whose tokens attend to later tokens is refused if a test pass shows it (`BertForMaskedLM`,
`is_decoder=False`, bidirectional Gemma). Adapters that change weights (LoRA and similar) are measured as they run;
prompt and prefix tuning are refused. If the rotation depends on the length of the pass (longrope, dynamic NTK), a
study with several windows is refused: use one study per window.
"""
MEANING = {
    EXACT: "hooked at the attention interface",
    SECOND: "hooked at the score product",
    REFUSED: "with the reason, before anything is measured",
    NOT_BUILT: "transformers needs more than a configuration and tokens, or another package",
    WRONG: "",
}


def page(verdicts: Sequence[Verdict]) -> str:
    """The whole page."""
    count = Counter(verdict.kind for verdict in verdicts)
    counts = "\n".join(
        f"| {count[kind]} | {kind} | {meaning} |".replace("  ", " ") for kind, meaning in MEANING.items()
    )
    head = HEAD.format(
        counts=counts,
        transformers=transformers.__version__,
        torch=torch.__version__.partition("+")[0],
        lengths=" and ".join([", ".join(map(str, LENGTHS[:-1])), str(LENGTHS[-1])]),
    )
    return "\n".join(
        [head, *_measured(verdicts), "", *_others(verdicts, REFUSED), "", *_others(verdicts, NOT_BUILT), ""]
    )


def _measured(verdicts: Sequence[Verdict]) -> list[str]:
    lines = [
        "## Measured",
        "",
        "| family | class | hook | layers | rotates | lengths |",
        "|---|---|---|---|---|---|",
    ]
    hooks = {EXACT: "interface", SECOND: "product"}
    return lines + [line(v, hooks[v.kind], v.layers, v.rope, v.lengths) for v in verdicts if v.kind in hooks]


def _others(verdicts: Sequence[Verdict], kind: str) -> list[str]:
    lines = [f"## {kind.capitalize()}", "", "| family | class | why |", "|---|---|---|"]
    return lines + [line(v, " ".join(v.why.split())) for v in verdicts if v.kind == kind]


def line(verdict: Verdict, *cells: str) -> str:
    """One row: the family, its class and the other cells."""
    return f"| {' | '.join([verdict.family, f'`{FAMILIES[verdict.family]}`', *cells])} |"
