"""A results folder, loaded: the tables, the order of checkpoints, and where the numbers came from.

A bare qk.csv, made by anybody's script, is a results folder of one file: order and phases then come from the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkscope.errors import StoreError, TableError
from qkscope.manifest import read_set
from qkscope.table import LOO_COLUMNS, heads_table, read_qk
from qkscope.taxonomy import Thresholds
from qkscope.timeline import Timeline, timeline_from_names, timeline_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Results:
    """All that figures, findings and the report are made from.

    `heads` and `qk` are over each checkpoint's own window, `matched` and `qk_matched` over the smallest window of
    the study (None if not measured). `loo`, `loo_matched` hold PC0 without each group of documents in turn.
    """

    folder: Path
    timeline: Timeline
    qk: pd.DataFrame
    heads: pd.DataFrame
    qk_matched: pd.DataFrame | None = None
    matched: pd.DataFrame | None = None
    loo: pd.DataFrame | None = None
    loo_matched: pd.DataFrame | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
    study: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def components(self) -> int:
        """How many principal components the table holds."""
        return int(self.qk["pc"].max()) + 1

    def __str__(self) -> str:
        """What was measured, checkpoint by checkpoint, and where to look."""
        line = "{:<28} {:>6} {:>9} {:>9} {:>12}   {}".format
        lines = [line("checkpoint", "heads", "mean r_q", "mean r_k", "mean |r_k|", "largest class")]
        for stop in self.timeline.stops:
            rows = self.heads[self.heads["model"] == stop.model]
            if rows.empty:
                lines.append(f"{stop.model:<28} not measured: {stop.missing}")
                continue
            r_q, r_k = rows["r_q"], rows["r_k"]
            name, count = next(iter(rows["class"].value_counts().items()))
            means = (f"{value:.3f}" for value in (r_q.mean(), r_k.mean(), r_k.abs().mean()))
            lines.append(line(stop.model, len(rows), *means, f"{count / len(rows):.0%} {name}"))
        report = self.folder / "report.html"
        return "\n".join([*lines, "", f"report: {report}" if report.is_file() else f"results: {self.folder}"])

    def __rich__(self) -> str:
        return str(self)


def load_results(place: Path | str) -> Results:
    """Everything in a results folder, or what a single qk.csv tells."""
    place = Path(place)
    return read_set(place if place.is_dir() else place.parent, lambda: _load(place))


def _load(place: Path) -> Results:
    folder, table = (place, place / "qk.csv") if place.is_dir() else (place.parent, place)
    if not table.is_file():
        raise TableError(f"{table}: no such file; give a results folder made by `qkscope run`, or a qk.csv")
    qk = read_qk(table)
    if place.is_dir() and (folder / "study.yaml").is_file():
        return _of_study(folder, qk)
    timeline = timeline_from_names(list(dict.fromkeys(qk["model"])), name=folder.name)
    return Results(folder=folder, timeline=timeline, qk=qk, heads=heads_table(qk))


def _of_study(folder: Path, qk: pd.DataFrame) -> Results:
    from qkscope.study import load_study

    study = load_study(folder / "study.yaml")
    provenance = study.provenance
    limits = Thresholds(study.thresholds.high, study.thresholds.low)
    layers = {name: facts["num_layers"] for name, facts in (provenance.get("checkpoints") or {}).items()}
    matched = read_qk(folder / "qk_matched.csv") if (folder / "qk_matched.csv").is_file() else None
    return Results(
        folder=folder,
        timeline=_with_gaps(timeline_of(study, provenance), qk, folder),
        qk=qk,
        heads=heads_table(qk, layers, limits),
        qk_matched=matched,
        matched=None if matched is None else heads_table(matched, layers, limits),
        loo=_read_loo(folder / "loo.parquet"),
        loo_matched=_read_loo(folder / "loo_matched.parquet"),
        thresholds=limits,
        study=study.model_dump(mode="json", exclude_none=True),
        provenance=provenance,
    )


def _with_gaps(timeline: Timeline, qk: pd.DataFrame, folder: Path) -> Timeline:
    """Checkpoints of the study without rows become gaps; rows without a checkpoint are refused."""
    measured = set(qk["model"])
    unknown = sorted(measured - {stop.model for stop in timeline.stops})
    if unknown:
        raise TableError(
            f"{folder / 'qk.csv'}: checkpoints {', '.join(unknown[:5])} are not in {folder / 'study.yaml'}; "
            "add them to the study, or draw the table alone by giving the path of qk.csv"
        )
    stops = tuple(
        stop if stop.model in measured else replace(stop, missing=stop.missing or "it has no rows in qk.csv")
        for stop in timeline.stops
    )
    return replace(timeline, stops=stops)


def _read_loo(path: Path) -> pd.DataFrame | None:
    """Leave-one-out values, if they were written. A damaged file is an error, never 'no errors known'."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        return None
    try:
        return pq.read_table(path, columns=list(LOO_COLUMNS)).to_pandas()
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise StoreError(f"{path}: damaged ({error}); run the study again to have it rewritten") from error
