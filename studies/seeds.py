"""Which claims of the demo hold in several training runs: trains some seeds and writes docs/seeds.md.

    python studies/seeds.py results/seeds              # about six minutes a seed on two cores; resumes
    python studies/seeds.py results/seeds --write-only # the page again, from finished results

The seed decides the initial weights, the batches and which files are held out to be measured on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from qkscope import load_results
from qkscope.claims import Claim, Row, claims
from qkscope.claims.catalogue import CLAIMS
from qkscope.claims.context import Context
from qkscope.words import listing

PAGE = Path(__file__).resolve().parent.parent / "docs" / "seeds.md"
INTRODUCTION = """\
# Seeds of the demo

`qkscope demo` trains one small model, and its report describes that run. Errors over documents do not include
the variation between training runs, so this page compares runs of the same recipe with the seeds {seeds}; the seed
decides the initial weights, the batches and which files are held out. README and docs state as findings only what
holds in all of them. The page is written by `python studies/seeds.py results/seeds`.

`±` is one standard error over the documents of that run. Numbers of different seeds differ by many of these errors:
only the direction of a change is compared here, not its size. A verdict that all runs share is in bold.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the runs are, or are to be: FOLDER/seed-0 and so on")
    parser.add_argument(
        "--write-only", action="store_true", help="do not train or measure; write the page only"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    asked = parser.parse_args()
    folders = [asked.folder / f"seed-{seed}" for seed in asked.seeds]
    if not asked.write_only:
        from qkscope.nano import demo

        for seed, folder in zip(asked.seeds, folders, strict=True):
            demo(folder, seed=seed)
    found = [_claims(folder) for folder in folders]
    PAGE.write_text(page(asked.seeds, found), encoding="utf-8")
    print(f"written: {PAGE}")


def _claims(folder: Path) -> dict[str, Claim]:
    """All claims of a run by id, also those beyond the number that a report has."""
    results = load_results(folder)
    ranked = [claim.id for claim in claims(results)]
    context = Context(results)
    made = {claim.id: claim for make in CLAIMS if (claim := make(context)) is not None}
    return {name: made[name] for name in dict.fromkeys((*ranked, *made))}


def page(seeds: Sequence[int], runs: Sequence[dict[str, Claim]]) -> str:
    """The claims of the first run beside those of the others, then every judged number."""
    names = [name for name in runs[0] if all(name in run for run in runs)]
    heads = " | ".join(f"seed {seed}" for seed in seeds)
    rule = "|---" * (len(seeds) + 2) + "|"
    verdicts = [
        [
            runs[0][name].question,
            *(run[name].verdict for run in runs),
            _same([run[name].verdict for run in runs]),
        ]
        for name in names
    ]
    numbers = []
    for name in names:
        keyed = [{_key(row): row for row in run[name].rows} for run in runs]
        for key, row in keyed[0].items():
            same = [each.get(key) for each in keyed]
            if row.verdict == "level" or None in same:
                continue
            found = [each for each in same if each is not None]
            numbers.append(
                [_what(row), *(each.text for each in found), _same([each.verdict for each in found])]
            )
    lines = [
        INTRODUCTION.format(seeds=listing([str(seed) for seed in seeds])),
        "## Claims",
        "",
        f"| question | {heads} | same in all |",
        rule,
        *map(_line, verdicts),
        "",
    ]
    lines += [
        "## Changes and differences",
        "",
        f"| number | {heads} | same in all |",
        rule,
        *map(_line, numbers),
        "",
    ]
    lines += ["## Headlines", ""]
    for name in names:
        lines += [f"**{runs[0][name].question}**", ""]
        lines += [f"- seed {seed}: {run[name].headline}" for seed, run in zip(seeds, runs, strict=True)] + [
            ""
        ]
    return "\n".join(lines)


def _same(verdicts: Sequence[str]) -> str:
    """The verdict that all runs share; `no` where they differ, `not clear` where one of them is unclear."""
    if "unclear" in verdicts:
        return "not clear"
    return f"**{verdicts[0]}**" if len(set(verdicts)) == 1 else "no"


def _key(row: Row) -> tuple[object, ...]:
    return row.measure, row.population, row.model, row.from_model, row.window, row.at, row.effect


def _what(row: Row) -> str:
    window = "first 256 tokens" if row.window == "matched" else "training context"
    ends = f"{row.from_model} to {row.model}" if row.from_model else row.model
    return f"{row.what}, {ends}, {window}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    main()
