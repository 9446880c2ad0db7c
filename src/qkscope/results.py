"""A results folder, loaded: the tables, the order of checkpoints, and where the numbers came from.

A bare qk.csv, made by anybody's script, is a results folder of one file: order and phases then come from the names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkscope.anatomy_table import DISTANCE_COLUMNS, SPECTRUM_COLUMNS, loo_anatomy_columns, read_anatomy
from qkscope.causes_table import read_causes
from qkscope.errors import StoreError, TableError
from qkscope.head_numbers import KEY, head_course, most_changed
from qkscope.manifest import read_manifest, read_set
from qkscope.measure_table import read_measures
from qkscope.measures.registry import optional_names
from qkscope.store import read_parquet
from qkscope.table import LOO_COLUMNS, heads_table, read_qk, with_classes
from qkscope.taxonomy import Thresholds
from qkscope.timeline import Timeline, timeline_from_names, timeline_of

if TYPE_CHECKING:
    import pandas as pd

    from qkscope.axes_file import CheckpointAxes
    from qkscope.provenance import Provenance

# Rows that a parquet file may have for each row of qk.csv, far more than any study: bounds what is read.
ROW_LIMIT = 1000
# Bytes of axes.safetensors for each row of heads.csv: 20 components and 64 bins of position of 1,024 dimensions.
AXES_LIMIT = 1_000_000


@dataclass(frozen=True)
class Results:
    """Tables of a results folder. Figures, claims and the report are made from them.

    `heads` and `qk` are over each checkpoint's training context; `matched` and `qk_matched` are over the first N
    tokens, N being the smallest window of the study (None if not measured). `loo` and `loo_matched` have PC0 with one
    document group left out at a time. `anatomy` and `anatomy_matched` have one row per head with the score anatomy and
    the position measures beyond r; `loo_anatomy` and `loo_anatomy_matched` are their leave-one-out values. `spectrum`,
    `distance` and `axes` are read on first access. All of these are None in results that do not have them, such as
    those of earlier versions or of a bare qk.csv. `causes` splits every change between neighbouring checkpoints by
    cause over their training contexts, `causes_matched` over the first N tokens.
    """

    folder: Path
    timeline: Timeline
    qk: pd.DataFrame
    heads: pd.DataFrame
    qk_matched: pd.DataFrame | None = None
    matched: pd.DataFrame | None = None
    loo: pd.DataFrame | None = None
    loo_matched: pd.DataFrame | None = None
    anatomy: pd.DataFrame | None = None
    anatomy_matched: pd.DataFrame | None = None
    loo_anatomy: pd.DataFrame | None = None
    loo_anatomy_matched: pd.DataFrame | None = None
    causes: pd.DataFrame | None = None
    causes_matched: pd.DataFrame | None = None
    optional: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    """Tables of the measures that were asked for, by file: `rotation`, `rotation_matched`, `loo_rotation` and so on."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    study: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    made_from: str | None = None
    """Which set the tables belong to, where a manifest says so: what is read later must be of the same."""

    @cached_property
    def record(self) -> Provenance:
        """The provenance, typed."""
        from qkscope.provenance import read_provenance

        return read_provenance(self.provenance, self.folder)

    @cached_property
    def spectrum(self) -> pd.DataFrame | None:
        """A row per head, kind and rotary pair, over own windows."""
        return self._later("spectrum.parquet", SPECTRUM_COLUMNS)

    @cached_property
    def spectrum_matched(self) -> pd.DataFrame | None:
        """The same over the matched window."""
        return self._later("spectrum_matched.parquet", SPECTRUM_COLUMNS)

    @cached_property
    def distance(self) -> pd.DataFrame | None:
        """Mean scores by head and distance, over own windows."""
        return self._later("distance.parquet", DISTANCE_COLUMNS)

    @cached_property
    def distance_matched(self) -> pd.DataFrame | None:
        """The same over the matched window."""
        return self._later("distance_matched.parquet", DISTANCE_COLUMNS)

    @cached_property
    def axes(self) -> Mapping[str, CheckpointAxes] | None:
        """Axes, means and paths by checkpoint, over own windows."""
        from qkscope.axes_file import read_axes

        path, most = self.folder / "axes.safetensors", AXES_LIMIT * len(self.heads)

        def load() -> Mapping[str, CheckpointAxes] | None:
            return read_axes(path, most) if path.is_file() else None

        return read_set(self.folder, load, [path.name], self.made_from)

    def _later(self, name: str, columns: Sequence[str]) -> pd.DataFrame | None:
        def load() -> pd.DataFrame | None:
            return _read_parquet(self.folder / name, columns, len(self.qk))

        return read_set(self.folder, load, [name], self.made_from)

    def beside_study(self, name: str) -> str:
        """`name`, or another where this is a bare table in the folder of a study, whose own file has that name."""
        bare = not self.study and (self.folder / "study.yaml").is_file()
        return f"table_{name}" if bare else name

    @property
    def components(self) -> int:
        """How many principal components the table holds."""
        return int(self.qk["pc"].max()) + 1

    def head(self, layer: int, head: int, *, matched: bool = False) -> pd.DataFrame:
        """One head over training: one row per checkpoint with every measure and its error.

        Over each checkpoint's training context, or with `matched` over the first N tokens.
        """
        import pandas as pd

        end = "_matched" if matched else ""
        heads, anatomy = (self.matched, self.anatomy_matched) if matched else (self.heads, self.anatomy)
        if heads is None:
            raise TableError(
                f"{self.folder}: nothing was measured over a matched window (the same first tokens at every "
                "checkpoint)"
            )
        asked = (self.optional.get(f"{name}{end}") for name in optional_names())
        names = ("model", "label", "phase", "step")
        stops = pd.DataFrame([{name: getattr(s, name) for name in names} for s in self.timeline.measured])
        stops["step"] = stops["step"].astype("Int64")
        return head_course(stops, [t for t in (heads, anatomy, *asked) if t is not None], layer, head)

    def changed(
        self, before: str, after: str, n: int = 10, *, by: str = "r_q", matched: bool = False
    ) -> pd.DataFrame:
        """The `n` heads whose `by` changed most between two checkpoints, with the standard error of each change.

        Errors are over documents, paired. If the two checkpoints have different windows, use `matched=True`: otherwise
        the change includes the effect of the window.
        """
        heads, loo = (self.matched, self.loo_matched) if matched else (self.heads, self.loo)
        if heads is None:
            raise TableError(
                f"{self.folder}: nothing was measured over a matched window (the same first tokens at every "
                "checkpoint)"
            )
        return most_changed(heads, loo, before, after, n, by)

    def rethreshold(self, high: float = 0.7, low: float = 0.3) -> Results:
        """The same results with other class thresholds, for tables, claims and figures."""
        limits = Thresholds(high, low)
        matched = None if self.matched is None else with_classes(self.matched, limits)
        return replace(self, heads=with_classes(self.heads, limits), matched=matched, thresholds=limits)

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
    """Load a results folder or a single qk.csv."""
    place = Path(place)
    folder = place if place.is_dir() else place.parent

    def load() -> Results:
        manifest = read_manifest(folder)
        return replace(_load(place), made_from=manifest.made_from if manifest else None)

    return read_set(folder, load, None if place.is_dir() else [place.name])


def as_results(run: Results | Path | str) -> Results:
    """A run that is loaded already, or the one at a place."""
    return run if isinstance(run, Results) else load_results(run)


def _load(place: Path) -> Results:
    folder, table = (place, place / "qk.csv") if place.is_dir() else (place.parent, place)
    if not table.is_file():
        raise TableError(
            f"{table}: no such file; give a results folder written by `qkscope run`, or a qk.csv"
        )
    qk = read_qk(table)
    if place.is_dir() and (folder / "study.yaml").is_file():
        return _of_study(folder, qk)
    timeline = timeline_from_names(list(dict.fromkeys(qk["model"])), name=folder.name)
    return Results(folder=folder, timeline=timeline, qk=qk, heads=heads_table(qk))


def _of_study(folder: Path, qk: pd.DataFrame) -> Results:
    from qkscope.provenance import read_provenance
    from qkscope.study import load_study

    study = load_study(folder / "study.yaml")
    provenance = study.provenance
    limits = Thresholds(study.thresholds.high, study.thresholds.low)
    record = read_provenance(provenance, folder / "study.yaml")
    layers = {name: facts.num_layers for name, facts in record.checkpoints.items()}
    matched = read_qk(folder / "qk_matched.csv") if (folder / "qk_matched.csv").is_file() else None
    anatomy, anatomy_matched = (
        read_anatomy(folder / name) for name in ("anatomy.csv", "anatomy_matched.csv")
    )
    return Results(
        folder=folder,
        timeline=_with_gaps(timeline_of(study, provenance), qk, folder),
        qk=qk,
        heads=with_same_axis(heads_table(qk, layers, limits), anatomy),
        qk_matched=matched,
        matched=None
        if matched is None
        else with_same_axis(heads_table(matched, layers, limits), anatomy_matched),
        loo=_read_parquet(folder / "loo.parquet", LOO_COLUMNS, len(qk)),
        loo_matched=_read_parquet(folder / "loo_matched.parquet", LOO_COLUMNS, len(qk)),
        anatomy=anatomy,
        anatomy_matched=anatomy_matched,
        loo_anatomy=_read_left_out(folder / "loo_anatomy.parquet", len(qk)),
        loo_anatomy_matched=_read_left_out(folder / "loo_anatomy_matched.parquet", len(qk)),
        causes=read_causes(folder / "causes.csv"),
        causes_matched=read_causes(folder / "causes_matched.csv"),
        optional=read_measures(folder, optional_names(), len(qk)),
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
        stop if stop.model in measured else replace(stop, missing=stop.missing or "no rows in qk.csv")
        for stop in timeline.stops
    )
    return replace(timeline, stops=stops)


def with_same_axis(heads: pd.DataFrame, anatomy: pd.DataFrame | None) -> pd.DataFrame:
    """The heads table with the column `same_axis`: 1 where PC0 is the axis it was one checkpoint before, 0 where not.

    Without an anatomy the table stays as it is.
    """
    if anatomy is None:
        return heads
    return heads.merge(anatomy[[*KEY, "same_axis"]], on=KEY, how="left", validate="one_to_one")


def _read_parquet(path: Path, columns: Sequence[str], rows: int) -> pd.DataFrame | None:
    """A table, if it was written. A damaged file is an error, never 'not known'. `rows` are those of qk.csv."""
    return read_parquet(path, ROW_LIMIT * rows, columns) if path.is_file() else None


def _read_left_out(path: Path, rows: int) -> pd.DataFrame | None:
    """Measures without each group of documents; those that were not declared when it was written are NaN."""
    frame = read_parquet(path, ROW_LIMIT * rows) if path.is_file() else None
    if frame is not None and not {"model", "layer", "head", "group"} <= set(frame.columns):
        raise StoreError(f"{path}: damaged (no key columns)", "run the study again to have it rewritten")
    return None if frame is None else frame.reindex(columns=list(loo_anatomy_columns()))
