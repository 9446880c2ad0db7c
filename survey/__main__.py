"""make families: check every family and write docs/models.md."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from transformers.utils import logging

from survey.build import FAMILIES
from survey.check import EXACT, SECOND, WRONG, check
from survey.page import page

PAGE = Path(__file__).parent.parent / "docs" / "models.md"


def main() -> int:
    """Check all families; 1 if any is wrong."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    verdicts = []
    for family in sorted(FAMILIES):
        verdicts.append(check(family))
        print(f"{family}: {verdicts[-1].kind} {verdicts[-1].why}"[:200], flush=True)
    wrong = [verdict.family for verdict in verdicts if verdict.kind == WRONG]
    if wrong:
        print(f"{len(wrong)} wrong: {', '.join(wrong)}; {PAGE.name} was not changed")
        return 1
    PAGE.write_text(page(verdicts))
    print(f"{sum(v.kind in (EXACT, SECOND) for v in verdicts)} of {len(verdicts)} families exact: {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
