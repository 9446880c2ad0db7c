"""Strangers' files and hostile numbers: refused in words, flagged or harmless; no traceback and no false number."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from fuzz.readers import spec_of

from qkscope import store
from qkscope.cli import main
from qkscope.corpus.texts import Notes, read_texts
from qkscope.errors import CorpusError, TableError, VectorsError, printable
from qkscope.measures.pca import measure_batch
from qkscope.results.tables import read_qk
from qkscope.study import validate
from qkscope.sums.moments import Accumulator
from qkscope.vectors import find_models, read_moments

MINIMAL = "name: a\nmodel: o/n\ncheckpoints: [step1]\nwindows: [8]\n"


def texts_of(path):
    return list(read_texts(spec_of(path), Notes()))


# Study files


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MINIMAL + "title: \x07\n", "not valid YAML"),
        (MINIMAL + "title: a\0b\n", "not valid YAML"),
        (MINIMAL + 'title: "a\\0b"\n', "cannot be printed"),
        (MINIMAL + 'title: "\\ud800"\n', "cannot be printed"),
        (MINIMAL + 'title: "\\e[2J"\n', "cannot be printed"),
        (MINIMAL + 'title: "a\\u202eb"\n', "cannot be printed"),
        (MINIMAL + "corpus: ~nosuchuser/texts\n", "no file or folder"),
        (MINIMAL + f"corpus: {'a' * 300}\n", "no file or folder"),
        (MINIMAL.replace("model: o/n", f"model: ./{'a' * 300}"), "no folder"),
        (MINIMAL + "x: &a [b, b]\ny: &c [*a, *a]\n? [*c, *c]\n: 1\n", "not valid YAML"),
        (MINIMAL + "groups: 1000000000\n", "groups"),
        (MINIMAL.replace("[8]", "[1, 64]"), "1 token has a single position"),
        (MINIMAL + "timeout: 0\n", "timeout"),
        (MINIMAL + "title: !!python/object/apply:os.system [id]\n", "not valid YAML"),
    ],
)
def test_hostile_study_files_are_mistakes_in_words(tmp_path, text, said):
    (tmp_path / "study.yaml").write_text(text)
    assert any(said in line for line in validate(tmp_path / "study.yaml"))


def test_a_loop_of_links_and_a_closed_folder_are_mistakes_in_words(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    path = tmp_path / "study.yaml"
    path.write_text(MINIMAL + "corpus: loop/texts\n")
    assert any("no file or folder" in line for line in validate(path))
    path.write_text("name: a\nwindows: [8]\ncheckpoints: loop\n")
    assert any("loop" in line for line in validate(path))


@pytest.mark.parametrize("width", [9, 400])
def test_bombs_of_aliases_and_merges_end_at_once(tmp_path, width):
    """Nine levels of nine stand for 387 million values; a merge key flattens them."""
    lists = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    merges = ["b0: &b0 {x: 1}"] + [
        f"b{i}: &b{i} {{<<: [{', '.join([f'*b{i - 1}'] * 9)}]}}" for i in range(1, 10)
    ]
    deep = [f"c: {'[' * width}"]
    for lines in (lists, merges, deep if width > 40 else lists):
        (tmp_path / "study.yaml").write_text(MINIMAL + "\n".join(lines) + "\n")
        started = os.times().user
        assert validate(tmp_path / "study.yaml")
        assert os.times().user - started < 5


# Texts


@pytest.mark.parametrize(
    "line",
    [b'{"text": "\\ud800"}', b'{"text": ' + b"[" * 100_000, b'{"text": "a\xff"}', b'{"text": 1}', b"[1]"],
)
def test_hostile_lines_are_named(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(CorpusError, match=r"a\.jsonl:2"):
        texts_of(path)


def test_damaged_compression_is_named(tmp_path):
    data = bytearray(gzip.compress(b'{"text": "the cat sat on the mat"}\n' * 50))
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "a.jsonl.gz").write_bytes(data)
    with pytest.raises(CorpusError, match=r"a\.jsonl\.gz"):
        texts_of(tmp_path / "a.jsonl.gz")


def test_texts_of_a_parquet_file_that_are_not_utf8_are_named(tmp_path):
    binary = pa.array([b"fine", b"\xff\xfe"], pa.binary())
    array = pa.Array.from_buffers(pa.string(), 2, binary.buffers())
    pq.write_table(pa.table({"text": array}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=r"a\.parquet.*UTF-8"):
        texts_of(tmp_path / "a.parquet")


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_fewer_texts(tmp_path, monkeypatch):
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "a.txt").write_text("the cat")
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def closed(path):
        if str(path).endswith("closed"):  # permissions do not hold for root
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(CorpusError, match=r"closed: cannot be read \(Permission denied\)"):
        texts_of(tmp_path)


# Memory


BOUNDED = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from fuzz.readers import spec_of
from qkscope.corpus.texts import Notes, read_texts
from qkscope.errors import QkscopeError
from qkscope.vectors import read_moments
path = Path(sys.argv[2])
try:
    if path.name == "data.parquet":
        read_moments(path, groups=2)
    for _ in zip(range(64), read_texts(spec_of(path), Notes())): pass
except QkscopeError as error:
    print("refused:", error)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) // 1024)
"""


def most_memory(path: Path) -> tuple[int, str]:
    """Megabytes that a process of its own had at most while it read a file, and what it said."""
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, str(Path(__file__).parent), str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1]), done.stdout


def test_a_small_file_that_stands_for_gigabytes_of_text_is_read_within_bounds(tmp_path):
    line = tmp_path / "a.jsonl.gz"
    with gzip.open(line, "wb", compresslevel=1) as file:
        file.write(b'{"text": "')
        for _ in range(400):
            file.write(b"a" * 1_000_000)
        file.write(b'"}\n')
    memory, said = most_memory(line)
    assert "more than 256,000,000 bytes" in said
    assert memory < 1200
    rows = tmp_path / "a.parquet"
    repeated = pa.DictionaryArray.from_arrays(np.zeros(2000, "i4"), ["a" * 4_000_000])
    pq.write_table(pa.table({"text": repeated}), rows, compression="zstd", store_schema=False)
    assert rows.stat().st_size < 100_000
    assert most_memory(rows)[0] < 1200


def test_a_small_file_of_millions_of_rows_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "data.parquet"
    rows = 21_000_000
    zeros = pa.array(np.zeros(rows, "i4"))
    vector = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows, "f4")), 1)
    pq.write_table(
        pa.table({"example_id": zeros, "position": zeros, "vector": vector}), path, compression="zstd"
    )
    memory, said = most_memory(path)
    assert "21,000,000 rows; expected" in said
    assert memory < 600


RESULTS = """
import resource
import sys
from pathlib import Path
from qkscope import store
from qkscope.errors import QkscopeError
from qkscope.results import load_results
resource.setrlimit(resource.RLIMIT_AS, (4_000_000_000, 4_000_000_000))
for place in map(Path, sys.argv[1:]):
    try:
        print("read", load_results(place).axes if place.is_dir() else store.read_tensors(place))
    except QkscopeError as error:
        print("refused", error)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) // 1024)
"""


def memory_of_results(*places: Path) -> tuple[int, list[str]]:
    """Megabytes that a process with at most four gigabytes had while it read these, and what it said of each."""
    done = subprocess.run(
        [sys.executable, "-c", RESULTS, *map(str, places)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    *said, peak = done.stdout.splitlines()
    return int(peak), said


def folder_of_200(folder: Path) -> Path:
    """A results folder with a study and a qk.csv of 200 heads."""
    folder.mkdir()
    study = "name: a\nwindows: [8]\ncheckpoints: [{folder: ./a, name: a}]\n"
    (folder / "study.yaml").write_text(study)
    rows = [f"a,{layer},{head},0,0.5,0.5" for layer in range(10) for head in range(20)]
    (folder / "qk.csv").write_text("\n".join(["model,layer,head,pc,r_q,r_k", *rows]) + "\n")
    return folder


def test_sparse_files_of_thirty_gigabytes_are_refused_unread(tmp_path):
    size = 30_000_000_000
    entry = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
    about = {"__metadata__": {"meta": "{}", "digest": "0" * 64}, "0.v": entry}
    header = json.dumps(about).encode()
    axes = folder_of_200(tmp_path / "axes") / "axes.safetensors"
    axes.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(axes, 8 + len(header) + size)
    tables = []
    for name in ("qk.csv", "measures.safetensors"):
        tables.append(folder_of_200(tmp_path / Path(name).stem) / name)
        tables[-1].touch()
        os.truncate(tables[-1], size)
    # No table bounds the size of a unit, but memory does.
    memory, said = memory_of_results(axes.parent, axes, *(path.parent for path in tables))
    for path, line in zip((axes, axes, *tables), said, strict=True):
        assert line.startswith(f"refused {path}")
    assert memory < 1000


# Names


@pytest.mark.parametrize("name", ["", " ", "a\x1b[2J", "a\nb", "a\u202eb", "=1+1", "+1", "-1", "@x"])
def test_names_that_would_act_on_a_terminal_or_spreadsheet_are_refused(tmp_path, name):
    frame = pd.DataFrame({"model": [name], "layer": 0, "head": 0, "pc": 0, "r_q": 0.5, "r_k": 0.5})
    frame.to_csv(tmp_path / "qk.csv", index=False)
    with pytest.raises(TableError, match="line 2: model is"):
        read_qk(tmp_path / "qk.csv")


def test_cells_of_our_tables_are_never_formulas(tmp_path):
    store.write_csv(
        tmp_path / "a.csv", pd.DataFrame({"label": ["=1+1", "@x", "fine", "-a"], "value": [-1.0, 2, 3, 4]})
    )
    assert (tmp_path / "a.csv").read_text() == "label,value\n'=1+1,-1.0\n'@x,2.0\nfine,3.0\n'-a,4.0\n"


def test_what_an_error_quotes_cannot_take_over_a_terminal(tmp_path):
    folder = tmp_path / "a\x1b[2J\u202e"
    done = CliRunner().invoke(main, ["report", str(folder)])
    assert done.exit_code == 1
    assert "\x1b" not in done.output
    assert "\\x1b[2J\\u202e" in done.output
    assert printable("a\tb\nc \ud800") == "a\tb\nc \\ud800"


HOSTILE = [
    "$\\frac{1}{0}$",
    "<script>alert(1)</script>",
    "[a](javascript:alert(1))",
    "| a | b |",
    "`x` **b** _c_",
    "../../up",
    "%s %n {0}",
    "a" * 180,
]


def test_hostile_names_are_only_text_in_figures_pages_and_tables(tmp_path):
    """Markup, mathtext, Markdown, paths and long names in every output of a table."""
    from qkscope.figures import draw_all
    from qkscope.report import write_report

    rows = [(name, layer, head) for name in HOSTILE for layer in range(2) for head in range(2)]
    frame = pd.DataFrame(rows, columns=["model", "layer", "head"]).assign(pc=0)
    frame = frame.assign(r_q=np.linspace(0, 0.9, len(frame)), r_k=0.4)
    frame.to_csv(tmp_path / "qk.csv", index=False)
    before = sorted(path.name for path in tmp_path.parent.iterdir())
    draw_all(tmp_path / "qk.csv", out=tmp_path / "figures")
    page = write_report(tmp_path / "qk.csv", out=tmp_path / "report.html").read_text()
    assert sorted(path.name for path in tmp_path.parent.iterdir()) == before
    assert "<script>alert" not in page
    for path in (tmp_path / "figures").rglob("*.svg"):
        assert "<script>alert" not in path.read_text()
    papers = [path.read_bytes() for path in (tmp_path / "figures").rglob("*.pdf")]
    assert len(papers) == len(list((tmp_path / "figures").iterdir())) > 3
    for paper in papers:
        # What a PDF could do: actions, links, attachments, forms. Names are glyphs in compressed streams.
        assert not re.search(
            rb"/(JS|JavaScript|OpenAction|AA|Launch|URI|GoToR|EmbeddedFile|AcroForm)\b", paper
        )
        assert b"alert(1)" not in paper
    for path in (tmp_path / "figures").rglob("*.md"):
        without_code = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", path.read_text())
        assert not re.search(r"(?<!\\)<script|(?<!\\)\]\(javascript:", without_code)


MARKUP = [
    "<img src=x onerror=alert(1)>",
    "[a](javascript:alert(1)) ![b](c) <https://d.e>",
    "| `a` | ``b` &lt;img&gt; **c** _d_ ~~e~~ $f$ \\",
]


@pytest.fixture(scope="module")
def marked_up(tmp_path_factory):
    """A measured study in which everything that can have a name has markup for one."""
    import yaml
    from small_study import make_study, run_undrawn

    folder = tmp_path_factory.mktemp("markup")
    path = make_study(folder)
    study = yaml.safe_load(path.read_text().replace("16", "32")) | {
        "title": MARKUP[0],
        "plasticity": {"keys": 3},
    }
    study["measures"] = ["rotation", "per_kind", "plasticity"]
    checkpoints = [each for phase in study["phases"] for each in phase["checkpoints"]]
    for each, name in zip(checkpoints, MARKUP, strict=True):
        each["name"] = name
    for phase, name in zip(study["phases"], MARKUP[1:], strict=True):
        phase["label"] = name
    path.write_text(yaml.safe_dump(study))
    results = folder / MARKUP[1].replace("/", "")
    run_undrawn(path, results)
    return results


def test_no_name_is_markup_in_the_readme_of_any_figure(marked_up):
    """Rendered as CommonMark with tables and HTML, the links are to the figure's own files and there is no HTML."""
    from dataclasses import replace

    from markdown_it import MarkdownIt
    from test_ablation import _ablation

    from qkscope.claims import claims
    from qkscope.figures import CATALOGUE
    from qkscope.figures.readme import readme
    from qkscope.figures.view import look
    from qkscope.results import load_results

    results = load_results(marked_up)
    # Layers with and without rotation, so that no figure is left out.
    data = results.data.load()
    rope = np.broadcast_to(data["layer"].to_numpy() % 2.0, data["rope"].shape)
    causes = results.causes.assign(population="RoPE")
    results = replace(results, data=data.assign(rope=data["rope"].copy(data=rope)), causes=causes)
    model = results.timeline.models[-1]
    ablated = _ablation([("position", "top:8:share_position", 0.1, 0.01, 0.05, 0.01)]).assign(
        checkpoint=model
    )
    results = replace(results, ablation=ablated)
    view, said = look(results), claims(results)
    markdown = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable(["table", "strikethrough"])
    for picture in CATALOGUE:
        assert picture.why_not(view) is None, picture.name
        text = readme(picture, view, picture.draw(view, None), said)
        tokens = [inner for token in markdown.parse(text) for inner in (token, *(token.children or ()))]
        assert not [token.content for token in tokens if token.type.startswith("html")], picture.name
        places = {str(token.attrs.get("href") or token.attrs.get("src") or "figure.png") for token in tokens}
        assert places <= {"figure.png", "figure.svg", "figure.pdf", "data.csv"}, picture.name
        assert "s_open" not in {token.type for token in tokens}, picture.name
        # A renderer without backslash escapes before < must not find a tag either.
        assert "<img" not in re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text), picture.name


def test_drawing_many_checkpoints_says_how_long_it_takes(tmp_path, monkeypatch, capsys):
    from qkscope.figures import draw_all
    from qkscope.figures import drawing as catalogue

    monkeypatch.setattr(catalogue, "CATALOGUE", ())
    monkeypatch.setattr(catalogue, "MANY", 10)
    for count in (9, 10):
        rows = [f"step-{step},0,0,0,0.5,0.5" for step in range(1, count + 1)]
        (tmp_path / "qk.csv").write_text("\n".join(["model,layer,head,pc,r_q,r_k", *rows]))
        draw_all(tmp_path / "qk.csv")
        assert ("10 checkpoints" in capsys.readouterr().err) == (count == 10)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("scan", ["m", "--heads", "²"]),
        ("run", ["s.yaml", "--shard", f"1/{'9' * 400}"]),
        ("run", ["s.yaml", "--shard", "²/2"]),
    ],
)
def test_numbers_that_are_none(command, arguments):
    done = CliRunner().invoke(main, [command, *arguments])
    assert done.exit_code in (1, 2)
    assert isinstance(done.exception, SystemExit)


def test_folders_that_only_look_like_heads(tmp_path):
    for name in ("l²h0q", f"l{'9' * 100}h0q", "l0h0q"):
        (tmp_path / "m" / name).mkdir(parents=True)
    assert list(find_models(tmp_path)[0].queries) == [(0, 0)]


@pytest.mark.parametrize("what", ["twice", "huge"])
def test_vectors_that_cannot_be_measured_are_named_or_counted(tmp_path, what):
    columns = {"example_id": pa.array([0, 0], pa.int32()), "position": pa.array([0, 1], pa.int32())}
    vector = pa.array([[1e200, 1.0], [-1e200, 2.0]], pa.list_(pa.float64()))
    table = pa.table([*columns.values(), vector], names=[*columns, "vector"])
    if what == "twice":
        table = table.append_column("position", columns["position"])
    pq.write_table(table, tmp_path / "data.parquet")
    if what == "twice":
        with pytest.raises(VectorsError, match="duplicate columns position"):
            read_moments(tmp_path / "data.parquet", groups=1)
    else:
        [moments] = read_moments(tmp_path / "data.parquet", groups=1)
        assert moments.bad[0] == 2


# Numbers


def moments_of(x, t):
    sums = Accumulator()
    sums.update(x[None], t)
    return sums.moments()


def test_equal_eigenvalues_are_flagged_and_not_chosen_by_chance():
    """Two axes of one variance: any turn of the data would choose another first axis, so there is none."""
    t = np.arange(64.0)
    square = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]] * 16)
    for angle in (0.0, 0.3, 1.1):
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        groups = [(moments_of(square @ turn, t), moments_of(square @ turn, t)) for _ in range(3)]
        axes = measure_batch(groups, 2)
        assert np.isnan(axes.r_q).all()
        assert np.isnan(axes.r_q_se).all()


def test_groups_of_the_same_documents_give_no_certainty(rng):
    x, t = rng.normal(size=(50, 4)), np.arange(50.0)
    groups = [(moments_of(x, t), moments_of(x + 1, t)) for _ in range(4)]
    axes = measure_batch(groups, 3)
    assert np.isfinite(axes.r_q).all()
    assert np.isnan(axes.r_q_se).all()
    assert np.isnan(axes.r_k_se).all()


def test_repeated_documents_are_said(tmp_path):
    from tiny import tiny_tokenizer

    from qkscope.corpus import load_corpus
    from qkscope.study import CorpusSpec

    for number in range(16):
        (tmp_path / f"{number}.txt").write_text("the cat sat on the mat")
    corpus = load_corpus(CorpusSpec(source=[str(tmp_path)]), tiny_tokenizer(), 16)
    assert any("15 of 16 documents are exact copies" in warning for warning in corpus.warnings)


@pytest.mark.parametrize("setting", ["autocast", "medium"])
def test_settings_of_the_host_process_do_not_change_sums(setting):
    import torch
    from tiny import tiny_model

    from qkscope.capture import measure
    from qkscope.capture.measure import full_precision
    from qkscope.corpus import documents_from
    from qkscope.sums.head_index import HeadIndex

    model, heads = tiny_model(), HeadIndex.of([(0, 0), (1, 3)], 2)
    documents = documents_from([list(range(3, 19))] * 2)

    def sums():
        return measure(model, documents, heads, [16]).q[0].M

    quiet = sums()
    if setting == "medium":
        torch.set_float32_matmul_precision("medium")
        try:
            with full_precision("cpu"):
                assert torch.backends.cuda.matmul.fp32_precision == "ieee"
                assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
            assert torch.get_float32_matmul_precision() == "medium"
        finally:
            torch.set_float32_matmul_precision("highest")
        return
    x = torch.randn(2, 64, 8, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.bmm(x, x.transpose(1, 2)).dtype == torch.bfloat16
        with full_precision("cpu"):
            assert torch.equal(torch.bmm(x, x.transpose(1, 2)), torch.einsum("bij,bkj->bik", x, x))
    assert np.array_equal(sums(), quiet)


@pytest.mark.parametrize("scale", [1e-30, 1e-150, 1e150])
def test_tiny_and_huge_vectors_give_the_same_correlations(rng, scale):
    t = np.arange(60.0)
    x = rng.normal(size=(60, 3)) * [3, 2, 1] + t[:, None] * 0.02

    def r(s):
        groups = [(moments_of(x[:30] * s, t[:30]), moments_of(x[:30] * s + s, t[:30]))] * 2
        return measure_batch(groups, 2).r_q

    plain, scaled = r(1.0), r(scale)
    assert np.isnan(scaled).all() or np.allclose(scaled, plain, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-10, 1e-18, 1e-22, 1e-25, 1e-30])
def test_vectors_whose_squares_float32_does_not_have_are_summed_all_the_same(rng, scale):
    """One head of a layer that has shrunk to almost nothing, beside one that has not."""
    import torch

    t = np.arange(60.0)
    x = rng.normal(size=(2, 60, 3)) * [3, 2, 1] + t[:, None] * 0.02
    sizes = np.array([scale, 1.0])[:, None, None]
    sums, plain = Accumulator(), Accumulator()
    sums.update(torch.tensor(x * sizes, dtype=torch.float32), torch.arange(60.0))
    plain.update(x, t)
    found, exact = sums.moments(), plain.moments()
    np.testing.assert_allclose(found.M / sizes**2, exact.M, rtol=2e-5, atol=1e-4)
    np.testing.assert_allclose(found.C / sizes[..., 0], exact.C, rtol=2e-5, atol=1e-3)


def test_positions_of_a_billion_keep_their_digits(rng):
    x = rng.normal(size=(200, 3))
    near = moments_of(x, np.arange(200.0))
    far = moments_of(x, np.arange(200.0) + 1e9)
    np.testing.assert_allclose(far.C, near.C, rtol=1e-9, atol=1e-9)
