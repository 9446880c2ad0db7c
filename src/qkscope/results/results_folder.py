"""A results folder, loaded: the dataset, the order of checkpoints, and where the numbers came from.

A bare qk.csv, from any script, is a results folder of one file: order and phases then come from the names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from qkscope.errors import TableError
from qkscope.results.aggregate import difference, jackknife, populations, values
from qkscope.results.axes import CheckpointAxes, read_axes
from qkscope.results.dataset import NAME, read_dataset
from qkscope.results.examples import NAME as EXAMPLES
from qkscope.results.examples import CheckpointExamples, read_examples
from qkscope.results.manifest import read_manifest, read_set
from qkscope.results.provenance import Provenance, read_provenance
from qkscope.results.roles import has_roles, role_table
from qkscope.results.tables import (
    ABLATION,
    from_qk,
    head_table,
    qk_table,
    read_ablation,
    read_causes,
    read_qk,
    select,
)
from qkscope.results.taxonomy import Thresholds
from qkscope.study import load_study
from qkscope.study.timeline import Timeline, timeline_from_names, timeline_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

T = TypeVar("T")
# Bytes of axes.safetensors for each row of heads.csv: 20 components and 64 bins of position of 1,024 dimensions.
AXES_LIMIT = 1_000_000
# Bytes of examples.safetensors for each checkpoint: 8 excerpts of 8 heads have 210,000.
EXAMPLES_LIMIT = 1_000_000
JUDGED = ("r_q", "r_k")
EARLIER = (
    "These results were written by an earlier version: errors of means and the matched window are not read. Run the "
    "study again to have them."
)


@dataclass(frozen=True)
class Results:
    """A study's numbers. Figures, claims and the report are made from them.

    data    every measure over (cell, sample, head), see `qkscope.results.dataset`; read from disk when used
    causes  what changed each number between neighbouring checkpoints; None where that was not measured
    ablation  what parts of scores are worth, in nats per token; None where that was not measured
    """

    folder: Path
    timeline: Timeline
    data: xr.Dataset
    causes: pd.DataFrame | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
    study: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    ablation: pd.DataFrame | None = None
    made_from: str | None = None
    """Which set the tables belong to, where a manifest says so: what is read later must be of the same."""

    def own(self) -> xr.Dataset:
        """Each checkpoint over its training context: dimensions checkpoint, sample, head."""
        return self._own

    def matched(self) -> xr.Dataset | None:
        """Every checkpoint over the same first tokens; None where that was not measured."""
        return self._matched

    @cached_property
    def _own(self) -> xr.Dataset:
        return select(self.data, "own")

    @cached_property
    def _matched(self) -> xr.Dataset | None:
        return select(self.data, "matched") if self.data["matched"].any() else None

    @cached_property
    def heads(self) -> pd.DataFrame:
        """A row per checkpoint and head over the training context: every scalar measure, its error, and the class."""
        return head_table(self.own(), self.thresholds)

    @cached_property
    def matched_heads(self) -> pd.DataFrame | None:
        """The same over the first tokens that every checkpoint was measured over."""
        found = self.matched()
        return None if found is None else head_table(found, self.thresholds)

    @cached_property
    def qk(self) -> pd.DataFrame:
        """A row per checkpoint, head and principal component over the training context."""
        return qk_table(self.own())

    def to_dataframe(self, *, matched: bool = False) -> pd.DataFrame:
        """`heads`, or with `matched` the same over the first tokens of every checkpoint."""
        found = self.matched_heads if matched else self.heads
        if found is None:
            raise TableError(
                f"{self.folder}: nothing was measured over a matched window (the same first tokens at every "
                "checkpoint)"
            )
        return found

    @cached_property
    def record(self) -> Provenance:
        """The provenance, typed."""
        return read_provenance(self.provenance, self.folder)

    @cached_property
    def axes(self) -> Mapping[str, CheckpointAxes] | None:
        """Axes, means and paths by checkpoint, over own windows."""
        return self._read("axes.safetensors", read_axes, AXES_LIMIT * len(self.heads))

    @cached_property
    def examples(self) -> Mapping[str, CheckpointExamples] | None:
        """Attention of a few heads on excerpts of the texts, by checkpoint; None where that was not measured."""
        return self._read(EXAMPLES, read_examples, EXAMPLES_LIMIT * len(self.timeline.checkpoints))

    def _read(self, name: str, read: Callable[[Path, int], T], most: int) -> T | None:
        """A file of the same set as the tables, of at most `most` bytes; None if there is none."""
        path = self.folder / name

        def load() -> T | None:
            return read(path, most) if path.is_file() else None

        return read_set(self.folder, load, [name], self.made_from)

    def beside_study(self, name: str) -> str:
        """`name`, or another where this is a bare table in the folder of a study, whose own file has that name."""
        bare = not self.study and (self.folder / "study.yaml").is_file()
        return f"table_{name}" if bare else name

    @property
    def components(self) -> int:
        """How many principal components the table holds."""
        return int(self.data.sizes["pc"])

    def head(self, layer: int, head: int, *, matched: bool = False) -> pd.DataFrame:
        """One head over training: one row per checkpoint with every measure and its error.

        Over each checkpoint's training context, or with `matched` over the first N tokens.
        """
        import pandas as pd

        table = self.to_dataframe(matched=matched)
        rows = table[(table["layer"] == layer) & (table["head"] == head)]
        if rows.empty:
            layers, heads = table["layer"], table["head"]
            raise TableError(
                f"layer {layer}, head {head} was not measured; measured are layers {layers.min()} to "
                f"{layers.max()} with heads {heads.min()} to {heads.max()}"
            )
        names = ("model", "label", "phase", "step")
        rows_of = [[getattr(checkpoint, name) for name in names] for checkpoint in self.timeline.measured]
        checkpoints = pd.DataFrame(rows_of, columns=list(names))
        checkpoints["step"] = checkpoints["step"].astype("Int64")
        return checkpoints.merge(rows, on="model", how="inner", validate="one_to_one")

    def changed(
        self, before: str, after: str, n: int = 10, *, by: str = "r_q", matched: bool = False
    ) -> pd.DataFrame:
        """The `n` heads whose measure `by` changed most between two checkpoints, with the error of each change.

        Errors are over documents, paired: both checkpoints read the same ones. Where the two have different windows,
        `matched` separates the effect of training from that of the window.
        """
        import pandas as pd

        table = self.to_dataframe(matched=matched)
        first = self.matched() if matched else None
        data = self.own() if first is None else first
        known = [str(name) for name in data if data[name].dims == ("checkpoint", "sample", "head")]
        if by not in known:
            raise TableError(f"by={by!r}; expected one of {', '.join(known)}")
        models = list(dict.fromkeys(table["model"]))
        if missing := [name for name in (before, after) if name not in models]:
            raise TableError(f"checkpoint {missing[0]!r} was not measured; measured are {', '.join(models)}")
        columns: dict[str, Any] = {"layer": data["layer"].to_numpy(), "head": data["number"].to_numpy()}
        for name in dict.fromkeys((by, *JUDGED)):
            found = values(data, name)
            moved = difference(found, before, after)
            for when, model in (("before", before), ("after", after)):
                columns[f"{name}_{when}"] = found.sel(checkpoint=model).isel(sample=0).to_numpy()
            columns[f"{name}_change"] = moved.isel(sample=0).to_numpy()
            columns[f"{name}_change_se"] = jackknife(moved).to_numpy()
        found = pd.DataFrame(columns)
        for when, model in (("before", before), ("after", after)):
            side = table[table["model"] == model][["layer", "head", "class"]]
            found = found.merge(
                side.rename(columns={"class": f"class_{when}"}), on=["layer", "head"], validate="one_to_one"
            )
        order = found[f"{by}_change"].abs().sort_values(ascending=False, kind="stable").index
        return found.loc[order].head(n).reset_index(drop=True)

    def roles(self, *, matched: bool = False) -> pd.DataFrame:
        """A row per checkpoint, head and role: score, error, threshold, and whether the head has the role (`named`).

        `qkscope.results.roles.ROLES` has the thresholds and their sources.
        """
        heads = self.to_dataframe(matched=matched)
        if not has_roles(self.data):
            raise TableError(f"{self.folder}: attention was not measured; run the study again to add it")
        return role_table(heads, [checkpoint.model for checkpoint in self.timeline.measured])

    def rethreshold(self, high: float = 0.7, low: float = 0.3) -> Results:
        """The same measurements with other limits of the classes; figures, claims and tables follow."""
        return replace(self, thresholds=Thresholds(high, low))

    def __str__(self) -> str:
        """What was measured, checkpoint by checkpoint, RoPE and NoPE heads apart, and where to look."""
        line = "{:<28} {:<5} {:>6} {:>15} {:>9} {:>11}".format
        lines = [line("checkpoint", "", "heads", "position share", "mean r_q", "mean |r_k|")]
        kinds = populations(self.own())
        for checkpoint in self.timeline.checkpoints:
            rows = self.heads[self.heads["model"] == checkpoint.model]
            if rows.empty:
                lines.append(f"{checkpoint.model:<28} not measured: {checkpoint.missing}")
                continue
            for kind in kinds:
                some = rows if kind == "all" else rows[rows["rope"] == (kind == "RoPE")]
                share = some["share_positional"].mean() if "share_positional" in some else np.nan
                means = (f"{value:.3f}" for value in (some["r_q"].mean(), some["r_k"].abs().mean()))
                percent = "" if np.isnan(share) else f"{share:.0%}"
                lines.append(
                    line(checkpoint.model, "" if kind == "all" else kind, len(some), percent, *means)
                )
        report = self.folder / "report.html"
        return "\n".join([*lines, "", f"report: {report}" if report.is_file() else f"results: {self.folder}"])

    def __rich__(self) -> str:
        return str(self)


def load_results(path: Path | str) -> Results:
    """Load a results folder or a single qk.csv."""
    path = Path(path)
    folder = path if path.is_dir() else path.parent

    def load() -> Results:
        manifest = read_manifest(folder)
        return replace(_load(path), made_from=manifest.made_from if manifest else None)

    return read_set(folder, load, None if path.is_dir() else [path.name])


def as_results(run: Results | Path | str) -> Results:
    """A run that is loaded already, or the one at a path."""
    return run if isinstance(run, Results) else load_results(run)


def concat(runs: Sequence[Results | Path | str]) -> Results:
    """Combine several runs into one Results: checkpoint `c` of run `r` becomes `r/c` of family `r`.

    A measure that some runs lack is NaN there. Numbers over a matched window are kept where all runs have the same one.
    All runs need the same class thresholds: use `rethreshold` first.
    """
    import xarray as xr

    loaded = [as_results(run) for run in runs]
    if not loaded:
        raise TableError("no runs to join; give at least one results folder")
    named: dict[str, Results] = {}
    for run in loaded:
        if (name := run.timeline.name or run.folder.name) in named:
            raise TableError(f"two runs are named {name!r}; give one of the studies another name")
        named[name] = run
    if len(limits := {run.thresholds for run in loaded}) > 1:
        raise TableError(f"the runs have different thresholds ({limits}); make them equal with rethreshold")
    windows = {run.timeline.matched_window for run in loaded}
    same = len(windows) == 1 and all(run.matched() is not None for run in loaded)
    checkpoints = tuple(
        replace(checkpoint, model=f"{name}/{checkpoint.model}", phase=name)
        for name, run in named.items()
        for checkpoint in run.timeline.checkpoints
    )
    data = xr.concat(
        [_renamed(run.data, name) for name, run in named.items()],
        "cell",
        data_vars="all",
        coords="minimal",
        compat="override",
        join="outer",
        combine_attrs="override",
    )
    # Heads by layer and number, whose coordinates follow from the names that the runs were joined by.
    heads = np.array([name[1:].split("H") for name in data["head"].to_numpy()], dtype=np.int64).reshape(-1, 2)
    coords = {"layer": ("head", heads[:, 0]), "number": ("head", heads[:, 1])}
    data = data.assign_coords(coords | {"matched": data["matched"] & same}).isel(
        head=np.lexsort(heads.T[::-1])
    )
    timeline = Timeline("-".join(named), " and ".join(named), checkpoints, kind="models")
    return Results(
        folder=loaded[0].folder,
        timeline=replace(timeline, matched_window=windows.pop() if same else None),
        data=data,
        thresholds=loaded[0].thresholds,
    )


def _renamed(data: xr.Dataset, run: str) -> xr.Dataset:
    """The cells of a run under names that tell it from others."""
    for each in ("checkpoint", "weights_of", "rotation_of"):
        names = [name and f"{run}/{name}" for name in data[each].to_numpy()]
        data = data.assign_coords({each: ("cell", np.array(names, dtype=object))})
    return data


def _load(path: Path) -> Results:
    if not path.is_dir():
        name = path.resolve().parent.name if path.name == "qk.csv" else path.stem
        return results_of(from_qk(read_qk(path)), path.parent, name)
    data = read_dataset(path / NAME) if (path / NAME).is_file() else None
    if (path / "study.yaml").is_file():
        return _of_study(path, data)
    return results_of(from_qk(read_qk(path / "qk.csv")) if data is None else data, path, path.resolve().name)


def results_of(data: xr.Dataset, folder: Path, name: str) -> Results:
    """Results without a study: the order of checkpoints comes from their names, their windows from the dataset."""
    own = select(data, "own")
    windows = dict(zip(own["checkpoint"].to_numpy().tolist(), own["window"].to_numpy().tolist(), strict=True))
    timeline = timeline_from_names(list(windows), name=name)
    checkpoints = tuple(
        replace(checkpoint, window=windows[checkpoint.model] or None) for checkpoint in timeline.checkpoints
    )
    return Results(folder=folder, timeline=replace(timeline, checkpoints=checkpoints), data=data)


def _of_study(folder: Path, data: xr.Dataset | None) -> Results:
    """A study with its dataset; without one, as an earlier version wrote it, what its qk.csv says."""
    study = load_study(folder / "study.yaml")
    provenance = study.provenance
    record = read_provenance(provenance, folder / "study.yaml")
    timeline, causes = timeline_of(study, provenance), None
    if data is not None:
        causes = read_causes(folder / "causes.csv")
    else:
        layers = {name: facts.num_layers for name, facts in record.checkpoints.items()}
        windows = {checkpoint.model: checkpoint.window or 0 for checkpoint in timeline.checkpoints}
        data = from_qk(read_qk(folder / "qk.csv"), layers, windows)
        provenance = {**provenance, "warnings": [*record.warnings, EARLIER]}
    weights = {name: facts.commit for name, facts in record.checkpoints.items()}
    return Results(
        folder=folder,
        timeline=_with_gaps(timeline, data, folder),
        data=data,
        causes=causes,
        ablation=read_ablation(folder / ABLATION, weights),
        thresholds=Thresholds(study.thresholds.high, study.thresholds.low),
        study=study.model_dump(mode="json", exclude_none=True),
        provenance=provenance,
    )


def _with_gaps(timeline: Timeline, data: xr.Dataset, folder: Path) -> Timeline:
    """Checkpoints of the study that the dataset lacks become gaps; others that it has are refused."""
    measured = set(data["checkpoint"].to_numpy()[data["own"].to_numpy()].tolist())
    unknown = sorted(measured - {checkpoint.model for checkpoint in timeline.checkpoints})
    if unknown:
        raise TableError(
            f"{folder}: checkpoints {', '.join(unknown[:5])} were measured but are not in {folder / 'study.yaml'}; "
            "add them to the study, or draw the table alone by giving the path of qk.csv"
        )
    checkpoints = tuple(
        checkpoint
        if checkpoint.model in measured
        else replace(checkpoint, missing=checkpoint.missing or "not in the results")
        for checkpoint in timeline.checkpoints
    )
    return replace(timeline, checkpoints=checkpoints)
