"""One model, quickly: from a model and texts to the measures of its heads and a short summary.

result = qkscope.scan("HuggingFaceTB/SmolLM2-135M")                      # hub id, folder or GGUF file
result = qkscope.scan(model, tokenizer=tokenizer, texts=["..."])         # a model in memory
result.heads                                                             # a DataFrame, one row per head
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qkscope import defaults
from qkscope.capture import Probing, measure
from qkscope.capture.architecture import Architecture
from qkscope.capture.vector_sample import VectorSample
from qkscope.corpus.documents import digest
from qkscope.errors import CaptureError, StoreError
from qkscope.measures.registry import chosen, sums_for, unknown_measures
from qkscope.progress import progress
from qkscope.results.owner import Holding, held, refuse_other
from qkscope.results.roles import ROLES, with_role
from qkscope.results.taxonomy import CLASSES, UNMEASURED, too_few_measured, unmeasured_warnings
from qkscope.scanning.measured import MeasuredHeads, measured_cell, results_in_memory
from qkscope.scanning.subject import Setup, Subject, corpus_spec, prepare, warn
from qkscope.store import write_json
from qkscope.sums import KeySum
from qkscope.sums.unit import Unit, unknown_rotation_warning
from qkscope.words import bare, percent, tokens

if TYPE_CHECKING:
    import pandas as pd

# A measure that `decides` averages -> its column.
_PARTS = {
    "share_position": "position",
    "share_key": "key",
    "share_match": "match",
    "share_query_position": "query x position",
    "score_sd": "score_sd",
    "sink": "sink",
}
_SHARES = {*CLASSES, UNMEASURED, "explained_variance", "position", "key", "match", "query x position"}
_TITLES = {"r_q_se": "±", "r_k_se": "±", "explained_variance": "PC0 variance", "which": ""}


@dataclass(frozen=True, repr=False)
class ScanResult(MeasuredHeads):
    """What one model's heads do: `heads` has a row per head with every measure and its error, `qk` a row per head and
    principal component; `data` is all of it as an xarray dataset with one cell (see `qkscope.results.dataset`).

    `results` is what figures, claims and reports are made from.

    documents, tokens   how many were read; `filled` documents have at least `window` tokens
    available           tokens of the texts that were read, used or not; None for texts in memory
    origin              the folder or hub name that was read; empty for a model in memory
    corpus              a digest of the tokens that were read: equal for results on the same texts
    problem             why the result is of no use, and what to do: too many of its heads have no numbers
    """

    model: str
    architecture: Architecture
    window: int
    documents: int
    tokens: int
    filled: int
    warnings: list[str]
    available: int | None
    origin: str
    corpus: str
    problem: str | None

    def head(self, layer: int, head: int) -> pd.DataFrame:
        """One head: a row with every measure and its error."""
        return self.results.head(layer, head)

    def _write_facts(self, folder: Path) -> None:
        names = (
            *("model", "origin", "window", "documents", "tokens"),
            *("available", "filled", "warnings", "corpus"),
        )
        shape = ("family", "num_layers", "n_q_heads", "n_kv_heads", "head_dim", "max_positions", "rope_theta")
        facts = {name: getattr(self, name) for name in names}
        write_json(folder / "scan.json", facts | {name: getattr(self.architecture, name) for name in shape})

    def summary(self) -> pd.DataFrame:
        """Mean r_q, r_k and the share of each class: of all heads, of RoPE layers and of NoPE layers."""
        import pandas as pd

        rows = []
        for name, part in self._by_rotation().items():
            measured = part[part["class"] != UNMEASURED]
            row = {"layers": name, "heads": len(part), **measured[["r_q", "r_k"]].mean()}
            row |= {kind: (measured["class"] == kind).mean() for kind in CLASSES}
            if len(measured) < len(part):
                row[UNMEASURED] = (part["class"] == UNMEASURED).mean()
            rows.append(row)
        return pd.DataFrame(rows)

    def decides(self) -> pd.DataFrame:
        """What determines where heads attend, on average: of all heads, of RoPE and NoPE layers, and of each class.

        Shares of the variance of a query's scores over its keys, its standard deviation in logits, and `sink`: the
        head start of the first token.
        """
        import pandas as pd

        parts = self._by_rotation() | {name: self.heads[self.heads["class"] == name] for name in CLASSES}
        rows = {name: part[list(_PARTS)].mean() for name, part in parts.items() if len(part)}
        return pd.DataFrame(rows).T.rename(columns=_PARTS).rename_axis("heads").reset_index()

    def roles(self) -> pd.DataFrame:
        """How many heads have each role beyond noise, and the strongest of them; only roles that some head has."""
        import pandas as pd

        rows = []
        for role in ROLES if "roles" in self.heads else ():
            own = self.heads[with_role(self.heads, role.name)].sort_values(
                role.variable, ascending=False, kind="stable"
            )
            best = [f"L{r.layer}H{r.head} {getattr(r, role.variable):.2f}" for r in own.head(3).itertuples()]
            if len(own):
                rows.append({"role": role.name, "heads": len(own), "strongest": ", ".join(best)})
        return pd.DataFrame(rows)

    def extremes(self, count: int = 5) -> pd.DataFrame:
        """The `count` most and least positional heads, by the mean of r_q and |r_k|."""
        import pandas as pd

        strength = (self.heads["r_q"] + self.heads["r_k"].abs()) / 2
        ranked = self.heads.loc[strength.dropna().sort_values(ascending=False, kind="stable").index]
        count = min(count, len(ranked) // 2) or len(ranked)
        columns = ["layer", "head", "r_q", "r_q_se", "r_k", "r_k_se", "explained_variance", "rope", "class"]
        most, least = ranked.head(count)[columns], ranked.tail(count)[columns]
        parts = [most.assign(which="most"), least.assign(which="least")]
        return pd.concat(parts, ignore_index=True)[["which", *columns]]

    def headline(self) -> str:
        a = self.architecture
        of_all = "" if self.available is None else f" of {self.available:,}"
        return (
            f"{self.model} ({a.family}): {len(self.heads):,} of {a.num_layers * a.n_q_heads:,} heads, "
            f"{self.documents} documents, {self.tokens:,}{of_all} tokens; {self.filled} documents fill the window of "
            f"{tokens(self.window)}"
        )

    def _by_rotation(self) -> dict[str, pd.DataFrame]:
        """All heads and, where some layers do not rotate, those of either kind."""
        heads = self.heads
        if not (heads["rope"] == 0).any():
            return {"all": heads}
        return {"all": heads, "RoPE": heads[heads["rope"] == 1], "NoPE": heads[heads["rope"] == 0]}

    def _tables(self) -> dict[str, pd.DataFrame]:
        """The short tables by their titles."""
        roles = self.roles()
        return {
            "Mean r and share of each class": self.summary(),
            "What determines where heads attend: mean share of score variance over keys": self.decides(),
            "Heads": self.extremes(),
        } | ({"Roles: what heads attend to, beyond noise": roles} if len(roles) else {})

    def __rich__(self) -> Any:
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        shown: list[Any] = [Text(self.headline())]
        for title, frame in self._tables().items():
            table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
            for name in frame.columns:
                side: Literal["left", "right"] = "left" if frame[name].dtype == object else "right"
                table.add_column(_TITLES.get(name, name), justify=side)
            for row in _as_text(frame).itertuples(index=False):
                table.add_row(*row)
            shown.append(table)
        return Group(*shown, *(Text(f"Note: {warning}") for warning in self.warnings))

    def __repr__(self) -> str:
        text = "\n".join(_as_text(each).to_string(index=False) for each in (self.summary(), self.decides()))
        notes = "".join(f"\nNote: {warning}" for warning in self.warnings)
        return f"{self.headline()}\n{text}{notes}"

    def _repr_html_(self) -> str:
        from html import escape

        tables = [_as_text(each).to_html(index=False, border=0) for each in self._tables().values()]
        notes = "".join(f"<p>Note: {escape(warning)}</p>" for warning in self.warnings)
        return f"<p>{escape(self.headline())}</p>{''.join(tables)}{notes}"


def _as_text(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.apply(lambda column: column.map(partial(_cell, column.name)))


def _cell(name: str, value: Any) -> str:
    """One value as a person reads it: shares in percent, correlations with a sign, what is missing as a dash."""
    if isinstance(value, str):
        return value
    if value != value:
        return "–"
    if name == "rope":
        return "RoPE" if value else "NoPE"
    if name in _SHARES:
        return percent(value)
    if name in ("r_q", "r_k", "sink"):
        return bare(value, signed=True)
    return bare(value) if name.endswith(("_se", "_sd")) else str(value)


def scan(
    model: Any,
    *,
    revision: str | None = None,
    tokenizer: Any = None,
    texts: Iterable[Any] | None = None,
    text_paths: Sequence[Path | str] = (),
    max_length: int | None = None,
    documents: int = 32,
    start: Literal["random", "beginning"] = "random",
    chunk: bool | None = None,
    dtype: str = "auto",
    device: str | None = None,
    heads: str | int | Sequence[tuple[int, int]] = "all",
    groups: int = defaults.GROUPS,
    seed: int = defaults.SEED,
    components: int = defaults.COMPONENTS,
    measures: Sequence[str] = defaults.MEASURES,
    batch_tokens: int = defaults.BATCH_TOKENS,
    save_vectors: float | None = None,
    token_str: bool = False,
    include_sliding: bool = False,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    out: Path | str | None = None,
    replace: bool = False,
) -> ScanResult:
    """Measure the heads of one model on some texts.

    model       a transformers model in memory, a hub id, a folder or a GGUF file
    tokenizer   a tokenizer, or its folder or hub id; not needed for token ids, or if it is stored with the model
    texts       a list of texts or of token id lists (default: `text_paths`, else the Python standard library)
    text_paths  text files or folders; at most `documents` documents are read from files
    max_length  the window: tokens read from each document (default: 2,048, or the model's positions if it has fewer)
    start       where to start reading long texts from files: at a `random` position drawn from `seed`, or `beginning`
    chunk       cut texts from files into consecutive documents (default: only a single text)
    heads       "all", a number of heads to sample with `seed`, or (layer, head) pairs
    measures    optional measures: rotation, per_kind, plasticity (stores a sample of keys during the pass)
    out         a folder for measures.safetensors, qk.csv, heads.csv and, with `save_vectors` (a share of the tokens), a
                sample of the vectors
    replace     overwrite results in `out` that are of another model or other texts, or have more heads or measures
    """
    if mistake := unknown_measures(measures):
        raise CaptureError(mistake)
    if out is None and save_vectors is not None:
        raise CaptureError("save_vectors needs a folder to write to: give `out`")
    reading = {"trust_remote_code": trust_remote_code, "allow_pickle": allow_pickle}
    subject = Subject.of(model, tokenizer, revision, dtype=dtype, device=device, **reading)
    window = subject.window if max_length is None else max_length
    spec = corpus_spec(text_paths, documents, seed, start=start, chunk=chunk)
    setup = prepare(subject, window, texts, spec, heads, groups, include_sliding)
    holds = Holding("scan", subject.name, judged=False)
    if out is not None:
        settings = {"window": window, "groups": len(setup.groups), "seed": seed, "dtype": dtype}
        settings |= _vectors(Path(out), save_vectors, token_str)
        parts = {subject.name: setup.part()}
        holds = Holding("scan", subject.name, parts, (), list(measures), components, settings)
        refuse_other(Path(out), holds, replace=replace)
    setup.check_memory()
    sample = None if save_vectors is None else _sample(setup, save_vectors, window, seed, token_str)
    options = {"batch_tokens": batch_tokens, "include_sliding": include_sliding, "save": sample}
    units = _measure_groups(setup, window, measures, seed, **options)
    result = _result(setup, units, window, measures, components, holds)
    if out is not None:
        result.save(out, replace=replace)
        if sample is not None:
            sample.write(Path(out) / "vectors", subject.name, subject.architecture)
    return result


def _vectors(out: Path, rate: float | None, token_str: bool) -> dict[str, Any]:
    """The record of the vectors that a folder has after a scan: those saved now, else those that it has."""
    before = held(out)
    there = before.settings.get("vectors") if before is not None else None
    if rate is None:
        return {} if there is None else {"vectors": there}
    if there is None and (out / "vectors").exists():
        raise StoreError(
            f"{out / 'vectors'} exists without a record that a scan wrote it, so it is not overwritten; "
            "choose another folder with --out, or move it away"
        )
    # Folders of earlier versions record a second setting, which was almost always False.
    return {"vectors": [rate, False, token_str]}


def _sample(setup: Setup, rate: float, window: int, seed: int, token_str: bool) -> VectorSample:
    names = None
    if token_str:
        tokenizer = setup.subject.find_tokenizer()
        if tokenizer is None:
            raise CaptureError("token_str needs a tokenizer: give `tokenizer`")

        def names(token: int) -> str:
            return str(tokenizer.decode([token]))

    return VectorSample(setup.heads, rate, window, seed=seed, names=names)


def _measure_groups(
    setup: Setup, window: int, measures: Sequence[str], seed: int, **options: Any
) -> list[Unit]:
    """A unit for each group of documents; `options` are those of `measure`."""
    name, model = setup.subject.name, setup.subject.load()
    kinds = sums_for(chosen(measures)).values()
    options["sums"] = {kind: {"seed": seed} if kind is KeySum else {} for kind in kinds}
    total = sum(min(len(document.tokens), window) for document in setup.documents)
    probe = Probing(model)
    started = time.monotonic()
    with progress(f"Measuring {name}", total, unit="tokens") as bar:
        options |= {"windows": (window,), "on_tokens": bar.advance, "probe": probe}
        units = [measure(model, group, setup.heads, **options) for group in setup.groups]
        seconds = time.monotonic() - started
        bar.done(f"{name}: {total:,} tokens in {seconds:,.1f} s, {total / seconds:,.0f} tokens/s")
    warn(setup.warnings, unknown_rotation_warning(units))
    return units


def _result(
    setup: Setup, units: Sequence[Unit], window: int, measures: Sequence[str], components: int, holds: Holding
) -> ScanResult:
    subject, texts = setup.subject, digest(setup.documents)
    layers = subject.architecture.num_layers
    cell = measured_cell(subject.name, units, window, layers, measures, components, texts)
    results = results_in_memory([cell], subject.name)
    heads = results.heads
    for warning in unmeasured_warnings(heads).values():
        warn(setup.warnings, warning)
    return ScanResult(
        results,
        [cell],
        holds,
        model=subject.name,
        architecture=subject.architecture,
        window=window,
        documents=sum(unit.documents for unit in units),
        tokens=sum(unit.tokens for unit in units),
        filled=sum(unit.filled[0] for unit in units),
        warnings=setup.warnings,
        available=setup.available,
        origin=subject.origin,
        corpus=texts,
        problem=too_few_measured(heads, "--dtype float32"),
    )
