"""Two studies side by side: what agrees within uncertainty and what does not.

The other side is another results folder, a qk.csv, or the published SmolLM3-3B numbers that ship with the package.
Only what both have is compared: the same checkpoints (by name; of two runs that name them differently by step, by label
or by their place in training) and the same heads of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from qkscope import aggregate
from qkscope.anatomy_means import asked_for
from qkscope.conclusions import READ_OFF, conclusions
from qkscope.errors import TableError
from qkscope.findings import claims
from qkscope.heads import sample_heads
from qkscope.inference.levels import AGREES_WITHIN, rule_of_agreement
from qkscope.measures.jackknife import jackknife
from qkscope.results import Results, load_results
from qkscope.store import write_csv
from qkscope.taxonomy import CLASSES, Thresholds
from qkscope.timeline import Stop, Timeline
from qkscope.words import bare, number, tokens

if TYPE_CHECKING:
    from rich.console import RenderableType

# How far a number printed with two decimals may be from the one meant.
PRINTED = 0.005
# Half a unit of the last of three printed decimals.
PRINTED_3 = 0.0005
PLASTICITY = {"mean plasticity": "plasticity", "mean plasticity, first less last": "drop"}
PLASTICITY_KEYS = {"mean plasticity": "plasticity", "mean plasticity, first less last": "plasticity_drop"}
CELLS = ("r_q by depth", "r_k by depth")

Numbers = dict[tuple[str, str], tuple[float, float]]  # (quantity, checkpoint) -> (value, standard error)


@dataclass(frozen=True)
class Row:
    """One number on both sides. `agrees` is None where neither side knows its error."""

    quantity: str
    checkpoint: str
    ours: float
    se: float
    theirs: float
    their_se: float
    difference: float
    agrees: bool | None


@dataclass(frozen=True)
class Comparison:
    """All numbers both sides have, the checkpoints only one of them has, and what to know when reading.

    `answers` are the published study's conclusions, each by its own numbers and by ours.
    """

    ours: str
    theirs: str
    rows: tuple[Row, ...]
    only_ours: tuple[str, ...]
    only_theirs: tuple[str, ...]
    notes: tuple[str, ...]
    heads: pd.DataFrame | None = None
    """A row per checkpoint and head of two runs: r_q and r_k on both sides, their difference and its error."""
    answers: tuple[str, ...] = ()

    @property
    def agree(self) -> bool:
        """Whether no number differs by more than its uncertainty."""
        return all(row.agrees is not False for row in self.rows)

    def table(self) -> pd.DataFrame:
        """The rows as a table."""
        return pd.DataFrame([asdict(row) for row in self.rows])

    def to_json(self) -> str:
        """Everything but the heads, for a machine; what is not known is null."""
        rows = [{name: _json(value) for name, value in asdict(row).items()} for row in self.rows]
        whole = {"ours": self.ours, "theirs": self.theirs, "agree": self.agree, "rows": rows}
        whole |= {"only_ours": self.only_ours, "only_theirs": self.only_theirs, "notes": self.notes}
        whole |= {"answers": self.answers}
        return json.dumps(whole, indent=2, ensure_ascii=False)

    def save(self, path: Path) -> None:
        """Every row as CSV; of two runs every head too, in `<name>_heads.csv` beside it."""
        write_csv(path, self.table())
        if self.heads is not None:
            write_csv(path.with_name(f"{path.stem}_heads.csv"), self.heads)

    def verdict(self) -> str:
        """How many numbers agree, in a sentence."""
        agree = sum(row.agrees is True for row in self.rows)
        unknown = sum(row.agrees is None for row in self.rows)
        text = f"{agree} of {len(self.rows)} numbers agree {rule_of_agreement()}"
        return text + (f"; for {unknown} neither side has an error." if unknown else ".")

    def to_text(self) -> str:
        """The comparison as plain text."""
        lines = [f"{self.ours} against {self.theirs}", ""]
        for row in self._printed():
            lines.append("  ".join((f"{row[0]:<28}", f"{row[1]:<26}", *(f"{cell:>15}" for cell in row[2:]))))
        return "\n".join([*lines, "", *self._closing()]) + "\n"

    def __str__(self) -> str:
        return self.to_text()

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(f"{self.ours} against {self.theirs}"))
        for name in ("quantity", "checkpoint", "ours", "theirs", "difference", ""):
            table.add_column(name, justify="left" if name in ("quantity", "checkpoint") else "right")
        above = ""
        for quantity, *cells in self._printed():
            if above and quantity != above:
                table.add_section()
            named = "" if quantity == above else quantity
            table.add_row(
                *(Text(cell) for cell in (named, *cells)), style="bold" if cells[-1] == "differs" else None
            )
            above = quantity
        return Group(table, *(Text(line) for line in self._closing()))

    def _printed(self) -> list[tuple[str, ...]]:
        """Cells of the table. What is exactly equal and the many cells of the depth maps are told in lines below it."""
        words = {True: "agrees", False: "differs", None: "no error known"}
        return [
            (
                *(row.quantity, row.checkpoint, number(row.ours, row.se), number(row.theirs, row.their_se)),
                *(bare(row.difference, 3, signed=True), words[row.agrees]),
            )
            for row in self.rows
            if not row.quantity.startswith(CELLS) and row.difference != 0
        ]

    def _closing(self) -> list[str]:
        equal = sum(row.difference == 0 and not row.quantity.startswith(CELLS) for row in self.rows)
        lines = [f"{equal} numbers are exactly equal on both sides and not shown." if equal else ""]
        lines += [self._cells(name) for name in CELLS]
        lines += [self.verdict()]
        if self.only_ours:
            lines.append(f"Only in {self.ours}: {', '.join(self.only_ours)}.")
        if self.only_theirs:
            lines.append(f"Only in {self.theirs}: {', '.join(self.only_theirs)}.")
        return [line for line in (*lines, *self.answers, *self.notes) if line]

    def _cells(self, name: str) -> str:
        cells = [row for row in self.rows if row.quantity.startswith(name)]
        if not cells:
            return ""
        worst = max(cells, key=lambda row: abs(row.difference))
        agree = sum(row.agrees is True for row in cells)
        largest = bare(worst.difference, 3, signed=True)
        return (
            f"Mean {name}: {agree} of {len(cells)} cells agree; the largest difference is {largest} "
            f"({worst.quantity.removeprefix(name).strip(' ,')}, {worst.checkpoint})."
        )


def compare(results_dir: Path | str | Results, with_: Path | str | Results) -> Comparison:
    """Compare a results folder (or qk.csv) with another one, or with the numbers `published` for SmolLM3-3B."""
    ours = results_dir if isinstance(results_dir, Results) else load_results(results_dir)
    if with_ == "published":
        return _with_published(ours)
    theirs = with_ if isinstance(with_, Results) else load_results(Path(with_))
    return _with_results(ours, theirs)


def published() -> dict[str, Any]:
    """The published SmolLM3-3B numbers, with where they come from."""
    text = (files("qkscope") / "published" / "smollm3.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _with_published(ours: Results) -> Comparison:
    data = published()
    order, missing, other = _in_common(ours.timeline.models, data["checkpoints"], _name(ours), "published")
    sample = set(sample_heads(range(36), 16, 300, seed=0))
    heads, loo = _only(ours.heads, sample), None if ours.loo is None else _only(ours.loo, sample)
    if any(len(table) != len(sample) for _, table in heads[heads["model"].isin(order)].groupby("model")):
        raise TableError(
            f"{ours.folder}: the published numbers are of 300 heads, sampled with seed 0 from 36 layers of 16, and "
            f"these results do not have all of them; measure with `heads: {{sample: 300, seed: 0}}` or all heads"
        )
    mine = _measured(heads, loo, order, ours.thresholds) | _plasticity(ours, sample, order)
    rows = _rows(mine, _published_numbers(data))
    notes = (
        f"Published: {data['source']}",
        "The published numbers come without errors over documents: theirs is what reading them off adds.",
        *_slope_note(ours, data),
        *_threshold_note(ours.thresholds, Thresholds()),
    )
    return Comparison(_name(ours), "published", rows, missing, other, notes, answers=_answers(ours, data))


def _answers(ours: Results, data: dict[str, Any]) -> tuple[str, ...]:
    own = {claim.id: claim for claim in claims(ours)}
    lines = [line for each in conclusions(data) for line in each.lines(own)]
    return ("What the published study concludes, by its numbers and by these results:", *lines)


def _with_results(ours: Results, theirs: Results) -> Comparison:
    names = _name(ours), _name(theirs)
    if names[0] == names[1]:
        names = str(ours.folder), str(theirs.folder)
    pairs, how = _paired(ours.timeline, theirs.timeline, *names)
    order = list(pairs)
    theirs, only_theirs = _renamed(theirs, pairs), _unpaired(theirs, pairs.values())
    shared = _same_heads(ours, theirs, order)
    sides = [_numbers_of(side, shared, order, _rematched(ours, theirs, order)) for side in (ours, theirs)]
    notes = [*how, *_window_notes(ours, theirs, order), *_threshold_note(ours.thresholds, theirs.thresholds)]
    notes.append("Errors are over documents: what another seed of the training would change is not in them.")
    counts = [len(_keys(side.heads)) for side in (ours, theirs)]
    if max(counts) > len(shared):
        notes.append(f"Compared on the {len(shared)} heads both have, of {counts[0]} and {counts[1]}.")
    rows, heads = _rows(*sides), _by_head(ours.heads, theirs.heads, order)
    return Comparison(*names, rows, _unpaired(ours, order), only_theirs, tuple(notes), heads)


def _paired(
    ours: Timeline, theirs: Timeline, our_name: str, their_name: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Our checkpoints -> theirs, in our order, and how they were matched where not by name."""
    both = [model for model in ours.models if model in set(theirs.models)]
    if both:
        return {model: model for model in both}, ()
    for what in ("step", "label"):
        found = _by(what, ours.measured, theirs.measured)
        if found:
            return found, (f"Checkpoints are named differently and were matched by their {what}.",)
    if ours.kind == theirs.kind == "training" and len(ours.models) == len(theirs.models):
        how = "Checkpoints are named differently and were matched by their place in training."
        return dict(zip(ours.models, theirs.models, strict=True)), (how,)
    _in_common(ours.models, theirs.models, our_name, their_name)
    return {}, ()


def _by(what: str, ours: Sequence[Stop], theirs: Sequence[Stop]) -> dict[str, str]:
    """Stops with the same step or label within the same phase; none if that does not tell them apart."""
    sides = [
        {(getattr(stop, what), stop.phase): stop.model for stop in side if getattr(stop, what) is not None}
        for side in (ours, theirs)
    ]
    if len(sides[0]) < len(ours) or len(sides[1]) < len(theirs):
        return {}
    return {model: sides[1][key] for key, model in sides[0].items() if key in sides[1]}


def _renamed(theirs: Results, pairs: Mapping[str, str]) -> Results:
    """Their results under our checkpoints' names."""
    ours = {their: our for our, their in pairs.items()}
    if all(our == their for our, their in pairs.items()):
        return theirs

    def table(frame: pd.DataFrame | None) -> pd.DataFrame | None:
        if frame is None:
            return None
        return frame[frame["model"].isin(ours)].assign(model=lambda t: t["model"].map(ours))

    stops = tuple(replace(s, model=ours[s.model]) for s in theirs.timeline.stops if s.model in ours)
    heads = table(theirs.heads)
    return replace(
        theirs,
        timeline=replace(theirs.timeline, stops=stops),
        heads=theirs.heads if heads is None else heads,
        loo=table(theirs.loo),
        matched=table(theirs.matched),
        loo_matched=table(theirs.loo_matched),
    )


def _unpaired(side: Results, paired: Iterable[str]) -> tuple[str, ...]:
    known = set(paired)
    return tuple(model for model in side.timeline.models if model not in known)


def _rematched(ours: Results, theirs: Results, order: Sequence[str]) -> list[str]:
    """Checkpoints whose matched window is not their own on one side: elsewhere the same number would stand twice."""
    return [
        model
        for model in order
        if any(side.timeline.stop(model).window != side.timeline.matched_window for side in (ours, theirs))
    ]


def _by_head(ours: pd.DataFrame, theirs: pd.DataFrame, order: Sequence[str]) -> pd.DataFrame:
    key, values = ["model", "layer", "head"], ["r_q", "r_q_se", "r_k", "r_k_se"]
    sides = [side[side["model"].isin(order)].set_index(key)[values] for side in (ours, theirs)]
    both = sides[0].add_suffix("_ours").join(sides[1].add_suffix("_theirs"), how="inner")
    for name in ("r_q", "r_k"):
        both[f"{name}_difference"] = both[f"{name}_ours"] - both[f"{name}_theirs"]
        both[f"{name}_difference_se"] = np.hypot(both[f"{name}_se_ours"], both[f"{name}_se_theirs"])
    return both.reset_index()


def _json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _name(results: Results) -> str:
    return results.timeline.name or str(results.folder)


def _in_common(
    ours: Sequence[str], theirs: Sequence[str], our_name: str, their_name: str
) -> tuple[list[str], tuple[str, ...], tuple[str, ...]]:
    """Checkpoints both have, in our order; those only we have; those only they have."""
    both = [model for model in ours if model in set(theirs)]
    if not both:
        raise TableError(
            f"{our_name} and {their_name} have no checkpoint in common: {our_name} has {_some(ours)}; {their_name} has "
            f"{_some(theirs)}. Checkpoints are matched by name"
        )
    return both, tuple(m for m in ours if m not in both), tuple(m for m in theirs if m not in both)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f", ... ({len(names)} in all)" if len(names) > 3 else "")


def _same_heads(ours: Results, theirs: Results, order: Sequence[str]) -> set[tuple[int, int]]:
    """The heads to compare: the smaller set, if the other side has all of it."""
    mine, others = (_keys(side.heads[side.heads["model"].isin(order)]) for side in (ours, theirs))
    if not (mine <= others or others <= mine):
        raise TableError(
            f"{ours.folder} and {theirs.folder} measured different heads: {len(mine)} and {len(others)}, of which "
            f"{len(mine & others)} are the same; measure both with the same `heads:` (sample and seed) or all heads"
        )
    return mine & others


def _keys(table: pd.DataFrame) -> set[tuple[int, int]]:
    return set(zip(table["layer"].tolist(), table["head"].tolist(), strict=True))


def _only(table: pd.DataFrame, heads: set[tuple[int, int]]) -> pd.DataFrame:
    keep = [key in heads for key in zip(table["layer"].tolist(), table["head"].tolist(), strict=True)]
    return table[keep]


def _numbers_of(
    side: Results, shared: set[tuple[int, int]], order: Sequence[str], rematched: Sequence[str]
) -> Numbers:
    """Own-window numbers, and the matched window's under its own name where there is one."""
    loo = None if side.loo is None else _only(side.loo, shared)
    found = _measured(_only(side.heads, shared), loo, order, side.thresholds)
    if side.matched is not None and side.timeline.matched_window is not None:
        matched_loo = None if side.loo_matched is None else _only(side.loo_matched, shared)
        matched = _measured(_only(side.matched, shared), matched_loo, rematched, side.thresholds)
        prefix = f"first {side.timeline.matched_window:,}: "
        found |= {
            (prefix + name, model): value for (name, model), value in matched.items() if "depth" not in name
        }
    return found


def _measured(
    heads: pd.DataFrame, loo: pd.DataFrame | None, order: Sequence[str], thresholds: Thresholds
) -> Numbers:
    found: Numbers = {}
    for row in aggregate.position_signal(heads, loo, order).to_dict("records"):
        for name, key in (("mean r_q", "r_q"), ("mean r_k", "r_k"), ("mean |r_k|", "abs_r_k")):
            found[name, row["model"]] = row[f"mean_{key}"], row[f"se_{key}"]
    for row in aggregate.explained_variance(heads, loo, order).to_dict("records"):
        found["mean explained variance", row["model"]] = row["mean"], row["se"]
    for row in aggregate.class_shares(heads, loo, order, thresholds).to_dict("records"):
        if row["class"] in CLASSES:
            found[f"share {row['class']}", row["model"]] = row["share"], row["se"]
    for name, value in zip(CELLS, ("r_q", "r_k"), strict=True):
        for row in aggregate.depth_cells(heads, loo, order, value).to_dict("records"):
            found[_cell(name, row["depth_bin"]), row["model"]] = row["mean"], row["se"]
    return found


def _plasticity(ours: Results, sample: set[tuple[int, int]], order: Sequence[str]) -> Numbers:
    """Mean plasticity and its drop along the window, where the study asked for it."""
    found: Numbers = {}
    for each in asked_for(ours, "plasticity", order):
        shared = pd.Series(list(zip(each.heads["layer"], each.heads["head"], strict=True))).isin(sample)
        for name, column in PLASTICITY.items():
            means = each.mean(column, shared.to_numpy())
            found[name, each.model] = float(means[0]), float(jackknife(means[1:]))
    return found


def _slope_note(ours: Results, data: dict[str, Any]) -> list[str]:
    """Slopes are not compared number by number: those that were published are told, over the window too."""
    if not {"rotation", "plasticity"} & set(ours.optional):
        return []
    slopes = {
        int(window): slope for window, slope in data["rotation_and_plasticity"]["alpha_k_by_window"].items()
    }
    told = [f"{slope:g} a token over {tokens(w)} ({slope * w:.1f} a window)" for w, slope in slopes.items()]
    return [
        f"Published slope of keys along the drift axis: {'; '.join(told)}. Windows differ between checkpoints, and a "
        "slope per token shrinks with the window: compare slope_k, over the window."
    ]


def _cell(name: str, depth_bin: int) -> str:
    return f"{name}, {depth_bin / 10:.1f} to {(depth_bin + 1) / 10:.1f}"


def _published_numbers(data: dict[str, Any]) -> Numbers:
    found: Numbers = {}
    names = {
        "mean_r_q": "mean r_q",
        "mean_r_k": "mean r_k",
        "mean_explained_variance": "mean explained variance",
    }
    for i, model in enumerate(data["checkpoints"]):
        for key, name in names.items():
            found[name, model] = data[key][i], READ_OFF
        counts = {kind: column[i] for kind, column in data["taxonomy_head_counts"].items()}
        for kind, heads in counts.items():
            found[f"share {kind}", model] = heads / sum(counts.values()), 0.0
        for name, key in PLASTICITY_KEYS.items():
            found[name, model] = data["rotation_and_plasticity"][key][i], PRINTED_3
        for name, key in zip(CELLS, ("depth_heatmap_r_q", "depth_heatmap_r_k"), strict=True):
            for depth_bin, value in enumerate(data[key][i]):
                found[_cell(name, depth_bin), model] = value, PRINTED
    return found


def _rows(ours: Numbers, theirs: Numbers) -> tuple[Row, ...]:
    """Every number both sides have, quantity by quantity. An empty depth bin is no number."""
    rows = []
    for key, (value, se) in ours.items():
        other, other_se = theirs.get(key, (math.nan, math.nan))
        if math.isfinite(value) and math.isfinite(other):
            rows.append(
                Row(*key, value, se, other, other_se, value - other, _agrees(value - other, se, other_se))
            )
    place = {name: i for i, name in enumerate(dict.fromkeys(name for name, _ in ours))}
    return tuple(sorted(rows, key=lambda row: place[row.quantity]))


def _agrees(difference: float, se: float, other_se: float) -> bool | None:
    """Within two standard errors of the difference; the same number agrees whatever its error."""
    if abs(difference) < 1e-12:
        return True
    known = [each for each in (se, other_se) if math.isfinite(each)]
    if not known:
        return None
    # A tolerance of exactly two published read-off errors must not fail by a rounding error of the subtraction.
    return abs(difference) <= AGREES_WITHIN * math.hypot(*known) + 1e-12


def _window_notes(ours: Results, theirs: Results, order: Sequence[str]) -> list[str]:
    notes = []
    for model in order:
        mine, other = ours.timeline.stop(model).window, theirs.timeline.stop(model).window
        if mine is not None and other is not None and mine != other:
            notes.append(
                f"{model} was measured over {tokens(mine)} here and {tokens(other)} there: its own-window numbers may "
                "differ for that alone."
            )
    return notes


def _threshold_note(ours: Thresholds, theirs: Thresholds) -> list[str]:
    if ours == theirs:
        return []
    return [f"The classes have different thresholds: {asdict(ours)} and {asdict(theirs)}."]
