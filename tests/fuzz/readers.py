"""Every function that turns a stranger's bytes into an object, with well-formed seeds to start from."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from qkscope.sums import ExampleSum, FactSum

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Reader:
    """`read` gets the path of a file called `file` that holds fuzzed bytes."""

    name: str
    file: str
    seeds: Callable[[], list[bytes]]
    read: Callable[[Path], object]


def as_json(*values: object) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(value).encode() for value in values]


# Units, and what stands beside them


@cache
def facts() -> FactSum:
    from qkscope.sums import FactSum
    from qkscope.sums.head_index import HeadIndex
    from qkscope.sums.rotation import Rotation

    heads = HeadIndex.of([(0, 0), (1, 1)], 1, {0: True, 1: None})
    return FactSum(heads, (16,), (9,), {0: Rotation.none(2), 1: None}, {0: 1.0})


@cache
def units() -> list[bytes]:
    """A file of each sum."""
    from qkscope import store
    from qkscope.sums import KeySum, MomentSum, PathSum, ScoreSum
    from qkscope.sums.keys import KeySample
    from qkscope.sums.moments import Accumulator
    from qkscope.sums.path import Path as BinSums
    from qkscope.sums.path import bin_edges
    from qkscope.sums.scores import distances

    rng = np.random.default_rng(0)
    sums = Accumulator()
    sums.update(rng.normal(size=(2, 9, 2)), np.arange(9.0))
    one = sums.moments()
    edges = bin_edges((16,))
    path = BinSums(edges, np.ones(len(edges) - 1, dtype=np.int64), rng.normal(size=(2, len(edges) - 1, 2)))
    lags = distances(16)
    n = np.ones((1, len(lags)), dtype=np.int64)
    scores = ScoreSum((16,), lags, n, rng.normal(size=(1, 2, len(lags))))
    keys = KeySample(16, np.array([9]), rng.normal(size=(1, 16, 1, 2, 2)).astype(np.float32))
    moments = MomentSum((16,), (one,), (one,), one, one)
    made = [facts(), moments, PathSum(path, path), scores, KeySum((keys,)), excerpts()]
    found = []
    for each in made:
        arrays, meta = each.to_arrays()
        key = {"seed": 0, "windows": [16], "sum": each.name, "version": 1, "parameters": {}}
        found.append(store.dump_tensors(arrays, {**meta, "key": key, "group": 0}))
    return found


def excerpts() -> ExampleSum:
    from qkscope.sums import ExampleSum
    from qkscope.sums.excerpts import KEYS, QUERIES, TOKENS

    tokens = np.where(np.arange(TOKENS) < 9, 5, -1).astype(np.int32)[None]
    key = np.full((1, 2, QUERIES, KEYS), 3, dtype=np.uint8)
    weight = np.full((1, 2, QUERIES, KEYS), 0.05, dtype=np.float16)
    softmax = {name: np.full(2, np.nan) for name in ("softcap", "slope", "reach")}
    return ExampleSum(np.array([0]), tokens, key, weight, weight[..., 0] * 0, softmax)


@cache
def example_files() -> list[bytes]:
    import tempfile

    from qkscope.results.examples import CheckpointExamples, write_examples

    found = CheckpointExamples(((0, 0), (1, 1)), excerpts(), (("a", " é", "\n", "<b>", *"abcde"),))
    with tempfile.TemporaryDirectory() as folder:
        write_examples(Path(folder) / "x", {"a": found, "b": found})
        return [(Path(folder) / "x").read_bytes()]


def read_examples(path: Path) -> object:
    from qkscope.results.examples import read_examples

    return read_examples(path, 1_000_000)


def read_sum(path: Path) -> object:
    """A sum of a unit with these facts."""
    from qkscope.run.units import key_of
    from qkscope.run.units import read_sum as read

    return read(path, key_of(path), facts())


def description(file: bytes) -> bytes:
    """What a tensors file says of its arrays."""
    size = int.from_bytes(file[:8], "little")
    return json.loads(file[8 : 8 + size])["__metadata__"]["meta"].encode()


def signed(path: Path, file: bytes) -> Path:
    """The arrays of `file` with the fuzzed description at `path`, which is damaged or hostile, and the right digest."""
    from safetensors.numpy import load

    from qkscope import store
    from qkscope.errors import StoreError

    try:
        data = store.dump_tensors(load(file), json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise StoreError("not the case looked for") from error
    made = path.with_suffix(".safetensors")
    made.write_bytes(data)
    return made


def read_status(path: Path) -> object:
    from qkscope.run.status import status

    return status(path.parent.parent)


PLAN = {
    "study": "small",
    "missing": {"c": "gone"},
    "units": [
        {"checkpoint": "a", "folder": "a", "group": 0, "key": {"seed": 0}, "sums": {"facts": {"version": 1}}}
    ],
}


def read_mark(path: Path) -> object:
    plan = path.parent.parent / "plan.json"
    if not plan.exists():
        plan.write_text(json.dumps(PLAN))
    return read_status(plan)


def read_manifest(path: Path) -> object:
    from qkscope.results import manifest

    found = manifest.read_manifest(path.parent)
    return list(manifest.problems(path.parent, found.tables)) if found else None


# Tables


@cache
def tables() -> list[bytes]:
    from qkscope.results.tables import QK_COLUMNS

    full = ",".join(QK_COLUMNS) + "\n"
    row = "step-{},{},{},0,{},0.25,-0.5,0.75,64,64,0.01,,0.1,nan,1.0\n".format
    rows = "".join(row(s, layer, h, pc) for s in (1, 2) for layer in (0, 1) for h in (0, 1) for pc in (0, 1))
    return [
        (full + rows).encode(),
        b"model,layer,head,pc,r_q,r_k\na,0,0,0,0.5,0.5\na,0,1,0,-0.5,nan\n",
        b"model,layer,head,pc,r_q,r_k\r\na,0,0,0,0.5,0.5\r\n",
        b'model,layer,head,pc,r_q,r_k\n"a,b",0,0,0,0.5,0.5\n',
    ]


def read_table(path: Path) -> object:
    from qkscope.results.tables import read_qk

    return read_qk(path)


@cache
def datasets() -> list[bytes]:
    import tempfile

    from qkscope.results.dataset import CellData, CellInfo, write_dataset

    rng = np.random.default_rng(0)
    cells = []
    for name, heads in (("a", [(0, 0), (0, 1)]), ("b", [(0, 0), (1, 0)])):
        sampled = {each: rng.uniform(0, 1, (4, 2)) for each in ("r_q", "r_k", "share_key")}
        plain = {each: rng.uniform(0, 1, 2) for each in ("depth", "rope", "kv_head", "n_q", "n_k")}
        curves = {each: rng.normal(size=(2, 3)) for each in ("pc_r_q", "pc_r_q_se", "distance_score")}
        cells.append(CellData(CellInfo(name, 16, groups=3), heads, sampled | plain | curves))
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(Path(folder) / "x", cells)
        return [(Path(folder) / "x").read_bytes()]


def read_measures(path: Path) -> object:
    from qkscope.results.dataset import read_dataset

    return read_dataset(path).load()


def dataset_description() -> bytes:
    file = datasets()[0]
    size = int.from_bytes(file[:8], "little")
    return json.loads(file[8 : 8 + size])["__metadata__"]["dataset"].encode()


def described_dataset(path: Path) -> Path:
    """The arrays of the seed with the fuzzed description at `path`."""
    file = datasets()[0]
    size = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + size])
    header["__metadata__"]["dataset"] = path.read_bytes().decode("utf-8", "replace")
    text = json.dumps(header).encode()
    made = path.with_suffix(".safetensors")
    made.write_bytes(len(text).to_bytes(8, "little") + text + file[8 + size :])
    return made


@cache
def axes() -> list[bytes]:
    from qkscope import store
    from qkscope.results.axes import CheckpointAxes, dump_axes
    from qkscope.sums.head_index import HeadIndex
    from qkscope.sums.path import Path as BinSums
    from qkscope.sums.rotation import Rotation

    heads, rng = HeadIndex.of([(0, 0), (1, 1)], 1, {0: True, 1: None}), np.random.default_rng(0)
    path = BinSums(np.array([0, 4, 8]), np.array([4, 4]), rng.normal(size=(2, 2, 2)))
    rotations, means = {0: Rotation.none(2), 1: None}, rng.normal(size=(2, 2))
    found = CheckpointAxes(
        heads, rng.normal(size=(2, 2, 2)), means, means, path, path, rotations, {0: 1.0, 1: 1.0}
    )
    return [store.dump_tensors(*dump_axes({"a": found}))]


def read_axes(path: Path) -> object:
    from qkscope.results.axes import read_axes

    return read_axes(path, 1_000_000)


# Studies


def studies() -> list[bytes]:
    made = b"""name: small
windows: [16, 48]
corpus: {source: texts, documents: 4}
groups: 4
heads: {sample: 3, seed: 0}
thresholds: {high: 0.7, low: 0.3}
phases:
  - {label: Start, window: 16, checkpoints: [{folder: a}, {folder: b, name: "b", step: 5}]}
  - {label: Long, window: 48, checkpoints: [{model: owner/name, revision: step-3}]}
provenance: {checkpoints: {a: {num_layers: 2, commit: x}}, missing: {b: gone}, corpus: {documents: 3}}
"""
    return [made, b"name: a\nmodel: o/n\ncheckpoints: [{revision: step1, name: a}, step2]\nwindows: [8]\n"]


def read_study(path: Path) -> object:
    from qkscope.results import load_results
    from qkscope.study import validate

    mistakes = validate(path)
    for line in mistakes:
        line.encode()
    if mistakes and not all("no folder at" in line or "no file" in line for line in mistakes):
        return mistakes
    (path.parent / "qk.csv").write_text("model,layer,head,pc,r_q,r_k\na,0,0,0,0.5,0.5\n")
    return load_results(path.parent)


# Texts


def spec_of(path: Path, id_column: str | None = None) -> object:
    from qkscope.study import CorpusSpec

    return CorpusSpec(source=[str(path)], id_column=id_column)


def read_texts(path: Path) -> object:
    from qkscope.corpus.texts import Notes, read_texts

    texts = list(read_texts(spec_of(path, None if path.stat().st_size % 2 else "id"), Notes()))
    for text in texts:
        text.text.encode()
        text.name.encode()
    return texts


LINES = (
    b'{"text": "the cat sat", "id": 1}\n\n{"text": "\\u00e9 \\ud83d\\ude00", "id": "b"}\n'
    b'{"text": null, "id": null}\n'
)


@cache
def text_parquets() -> list[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = []
    for compression in ("zstd", "none"):
        buffer = io.BytesIO()
        table = pa.table({"text": ["the cat", "sat", None, "é"], "id": [1, 2, 3, 4]})
        pq.write_table(table, buffer, compression=compression)
        found.append(buffer.getvalue())
    return found


# Vectors


@cache
def vectors() -> list[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = []
    rng = np.random.default_rng(0)
    for kind in (pa.list_(pa.float32()), pa.list_(pa.float32(), 4)):
        table = pa.table(
            {
                "example_id": pa.array([0, 0, 1, 1], pa.int32()),
                "position": pa.array([0, 1, 0, 1], pa.int32()),
                "vector": pa.array(rng.normal(size=(4, 4)).tolist(), kind),
            }
        )
        for compression in ("zstd", "none"):
            buffer = io.BytesIO()
            pq.write_table(table, buffer, compression=compression)
            found.append(buffer.getvalue())
    return found


def read_vectors(path: Path) -> object:
    from qkscope.vectors import read_moments

    return read_moments(path, groups=2)


# Tokens kept from an earlier run


@cache
def token_caches() -> list[bytes]:
    from qkscope import store

    arrays = {
        "keys": np.zeros((2, 16), np.uint8),
        "lengths": np.array([3, 2]),
        "sizes": np.array([3, 2]),
        "tokens": np.arange(5, dtype=np.int32),
    }
    return [store.dump_tensors(arrays, {"max_tokens": 16})]


def read_tokens(path: Path) -> object:
    from qkscope.corpus.documents import _TokenCache

    memory = _TokenCache(None, spec_of(path), None, 16)
    memory._path = path
    return memory._load()


# Names


def read_names(path: Path) -> object:
    """Names come from hubs, folders and tables: ordering them and making folders of them never fails."""
    from qkscope.checkpoints.revisions import split_revisions
    from qkscope.study.schema import folder_name
    from qkscope.study.timeline import timeline_from_names

    names = path.read_bytes().decode("utf-8", "replace").split("\n")
    split_revisions(names)
    timeline_from_names(names)
    return [folder_name(name) for name in names]


NAMES = (
    b"step0\nstep143000\nstage1-step-40000\nlc-4k-to-32k-step-4000\nstep1000-tokens4B\nckpt_000\n"
    b"checkpoint-5\nmain\nstep-001000-2BT"
)


def read_shard(path: Path) -> object:
    from qkscope.run.status import parse_shard

    return parse_shard(path.read_bytes().decode("utf-8", "replace"))


def signed_reader(
    name: str, path: str, files: Callable[[], list[bytes]], read: Callable[[Path], object]
) -> Reader:
    """Reads a file whose description is fuzzed and whose digest is right."""
    return Reader(
        f"{name}, signed",
        path,
        lambda: [description(files()[0])],
        lambda described: read(signed(described, files()[0])),
    )


READERS = [
    Reader("unit", "units/a/0/sum.safetensors", units, read_sum),
    signed_reader("unit", "0.json", units, read_sum),
    Reader("plan", "units/plan.json", as_json(PLAN), read_status),
    Reader("running mark", "units/a/0.running", as_json({"host": "h", "pid": 7, "since": 1.0}), read_mark),
    Reader("failed mark", "units/a/0.failed", lambda: [b"it burnt\n\nTraceback", "é".encode()], read_mark),
    Reader(
        "manifest",
        "manifest.json",
        as_json(
            {
                "format": 1,
                "made_from": "x",
                "finished": True,
                "tables": {"qk.csv": [3, "ab" * 20]},
                "drawn": {},
            }
        ),
        read_manifest,
    ),
    Reader("qk.csv", "qk.csv", tables, read_table),
    Reader("measures", "measures.safetensors", datasets, read_measures),
    Reader(
        "measures, described",
        "measures.json",
        lambda: [dataset_description()],
        lambda path: read_measures(described_dataset(path)),
    ),
    Reader("axes", "axes.safetensors", axes, read_axes),
    Reader("examples", "examples.safetensors", example_files, read_examples),
    signed_reader("examples", "examples.json", example_files, read_examples),
    signed_reader("axes", "axes.json", axes, read_axes),
    Reader("study", "study.yaml", studies, read_study),
    Reader("text", "a.txt", lambda: [b"the cat sat\n", "é \u202e".encode()], read_texts),
    Reader("jsonl", "a.jsonl", lambda: [LINES], read_texts),
    Reader("jsonl.gz", "a.jsonl.gz", lambda: [gzip.compress(LINES, mtime=0)], read_texts),
    Reader("text parquet", "a.parquet", text_parquets, read_texts),
    Reader("vectors", "data.parquet", vectors, read_vectors),
    Reader("tokens", "tokens.safetensors", token_caches, read_tokens),
    Reader("names", "names", lambda: [NAMES], read_names),
    Reader("shard", "shard", lambda: [b"1/8", b" 3 / 4 "], read_shard),
]
