"""The study file: what to measure, on what, in which order.

A study says what it measures in one of three ways, which all become the same list of checkpoints:

    phases        stages of one training run, each with its context window and its checkpoints (a folder, or a list)
    checkpoints   one training run without phases: a folder of checkpoint folders, or a list
    families      different models, grouped

Paths in a study are relative to its file. Everything here is a description: no model and no text is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from qkscope import defaults
from qkscope.checkpoints.files import Dtype, Source
from qkscope.checkpoints.revisions import order_revisions, parse_revision, phase_labels
from qkscope.study.yaml_lines import Loc

Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
NotNegative = Annotated[int, Field(ge=0)]


def _known_device(name: str) -> str:
    """Devices that torch knows by name; whether this machine has one is seen when a model is loaded."""
    if not re.fullmatch(r"(cpu|cuda|mps|xpu|npu|hpu)(:\d+)?", name):
        raise ValueError(f"expected cpu, cuda, cuda:1 or mps, found {name!r}")
    return name


class _Part(BaseModel):
    # Strict: `windows: ["1024"]` and `groups: true` are mistakes, not numbers.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class CorpusSpec(_Part):
    """The texts to measure on. All keys are optional."""

    source: list[str] = Field(default=["stdlib"], min_length=1)
    """One or several: `stdlib` (Python's sources), a file, a folder, a .jsonl or .parquet file, `hub:owner/name`."""
    split: str = "train"
    """Split of a hub dataset."""
    text_column: str = "text"
    """Column or key that holds the text."""
    id_column: str | None = None
    """Column or key that names a record."""
    documents: Positive | None = None
    """Maximum number of documents (default: all)."""
    min_tokens: NotNegative = 0
    """Skip shorter texts."""
    start: Literal["random", "beginning"] = "random"
    """Where to start reading texts longer than the largest window: `random` (from `seed`) or `beginning`."""
    seed: NotNegative = defaults.SEED
    """Seed of the random starting points."""
    chunk: Positive | bool | None = None
    """Cut texts into documents of this many tokens (true: the largest window). Default: only a single text is cut."""
    revision: str | None = None
    """Revision of a hub dataset."""


class HeadsSpec(_Part):
    """All query heads, or a random sample of them."""

    sample: Positive | None = None
    """Number of query heads (default: all)."""
    seed: NotNegative = defaults.SEED
    """Seed of the sample."""


class ThresholdsSpec(_Part):
    """Thresholds of the published head classes."""

    high: Annotated[float, Field(ge=0, le=1)] = defaults.HIGH
    """Correlations above this are strong."""
    low: Annotated[float, Field(ge=0, le=1)] = defaults.LOW
    """Correlations below this are weak."""


class ControlsSpec(_Part):
    """Counterfactual checkpoints that separate causes where the RoPE settings of neighbours differ."""

    rotation: bool = True
    """Measure each neighbour with the other's RoPE settings, for any rope type, over the shorter of their windows."""

    @model_validator(mode="before")
    @classmethod
    def _without_window(cls, given: Any) -> Any:
        """`window` in study files of earlier versions is ignored."""
        if isinstance(given, dict) and type(given.get("window")) is bool:
            return {name: value for name, value in given.items() if name != "window"}
        return given


class PlasticitySpec(_Part):
    """Sample of keys that is stored for the measure `plasticity`."""

    keys: Annotated[int, Field(ge=3, le=64)] = 8
    """Keys per bucket of positions."""
    documents: Positive = 4
    """Documents per group."""


class AlarmsSpec(_Part):
    """What `run`, `watch` and a monitor of a training run warn about. A limit of 0 switches an alarm off."""

    max_logit: Annotated[float, Field(ge=0)] = 100.0
    """Largest attention logit (needs the attention measures)."""
    norm_ratio: Annotated[float, Field(ge=0)] = 2.0
    """Mean norm of queries or keys, as a multiple of the first checkpoint's."""
    share_drop: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Fall of a share of score variance, or of heads with a role, since the checkpoint before, beyond its error."""
    loss_above_start: bool = True
    """Held-out loss above that of the first checkpoint (needs `loss`)."""


class Entry(_Part):
    """One checkpoint or model. Missing keys are taken from its phase or family, then from the study."""

    model: str | None = None
    """A name on the hub, a folder or a .gguf file."""
    folder: str | None = None
    """A checkpoint folder; relative to the study's file."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    gguf_file: str | None = None
    """GGUF file of a repository or folder."""
    name: str | None = None
    """Name in all tables (default: that of the revision, folder or model)."""
    label: str | None = None
    """Short name on axes."""
    step: NotNegative | None = None
    """Training step, if the name does not contain it."""
    window: Positive | None = None
    """Context window, one of `windows` (default: its phase's, else the largest)."""
    tokenizer: str | None = None
    """Folder or hub name of its tokenizer (default: the one stored with the weights)."""
    dtype: Dtype | None = None
    """As in the study."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.folder and (self.model or self.revision):
            raise ValueError("folder cannot be combined with model or revision: give one or the other")
        return self


Entries = Annotated[list[Entry], Field(min_length=1)]


class Phase(_Part):
    """A stage of training: its context window and its checkpoints, in order."""

    label: str = ""
    """Name on axes."""
    window: Positive | None = None
    """The context it was trained with, one of `windows`."""
    checkpoints: Entries
    """Its checkpoints, in training order: a folder of them, or a list of entries, bare revisions or bare folders."""


class Family(_Part):
    """Models shown together."""

    label: str = ""
    """Name on axes."""
    window: Positive | None = None
    """The context its models are measured over, one of `windows`."""
    models: Entries
    """Its models: entries, or bare names such as `owner/name` or `owner/name@revision`."""


class Study(_Part):
    """The checkpoints to measure, the texts to measure them on, and the settings."""

    name: str
    """Name of the study and of its results folder."""
    title: str | None = None
    """Heading of figures and report."""
    model: str | None = None
    """Hub model or folder that the checkpoints are revisions of."""
    tokenizer: str | None = None
    """Tokenizer: a folder, or `owner/name` on the hub (default: the one stored with the weights)."""
    dtype: Dtype = "auto"
    """Number format of the weights (`auto`: as saved)."""
    device: Annotated[str, AfterValidator(_known_device)] | None = None
    """`cpu`, `cuda`, `cuda:1` or `mps` (default: cuda if available, else cpu)."""
    device_map: str | dict[str, Any] | None = None
    """Passed on to transformers (`auto`), for models larger than one GPU."""
    trust_remote_code: bool = False
    """Run code that comes with the model. Only if you trust it."""
    allow_pickle: bool = False
    """Read .bin weights, which can run code. Only if you trust them."""
    corpus: CorpusSpec = CorpusSpec()
    """The texts; `corpus: SOURCE` is short for `corpus: {source: SOURCE}`."""
    heads: Annotated[HeadsSpec, BeforeValidator(lambda value: {} if value == "all" else value)] = HeadsSpec()
    """`all`, or `{sample: 300, seed: 0}`."""
    windows: list[Positive] = Field(default=[], description="Context windows in tokens, ascending.")
    groups: Annotated[int, Field(ge=2, le=10_000)] = defaults.GROUPS
    """Groups of documents for the delete-one-group jackknife."""
    shifts: NotNegative | None = Field(default=None, description="Ignored; used by earlier versions.")
    components: Positive = defaults.COMPONENTS
    """Principal components of each head."""
    seed: NotNegative = defaults.SEED
    """Seed of the random samples that measures draw."""
    batch_tokens: Positive = defaults.BATCH_TOKENS
    """Tokens per forward pass."""
    thresholds: ThresholdsSpec = ThresholdsSpec()
    """Thresholds of the published head classes."""
    controls: ControlsSpec = ControlsSpec()
    """Counterfactual checkpoints that separate causes."""
    measures: list[str] = Field(
        default=[*defaults.MEASURES],
        description="Optional measures. `plasticity` stores a sample of keys, which costs a few percent of a pass.",
    )
    loss: bool = False
    """Measure the loss in nats per token, by position. Adds up to 30% to a pass."""
    examples: Annotated[int, Field(ge=0, le=defaults.MOST_EXAMPLES)] = defaults.EXAMPLES
    """Number of short excerpts of the texts on which the report shows attention (0 to 8; 0: no text is shown)."""
    plasticity: PlasticitySpec = PlasticitySpec()
    """Sample of keys for the measure `plasticity`."""
    alarms: AlarmsSpec | None = None
    """Limits whose crossing is reported (default: no alarms; `{}` has the default limits)."""
    portraits: list[str] = []
    """Checkpoints shown in the phase portraits (default: chosen automatically)."""
    phases: Annotated[list[Phase], Field(min_length=1)] | None = None
    """Stages of one training run, in order."""
    families: Annotated[list[Family], Field(min_length=1)] | None = None
    """Different models, grouped."""
    checkpoints: Entries | None = None
    """One training run without phases: a folder of checkpoint folders, or a list."""
    gpus: NotNegative | None = None
    """GPUs per Ray worker."""
    cpus: Positive | None = None
    """CPU cores per Ray worker."""
    retries: NotNegative = 2
    """How often a unit is retried after its Ray worker was lost."""
    timeout: Annotated[float, Field(gt=0)] | None = None
    """Maximum seconds per unit, including loading the model (default: no limit)."""
    keep_weights: bool = True
    """false: delete downloaded weights from the hub's cache when a checkpoint is done."""
    provenance: dict[str, Any] = Field(default={}, exclude=True)

    @property
    def kind(self) -> Literal["training", "models"]:
        return "models" if self.families else "training"

    @property
    def optional_measures(self) -> list[str]:
        """`measures`, and the loss where it is measured."""
        return list(dict.fromkeys([*self.measures, *(["loss"] if self.loss else [])]))

    @property
    def matched_window(self) -> int:
        """The smallest window: every checkpoint has it."""
        return min(self.windows)


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of a study, with the settings of its phase, its family and the study.

    A counterfactual one names the checkpoints its weights and its rotation settings are from.
    """

    name: str
    label: str
    phase: str
    window: int
    step: int | None
    source: Source
    loc: Loc = ()
    weights_of: str = ""
    rotation_of: str = ""

    @property
    def folder(self) -> str:
        """Its name as a folder's: `a/b` becomes `a--b`."""
        return folder_name(self.name)

    @property
    def counterfactual(self) -> bool:
        """Whether it combines the weights of one checkpoint with the RoPE settings or window of another."""
        return bool(self.weights_of)

    def rings(self, windows: list[int]) -> tuple[int, ...]:
        """The windows of the study up to its own."""
        return tuple(window for window in windows if window <= self.window)


def dump_study(study: Study, provenance: Mapping[str, Any]) -> str:
    """The resolved study with its provenance, as YAML that `load_study` reads."""
    plain = study.model_dump(mode="json", exclude_none=True) | {"provenance": dict(provenance)}
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=110)


def sources(study: Study) -> list[Checkpoint]:
    """The study's checkpoints, in its order."""
    parts: list[tuple[Phase | Family | None, list[Entry], Loc]]
    if study.phases:
        parts = [(p, p.checkpoints, ("phases", i, "checkpoints")) for i, p in enumerate(study.phases)]
    elif study.families:
        parts = [(f, f.models, ("families", i, "models")) for i, f in enumerate(study.families)]
    else:
        parts = [(None, study.checkpoints or [], ("checkpoints",))]
    found = [
        _checkpoint(study, entry, part, (*loc, i))
        for part, entries, loc in parts
        for i, entry in enumerate(entries)
    ]
    # Short labels where the study gives none: by the revisions' naming scheme, or the model's last part.
    names = [checkpoint.name for checkpoint in found]
    if study.kind == "training":
        short = {revision.name: revision.label for revision in order_revisions(names)}
        short |= phase_labels([(c.name, c.phase, c.step) for c in found], short)
    else:
        short = {name: name.rsplit("/", 1)[-1] for name in names}
    return [c if c.label else replace(c, label=short[c.name]) for c in found]


def folder_name(name: str) -> str:
    """A checkpoint's name as one folder's name: slashes become `--`, other unsafe characters `_`."""
    plain = re.sub(r"[/\\]+", "--", name)
    plain = re.sub(r"[^\w.@+=,~ -]", "_", plain)
    return re.sub(r"^\.+|[. ]+$", "_", plain)


def _checkpoint(study: Study, entry: Entry, part: Phase | Family | None, loc: Loc) -> Checkpoint:
    name = entry.name or _default_name(study, entry)
    known = parse_revision(name) if study.kind == "training" else None
    return Checkpoint(
        name=name,
        label=entry.label or "",
        phase=(part and part.label) or (known.phase_label if known else ""),
        window=entry.window or (part and part.window) or max(study.windows, default=0),
        step=entry.step if entry.step is not None else known.step if known else None,
        source=Source(
            model=entry.folder or entry.model or study.model or "",
            revision=entry.revision,
            tokenizer=entry.tokenizer or study.tokenizer,
            dtype=entry.dtype or study.dtype,
            device=study.device,
            device_map=study.device_map,
            trust_remote_code=study.trust_remote_code,
            allow_pickle=study.allow_pickle,
            gguf_file=entry.gguf_file,
        ),
        loc=loc,
    )


def _default_name(study: Study, entry: Entry) -> str:
    """A revision is named by itself within one model's study, else as `model@revision`; a folder by its last part."""
    model = entry.folder or entry.model or study.model or ""
    local = entry.folder or Path(model).is_absolute()
    base = (Path(model).name if local else model) or model
    if entry.gguf_file and not entry.revision:
        return Path(entry.gguf_file).stem
    if entry.revision is None:
        return base
    return entry.revision if entry.model is None and entry.folder is None else f"{base}@{entry.revision}"
