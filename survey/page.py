"""docs/models.md: a line for every causal family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
import transformers

from survey.build import FAMILIES
from survey.check import EXACT, LENGTHS, NOT_BUILT, REFUSED, SECOND, WRONG, Verdict

HEAD = """# Models

Made with transformers {transformers} and torch {torch}, the versions that constraints.txt pins. A family that is not
listed here is not yet surveyed: the checks that run before every measurement decide whether it can be measured.
`make families` does the survey again and writes this page.

Every causal language-model family of that release was built small, with random weights, through its real classes. What
qkscope captures was compared with the operands of the attention product itself, recorded below every attention function
in an uncaptured run; the model's outputs had to stay the same bit for bit. Documents of {lengths} tokens measured
together had to give the same moments as one by one.

| families | | |
|---:|---|---|
{counts}

**Exact**: queries and keys are those of the score product, after rotation and norms, before key heads are repeated, and
the score's scale is the one that is recorded. *First seam*: the function that the model gets from transformers'
attention interface. *Second seam*: the product itself, in families that compute it outside that interface.
**Layers**: which are measured by default. Layers with a sliding window are left out, unless all slide and no document
is longer than the window. **Rotates**: what a probe of the measured layers shows; `alibi` is a bias by distance.
**Lengths**: documents of different lengths share a pass (together) unless padding changes queries or keys, as in
families that choose their keys (apart): there only documents of equal length share one. Each model is probed for it
before it is measured, whatever this page says.

What holds for any model: a family whose tokens see those to come is refused when a probe shows it (`BertForMaskedLM`,
`is_decoder=False`, bidirectional Gemma). Adapters that change weights (LoRA and its kin) are measured as they run;
prompt and prefix tuning are refused. Where a rotation depends on the length of a pass (longrope, dynamic NTK), several
windows are refused: give each a study of its own.
"""
MEANING = {
    EXACT: "through the attention interface",
    SECOND: "through the score product",
    REFUSED: "with a reason, before anything is measured",
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
        "| family | class | seam | layers | rotates | lengths |",
        "|---|---|---|---|---|---|",
    ]
    seams = {EXACT: "first", SECOND: "second"}
    return lines + [line(v, seams[v.kind], v.layers, v.rope, v.lengths) for v in verdicts if v.kind in seams]


def _others(verdicts: Sequence[Verdict], kind: str) -> list[str]:
    lines = [f"## {kind.capitalize()}", "", "| family | class | why |", "|---|---|---|"]
    return lines + [line(v, " ".join(v.why.split())) for v in verdicts if v.kind == kind]


def line(verdict: Verdict, *cells: str) -> str:
    """One row: the family, its class, and what is said of it."""
    return f"| {' | '.join([verdict.family, f'`{FAMILIES[verdict.family]}`', *cells])} |"
