"""Where the numbers of a results folder came from, as its study.yaml records it.

Everything may be missing: records of earlier versions have less, a bare table has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from qkscope.checkpoints.doctor import Finding
from qkscope.errors import StudyError
from qkscope.results.tables import MAX_COUNT

Count = Annotated[int, Field(strict=True, gt=0, le=MAX_COUNT)]
# YAML has numbers and nothing where a word was meant.
Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else str(value))]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class CheckpointRecord(_Record):
    """One measured checkpoint: its weights and its shape."""

    commit: Text = ""
    corpus: Text = ""
    window: int | None = None
    family: Text = ""
    num_layers: Count
    n_q_heads: int | None = None
    n_kv_heads: int | None = None
    head_dim: int | None = None
    rope_theta: float | None = None
    rope: dict[str, Any] = {}
    """All settings of its configuration that decide how queries and keys are rotated."""

    @property
    def shape(self) -> str:
        """`12 layers, 4 query heads, 1 key head, head dimension 32`, as far as it is known."""
        known = {"layers": self.num_layers, "query heads": self.n_q_heads, "key heads": self.n_kv_heads}
        parts = [f"{n} {word[:-1] if n == 1 else word}" for word, n in known.items() if n is not None]
        return ", ".join(parts + ([f"head dimension {self.head_dim}"] if self.head_dim is not None else []))


class CorpusRecord(_Record):
    """The texts: how many documents, of how many tokens in all or in each window, how many fill each window, and
    whether they are read from their beginning."""

    documents: int | None = None
    tokens: int | dict[int, int] | None = None
    filled: dict[int, int] = {}
    digest: Text = ""
    start: Text = "beginning"


class Provenance(_Record):
    """The whole record; `findings` are what checks of the checkpoints found, `missing` says of each checkpoint that was
    not measured why, `unmeasured` how many heads of the others met values that are not finite."""

    versions: dict[str, Text] = {}
    checkpoints: dict[str, CheckpointRecord] = {}
    corpus: CorpusRecord = CorpusRecord()
    warnings: tuple[Text, ...] = ()
    findings: tuple[Finding, ...] = ()
    missing: dict[str, str] = {}
    unmeasured: dict[str, int] = {}


def read_provenance(record: Mapping[str, Any], where: object) -> Provenance:
    """A record as a study.yaml has it; a damaged one is an error that names the field."""
    try:
        return Provenance.model_validate({key: value for key, value in record.items() if value is not None})
    except ValidationError as error:
        found = error.errors()[0]
        field = ".".join(str(part) for part in found["loc"])
        raise StudyError(
            f"{where}: provenance: damaged ({field}: {found['msg']}); run the study again, or remove it"
        ) from error
