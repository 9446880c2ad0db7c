"""Write the counts of `make soak` to docs/reliability.md: run `python -m soak.page` in `tests/` afterwards."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from faults import FLUSH, KILL, SHORT

from soak.__main__ import COUNTS, ROOT

PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- soak: begin -->\n", "<!-- soak: end -->\n"


def table(counts: dict[str, Any]) -> str:
    """What was tried and the results, as Markdown."""
    fuzz, faults = counts["fuzz"], counts["faults"]
    readers = fuzz["readers"].values()
    rows = [
        [
            f"damaged and hostile files, {len(readers)} readers",
            sum(entry["executions"] for entry in readers),
            f"{sum(e['read'] for e in readers):,} read, {sum(e['refused'] for e in readers):,} refused with a message; "
            f"slowest {max(e['slowest'] for e in readers):.1f} s, at most {fuzz['most_memory_bytes'] / 1e6:,.0f} MB",
            sum(len(entry["findings"]) for entry in readers),
        ]
    ]
    flushes = [at for at, what in enumerate(faults.get("operations", []), 1) if what == FLUSH]
    for kind, entry in faults.get("kinds", {}).items():
        where = {SHORT: "a write", "EIO": "an operation", "EACCES": "an operation"}.get(
            kind, "a change of the disk"
        )
        at_flush = len(set(flushes) & set(entry["tried"]))
        told = "all gave the same bytes when run again" if not entry["findings"] else "see the findings"
        ended = f"; {entry['went_on']:,} continued, the others reported the error" if kind != KILL else ""
        flush = f" ({at_flush} of them fsync)" if at_flush else ""
        rows.append([f"{kind} at {where}{flush}", len(entry["tried"]), told + ended, len(entry["findings"])])
    lines = ["| injected | tried | result | findings |", "|---|---|---|---|"]
    lines += [f"| {what} | {tried:,} | {came} | {found} |" for what, tried, came, found in rows]
    operations = Counter(faults.get("operations", []))
    kinds = ", ".join(f"{count} {name.removeprefix('os.')}" for name, count in operations.most_common())
    when = f"{counts['seconds'] / 60:.0f} minutes on two cores, at {', '.join(counts['commits'])}"
    said = f"`make soak`, {when}. A run of the small study has {operations.total()} file operations: {kinds}."
    return "\n".join([*lines, "", said, ""])


def main() -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{table(json.loads(COUNTS.read_text()))}{END}{after}")


if __name__ == "__main__":
    main()
